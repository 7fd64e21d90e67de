//! What is known of a batch's packets before the first of them is touched.

use std::net::{IpAddr, Ipv4Addr};

use uxfrm_packet::{Checksum, Extent, IpPacket, Outline, PacketBuf, Segments};

use super::narrow;
use crate::FlowKey;
use crate::esp::encap::Inside;
use crate::flow_cache::Known;

/// The batch's flows and what is known of them, one place for neighbours of one flow.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    pub(super) flows: Vec<FlowKey>,
    pub(super) runs: Vec<Run>,
    pub(super) known: Vec<Known>,
    /// Of the packet noted last.
    outline: Option<Outline>,
    label: FlowLabel,
}

/// Neighbours of one flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) packets: u32,
    /// Single whole packets without options, of which nothing was left open: all they need is what is put around them.
    pub(super) plain: bool,
    /// Bytes of their buffers, and of the packets as they say themselves.
    pub(super) received: usize,
    pub(super) bytes: usize,
    /// The longest.
    pub(super) longest: usize,
    /// Room that each has before and behind it.
    pub(super) headroom: usize,
    pub(super) tailroom: usize,
}

/// What a packet is, as far as that is not its flow.
#[derive(Clone, Copy, Debug)]
struct Form {
    /// Bytes, as it says itself.
    len: usize,
    /// As [`Run::plain`].
    plain: bool,
}

/// What is part of a flow and not in the packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FlowLabel {
    mark: u32,
    if_id: u32,
}

/// What of a packet's own header is needed on the way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) inside: Inside,
    pub(super) fragment: bool,
    pub(super) options: bool,
    pub(super) total_len: u32,
}

/// The flow of what cannot be parsed, which is dropped whatever the policies say.
pub(super) const UNREADABLE: FlowKey = {
    let none = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    FlowKey::between(none, none)
};

impl Ahead {
    pub(super) fn clear(&mut self) {
        self.flows.clear();
        self.runs.clear();
        self.known.clear();
        self.outline = None;
    }

    /// The next packet, which mostly is of the flow of the one before it.
    #[inline(always)]
    pub(super) fn note(&mut self, packet: &PacketBuf) {
        let like = self.outline.and_then(|outline| outline.like(packet.bytes()));
        match (like, self.runs.last_mut()) {
            (Some(Extent { len, .. }), Some(run))
                if is_untouched(packet) && self.label == FlowLabel::of(packet) =>
            {
                run.add(packet, len);
            }
            (Some(_) | None, Some(_) | None) => self.note_other(packet),
        }
    }

    /// Apart by version: an address that is known to be of IPv4 is compared and moved in one word.
    #[inline(never)]
    fn note_other(&mut self, packet: &PacketBuf) {
        match IpPacket::parse_fixed(packet.bytes()) {
            Some(ip) => self.note_parsed(packet, &ip),
            None => self.note_closely(packet),
        }
    }

    /// IPv6, IPv4 with options, and what is malformed.
    #[inline(never)]
    fn note_closely(&mut self, packet: &PacketBuf) {
        let parsed = IpPacket::parse_then(packet.bytes(), |ip| self.note_parsed(packet, &ip));
        if parsed.is_err() {
            self.outline = None;
            self.place(UNREADABLE, packet, Form { len: packet.len(), plain: false });
        }
    }

    #[inline(always)]
    fn note_parsed(&mut self, packet: &PacketBuf, ip: &IpPacket) {
        self.outline = packet.bytes().get(..ip.total_len).and_then(Outline::of);
        self.label = FlowLabel::of(packet);
        let plain = is_untouched(packet) && !ip.is_fragment() && !ip.has_options;
        let flow = FlowKey::of(packet, ip, packet.bytes());
        self.place(flow, packet, Form { len: ip.total_len, plain });
    }

    #[inline(always)]
    fn place(&mut self, flow: FlowKey, packet: &PacketBuf, form: Form) {
        match self.runs.last_mut() {
            Some(run) if self.flows.last() == Some(&flow) => {
                run.plain &= form.plain;
                run.add(packet, form.len);
            }
            Some(_) | None => {
                self.flows.push(flow);
                self.runs.push(Run::of(packet, form));
            }
        }
    }
}

impl Run {
    /// That of a packet that comes alone, with its head unless it is malformed.
    #[inline(always)]
    pub(super) fn alone(packet: &PacketBuf, head: Option<&(Head, FlowKey)>) -> Self {
        let Some((head, _)) = head else {
            return Self::of(packet, Form { len: packet.len(), plain: false });
        };
        let plain = is_untouched(packet) && !head.fragment && !head.options;
        Self::of(packet, Form { len: head.total_len as usize, plain })
    }

    #[inline(always)]
    fn of(packet: &PacketBuf, Form { len, plain }: Form) -> Self {
        Self {
            packets: 1,
            plain,
            received: packet.len(),
            bytes: len,
            longest: len,
            headroom: packet.headroom(),
            tailroom: packet.tailroom(),
        }
    }

    #[inline(always)]
    fn add(&mut self, packet: &PacketBuf, len: usize) {
        self.packets += 1;
        self.received += packet.len();
        self.bytes += len;
        self.longest = self.longest.max(len);
        self.headroom = self.headroom.min(packet.headroom());
        self.tailroom = self.tailroom.min(packet.tailroom());
    }
}

impl FlowLabel {
    #[inline(always)]
    fn of(packet: &PacketBuf) -> Self {
        Self { mark: packet.mark, if_id: packet.if_id }
    }
}

/// A single packet of which the host left nothing open.
#[inline(always)]
pub(super) fn is_untouched(packet: &PacketBuf) -> bool {
    packet.segments == Segments::One && !matches!(packet.checksum, Checksum::Partial { .. })
}

impl Head {
    /// The head and the flow of a packet; `None` when it is malformed.
    #[inline(always)]
    pub(super) fn with_flow(packet: &PacketBuf) -> Option<(Self, FlowKey)> {
        match IpPacket::parse_fixed(packet.bytes()) {
            Some(ip) => Some(Self::and_flow_of(packet, &ip)),
            None => Self::with_flow_closely(packet),
        }
    }

    /// Of IPv6, IPv4 with options, and what is malformed.
    #[inline(never)]
    fn with_flow_closely(packet: &PacketBuf) -> Option<(Self, FlowKey)> {
        IpPacket::parse_then(packet.bytes(), |ip| Self::and_flow_of(packet, &ip)).ok()
    }

    #[inline(always)]
    fn and_flow_of(packet: &PacketBuf, ip: &IpPacket) -> (Self, FlowKey) {
        (Self::of(ip), FlowKey::of(packet, ip, packet.bytes()))
    }

    #[inline(always)]
    pub(super) fn of(ip: &IpPacket) -> Self {
        let inside = Inside::of(ip);
        let (fragment, options) = (ip.is_fragment(), ip.has_options);
        Self { inside, fragment, options, total_len: narrow(ip.total_len) }
    }
}
