//! Target of a rule.

use super::RxQueueId;

/// `action N` of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// This queue.
    Queue(RxQueueId),
    /// `action -1`: the device drops it.
    Drop,
}
