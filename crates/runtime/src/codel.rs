//! CoDel (RFC 8289): detects a standing queue, in which every packet waits too long.
//!
//! A queue that a burst fills and that soon drains does no harm; a standing queue delays everybody.
//! It stands where a TCP sender sees no loss and fills its window. One signal per [`INTERVAL`],
//! then ever more often, until the queue drains: RFC 8289 §5, with time as an argument.

use std::time::Duration;

use uxfrm_engine::Moment;
use uxfrm_packet::congestion::{self, CongestionSignal};
use uxfrm_packet::{Batch, PacketBuf, Pool};

/// How long packets may exceed the target.
///
/// RFC 8289's 100 ms is a long Internet round trip. A socket's queue waits for this machine's CPU,
/// and most senders that fill it are near.
const INTERVAL: Duration = Duration::from_millis(2);

/// Two packets are no queue: the second one waited for the CPU (RFC 8289 §5, `dodequeue`).
const MIN_QUEUE_BYTES: usize = 2 * 1500;

/// A queue that stands again within this many intervals continues the previous episode.
const SAME_EPISODE: u32 = 16;

/// State of one monitored queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Codel {
    /// Sojourn time that a packet may have.
    target: Duration,
    phase: Phase,
    /// When the next signal would have been due, and the number of signals so far.
    last: (Moment, u32),
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// The last packet waited no longer than the target.
    Below,
    /// All packets waited longer, which is tolerated until then.
    Above { until: Moment },
    /// Signals are sent: the time of the next one, and the number so far.
    Signalling { next: Moment, signs: u32, since: u32 },
}

impl Codel {
    /// A queue with this target.
    pub(crate) fn new(target: Duration) -> Self {
        Self { target, phase: Phase::Below, last: (Moment(0), 0) }
    }

    /// Slows down a [sender](signal_one_sender) in a batch just received if its queue stands;
    /// `waited` is the sojourn time of the first packet. Returns the kind of signal.
    pub(crate) fn signal_congestion(
        &mut self,
        waited: Duration,
        now: Moment,
        batch: &mut Batch,
        pool: &mut Pool,
    ) -> Option<CongestionSignal> {
        let bytes: usize = batch.as_mut_slice().iter().map(PacketBuf::len).sum();
        let waited = if bytes > MIN_QUEUE_BYTES { waited } else { Duration::ZERO };
        if !self.is_due(waited, now) {
            return None;
        }
        let told = signal_one_sender(batch, pool)?;
        self.signalled(now);
        Some(told)
    }

    /// Whether a signal is due, as a packet leaves that `waited` so long. It stays due until
    /// [`signalled`](Self::signalled).
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

    /// Records that a signal was sent.
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

/// Slows down the TCP sender of the largest packet, most likely the one that fills the queue.
/// `None` if the batch has no TCP.
fn signal_one_sender(batch: &mut Batch, pool: &mut Pool) -> Option<CongestionSignal> {
    let packets = batch.as_mut_slice().iter_mut().enumerate();
    let heard = packets.filter(|(_, packet)| congestion::can_signal(packet));
    let (index, packet) = heard.max_by_key(|(_, packet)| packet.len())?;
    let told = congestion::signal(packet)?;
    if told == CongestionSignal::ByLoss {
        pool.give(batch.remove(index));
    }
    Some(told)
}

/// Time from signal number `sign` to the next.
fn interval_after(sign: u32) -> Duration {
    INTERVAL.div_f64(f64::from(sign).sqrt())
}

#[cfg(test)]
mod tests;
