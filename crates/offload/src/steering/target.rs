//! Target of a rule.

use super::Queue;

/// `action N` of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// This queue.
    Queue(Queue),
    /// `action -1`: the device drops it.
    Drop,
}
