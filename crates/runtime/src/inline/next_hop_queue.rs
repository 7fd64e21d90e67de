//! Packets that wait for their next hop: few, and for a bounded time.

use std::{collections::VecDeque, net::IpAddr};

use uxfrm_engine::Moment;
use uxfrm_packet::PacketBuf;

use crate::next_hops::{HopLookup, NextHops};

/// Most packets that wait.
const MAX_PACKETS: usize = 512;
/// Most packets per destination: more than Linux queued per neighbour for long (`unres_qlen`),
/// fewer than a network scan would need.
const MAX_PER_DESTINATION: usize = 64;
/// Somewhat longer than the kernel's three solicitations, one a second.
const MAX_WAIT: u64 = 4_000_000_000;

/// Interval of retries without updates: a request may have been lost, as while a link was down.
const RETRY_INTERVAL: u64 = 100_000_000;

/// How far a packet has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ForwardStage {
    /// It may leave by the protected port, or by the wire through the `out` policies.
    Checked,
    /// An ICMP error of this gateway.
    IcmpError,
    /// It has passed the `out` policies.
    Outbound,
}

/// The packet waited too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimedOut;

/// All waiting packets, oldest first.
#[derive(Debug)]
pub(super) struct NextHopQueue {
    entries: VecDeque<Entry>,
    /// Time of the last retry.
    last_retry: Moment,
}

#[derive(Debug)]
struct Entry {
    packet: PacketBuf,
    destination: IpAddr,
    stage: ForwardStage,
    since: Moment,
}

impl NextHopQueue {
    pub(super) fn new() -> Self {
        Self { entries: VecDeque::new(), last_retry: Moment(0) }
    }

    /// Adds a packet, or gives it back if there is no room.
    pub(super) fn push(
        &mut self,
        packet: PacketBuf,
        destination: IpAddr,
        stage: ForwardStage,
        since: Moment,
    ) -> Result<(), PacketBuf> {
        let for_it = |entry: &&Entry| entry.destination == destination;
        if self.entries.len() >= MAX_PACKETS
            || self.entries.iter().filter(for_it).count() >= MAX_PER_DESTINATION
        {
            return Err(packet);
        }
        self.entries.push_back(Entry { packet, destination, stage, since });
        Ok(())
    }

    /// Whether some packets may have waited too long, or must request their next hop again.
    pub(super) fn is_due(&self, now: Moment) -> bool {
        !self.entries.is_empty() && now.0.saturating_sub(self.last_retry.0) >= RETRY_INTERVAL
    }

    /// Takes packets whose next hop is resolved, in order, and those that waited too long. The
    /// others request theirs again if it is time.
    pub(super) fn take(
        &mut self,
        now: Moment,
        next_hops: &mut NextHops,
    ) -> Vec<(PacketBuf, Result<ForwardStage, TimedOut>)> {
        let mut taken = Vec::new();
        self.last_retry = now;
        for _ in 0..self.entries.len() {
            let Some(entry) = self.entries.pop_front() else { break };
            if next_hops.lookup(entry.destination, now) != HopLookup::Pending {
                taken.push((entry.packet, Ok(entry.stage)));
            } else if now.0.saturating_sub(entry.since.0) > MAX_WAIT {
                taken.push((entry.packet, Err(TimedOut)));
            } else {
                self.entries.push_back(entry);
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use uxfrm_io::poll::Poller;
    use uxfrm_packet::ethernet::MacAddr;

    use super::*;
    use crate::{NextHopRequest, ResolverEnds};

    /// The request may have been lost, and nobody else may send there.
    #[test]
    fn waiting_packets_request_next_hop_again() {
        let (questions, asked) = mpsc::sync_channel(8);
        let (_told, news) = mpsc::channel();
        let guide = ResolverEnds {
            requests: questions,
            waker: Poller::new().unwrap().waker(),
            updates: news,
        };
        let mut next_hops = NextHops::new(guide, [MacAddr([2; 6]); 2]);
        let mut waiting = NextHopQueue::new();
        let (start, destination) = (Moment::from_secs(100), IpAddr::from([192, 0, 2, 2]));
        assert_eq!(next_hops.lookup(destination, start), HopLookup::Pending);
        let packet = PacketBuf::from_slice(b"packet");
        assert!(waiting.push(packet, destination, ForwardStage::Checked, start).is_ok());
        assert_eq!(asked.try_iter().collect::<Vec<_>>(), [NextHopRequest::Route(destination)]);
        let (mut times, mut taken) = (Vec::new(), Vec::new());
        for milliseconds in 1..4200 {
            let now = Moment(start.0 + milliseconds * 1_000_000);
            if waiting.is_due(now) {
                taken.extend(waiting.take(now, &mut next_hops).into_iter().map(|(_, stage)| stage));
                times.extend(asked.try_iter().map(|_question| milliseconds));
            }
        }
        assert_eq!(times, [1001, 2101, 3201]);
        assert_eq!(taken, [Err(TimedOut)]);
    }
}
