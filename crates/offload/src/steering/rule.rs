//! One rule of the flow director.

use std::{fmt, net::IpAddr};

use uxfrm_engine::Family;

use super::{target::Target, tuple::Tuple};

/// Location of a rule: rules are matched from 0 upwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SteeringRuleId(pub u32);

/// `flow-type`: the kind of packets of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowType {
    /// IPv4 or IPv6.
    pub family: Family,
    /// The upper protocol; `None` for `ip4` and `ip6`, any.
    pub protocol: Option<u8>,
}

/// Required bits; `mask` has 1 where a bit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Masked<T> {
    pub(super) value: T,
    pub(super) mask: T,
}

/// Two bytes of the frame at `offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flex {
    pub(super) offset: u16,
    pub(super) value: u16,
}

/// Fields to match, and the target. `None` matches all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRule {
    pub(super) flow_type: FlowType,
    pub(super) source: Option<Masked<u128>>,
    pub(super) destination: Option<Masked<u128>>,
    pub(super) protocol: Option<u8>,
    pub(super) source_port: Option<Masked<u16>>,
    pub(super) destination_port: Option<Masked<u16>>,
    pub(super) spi: Option<Masked<u32>>,
    pub(super) vlan: Option<Masked<u16>>,
    pub(super) flex: Option<Flex>,
    pub(super) target: Target,
}

/// IP protocol numbers that have flow types.
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const ESP: u8 = 50;
pub(super) const SCTP: u8 = 132;

/// Offset of the EtherType behind a VLAN tag, which is matched by the flex field.
pub(super) const VLAN_ETHERTYPE: u16 = 16;

impl FlowRule {
    /// Matches all packets of its type.
    pub(super) const fn all(flow_type: FlowType, target: Target) -> Self {
        Self {
            flow_type,
            source: None,
            destination: None,
            protocol: None,
            source_port: None,
            destination_port: None,
            spi: None,
            vlan: None,
            flex: None,
            target,
        }
    }

    /// Target of matching packets.
    #[must_use]
    pub const fn target(&self) -> Target {
        self.target
    }

    pub(super) const fn flex(&self) -> Option<Flex> {
        self.flex
    }

    /// Whether a packet matches.
    #[must_use]
    pub fn fits(&self, tuple: &Tuple) -> bool {
        self.flow_type.fits(tuple)
            && fits(self.source, bits(tuple.source))
            && fits(self.destination, bits(tuple.destination))
            && self.protocol.is_none_or(|protocol| protocol == tuple.protocol)
            && fits(self.source_port, tuple.source_port)
            && fits(self.destination_port, tuple.destination_port)
            && self.spi.is_none_or(|spi| tuple.spi.is_some_and(|found| fits(Some(spi), found)))
            && self.vlan.is_none_or(|vlan| tuple.vlan.is_some_and(|found| fits(Some(vlan), found)))
            && self.flex.is_none_or(|flex| tuple.flex == Some(flex.value))
    }
}

impl FlowType {
    /// An ESP type matches packets received in ESP, other types match inner packets.
    fn fits(self, tuple: &Tuple) -> bool {
        self.family == Family::of(tuple.destination)
            && match self.protocol {
                None => true,
                Some(ESP) => tuple.spi.is_some(),
                Some(protocol) => protocol == tuple.protocol,
            }
    }
}

impl fmt::Display for SteeringRuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// ethtool's word for it.
impl fmt::Display for FlowType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.protocol {
            None => "ip",
            Some(TCP) => "tcp",
            Some(UDP) => "udp",
            Some(SCTP) => "sctp",
            // Only these five are parsed.
            Some(_) => "esp",
        };
        let version = match self.family {
            Family::V4 => 4,
            Family::V6 => 6,
        };
        write!(f, "{name}{version}")
    }
}

fn fits<T>(wanted: Option<Masked<T>>, found: T) -> bool
where
    T: Copy + PartialEq + std::ops::BitAnd<Output = T>,
{
    wanted.is_none_or(|wanted| wanted.value & wanted.mask == found & wanted.mask)
}

/// An address as a number; IPv4 in the lowest 32 bits.
pub(super) const fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits() as u128,
        IpAddr::V6(address) => address.to_bits(),
    }
}
