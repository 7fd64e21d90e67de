//! Values that have a range: checked when read, right ever after.

use std::{
    collections::BTreeMap,
    fmt,
    num::NonZeroUsize,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use nix::unistd::Group;
use serde::{Deserialize, Deserializer, de};

use super::limits::MOST_FUNCTIONS;

/// Name of an interface: 1 to 15 characters without `/`, `%` and blanks, and neither `.` nor `..`
/// (`net/core/dev.c: dev_valid_name`), nor `all` or `default`, which have settings of their own
/// (`net/ipv4/devinet.c: devinet_sysctl_register`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct TunName(String);

impl TunName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for TunName {
    fn default() -> Self {
        Self("uxfrm0".to_owned())
    }
}

impl TryFrom<String> for TunName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let fits = (1..16).contains(&name.len())
            && !matches!(name.as_str(), "." | ".." | "all" | "default")
            && name.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '/' | '%' | ':'));
        if fits {
            Ok(Self(name))
        } else {
            Err(format!(
                "{name:?} can't be an interface's name: 1 to 15 characters without / and blanks, and none that the kernel uses itself"
            ))
        }
    }
}

impl fmt::Display for TunName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// For how many microseconds a device gathers frames: all of its traffic waits for so long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "i64")]
pub struct Gather(u32);

impl Gather {
    const MOST: u32 = 10_000;

    /// The time.
    #[must_use]
    pub fn span(self) -> Duration {
        Duration::from_micros(self.0.into())
    }
}

impl TryFrom<i64> for Gather {
    type Error = String;

    fn try_from(microseconds: i64) -> Result<Self, String> {
        u32::try_from(microseconds).ok().filter(|span| *span <= Self::MOST).map(Self).ok_or_else(
            || {
                format!(
                    "frames are gathered for {microseconds} microseconds; it can be 0 to {}",
                    Self::MOST
                )
            },
        )
    }
}

/// The TUN's MTU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mtu {
    /// As large as the largest packet that fits into a tunnel in use.
    #[default]
    Auto,
    /// Bytes, 1280 (RFC 8200's least) to 65535.
    Fixed(u16),
}

impl Mtu {
    /// Below that the kernel switches IPv6 off, and with it goes each IPv6 route into the TUN
    /// (`net/ipv6/addrconf.c: addrconf_notify`).
    pub(crate) const LEAST: u16 = 1280;
}

impl TryFrom<i64> for Mtu {
    type Error = String;

    fn try_from(bytes: i64) -> Result<Self, String> {
        if bytes < i64::from(Self::LEAST) {
            return Err(format!(
                "an MTU of {bytes} bytes; it has to be from 1280 to 65535. Below 1280 the kernel \
                 switches IPv6 off on the TUN. For a narrower path set the MTU of the route to the \
                 peer: ip route change … mtu N"
            ));
        }
        u16::try_from(bytes)
            .map(Self::Fixed)
            .map_err(|_| format!("an MTU of {bytes} bytes; it has to be from 1280 to 65535"))
    }
}

impl<'de> Deserialize<'de> for Mtu {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AutoOrBytes;
        impl de::Visitor<'_> for AutoOrBytes {
            type Value = Mtu;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("\"auto\" or a number of bytes")
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Mtu, E> {
                Mtu::try_from(bytes).map_err(E::custom)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Mtu, E> {
                match text {
                    "auto" => Ok(Mtu::Auto),
                    other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
                }
            }
        }
        deserializer.deserialize_any(AutoOrBytes)
    }
}

/// A routing table of uxfrm's own: not 0 and none of the system's (253 `default`, 254 `main`, 255
/// `local`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "i64")]
pub struct RoutingTable(u32);

impl RoutingTable {
    /// The kernel's number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

impl Default for RoutingTable {
    fn default() -> Self {
        Self(30000)
    }
}

impl TryFrom<i64> for RoutingTable {
    type Error = String;

    fn try_from(number: i64) -> Result<Self, String> {
        const RIGHT: &str = "any from 1 to 4294967295 but 253 to 255 will do";
        match u32::try_from(number) {
            Ok(0 | 253..=255) => Err(format!("routing table {number} is the system's; {RIGHT}")),
            Ok(number) => Ok(Self(number)),
            Err(_) => Err(format!("there is no routing table {number}; {RIGHT}")),
        }
    }
}

/// How many workers, 1 to 256: each has a queue of the TUN, and the kernel gives it no more
/// (`drivers/net/tun.c: MAX_TAP_QUEUES`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "i64")]
pub struct Workers(NonZeroUsize);

impl Workers {
    /// The number.
    #[must_use]
    pub const fn count(self) -> NonZeroUsize {
        self.0
    }
}

impl Default for Workers {
    fn default() -> Self {
        Self(NonZeroUsize::MIN)
    }
}

impl TryFrom<i64> for Workers {
    type Error = String;

    fn try_from(count: i64) -> Result<Self, String> {
        usize::try_from(count)
            .ok()
            .and_then(NonZeroUsize::new)
            .filter(|count| count.get() <= 256)
            .map(Self)
            .ok_or_else(|| format!("{count} workers; there have to be 1 to 256"))
    }
}

/// A group of users, by name or number; kept by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupId(u32);

impl GroupId {
    /// The kernel's number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

impl<'de> Deserialize<'de> for GroupId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameOrNumber;
        impl de::Visitor<'_> for NameOrNumber {
            type Value = GroupId;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a group's name or number")
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<GroupId, E> {
                let wrong = |_| E::custom(format!("{number} is no group's number"));
                u32::try_from(number).map(GroupId).map_err(wrong)
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<GroupId, E> {
                if let Ok(number) = name.parse() {
                    return Ok(GroupId(number));
                }
                find_group(name).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(NameOrNumber)
    }
}

/// Groups that were found before: a gateway that is confined can't look for them again when it
/// reads its configuration anew.
static FOUND_GROUPS: Mutex<BTreeMap<String, u32>> = Mutex::new(BTreeMap::new());

fn find_group(name: &str) -> Result<GroupId, String> {
    let mut known = FOUND_GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
    match Group::from_name(name) {
        Ok(Some(group)) => {
            known.insert(name.to_owned(), group.gid.as_raw());
            Ok(GroupId(group.gid.as_raw()))
        }
        Ok(None) => Err(format!("there is no group {name:?} on this machine")),
        Err(errno) => known.get(name).map(|number| GroupId(*number)).ok_or_else(|| {
            format!("can't look for group {name:?} ({errno}): name it by its number, or restart")
        }),
    }
}

/// How many virtual functions a device has, 0 to 64.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "i64")]
pub struct Functions(u16);

impl Functions {
    /// The number.
    #[must_use]
    pub const fn count(self) -> u16 {
        self.0
    }
}

impl TryFrom<i64> for Functions {
    type Error = String;

    fn try_from(count: i64) -> Result<Self, String> {
        u16::try_from(count)
            .ok()
            .filter(|count| *count <= MOST_FUNCTIONS)
            .map(Self)
            .ok_or_else(|| format!("{count} virtual functions; there can be 0 to {MOST_FUNCTIONS}"))
    }
}
