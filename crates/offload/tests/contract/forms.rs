//! How packets are protected: families, modes, UDP around ESP and algorithms. The contract holds
//! for each of them.

use uxfrm_engine::{Family, Mode, UdpEncapKind};
use uxfrm_testkit::{Suite, Wrapping};

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
const KINDS: [Suite; 5] =
    [Suite::CbcSha256, Suite::ChaCha20, Suite::Gmac128, Suite::NullSha1, Suite::CtrSha1];

/// Each shape with and without UDP, and other algorithms in two of them.
pub(crate) fn table(like: &Wrapping) -> Vec<(String, Wrapping)> {
    let mut table = shapes(like);
    let others: Vec<_> = [0, table.len() - 1]
        .into_iter()
        .flat_map(|at| KINDS.map(|suite| (at, suite)))
        .map(|(at, suite)| named(Wrapping { suite, ..table[at].1.clone() }))
        .collect();
    table.extend(others);
    table
}

/// Each shape with each algorithm.
pub(crate) fn all(like: &Wrapping) -> Vec<Wrapping> {
    let with = |wrapping: Wrapping| Suite::ALL.map(|suite| Wrapping { suite, ..wrapping.clone() });
    shapes(like).into_iter().flat_map(|(_, wrapping)| with(wrapping)).collect()
}

fn shapes(like: &Wrapping) -> Vec<(String, Wrapping)> {
    let encaps = [None, Some(UdpEncapKind::Esp)];
    let shape = |(mode, inner, outer)| {
        encaps.map(|encap| named(Wrapping { mode, inner, outer, encap, ..like.clone() }))
    };
    SHAPES.into_iter().flat_map(shape).collect()
}

fn named(wrapping: Wrapping) -> (String, Wrapping) {
    let Wrapping { mode, inner, outer, encap, suite, .. } = &wrapping;
    (format!("{mode:?}, {inner:?} in {outer:?}, UDP {encap:?}, {suite:?}"), wrapping)
}
