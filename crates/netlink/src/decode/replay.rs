//! Replay protection and counters of a state: `verify_replay` and the checks by direction.

use uxfrm_engine::{Counters, Direction, Error, ReplayConfig, SaFlags, UsageCounters};
use zerocopy::FromBytes as _;

use super::common;
use crate::{
    attribute::{AttributeType, Attributes},
    encode::common::Calendar,
    layout::{RawReplay, RawReplayEsn, RawSa, RawUsage},
    refusal::NetlinkError,
};

/// `XFRMA_REPLAY_ESN_MAX` in words of the bitmap.
const MOST_WORDS: u32 = 128;

/// Size of the legacy bitmap in packets.
const SHORT_WINDOW: u32 = 32;

/// The counters that a state uses, `replay` or `replay_esn` of `struct xfrm_state`; the kernel
/// ignores the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplayForm {
    /// `struct xfrm_replay_state`
    Short,
    /// `struct xfrm_replay_state_esn`
    Long,
}

impl ReplayForm {
    /// The form of a state with these flags and this window.
    pub(crate) fn of(flags: SaFlags, window: u32) -> Self {
        let short = !flags.contains(SaFlags::ESN) && window <= SHORT_WINDOW;
        if short { Self::Short } else { Self::Long }
    }
}

/// `struct xfrm_replay_state_esn` as a request has it.
pub(crate) struct EsnState {
    raw: RawReplayEsn,
}

/// `XFRMA_REPLAY_ESN_VAL`, checked: `verify_replay`.
pub(crate) fn esn_state(
    sa: &RawSa,
    attributes: &Attributes<'_>,
) -> Result<Option<EsnState>, NetlinkError> {
    const ESP: u8 = 50;
    const AH: u8 = 51;
    let value = attributes.value(AttributeType::ReplayEsnVal);
    let Some((raw, bitmap)) = value.and_then(|value| RawReplayEsn::read_from_prefix(value).ok())
    else {
        return if sa.flags & SaFlags::ESN.bits() == 0 {
            Ok(None)
        } else {
            Err(NetlinkError::invalid("Missing required attribute for ESN"))
        };
    };
    if raw.words > MOST_WORDS {
        return Err(NetlinkError::invalid("ESN bitmap length must be <= 128"));
    }
    let len = usize::try_from(raw.words * 4).unwrap_or(usize::MAX);
    if bitmap.len() < len && !bitmap.is_empty() {
        return Err(NetlinkError::invalid(
            "ESN attribute is too short to fit the full bitmap length",
        ));
    }
    if ![ESP, AH].contains(&sa.id.protocol) {
        return Err(NetlinkError::invalid("ESN only supported for ESP and AH"));
    }
    if sa.replay_window != 0 {
        return Err(NetlinkError::invalid("ESN not compatible with legacy replay_window"));
    }
    let state = EsnState { raw };
    let long = SaFlags::from_bits_retain(sa.flags) & SaFlags::ESN;
    match common::sa_direction(attributes) {
        Some(Direction::Out) => state.check_output(long)?,
        Some(Direction::In | Direction::Forward) => state.check_input(long)?,
        None => {}
    }
    Ok(Some(state))
}

/// Checks the short counters against `XFRMA_SA_DIR`; [`esn_state`] has checked the long ones.
pub(crate) fn check_direction(
    direction: Direction,
    attributes: &Attributes<'_>,
) -> Result<(), NetlinkError> {
    let legacy = attributes.read::<RawReplay>(AttributeType::ReplayVal);
    match direction {
        Direction::Out => match legacy {
            Some(raw) if raw.received != 0 || raw.bitmap != 0 => Err(Error::OutputReceived.into()),
            Some(_) | None => Ok(()),
        },
        // The engine checks it after the algorithms, as the kernel does.
        Direction::In | Direction::Forward => Ok(()),
    }
}

/// The window and the last number sent; [`counters`] has the numbers received.
pub(crate) fn config(
    sa: &RawSa,
    esn: Option<&EsnState>,
    attributes: &Attributes<'_>,
) -> Result<ReplayConfig, NetlinkError> {
    if let Some(EsnState { raw }) = esn {
        if raw.window > raw.words * 32 {
            return Err(NetlinkError::invalid(
                "ESN replay window is too large for the chosen bitmap size",
            ));
        }
        let sent = whole(raw.sent_high, raw.sent);
        return Ok(ReplayConfig { window: raw.window, sent, received: 0 });
    }
    let raw = attributes.read::<RawReplay>(AttributeType::ReplayVal);
    Ok(ReplayConfig {
        // The kernel's bitmap has 32 bits.
        window: u32::from(sa.replay_window).min(32),
        sent: raw.map_or(0, |raw| raw.sent.into()),
        received: 0,
    })
}

/// Counters from NEWSA or NEWAE (`xfrm_update_ae_params`), for a state of this form.
pub(crate) fn counters(
    attributes: &Attributes<'_>,
    form: ReplayForm,
    calendar: Calendar,
) -> Counters {
    let usage = attributes.read::<RawUsage>(AttributeType::LtimeVal);
    let mut counters = Counters {
        usage: usage.map(|raw| self::usage(raw, calendar)),
        packets_threshold: attributes.read(AttributeType::ReplayThresh),
        time_threshold: attributes.read(AttributeType::EtimerThresh),
        ..Counters::default()
    };
    match form {
        ReplayForm::Short => set_short(&mut counters, attributes),
        ReplayForm::Long => set_long(&mut counters, attributes),
    }
    counters
}

/// What a state has carried, as a message says it.
pub(crate) fn usage(raw: RawUsage, calendar: Calendar) -> UsageCounters {
    UsageCounters {
        bytes: raw.bytes,
        packets: raw.packets,
        added: calendar.moment(raw.added),
        first_used: (raw.used != 0).then(|| calendar.moment(raw.used)),
    }
}

fn set_short(counters: &mut Counters, attributes: &Attributes<'_>) {
    let Some(raw) = attributes.read::<RawReplay>(AttributeType::ReplayVal) else { return };
    let received = u64::from(raw.received);
    counters.sent = Some(raw.sent.into());
    counters.received = Some(received);
    let is_set =
        |number: &u64| short_bit(received, *number).is_some_and(|bit| raw.bitmap >> bit & 1 != 0);
    counters.window = (received.saturating_sub(31)..=received).filter(is_set).collect();
}

fn set_long(counters: &mut Counters, attributes: &Attributes<'_>) {
    let value = attributes.value(AttributeType::ReplayEsnVal);
    let Some((raw, bitmap)) = value.and_then(|value| RawReplayEsn::read_from_prefix(value).ok())
    else {
        return;
    };
    let received = whole(raw.received_high, raw.received);
    counters.sent = Some(whole(raw.sent_high, raw.sent));
    counters.received = Some(received);
    let is_set = |number: &u64| {
        let bit = long_bit(received, raw.window, *number);
        let word = bit.and_then(|bit| bitmap.as_chunks().0.get(bit / 32).map(|word| (bit, word)));
        word.is_some_and(|(bit, word)| u32::from_ne_bytes(*word) >> (bit % 32) & 1 != 0)
    };
    let window = u64::from(raw.window.min(MOST_WORDS * 32));
    let lowest = received.saturating_sub(window.saturating_sub(1));
    counters.window = (lowest..=received).filter(is_set).collect();
}

/// Which bit of `struct xfrm_replay_state` a number has: the highest received the lowest.
pub(crate) fn short_bit(highest: u64, number: u64) -> Option<u32> {
    let behind = u32::try_from(highest.checked_sub(number)?).ok()?;
    (number != 0 && behind < 32).then_some(behind)
}

/// The bit of a number in the long bitmap, a ring as long as the window, indexed by the lower 32
/// bits (`xfrm_replay_advance_bmp`).
pub(crate) fn long_bit(highest: u64, window: u32, number: u64) -> Option<usize> {
    let behind = u32::try_from(highest.checked_sub(number)?).ok()?;
    if number == 0 || behind >= window {
        return None;
    }
    let [.., a, b, c, d] = highest.to_be_bytes();
    let place = u32::from_be_bytes([a, b, c, d]).wrapping_sub(1) % window;
    let place = place.checked_sub(behind).unwrap_or_else(|| window - (behind - place));
    usize::try_from(place).ok()
}

/// Checks NEWAE for a state with long counters (`xfrm_replay_verify_len`).
pub(crate) fn check_size(
    window: u32,
    form: ReplayForm,
    attributes: &Attributes<'_>,
) -> Result<(), NetlinkError> {
    if form == ReplayForm::Short {
        return Ok(());
    }
    let Some(value) = attributes.value(AttributeType::ReplayEsnVal) else { return Ok(()) };
    let Ok((raw, bitmap)) = RawReplayEsn::read_from_prefix(value) else { return Ok(()) };
    if u64::from(raw.words) * 4 > bitmap.len() as u64 {
        return Err(NetlinkError::invalid("ESN attribute is too short"));
    }
    if raw.words != window.div_ceil(32) {
        return Err(NetlinkError::invalid("New ESN size doesn't match the existing SA's ESN size"));
    }
    if raw.window > raw.words * 32 {
        return Err(NetlinkError::invalid("ESN replay window is longer than the bitmap"));
    }
    if raw.window != window {
        return Err(NetlinkError::not_yet("The replay window of a state can't change"));
    }
    Ok(())
}

fn whole(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

impl EsnState {
    /// `long` is flag `esn` if the state has it.
    fn check_output(&self, long: SaFlags) -> Result<(), NetlinkError> {
        if self.raw.window != 0 {
            return Err(Error::OutputWindow.into());
        }
        if self.raw.received != 0 || self.raw.received_high != 0 {
            return Err(NetlinkError::invalid("Replay seq and seq_hi should be 0 for output SA"));
        }
        if long.is_empty() && self.raw.sent_high != 0 {
            return Err(NetlinkError::invalid(
                "Replay oseq_hi should be 0 in non-ESN mode for output SA",
            ));
        }
        if self.raw.words != 0 {
            return Err(NetlinkError::invalid("Replay bmp_len should 0 for output SA"));
        }
        Ok(())
    }

    fn check_input(&self, long: SaFlags) -> Result<(), NetlinkError> {
        if self.raw.sent != 0 || self.raw.sent_high != 0 {
            return Err(NetlinkError::invalid("Replay oseq and oseq_hi should be 0 for input SA"));
        }
        if long.is_empty() && self.raw.received_high != 0 {
            return Err(NetlinkError::invalid(
                "Replay seq_hi should be 0 in non-ESN mode for input SA",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replay_bit_positions_are_the_kernels() {
        assert_eq!(
            [100, 99, 69, 68, 101].map(|number| short_bit(100, number)),
            [Some(0), Some(1), Some(31), None, None]
        );
        assert_eq!(short_bit(3, 0), None, "there is no number 0");
        // The kernel's first packet sets bit 0, the packet after a full turn bit 0 again.
        assert_eq!(
            [1, 64, 65].map(|highest| long_bit(highest, 64, highest)),
            [Some(0), Some(63), Some(0)]
        );
        assert_eq!(
            [65, 64, 2, 1].map(|number| long_bit(65, 64, number)),
            [Some(0), Some(63), Some(1), None]
        );
        // Where the lower half begins again, a window that is no power of two begins anew as well.
        let turn = 1 << 32;
        assert_eq!(long_bit(turn, 96, turn), Some(u32::MAX as usize % 96));
        assert_eq!(long_bit(turn + 1, 96, turn), Some(95));
        let all: std::collections::BTreeSet<_> =
            (turn - 90..=turn + 5).filter_map(|number| long_bit(turn + 5, 96, number)).collect();
        assert_eq!(all.len(), 96, "each number of a window its own bit");
    }
}
