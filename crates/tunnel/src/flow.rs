//! Flow hash of an inner packet, source of the UDP source port (`include/net/udp.h:
//! udp_flow_src_port`).
//!
//! The network distributes a tunnel over paths and queues by outer ports: all packets of an inner
//! flow have one source port, and different flows most likely different ones.

use std::hash::{BuildHasher, Hasher};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use foldhash::fast::FixedState;
use uxfrm_packet::{FlowPorts, IpPacket, Protocol};

/// Random seed of the gateway, so that outsiders cannot choose flows that share a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HashSeed(pub u64);

/// The hash of a packet's flow: addresses, protocol, and ports or SPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowHash(u64);

impl FlowHash {
    /// Hashes the packet that `ip` was parsed from.
    ///
    /// Fragments hash without ports, the first one too, so that all of a datagram stay together.
    /// Without ports or SPI IPv6's flow label distinguishes flows, as in
    /// `net/core/flow_dissector.c: skb_get_hash`.
    #[must_use]
    pub fn of(ip: &IpPacket, bytes: &[u8], seed: HashSeed) -> Self {
        let mut hasher = FixedState::with_seed(seed.0).build_hasher();
        write_address(&mut hasher, ip.source);
        write_address(&mut hasher, ip.destination);
        let ports = FlowPorts::of(ip, bytes);
        hasher.write_u64(
            u64::from(ports.source) << 32
                | u64::from(ports.destination) << 16
                | u64::from(ip.protocol.0),
        );
        if ip.protocol == Protocol::ESP && !ip.is_fragment() {
            hasher.write(ip.upper(bytes).first_chunk::<4>().unwrap_or(&[0; 4]));
        }
        if ports == FlowPorts::NONE {
            hasher.write_u32(ip.flow_label);
        }
        Self(hasher.finish())
    }

    /// A source port, distributed evenly over `ports`, never 0.
    #[must_use]
    pub fn source_port(self, ports: &RangeInclusive<u16>) -> u16 {
        let (first, last) = ((*ports.start()).max(1), *ports.end());
        let count = u64::from(last.saturating_sub(first)) + 1;
        let upper_half = self.0 >> 32;
        // At most `last - first`: the product of a 32-bit number and `count`, without its 32 lower
        // bits.
        let offset = u16::try_from((upper_half * count) >> 32).unwrap_or(0);
        first + offset
    }

    /// The flow label of an outer IPv6 header (RFC 6438): 20 bits.
    #[must_use]
    pub fn label(self) -> u32 {
        let [.., a, b, c] = self.0.to_be_bytes();
        u32::from_be_bytes([0, a, b, c]) & 0x000f_ffff
    }
}

/// Default range of source ports.
pub const ALL_PORTS: RangeInclusive<u16> = 1..=u16::MAX;

fn write_address(hasher: &mut impl Hasher, address: IpAddr) {
    match address {
        IpAddr::V4(address) => hasher.write_u32(address.to_bits()),
        IpAddr::V6(address) => hasher.write_u128(address.to_bits()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use uxfrm_testkit::packets;

    use super::*;

    fn hash(bytes: &[u8]) -> FlowHash {
        FlowHash::of(&IpPacket::parse(bytes).unwrap(), bytes, HashSeed(7))
    }

    fn of_port(port: u16, payload: &[u8]) -> FlowHash {
        hash(&packets::udp_bytes(&format!("10.0.0.1:{port}"), "10.0.0.2:9", payload))
    }

    #[test]
    fn flow_hash_keeps_port_and_spreads_flows() {
        assert_eq!(of_port(5, b"one"), of_port(5, b"another"));
        let ports: Vec<u16> =
            (0..4096).map(|port| of_port(port, b"").source_port(&ALL_PORTS)).collect();
        let different = ports.iter().collect::<HashSet<_>>().len();
        assert!(different > 3800, "{different} ports for 4096 flows");
        for bit in 0..16 {
            let set = ports.iter().filter(|port| **port >> bit & 1 == 1).count();
            assert!((1800..2300).contains(&set), "bit {bit}: {set} of 4096");
        }
    }

    #[test]
    fn source_port_is_in_range_and_nonzero() {
        for number in [0, 1, u64::MAX, 0xffff_ffff, 1 << 32, 1 << 63] {
            assert_ne!(FlowHash(number).source_port(&(0..=u16::MAX)), 0);
            assert_eq!(FlowHash(number).source_port(&(77..=77)), 77);
            assert!((40..=50).contains(&FlowHash(number).source_port(&(40..=50))));
        }
        assert_eq!(FlowHash(u64::MAX).source_port(&ALL_PORTS), u16::MAX);
        assert_eq!(FlowHash(0).source_port(&ALL_PORTS), 1);
    }

    #[test]
    fn fragments_of_datagram_share_source_port() {
        let whole = packets::udp_bytes("10.0.0.1:5", "10.0.0.2:9", &[0; 64]);
        let (mut first, mut later) = (whole.clone(), whole);
        first[6] = 0x20;
        later[7] = 4;
        assert_eq!(hash(&first), hash(&later));
    }

    #[test]
    fn esp_flows_are_told_apart_by_spi() {
        let esp = |spi: u8| {
            let ends = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
            hash(&packets::ip(ends.0, ends.1, Protocol::ESP, &[0, 0, 0, spi, 0, 0, 0, 1]))
        };
        assert_ne!(esp(1), esp(2));
    }
}
