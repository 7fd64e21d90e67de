//! Encodes states, attributes in the order of `net/xfrm/xfrm_user.c: copy_to_user_state_extra`.
//! Keys go straight into the datagram, which is wiped.

use std::num::NonZeroU32;

use uxfrm_crypto::KeyMaterial;
use uxfrm_engine::{Direction, KeepaliveInterval, Mark, Sa, SaTransform, SharedSaConfig, UdpEncap};
use zerocopy::IntoBytes as _;

use super::common::{self, Calendar};
use crate::{
    address::{family_number, raw},
    attribute::AttributeType,
    datagram::NetlinkDatagram,
    decode::{
        common::mode_number,
        replay::{self, ReplayForm},
    },
    layout::{
        RawAlgorithm, RawEncap, RawId, RawReplay, RawReplayEsn, RawSa, RawSaId, RawSizedAlgorithm,
        RawUsage,
    },
};

/// `struct xfrm_usersa_info`.
pub(crate) fn info(sa: &Sa, calendar: Calendar) -> RawSa {
    let (config, id) = (sa.config(), sa.id());
    let failures = sa.usage().failures();
    let selector = config.selector.as_ref();
    RawSa {
        selector: selector.map_or_else(common::no_selector, common::selector),
        id: RawId {
            destination: raw(id.destination),
            spi: id.spi.0.into(),
            protocol: id.protocol.number(),
            pad: [0; 3],
        },
        source: raw(sa.source()),
        limits: common::limits(&config.limits),
        usage: usage(sa, calendar),
        replay_window_failures: failures.replay_window,
        replay_failures: failures.replay,
        integrity_failures: failures.integrity_failed,
        seq: sa.acquire_seq(),
        reqid: sa.reqid().0,
        family: family_number(sa.family()),
        mode: mode_number(config.mode),
        replay_window: short_window(config),
        flags: config.flags.bits(),
        pad: [0; 7],
    }
}

/// `struct xfrm_lifetime_cur`.
pub(crate) fn usage(sa: &Sa, calendar: Calendar) -> RawUsage {
    RawUsage {
        bytes: sa.usage().bytes(),
        packets: sa.usage().packets(),
        added: calendar.seconds(sa.added()),
        used: calendar.seconds_or_never(sa.usage().first_used()),
    }
}

/// `struct xfrm_usersa_id`.
pub(crate) fn id(sa: &Sa) -> RawSaId {
    let id = sa.id();
    RawSaId {
        destination: raw(id.destination),
        spi: id.spi.0.into(),
        family: family_number(sa.family()),
        protocol: id.protocol.number(),
        pad: 0,
    }
}

/// All attributes of a state, keys included.
pub(crate) fn attributes(out: &mut NetlinkDatagram, sa: &Sa, calendar: Calendar) {
    let config = sa.config();
    if !config.extra_flags.is_empty() {
        out.attribute(AttributeType::SaExtraFlags, &config.extra_flags.bits());
    }
    if let Some(care_of) = config.care_of {
        out.attribute(AttributeType::CoAddr, &raw(care_of));
    }
    if let Some(used) = sa.usage().last_used() {
        out.attribute(AttributeType::LastUsed, &calendar.seconds(used));
    }
    put_algorithms(out, &sa.secrets());
    if let Some(encap) = &config.encap {
        out.attribute(AttributeType::Encap, &raw_encap(encap));
    }
    if config.tfc_padding != 0 {
        out.attribute(AttributeType::TfcPad, &config.tfc_padding);
    }
    common::put_mark(out, config.mark);
    put_output_mark(out, config.output_mark);
    put_replay(out, sa);
    if let (Some(place), Some(offload)) = (sa.attachment(), &config.offload) {
        common::put_offload(out, place.device, place.kind, offload.direction);
    }
    common::put_if_id(out, config.if_id);
    put_mapping_age(out, config.mapping_age);
    put_direction(out, config.direction);
    put_keepalive(out, config.nat_keepalive);
    if let Some(pcpu) = config.pcpu {
        out.attribute(AttributeType::SaPcpu, &pcpu.0);
    }
}

/// `XFRMA_REPLAY_ESN_VAL` if 32 bits do not suffice, else `XFRMA_REPLAY_VAL`.
pub(crate) fn put_replay(out: &mut NetlinkDatagram, sa: &Sa) {
    #[expect(clippy::cast_possible_truncation, reason = "the halves of a 64-bit number")]
    const fn halves(number: u64) -> (u32, u32) {
        ((number >> 32) as u32, number as u32)
    }
    let (sent_high, sent) = halves(sa.sequence().last());
    let highest = sa.highest_received();
    let (received_high, received) = halves(highest);
    let window = sa.config().window;
    let numbers = (highest.saturating_sub(u64::from(window.max(1)) - 1)..=highest).rev();
    let numbers = numbers.filter(|number| sa.has_received(*number));
    if is_short(sa.config()) {
        let bit = |number| replay::short_bit(highest, number);
        let bitmap = numbers.filter_map(bit).fold(0, |bitmap, bit| bitmap | 1 << bit);
        out.attribute(AttributeType::ReplayVal, &RawReplay { sent, received, bitmap });
        return;
    }
    let words = window.div_ceil(32);
    let state = RawReplayEsn { words, sent, received, sent_high, received_high, window };
    // A window is at most 4096 packets.
    let mut bitmap = [0_u32; 128];
    for bit in numbers.filter_map(|number| replay::long_bit(highest, window, number)) {
        bitmap[bit / 32 % 128] |= 1 << (bit % 32);
    }
    let bitmap = &bitmap[..usize::try_from(words).unwrap_or(0).min(128)];
    out.raw_attribute(AttributeType::ReplayEsnVal as u16, &[state.as_bytes(), bitmap.as_bytes()]);
}

/// `XFRMA_SA_DIR`.
pub(crate) fn put_direction(out: &mut NetlinkDatagram, direction: Option<Direction>) {
    if let Some(direction) = direction {
        out.attribute(AttributeType::SaDir, &direction_number(direction));
    }
}

/// `XFRMA_MTIMER_THRESH`.
pub(crate) fn put_mapping_age(out: &mut NetlinkDatagram, age: Option<NonZeroU32>) {
    if let Some(age) = age {
        out.attribute(AttributeType::MtimerThresh, &age.get());
    }
}

/// `XFRMA_NAT_KEEPALIVE_INTERVAL`.
pub(crate) fn put_keepalive(out: &mut NetlinkDatagram, interval: Option<KeepaliveInterval>) {
    if let Some(interval) = interval {
        out.attribute(AttributeType::NatKeepaliveInterval, &interval.0.get());
    }
}

/// `XFRM_SA_DIR_IN`, `_OUT`.
#[must_use]
pub const fn direction_number(direction: Direction) -> u8 {
    match direction {
        Direction::In | Direction::Forward => 1,
        Direction::Out => 2,
    }
}

fn is_short(config: &SharedSaConfig) -> bool {
    ReplayForm::of(config.flags, config.window) == ReplayForm::Short
}

fn short_window(config: &SharedSaConfig) -> u8 {
    if is_short(config) { u8::try_from(config.window).unwrap_or(0) } else { 0 }
}

/// `XFRMA_SET_MARK` and its mask.
pub(crate) fn put_output_mark(out: &mut NetlinkDatagram, mark: Mark) {
    if mark != Mark::default() {
        out.attribute(AttributeType::SetMark, &mark.value);
        out.attribute(AttributeType::SetMarkMask, &mark.mask);
    }
}

/// The kernel sends an authentication algorithm twice, for programs that know the old attribute
/// only.
fn put_algorithms(out: &mut NetlinkDatagram, words: &SaTransform) {
    let icv_bits = u32::try_from(words.transform.icv_len() * 8).unwrap_or(0);
    let name = words.transform.name();
    let Some((cipher, auth)) = name.split_once('/') else {
        return put_sized(out, AttributeType::AlgAead, &name, &words.encryption_key, icv_bits);
    };
    if words.transform.authenticates() {
        let key = &words.authentication_key;
        put_plain(out, AttributeType::AlgAuth, auth, key);
        put_sized(out, AttributeType::AlgAuthTrunc, auth, key, icv_bits);
    }
    put_plain(out, AttributeType::AlgCrypt, cipher, &words.encryption_key);
}

fn put_plain(out: &mut NetlinkDatagram, kind: AttributeType, name: &str, key: &KeyMaterial) {
    let raw = RawAlgorithm { name: padded_name(name), key_bits: bits(key) };
    out.raw_attribute(kind as u16, &[raw.as_bytes(), key.expose()]);
}

fn put_sized(
    out: &mut NetlinkDatagram,
    kind: AttributeType,
    name: &str,
    key: &KeyMaterial,
    icv_bits: u32,
) {
    let raw = RawSizedAlgorithm { name: padded_name(name), key_bits: bits(key), icv_bits };
    out.raw_attribute(kind as u16, &[raw.as_bytes(), key.expose()]);
}

fn bits(key: &KeyMaterial) -> u32 {
    u32::try_from(key.len() * 8).unwrap_or(u32::MAX)
}

/// A zero-padded name, cut at 63 bytes; ours are shorter.
#[must_use]
pub fn padded_name(name: &str) -> [u8; 64] {
    let mut padded = [0; 64];
    padded.iter_mut().zip(name.bytes().take(63)).for_each(|(place, byte)| *place = byte);
    padded
}

/// `struct xfrm_encap_tmpl`
#[must_use]
pub fn raw_encap(encap: &UdpEncap) -> RawEncap {
    RawEncap {
        kind: encap.kind.properties().number,
        source_port: encap.source_port.into(),
        destination_port: encap.destination_port.into(),
        pad: 0,
        original_address: raw(encap.original_address),
    }
}
