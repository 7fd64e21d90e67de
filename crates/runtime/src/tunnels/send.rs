//! Stage 2: from a TUN through its tunnel and out.

use std::net::SocketAddr;

use uxfrm_engine::{FragmentPlan, fragment};
use uxfrm_io::{Port as _, wire_packets};
use uxfrm_packet::{IpPacket, PacketBuf, SegmentPlan, Segments, SizeClass, Version};
use uxfrm_tunnel::{DropReason, Outer};

use super::{
    TunnelLoop,
    drop_tally::DropTally,
    now, transmit,
    tunnel_port::{TunnelInterface, TunnelRoute},
};

impl TunnelLoop {
    /// Sends a batch from a TUN.
    pub(super) fn send(&mut self, index: usize) {
        self.interfaces[index].expire_pmtu(now());
        let mut batch = std::mem::take(&mut self.batch);
        for packet in batch.drain() {
            match packet.segments {
                Segments::One => self.send_one(index, packet),
                Segments::Tcp { .. } | Segments::Udp { .. } => self.send_super(index, packet),
                Segments::Burst { .. } => {
                    self.tally(index).count(DropReason::OutSuper);
                    self.pool.give(packet);
                }
            }
        }
        self.batch = batch;
        let Self { interfaces, outgoing, to_network, drops, pool, .. } = self;
        let tally = DropTally { all: drops, own: &interfaces[index].interface.counts.drops };
        let narrow = transmit(outgoing, to_network, tally, pool);
        self.interfaces[index].learn_pmtu(narrow, now());
        self.deliver(index);
    }

    fn send_super(&mut self, index: usize, packet: PacketBuf) {
        if !self.send_gso_bursts(index, &packet) {
            self.send_segments(index, &packet);
        }
        self.pool.give(packet);
    }

    /// Sends a super-packet as GSO bursts; `false`, with nothing sent, where it must be segmented.
    fn send_gso_bursts(&mut self, index: usize, packet: &PacketBuf) -> bool {
        let Self { interfaces, outgoing, gso_sockets, bursts, to_network, drops, pool, .. } = self;
        let TunnelInterface { route: TunnelRoute { tunnel, egress, local }, counts, .. } =
            &interfaces[index].interface;
        // A refused super-packet is segmented: then each segment is refused, counted and reported.
        let Ok(outer) = tunnel.encapsulate_super(packet, egress, pool, bursts) else {
            return false;
        };
        let socket = outer.udp.and_then(|ends| {
            let local = SocketAddr::new(*local, ends.source);
            gso_sockets.bound_to(local, ends.checksum, outer.ttl)
        });
        let Some(socket) = socket else {
            pool.give_all(bursts);
            return false;
        };
        counts.traffic.sent.add(bursts.as_slice().iter().map(wire_packets).sum(), packet.len());
        // Earlier packets of the flow leave first.
        let tally = DropTally { all: drops, own: &counts.drops };
        let narrow = transmit(outgoing, to_network, tally, pool);
        let sent = socket.transmit(bursts, pool);
        tally.count_refused(DropReason::OutRefused, &sent);
        interfaces[index].learn_pmtu(sent.refused.path.or(narrow), now());
        true
    }

    fn send_segments(&mut self, index: usize, packet: &PacketBuf) {
        let Ok(plan) = SegmentPlan::new(packet) else {
            return self.tally(index).count(DropReason::OutSuper);
        };
        for k in 0..plan.count() {
            let mut piece = self.pool.take(SizeClass::holding(plan.len(k)));
            let room = piece.append(plan.len(k));
            if room.and_then(|out| plan.write(k, packet.bytes(), out)).is_some() {
                self.send_one(index, piece);
            } else {
                self.tally(index).count(DropReason::OutSuper);
                self.pool.give(piece);
            }
        }
    }

    fn send_one(&mut self, index: usize, mut packet: PacketBuf) {
        let tunnel_port = &mut self.interfaces[index];
        let len = packet.len();
        let TunnelInterface { route: TunnelRoute { tunnel, egress, local }, counts, .. } =
            &tunnel_port.interface;
        let made = tunnel.encapsulate(&mut packet, egress).and_then(|outer| {
            let outer = Outer { source: *local, ..outer };
            outer.push(&mut packet)?;
            Ok(outer)
        });
        match made {
            Ok(outer) => {
                counts.traffic.sent.add(1, len);
                let mtu = egress.path_mtu;
                self.enqueue(packet, &outer, mtu);
            }
            Err(refused) => {
                DropTally { all: &self.drops, own: &counts.drops }.count(refused.reason);
                let told = refused.tell.and_then(|tell| tell.about(packet.bytes(), &mut self.pool));
                told.into_iter().for_each(|told| tunnel_port.to_tun.push(told));
                self.pool.give(packet);
            }
        }
    }

    /// Queues a packet for the network, fragmented if it exceeds the path MTU and may be.
    fn enqueue(&mut self, packet: PacketBuf, outer: &Outer, mtu: usize) {
        let to_network = &mut self.to_network[usize::from(outer.destination.is_ipv6())];
        let may_be_cut = !outer.dont_fragment || outer.destination.is_ipv6();
        if packet.len() <= mtu || !may_be_cut {
            return to_network.push(packet);
        }
        if let Ok(ip) = IpPacket::parse(packet.bytes()) {
            self.ident = self.ident.wrapping_add(1);
            let (place, next_header_at) = match ip.version {
                Version::V4 => (ip.header_len, 9),
                Version::V6 => (ip.esp_offset, ip.next_header_at),
            };
            let cut =
                FragmentPlan { version: ip.version, place, next_header_at, mtu, ident: self.ident };
            fragment(packet.bytes(), &cut, packet.mark, &mut self.pool, to_network);
        }
        self.pool.give(packet);
    }
}
