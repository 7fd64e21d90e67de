//! `[inline]`: a gateway between two network devices.

use serde::Deserialize;

use super::TunName;

/// `[inline]`: both devices have to be named, and be different ones. Without the section there is
/// host mode alone.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Named")]
pub struct Inline {
    protected: TunName,
    wire: TunName,
    protected_by: By,
    wire_by: By,
}

/// How a device is read and written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum By {
    /// By packet sockets, on any Ethernet device.
    #[default]
    AfPacket,
    /// By the rings of `AF_XDP`, where the device's driver can: ESP on the wire, and what comes
    /// from the protected side to be forwarded. All else by packet sockets.
    AfXdp,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    protected: TunName,
    wire: TunName,
    #[serde(default)]
    protected_by: By,
    #[serde(default)]
    wire_by: By,
}

impl Inline {
    /// The Ethernet device towards those who are protected.
    #[must_use]
    pub fn protected(&self) -> &str {
        self.protected.as_str()
    }

    /// The Ethernet device towards other gateways.
    #[must_use]
    pub fn wire(&self) -> &str {
        self.wire.as_str()
    }

    /// How the device towards those who are protected is read.
    #[must_use]
    pub const fn protected_by(&self) -> By {
        self.protected_by
    }

    /// How the device towards other gateways is read and written.
    #[must_use]
    pub const fn wire_by(&self) -> By {
        self.wire_by
    }

    /// Whether a device is read by `AF_XDP`.
    #[must_use]
    pub fn has_af_xdp(&self) -> bool {
        [self.protected_by, self.wire_by].contains(&By::AfXdp)
    }
}

impl TryFrom<Named> for Inline {
    type Error = String;

    fn try_from(named: Named) -> Result<Self, String> {
        let Named { protected, wire, protected_by, wire_by } = named;
        if protected == wire {
            return Err(format!(
                "protected and wire are both {protected}; inline mode needs two devices"
            ));
        }
        Ok(Self { protected, wire, protected_by, wire_by })
    }
}

#[cfg(test)]
mod tests {
    use super::By;
    use crate::config::Config;

    #[test]
    fn inline_devices_and_drivers_are_parsed() {
        let text = "[inline]\nprotected = 'eth0'\nwire = 'eth1'";
        let inline = Config::parse("c.toml", text).unwrap().inline.unwrap();
        assert_eq!((inline.protected(), inline.wire()), ("eth0", "eth1"));
        let by = |more| {
            let text = format!("{text}\n{more}");
            let inline = Config::parse("c.toml", &text).unwrap().inline.unwrap();
            (inline.protected_by(), inline.wire_by())
        };
        assert_eq!(by(""), (By::AfPacket, By::AfPacket));
        assert_eq!(by("wire_by = 'af-xdp'"), (By::AfPacket, By::AfXdp));
        assert_eq!(by("protected_by = 'af-xdp'\nwire_by = 'af-packet'"), (By::AfXdp, By::AfPacket));
        assert_eq!(Config::parse("c.toml", "").unwrap().inline, None);
    }

    #[test]
    fn mistakes_are_told() {
        for (text, message) in [
            ("[inline]\nprotected = 'eth0'", "c.toml:1:1: missing field `wire`"),
            (
                "[inline]\nprotected = 'eth0'\nwire = 'eth0'",
                "c.toml:1:1: protected and wire are both eth0; inline mode needs two devices",
            ),
            (
                "[inline]\nprotected = 'eth0'\nwires = 'eth1'",
                "c.toml:3:1: unknown field `wires`, expected one of `protected`, `wire`, `protected_by`, `wire_by`",
            ),
            (
                "[inline]\nprotected = 'eth 0'\nwire = 'eth1'",
                "c.toml:2:13: \"eth 0\" can't be an interface's name",
            ),
            (
                "[inline]\nprotected = 'eth0'\nwire = 'eth1'\nwire_by = 'dpdk'",
                "c.toml:4:11: unknown variant `dpdk`, expected `af-packet` or `af-xdp`",
            ),
        ] {
            let shown = Config::parse("c.toml", text).unwrap_err().to_string();
            assert!(shown.contains(message), "{shown}\n{message}");
        }
    }
}
