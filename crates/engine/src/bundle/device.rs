//! Whether the outermost SA of a chain is offloaded (`net/xfrm/xfrm_device.c: xfrm_dev_offload_ok`,
//! as far as it does not depend on the packet).

use super::ChainSas;
use crate::esp::encap::EncapLayer;
use crate::{
    Attachment, DropReason, KeyManagers, Mark, OffloadKind, OffloadOrder, OffloadTask,
    OutboundQuery, Snapshot,
};

/// The outermost SA's attachment, if it is offloaded. UDP encapsulation excludes crypto offload:
/// that is done in software.
///
/// # Errors
/// [`DropReason::OutDeviceUnfit`]: an SA with packet offload is nested with others, which no device
/// supports.
pub(super) fn device_of(states: &ChainSas<'_>) -> Result<Option<Attachment>, DropReason> {
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

/// Handover for packet offload, if no SA has an output mark.
pub(super) fn plain_handover(device: Attachment, layers: &[EncapLayer]) -> Option<OffloadOrder> {
    let marks = layers.iter().any(|layer| layer.output_mark != Mark::default());
    (device.kind == OffloadKind::Packet && !marks).then(|| device.over(OffloadTask::Protect))
}

/// Whether an SA is missing only because it is on another device than the policy, and there is no
/// key manager to ask.
pub(super) fn is_on_other_device(snapshot: &Snapshot, query: &OutboundQuery<'_>) -> bool {
    snapshot.acquires.key_managers == KeyManagers::Absent
        && snapshot.sad.exists_on_other_device(query)
}
