//! Traffic selectors of policies and states.

use std::fmt;

use crate::{Family, FlowKey, Prefix};

/// A port, ICMP type or code, or half a GRE key, under a mask: `value & mask`. The default (0/0)
/// matches all.
///
/// ```
/// use uxfrm_engine::PortMask;
///
/// assert!(PortMask::exactly(443).fits(443) && !PortMask::exactly(443).fits(80));
/// assert!(PortMask::default().fits(80));
/// let upper_half = PortMask { value: 0x8000, mask: 0x8000 };
/// assert!(upper_half.fits(40_000) && !upper_half.fits(443));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortMask {
    /// Value of the masked port.
    pub value: u16,
    /// The bits that count.
    pub mask: u16,
}

impl PortMask {
    /// Exactly this port.
    #[must_use]
    pub const fn exactly(value: u16) -> Self {
        Self { value, mask: u16::MAX }
    }

    /// Whether `port` matches.
    #[must_use]
    #[inline]
    pub const fn fits(self, port: u16) -> bool {
        (self.value ^ port) & self.mask == 0
    }
}

/// An XFRM selector (`struct xfrm_selector`): purely ternary, every field a value under a mask.
///
/// The ICMP type is in the source port and its code in the destination port; a GRE key's upper half
/// in the source port, its lower half in the destination port; a Mobility Header's type in the
/// source port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Selector {
    /// Source addresses.
    pub source: Prefix,
    /// Destination addresses; of the same family.
    pub destination: Prefix,
    /// IP protocol number; 0 matches all.
    pub protocol: u8,
    /// Source port, ICMP type, upper half of the GRE key.
    pub source_port: PortMask,
    /// Destination port, ICMP code, lower half of the GRE key.
    pub destination_port: PortMask,
    /// Interface by which the packet is to leave or came in; 0 matches all.
    pub ifindex: u32,
    /// User id of the socket; kept for listing, matches all.
    pub user: u32,
}

impl Selector {
    /// Matches every packet of a family.
    #[must_use]
    pub const fn any(family: Family) -> Self {
        Self {
            source: Prefix::any(family),
            destination: Prefix::any(family),
            protocol: 0,
            source_port: PortMask { value: 0, mask: 0 },
            destination_port: PortMask { value: 0, mask: 0 },
            ifindex: 0,
            user: 0,
        }
    }

    /// Fits every packet from one prefix to another, of any protocol and any port.
    ///
    /// Both prefixes must be of one family: a database refuses a mixed selector.
    ///
    /// ```
    /// use uxfrm_engine::{PortMask, Prefix, Selector};
    ///
    /// let hosts = Prefix::new([10, 1, 0, 0].into(), 16)?;
    /// let server = Prefix::host([192, 0, 2, 7].into());
    /// let https = Selector {
    ///     protocol: 6,
    ///     destination_port: PortMask::exactly(443),
    ///     ..Selector::between(hosts, server)
    /// };
    /// assert_eq!(https.source, hosts);
    /// # Ok::<(), uxfrm_engine::PrefixError>(())
    /// ```
    #[must_use]
    pub const fn between(source: Prefix, destination: Prefix) -> Self {
        Self { source, destination, ..Self::any(destination.family()) }
    }

    /// Its family.
    #[must_use]
    pub const fn family(&self) -> Family {
        self.destination.family()
    }

    /// Whether a packet matches: `net/xfrm/xfrm_policy.c: __xfrm4_selector_match`,
    /// `__xfrm6_selector_match`.
    #[must_use]
    #[inline]
    pub fn matches(&self, flow: &FlowKey) -> bool {
        self.destination.contains(flow.destination)
            && self.source.contains(flow.source)
            && self.destination_port.fits(flow.destination_port)
            && self.source_port.fits(flow.source_port)
            && (self.protocol == 0 || self.protocol == flow.protocol)
            && (self.ifindex == 0 || self.ifindex == flow.ifindex)
    }

    /// Whether it selects by addresses only: it matches all packets between two addresses, or none.
    pub(crate) const fn is_of_addresses(&self) -> bool {
        let ports = self.source_port.mask | self.destination_port.mask;
        self.protocol == 0 && ports == 0 && self.ifindex == 0
    }
}

/// In iproute2's words: `src 10.1.0.0/16 dst 10.2.0.0/16 proto udp dport 4500`.
impl fmt::Display for Selector {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "src {} dst {}", self.source, self.destination)?;
        match self.protocol {
            0 => {}
            1 => out.write_str(" proto icmp")?,
            6 => out.write_str(" proto tcp")?,
            17 => out.write_str(" proto udp")?,
            47 => out.write_str(" proto gre")?,
            58 => out.write_str(" proto ipv6-icmp")?,
            132 => out.write_str(" proto sctp")?,
            other => write!(out, " proto {other}")?,
        }
        let named = match self.protocol {
            1 | 58 => [("type", self.source_port), ("code", self.destination_port)],
            _ => [("sport", self.source_port), ("dport", self.destination_port)],
        };
        for (name, PortMask { value, mask }) in named {
            match mask {
                0 => {}
                u16::MAX => write!(out, " {name} {value}")?,
                _ => write!(out, " {name} {value}/{mask:#06x}")?,
            }
        }
        if self.ifindex != 0 {
            write!(out, " dev {}", self.ifindex)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selector_is_shown_in_words_of_iproute2() {
        let all = Selector::any(Family::V4);
        let port = |value, mask| PortMask { value, mask };
        for (selector, text) in [
            (all, "src 0.0.0.0/0 dst 0.0.0.0/0"),
            (
                Selector { protocol: 17, destination_port: PortMask::exactly(4500), ..all },
                "src 0.0.0.0/0 dst 0.0.0.0/0 proto udp dport 4500",
            ),
            (
                Selector { protocol: 6, source_port: port(0x8000, 0x8000), ifindex: 3, ..all },
                "src 0.0.0.0/0 dst 0.0.0.0/0 proto tcp sport 32768/0x8000 dev 3",
            ),
            (
                Selector { protocol: 1, source_port: PortMask::exactly(8), ..all },
                "src 0.0.0.0/0 dst 0.0.0.0/0 proto icmp type 8",
            ),
            (Selector { protocol: 88, ..all }, "src 0.0.0.0/0 dst 0.0.0.0/0 proto 88"),
        ] {
            assert_eq!(selector.to_string(), text);
        }
    }
}
