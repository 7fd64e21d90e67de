//! MSS clamping: SYNs that go into a tunnel, or whose answers do, announce no segments that do not
//! fit there. For TCP on paths on which ICMP errors are lost.
//!
//! SYNs are rare: for each one policies and states are looked up without a cache, before or after
//! the data path, which does not know of it.

use uxfrm_packet::{IpPacket, PacketBuf, mss};

use super::{Worker, meet_host};
use crate::bundle::{self, Deciding};
use crate::{Action, Direction, FlowKey, MssClamp, Settings, Snapshot};

impl Worker {
    /// Whether its loop is to call [`Worker::clamp_outbound`] and [`Worker::clamp_inbound`].
    #[must_use]
    pub fn clamps_mss(&self) -> bool {
        self.settings.clamp_mss == MssClamp::On
    }

    /// Lowers the MSS of the SYNs among packets from the host to what their bundles take: the peer
    /// is to send no more, as its bundle takes about as much. Before [`Worker::outbound`].
    pub fn clamp_outbound(&mut self, packets: &mut [PacketBuf]) {
        self.clamp(packets, |flow| flow);
    }

    /// Lowers the MSS of the SYNs among packets for the host to what the bundles of their answers
    /// take. After [`Worker::inbound`].
    pub fn clamp_inbound(&mut self, packets: &mut [PacketBuf]) {
        self.clamp(packets, |flow| FlowKey { mark: 0, ..flow.reversed() });
    }

    fn clamp(&mut self, packets: &mut [PacketBuf], outbound: fn(FlowKey) -> FlowKey) {
        let snapshot = self.snapshots.load();
        meet_host(snapshot, &mut self.host, &mut self.settings);
        for packet in packets {
            if let Some(ip) = mss::parse_syn(packet) {
                let flow = outbound(FlowKey::of(packet, &ip, packet.bytes()));
                clamp_syn(packet, &ip, &flow, snapshot, &self.settings);
            }
        }
    }
}

#[cold]
fn clamp_syn(
    packet: &mut PacketBuf,
    ip: &IpPacket,
    flow: &FlowKey,
    snapshot: &Snapshot,
    settings: &Settings,
) {
    let deciding: Deciding<'_> = snapshot.spd.deciding(Direction::Out, flow).collect();
    let protects = deciding.iter().all(|entry| entry.action() == Action::Allow);
    let bundle = match protects {
        true => bundle::build(snapshot, &deciding, flow, settings, &mut Vec::new()).ok(),
        false => None,
    };
    if let Some(bundle) = bundle.filter(|bundle| !bundle.layers.is_empty()) {
        // Without the least MTU of IPv6: smaller segments spare fragments outside ESP.
        mss::lower(packet, ip, mss::fitting(ip.version, bundle.inner_mtu));
    }
}
