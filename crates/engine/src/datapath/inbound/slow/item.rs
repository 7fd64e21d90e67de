//! A packet on its way in, and how far it is.

use arrayvec::ArrayVec;
use uxfrm_packet::{IpPacket, PacketBuf};

use crate::datapath::inbound::rx_cache::UsedStates;
use crate::datapath::inbound::{Questions, narrow};
use crate::ids::MAX_DEPTH;
use crate::{Direction, FlowKey, Spi};

/// One packet in one of the buffers. One cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Item {
    pub(crate) buffer: u32,
    pub(crate) start: u32,
    pub(crate) len: u32,
    pub(crate) fate: Fate,
    pub(crate) mark: u32,
    /// Its checksum is known to be right.
    pub(crate) is_verified: bool,
    /// States it came through, the outermost first, by their place in `used`.
    pub(crate) path: ArrayVec<u32, MAX_DEPTH>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Not looked at yet, or with one more layer off.
    New,
    /// Among `sealed`.
    Sealed,
    /// To be checked and handed on: the place of its question.
    Plain(u32),
    /// Counted: dropped, or held as a fragment.
    Gone,
}

impl Item {
    /// A packet in a buffer, that was not looked at yet.
    #[inline(always)]
    pub(crate) fn new(buffer: u32, start: usize, len: usize, mark: u32) -> Self {
        Self {
            buffer,
            start: narrow(start),
            len: narrow(len),
            fate: Fate::New,
            mark,
            is_verified: false,
            path: ArrayVec::new(),
        }
    }

    /// The place of its question; what is behind its own length is not its own.
    #[inline(always)]
    pub(crate) fn ask(
        &mut self,
        ip: &IpPacket,
        buffer: Option<&PacketBuf>,
        direction: Direction,
        used: &UsedStates,
        questions: &mut Questions,
    ) -> u32 {
        self.len = narrow(ip.total_len);
        let spi = self.path.last().map_or(Spi(0), |last| used[*last as usize].around.spi);
        let flow = buffer.map(|buffer| FlowKey::of(buffer, ip, self.bytes(buffer)));
        // Without its buffer a packet is dropped whatever the policies say.
        let flow = flow.unwrap_or_else(|| FlowKey::between(ip.source, ip.destination));
        questions.place(FlowKey { mark: self.mark, ..flow }, spi, direction)
    }

    /// Its bytes, which its buffer has.
    #[inline(always)]
    pub(crate) fn bytes<'a>(&self, buffer: &'a PacketBuf) -> &'a [u8] {
        buffer.part(self.start, self.len).unwrap_or_default()
    }

    pub(crate) fn bytes_mut<'a>(&self, buffer: &'a mut PacketBuf) -> &'a mut [u8] {
        &mut buffer.bytes_mut()[self.start as usize..(self.start + self.len) as usize]
    }
}
