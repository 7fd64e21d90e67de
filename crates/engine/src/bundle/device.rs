//! Which device does the work of a chain's outermost state (`net/xfrm/xfrm_device.c: xfrm_dev_offload_ok`, as far as it does not hang on
//! the packet).

use super::States;
use crate::esp::encap::Layer;
use crate::{
    Attachment, DropReason, Handover, KeyManagers, Mark, OffloadKind, OutboundQuery, Snapshot, Task,
};

/// The place of the outermost state, if a device does its work. Without encapsulation in UDP where kind is *crypto*: that is done in software.
///
/// # Errors
/// [`DropReason::OutDeviceUnfit`]: a state of kind *packet* has others inside or outside, and no device takes that.
pub(super) fn device_of(states: &States<'_>) -> Result<Option<Attachment>, DropReason> {
    let Some(outermost) = states.last() else { return Ok(None) };
    if states.len() > 1 && states.iter().any(|sa| sa.packet_device().is_some()) {
        return Err(DropReason::OutDeviceUnfit);
    }
    let encapsulated = outermost.config().encap.is_some();
    Ok(outermost.attachment().filter(|place| match place.kind {
        OffloadKind::Packet => true,
        OffloadKind::Crypto => !encapsulated,
    }))
}

/// What packets of kind *packet* are handed over with, if no state lays a mark over theirs.
pub(super) fn as_it_is(device: Attachment, layers: &[Layer]) -> Option<Handover> {
    let marks = layers.iter().any(|layer| layer.output_mark != Mark::default());
    (device.kind == OffloadKind::Packet && !marks).then(|| device.over(Task::Protect))
}

/// Whether a packet lacks a state only because that is on another device than the policy, and nobody can be asked for the right one.
pub(super) fn is_amiss(snapshot: &Snapshot, query: &OutboundQuery<'_>) -> bool {
    snapshot.acquires.key_managers == KeyManagers::Absent && snapshot.sad.is_elsewhere(query)
}
