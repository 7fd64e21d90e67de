//! Routes checked packets: to the host, out by a port as frames, through the `out` policies first,
//! or to a drop.

use std::net::IpAddr;

use uxfrm_engine::{DropReason, FragmentPlan, fragment};
use uxfrm_io::wire_packets;
use uxfrm_packet::{
    Batch, IpPacket, PacketBuf, Protocol, SegmentPlan, Segments, SizeClass, Version, checksum,
    ethernet::EthernetHeader, icmp_error,
};

use super::{
    InlineLoop,
    icmp_error::IcmpError,
    next_hop_queue::ForwardStage,
    router::{decrement_ttl, is_link_local},
};
use crate::{PortSide, next_hops::HopLookup};

impl InlineLoop {
    /// Forwards a packet that passed the `in` or `fwd` policies.
    pub(super) fn forward(&mut self, mut packet: PacketBuf) {
        let Ok(ip) = IpPacket::parse(packet.bytes()) else {
            return self.drop_packet(packet, DropReason::ForwardMalformed);
        };
        if self.worker.settings().addresses.holds(ip.destination) {
            return self.to_host.push(packet);
        }
        if is_link_local(ip.destination) || is_link_local(ip.source) {
            return self.drop_packet(packet, DropReason::ForwardNoRoute);
        }
        if ip.ttl <= 1 {
            return self.reject_expired(packet, &ip);
        }
        decrement_ttl(&mut packet);
        self.route_packet(packet, ForwardStage::Checked);
    }

    /// Sends a packet that passed the `out` policies, protected or not.
    pub(super) fn send_out(&mut self, packet: PacketBuf) {
        self.route_packet(packet, ForwardStage::Outbound);
    }

    /// Sends an ICMP error of this gateway.
    pub(super) fn send_icmp_error(&mut self, packet: PacketBuf) {
        self.route_packet(packet, ForwardStage::IcmpError);
    }

    /// Sends an ICMP error of the engine: from an own address to senders behind the protected port.
    /// For others policies decide, which name the destination of the packet that it is about.
    pub(super) fn send_too_big(&mut self, mut answer: PacketBuf) {
        if let Ok(ip) = IpPacket::parse(answer.bytes())
            && let HopLookup::Send { side: PortSide::Protected, .. } =
                self.next_hops.lookup(ip.destination, self.now)
        {
            let own = self.next_hops.source_address(ip.destination, ip.source, self.now);
            let own = own.or_else(|| self.worker.settings().addresses.like(ip.destination));
            // Of the same version, so that it can be no other message.
            let _set = own.and_then(|own| icmp_error::set_source(&mut answer, own));
        }
        self.send_icmp_error(answer);
    }

    /// Sends an ICMP error that passed the `out` policies, but only if they protected it.
    pub(super) fn send_if_protected(&mut self, packet: PacketBuf) {
        let is_plain = IpPacket::parse(packet.bytes())
            .is_ok_and(|ip| matches!(ip.protocol, Protocol::ICMP | Protocol::ICMPV6));
        if is_plain {
            return self.drop_packet(packet, DropReason::ForwardUnprotected);
        }
        self.send_out(packet);
    }

    /// Sends a packet to its next hop. By the wire only [`ForwardStage::Outbound`] leaves; all else
    /// for the wire passes the `out` policies first.
    fn route_packet(&mut self, packet: PacketBuf, stage: ForwardStage) {
        let Some(destination) = destination(&packet) else {
            return self.drop_packet(packet, DropReason::ForwardMalformed);
        };
        if stage != ForwardStage::Outbound && self.worker.settings().addresses.holds(destination) {
            return self.to_host.push(packet);
        }
        match (self.next_hops.lookup(destination, self.now), stage) {
            (HopLookup::Send { side, header, mtu }, ForwardStage::Outbound)
            | (HopLookup::Send { side: side @ PortSide::Protected, header, mtu }, _) => {
                self.queue(side, header, mtu, packet);
            }
            (HopLookup::Send { side: PortSide::Wire, .. }, ForwardStage::Checked) => {
                self.requeued.push(packet)
            }
            (HopLookup::Send { side: PortSide::Wire, .. }, ForwardStage::IcmpError) => {
                self.icmp_errors.push(packet)
            }
            (HopLookup::Pending, _) => self.queue_for_next_hop(packet, destination, stage),
            // The host has a new address: the packet was one to forward when it came, and the
            // neighbours learn of it soon.
            (HopLookup::Local | HopLookup::NoRoute, _) => {
                self.drop_unroutable(packet, stage, IcmpError::NoRoute, DropReason::ForwardNoRoute);
            }
            (HopLookup::Unreachable, _) => {
                let reason = DropReason::ForwardNoNeighbour;
                self.drop_unroutable(packet, stage, IcmpError::NoNeighbour, reason);
            }
        }
    }

    /// Drops a packet without a route. ICMP errors are not answered (RFC 1122 §3.2.2).
    fn drop_unroutable(
        &mut self,
        packet: PacketBuf,
        stage: ForwardStage,
        error: IcmpError,
        reason: DropReason,
    ) {
        match stage {
            ForwardStage::Checked | ForwardStage::Outbound => self.reject(packet, error, reason),
            ForwardStage::IcmpError => self.drop_packet(packet, reason),
        }
    }

    /// Queues a packet as a frame, fragmented if necessary.
    #[inline]
    fn queue(&mut self, side: PortSide, header: EthernetHeader, mtu: u16, packet: PacketBuf) {
        if packet.len() <= usize::from(mtu) || longest_segment(&packet) <= usize::from(mtu) {
            return self.frames[side as usize].push(header, packet);
        }
        self.queue_large(side, header, mtu, packet);
    }

    #[cold]
    fn queue_large(&mut self, side: PortSide, header: EthernetHeader, mtu: u16, packet: PacketBuf) {
        let Ok(ip) = IpPacket::parse(packet.bytes()) else {
            return self.drop_packet(packet, DropReason::ForwardMalformed);
        };
        match packet.segments {
            _ if ip.dont_fragment || ip.version == Version::V6 => {
                self.reject_too_big(packet, &ip, mtu);
            }
            Segments::One => self.queue_fragments(side, header, mtu, packet, &ip),
            Segments::Burst { stride } => {
                for bytes in packet.bytes().chunks(usize::from(stride.max(1))) {
                    self.queue_segment(side, header, mtu, bytes.len(), |room| {
                        room.copy_from_slice(bytes)
                    });
                }
                self.pool.give(packet);
            }
            Segments::Tcp { .. } | Segments::Udp { .. } => {
                let Ok(plan) = SegmentPlan::new(&packet) else {
                    return self.drop_packet(packet, DropReason::ForwardSuper);
                };
                for k in 0..plan.count() {
                    self.queue_segment(side, header, mtu, plan.len(k), |room| {
                        let written = plan.write(k, packet.bytes(), room);
                        debug_assert_eq!(written, Some(plan.len(k)), "as long as planned");
                    });
                }
                self.pool.give(packet);
            }
        }
    }

    fn reject_too_big(&mut self, packet: PacketBuf, ip: &IpPacket, mtu: u16) {
        if self.worker.settings().addresses.holds(ip.source) {
            self.worker.learn_path_mtu(ip.destination, mtu.into(), &mut self.out.events);
            // Either the engine's MTU or the route's may be out of date.
            self.next_hops.recheck(ip.destination, self.now);
        }
        self.reject(packet, IcmpError::TooBig(mtu), DropReason::ForwardTooBig);
    }

    /// Queues one segment of a super-packet or burst.
    fn queue_segment(
        &mut self,
        side: PortSide,
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
            None => self.drop_packet(packet, DropReason::ForwardMalformed),
        }
    }

    fn queue_fragments(
        &mut self,
        side: PortSide,
        header: EthernetHeader,
        mtu: u16,
        mut packet: PacketBuf,
        ip: &IpPacket,
    ) {
        if checksum::complete(&mut packet).is_err() {
            return self.drop_packet(packet, DropReason::ForwardMalformed);
        }
        self.ident = self.ident.wrapping_add(1);
        let cut = FragmentPlan {
            version: ip.version,
            place: ip.header_len,
            next_header_at: ip.next_header_at,
            mtu: mtu.into(),
            ident: self.ident,
        };
        let mut pieces = Batch::new();
        let whole = &packet.bytes()[..ip.total_len];
        fragment(whole, &cut, packet.mark, &mut self.pool, &mut pieces);
        for piece in pieces.drain() {
            self.frames[side as usize].push(header, piece);
        }
        self.pool.give(packet);
    }

    fn queue_for_next_hop(&mut self, packet: PacketBuf, destination: IpAddr, stage: ForwardStage) {
        if let Err(packet) = self.next_hop_queue.push(packet, destination, stage, self.now) {
            self.drop_packet(packet, DropReason::ForwardNoNeighbour);
        }
    }

    /// Retries packets whose next hop is resolved, and rejects those that waited too long.
    pub(super) fn retry_queued(&mut self) {
        let now = self.now;
        for (packet, stage) in self.next_hop_queue.take(now, &mut self.next_hops) {
            match stage {
                Ok(stage) => self.route_packet(packet, stage),
                Err(_late) => {
                    self.reject(packet, IcmpError::NoNeighbour, DropReason::ForwardNoNeighbour);
                }
            }
        }
        self.flush_requeued();
    }

    pub(super) fn reject_expired(&mut self, packet: PacketBuf, ip: &IpPacket) {
        self.reply_icmp_error(&packet, ip, IcmpError::TimeExceeded);
        self.drop_packet(packet, DropReason::ForwardHops);
    }

    /// Drops a packet and sends its sender an ICMP error.
    fn reject(&mut self, packet: PacketBuf, error: IcmpError, reason: DropReason) {
        if let Ok(ip) = IpPacket::parse(packet.bytes()) {
            self.reply_icmp_error(&packet, &ip, error);
        }
        self.drop_packet(packet, reason);
    }

    /// Sends an ICMP error. Senders behind the wire are answered through the `out` policies; this
    /// host needs no answer.
    fn reply_icmp_error(&mut self, packet: &PacketBuf, ip: &IpPacket, error: IcmpError) {
        let own = &self.worker.settings().addresses;
        if own.holds(ip.source) || !self.budget.take(self.now) {
            return;
        }
        let from = self.next_hops.source_address(ip.source, ip.destination, self.now);
        let Some(from) = from.or_else(|| own.like(ip.source)) else { return };
        if let Some(answer) = error.message(packet.bytes(), ip, from, &mut self.pool) {
            self.send_icmp_error(answer);
        }
    }

    pub(super) fn drop_packet(&mut self, packet: PacketBuf, reason: DropReason) {
        self.worker.note_dropped(&packet, wire_packets(&packet), reason, self.now);
        self.pool.give(packet);
    }
}

/// Destination address of a whole packet.
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
fn longest_segment(packet: &PacketBuf) -> usize {
    match packet.segments {
        Segments::One => packet.len(),
        Segments::Burst { stride } => stride.into(),
        Segments::Tcp { .. } | Segments::Udp { .. } => {
            SegmentPlan::new(packet).map_or(usize::MAX, |plan| plan.len(0))
        }
    }
}
