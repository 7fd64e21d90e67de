//! Filters received batches down to the gateway's packets: single packets and bursts, with complete
//! checksums, and with the TTL decremented where they are forwarded.

use uxfrm_engine::DropReason;
use uxfrm_io::ike;
use uxfrm_packet::{
    IpPacket, PacketBuf, SegmentPlan, Segments, SizeClass, Version, checksum, ipv4::Ipv4,
};

use super::{
    InlineLoop, nested_gso,
    router::{PacketClass, classify, classify_on_wire, decrement_ttl, into_gso_burst},
};

impl InlineLoop {
    /// Keeps the packets from the protected port that are to be forwarded, TTL decremented.
    pub(super) fn filter_protected(&mut self) {
        let spare = std::mem::take(&mut self.spare);
        let mut batch = std::mem::replace(&mut self.batch, spare);
        for mut packet in batch.drain() {
            let Some(ip) = self.parse_checked(&packet) else {
                self.drop_packet(packet, DropReason::ForwardMalformed);
                continue;
            };
            match classify(&ip, &self.worker.settings().addresses) {
                PacketClass::Host | PacketClass::Esp => self.pool.give(packet),
                PacketClass::Martian => self.drop_packet(packet, DropReason::ForwardMartian),
                PacketClass::Forward if ip.ttl <= 1 => self.reject_expired(packet, &ip),
                PacketClass::Forward => {
                    decrement_ttl(&mut packet);
                    if nested_gso::is_nested(&packet, &ip) {
                        self.segment_nested(packet);
                    } else {
                        self.batch.push(packet);
                    }
                }
            }
        }
        self.spare = batch;
    }

    /// Keeps ESP for the gateway and forwarded packets from the wire, as single packets and bursts
    /// with complete checksums.
    pub(super) fn filter_wire(&mut self) {
        let spare = std::mem::take(&mut self.spare);
        let mut batch = std::mem::replace(&mut self.batch, spare);
        for packet in batch.drain() {
            let Ok(ip) = IpPacket::parse(packet.bytes()) else {
                self.drop_packet(packet, DropReason::InMalformed);
                continue;
            };
            let settings = self.worker.settings();
            let (own, ports) = (&settings.addresses, &settings.encap_ports);
            match classify_on_wire(&ip, packet.bytes(), own, ports) {
                PacketClass::Host => self.pool.give(packet),
                PacketClass::Martian => self.drop_packet(packet, DropReason::ForwardMartian),
                PacketClass::Esp | PacketClass::Forward if packet.segments == Segments::One => {
                    self.push_single(packet);
                }
                PacketClass::Esp => match into_gso_burst(packet, &ip) {
                    Ok(burst) => self.push_gso_burst(burst),
                    Err(packet) => self.segment(packet),
                },
                PacketClass::Forward if nested_gso::is_nested(&packet, &ip) => {
                    self.segment_nested(packet);
                }
                PacketClass::Forward => self.segment(packet),
            }
        }
        self.spare = batch;
    }

    fn push_single(&mut self, mut packet: PacketBuf) {
        match checksum::complete(&mut packet) {
            Ok(()) => self.batch.push(packet),
            Err(_outside) => self.drop_packet(packet, DropReason::InMalformed),
        }
    }

    /// Takes IKE messages out of a burst first: GRO joins any datagrams of a flow, and the host's
    /// stack got none of these, as the first one is ESP.
    fn push_gso_burst(&mut self, mut burst: PacketBuf) {
        let port = burst.udp.map(|path| path.local.port());
        let daemons = self.ports.daemons.iter().find(|daemons| Some(daemons.port) == port);
        match daemons {
            Some(daemons) if !ike::take(&mut burst, &daemons.messages) => self.pool.give(burst),
            Some(_) | None => self.batch.push(burst),
        }
    }

    /// Segments a super-packet, since policies apply to packets.
    fn segment(&mut self, packet: PacketBuf) {
        let Ok(plan) = SegmentPlan::new(&packet) else {
            return self.segment_nested(packet);
        };
        for k in 0..plan.count() {
            let mut piece = self.pool.take(SizeClass::holding(plan.len(k)));
            let room = piece.append(plan.len(k));
            if room.and_then(|room| plan.write(k, packet.bytes(), room)).is_some() {
                self.batch.push(piece);
            } else {
                self.drop_packet(piece, DropReason::ForwardSuper);
            }
        }
        self.pool.give(packet);
    }

    /// Segments a tunnel's super-packet; drops anything else.
    fn segment_nested(&mut self, packet: PacketBuf) {
        match nested_gso::segment(packet, &mut self.pool) {
            Ok(pieces) => pieces.into_iter().for_each(|piece| self.batch.push(piece)),
            Err(packet) => self.drop_packet(packet, DropReason::ForwardSuper),
        }
    }

    /// Parses a packet that a router may forward.
    fn parse_checked(&self, packet: &PacketBuf) -> Option<IpPacket> {
        let bytes = packet.bytes();
        let ip = IpPacket::parse(bytes).ok()?;
        let is_right = match ip.version {
            Version::V4 => Ipv4::parse(bytes).is_ok_and(|packet| packet.checksum_is_right()),
            Version::V6 => true,
        };
        is_right.then_some(ip)
    }
}
