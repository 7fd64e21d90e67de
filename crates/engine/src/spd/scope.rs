//! Compact summary of the flows that a policy change can affect, so that cached verdicts of all
//! others stay valid.
//!
//! Addresses are hashed into buckets by their host, network and site bits, for source and
//! destination: six granularities. A policy belongs to one bucket of one granularity, given by the
//! longer of its prefixes; a flow belongs to one bucket of each. A policy change affects flows in
//! its bucket only.

use std::net::IpAddr;

use crate::{Direction, Family, FlowKey, PolicyEntry, Prefix};

/// Flows that a change can affect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InvalidationScope {
    /// Flows in one bucket.
    Bucket(PrefixGranularity, u16),
    /// All flows.
    All,
}

/// Which end of a flow is hashed, and by which of its prefix lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PrefixGranularity {
    Source(u8),
    Destination(u8),
}

/// Buckets of a granularity. Each holds unrelated addresses, so that a change in a few buckets
/// invalidates few other flows.
pub(crate) const BUCKETS: usize = 1 << 14;

const LENGTHS: usize = 3;
/// Prefix lengths: host, network, site.
const V4: [u8; LENGTHS] = [32, 24, 16];
const V6: [u8; LENGTHS] = [128, 64, 48];
/// Multipliers of the hash: 2^64 over the golden ratio, and another odd number.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
const APART: u64 = 0xd6e8_feb8_6659_fd93;

impl InvalidationScope {
    /// Scope of a policy: all flows that it can match, and some others.
    pub(crate) fn of(entry: &PolicyEntry) -> Self {
        let (direction, selector) = (entry.direction(), entry.selector());
        let source = granularity_of(selector.source)
            .map(|at| (at, PrefixGranularity::Source(at), selector.source));
        let destination = granularity_of(selector.destination)
            .map(|at| (at, PrefixGranularity::Destination(at), selector.destination));
        // The remote end first: tunnels to many sites share the local prefix.
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
    /// All granularities.
    pub(crate) const ALL: [Self; 2 * LENGTHS] = [
        Self::Source(0),
        Self::Source(1),
        Self::Source(2),
        Self::Destination(0),
        Self::Destination(1),
        Self::Destination(2),
    ];

    /// Its index in [`PrefixGranularity::ALL`].
    #[inline]
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Source(at) => at as usize,
            Self::Destination(at) => LENGTHS + at as usize,
        }
    }

    /// Bucket of a flow, below [`BUCKETS`].
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

/// Index of the longest prefix length that all addresses of a prefix share.
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

    /// A prefix, and a random address in it.
    fn prefix(family: Family, [bits, others]: [u128; 2], len: u8) -> (Prefix, IpAddr) {
        let len = len.min(family.bits());
        let host = u128::MAX.checked_shr(len.into()).unwrap_or(0);
        let inside = bits & !host | others & host;
        (Prefix::new(address(family, bits), len).unwrap(), address(family, inside))
    }

    proptest! {
        #[test]
        fn scope_contains_all_flows_of_policy(
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
    fn scope_separates_tunnels_in_both_directions() {
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
