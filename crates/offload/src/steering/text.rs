//! A rule as text that can be parsed again.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use uxfrm_engine::Family;

use super::rule::{FlowRule, Masked, VLAN_ETHERTYPE};
use super::target::Target;

/// A line of `ethtool -U DEV`, without its location.
impl fmt::Display for FlowRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "flow-type {}", self.flow_type)?;
        let family = self.flow_type.family;
        for (word, masked) in [("src-ip", self.source), ("dst-ip", self.destination)] {
            let Some(Masked { value, mask }) = masked else { continue };
            write!(f, " {word} {}", address(value, family))?;
            let ignored = address(!mask, family);
            if !ignored.is_unspecified() {
                write!(f, " m {ignored}")?;
            }
        }
        if let Some(protocol) = self.protocol {
            write!(f, " l4proto {protocol}")?;
        }
        write_masked(f, "src-port", self.source_port)?;
        write_masked(f, "dst-port", self.destination_port)?;
        write_masked(f, "spi", self.spi)?;
        write_masked(f, "vlan", self.vlan)?;
        match self.flex {
            Some(flex) if flex.offset == VLAN_ETHERTYPE => {
                write!(f, " vlan-etype {:#x}", flex.value)?;
            }
            Some(flex) => {
                let both = u32::from(flex.offset) << 16 | u32::from(flex.value);
                write!(f, " user-def {both:#x}")?;
            }
            None => {}
        }
        match self.target {
            Target::Queue(queue) => write!(f, " action {}", queue.0),
            Target::Drop => f.write_str(" action -1"),
        }
    }
}

fn write_masked<T>(f: &mut fmt::Formatter<'_>, word: &str, masked: Option<Masked<T>>) -> fmt::Result
where
    T: Copy + Default + PartialEq + fmt::LowerHex + fmt::Display + std::ops::Not<Output = T>,
{
    let Some(Masked { value, mask }) = masked else { return Ok(()) };
    write!(f, " {word} {value}")?;
    if !mask == T::default() { Ok(()) } else { write!(f, " m {:#x}", !mask) }
}

/// The lowest bits of a number, as many as an address of the family has.
fn address(bits: u128, family: Family) -> IpAddr {
    match family {
        Family::V4 => {
            let [.., a, b, c, d] = bits.to_be_bytes();
            Ipv4Addr::new(a, b, c, d).into()
        }
        Family::V6 => Ipv6Addr::from_bits(bits).into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::grammar::RuleCommand;
    use super::*;

    fn read(line: &str) -> FlowRule {
        match line.parse() {
            Ok(RuleCommand::Add(rule, None)) => rule,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn example_rules_round_trip_text() {
        for line in [
            "flow-type ip4 src-ip 14.0.0.52 dst-ip 14.0.0.70 action 14",
            "flow-type tcp4 src-port 52790 action 14",
            "flow-type esp4 spi 7 action 3",
            "flow-type ip6 src-ip fd00:: m ::ffff l4proto 58 vlan 7 m 0xf000 action -1",
            "flow-type udp4 dst-port 4500 vlan-etype 0x800 action 0",
            "flow-type sctp6 src-ip ::1 user-def 0x2a0077 action 2",
        ] {
            assert_eq!(read(line).to_string(), line);
        }
    }

    proptest! {
        #[test]
        fn rule_text_round_trips(
            source: u32, ignored: u32, port: u16, port_mask: u16, spi: u32, spi_mask: u32,
            vlan: Option<u16>, flex in prop::option::of((0_u64..32, any::<u16>())), queue in -1_i32..16,
            esp: bool,
        ) {
            let (source, ignored) = (Ipv4Addr::from_bits(source), Ipv4Addr::from_bits(ignored));
            let mut line = match esp {
                true => format!("flow-type esp4 spi {spi} m {spi_mask}"),
                false => format!("flow-type tcp4 dst-port {port} m {port_mask:#x}"),
            };
            line += &format!(" src-ip {source} m {ignored}");
            line += &vlan.map_or(String::new(), |vlan| format!(" vlan {vlan}"));
            line += &flex.map_or(String::new(), |(half, value)| {
                format!(" user-def {}", (half * 2) << 16 | u64::from(value))
            });
            line += &format!(" action {queue}");
            let rule = read(&line);
            prop_assert_eq!(read(&rule.to_string()), rule);
        }
    }
}
