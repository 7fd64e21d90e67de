//! When packets stand in a queue: each has waited for too long, and that for too long (CoDel, RFC 8289).
//!
//! A queue that a burst fills and that is empty soon after does no harm; one that stays full makes all wait who share it. It stays full where a
//! sender of TCP has found that nothing is lost, and sends as much as it may have on the way. One sign each [`INTERVAL`],
//! and then ever more often, until packets no longer stand: as RFC 8289 §5 has it, with time as an argument.

use std::time::Duration;

use uxfrm_engine::Moment;
use uxfrm_packet::congestion::{self, Told};
use uxfrm_packet::{Batch, PacketBuf, Pool};

/// How long packets may wait for longer than they should.
///
/// RFC 8289's 100 ms are a long round trip through the Internet. What stands in a socket's queue waits for this machine's processor, and most of
/// whoever sends so much is near.
const INTERVAL: Duration = Duration::from_millis(2);

/// So many bytes, of two packets, are no queue: a packet that waited beside one other waited for a processor (RFC 8289 §5, `dodequeue`).
const MIN_QUEUE_BYTES: usize = 2 * 1500;

/// Within so many intervals from the last sign a queue that stands again is the same one.
const SAME_EPISODE: u32 = 16;

/// One queue, watched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Codel {
    /// How long a packet may wait.
    target: Duration,
    phase: Phase,
    /// When the next sign would have been due, and how many there were.
    last: (Moment, u32),
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// A packet waited no longer than it may.
    Below,
    /// All have waited for longer, and may until then.
    Above { until: Moment },
    /// Signs are given: the next one then, and so many before it.
    Signalling { next: Moment, signs: u32, since: u32 },
}

impl Codel {
    /// A queue in which a packet may wait for `target`.
    pub(crate) fn new(target: Duration) -> Self {
        Self { target, phase: Phase::Below, last: (Moment(0), 0) }
    }

    /// Has a [sender](signal_one_sender) in the batch that left the queue just now send less if packets stand in it: the batch's first has `waited` for so long.
    /// How it was told.
    pub(crate) fn signal_congestion(
        &mut self,
        waited: Duration,
        now: Moment,
        batch: &mut Batch,
        pool: &mut Pool,
    ) -> Option<Told> {
        let bytes: usize = batch.as_mut_slice().iter().map(PacketBuf::len).sum();
        let waited = if bytes > MIN_QUEUE_BYTES { waited } else { Duration::ZERO };
        if !self.is_due(waited, now) {
            return None;
        }
        let told = signal_one_sender(batch, pool)?;
        self.signalled(now);
        Some(told)
    }

    /// Whether a sender is to be told, now that a packet leaves that has `waited` for so long. It is due until [`signalled`](Self::signalled).
    fn is_due(&mut self, waited: Duration, now: Moment) -> bool {
        if waited < self.target {
            self.leave_signalling();
            return false;
        }
        match self.phase {
            Phase::Below => {
                self.phase = Phase::Above { until: now.plus(INTERVAL) };
                false
            }
            Phase::Above { until } => now >= until,
            Phase::Signalling { next, .. } => now >= next,
        }
    }

    /// A sender was told.
    fn signalled(&mut self, now: Moment) {
        self.phase = match self.phase {
            Phase::Signalling { next, signs, since } => {
                let signs = signs.saturating_add(1);
                Phase::Signalling { next: next.plus(interval_after(signs)), signs, since }
            }
            Phase::Below | Phase::Above { .. } => {
                let (then, signs) = self.last;
                let is_same = now.since(then) < INTERVAL * SAME_EPISODE;
                let signs = if is_same { signs.max(1) } else { 1 };
                Phase::Signalling { next: now.plus(interval_after(signs)), signs, since: signs }
            }
        };
    }

    fn leave_signalling(&mut self) {
        if let Phase::Signalling { next, signs, since } = self.phase {
            self.last = (next, signs - since);
        }
        self.phase = Phase::Below;
    }
}

/// Has a sender of TCP send less: that of the largest packet of the batch, which is most likely the one that fills the queue. How it was told; `None`
/// where there is no TCP.
fn signal_one_sender(batch: &mut Batch, pool: &mut Pool) -> Option<Told> {
    let packets = batch.as_mut_slice().iter_mut().enumerate();
    let heard = packets.filter(|(_, packet)| congestion::is_heard(packet));
    let (index, packet) = heard.max_by_key(|(_, packet)| packet.len())?;
    let told = congestion::tell(packet)?;
    if told == Told::ByLoss {
        pool.give(batch.remove(index));
    }
    Some(told)
}

/// From the sign of this number to the next.
fn interval_after(sign: u32) -> Duration {
    INTERVAL.div_f64(f64::from(sign).sqrt())
}

#[cfg(test)]
mod tests;
