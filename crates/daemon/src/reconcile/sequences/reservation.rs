//! Numbers that states may use: reserved ahead of use, and renewed before they run short.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
};

use uxfrm_engine::{FIRST_RESERVED, IvPrefix, Moment, Sa};

use super::{
    SequenceStore,
    journal::Record,
    received::{self, EdgeMove, NumberRate, ReceivedBefore},
    receives,
    sa_name::SaName,
    sends,
};

/// How many numbers to send are reserved at a time: a second's at four million packets per second,
/// renewed when half are used. A crash loses them, so without ESN a key lasts a thousand crashes.
pub(super) const AHEAD: u64 = 1 << 22;

/// How many states are looked at in one go for numbers that run short. With so many or fewer, each
/// is looked at every time; a million take eight times as long, which leaves a state that suddenly
/// sends two million packets a second with numbers to send.
const LOOKED_AT: usize = 1 << 17;

/// Numbers that a state may use once the journal is on the disk.
#[derive(Clone, Copy, Debug)]
pub(super) enum NumberGrant {
    Sent(u64),
    Received(u64),
}

#[derive(Debug)]
pub(super) struct WatchedSa {
    pub(super) sa: Arc<Sa>,
    /// Of one that received something.
    pub(super) pace: Option<Box<NumberRate>>,
}

impl SequenceStore {
    /// Another is there again in the place of a state that was [recalled](SequenceStore::recall).
    pub(crate) fn watch(&mut self, sa: &Arc<Sa>, now: Moment) {
        let pace = (sa.highest_received() > 0).then(|| Box::new(NumberRate::new(sa, now)));
        self.watched.push_back(WatchedSa { sa: Arc::clone(sa), pace });
    }

    pub(super) fn admit_sender(&mut self, sa: &Arc<Sa>, state: SaName) {
        let used = self.sent.used_with_key_of(state);
        if used >= sa.config().last_number() {
            let (destination, spi) = (sa.id().destination, sa.id().spi);
            tracing::warn!(%destination, %spi, "this key has used all its sequence numbers: nothing is sent until it is replaced");
        }
        sa.sequence().skip_to(used);
        self.draw_iv_prefix(sa, state, upper_half(sa.sequence().last().saturating_add(1)));
        self.reserve_sent(sa, state, sa.sequence().last());
    }

    pub(super) fn admit_receiver(&mut self, sa: &Arc<Sa>, state: SaName) {
        let own = sa.highest_received();
        let start = self.before.remove(&state).map_or(0, |before| before.edge).max(own);
        if start > own {
            sa.restart_at(start);
        }
        let edge = start.saturating_add(self.fastest.max(FIRST_RESERVED));
        self.note_received(state, ReceivedBefore { from: start, edge });
        // A state that has received nothing counts on so many, and needs no memory for it; but its
        // device has to be told.
        if (start, edge) != (0, FIRST_RESERVED) || sa.device_counts() {
            self.pending.push(sa, NumberGrant::Received(edge));
        }
    }

    /// Reserves numbers for states that are running short of them: of [`LOOKED_AT`], the others'
    /// turn comes at the next times.
    ///
    /// # Errors
    /// As [`SequenceStore::commit`].
    pub(crate) fn renew(&mut self, now: Moment) -> io::Result<()> {
        self.fastest /= 2;
        for _ in 0..self.watched.len().min(LOOKED_AT) {
            let Some(mut watched) = self.watched.pop_front() else { break };
            if watched.sa.sequence().is_closed() {
                continue;
            }
            self.renew_sent(&watched.sa);
            self.renew_received(&mut watched, now);
            self.watched.push_back(watched);
        }
        if let Some(witness) = &self.received.witness
            && let Err(error) = witness.make_room()
        {
            tracing::debug!(%error, "no room for what states receive in /run");
        }
        self.commit()
    }

    /// Whether a state's numbers to receive run short, since this was asked last:
    /// [`SequenceStore::renew`] should not wait for its time.
    pub(crate) fn is_urgent(&self) -> bool {
        self.received.take_wanted()
    }

    fn renew_sent(&mut self, sa: &Arc<Sa>) {
        if sends(sa) && is_short(sa) {
            let state = SaName::of(sa);
            let begun = self.sent.begun(state);
            self.reserve_sent(sa, state, begun);
        }
    }

    fn renew_received(&mut self, watched: &mut WatchedSa, now: Moment) {
        let sa = &watched.sa;
        if !receives(sa) || sa.reserved_to_receive() == u64::MAX {
            return;
        }
        let edges = &self.edges;
        let pace = watched.pace.get_or_insert_with(|| {
            let start = edges.get(&SaName::of(sa)).map_or(0, |before| before.from);
            Box::new(NumberRate::new(sa, now).since(start))
        });
        let moved = pace.look(sa.replay(), now);
        // A peer that restarted leaves out many at once, which is no rate.
        self.fastest = self.fastest.max(pace.rate().min(received::MOST_AHEAD));
        let (from, edge) = match moved {
            None => return,
            Some(EdgeMove::Ahead(edge)) => {
                self.pending.push(sa, NumberGrant::Received(edge));
                (sa.highest_received(), edge)
            }
            Some(EdgeMove::Back(edge)) => {
                self.pending.push(sa, NumberGrant::Received(edge));
                (sa.highest_received(), edge)
            }
        };
        self.note_received(SaName::of(sa), ReceivedBefore { from, edge });
    }

    pub(super) fn reserve_sent(&mut self, sa: &Arc<Sa>, state: SaName, begun: u64) {
        let highest = sa.sequence().last().saturating_add(AHEAD);
        let upper = upper_half(highest.min(sa.config().last_number()));
        if sa.iv_prefix(upper).is_none() {
            self.draw_iv_prefix(sa, state, upper);
        }
        self.sent.reserve(state, highest, begun);
        self.journal.note(Record::Sent(state, highest));
        self.pending.push(sa, NumberGrant::Sent(highest));
    }

    /// Draws the prefix of numbers with an upper half, none of which is reserved yet.
    fn draw_iv_prefix(&mut self, sa: &Sa, state: SaName, upper: u32) {
        match self.prefixes.draw(state.key(), self.draw) {
            Ok(bits) => {
                self.journal.note(Record::Prefix(state.key(), bits.get()));
                sa.set_iv_prefix(IvPrefix::new(upper, bits));
            }
            Err(error) => self.no_prefix = Some(error),
        }
    }

    /// Forgets prefixes of keys that are forgotten, once there are many.
    pub(super) fn forget_prefixes(&mut self) {
        if self.prefixes.len() <= 2 * self.sent.iter().len() + self.sent.remembered {
            return;
        }
        let keys: Vec<_> = self.prefixes.keys().filter(|key| !self.sent.has_key(*key)).collect();
        keys.into_iter().for_each(|key| self.prefixes.forget(key));
    }

    pub(super) fn note_received(&mut self, state: SaName, before: ReceivedBefore) {
        self.edges.insert(state, before);
        self.journal.note(Record::Received(state, before.from, before.edge));
    }
}

/// A state may receive up to there. What a device receives nobody sees at once: all that it may
/// receive counts as received where the process ends.
pub(super) fn allow_to_receive(sa: &Sa, edge: u64) {
    sa.replay().reserve(edge);
    if let Some(cell) = sa.shared_head().filter(|_| sa.device_counts()) {
        cell.store(edge.max(sa.highest_received()), Ordering::Release);
    }
}

/// Whether less than half a reservation is left, and there are more numbers to reserve.
fn is_short(sa: &Sa) -> bool {
    let (reserved, last) = (sa.sequence().reserved(), sa.sequence().last());
    reserved < sa.config().last_number() && reserved.saturating_sub(last) < AHEAD / 2
}

const fn upper_half(number: u64) -> u32 {
    (number >> 32) as u32
}
