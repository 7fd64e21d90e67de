//! A network between two gateways with loss, duplication and reordering.

use std::collections::VecDeque;

use uxfrm_packet::{PacketBuf, Segments, UdpPath};

use crate::Rng;

/// Impairments of a wire, in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireImpairments {
    /// Packets lost.
    pub dropped: usize,
    /// Packets that arrive twice.
    pub duplicated: usize,
    /// Packets that are delayed behind later ones.
    pub delayed: usize,
}

/// One direction of a wire.
#[derive(Debug)]
pub struct LossyWire {
    troubles: WireImpairments,
    rng: Rng,
    held: VecDeque<PacketBuf>,
    /// Packets lost so far.
    pub lost: u64,
    /// Packets doubled so far.
    pub duplicated: u64,
}

impl LossyWire {
    /// A wire with these impairments, at random by a seed.
    #[must_use]
    pub fn new(troubles: WireImpairments, seed: u64) -> Self {
        Self { troubles, rng: Rng::new(seed), held: VecDeque::new(), lost: 0, duplicated: 0 }
    }

    /// Takes packets at one end and returns those that leave at the other now. Segment bursts
    /// travel as single packets.
    pub fn carry(&mut self, packets: impl IntoIterator<Item = PacketBuf>) -> Vec<PacketBuf> {
        let mut out = Vec::new();
        for packet in packets.into_iter().flat_map(|packet| split_burst(&packet)) {
            if self.rng.permille(self.troubles.dropped) {
                self.lost += 1;
                continue;
            }
            if self.rng.permille(self.troubles.duplicated) {
                self.duplicated += 1;
                self.held.push_back(duplicate(&packet));
            }
            if self.rng.permille(self.troubles.delayed) {
                self.held.push_back(packet);
            } else {
                out.push(packet);
            }
            if !self.held.is_empty() && self.rng.permille(200) {
                let place = self.rng.below(self.held.len());
                out.extend(self.held.remove(place));
            }
        }
        out
    }

    /// The packets that are still delayed.
    pub fn drain(&mut self) -> Vec<PacketBuf> {
        self.held.drain(..).collect()
    }
}

/// The single packets of a segment burst, as the other end's port would return them.
#[must_use]
pub fn split_burst(packet: &PacketBuf) -> Vec<PacketBuf> {
    let stride = match packet.segments {
        Segments::Burst { stride } => stride.into(),
        Segments::One | Segments::Tcp { .. } | Segments::Udp { .. } => packet.len().max(1),
    };
    let pieces = packet.bytes().chunks(stride).map(|bytes| {
        let mut piece = PacketBuf::from_slice(bytes);
        piece.udp = packet.udp.map(reversed);
        piece
    });
    pieces.collect()
}

/// The UDP path as the other end sees it.
pub(crate) fn reversed(path: UdpPath) -> UdpPath {
    UdpPath { local: path.remote, remote: path.local, ..path }
}

fn duplicate(packet: &PacketBuf) -> PacketBuf {
    let mut duplicate = PacketBuf::from_slice(packet.bytes());
    duplicate.inherit(packet);
    duplicate
}
