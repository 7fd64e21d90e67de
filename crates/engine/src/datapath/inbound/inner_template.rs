//! 7 Strip of packets that look inside like an earlier one of their state: they are of its flow, of which no more ESP is to be found.
//!
//! Whatever is not so, or is to be dropped, is left to the long way, which says what it is.

use uxfrm_packet::{Outline, PacketBuf};

use super::rx_cache::{Around, Load, Looks};
use super::{Fate, Inbound, Questions, Sealed, narrow};
use crate::esp::decap;
use crate::{Direction, FlowKey, Mode, Spi, ecn};

/// A plain packet that a state carried.
#[derive(Debug)]
pub(super) struct Inner {
    outline: Outline,
    pub(super) flow: FlowKey,
    pub(super) direction: Direction,
    /// The place of its question in this batch, if it is asked already.
    pub(super) question: Option<u32>,
}

/// A packet that was in a tunnel, in its buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bare {
    pub(super) at: u32,
    pub(super) len: u32,
    pub(super) mark: u32,
    /// Bytes that its state carried: with what was behind it.
    pub(super) carried: u32,
}

impl Inner {
    /// Of a packet, all of it and nothing behind it. `None` where others of its flow are to be looked at themselves.
    pub(super) fn of(
        packet: &[u8],
        flow: FlowKey,
        direction: Direction,
        question: u32,
    ) -> Option<Self> {
        let outline = Outline::of(packet)?;
        Some(Self { outline, flow, direction, question: Some(question) })
    }

    pub(super) fn outline(&self) -> Outline {
        self.outline
    }

    /// Bytes of the packet that `bytes` begins with, if it looks like this one.
    #[inline(always)]
    fn extent(&self, mark: u32, if_id: u32, bytes: &[u8]) -> Option<usize> {
        let is_its = (mark, if_id) == (self.flow.mark, self.flow.if_id);
        self.outline.read(bytes).filter(|_| is_its).map(|extent| extent.len)
    }

    /// How a packet that was opened lies in its buffer, if it looks like this one and stays as it is. ESP was in the buffer from `at` on, `len` bytes,
    /// and `tos` on the header around it.
    #[inline(always)]
    pub(super) fn bare(
        &self,
        around: &Around,
        (at, len, tos): (u32, u32, u8),
        mark: u32,
        buffer: &PacketBuf,
    ) -> Option<Bare> {
        let at = at + around.lead;
        let text = buffer.part(at, len.checked_sub(around.lead + around.icv)?)?;
        let stripped = decap::strip(text).ok()?;
        let mark = around.output_mark.applied_to(mark);
        let len = narrow(self.extent(mark, buffer.if_id, &text[..stripped.len])?);
        let stays =
            stripped.next_header == self.outline.protocol() && ecn::stays(tos, around.flags);
        stays.then_some(Bare { at, len, mark, carried: narrow(stripped.len) })
    }

    /// The place of its question, which is asked if it is the first of this batch.
    #[inline(always)]
    fn question(&mut self, spi: Spi, questions: &mut Questions) -> u32 {
        match self.question {
            Some(question) => question,
            None => self.ask(spi, questions),
        }
    }

    #[inline(never)]
    fn ask(&mut self, spi: Spi, questions: &mut Questions) -> u32 {
        *self.question.insert(questions.place(self.flow, spi, self.direction))
    }
}

impl Looks {
    /// The question of a packet that looks inside like one before, and its bytes; `bytes` may have more behind it.
    #[inline(always)]
    pub(super) fn question(
        &mut self,
        mark: u32,
        spi: Spi,
        (buffer, bytes): (&PacketBuf, &[u8]),
        questions: &mut Questions,
    ) -> Option<(u32, usize)> {
        let inner = self.inner.as_mut()?;
        let len = inner.extent(mark, buffer.if_id, bytes)?;
        Some((inner.question(spi, questions), len))
    }
}

impl Inbound {
    /// Strips neighbours that came by one tunnel, whose numbers are taken, up to the first that looks otherwise than an earlier one of its. Says how
    /// many.
    #[inline]
    pub(super) fn strip_alike(&mut self, run: &mut [Sealed], load: &mut Load) -> usize {
        let Self { items, buffers, used, questions, .. } = self;
        let looks = used.looks_mut(load.used);
        let Some(inner) = looks.and_then(|looks| looks.inner.as_mut()) else { return 0 };
        let around = &load.around;
        if around.mode != Mode::Tunnel {
            return 0;
        }
        let (mut alike, mut bytes) = (0, 0);
        for packet in run {
            let item = &mut items[packet.item as usize];
            let Some(buffer) = &buffers[packet.buffer as usize] else { break };
            let Some(bare) =
                inner.bare(around, (packet.at, packet.len, packet.tos), item.mark, buffer)
            else {
                break;
            };
            if item.path.try_push(packet.used).is_err() {
                break;
            }
            (item.start, item.len, item.mark) = (bare.at, bare.len, bare.mark);
            item.fate = Fate::Plain(inner.question(around.spi, questions));
            packet.carried = Some(bare.carried);
            bytes += u64::from(bare.carried);
            alike += 1;
        }
        load.bytes += bytes;
        load.packets += narrow(alike);
        alike
    }
}
