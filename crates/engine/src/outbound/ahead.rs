//! What is known of a batch's packets before the first of them is touched.

use std::net::{IpAddr, Ipv4Addr};

use uxfrm_packet::{IpPacket, PacketBuf};

use super::narrow;
use crate::FlowKey;
use crate::esp::layer::Inside;
use crate::spd::flow_cache::Known;

/// The batch's packets before they are touched: their headers, one place each, and their flows and what is known of those, one place for
/// neighbours of one flow.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    pub(super) heads: Vec<Option<Head>>,
    pub(super) flows: Vec<FlowKey>,
    /// How many packets there are up to the last of each flow's neighbours.
    pub(super) ends: Vec<usize>,
    pub(super) known: Vec<Known>,
}

/// What of a packet's own header is needed on the way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) inside: Inside,
    pub(super) fragment: bool,
    pub(super) options: bool,
    pub(super) total_len: u32,
    /// The place of its flow among the batch's.
    pub(super) flow: u32,
}

/// The flow of what cannot be parsed, which is dropped whatever the policies say.
pub(super) const UNREADABLE: FlowKey = {
    let none = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    FlowKey::between(none, none)
};

impl Ahead {
    pub(super) fn clear(&mut self) {
        self.heads.clear();
        self.flows.clear();
        self.ends.clear();
        self.known.clear();
    }

    #[inline(always)]
    pub(super) fn note(&mut self, packet: &PacketBuf, ip: &IpPacket) {
        let flow = self.place(FlowKey::of(packet, ip, packet.bytes()));
        self.heads.push(Some(Head { flow, ..Head::of(ip) }));
    }

    /// The place of the next packet's flow.
    #[inline(always)]
    fn place(&mut self, flow: FlowKey) -> u32 {
        let end = self.heads.len() + 1;
        match self.ends.last_mut() {
            Some(last) if self.flows.last() == Some(&flow) => *last = end,
            Some(_) | None => {
                self.flows.push(flow);
                self.ends.push(end);
            }
        }
        narrow(self.flows.len() - 1)
    }

    /// IPv6, IPv4 with options, and what is malformed.
    #[inline(never)]
    pub(super) fn look_closely(&mut self, packet: &PacketBuf) {
        let parsed = IpPacket::parse_then(packet.bytes(), |ip| self.note(packet, &ip));
        if parsed.is_err() {
            self.place(UNREADABLE);
            self.heads.push(None);
        }
    }
}

impl Head {
    /// The head and the flow of a packet that comes alone; `None` when it is malformed.
    #[inline(always)]
    pub(super) fn alone(packet: &PacketBuf) -> Option<(Self, FlowKey)> {
        match IpPacket::parse_fixed(packet.bytes()) {
            Some(ip) => Some(Self::with_flow(packet, &ip)),
            None => Self::alone_closely(packet),
        }
    }

    /// As [`Ahead::look_closely`].
    #[inline(never)]
    fn alone_closely(packet: &PacketBuf) -> Option<(Self, FlowKey)> {
        IpPacket::parse_then(packet.bytes(), |ip| Self::with_flow(packet, &ip)).ok()
    }

    #[inline(always)]
    fn with_flow(packet: &PacketBuf, ip: &IpPacket) -> (Self, FlowKey) {
        (Self::of(ip), FlowKey::of(packet, ip, packet.bytes()))
    }

    #[inline(always)]
    pub(super) fn of(ip: &IpPacket) -> Self {
        let inside = Inside::of(ip);
        let (fragment, options) = (ip.is_fragment(), ip.has_options);
        Self { inside, fragment, options, total_len: narrow(ip.total_len), flow: 0 }
    }
}
