//! What a journal says of states that are there, for simulations.

use std::collections::BTreeMap;

use uxfrm_engine::Sa;

use super::{
    journal::{self, Record},
    sa_name::SaName,
};

/// How far each state may send and receive by the journal on the disk.
#[derive(Debug, Default)]
pub(crate) struct JournalView(BTreeMap<SaName, (u64, u64)>);

impl JournalView {
    /// Reads a journal.
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let mut states = BTreeMap::<_, (u64, u64)>::new();
        for record in journal::read(bytes).unwrap().records {
            match record {
                Record::Sent(state, highest) => states.entry(state).or_default().0 = highest,
                Record::Received(state, _, edge) => states.entry(state).or_default().1 = edge,
                Record::Prefix(..) | Record::Forgotten(_) => {}
            }
        }
        Self(states)
    }

    /// Up to where a state may send, and receive.
    pub(crate) fn of(&self, sa: &Sa) -> (u64, u64) {
        self.0.get(&SaName::of(sa)).copied().unwrap_or_default()
    }
}
