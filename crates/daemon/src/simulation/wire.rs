//! A wire that loses, duplicates and reorders packets and records all of them.

use uxfrm_testkit::{Rng, WireImpairments};

/// Number of recorded packets.
const RECORDED: usize = 500;

/// Packets in flight, and recorded ones.
#[derive(Debug, Default)]
pub(super) struct Wire {
    flying: Vec<Vec<u8>>,
    recorded: Vec<Vec<u8>>,
    troubles: WireImpairments,
    /// Counts: packets in, duplicated, lost, out.
    counts: [u64; 4],
}

impl Wire {
    /// A packet is sent.
    pub(super) fn take(&mut self, packet: &[u8], rng: &mut Rng) {
        self.counts[0] += 1;
        if self.recorded.len() < RECORDED {
            self.recorded.push(packet.to_vec());
        } else {
            let place = rng.below(RECORDED);
            self.recorded[place] = packet.to_vec();
        }
        if rng.permille(self.troubles.dropped) {
            self.counts[2] += 1;
            return;
        }
        if rng.permille(self.troubles.duplicated) {
            self.counts[1] += 1;
            self.flying.push(packet.to_vec());
        }
        self.flying.push(packet.to_vec());
    }

    /// A packet comes out at the other end.
    pub(super) fn bring(&mut self, rng: &mut Rng) -> Option<Vec<u8>> {
        let [came, doubled, lost, out] = self.counts;
        assert_eq!(came + doubled, lost + out + self.flying.len() as u64, "packets on the wire");
        if self.flying.is_empty() {
            return None;
        }
        let delayed = rng.permille(self.troubles.delayed);
        let place = if delayed { rng.below(self.flying.len()) } else { 0 };
        self.counts[3] += 1;
        Some(self.flying.remove(place))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.flying.is_empty()
    }

    /// A recorded packet.
    pub(super) fn recorded(&self, rng: &mut Rng) -> Option<Vec<u8>> {
        super::site::pick(rng, &self.recorded).cloned()
    }

    /// Changes how lossy it is.
    pub(super) fn change(&mut self, rng: &mut Rng) {
        self.troubles = match rng.below(3) {
            0 => WireImpairments::default(),
            1 => WireImpairments { dropped: 100, duplicated: 50, delayed: 300 },
            _ => WireImpairments { dropped: 600, duplicated: 200, delayed: 600 },
        };
    }

    pub(super) fn mend(&mut self) {
        self.troubles = WireImpairments::default();
    }
}
