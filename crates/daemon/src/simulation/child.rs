//! A pair of states that two IKE daemons negotiate.

use std::net::IpAddr;

use super::names::Name;

/// How far the negotiation of a pair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The end of this index is asked for an SPI.
    Spi(usize),
    /// The end of this index installs both states; number of answers that are due.
    Install(usize, usize),
    /// Both ends have both states.
    Up,
    /// The states are to be deleted.
    Dead,
}

/// A pair of states, one each way. Index 0 and 1 are the ends; SPI and key of an end are those of
/// the state that it receives by.
#[derive(Clone, Debug)]
pub(super) struct Child {
    pub(super) ends: [usize; 2],
    pub(super) addresses: [IpAddr; 2],
    pub(super) spis: [u32; 2],
    pub(super) keys: [[u8; 20]; 2],
    pub(super) words: String,
    pub(super) phase: Phase,
}

impl Child {
    pub(super) fn name(&self, end: usize) -> Name {
        (self.addresses[end], self.spis[end])
    }
}
