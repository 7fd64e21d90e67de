//! Where packets go that have been checked: to the host, out by a port as frames, through the policies `out` first, or nowhere.

use std::net::IpAddr;

use uxfrm_engine::{Cut, DropReason, split};
use uxfrm_io::wire_packets;
use uxfrm_packet::{
    Batch, IpPacket, PacketBuf, Protocol, SegmentPlan, Segments, SizeClass, Version, checksum,
    ethernet::EthernetHeader,
};

use super::{
    InlineLane,
    router::{is_link_local, take_hop},
    trouble::Trouble,
    waiting::Stage,
};
use crate::{Side, ways::Way};

impl InlineLane {
    /// A packet that the policies `in` or `fwd` let pass.
    pub(super) fn forward(&mut self, mut packet: PacketBuf) {
        let Ok(ip) = IpPacket::parse(packet.bytes()) else {
            return self.discard(packet, DropReason::ForwardMalformed);
        };
        if self.worker.settings().addresses.holds(ip.destination) {
            return self.to_host.push(packet);
        }
        if is_link_local(ip.destination) || is_link_local(ip.source) {
            return self.discard(packet, DropReason::ForwardNoRoute);
        }
        if ip.ttl <= 1 {
            return self.expire(packet, &ip);
        }
        take_hop(&mut packet);
        self.send_on(packet, Stage::Checked);
    }

    /// A packet that the policies `out` let go, protected or not.
    pub(super) fn leave(&mut self, packet: PacketBuf) {
        self.send_on(packet, Stage::Leaving);
    }

    /// An ICMP error of ours.
    pub(super) fn answer(&mut self, packet: PacketBuf) {
        self.send_on(packet, Stage::Answer);
    }

    /// An ICMP error that the policies `out` let go: only if they made something else of it.
    pub(super) fn leave_protected(&mut self, packet: PacketBuf) {
        let is_plain = IpPacket::parse(packet.bytes())
            .is_ok_and(|ip| matches!(ip.protocol, Protocol::ICMP | Protocol::ICMPV6));
        if is_plain {
            return self.discard(packet, DropReason::ForwardUnprotected);
        }
        self.leave(packet);
    }

    /// Sends a packet to where it goes. By the wire only what is [leaving](Stage::Leaving): all else for there goes through the policies
    /// `out` first.
    fn send_on(&mut self, packet: PacketBuf, stage: Stage) {
        let Some(destination) = destination(&packet) else {
            return self.discard(packet, DropReason::ForwardMalformed);
        };
        if stage != Stage::Leaving && self.worker.settings().addresses.holds(destination) {
            return self.to_host.push(packet);
        }
        match (self.ways.to(destination, self.now), stage) {
            (Way::By { side, header, mtu }, Stage::Leaving)
            | (Way::By { side: side @ Side::Protected, header, mtu }, _) => {
                self.queue(side, header, mtu, packet);
            }
            (Way::By { side: Side::Wire, .. }, Stage::Checked) => self.again.push(packet),
            (Way::By { side: Side::Wire, .. }, Stage::Answer) => self.answers.push(packet),
            (Way::Asked, _) => self.hold(packet, destination, stage),
            // What is for the host itself was one to be forwarded when it came: the host has a new address, and its neighbours are told soon.
            (Way::Local | Way::Nowhere, _) => {
                self.give_up(packet, stage, Trouble::NoRoute, DropReason::ForwardNoRoute);
            }
            (Way::Gone, _) => {
                let reason = DropReason::ForwardNoNeighbour;
                self.give_up(packet, stage, Trouble::NoNeighbour, reason);
            }
        }
    }

    /// Drops a packet that has no way. Nobody is told of an ICMP error (RFC 1122 §3.2.2).
    fn give_up(&mut self, packet: PacketBuf, stage: Stage, trouble: Trouble, reason: DropReason) {
        match stage {
            Stage::Checked | Stage::Leaving => self.refuse(packet, trouble, reason),
            Stage::Answer => self.discard(packet, reason),
        }
    }

    /// Puts a packet among the frames of a port, in fragments where it has to be.
    #[inline]
    fn queue(&mut self, side: Side, header: EthernetHeader, mtu: u16, packet: PacketBuf) {
        if packet.len() <= usize::from(mtu) || longest(&packet) <= usize::from(mtu) {
            return self.frames[side as usize].push(header, packet);
        }
        self.queue_large(side, header, mtu, packet);
    }

    #[cold]
    fn queue_large(&mut self, side: Side, header: EthernetHeader, mtu: u16, packet: PacketBuf) {
        let Ok(ip) = IpPacket::parse(packet.bytes()) else {
            return self.discard(packet, DropReason::ForwardMalformed);
        };
        match packet.segments {
            _ if ip.dont_fragment || ip.version == Version::V6 => {
                self.refuse_size(packet, &ip, mtu);
            }
            Segments::One => self.queue_pieces(side, header, mtu, packet, &ip),
            Segments::Train { stride } => {
                for bytes in packet.bytes().chunks(usize::from(stride.max(1))) {
                    self.queue_each(side, header, mtu, bytes.len(), |room| {
                        room.copy_from_slice(bytes)
                    });
                }
                self.pool.give(packet);
            }
            Segments::Tcp { .. } | Segments::Udp { .. } => {
                let Ok(plan) = SegmentPlan::new(&packet) else {
                    return self.discard(packet, DropReason::ForwardMalformed);
                };
                for k in 0..plan.count() {
                    self.queue_each(side, header, mtu, plan.len(k), |room| {
                        let written = plan.write(k, packet.bytes(), room);
                        debug_assert_eq!(written, Some(plan.len(k)), "as long as planned");
                    });
                }
                self.pool.give(packet);
            }
        }
    }

    fn refuse_size(&mut self, packet: PacketBuf, ip: &IpPacket, mtu: u16) {
        if self.worker.settings().addresses.holds(ip.source) {
            self.worker.meet_narrow_path(ip.destination, mtu.into(), &mut self.out.events);
            // Either of the two may be the one that is out of date.
            self.ways.doubt(ip.destination, self.now);
        }
        self.refuse(packet, Trouble::TooBig(mtu), DropReason::ForwardTooBig);
    }

    /// One of several packets that a buffer holds, each of which is cut.
    fn queue_each(
        &mut self,
        side: Side,
        header: EthernetHeader,
        mtu: u16,
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) {
        let mut packet = self.pool.take(SizeClass::holding(len));
        match packet.append(len) {
            Some(room) => {
                write(room);
                self.queue(side, header, mtu, packet);
            }
            None => self.discard(packet, DropReason::ForwardMalformed),
        }
    }

    fn queue_pieces(
        &mut self,
        side: Side,
        header: EthernetHeader,
        mtu: u16,
        mut packet: PacketBuf,
        ip: &IpPacket,
    ) {
        if checksum::complete(&mut packet).is_err() {
            return self.discard(packet, DropReason::ForwardMalformed);
        }
        self.ident = self.ident.wrapping_add(1);
        let cut = Cut {
            version: ip.version,
            place: ip.header_len,
            next_header_at: ip.next_header_at,
            mtu: mtu.into(),
            ident: self.ident,
        };
        let mut pieces = Batch::new();
        let whole = &packet.bytes()[..ip.total_len];
        split(whole, &cut, packet.mark, &mut self.pool, &mut pieces);
        for piece in pieces.drain() {
            self.frames[side as usize].push(header, piece);
        }
        self.pool.give(packet);
    }

    fn hold(&mut self, packet: PacketBuf, destination: IpAddr, stage: Stage) {
        if let Err(packet) = self.waiting.push(packet, destination, stage, self.now) {
            self.discard(packet, DropReason::ForwardNoNeighbour);
        }
    }

    /// Lets go what waited for ways, or waited too long.
    pub(super) fn resume(&mut self) {
        let now = self.now;
        for (packet, stage) in self.waiting.take(now, &mut self.ways) {
            match stage {
                Ok(stage) => self.send_on(packet, stage),
                Err(_late) => {
                    self.refuse(packet, Trouble::NoNeighbour, DropReason::ForwardNoNeighbour);
                }
            }
        }
        self.go_on();
    }

    pub(super) fn expire(&mut self, packet: PacketBuf, ip: &IpPacket) {
        self.tell(&packet, ip, Trouble::TimeExceeded);
        self.discard(packet, DropReason::ForwardHops);
    }

    /// Drops a packet and tells its sender why.
    fn refuse(&mut self, packet: PacketBuf, trouble: Trouble, reason: DropReason) {
        if let Ok(ip) = IpPacket::parse(packet.bytes()) {
            self.tell(&packet, &ip, trouble);
        }
        self.discard(packet, reason);
    }

    /// Sends an ICMP error. Senders behind the wire are answered by the policies `out`; we ourselves need no answer.
    fn tell(&mut self, packet: &PacketBuf, ip: &IpPacket, trouble: Trouble) {
        let own = &self.worker.settings().addresses;
        if own.holds(ip.source) || !self.budget.take(self.now) {
            return;
        }
        let from = self.ways.source(ip.source, ip.destination, self.now);
        let Some(from) = from.or_else(|| own.like(ip.source)) else { return };
        if let Some(answer) = trouble.about(packet.bytes(), ip, from, &mut self.pool) {
            self.answer(answer);
        }
    }

    pub(super) fn discard(&mut self, packet: PacketBuf, reason: DropReason) {
        self.worker.drops().add(reason, wire_packets(&packet));
        self.pool.give(packet);
    }
}

/// Where a whole packet goes.
#[inline]
fn destination(packet: &PacketBuf) -> Option<IpAddr> {
    let bytes = packet.bytes();
    match bytes.first()? >> 4 {
        4 => Some(IpAddr::from(*bytes.get(16..20)?.first_chunk::<4>()?)),
        6 => Some(IpAddr::from(*bytes.get(24..40)?.first_chunk::<16>()?)),
        _ => None,
    }
}

/// The longest IP packet that a buffer becomes on the wire.
fn longest(packet: &PacketBuf) -> usize {
    match packet.segments {
        Segments::One => packet.len(),
        Segments::Train { stride } => stride.into(),
        Segments::Tcp { .. } | Segments::Udp { .. } => {
            SegmentPlan::new(packet).map_or(usize::MAX, |plan| plan.len(0))
        }
    }
}
