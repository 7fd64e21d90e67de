//! An item: one packet on the inbound slow path, and its state of processing.

use arrayvec::ArrayVec;
use uxfrm_packet::{IpPacket, PacketBuf};

use crate::datapath::inbound::rx_cache::RxCache;
use crate::datapath::inbound::{PolicyLookups, narrow};
use crate::ids::MAX_DEPTH;
use crate::{Direction, FlowKey, Spi};

/// One packet within a buffer. One cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct RxItem {
    pub(crate) buffer: u32,
    pub(crate) start: u32,
    pub(crate) len: u32,
    pub(crate) fate: Fate,
    pub(crate) mark: u32,
    /// The transport checksum is known to be right.
    pub(crate) checksum_verified: bool,
    /// The SAs it came by, outermost first, as entries of `rx_cache`.
    pub(crate) path: ArrayVec<u32, MAX_DEPTH>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// To be classified: just received, or one layer removed.
    New,
    /// In the list of packets to open.
    Encrypted,
    /// To be checked and delivered: index of its policy look-up.
    Plain(u32),
    /// Counted already: dropped, or held as a fragment.
    Gone,
}

impl RxItem {
    /// A packet within a buffer, not classified yet.
    #[inline(always)]
    pub(crate) fn new(buffer: u32, start: usize, len: usize, mark: u32) -> Self {
        Self {
            buffer,
            start: narrow(start),
            len: narrow(len),
            fate: Fate::New,
            mark,
            checksum_verified: false,
            path: ArrayVec::new(),
        }
    }

    /// Queues the packet's policy look-up and returns its index. Trims the item to the packet's own
    /// length.
    #[inline(always)]
    pub(in crate::datapath::inbound) fn queue_lookup(
        &mut self,
        ip: &IpPacket,
        buffer: Option<&PacketBuf>,
        direction: Direction,
        rx_cache: &RxCache,
        lookups: &mut PolicyLookups,
    ) -> u32 {
        self.len = narrow(ip.total_len);
        let spi = self.path.last().map_or(Spi(0), |last| rx_cache[*last as usize].framing.spi);
        let flow = buffer.map(|buffer| FlowKey::of(buffer, ip, self.bytes(buffer)));
        // Without its buffer a packet is dropped under any verdict.
        let flow = flow.unwrap_or_else(|| FlowKey::between(ip.source, ip.destination));
        lookups.push(FlowKey { mark: self.mark, ..flow }, spi, direction)
    }

    /// The packet's bytes.
    #[inline(always)]
    pub(crate) fn bytes<'a>(&self, buffer: &'a PacketBuf) -> &'a [u8] {
        buffer.part(self.start, self.len).unwrap_or_default()
    }

    pub(crate) fn bytes_mut<'a>(&self, buffer: &'a mut PacketBuf) -> &'a mut [u8] {
        &mut buffer.bytes_mut()[self.start as usize..(self.start + self.len) as usize]
    }
}
