//! Flow key: the part of a packet that policies match.

use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use foldhash::fast::FixedState;
use uxfrm_packet::{FlowPorts, IpPacket, PacketBuf, Version};

/// The policy key of a packet (`struct flowi` of the kernel, filled in as by
/// `net/xfrm/xfrm_policy.c: decode_session4/6`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// Source address.
    pub source: IpAddr,
    /// Destination address; of the same family.
    pub destination: IpAddr,
    /// Upper-layer protocol.
    pub protocol: u8,
    /// Source port, ICMP type, Mobility Header type, upper half of the GRE key; 0 without one and
    /// in fragments.
    pub source_port: u16,
    /// Destination port, ICMP code, lower half of the GRE key; 0 without one and in fragments.
    pub destination_port: u16,
    /// Packet mark.
    pub mark: u32,
    /// XFRM interface id; 0 without one.
    pub if_id: u32,
    /// Interface by which it is to leave or came in; 0 unknown.
    pub ifindex: u32,
}

impl FlowKey {
    /// A key with addresses only.
    pub(crate) const fn between(source: IpAddr, destination: IpAddr) -> Self {
        Self {
            source,
            destination,
            protocol: 0,
            source_port: 0,
            destination_port: 0,
            mark: 0,
            if_id: 0,
            ifindex: 0,
        }
    }

    /// The key of a packet; `ip` was parsed from `bytes`, a part of `packet`.
    #[must_use]
    #[inline(always)]
    pub fn of(packet: &PacketBuf, ip: &IpPacket, bytes: &[u8]) -> Self {
        Self { mark: packet.mark, if_id: packet.if_id, ..Self::of_bytes(ip, bytes) }
    }

    /// The key without packet metadata; `ip` was parsed from `bytes`.
    #[must_use]
    #[inline(always)]
    pub fn of_bytes(ip: &IpPacket, bytes: &[u8]) -> Self {
        let ports = FlowPorts::of(ip, bytes);
        Self {
            source: ip.source,
            destination: ip.destination,
            protocol: ip.protocol.0,
            source_port: ports.source,
            destination_port: ports.destination,
            mark: 0,
            if_id: 0,
            ifindex: 0,
        }
    }

    /// The flow of its answers; with the same mark and interfaces.
    #[must_use]
    pub const fn reversed(self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            ..self
        }
    }

    /// IP version of its addresses.
    #[must_use]
    #[inline]
    pub const fn version(&self) -> Version {
        match self.destination {
            IpAddr::V4(_) => Version::V4,
            IpAddr::V6(_) => Version::V6,
        }
    }

    /// Source port for encapsulations that give each flow its own: spread evenly over `ports`,
    /// never 0 (`include/net/udp.h: udp_flow_src_port`). Fragments have no ports, not even the
    /// first one, so that all of a datagram take one path.
    pub(crate) fn source_port(&self, ports: &SourcePorts) -> u16 {
        let mut hasher = FixedState::with_seed(ports.seed).build_hasher();
        for end in [self.source, self.destination] {
            match end {
                IpAddr::V4(address) => hasher.write_u32(address.to_bits()),
                IpAddr::V6(address) => hasher.write_u128(address.to_bits()),
            }
        }
        let own = u64::from(self.source_port) << 16 | u64::from(self.destination_port);
        hasher.write_u64(own << 16 | u64::from(self.protocol));
        let [a, b, c, d, ..] = hasher.finish().to_be_bytes();
        let (first, last) = ((*ports.range.start()).max(1), *ports.range.end());
        let count = u64::from(last.saturating_sub(first)) + 1;
        // At most `last - first`: the product without its 32 lower bits.
        let offset = (u64::from(u32::from_be_bytes([a, b, c, d])) * count) >> 32;
        u16::try_from(offset).map_or(last, |offset| first + offset)
    }
}

/// Addresses, protocol and ports: `10.1.0.1:4711 -> 10.2.0.1:443 proto 6`. Without ports none are
/// shown.
impl fmt::Display for FlowKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, destination, source_port, destination_port, .. } = *self;
        match (self.protocol, source_port, destination_port) {
            (1 | 58, kind, code) => {
                write!(out, "{source} -> {destination} type {kind} code {code}")?
            }
            (_, 0, 0) => write!(out, "{source} -> {destination}")?,
            (_, from, to) => write!(
                out,
                "{} -> {}",
                SocketAddr::new(source, from),
                SocketAddr::new(destination, to)
            )?,
        }
        match self.protocol {
            0 => Ok(()),
            other => write!(out, " proto {other}"),
        }
    }
}

/// Source ports for inner flows; the same in every worker, so that a flow keeps its port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourcePorts {
    /// Seed of the hash.
    pub seed: u64,
    /// The host's ephemeral ports (`net.ipv4.ip_local_port_range`); others belong to services.
    pub range: RangeInclusive<u16>,
}

impl Default for SourcePorts {
    /// Linux's default range (`net/ipv4/af_inet.c: inet_init_net`).
    fn default() -> Self {
        Self { seed: 0, range: 32_768..=60_999 }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn flow(source_port: u16) -> FlowKey {
        let ends = ["10.1.0.1", "10.2.0.1"].map(|end| end.parse().unwrap());
        FlowKey { source_port, protocol: 17, ..FlowKey::between(ends[0], ends[1]) }
    }

    #[test]
    fn flow_is_shown_with_its_ports() {
        let ports = FlowKey { destination_port: 53, ..flow(7) };
        assert_eq!(ports.to_string(), "10.1.0.1:7 -> 10.2.0.1:53 proto 17");
        let ends: [IpAddr; 2] = ["fd00::1", "fd00::2"].map(|end| end.parse().unwrap());
        assert_eq!(FlowKey::between(ends[0], ends[1]).to_string(), "fd00::1 -> fd00::2");
        let echo = FlowKey { protocol: 58, source_port: 128, ..FlowKey::between(ends[0], ends[1]) };
        assert_eq!(echo.to_string(), "fd00::1 -> fd00::2 type 128 code 0 proto 58");
        let v6 = FlowKey { protocol: 6, source_port: 1, destination_port: 2, ..echo };
        assert_eq!(v6.to_string(), "[fd00::1]:1 -> [fd00::2]:2 proto 6");
    }

    #[test]
    fn flow_ports_spread_over_whole_range() {
        for range in [0..=u16::MAX, 32_768..=60_999, 40_000..=40_007, 7..=7] {
            let ports = SourcePorts { seed: 7, range: range.clone() };
            let all: Vec<u16> = (0..8192).map(|port| flow(port).source_port(&ports)).collect();
            assert!(all.iter().all(|port| *port != 0 && range.contains(port)), "{range:?}");
            let different = all.iter().collect::<HashSet<_>>().len();
            assert!(different >= range.len().min(6800), "{different} ports of {range:?}");
            let middle = range.start() / 2 + range.end() / 2;
            let above = all.iter().filter(|port| **port > middle).count();
            assert!(range.len() == 1 || (3900..4300).contains(&above), "{above} of {range:?}");
        }
    }

    #[test]
    fn fields_outside_the_flow_keep_its_port() {
        let marked = FlowKey { mark: 5, if_id: 7, ..flow(1) };
        let with = |seed| SourcePorts { seed, ..SourcePorts::default() };
        assert_eq!(marked.source_port(&with(7)), flow(1).source_port(&with(7)));
        assert_ne!(flow(1).source_port(&with(8)), flow(1).source_port(&with(7)));
    }
}
