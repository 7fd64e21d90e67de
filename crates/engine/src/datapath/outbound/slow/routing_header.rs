//! 4 Verdict, of packets that leave plain and that IPv6 routing headers lead on.
//!
//! Policies are asked about the next hop, as in Linux, which sends the packet on as it came. So it
//! is not to leave plain if it comes at last, or on its way, to where a policy lets none go plain.

use uxfrm_packet::{PacketBuf, routing};

use crate::FlowKey;
use crate::datapath::context::Bench;
use crate::datapath::outbound::Outbound;

impl Outbound {
    /// Whether a packet that may go to its next hop is led on to where it may not go plain, or to
    /// where nobody can tell.
    #[cold]
    pub(crate) fn is_led_astray(packet: &PacketBuf, flow: &FlowKey, bench: &Bench<'_>) -> bool {
        if flow.destination.is_ipv4() {
            return false;
        }
        let (spd, mut is_refused) = (&bench.snapshot.spd, false);
        let told = routing::each_stop(packet.bytes(), |stop| {
            is_refused |= spd.keeps_from(&FlowKey { destination: stop.into(), ..*flow });
        });
        is_refused || (told.is_err() && spd.keeps_any_v6())
    }
}
