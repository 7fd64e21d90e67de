//! What routers say of paths: "too big" about what the gateway itself has sent. The host's stack gets the message as well, and knows better than we whether to
//! believe it; here it only tells that the kernel is to be asked.

use std::net::IpAddr;

use uxfrm_packet::{IpPacket, Protocol, icmp::Icmp, icmpv6::Icmpv6};

use super::InlineLane;

impl InlineLane {
    /// Looks at a packet that is the host's.
    pub(super) fn look_for_narrow_path(&mut self, ip: &IpPacket, packet: &[u8]) {
        if let Some((to, mtu)) = too_big(ip, packet) {
            self.worker.meet_narrow_path(to, mtu, &mut self.out.events);
        }
    }
}

/// Where the packet went that an ICMP error says was too big, and what does fit.
fn too_big(ip: &IpPacket, packet: &[u8]) -> Option<(IpAddr, u32)> {
    if ip.is_fragment() {
        return None;
    }
    match ip.protocol {
        Protocol::ICMP => {
            let Icmp { header, payload } = Icmp::parse(ip.upper(packet)).ok()?;
            let mtu = header.mtu()?;
            Some((IpAddr::from(*payload.get(16..)?.first_chunk::<4>()?), mtu.into()))
        }
        Protocol::ICMPV6 => {
            let Icmpv6 { header, payload } = Icmpv6::parse(ip.upper(packet)).ok()?;
            let mtu = header.mtu()?;
            Some((IpAddr::from(*payload.get(24..)?.first_chunk::<16>()?), mtu))
        }
        Protocol(_) => None,
    }
}
