//! Requests about states (`ip/xfrm_state.c`).

use uxfrm_engine::{Direction, Family, Mark, OffloadKind, SaFlags, SaId, UdpEncap};
use uxfrm_netlink::{
    AttributeType, MessageType, NetlinkFlags,
    client::{
        self, NetlinkRequest, RawAddressFilter, RawAlgorithm, RawId, RawOffload, RawReplay,
        RawReplayEsn, RawSa, RawSaId, RawSelector, RawSizedAlgorithm, RawSpiRequest,
    },
};
use zerocopy::{FromZeros as _, IntoBytes as _};

use super::{Error, device_index, put_context, put_if_id, put_mark};
use crate::grammar::{
    Algorithm, AlgorithmKind, EncapArgs, OutputMarkArgs, SelectorFilter, SpiRequest, StateArgs,
    StateClause, StateFilter, StateKey,
};

/// `XFRM_OFFLOAD_INBOUND`, `_PACKET`
const OFFLOAD_INBOUND: u8 = 2;
const OFFLOAD_PACKET: u8 = 4;

/// Bits of the window that `struct xfrm_replay_state` has.
const SHORT_WINDOW: u32 = 32;

/// `add`, `update`.
pub(super) fn whole(kind: MessageType, words: &StateArgs) -> Result<NetlinkRequest, Error> {
    let mut request = NetlinkRequest::new(kind, NetlinkFlags::ACK).body(&info(words));
    for part in &words.parts {
        put_part(&mut request, part, Family::of(words.id.destination));
    }
    if let Some(offload) = &words.offload {
        let inbound = if offload.direction == Direction::In { OFFLOAD_INBOUND } else { 0 };
        let packet = if offload.kind == OffloadKind::Packet { OFFLOAD_PACKET } else { 0 };
        let ifindex = device_index(&offload.device)?;
        let raw = RawOffload { ifindex, flags: inbound | packet, pad: [0; 3] };
        request.attribute(AttributeType::OffloadDev, &raw);
    }
    put_replay(&mut request, words);
    if !words.extra_flags.is_empty() {
        request.attribute(AttributeType::SaExtraFlags, &words.extra_flags.bits());
    }
    put_mark(&mut request, words.mark);
    put_if_id(&mut request, words.if_id);
    if words.tfc_padding != 0 {
        request.attribute(AttributeType::TfcPad, &words.tfc_padding);
    }
    put_output_mark(&mut request, words.output_mark);
    put_direction(&mut request, words.direction);
    put_pcpu(&mut request, words.pcpu);
    if let Some(interval) = words.nat_keepalive {
        request.attribute(AttributeType::NatKeepaliveInterval, &interval.0.get());
    }
    if let Some(seconds) = words.mapping_age {
        request.attribute(AttributeType::MtimerThresh, &seconds.get());
    }
    Ok(request)
}

/// `allocspi`
pub(super) fn spi_request(words: &SpiRequest) -> NetlinkRequest {
    let sa = RawSa {
        id: raw_id(words.id),
        source: client::raw(words.source),
        seq: words.acquire_seq.to_be(),
        reqid: words.reqid.0,
        family: client::family_number(Family::of(words.id.destination)),
        mode: client::mode_number(words.mode),
        ..RawSa::new_zeroed()
    };
    let raw = RawSpiRequest { sa, min: words.min, max: words.max };
    let mut request = NetlinkRequest::new(MessageType::AllocSpi, NetlinkFlags::empty()).body(&raw);
    put_direction(&mut request, words.direction);
    put_mark(&mut request, words.mark);
    put_pcpu(&mut request, words.pcpu);
    request
}

/// `get`, `delete`
pub(super) fn key(kind: MessageType, key: &StateKey, flags: NetlinkFlags) -> NetlinkRequest {
    let id = raw_id(key.id);
    let raw = RawSaId {
        destination: id.destination,
        spi: id.spi,
        family: client::family_number(Family::of(key.id.destination)),
        protocol: id.protocol,
        pad: 0,
    };
    let mut request = NetlinkRequest::new(kind, flags).body(&raw);
    request.attribute(AttributeType::SrcAddr, &client::raw(key.source));
    put_mark(&mut request, key.mark);
    request
}

/// `list`
pub(super) fn dump(filter: &StateFilter) -> NetlinkRequest {
    let mut request = super::dump(MessageType::GetSa);
    if let Some(protocol) = filter.protocol {
        request.attribute(AttributeType::Proto, &protocol.number());
    }
    let end = |prefix: Option<uxfrm_engine::Prefix>| {
        prefix.map_or(([0; 16], 0), |prefix| (client::raw(prefix.address()), prefix.prefix_len()))
    };
    let ((source, source_len), (destination, destination_len)) =
        (end(filter.source), end(filter.destination));
    let family = filter.family.map_or(0, client::family_number);
    let raw = RawAddressFilter { source, destination, family, source_len, destination_len };
    request.attribute(AttributeType::AddressFilter, &raw);
    request
}

/// `delete` of a state that a dump told of.
pub(crate) fn delete(state: &RawSa, mark: Option<&[u8]>) -> NetlinkRequest {
    let raw = RawSaId {
        destination: state.id.destination,
        spi: state.id.spi,
        family: state.family,
        protocol: state.id.protocol,
        pad: 0,
    };
    let mut request = NetlinkRequest::new(MessageType::DelSa, NetlinkFlags::empty()).body(&raw);
    request.attribute(AttributeType::SrcAddr, &state.source);
    if let Some(mark) = mark {
        request.parts(AttributeType::Mark as u16, &[mark]);
    }
    request
}

fn info(words: &StateArgs) -> RawSa {
    RawSa {
        selector: words.selector.as_ref().map_or_else(RawSelector::new_zeroed, raw_selector),
        id: raw_id(words.id),
        source: client::raw(words.source),
        limits: client::limits(&words.limits),
        seq: words.acquire_seq.to_be(),
        reqid: words.reqid.0,
        family: client::family_number(Family::of(words.id.destination)),
        mode: client::mode_number(words.mode),
        replay_window: if is_short(words) { window_bits(words) } else { 0 },
        flags: words.flags.bits(),
        ..RawSa::new_zeroed()
    }
}

fn raw_id(id: SaId) -> RawId {
    RawId {
        destination: client::raw(id.destination),
        spi: id.spi.0.into(),
        protocol: id.protocol.number(),
        pad: [0; 3],
    }
}

/// Without addresses it has no family: the server gives it the state's.
fn raw_selector(words: &SelectorFilter) -> RawSelector {
    let raw = client::selector(&words.selector(Family::V4));
    RawSelector { family: words.family.map_or(0, client::family_number), ..raw }
}

fn put_part(request: &mut NetlinkRequest, part: &StateClause, family: Family) {
    match part {
        StateClause::Encap(words) => {
            request.attribute(AttributeType::Encap, &client::raw_encap(&udp_encap(*words, family)));
        }
        StateClause::CareOf(address) => {
            request.attribute(AttributeType::CoAddr, &client::raw(*address));
        }
        StateClause::Context(text) => put_context(request, text),
        StateClause::Algorithm(algorithm) => put_algorithm(request, algorithm),
    }
}

fn udp_encap(words: EncapArgs, family: Family) -> UdpEncap {
    UdpEncap {
        kind: words.kind,
        source_port: words.source_port,
        destination_port: words.destination_port,
        original_address: words.original_address.unwrap_or_else(|| family.unspecified()),
    }
}

fn put_algorithm(request: &mut NetlinkRequest, algorithm: &Algorithm) {
    let name = client::padded_name(algorithm.name());
    // A key has at most 512 bytes.
    let key_bits = u32::try_from(algorithm.key_bits()).unwrap_or(u32::MAX);
    let kind = match algorithm.kind {
        AlgorithmKind::Enc => AttributeType::AlgCrypt,
        AlgorithmKind::Auth => AttributeType::AlgAuth,
        AlgorithmKind::AuthTrunc => AttributeType::AlgAuthTrunc,
        AlgorithmKind::Comp => AttributeType::AlgComp,
        AlgorithmKind::Aead => AttributeType::AlgAead,
    };
    let key = algorithm.key.expose();
    match algorithm.bits {
        Some(icv_bits) => {
            let raw = RawSizedAlgorithm { name, key_bits, icv_bits };
            request.parts(kind as u16, &[raw.as_bytes(), key]);
        }
        None => {
            request.parts(kind as u16, &[RawAlgorithm { name, key_bits }.as_bytes(), key]);
        }
    }
}

fn is_short(words: &StateArgs) -> bool {
    !words.flags.contains(SaFlags::ESN) && words.replay.window <= SHORT_WINDOW
}

fn window_bits(words: &StateArgs) -> u8 {
    u8::try_from(words.replay.window).unwrap_or(0)
}

/// The long form has room for the window but no bitmap: the server makes one.
fn put_replay(request: &mut NetlinkRequest, words: &StateArgs) {
    let ([received, received_high], [sent, sent_high]) = (words.replay.received, words.replay.sent);
    if is_short(words) {
        if received != 0 || sent != 0 {
            let raw = RawReplay { sent, received, bitmap: 0 };
            request.attribute(AttributeType::ReplayVal, &raw);
        }
        return;
    }
    let window = words.replay.window;
    let words = window.div_ceil(32);
    let raw = RawReplayEsn { words, sent, received, sent_high, received_high, window };
    request.attribute(AttributeType::ReplayEsnVal, &raw);
}

fn put_output_mark(request: &mut NetlinkRequest, words: OutputMarkArgs) {
    let (Mark { value, mask }, [sends_value, sends_mask]) = match words {
        OutputMarkArgs::Usual(mark) => (mark, [mark.value != 0, mark.mask != 0]),
        OutputMarkArgs::Exact(mark) => (mark, [mark != Mark::default(); 2]),
    };
    if sends_value {
        request.attribute(AttributeType::SetMark, &value);
    }
    if sends_mask {
        request.attribute(AttributeType::SetMarkMask, &mask);
    }
}

fn put_direction(request: &mut NetlinkRequest, direction: Option<Direction>) {
    if let Some(direction) = direction {
        request.attribute(AttributeType::SaDir, &client::direction_number(direction));
    }
}

fn put_pcpu(request: &mut NetlinkRequest, pcpu: Option<u32>) {
    if let Some(number) = pcpu {
        request.attribute(AttributeType::SaPcpu, &number);
    }
}
