//! Stages 3 and 4: from a socket out of its tunnels to their TUNs; ICMP errors back to inner
//! senders.

use uxfrm_io::wire_packets;
use uxfrm_packet::{PacketBuf, Protocol, Segments, SizeClass, SliceMeta};
use uxfrm_tunnel::{BurstPart, Decapsulation, DropReason, PathEvent};

use super::{
    TunnelLoop, drop_tally::DropTally, now, port_of, socket::ReceivePort, transmit,
    tunnel_port::TunnelPort,
};

impl TunnelLoop {
    /// Decapsulates a received batch.
    pub(super) fn receive(&mut self, socket: usize) {
        let mut batch = std::mem::take(&mut self.batch);
        for packet in batch.drain() {
            let count = &self.incoming[socket].incoming.counts.received;
            count.add(wire_packets(&packet), packet.len());
            match packet.segments {
                Segments::Burst { .. } => self.receive_burst(packet, socket),
                Segments::One | Segments::Tcp { .. } | Segments::Udp { .. } => {
                    self.receive_one(packet, socket);
                }
            }
        }
        self.batch = batch;
        let Self { incoming, outgoing, to_network, drops, pool, .. } = self;
        let tally = DropTally { all: drops, own: &incoming[socket].incoming.counts.drops };
        // To this host, over loopback.
        let _no_path = transmit(outgoing, to_network, tally, pool);
        for index in 0..self.interfaces.len() {
            let TunnelPort { coalescer, to_tun, .. } = &mut self.interfaces[index];
            coalescer.flush(to_tun);
            self.deliver(index);
        }
    }

    fn receive_one(&mut self, mut packet: PacketBuf, socket: usize) {
        let ReceivePort { source, counts, .. } = &self.incoming[socket].incoming;
        let (device, tally) = (source.device(), DropTally { all: &self.drops, own: &counts.drops });
        let tunnel = match self.tunnels.receive(&mut packet, device, &self.ports) {
            Ok(Decapsulation::Tunnel(tunnel)) => tunnel,
            // ESP without UDP goes to our own address, to any receiver of ESP (`fou_udp_recv`
            // returns the protocol to the IP layer). Nothing else may: it would come by loopback,
            // where the inbound guard accepts everything.
            Ok(Decapsulation::Other(Protocol::ESP)) => {
                let is_v6 = packet.bytes().first().is_some_and(|first| first >> 4 == 6);
                return self.to_network[usize::from(is_v6)].push(packet);
            }
            Ok(Decapsulation::Other(_)) => {
                tally.count(DropReason::InUnclaimed);
                return self.pool.give(packet);
            }
            Err(reason) => {
                tally.count(reason);
                return self.pool.give(packet);
            }
        };
        if let Some(tunnel_port) = port_of(&mut self.interfaces, tunnel) {
            tunnel_port.mark_gro(&mut packet);
            tunnel_port.interface.counts.traffic.received.add(1, packet.len());
            tunnel_port.coalescer.offer(packet, &mut self.pool, &mut tunnel_port.to_tun);
        }
    }

    fn receive_burst(&mut self, mut burst: PacketBuf, socket: usize) {
        let Self { tunnels, ports, interfaces, incoming, pool, drops, others, .. } = self;
        let ReceivePort { source, counts, .. } = &incoming[socket].incoming;
        let (device, tally) = (source.device(), DropTally { all: drops, own: &counts.drops });
        let (path, checksum) = (burst.udp, burst.checksum);
        tunnels.receive_burst(&mut burst, device, ports, |part| match part {
            BurstPart::InnerPacket(inner) => {
                if let Some(tunnel_port) = port_of(interfaces, inner.tunnel) {
                    tunnel_port.interface.counts.traffic.received.add(1, inner.bytes.len());
                    let notes: SliceMeta = inner.notes;
                    tunnel_port.coalescer.offer_slice(
                        inner.bytes,
                        notes,
                        pool,
                        &mut tunnel_port.to_tun,
                    );
                }
            }
            BurstPart::Other(bytes) => {
                let mut packet = pool.take(SizeClass::holding(bytes.len()));
                (packet.udp, packet.checksum) = (path, checksum);
                let Some(room) = packet.append(bytes.len()) else {
                    tally.count(DropReason::InMalformed);
                    return pool.give(packet);
                };
                room.copy_from_slice(bytes);
                others.push(packet);
            }
            BurstPart::Dropped(reason) => tally.count(reason),
        });
        self.pool.give(burst);
        let mut others = std::mem::take(&mut self.others);
        others.drain(..).for_each(|packet| self.receive_one(packet, socket));
        self.others = others;
    }

    /// Learns path MTUs from ICMP errors, and informs inner senders.
    pub(super) fn handle_icmp_errors(&mut self) {
        let mut batch = std::mem::take(&mut self.batch);
        for error in batch.drain() {
            // Most concern other traffic of the host and are no drops.
            if let Ok(report) = self.tunnels.translate(error.bytes())
                && let Some(tunnel_port) = port_of(&mut self.interfaces, report.tunnel)
            {
                if let PathEvent::PathMtu(mtu) = report.event {
                    tunnel_port.lower_pmtu(mtu, now());
                }
                let told = report.told(error.bytes(), &mut self.pool);
                told.into_iter().for_each(|told| tunnel_port.to_tun.push(told));
            }
            self.pool.give(error);
        }
        self.batch = batch;
        for index in 0..self.interfaces.len() {
            self.deliver(index);
        }
    }
}
