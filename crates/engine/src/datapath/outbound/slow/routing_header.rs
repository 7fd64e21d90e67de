//! Stage 4 of packets that would leave in plaintext and have an IPv6 routing header.
//!
//! Policies match the next hop, as in Linux, which forwards the packet as it is. So such a packet
//! must not leave in plaintext if any later hop is a destination that some policy protects or
//! blocks.

use uxfrm_packet::{PacketBuf, routing};

use crate::FlowKey;
use crate::datapath::context::BatchContext;

/// Whether a later hop of the packet may not be reached in plaintext, or cannot be determined.
#[cold]
pub(crate) fn routes_around_policy(
    packet: &PacketBuf,
    flow: &FlowKey,
    ctx: &BatchContext<'_>,
) -> bool {
    if flow.destination.is_ipv4() {
        return false;
    }
    let (spd, mut is_refused) = (&ctx.snapshot.spd, false);
    let told = routing::each_stop(packet.bytes(), |stop| {
        is_refused |= spd.forbids_plaintext(&FlowKey { destination: stop.into(), ..*flow });
    });
    is_refused || (told.is_err() && spd.forbids_any_v6_plaintext())
}
