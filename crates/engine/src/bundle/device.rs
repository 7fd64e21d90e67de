//! Which device does the work of a chain's outermost state (`net/xfrm/xfrm_device.c: xfrm_dev_offload_ok`, as far as it does not hang on
//! the packet).

use super::States;
use crate::{Attachment, DropReason, KeyManagers, OffloadKind, OutboundQuery, Snapshot};

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

/// Whether a packet lacks a state only because that is on another device than the policy, and nobody can be asked for the right one.
pub(super) fn is_amiss(snapshot: &Snapshot, query: &OutboundQuery<'_>) -> bool {
    snapshot.acquires.key_managers == KeyManagers::Absent && snapshot.sad.is_elsewhere(query)
}
