//! How packets are protected: families, modes, UDP around ESP and algorithms. The contract holds
//! for each of them.

use uxfrm_engine::{Family, Mode, UdpEncapKind};
use uxfrm_testkit::{EspSuite, IpsecSetup};

const SHAPES: [(Mode, Family, Family); 6] = [
    (Mode::Tunnel, Family::V4, Family::V4),
    (Mode::Tunnel, Family::V6, Family::V6),
    (Mode::Tunnel, Family::V6, Family::V4),
    (Mode::Tunnel, Family::V4, Family::V6),
    (Mode::Transport, Family::V4, Family::V4),
    (Mode::Transport, Family::V6, Family::V6),
];

/// One of each kind: what algorithms have to do with devices is the lengths, the IV and the ICV
/// alone.
const KINDS: [EspSuite; 5] = [
    EspSuite::CbcSha256,
    EspSuite::ChaCha20,
    EspSuite::Gmac128,
    EspSuite::NullSha1,
    EspSuite::CtrSha1,
];

/// Each shape with and without UDP, and other algorithms in two of them.
pub(crate) fn table(like: &IpsecSetup) -> Vec<(String, IpsecSetup)> {
    let mut table = shapes(like);
    let others: Vec<_> = [0, table.len() - 1]
        .into_iter()
        .flat_map(|at| KINDS.map(|suite| (at, suite)))
        .map(|(at, suite)| named(IpsecSetup { suite, ..table[at].1.clone() }))
        .collect();
    table.extend(others);
    table
}

/// Each shape with each algorithm.
pub(crate) fn all(like: &IpsecSetup) -> Vec<IpsecSetup> {
    let with =
        |wrapping: IpsecSetup| EspSuite::ALL.map(|suite| IpsecSetup { suite, ..wrapping.clone() });
    shapes(like).into_iter().flat_map(|(_, wrapping)| with(wrapping)).collect()
}

fn shapes(like: &IpsecSetup) -> Vec<(String, IpsecSetup)> {
    let encaps = [None, Some(UdpEncapKind::Esp)];
    let shape = |(mode, inner, outer)| {
        encaps.map(|encap| named(IpsecSetup { mode, inner, outer, encap, ..like.clone() }))
    };
    SHAPES.into_iter().flat_map(shape).collect()
}

fn named(wrapping: IpsecSetup) -> (String, IpsecSetup) {
    let IpsecSetup { mode, inner, outer, encap, suite, .. } = &wrapping;
    (format!("{mode:?}, {inner:?} in {outer:?}, UDP {encap:?}, {suite:?}"), wrapping)
}
