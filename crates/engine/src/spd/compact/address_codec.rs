//! Encodes a policy's own fields. An IPv6 address is stored as the bytes that differ from a base:
//! zeros, or the traffic's address, which a tunnel address often resembles.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use arrayvec::ArrayVec;

use crate::{Family, Reqid};

/// Encoded fields of one policy.
#[derive(Debug, Default)]
pub(crate) struct FieldWriter(ArrayVec<u8, MAX_BYTES>);

/// Bytes not yet decoded.
pub(crate) struct FieldReader<'a>(pub(crate) &'a [u8]);

/// Base of a tunnel's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TunnelBase {
    /// All zero.
    Zeros,
    /// The traffic's address on the same side.
    Traffic,
}

/// Prefix lengths and protocol, ports, four addresses, a tunnel's base, a request id.
const MAX_BYTES: usize = 3 + 4 + 4 * (2 + 16) + 1 + 4;
/// Flag in the byte that gives the request id's length.
const BASE_IS_TRAFFIC: u8 = 0x10;

impl std::ops::Deref for FieldWriter {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl FieldWriter {
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.0.extend(bytes.iter().copied());
    }

    pub(crate) fn address(&mut self, address: IpAddr, base: [u8; 16]) {
        match address {
            IpAddr::V4(v4) => self.put(&v4.octets()),
            IpAddr::V6(v6) => {
                self.put(&differing_octets(v6, base).to_ne_bytes());
                let octets = v6.octets().into_iter().zip(base);
                self.0.extend(octets.filter(|(own, base)| own != base).map(|(own, _)| own));
            }
        }
    }

    /// Encodes tunnel addresses of one family, each with the traffic's address on its side, and the
    /// request id.
    pub(crate) fn tunnel(&mut self, ends: &[(IpAddr, IpAddr)], reqid: Reqid) {
        let number = reqid.0.to_le_bytes();
        let (mut base, mut len) = (TunnelBase::Zeros, number.len());
        if ends.iter().all(|(end, _)| end.is_ipv6()) {
            base = TunnelBase::best(ends);
            len -= (reqid.0.leading_zeros() / u8::BITS) as usize;
            self.put(&[len.to_le_bytes()[0]
                | if base == TunnelBase::Traffic { BASE_IS_TRAFFIC } else { 0 }]);
        }
        ends.iter().for_each(|(end, traffic)| self.address(*end, base.octets(*traffic)));
        self.put(&number[..len]);
    }
}

impl FieldReader<'_> {
    /// Reads the next `N` bytes; the layout says how many there are.
    pub(crate) fn take<const N: usize>(&mut self) -> [u8; N] {
        let Some((next, others)) = self.0.split_first_chunk() else { return [0; N] };
        self.0 = others;
        *next
    }

    pub(crate) fn address(&mut self, family: Family, base: [u8; 16]) -> IpAddr {
        match family {
            Family::V4 => Ipv4Addr::from(self.take::<4>()).into(),
            Family::V6 => {
                let (mut octets, mut differing_octets) = (base, u16::from_ne_bytes(self.take()));
                while differing_octets != 0 {
                    [octets[differing_octets.trailing_zeros() as usize % 16]] = self.take();
                    differing_octets &= differing_octets - 1;
                }
                Ipv6Addr::from(octets).into()
            }
        }
    }

    /// Base of the tunnel's addresses, and length of the request id.
    pub(crate) fn tunnel(&mut self, family: Family) -> (TunnelBase, usize) {
        match family {
            Family::V4 => (TunnelBase::Zeros, size_of::<Reqid>()),
            Family::V6 => {
                let [told] = self.take();
                let base = if told & BASE_IS_TRAFFIC == 0 {
                    TunnelBase::Zeros
                } else {
                    TunnelBase::Traffic
                };
                (base, (told & !BASE_IS_TRAFFIC).into())
            }
        }
    }

    /// Reads a request id of `len` bytes.
    pub(crate) fn reqid(&mut self, len: usize) -> Reqid {
        let mut number = [0; 4];
        number.iter_mut().take(len).for_each(|byte| [*byte] = self.take());
        Reqid(u32::from_le_bytes(number))
    }
}

impl TunnelBase {
    /// The base that needs fewer bytes.
    fn best(ends: &[(IpAddr, IpAddr)]) -> Self {
        let bytes = |base: &Self| {
            let bytes = |(end, traffic): &(IpAddr, IpAddr)| match end {
                IpAddr::V4(_) => 0,
                IpAddr::V6(v6) => differing_octets(*v6, base.octets(*traffic)).count_ones(),
            };
            ends.iter().map(bytes).sum::<u32>()
        };
        [Self::Zeros, Self::Traffic].into_iter().min_by_key(bytes).unwrap_or(Self::Zeros)
    }

    /// Base octets of a tunnel address, given the traffic's address on its side.
    pub(crate) fn octets(self, traffic: IpAddr) -> [u8; 16] {
        match (self, traffic) {
            (Self::Traffic, IpAddr::V6(v6)) => v6.octets(),
            (Self::Traffic, IpAddr::V4(_)) | (Self::Zeros, _) => [0; 16],
        }
    }
}

/// Bitmap of the octets that differ from the base.
fn differing_octets(address: Ipv6Addr, base: [u8; 16]) -> u16 {
    let octets = address.octets().into_iter().zip(base).enumerate();
    octets.fold(0, |bits, (at, (own, base))| bits | u16::from(own != base) << at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Addresses with few distinct octets, so that many are similar.
    fn address(family: Family) -> impl Strategy<Value = IpAddr> {
        let bits = (any::<u128>(), any::<u128>(), any::<bool>());
        bits.prop_map(move |(bits, other, any)| match family {
            Family::V4 => Ipv4Addr::from_bits(u32::try_from(bits >> 96).unwrap()).into(),
            Family::V6 if any => Ipv6Addr::from_bits(bits).into(),
            Family::V6 => Ipv6Addr::from_bits(bits & other & 0xff << (other % 120)).into(),
        })
    }

    fn any_family() -> impl Strategy<Value = Family> {
        prop_oneof![Just(Family::V4), Just(Family::V6)]
    }

    proptest! {
        #[test]
        fn address_codec_tunnel_round_trips(
            (family, ends) in any_family().prop_flat_map(|family| {
                let traffic = any_family().prop_flat_map(address);
                (Just(family), prop::collection::vec((address(family), traffic), 1..3))
            }),
            reqid in prop_oneof![0_u32..300, any::<u32>()],
        ) {
            let mut bytes = FieldWriter::default();
            bytes.tunnel(&ends, Reqid(reqid));
            let mut words = FieldReader(&bytes);
            let (base, len) = words.tunnel(family);
            for (end, traffic) in &ends {
                prop_assert_eq!(words.address(family, base.octets(*traffic)), *end);
            }
            prop_assert_eq!(words.reqid(len), Reqid(reqid));
            prop_assert!(words.0.is_empty());
        }
    }

    #[test]
    fn address_codec_similar_addresses_are_short() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let (traffic, far) = (address("2001:db8:7:1700::"), address("fd00:a:b:c:d:e:f:1234"));
        for (peer, traffic, reqid, len) in [
            ("2001:db8:7:1700::1", traffic, 7, 1 + 2 + 1 + 1),
            ("2001:db8:7:1700::1", far, 7, 1 + 2 + 7 + 1),
            ("2001:db8:7:1700::1", far, 0, 1 + 2 + 7),
            ("198.51.100.7", far, 7, 4 + 4),
        ] {
            let mut bytes = FieldWriter::default();
            bytes.tunnel(&[(address(peer), traffic)], Reqid(reqid));
            assert_eq!(bytes.len(), len, "{peer} {traffic} {reqid}");
        }
    }
}
