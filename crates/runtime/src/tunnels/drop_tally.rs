//! Drop counters of a tunnel or a socket, and of all together.

use uxfrm_io::Transmitted;
use uxfrm_tunnel::{DropReason, counters::TunnelDrops};

/// Counts a drop in both.
#[derive(Clone, Copy)]
pub(super) struct DropTally<'a> {
    pub(super) all: &'a TunnelDrops,
    pub(super) own: &'a TunnelDrops,
}

impl DropTally<'_> {
    pub(super) fn count(self, reason: DropReason) {
        self.add(reason, 1);
    }

    pub(super) fn add(self, reason: DropReason, packets: u64) {
        self.all.add(reason, packets);
        self.own.add(reason, packets);
    }

    pub(super) fn count_refused(self, reason: DropReason, sent: &Transmitted) {
        self.add(reason, sent.refused.packets());
    }
}
