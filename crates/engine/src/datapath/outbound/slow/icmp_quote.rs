//! Stage 4 of ICMP errors that would leave in plaintext.
//!
//! They quote a packet, which a policy `in` or `fwd` may have protected on its way here. The host
//! routes some of them to uxfrm, from an address that no policy names.

use uxfrm_packet::{PacketBuf, Protocol};

use crate::datapath::context::BatchContext;
use crate::datapath::inbound::slow::icmp_flow::icmp_inner_flow;
use crate::{Direction, FlowKey, Spd, TemplateLevel};

/// Whether a packet is of a protocol whose errors quote.
pub(crate) fn may_quote(flow: &FlowKey) -> bool {
    matches!(Protocol(flow.protocol), Protocol::ICMP | Protocol::ICMPV6)
}

/// Whether the packet is an error about one that came in protected.
#[cold]
pub(crate) fn quotes_protected(packet: &PacketBuf, flow: &FlowKey, ctx: &BatchContext<'_>) -> bool {
    let Some(back) = icmp_inner_flow(packet.bytes(), flow) else { return false };
    let quoted = back.reversed();
    [Direction::In, Direction::Forward]
        .into_iter()
        .any(|direction| requires(&ctx.snapshot.spd, direction, &quoted))
}

fn requires(spd: &Spd, direction: Direction, flow: &FlowKey) -> bool {
    spd.deciding(direction, flow)
        .any(|entry| entry.templates().any(|template| template.level == TemplateLevel::Required))
}
