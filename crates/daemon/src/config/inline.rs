//! `[inline]`: a gateway between two network devices.

use serde::Deserialize;

use super::TunName;

/// `[inline]`: both devices have to be named, and be different ones. Without the section there is host mode alone.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Named")]
pub struct Inline {
    protected: TunName,
    wire: TunName,
    wire_by: WireBy,
}

/// How the wire's device is read and written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WireBy {
    /// By packet sockets, on any Ethernet device.
    #[default]
    AfPacket,
    /// ESP by the rings of `AF_XDP`, where the device's driver can.
    AfXdp,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    protected: TunName,
    wire: TunName,
    #[serde(default)]
    wire_by: WireBy,
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

    /// How that is read and written.
    #[must_use]
    pub const fn wire_by(&self) -> WireBy {
        self.wire_by
    }
}

impl TryFrom<Named> for Inline {
    type Error = String;

    fn try_from(Named { protected, wire, wire_by }: Named) -> Result<Self, String> {
        if protected == wire {
            return Err(format!(
                "protected and wire are both {protected}; inline mode needs two devices"
            ));
        }
        Ok(Self { protected, wire, wire_by })
    }
}

#[cfg(test)]
mod tests {
    use super::WireBy;
    use crate::config::Config;

    #[test]
    fn both_devices_are_named() {
        let text = "[inline]\nprotected = 'eth0'\nwire = 'eth1'";
        let inline = Config::parse("c.toml", text).unwrap().inline.unwrap();
        assert_eq!((inline.protected(), inline.wire()), ("eth0", "eth1"));
        assert_eq!(inline.wire_by(), WireBy::AfPacket);
        let text = format!("{text}\nwire_by = 'af-xdp'");
        let inline = Config::parse("c.toml", &text).unwrap().inline.unwrap();
        assert_eq!(inline.wire_by(), WireBy::AfXdp);
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
                "c.toml:3:1: unknown field `wires`, expected one of `protected`, `wire`, `wire_by`",
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
