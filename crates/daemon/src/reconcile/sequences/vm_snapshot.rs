//! A machine that resumes from a memory snapshot, perhaps as one of several clones.

use std::{collections::BTreeMap, sync::Arc};

use uxfrm_engine::{FIRST_RESERVED, Moment, Sa};

use super::{NumberGrant, ReceivedBefore, Record, SaName, SequenceStore, receives};

impl SequenceStore {
    /// States stand in the place of others: they go on with prefixes of their own, and above all
    /// that was reserved where the disk is of a later time.
    pub(crate) fn begin_anew(&mut self, gone: &[Arc<Sa>], came: &[Arc<Sa>], now: Moment) {
        let (mut sent, mut edges) = (BTreeMap::new(), BTreeMap::new());
        for record in self.journal.read_again().unwrap_or_default() {
            match record {
                Record::Sent(state, highest) => drop(sent.insert(state, highest)),
                Record::Prefix(key, bits) => self.prefixes.learn(key, bits),
                Record::Received(state, _, edge) => drop(edges.insert(state, edge)),
                Record::Forgotten(state) => drop(edges.remove(&state)),
            }
        }
        // What the disk has of them, where it is not of a later time.
        let granted: BTreeMap<_, _> =
            gone.iter().map(|sa| (SaName::of(sa), sa.reserved_to_receive())).collect();
        for sa in gone {
            let state = SaName::of(sa);
            let known = self.edges.get(&state).map(|before| before.edge);
            self.dismiss(sa, now);
            // Nobody has deleted it. One that its device does not take any more comes back at the
            // next start.
            if let Some(edge) = known.max(edges.get(&state).copied()) {
                self.before.insert(state, ReceivedBefore { from: edge, edge });
                self.journal.note(Record::Received(state, edge, edge));
            }
        }
        for sa in came {
            let state = SaName::of(sa);
            if !edges.contains_key(&state) {
                self.before.remove(&state);
            }
            sa.sequence().skip_to(sent.get(&state).copied().unwrap_or(0));
            self.admit(sa, now);
            if let Some(edge) = edges.get(&state).or_else(|| granted.get(&state)) {
                self.delay_numbers(sa, *edge);
            }
            if self.no_prefix.is_some() {
                // Never with what others may have.
                let _last = sa.sequence().close();
            }
        }
    }

    /// Has a state that is in force already accept nothing above what the disk has of it, until the
    /// disk has more.
    fn delay_numbers(&mut self, sa: &Arc<Sa>, edge: u64) {
        let own = sa.reserved_to_receive();
        if !receives(sa) || own == u64::MAX || own <= edge {
            return;
        }
        sa.replay().reserve(edge);
        // One that has received nothing needed no grant when it was admitted.
        if own == FIRST_RESERVED {
            self.pending.push(sa, NumberGrant::Received(own));
        }
    }
}
