//! `[inline]`: a gateway between two network devices.

use serde::Deserialize;

use super::TunName;

/// `[inline]`: both devices have to be named, and be different ones. Without the section there is host mode alone.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Named")]
pub struct Inline {
    protected: TunName,
    wire: TunName,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    protected: TunName,
    wire: TunName,
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
}

impl TryFrom<Named> for Inline {
    type Error = String;

    fn try_from(Named { protected, wire }: Named) -> Result<Self, String> {
        if protected == wire {
            return Err(format!(
                "protected and wire are both {protected}; inline mode needs two devices"
            ));
        }
        Ok(Self { protected, wire })
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    #[test]
    fn both_devices_are_named() {
        let text = "[inline]\nprotected = 'eth0'\nwire = 'eth1'";
        let inline = Config::parse("c.toml", text).unwrap().inline.unwrap();
        assert_eq!((inline.protected(), inline.wire()), ("eth0", "eth1"));
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
                "c.toml:3:1: unknown field `wires`, expected `protected` or `wire`",
            ),
            (
                "[inline]\nprotected = 'eth 0'\nwire = 'eth1'",
                "c.toml:2:13: \"eth 0\" can't be an interface's name",
            ),
        ] {
            let shown = Config::parse("c.toml", text).unwrap_err().to_string();
            assert!(shown.contains(message), "{shown}\n{message}");
        }
    }
}
