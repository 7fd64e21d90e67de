//! Receive side scaling: Microsoft's Toeplitz hash, as in the 82599 and most others.

use std::net::IpAddr;

use super::tuple::Tuple;

/// Entries of the indirection table.
pub(super) const INDIRECTIONS: usize = 128;

const KEY_LEN: usize = 40;
/// IPv6 addresses and two ports.
const INPUT_LEN: usize = 36;

/// The hash key (`ethtool -X DEV hkey`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RssKey(pub [u8; KEY_LEN]);

impl RssKey {
    /// Hashes addresses, and ports if any; the same for all packets of a flow.
    pub(super) fn hash(&self, tuple: &Tuple) -> u32 {
        let mut input = [0; INPUT_LEN];
        let len = fill(&mut input, tuple);
        self.toeplitz(&input[..len])
    }

    /// For each set bit of the input, the 32 bits of the key that start there.
    fn toeplitz(&self, input: &[u8]) -> u32 {
        let mut window = u64::from_be_bytes([
            self.0[0], self.0[1], self.0[2], self.0[3], self.0[4], self.0[5], self.0[6], self.0[7],
        ]);
        let mut hash = 0;
        for (place, byte) in input.iter().enumerate() {
            for bit in 0..8 {
                if byte & (0x80 >> bit) != 0 {
                    hash ^= upper_half(window);
                }
                window <<= 1;
            }
            window |= u64::from(self.0.get(place + 8).copied().unwrap_or(0));
        }
        hash
    }
}

const fn upper_half(window: u64) -> u32 {
    (window >> 32) as u32
}

fn fill(input: &mut [u8; INPUT_LEN], tuple: &Tuple) -> usize {
    let mut len = 0;
    let mut put = |bytes: &[u8]| {
        input[len..len + bytes.len()].copy_from_slice(bytes);
        len += bytes.len();
    };
    for address in [tuple.source, tuple.destination] {
        match address {
            IpAddr::V4(address) => put(&address.octets()),
            IpAddr::V6(address) => put(&address.octets()),
        }
    }
    if tuple.has_ports() {
        put(&tuple.source_port.to_be_bytes());
        put(&tuple.destination_port.to_be_bytes());
    }
    len
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key and the vectors of Microsoft's "Verifying the RSS Hash Calculation".
    const KEY: RssKey = RssKey([
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ]);

    fn tuple(source: (&str, u16), destination: (&str, u16), protocol: u8) -> Tuple {
        Tuple {
            source: source.0.parse().unwrap(),
            destination: destination.0.parse().unwrap(),
            protocol,
            source_port: source.1,
            destination_port: destination.1,
            spi: None,
            vlan: None,
            flex: None,
        }
    }

    #[test]
    fn published_vectors() {
        for (source, destination, with_ports, without) in [
            (("66.9.149.187", 2794), ("161.142.100.80", 1766), 0x51cc_c178, 0x323e_8fc2),
            (("199.92.111.2", 14230), ("65.69.140.83", 4739), 0xc626_b0ea, 0xd718_262a),
            (("24.19.198.95", 12898), ("12.22.207.184", 38024), 0x5c2b_394a, 0xd2d0_a5de),
            (("38.27.205.30", 48228), ("209.142.163.6", 2217), 0xafc7_327f, 0x8298_9176),
            (("153.39.163.191", 44251), ("202.188.127.2", 1303), 0x10e8_28a2, 0x5d18_09c5),
            (
                ("3ffe:2501:200:1fff::7", 2794),
                ("3ffe:2501:200:3::1", 1766),
                0x4020_7d3d,
                0x2cc1_8cd5,
            ),
            (
                ("3ffe:501:8::260:97ff:fe40:efab", 14230),
                ("ff02::1", 4739),
                0xdde5_1bbf,
                0x0f0c_461c,
            ),
            (
                ("3ffe:1900:4545:3:200:f8ff:fe21:67cf", 44251),
                ("fe80::200:f8ff:fe21:67cf", 38024),
                0x02d1_feef,
                0x4b61_e985,
            ),
        ] {
            assert_eq!(KEY.hash(&tuple(source, destination, 6)), with_ports, "{source:?}");
            assert_eq!(KEY.hash(&tuple(source, destination, 1)), without, "{source:?}");
        }
    }
}
