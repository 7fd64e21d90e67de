//! Names for numbers: the host's interfaces and protocols, and iproute2's own. Others stay numbers.

use std::{
    cell::RefCell,
    collections::HashMap,
    net::{Ipv4Addr, Ipv6Addr},
};

use jiff::{Timestamp, tz::TimeZone};
use nix::net::if_::if_indextoname;
use uxfrm_engine::UdpEncapKind;
use uxfrm_netlink::client::{INET, INET6, RawAddress};

/// This host's names.
#[derive(Debug)]
pub struct Names {
    protocols: HashMap<u8, String>,
    zone: TimeZone,
    devices: RefCell<HashMap<u32, String>>,
}

impl Names {
    /// As `/etc/protocols`, the interfaces and the time zone have them.
    #[must_use]
    pub fn of_host() -> Self {
        let text = std::fs::read_to_string("/etc/protocols").unwrap_or_default();
        Self { protocols: protocols(&text), zone: TimeZone::system(), devices: RefCell::default() }
    }

    /// None but those that iproute2 has itself, in UTC.
    #[must_use]
    pub fn none() -> Self {
        Self { protocols: HashMap::new(), zone: TimeZone::UTC, devices: RefCell::default() }
    }

    /// `getprotobynumber`
    #[must_use]
    pub fn protocol(&self, number: u8) -> String {
        self.protocols.get(&number).map_or_else(|| number.to_string(), Clone::clone)
    }

    /// `lib/ll_map.c: ll_index_to_name`
    #[must_use]
    pub fn device(&self, index: u32) -> String {
        if index == 0 {
            return "*".to_owned();
        }
        let name = || {
            let name = if_indextoname(index).ok().and_then(|name| name.into_string().ok());
            let name = name.filter(|name| !name.is_empty());
            name.unwrap_or_else(|| format!("if{index}"))
        };
        self.devices.borrow_mut().entry(index).or_insert_with(name).clone()
    }

    /// Seconds since 1970, in local time; 0 is never.
    #[must_use]
    pub fn time(&self, seconds: u64) -> String {
        if seconds == 0 {
            return "-".to_owned();
        }
        let timestamp = i64::try_from(seconds).ok().and_then(|s| Timestamp::from_second(s).ok());
        timestamp.map_or_else(
            || "invalid-time".to_owned(),
            |time| time.to_zoned(self.zone.clone()).strftime("%Y-%m-%d %H:%M:%S").to_string(),
        )
    }

    /// Before an event of `monitor -t`, `-ts` (`lib/utils.c: print_timestamp`).
    #[must_use]
    pub fn stamp(&self, now: Timestamp, timestamps: crate::grammar::Timestamps) -> String {
        use crate::grammar::Timestamps;
        let local = now.to_zoned(self.zone.clone());
        let micros = local.subsec_nanosecond() / 1000;
        match timestamps {
            Timestamps::None => String::new(),
            Timestamps::Long => {
                format!("Timestamp: {} {micros} usec\n", local.strftime("%a %b %e %H:%M:%S %Y"))
            }
            Timestamps::Short => format!("[{}.{micros:06}] ", local.strftime("%Y-%m-%dT%H:%M:%S")),
        }
    }
}

/// The first name of each number.
fn protocols(text: &str) -> HashMap<u8, String> {
    let mut names = HashMap::new();
    for line in text.lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        if let (Some(name), Some(Ok(number))) = (words.next(), words.next().map(str::parse)) {
            names.entry(number).or_insert_with(|| name.to_owned());
        }
    }
    names
}

/// `rt_addr_n2a`: as glibc's `inet_ntop` writes it.
pub(crate) fn address(family: u16, raw: RawAddress) -> String {
    let [a, b, c, d, ..] = raw;
    match family {
        INET => Ipv4Addr::new(a, b, c, d).to_string(),
        INET6 => {
            let address = Ipv6Addr::from(raw);
            match address.segments() {
                // It has the old form for IPv4-compatible addresses, which Rust has not.
                [0, 0, 0, 0, 0, 0, upper, _] if upper != 0 => {
                    let [.., a, b, c, d] = raw;
                    format!("::{}", Ipv4Addr::new(a, b, c, d))
                }
                _ => address.to_string(),
            }
        }
        _ => "???".to_owned(),
    }
}

/// `strxf_xfrmproto`
pub(crate) fn ipsec_protocol(number: u8) -> String {
    let name = match number {
        50 => "esp",
        51 => "ah",
        108 => "comp",
        43 => "route2",
        60 => "hao",
        255 => "ipsec-any",
        _ => return number.to_string(),
    };
    name.to_owned()
}

/// iproute2 knows no `iptfs` yet, but the grammar here does.
pub(crate) fn mode(number: u8) -> String {
    let name = match number {
        0 => "transport",
        1 => "tunnel",
        2 => "ro",
        3 => "in_trigger",
        4 => "beet",
        5 => "iptfs",
        _ => return number.to_string(),
    };
    name.to_owned()
}

/// `strxf_share`
pub(crate) fn share(number: u8) -> String {
    let name = match number {
        0 => "any",
        1 => "session",
        2 => "user",
        3 => "unique",
        _ => return number.to_string(),
    };
    name.to_owned()
}

/// `strxf_ptype`
pub(crate) fn policy_kind(number: u8) -> String {
    match number {
        0 => "main".to_owned(),
        1 => "sub".to_owned(),
        _ => number.to_string(),
    }
}

/// Of a policy.
pub(crate) fn direction(number: u8) -> String {
    match number {
        0 => "in".to_owned(),
        1 => "out".to_owned(),
        2 => "fwd".to_owned(),
        _ => number.to_string(),
    }
}

/// Of `getdefault`.
pub(crate) const fn default_action(number: u8) -> &'static str {
    match number {
        0 => "unspec",
        1 => "block",
        2 => "accept",
        _ => "unknown",
    }
}

/// `encap type`
pub(crate) fn encap(number: u16) -> String {
    UdpEncapKind::from_number(number)
        .map_or_else(|| number.to_string(), |kind| kind.properties().word.to_owned())
}

/// The names of the bits that are set, in iproute2's order, and the bits that have none.
pub(crate) fn flags(bits: u32, names: &[(u32, &'static str)]) -> (Vec<&'static str>, u32) {
    let set: Vec<_> = names.iter().filter(|(bit, _)| bits & bit != 0).collect();
    let rest = set.iter().fold(bits, |rest, (bit, _)| rest & !bit);
    (set.into_iter().map(|(_, name)| *name).collect(), rest)
}

pub(crate) const STATE_FLAGS: &[(u32, &str)] = &[
    (1, "noecn"),
    (2, "decap-dscp"),
    (4, "nopmtudisc"),
    (8, "wildrecv"),
    (16, "icmp"),
    (32, "af-unspec"),
    (64, "align4"),
    (128, "esn"),
];

pub(crate) const EXTRA_FLAGS: &[(u32, &str)] = &[(1, "dont-encap-dscp"), (2, "oseq-may-wrap")];

/// iproute2 writes `cpu-acquire`, which it does not know, as 4.
pub(crate) const POLICY_FLAGS: &[(u32, &str)] = &[(1, "localok"), (2, "icmp")];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_print_as_by_glibc() {
        let v6 = |text: &str| address(INET6, text.parse::<Ipv6Addr>().unwrap().octets());
        for text in
            ["::", "::1", "::1.2.3.4", "::ffff:1.2.3.4", "2001:db8::1:0:0:1", "1:0:2:3:4:5:6:7"]
        {
            assert_eq!(v6(text), text);
        }
        assert_eq!(address(INET, [10; 16]), "10.10.10.10");
        assert_eq!(address(0, [10; 16]), "???");
    }

    #[test]
    fn protocol_names_and_times_print() {
        let names = protocols("# x\nip\t0\tIP\nesp 50 IPSEC-ESP # c\nother 50\nbad x\nbig 256\n");
        assert_eq!((names.len(), names[&50].as_str()), (2, "esp"));
        let names = Names::none();
        assert_eq!((names.time(0), names.time(86401)), ("-".into(), "1970-01-02 00:00:01".into()));
        assert_eq!(names.time(u64::MAX), "invalid-time");
        assert_eq!((names.device(0), names.device(4_000_000)), ("*".into(), "if4000000".into()));
    }

    #[test]
    fn timestamps_print_as_by_asctime() {
        use crate::grammar::Timestamps;
        let now = Timestamp::new(86401, 1_234_000).unwrap();
        let names = Names::none();
        let long = "Timestamp: Fri Jan  2 00:00:01 1970 1234 usec\n";
        assert_eq!(names.stamp(now, Timestamps::Long), long);
        assert_eq!(names.stamp(now, Timestamps::Short), "[1970-01-02T00:00:01.001234] ");
    }

    #[test]
    fn unnamed_flag_bits_are_kept() {
        assert_eq!(flags(0x7, POLICY_FLAGS), (vec!["localok", "icmp"], 4));
    }
}
