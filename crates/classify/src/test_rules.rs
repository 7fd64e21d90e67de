//! Rules and keys for tests.

use std::sync::Arc;

use proptest::prelude::*;

use super::compact_rule::{AddressEnd, MaskTemplate};
use super::entry::{Entry, Ternary};
use super::key::{FiveTuple, Key, Words};
use super::rule::{Rank, Rule};

/// What an entry matches, and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct TestRule {
    pub(crate) ternary: Ternary,
    pub(crate) priority: u32,
    pub(crate) far: AddressEnd,
    pub(crate) mask_template: Option<Arc<MaskTemplate>>,
}

/// A rule, and its place among those that came together.
#[derive(Clone, Debug)]
pub(crate) struct TestEntry(Arc<(TestRule, u32)>);

impl Entry for TestEntry {
    type Precedence = (u32, u32);

    const NO_TAG: u32 = (1 << 23) - 1;

    fn precedence(&self) -> (u32, u32) {
        (self.0.0.priority, self.0.1)
    }

    fn rank(&self) -> Rank {
        Rank::new(self.0.0.priority)
    }

    fn tag(&self) -> u32 {
        self.0.1
    }

    fn ternary(&self) -> Ternary {
        self.0.0.ternary
    }

    fn far_end(&self) -> AddressEnd {
        self.0.0.far
    }

    fn mask_template(&self) -> Option<&Arc<MaskTemplate>> {
        self.0.0.mask_template.as_ref()
    }
}

/// Width of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

/// Some addresses: bits from the left, and how many of them count.
pub(crate) type Network = (u128, u32);

/// Matches all.
pub(crate) fn any(priority: u32) -> TestRule {
    let ternary = Ternary::default();
    TestRule { ternary, priority, far: AddressEnd::Destination, mask_template: None }
}

impl TestRule {
    pub(crate) fn to(mut self, (address, len): Network) -> Self {
        let Ternary { value, mask } = &mut self.ternary;
        (value.destination, mask.destination) = (halves(address), halves(ones(len)));
        self
    }

    pub(crate) fn from(mut self, (address, len): Network) -> Self {
        let Ternary { value, mask } = &mut self.ternary;
        (value.source, mask.source) = (halves(address), halves(ones(len)));
        self
    }

    /// Value and mask of source and destination port.
    pub(crate) fn ports(mut self, values: [u16; 2], masks: [u16; 2]) -> Self {
        let Ternary { value, mask } = &mut self.ternary;
        (value.ports, mask.ports) = (values, masks);
        self
    }

    /// 0 matches all.
    pub(crate) fn protocol(mut self, protocol: u8) -> Self {
        let Ternary { value, mask } = &mut self.ternary;
        (value.protocol, mask.protocol) = (protocol, if protocol == 0 { 0 } else { u8::MAX });
        self
    }

    pub(crate) fn extra(mut self, value: u64, mask: u64) -> Self {
        (self.ternary.value.extra, self.ternary.mask.extra) = (value, mask);
        self
    }
}

/// An IPv4 address.
pub(crate) fn v4(bits: u32) -> u128 {
    u128::from(bits) << 96
}

/// A key between two addresses.
pub(crate) fn key<W: Words>(
    [source, destination]: [u128; 2],
    ports: [u16; 2],
    protocol: u8,
    extra: u64,
) -> Key<W> {
    let (source, destination) = (halves(source), halves(destination));
    Key::of(&FiveTuple { destination, source, ports, protocol, extra })
}

/// As many rules, in their order of insertion.
pub(crate) fn rules<W: Words>(rules: Vec<TestRule>) -> Vec<Rule<W, TestEntry>> {
    (0..).zip(rules).map(|(serial, rule)| Rule::of(&TestEntry(Arc::new((rule, serial))))).collect()
}

/// Rules of few values, so that they overlap in all ways.
pub(crate) fn selectors(family: Family) -> impl Strategy<Value = TestRule> {
    let lens = match family {
        Family::V4 => [0, 9, 16, 30, 32],
        Family::V6 => [0, 9, 64, 126, 128],
    };
    let network = (address(family), prop::sample::select(lens.to_vec()));
    let port = (0_u16..600, prop::sample::select(vec![0, 0, 0xffff, 0xff00, 0x0003]));
    let extra = prop_oneof![9 => Just((0, 0)), 1 => (0_u64..3, Just(3))];
    let rest = (prop::sample::select(vec![0, 0, 6, 17]), extra, 0_u32..50);
    (network.clone(), network, port.clone(), port, rest).prop_map(
        |(from, to, (source, source_mask), (destination, destination_mask), rest)| {
            let (protocol, (value, mask), priority) = rest;
            let rule = any(priority).from(from).to(to).protocol(protocol).extra(value, mask);
            rule.ports([source, destination], [source_mask, destination_mask])
        },
    )
}

pub(crate) fn keys<W: Words>(family: Family) -> impl Strategy<Value = Key<W>> {
    let upper = (prop::sample::select(vec![6, 17, 1]), 0_u16..600, 0_u16..600, 0_u64..4);
    (address(family), address(family), upper).prop_map(|(source, destination, upper)| {
        let (protocol, source_port, destination_port, extra) = upper;
        key([source, destination], [source_port, destination_port], protocol, extra)
    })
}

fn address(family: Family) -> impl Strategy<Value = u128> + Clone {
    (0_u8..3, 0_u8..8).prop_map(move |(net, host)| match family {
        Family::V4 => v4(u32::from_be_bytes([10, 64 * net, 0, host])),
        Family::V6 => (0xfd00 + (u128::from(net) << 6)) << 112 | u128::from(host),
    })
}

/// Numbers without a pattern.
pub(crate) fn numbers() -> impl FnMut(u32) -> u32 {
    let mut seed = 1_u64;
    move |below| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        u32::try_from(seed >> 33).unwrap() % below
    }
}

fn ones(len: u32) -> u128 {
    u128::MAX.checked_shl(128 - len).unwrap_or(0)
}

fn halves(bits: u128) -> [u64; 2] {
    [u64::try_from(bits >> 64).unwrap(), u64::try_from(bits & u128::from(u64::MAX)).unwrap()]
}
