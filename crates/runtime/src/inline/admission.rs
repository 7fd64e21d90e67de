//! What comes in by a port, and of that what is for the gateway: single packets and trains that are whole, with checksums, one hop less where they
//! are forwarded.

use uxfrm_engine::DropReason;
use uxfrm_io::ike;
use uxfrm_packet::{
    IpPacket, PacketBuf, SegmentPlan, Segments, SizeClass, Version, checksum, ipv4::Ipv4,
};

use super::{
    InlineLane, nested,
    router::{Claim, claim, claim_on_wire, take_hop, train},
};

impl InlineLane {
    /// Keeps of a batch from the protected port what is to be forwarded, one hop less.
    pub(super) fn admit(&mut self) {
        let kept = std::mem::take(&mut self.kept);
        let mut batch = std::mem::replace(&mut self.batch, kept);
        for mut packet in batch.drain() {
            let Some(ip) = self.checked(&packet) else {
                self.discard(packet, DropReason::ForwardMalformed);
                continue;
            };
            match claim(&ip, &self.worker.settings().addresses) {
                Claim::Host | Claim::Protected => self.pool.give(packet),
                Claim::Martian => self.discard(packet, DropReason::ForwardMalformed),
                Claim::Passing if ip.ttl <= 1 => self.expire(packet, &ip),
                Claim::Passing => {
                    take_hop(&mut packet);
                    if nested::is_nested(&packet, &ip) {
                        self.cut_nested(packet, DropReason::ForwardMalformed);
                    } else {
                        self.batch.push(packet);
                    }
                }
            }
        }
        self.kept = batch;
    }

    /// Keeps of a batch from the wire what is ESP for the gateway or passes, in single packets and trains, with checksums.
    pub(super) fn admit_from_wire(&mut self) {
        let kept = std::mem::take(&mut self.kept);
        let mut batch = std::mem::replace(&mut self.batch, kept);
        for packet in batch.drain() {
            let Ok(ip) = IpPacket::parse(packet.bytes()) else {
                self.discard(packet, DropReason::InMalformed);
                continue;
            };
            let settings = self.worker.settings();
            let (own, ports) = (&settings.addresses, &settings.encap_ports);
            match claim_on_wire(&ip, packet.bytes(), own, ports) {
                Claim::Host => self.pool.give(packet),
                Claim::Martian => self.discard(packet, DropReason::ForwardMalformed),
                Claim::Protected | Claim::Passing if packet.segments == Segments::One => {
                    self.admit_one(packet);
                }
                Claim::Protected => match train(packet, &ip) {
                    Ok(train) => self.admit_train(train),
                    Err(packet) => self.cut(packet),
                },
                Claim::Passing if nested::is_nested(&packet, &ip) => {
                    self.cut_nested(packet, DropReason::InMalformed);
                }
                Claim::Passing => self.cut(packet),
            }
        }
        self.kept = batch;
    }

    fn admit_one(&mut self, mut packet: PacketBuf) {
        match checksum::complete(&mut packet) {
            Ok(()) => self.batch.push(packet),
            Err(_outside) => self.discard(packet, DropReason::InMalformed),
        }
    }

    /// Takes the IKE messages out of a train first: a device joins datagrams of a flow whatever they are, and the host's stack has been kept from
    /// all of these, as the first one is ESP.
    fn admit_train(&mut self, mut train: PacketBuf) {
        let port = train.udp.map(|path| path.local.port());
        let daemons = self.ports.daemons.iter().find(|daemons| Some(daemons.port) == port);
        match daemons {
            Some(daemons) if !ike::take(&mut train, &daemons.messages) => self.pool.give(train),
            Some(_) | None => self.batch.push(train),
        }
    }

    /// Takes a super-packet apart: the policies are asked about packets.
    fn cut(&mut self, packet: PacketBuf) {
        let Ok(plan) = SegmentPlan::new(&packet) else {
            return self.cut_nested(packet, DropReason::InMalformed);
        };
        for k in 0..plan.count() {
            let mut piece = self.pool.take(SizeClass::holding(plan.len(k)));
            let room = piece.append(plan.len(k));
            if room.and_then(|room| plan.write(k, packet.bytes(), room)).is_some() {
                self.batch.push(piece);
            } else {
                self.discard(piece, DropReason::InMalformed);
            }
        }
        self.pool.give(packet);
    }

    /// Takes a super-packet of a tunnel apart, or drops what is no such thing.
    fn cut_nested(&mut self, packet: PacketBuf, reason: DropReason) {
        match nested::cut(packet, &mut self.pool) {
            Ok(pieces) => pieces.into_iter().for_each(|piece| self.batch.push(piece)),
            Err(packet) => self.discard(packet, reason),
        }
    }

    /// A packet's header, if a router may go by it.
    fn checked(&self, packet: &PacketBuf) -> Option<IpPacket> {
        let bytes = packet.bytes();
        let ip = IpPacket::parse(bytes).ok()?;
        let is_right = match ip.version {
            Version::V4 => Ipv4::parse(bytes).is_ok_and(|packet| packet.checksum_is_right()),
            Version::V6 => true,
        };
        is_right.then_some(ip)
    }
}
