//! 3 From a socket out of its tunnels to their TUNs; 4 what ICMP errors tell, back to inner senders.

use uxfrm_io::wire_packets;
use uxfrm_packet::{Notes, PacketBuf, Protocol, Segments, SizeClass};
use uxfrm_tunnel::{DropReason, Event, Inside, Part};

use super::{TunnelLane, now, side::Side, side_of, socket::Incoming, tally::Tally, transmit};

impl TunnelLane {
    /// Hands on what a socket received.
    pub(super) fn receive(&mut self, ear: usize) {
        let mut batch = std::mem::take(&mut self.batch);
        for packet in batch.drain() {
            let count = &self.incoming[ear].incoming.counts.received;
            count.add(wire_packets(&packet), packet.len());
            match packet.segments {
                Segments::Train { .. } => self.receive_train(packet, ear),
                Segments::One | Segments::Tcp { .. } | Segments::Udp { .. } => {
                    self.receive_one(packet, ear);
                }
            }
        }
        self.batch = batch;
        let Self { incoming, outgoing, leaving, drops, pool, .. } = self;
        let tally = Tally { all: drops, own: &incoming[ear].incoming.counts.drops };
        // To the host itself, whose loopback takes all.
        let _no_path = transmit(outgoing, leaving, tally, pool);
        for index in 0..self.interfaces.len() {
            let Side { coalescer, arriving, .. } = &mut self.interfaces[index];
            coalescer.flush(arriving);
            self.deliver(index);
        }
    }

    fn receive_one(&mut self, mut packet: PacketBuf, ear: usize) {
        let Incoming { source, counts, .. } = &self.incoming[ear].incoming;
        let (device, tally) = (source.device(), Tally { all: &self.drops, own: &counts.drops });
        let tunnel = match self.tunnels.receive(&mut packet, device, &self.ports) {
            Ok(Inside::Tunnel(tunnel)) => tunnel,
            // To our own address, as ESP without UDP: so whoever takes ESP here gets it (`fou_udp_recv` returns the protocol to the IP layer).
            // Nothing else: it would come by loopback, where the inbound guard lets everything pass.
            Ok(Inside::Other(Protocol::ESP)) => {
                let is_v6 = packet.bytes().first().is_some_and(|first| first >> 4 == 6);
                return self.leaving[usize::from(is_v6)].push(packet);
            }
            Ok(Inside::Other(_)) => {
                tally.count(DropReason::InUnclaimed);
                return self.pool.give(packet);
            }
            Err(reason) => {
                tally.count(reason);
                return self.pool.give(packet);
            }
        };
        if let Some(side) = side_of(&mut self.interfaces, tunnel) {
            side.note_joined(&mut packet);
            side.interface.counts.traffic.received.add(1, packet.len());
            side.coalescer.offer(packet, &mut self.pool, &mut side.arriving);
        }
    }

    fn receive_train(&mut self, mut train: PacketBuf, ear: usize) {
        let Self { tunnels, ports, interfaces, incoming, pool, drops, others, .. } = self;
        let Incoming { source, counts, .. } = &incoming[ear].incoming;
        let (device, tally) = (source.device(), Tally { all: drops, own: &counts.drops });
        let (path, checksum) = (train.udp, train.checksum);
        tunnels.receive_train(&mut train, device, ports, |part| match part {
            Part::Inner(inner) => {
                if let Some(side) = side_of(interfaces, inner.tunnel) {
                    side.interface.counts.traffic.received.add(1, inner.bytes.len());
                    let notes: Notes = inner.notes;
                    side.coalescer.offer_slice(inner.bytes, notes, pool, &mut side.arriving);
                }
            }
            Part::Other(bytes) => {
                let mut packet = pool.take(SizeClass::holding(bytes.len()));
                (packet.udp, packet.checksum) = (path, checksum);
                let Some(room) = packet.append(bytes.len()) else {
                    tally.count(DropReason::InMalformed);
                    return pool.give(packet);
                };
                room.copy_from_slice(bytes);
                others.push(packet);
            }
            Part::Dropped(reason) => tally.count(reason),
        });
        self.pool.give(train);
        let mut others = std::mem::take(&mut self.others);
        others.drain(..).for_each(|packet| self.receive_one(packet, ear));
        self.others = others;
    }

    /// Learns from ICMP errors, and tells inner senders.
    pub(super) fn learn(&mut self) {
        let mut batch = std::mem::take(&mut self.batch);
        for error in batch.drain() {
            // Most are about other traffic of the host: those are no drops.
            if let Ok(news) = self.tunnels.translate(error.bytes())
                && let Some(side) = side_of(&mut self.interfaces, news.tunnel)
            {
                if let Event::PathMtu(mtu) = news.event {
                    side.narrow(mtu, now());
                }
                let told = news.told(error.bytes(), &mut self.pool);
                told.into_iter().for_each(|told| side.arriving.push(told));
            }
            self.pool.give(error);
        }
        self.batch = batch;
        for index in 0..self.interfaces.len() {
            self.deliver(index);
        }
    }
}
