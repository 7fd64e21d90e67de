//! States taken over from another process, with numbers of this store (`uxfrm upgrade`).

use std::{fs, io, path::Path, sync::Arc};

use uxfrm_engine::{Moment, Sa};

use super::{
    SequenceStore,
    journal::Record,
    received::{LEAST_AHEAD, MOST_AHEAD, NumberRate, ReceivedBefore},
    receives,
    reservation::{AHEAD, NumberGrant, WatchedSa, allow_to_receive},
    sa_name::SaName,
    sends,
    witness::{self, Witness},
};

/// Numbers that the journal says a state may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reserved {
    /// The last one to send.
    pub(crate) sent: u64,
    /// The last one to receive.
    pub(crate) received: u64,
}

/// How many times as long as otherwise what is reserved to receive lasts while a hand-over goes on.
const LONGER: u64 = 16;

impl SequenceStore {
    /// Reserves so much for each state that none needs more while another process takes over.
    ///
    /// # Errors
    /// As [`SequenceStore::commit`].
    pub(crate) fn reserve_for_long(&mut self) -> io::Result<()> {
        let states: Vec<_> = self.watched.iter().map(|watched| Arc::clone(&watched.sa)).collect();
        let ahead = self.fastest.max(LEAST_AHEAD).saturating_mul(LONGER).min(MOST_AHEAD);
        for sa in states.iter().filter(|sa| !sa.sequence().is_closed()) {
            let (state, sequence) = (SaName::of(sa), sa.sequence());
            if sends(sa) && sequence.reserved().saturating_sub(sequence.last()) < AHEAD {
                let begun = self.sent.begun(state);
                self.reserve_sent(sa, state, begun);
            }
            if receives(sa) && sa.reserved_to_receive() != u64::MAX {
                let from = sa.highest_received();
                let edge = from.saturating_add(ahead).max(sa.reserved_to_receive());
                self.note_received(state, ReceivedBefore { from, edge });
                self.pending.push(sa, NumberGrant::Received(edge));
            }
        }
        self.commit()
    }

    /// The highest rate at which a state receives, in numbers a second: one that takes over
    /// another's traffic is to have as much ahead.
    pub(crate) const fn fastest(&self) -> u64 {
        self.fastest
    }

    /// Another process has carried states until now, at so high a rate, and has written the
    /// journal.
    pub(crate) const fn follow(&mut self, fastest: u64) {
        self.fastest = fastest;
        self.journal.follow();
    }

    /// Takes in a state with all that was reserved for it: it may go on at once.
    pub(crate) fn adopt(&mut self, sa: &Arc<Sa>, reserved: Reserved, now: Moment) {
        let state = SaName::of(sa);
        if sends(sa) {
            self.sent.reserve(state, reserved.sent, sa.sequence().last());
            self.journal.note(Record::Sent(state, reserved.sent));
            sa.sequence().reserve(reserved.sent);
        }
        if receives(sa) {
            self.before.remove(&state);
            self.note_received(
                state,
                ReceivedBefore { from: sa.highest_received(), edge: reserved.received },
            );
            allow_to_receive(sa, reserved.received);
        }
        // As fast as the fastest, until it is known better.
        let pace = (sa.highest_received() > 0)
            .then(|| Box::new(NumberRate::new(sa, now).at_rate(self.fastest)));
        self.watched.push_back(WatchedSa { sa: Arc::clone(sa), pace });
    }

    /// Has the witness of this process take the place of that of the process before, which knows
    /// nothing of what is received from now on. All that this one knows is in place.
    pub(crate) fn replace_witness(&mut self) {
        let settled = self.received.witness.as_ref().map(Witness::settle);
        self.is_settled = matches!(settled, Some(Ok(())));
        if !self.is_settled && !self.directory.as_os_str().is_empty() {
            forget_witness(&self.directory);
        }
    }
}

fn forget_witness(store: &Path) {
    let witness = witness::place_of(store);
    if let Err(error) = fs::remove_file(&witness.0)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(%error, "the witness of the process before can't be removed");
    }
}
