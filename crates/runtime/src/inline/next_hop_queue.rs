//! Packets that wait until the way to their destination is known. A bounded few, for a bounded time.

use std::{collections::VecDeque, net::IpAddr};

use uxfrm_engine::Moment;
use uxfrm_packet::PacketBuf;

use crate::next_hops::{HopLookup, NextHops};

/// Buffers that wait at the most.
const MAX_PACKETS: usize = 512;
/// Of one destination: more than a neighbour's queue in Linux had for long (`unres_qlen`), fewer than a scan of a network would need.
const MAX_PER_DESTINATION: usize = 64;
/// Somewhat longer than the kernel asks for a neighbour: three times a second.
const MAX_WAIT: u64 = 4_000_000_000;

/// How often those who wait look whether it is time to ask once more, when there are no news: a question may not have been heard, as while a link was down.
const RETRY_INTERVAL: u64 = 100_000_000;

/// How far a packet has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ForwardStage {
    /// It may go to the protected side, or to the wire by the policies `out`.
    Checked,
    /// An ICMP error of ours.
    IcmpError,
    /// The policies `out` let it go.
    Outbound,
}

/// It waited too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimedOut;

/// All packets that wait, the oldest first.
#[derive(Debug)]
pub(super) struct NextHopQueue {
    entries: VecDeque<Entry>,
    /// When they last looked.
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

    /// Adds a packet, or gives it back where there is no room.
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

    /// Whether some may have waited too long, or have to ask again.
    pub(super) fn is_due(&self, now: Moment) -> bool {
        !self.entries.is_empty() && now.0.saturating_sub(self.last_retry.0) >= RETRY_INTERVAL
    }

    /// Takes out those whose way is known by now, in order, and those that waited too long. The others ask again if it is time.
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
    use crate::{Guide, Question};

    /// The question may not have been heard, and nobody else may send there.
    #[test]
    fn those_who_wait_ask_again_by_themselves() {
        let (questions, asked) = mpsc::sync_channel(8);
        let (_told, news) = mpsc::channel();
        let guide = Guide { questions, waker: Poller::new().unwrap().waker(), news };
        let mut next_hops = NextHops::new(guide, [MacAddr([2; 6]); 2]);
        let mut waiting = NextHopQueue::new();
        let (start, destination) = (Moment::from_secs(100), IpAddr::from([192, 0, 2, 2]));
        assert_eq!(next_hops.lookup(destination, start), HopLookup::Pending);
        let packet = PacketBuf::from_slice(b"packet");
        assert!(waiting.push(packet, destination, ForwardStage::Checked, start).is_ok());
        assert_eq!(asked.try_iter().collect::<Vec<_>>(), [Question::Way(destination)]);
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
