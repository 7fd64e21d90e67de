//! Stages of a batch, for measurements and traces.

use crate::packet_tap::TraceStep;

/// A stage that a batch has passed: one or several numbers of the maps in `outbound.rs` and
/// `inbound.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Inbound 1: packets of segment bursts become items.
    Receive,
    /// Outbound 2: flow keys.
    Parse,
    /// Outbound 3, inbound 8: policies, and cached bundles.
    LookUp,
    /// Outbound 1, 4, 5: checksums, verdicts, PMTU, frames.
    Frame,
    /// Outbound 6: sequence numbers.
    Number,
    /// Outbound 7: headers, padding, trailer.
    Wrap,
    /// Outbound 8: encryption.
    Seal,
    /// Outbound 9: UDP checksums.
    Finish,
    /// Outbound 10: transmission.
    Transmit,
    /// Inbound 2, 3, 4: headers, states, replay check.
    Peel,
    /// Inbound 5: decryption.
    Open,
    /// Inbound 6, 7: replay windows, decapsulation, charges.
    Accept,
    /// Inbound 8, 9, 10: selectors, templates; delivery to the host.
    Deliver,
}

impl Stage {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Receive,
        Self::Parse,
        Self::LookUp,
        Self::Frame,
        Self::Number,
        Self::Wrap,
        Self::Seal,
        Self::Finish,
        Self::Transmit,
        Self::Peel,
        Self::Open,
        Self::Accept,
        Self::Deliver,
    ];

    /// Its name, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Receive => "receive",
            Self::Parse => "parse",
            Self::LookUp => "look_up",
            Self::Frame => "frame",
            Self::Number => "number",
            Self::Wrap => "wrap",
            Self::Seal => "seal",
            Self::Finish => "finish",
            Self::Transmit => "transmit",
            Self::Peel => "peel",
            Self::Open => "open",
            Self::Accept => "accept",
            Self::Deliver => "deliver",
        }
    }
}

/// Told when a batch has passed a stage. The engine has no clock: the watcher has one.
pub trait StageWatch {
    /// All packets of the batch have passed `stage`; with several SAs some stages repeat.
    fn stage_done(&mut self, stage: Stage);

    /// What was decided about a packet, for a watcher that sends packets one by one. Others leave
    /// this as it is: then `step` is not made, and there is no code for it.
    #[inline(always)]
    fn note(&mut self, step: impl FnOnce() -> TraceStep) {
        let _unmade = step;
    }
}

/// No watcher, at no cost.
impl StageWatch for () {
    #[inline(always)]
    fn stage_done(&mut self, _: Stage) {}
}
