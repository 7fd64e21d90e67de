//! What is done to a state, and what is seen of it.

use uxfrm_engine::{Event, Lifecycle, LifetimeLimits, Moment, SaFailures};

/// One operation on the states of a gateway; the peer is the same software in all runs.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// States both ways, with counters that another has left: `replay-seq`, `replay-oseq`, and what
    /// of the window was received.
    Add { sent: u64, received: u64, window: Vec<u64> },
    /// The host sends so many datagrams.
    Send(usize),
    /// ESP with these numbers comes, as the peer sent it.
    Receive(Vec<u64>),
    /// ESP with these numbers comes, and was changed on its way.
    ReceiveForged(Vec<u64>),
    /// `XFRM_MSG_UPDSA`: other limits.
    Update(LifetimeLimits),
    /// `XFRM_MSG_MIGRATE`: the peer has another address, this one's last byte.
    Move(u8),
    /// `XFRM_MSG_NEWAE` on both states.
    SetCounters { sent: u64, received: u64 },
    /// States of the next generation come.
    AddNext,
    /// Those of the generation before go.
    DeletePrevious,
    /// All go.
    Flush,
    /// Time passes, in seconds.
    Wait(u64),
}

/// What is seen after a step.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Seen {
    /// What left.
    pub(crate) wire: Vec<Sealed>,
    /// What the host got.
    pub(crate) delivered: Vec<Vec<u8>>,
    /// What key managers heard.
    pub(crate) events: Vec<Event>,
    pub(crate) states: Vec<State>,
    /// Drop reasons and how often each since the beginning, the device's with the engine's.
    pub(crate) drops: Vec<(&'static str, u64)>,
    /// Whether the operation was refused.
    pub(crate) refused: Option<String>,
}

/// ESP on the wire.
#[derive(Debug, PartialEq)]
pub(crate) struct Sealed {
    pub(crate) outer: Vec<u8>,
    pub(crate) spi: u32,
    pub(crate) low: u64,
    pub(crate) len: usize,
    /// The whole number, and what was inside.
    pub(crate) opened: Option<(u64, Vec<u8>)>,
}

/// A state as a dump shows it.
#[derive(Debug, PartialEq)]
pub(crate) struct State {
    pub(crate) spi: u32,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) window: Vec<u64>,
    pub(crate) failures: SaFailures,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) first_used: Option<Moment>,
}
