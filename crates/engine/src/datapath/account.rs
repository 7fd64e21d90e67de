//! Charges SAs for the packets that they carry, and raises their events.

use super::context::BatchContext;
use crate::{ChargeOutcome, Event, Sa};

/// Result of charging an SA's packets together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitCheck {
    /// All pass.
    Pass,
    /// Only some fit under a hard limit: each is charged on its own.
    PerPacket,
    /// None passes.
    Expired,
}

impl LimitCheck {
    /// Whether a packet of so many bytes passes; charges it if need be.
    pub(crate) fn lets_pass(self, sa: &Sa, bytes: u32, ctx: &mut BatchContext<'_>) -> bool {
        match self {
            Self::Pass => true,
            Self::Expired => false,
            Self::PerPacket => charge_one(sa, bytes.into(), ctx),
        }
    }
}

/// Charges an SA for packets together, and raises its events.
#[inline]
pub(crate) fn charge(sa: &Sa, packets: u32, bytes: u64, ctx: &mut BatchContext<'_>) -> LimitCheck {
    let outcome = sa.charge(packets, bytes, ctx.now);
    Event::of_charge(outcome, sa).into_iter().for_each(|event| ctx.push_event(event));
    match outcome {
        ChargeOutcome::Ok | ChargeOutcome::SoftLimit => LimitCheck::Pass,
        ChargeOutcome::NeedsPerPacket => LimitCheck::PerPacket,
        ChargeOutcome::HardLimit | ChargeOutcome::Expired => LimitCheck::Expired,
    }
}

/// Charges an SA for one packet, which passes or does not.
#[inline]
pub(crate) fn charge_one(sa: &Sa, bytes: u64, ctx: &mut BatchContext<'_>) -> bool {
    charge(sa, 1, bytes, ctx) == LimitCheck::Pass
}
