//! Which flows a change of policies may concern, told in so few words that what was known of all others can be kept.
//!
//! Addresses fall into cells, by the bits of a host, of a network and of a site, of either end: six grains. A policy lies in one cell of one grain, that
//! of the longer of its prefixes; a flow lies in one of each. A policy that comes or goes can change what is found for flows in its cell, and for no others.

use std::net::IpAddr;

use crate::{Direction, Family, FlowKey, PolicyEntry, Prefix};

/// All flows that a change may concern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InvalidationScope {
    /// Those in a cell.
    Bucket(PrefixGranularity, u16),
    /// All.
    All,
}

/// By which addresses cells are told apart: the place of the bits among an end's lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PrefixGranularity {
    Source(u8),
    Destination(u8),
}

/// Cells of a grain, each of addresses from all over: with few of them concerned, few other flows are taken for concerned.
pub(crate) const BUCKETS: usize = 1 << 14;

const LENGTHS: usize = 3;
/// Bits that are told apart: of a host, a network, a site.
const V4: [u8; LENGTHS] = [32, 24, 16];
const V6: [u8; LENGTHS] = [128, 64, 48];
/// 2^64 over the golden ratio, which spreads numbers that follow each other; and another odd number.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
const APART: u64 = 0xd6e8_feb8_6659_fd93;

impl InvalidationScope {
    /// The flows that a policy may decide over, and others.
    pub(crate) fn of(entry: &PolicyEntry) -> Self {
        let (direction, selector) = (entry.direction(), entry.selector());
        let source = granularity_of(selector.source)
            .map(|at| (at, PrefixGranularity::Source(at), selector.source));
        let destination = granularity_of(selector.destination)
            .map(|at| (at, PrefixGranularity::Destination(at), selector.destination));
        // Tunnels to many sites have this side's prefix in common, and may have no longer one on the other.
        let ends = match direction {
            Direction::Out => [destination, source],
            Direction::In | Direction::Forward => [source, destination],
        };
        match ends.into_iter().flatten().min_by_key(|(at, ..)| *at) {
            Some((_, granularity, prefix)) => {
                Self::Bucket(granularity, granularity.bucket(direction, prefix.address()))
            }
            None => Self::All,
        }
    }
}

impl PrefixGranularity {
    /// All of them.
    pub(crate) const ALL: [Self; 2 * LENGTHS] = [
        Self::Source(0),
        Self::Source(1),
        Self::Source(2),
        Self::Destination(0),
        Self::Destination(1),
        Self::Destination(2),
    ];

    /// Its place among all.
    #[inline]
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Source(at) => at as usize,
            Self::Destination(at) => LENGTHS + at as usize,
        }
    }

    /// The cell that a flow lies in, below [`BUCKETS`].
    #[inline]
    pub(crate) fn bucket_of(self, direction: Direction, flow: &FlowKey) -> u16 {
        self.bucket(
            direction,
            match self {
                Self::Source(_) => flow.source,
                Self::Destination(_) => flow.destination,
            },
        )
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "halves, and a bucket's bits")]
    fn bucket(self, direction: Direction, address: IpAddr) -> u16 {
        let (Self::Source(at) | Self::Destination(at)) = self;
        let bits = match address {
            IpAddr::V4(v4) => {
                u64::from(v4.to_bits() >> (u32::BITS - u32::from(V4[usize::from(at)])))
            }
            IpAddr::V6(v6) => {
                let bits = v6.to_bits() >> (u128::BITS - u32::from(V6[usize::from(at)]));
                (bits >> 64) as u64 ^ (bits as u64).wrapping_mul(APART)
            }
        };
        let spread = (bits ^ (direction as u64).wrapping_mul(APART)).wrapping_mul(SPREAD);
        (spread >> (u64::BITS - BUCKETS.ilog2())) as u16
    }
}

/// The place of the most bits that all addresses of a prefix have in common.
fn granularity_of(prefix: Prefix) -> Option<u8> {
    let lengths = match Family::of(prefix.address()) {
        Family::V4 => V4,
        Family::V6 => V6,
    };
    (0..).zip(lengths).find(|(_, bits)| prefix.prefix_len() >= *bits).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};
    use std::sync::Arc;

    use proptest::prelude::*;
    use uxfrm_crypto::Backend;

    use super::*;
    use crate::spd::table::tests::policy;
    use crate::{Database, Moment, Selector};

    fn entry(direction: Direction, source: Prefix, destination: Prefix) -> Arc<PolicyEntry> {
        let mut new = policy(direction, 1);
        new.selector = Selector { source, destination, ..Selector::any(destination.family()) };
        let mut database = Database::new(Backend::Portable, 1);
        database.apply(Moment(0), |change| change.add_policy(new)).unwrap()
    }

    fn direction() -> impl Strategy<Value = Direction> {
        prop_oneof![Just(Direction::In), Just(Direction::Out), Just(Direction::Forward)]
    }

    fn address(family: Family, bits: u128) -> IpAddr {
        match family {
            Family::V4 => Ipv4Addr::from_bits((bits >> 96) as u32).into(),
            Family::V6 => Ipv6Addr::from_bits(bits).into(),
        }
    }

    /// A prefix of so many bits, and an address in it that has the others from elsewhere.
    fn prefix(family: Family, [bits, others]: [u128; 2], len: u8) -> (Prefix, IpAddr) {
        let len = len.min(family.bits());
        let host = u128::MAX.checked_shr(len.into()).unwrap_or(0);
        let inside = bits & !host | others & host;
        (Prefix::new(address(family, bits), len).unwrap(), address(family, inside))
    }

    proptest! {
        #[test]
        fn every_flow_of_a_policy_lies_in_its_cell(
            direction in direction(), is_v4: bool,
            ends: [[u128; 2]; 2], lens in [0..=128_u8, 0..=128_u8],
        ) {
            let family = if is_v4 { Family::V4 } else { Family::V6 };
            let (source, from) = prefix(family, ends[0], lens[0]);
            let (destination, to) = prefix(family, ends[1], lens[1]);
            let entry = entry(direction, source, destination);
            let flow = FlowKey::between(from, to);
            prop_assert!(entry.matches(&flow));
            let has_site = granularity_of(source).is_some() || granularity_of(destination).is_some();
            match InvalidationScope::of(&entry) {
                InvalidationScope::All => prop_assert!(!has_site),
                InvalidationScope::Bucket(granularity, bucket) => {
                    prop_assert!(has_site && usize::from(bucket) < BUCKETS);
                    prop_assert_eq!(granularity.bucket_of(direction, &flow), bucket);
                    prop_assert_eq!(PrefixGranularity::ALL[granularity.index()], granularity);
                }
            }
        }
    }

    #[test]
    fn tunnels_of_one_side_lie_apart_whichever_way_packets_go() {
        let here = Prefix::new(IpAddr::from([10, 0, 0, 0]), 24).unwrap();
        let buckets = |direction: Direction| {
            let mut buckets: Vec<_> = (0..200_u8)
                .map(|site| {
                    let there = Prefix::new(IpAddr::from([10, 1, site, 0]), 24).unwrap();
                    let (from, to) = match direction {
                        Direction::Out => (here, there),
                        Direction::In | Direction::Forward => (there, here),
                    };
                    match InvalidationScope::of(&entry(direction, from, to)) {
                        InvalidationScope::Bucket(granularity, bucket) => {
                            (granularity.index(), bucket)
                        }
                        InvalidationScope::All => panic!("it has prefixes"),
                    }
                })
                .collect();
            buckets.sort_unstable();
            buckets.dedup();
            buckets.len()
        };
        for direction in [Direction::In, Direction::Out, Direction::Forward] {
            assert!(buckets(direction) > 190, "{direction:?}: {}", buckets(direction));
        }
    }
}
