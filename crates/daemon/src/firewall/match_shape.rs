//! The fields that a policy's alternative matches on, without their values.

use uxfrm_io::nftables::{Condition, SetKeyField};

/// What policies may ask alike. A packet gives one answer to all that have a shape, so one look
/// into a set tells whether any of them fits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct MatchShape {
    /// What all packets must meet: the version of IP, and which protocols it is not.
    pub(super) fixed: Vec<Condition>,
    pub(super) questions: Vec<SetKeyField>,
}

impl MatchShape {
    /// The shape of a list of conditions, and the answers that they want.
    pub(super) fn of(conditions: &[Condition]) -> (Self, Vec<u8>) {
        let mut shape = Self { fixed: Vec::new(), questions: Vec::new() };
        let mut key = Vec::new();
        for condition in conditions {
            match condition.question().filter(|_| !condition.is_of_version()) {
                Some((question, reply)) => {
                    shape.questions.push(question);
                    key.extend(reply.as_bytes());
                }
                None => shape.fixed.push(*condition),
            }
        }
        (shape, key)
    }

    /// Bytes of its keys.
    pub(super) fn key_length(&self) -> usize {
        self.questions.iter().map(SetKeyField::size).sum()
    }
}
