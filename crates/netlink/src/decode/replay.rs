//! Replay protection and counters of a state: `verify_replay` and the checks that a direction brings with it.

use uxfrm_engine::{Direction, Error, ReplayConfig, SaFlags};
use zerocopy::FromBytes as _;

use super::common;
use crate::{
    attribute::{AttributeType, Attributes},
    layout::{RawReplay, RawReplayEsn, RawSa},
    refusal::Refusal,
};

/// `XFRMA_REPLAY_ESN_MAX` in words of the bitmap.
const MOST_WORDS: u32 = 128;

/// `struct xfrm_replay_state_esn` as a request has it.
pub(crate) struct EsnState<'a> {
    raw: RawReplayEsn,
    bitmap: &'a [u8],
}

/// `XFRMA_REPLAY_ESN_VAL`, checked: `verify_replay`.
pub(crate) fn esn_state<'a>(
    sa: &RawSa,
    attributes: &Attributes<'a>,
) -> Result<Option<EsnState<'a>>, Refusal> {
    const ESP: u8 = 50;
    const AH: u8 = 51;
    let value = attributes.value(AttributeType::ReplayEsnVal);
    let Some((raw, bitmap)) = value.and_then(|value| RawReplayEsn::read_from_prefix(value).ok())
    else {
        return if sa.flags & SaFlags::ESN.bits() == 0 {
            Ok(None)
        } else {
            Err(Refusal::invalid("Missing required attribute for ESN"))
        };
    };
    if raw.words > MOST_WORDS {
        return Err(Refusal::invalid("ESN bitmap length must be <= 128"));
    }
    let len = usize::try_from(raw.words * 4).unwrap_or(usize::MAX);
    if bitmap.len() < len && !bitmap.is_empty() {
        return Err(Refusal::invalid("ESN attribute is too short to fit the full bitmap length"));
    }
    if ![ESP, AH].contains(&sa.id.protocol) {
        return Err(Refusal::invalid("ESN only supported for ESP and AH"));
    }
    if sa.replay_window != 0 {
        return Err(Refusal::invalid("ESN not compatible with legacy replay_window"));
    }
    let state = EsnState { raw, bitmap: bitmap.get(..len).unwrap_or_default() };
    let long = SaFlags::from_bits_retain(sa.flags) & SaFlags::ESN;
    match common::sa_direction(attributes) {
        Some(Direction::Out) => state.check_output(long)?,
        Some(Direction::In | Direction::Forward) => state.check_input(long)?,
        None => {}
    }
    Ok(Some(state))
}

/// What `XFRMA_SA_DIR` forbids of the shorter counters; of the longer ones, [`esn_state`] has said it.
pub(crate) fn check_direction(
    sa: &RawSa,
    direction: Direction,
    attributes: &Attributes<'_>,
) -> Result<(), Refusal> {
    let legacy = attributes.read::<RawReplay>(AttributeType::ReplayVal);
    match direction {
        Direction::Out => {
            if sa.replay_window != 0 {
                return Err(Error::OutputWindow.into());
            }
            match legacy {
                Some(raw) if raw.received != 0 || raw.bitmap != 0 => {
                    Err(Error::OutputReceived.into())
                }
                Some(_) | None => Ok(()),
            }
        }
        // The engine checks it, after the algorithms: so late does the kernel see it too.
        Direction::In | Direction::Forward => Ok(()),
    }
}

/// Window and counters. Numbers below the highest received count as received, whatever a bitmap says: it may say that
/// less was, and then packets are refused that the kernel would take, never the other way.
pub(crate) fn config(
    sa: &RawSa,
    esn: Option<&EsnState<'_>>,
    attributes: &Attributes<'_>,
) -> Result<ReplayConfig, Refusal> {
    if let Some(EsnState { raw, .. }) = esn {
        if raw.window > raw.words * 32 {
            return Err(Refusal::invalid(
                "ESN replay window is too large for the chosen bitmap size",
            ));
        }
        let whole = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        return Ok(ReplayConfig {
            window: raw.window,
            sent: whole(raw.sent_high, raw.sent),
            received: whole(raw.received_high, raw.received),
        });
    }
    let raw = attributes.read::<RawReplay>(AttributeType::ReplayVal);
    Ok(ReplayConfig {
        // The kernel's bitmap has 32 bits.
        window: u32::from(sa.replay_window).min(32),
        sent: raw.map_or(0, |raw| raw.sent.into()),
        received: raw.map_or(0, |raw| raw.received.into()),
    })
}

impl EsnState<'_> {
    /// `long` is flag `esn` if the state has it.
    fn check_output(&self, long: SaFlags) -> Result<(), Refusal> {
        if self.raw.window != 0 {
            return Err(Error::OutputWindow.into());
        }
        if self.raw.received != 0 || self.raw.received_high != 0 {
            return Err(Refusal::invalid("Replay seq and seq_hi should be 0 for output SA"));
        }
        if long.is_empty() && self.raw.sent_high != 0 {
            return Err(Refusal::invalid(
                "Replay oseq_hi should be 0 in non-ESN mode for output SA",
            ));
        }
        if self.bitmap.iter().any(|byte| *byte != 0) {
            return Err(Refusal::invalid("Replay bitmap should be 0 for output SA"));
        }
        Ok(())
    }

    fn check_input(&self, long: SaFlags) -> Result<(), Refusal> {
        if self.raw.sent != 0 || self.raw.sent_high != 0 {
            return Err(Refusal::invalid("Replay oseq and oseq_hi should be 0 for input SA"));
        }
        if long.is_empty() && self.raw.received_high != 0 {
            return Err(Refusal::invalid("Replay seq_hi should be 0 in non-ESN mode for input SA"));
        }
        Ok(())
    }
}
