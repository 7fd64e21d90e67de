//! Parses the packets of a batch into runs of one flow, before any packet is changed.

use std::net::{IpAddr, Ipv4Addr};

use uxfrm_packet::{Checksum, HeaderTemplate, IpPacket, PacketBuf, ParsedLen, Segments};

use super::narrow;
use crate::FlowKey;
use crate::esp::encap::InnerInfo;
use crate::flow_cache::CachedVerdict;

/// The flows of a batch and their verdicts; consecutive packets of one flow share an entry.
#[derive(Debug, Default)]
pub(super) struct PreParsed {
    pub(super) flows: Vec<FlowKey>,
    pub(super) runs: Vec<FlowRun>,
    pub(super) known: Vec<CachedVerdict>,
    /// Template of the latest packet's headers.
    outline: Option<HeaderTemplate>,
    label: FlowMeta,
}

/// Consecutive packets of one flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlowRun {
    pub(super) packets: u32,
    /// Whether all are single whole packets without options and with complete checksums: they only
    /// need encapsulation.
    pub(super) encap_only: bool,
    /// Bytes of their buffers, and by their own headers.
    pub(super) received: usize,
    pub(super) bytes: usize,
    /// Length of the longest packet.
    pub(super) longest: usize,
    /// The smallest headroom and tailroom.
    pub(super) headroom: usize,
    pub(super) tailroom: usize,
}

/// Properties of a packet besides its flow.
#[derive(Clone, Copy, Debug)]
struct PacketForm {
    /// Length by its own header.
    len: usize,
    /// See [`FlowRun::encap_only`].
    encap_only: bool,
}

/// Flow metadata: mark and interface id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FlowMeta {
    mark: u32,
    if_id: u32,
}

/// What later stages need of the packet's own header.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacketSummary {
    pub(super) inner: InnerInfo,
    pub(super) fragment: bool,
    pub(super) options: bool,
    pub(super) total_len: u32,
}

/// Flow of an unparsable packet, which is dropped under any verdict.
pub(super) const UNREADABLE: FlowKey = {
    let none = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    FlowKey::between(none, none)
};

impl PreParsed {
    pub(super) fn clear(&mut self) {
        self.flows.clear();
        self.runs.clear();
        self.known.clear();
        self.outline = None;
    }

    /// Adds a packet, which mostly continues the latest run.
    #[inline(always)]
    pub(super) fn push(&mut self, packet: &PacketBuf) {
        let like = self.outline.and_then(|outline| outline.matches(packet.bytes()));
        match (like, self.runs.last_mut()) {
            (Some(ParsedLen { len, .. }), Some(run))
                if is_untouched(packet) && self.label == FlowMeta::of(packet) =>
            {
                run.add(packet, len);
            }
            (Some(_) | None, Some(_) | None) => self.push_other(packet),
        }
    }

    /// Separate code per version: IPv4 addresses are compared and copied as words.
    #[inline(never)]
    fn push_other(&mut self, packet: &PacketBuf) {
        match IpPacket::parse_fixed(packet.bytes()) {
            Some(ip) => self.push_parsed(packet, &ip),
            None => self.push_slow(packet),
        }
    }

    /// IPv6, IPv4 with options, and malformed packets.
    #[inline(never)]
    fn push_slow(&mut self, packet: &PacketBuf) {
        let parsed = IpPacket::parse_then(packet.bytes(), |ip| self.push_parsed(packet, &ip));
        if parsed.is_err() {
            self.outline = None;
            self.push_flow(UNREADABLE, packet, PacketForm { len: packet.len(), encap_only: false });
        }
    }

    #[inline(always)]
    fn push_parsed(&mut self, packet: &PacketBuf, ip: &IpPacket) {
        self.outline = packet.bytes().get(..ip.total_len).and_then(HeaderTemplate::of);
        self.label = FlowMeta::of(packet);
        let encap_only = is_untouched(packet) && !ip.is_fragment() && !ip.has_options;
        let flow = FlowKey::of(packet, ip, packet.bytes());
        self.push_flow(flow, packet, PacketForm { len: ip.total_len, encap_only });
    }

    #[inline(always)]
    fn push_flow(&mut self, flow: FlowKey, packet: &PacketBuf, form: PacketForm) {
        match self.runs.last_mut() {
            Some(run) if self.flows.last() == Some(&flow) => {
                run.encap_only &= form.encap_only;
                run.add(packet, form.len);
            }
            Some(_) | None => {
                self.flows.push(flow);
                self.runs.push(FlowRun::of(packet, form));
            }
        }
    }
}

impl FlowRun {
    /// A run of one packet, with its summary unless it is malformed.
    #[inline(always)]
    pub(super) fn single(packet: &PacketBuf, summary: Option<&(PacketSummary, FlowKey)>) -> Self {
        let Some((summary, _)) = summary else {
            return Self::of(packet, PacketForm { len: packet.len(), encap_only: false });
        };
        let encap_only = is_untouched(packet) && !summary.fragment && !summary.options;
        Self::of(packet, PacketForm { len: summary.total_len as usize, encap_only })
    }

    #[inline(always)]
    fn of(packet: &PacketBuf, PacketForm { len, encap_only }: PacketForm) -> Self {
        Self {
            packets: 1,
            encap_only,
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

impl FlowMeta {
    #[inline(always)]
    fn of(packet: &PacketBuf) -> Self {
        Self { mark: packet.mark, if_id: packet.if_id }
    }
}

/// Whether it is a single packet with a complete checksum.
#[inline(always)]
pub(super) fn is_untouched(packet: &PacketBuf) -> bool {
    packet.segments == Segments::One && !matches!(packet.checksum, Checksum::Partial { .. })
}

impl PacketSummary {
    /// Summary and flow of a packet; `None` if it is malformed.
    #[inline(always)]
    pub(super) fn with_flow(packet: &PacketBuf) -> Option<(Self, FlowKey)> {
        match IpPacket::parse_fixed(packet.bytes()) {
            Some(ip) => Some(Self::and_flow_of(packet, &ip)),
            None => Self::with_flow_slow(packet),
        }
    }

    /// IPv6, IPv4 with options, and malformed packets.
    #[inline(never)]
    fn with_flow_slow(packet: &PacketBuf) -> Option<(Self, FlowKey)> {
        IpPacket::parse_then(packet.bytes(), |ip| Self::and_flow_of(packet, &ip)).ok()
    }

    #[inline(always)]
    fn and_flow_of(packet: &PacketBuf, ip: &IpPacket) -> (Self, FlowKey) {
        (Self::of(ip), FlowKey::of(packet, ip, packet.bytes()))
    }

    #[inline(always)]
    pub(super) fn of(ip: &IpPacket) -> Self {
        let inner = InnerInfo::of(ip);
        let (fragment, options) = (ip.is_fragment(), ip.has_options);
        Self { inner, fragment, options, total_len: narrow(ip.total_len) }
    }
}
