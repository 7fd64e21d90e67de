//! Encodes parts of states and policies.

use uxfrm_engine::{
    DeviceId, Direction, IfId, LifetimeLimits, Mark, Moment, OffloadKind, Selector,
};

use crate::{
    address::{family_number, raw},
    attribute::AttributeType,
    datagram::NetlinkDatagram,
    decode::state::{OFFLOAD_INBOUND, OFFLOAD_PACKET},
    layout::{RawLimits, RawMark, RawOffload, RawSelector},
};

/// Seconds since 1970 of a [`Moment`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calendar {
    /// Nanoseconds from 1970 to moment 0.
    pub(crate) start: u64,
}

/// Differences below this between two clocks read one after the other are no clock step: times in
/// answers must not waver.
const NO_STEP: u64 = 100_000_000;

impl Calendar {
    /// Follows the clock: `start` is moment 0 after a possible clock step.
    pub(crate) const fn follow(&mut self, start: u64) {
        if start.abs_diff(self.start) >= NO_STEP {
            self.start = start;
        }
    }

    pub(crate) const fn seconds(self, moment: Moment) -> u64 {
        self.start.saturating_add(moment.0) / 1_000_000_000
    }

    /// The moment of a second since 1970; at least moment 0.
    pub(crate) fn moment(self, seconds: u64) -> Moment {
        Moment(seconds.saturating_mul(1_000_000_000).saturating_sub(self.start))
    }

    /// Seconds since 1970; 0 for never.
    pub(crate) fn seconds_or_never(self, moment: Option<Moment>) -> u64 {
        moment.map_or(0, |moment| self.seconds(moment))
    }
}

/// The selector of a policy, or of a state that has one.
#[must_use]
pub fn selector(selector: &Selector) -> RawSelector {
    RawSelector {
        destination: raw(selector.destination.address()),
        source: raw(selector.source.address()),
        destination_port: selector.destination_port.value.into(),
        destination_port_mask: selector.destination_port.mask.into(),
        source_port: selector.source_port.value.into(),
        source_port_mask: selector.source_port.mask.into(),
        family: family_number(selector.family()),
        destination_len: selector.destination.prefix_len(),
        source_len: selector.source.prefix_len(),
        protocol: selector.protocol,
        pad: [0; 3],
        ifindex: selector.ifindex,
        user: selector.user,
    }
}

/// The selector of a state of any family.
pub(crate) fn no_selector() -> RawSelector {
    zerocopy::FromZeros::new_zeroed()
}

/// `struct xfrm_lifetime_cfg`
#[must_use]
pub const fn limits(limits: &LifetimeLimits) -> RawLimits {
    RawLimits {
        soft_bytes: limits.bytes.soft,
        hard_bytes: limits.bytes.hard,
        soft_packets: limits.packets.soft,
        hard_packets: limits.packets.hard,
        soft_added: limits.added_seconds.soft,
        hard_added: limits.added_seconds.hard,
        soft_used: limits.used_seconds.soft,
        hard_used: limits.used_seconds.hard,
    }
}

/// `XFRM_POLICY_IN`, `_OUT`, `_FWD`.
#[must_use]
pub const fn policy_direction(direction: Direction) -> u8 {
    match direction {
        Direction::In => 0,
        Direction::Out => 1,
        Direction::Forward => 2,
    }
}

pub(crate) fn put_mark(out: &mut NetlinkDatagram, mark: Mark) {
    if mark != Mark::default() {
        out.attribute(AttributeType::Mark, &RawMark { value: mark.value, mask: mark.mask });
    }
}

pub(crate) fn put_if_id(out: &mut NetlinkDatagram, if_id: IfId) {
    if if_id != IfId(0) {
        out.attribute(AttributeType::IfId, &if_id.0);
    }
}

/// `XFRMA_OFFLOAD_DEV` (`net/xfrm/xfrm_user.c: copy_user_offload`).
pub(crate) fn put_offload(
    out: &mut NetlinkDatagram,
    DeviceId(ifindex): DeviceId,
    kind: OffloadKind,
    direction: Direction,
) {
    let inbound = if direction == Direction::In { OFFLOAD_INBOUND } else { 0 };
    let packet = if kind == OffloadKind::Packet { OFFLOAD_PACKET } else { 0 };
    let raw = RawOffload { ifindex, flags: inbound | packet, pad: [0; 3] };
    out.attribute(AttributeType::OffloadDev, &raw);
}
