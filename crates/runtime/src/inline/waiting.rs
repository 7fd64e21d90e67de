//! Packets that wait until the way to their destination is known. A bounded few, for a bounded time.

use std::{collections::VecDeque, net::IpAddr};

use uxfrm_engine::Moment;
use uxfrm_packet::PacketBuf;

use crate::ways::{Way, Ways};

/// Buffers that wait at the most.
const MOST: usize = 512;
/// Of one destination: more than a neighbour's queue in Linux had for long (`unres_qlen`), fewer than a scan of a network would need.
const MOST_EACH: usize = 64;
/// Somewhat longer than the kernel asks for a neighbour: three times a second.
const PATIENCE: u64 = 4_000_000_000;

/// How far a packet has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It may go to the protected side, or to the wire by the policies `out`.
    Checked,
    /// An ICMP error of ours.
    Answer,
    /// The policies `out` let it go.
    Leaving,
}

/// It waited too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Late;

/// All packets that wait, the oldest first.
#[derive(Debug)]
pub(super) struct Waiting {
    held: VecDeque<Held>,
}

#[derive(Debug)]
struct Held {
    packet: PacketBuf,
    destination: IpAddr,
    stage: Stage,
    since: Moment,
}

impl Waiting {
    pub(super) fn new() -> Self {
        Self { held: VecDeque::new() }
    }

    /// Adds a packet, or gives it back where there is no room.
    pub(super) fn push(
        &mut self,
        packet: PacketBuf,
        destination: IpAddr,
        stage: Stage,
        since: Moment,
    ) -> Result<(), PacketBuf> {
        let for_it = |held: &&Held| held.destination == destination;
        if self.held.len() >= MOST || self.held.iter().filter(for_it).count() >= MOST_EACH {
            return Err(packet);
        }
        self.held.push_back(Held { packet, destination, stage, since });
        Ok(())
    }

    /// Whether some waited too long.
    pub(super) fn is_late(&self, now: Moment) -> bool {
        self.held.front().is_some_and(|held| now.0.saturating_sub(held.since.0) > PATIENCE)
    }

    /// Takes out those whose way is known by now, in order, and those that waited too long.
    pub(super) fn take(
        &mut self,
        now: Moment,
        ways: &mut Ways,
    ) -> Vec<(PacketBuf, Result<Stage, Late>)> {
        let mut taken = Vec::new();
        for _ in 0..self.held.len() {
            let Some(held) = self.held.pop_front() else { break };
            if ways.to(held.destination, now) != Way::Asked {
                taken.push((held.packet, Ok(held.stage)));
            } else if now.0.saturating_sub(held.since.0) > PATIENCE {
                taken.push((held.packet, Err(Late)));
            } else {
                self.held.push_back(held);
            }
        }
        taken
    }
}
