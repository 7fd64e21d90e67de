//! What becomes of a packet that a rule fits.

use super::Queue;

/// `action N` of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// It goes to this queue.
    Queue(Queue),
    /// `action -1`: the device drops it.
    Drop,
}
