//! Packets of hosts, from one gateway to another.

use std::net::IpAddr;

use uxfrm_engine::DropReason;
use uxfrm_packet::PacketBuf;
use uxfrm_testkit::packets;

use super::{
    kernel::SendPath,
    names::{Net, inner, site_of},
    static_keys::STATIC,
    traffic_record::Esp,
    world::{CHURN, World},
};

impl World {
    /// A random host sends packets to another.
    pub(super) fn host_sends(&mut self) {
        let from = self.some_site();
        let to = self.another_site(from);
        let net = match self.rng.below(10) {
            0..4 => 0,
            4..8 => STATIC,
            _ => CHURN.start + u8::try_from(self.rng.below(CHURN.len())).unwrap(),
        };
        for _ in 0..=self.rng.below(4) {
            self.send_one((from, net), (to, net));
        }
    }

    pub(super) fn send_one(&mut self, from: Net, to: Net) {
        let site = from.0;
        if !self.known[site].is_on {
            return;
        }
        let payload = self.traffic.payload(from, to);
        let packet = plain(from, to, &payload);
        match self.sites[site].kernel.send_path(packet.bytes()) {
            SendPath::Tun => {
                let worker = self.rng.below(2);
                let Some(run) = &mut self.sites[site].run else { return };
                let sent = run.outbound(vec![packet], worker);
                self.send(site, sent);
            }
            SendPath::Device => self.send(site, vec![packet]),
            SendPath::Nowhere => {}
        }
    }

    /// Puts a gateway's packets on the wire.
    pub(super) fn send(&mut self, site: usize, packets: Vec<PacketBuf>) {
        for packet in packets {
            self.traffic.sent(site, packet.bytes());
            let Self { wire, rng, .. } = self;
            wire.take(packet.bytes(), rng);
        }
    }

    pub(super) fn wire_brings(&mut self, count: usize) {
        for _ in 0..count {
            let Some(packet) = self.wire.bring(&mut self.rng) else { return };
            self.arrive(&packet);
        }
    }

    /// Delivers a packet to its gateway.
    pub(super) fn arrive(&mut self, packet: &[u8]) {
        let to = IpAddr::from([packet[16], packet[17], packet[18], packet[19]]);
        let Some(site) = site_of(to).filter(|site| *site < self.sites.len()) else { return };
        let Some(esp) = Esp::read(packet) else {
            if self.known[site].is_on && self.sites[site].kernel.lets_in(packet) {
                self.traffic.let_in(site, packet);
            }
            return;
        };
        let worker = self.rng.below(2);
        let Some(run) = &mut self.sites[site].run else { return };
        let arrival = run.inbound(PacketBuf::from_slice(packet), worker);
        for packet in &arrival.delivered {
            self.traffic.received(site, packet);
        }
        for (reason, _) in &arrival.drops {
            // A device may have put another packet before this one.
            if *reason == DropReason::InBeforeRestart
                && self.sites[site].offload.is_none()
                && let Some(head) = self.known[site].highest_received.get(&esp.name)
            {
                let was_new = u64::from(esp.number) > *head;
                assert!(!was_new, "{site} refuses {esp:?} as if it had come before, up to {head}");
            }
        }
        self.note(|| {
            format!("{site} gets {} of {:x}: {:?}", esp.number, esp.name.1, arrival.drops)
        });
    }
}

/// A plain packet from one host to another.
pub(super) fn plain((site, net): Net, (peer, far): Net, payload: &[u8]) -> PacketBuf {
    let [from, to] = [inner(site, net), inner(peer, far)].map(|address| format!("{address}:7"));
    packets::udp(&from, &to, payload)
}
