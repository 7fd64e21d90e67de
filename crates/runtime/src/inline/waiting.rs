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

/// How often those who wait look whether it is time to ask once more, when there are no news: a question may not have been heard, as while a link was down.
const LOOK: u64 = 100_000_000;

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
    /// When they last looked.
    looked: Moment,
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
        Self { held: VecDeque::new(), looked: Moment(0) }
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

    /// Whether some may have waited too long, or have to ask again.
    pub(super) fn is_due(&self, now: Moment) -> bool {
        !self.held.is_empty() && now.0.saturating_sub(self.looked.0) >= LOOK
    }

    /// Takes out those whose way is known by now, in order, and those that waited too long. The others ask again if it is time.
    pub(super) fn take(
        &mut self,
        now: Moment,
        ways: &mut Ways,
    ) -> Vec<(PacketBuf, Result<Stage, Late>)> {
        let mut taken = Vec::new();
        self.looked = now;
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
        let mut ways = Ways::new(guide, [MacAddr([2; 6]); 2]);
        let mut waiting = Waiting::new();
        let (start, destination) = (Moment::from_secs(100), IpAddr::from([192, 0, 2, 2]));
        assert_eq!(ways.to(destination, start), Way::Asked);
        let packet = PacketBuf::from_slice(b"packet");
        assert!(waiting.push(packet, destination, Stage::Checked, start).is_ok());
        assert_eq!(asked.try_iter().collect::<Vec<_>>(), [Question::Way(destination)]);
        let (mut times, mut taken) = (Vec::new(), Vec::new());
        for milliseconds in 1..4200 {
            let now = Moment(start.0 + milliseconds * 1_000_000);
            if waiting.is_due(now) {
                taken.extend(waiting.take(now, &mut ways).into_iter().map(|(_, stage)| stage));
                times.extend(asked.try_iter().map(|_question| milliseconds));
            }
        }
        assert_eq!(times, [1001, 2101, 3201]);
        assert_eq!(taken, [Err(Late)]);
    }
}
