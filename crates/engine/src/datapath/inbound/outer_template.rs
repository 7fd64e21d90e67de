//! 2 Peel, 3 State, 4 Replay check of packets that look like an earlier one of their state: what that one was found to be, they are too.
//!
//! Whatever is not so, or is to be dropped, is left to the long way, which says what it is.

use std::ops::Range;

use uxfrm_packet::{Extent, Outline, PacketBuf, UdpPath, esp, udp};

use super::rx_cache::UsedStates;
use super::slow::outer::Envelope;
use super::{Fate, Inbound, Item, Manner, Sealed, narrow};
use crate::UdpEncapKind;
use crate::sa::replay::{Candidate, ReplayWindow};

/// What stood around a packet of a state that is opened here, and came from where the state says.
#[derive(Clone, Debug)]
pub(super) struct Outer {
    around: Around,
    /// Where ESP begins.
    at: usize,
    spi: u32,
    /// The packet's.
    mark: u32,
    manner: Manner,
}

#[derive(Clone, Debug)]
enum Around {
    Ip(Outline),
    /// With nothing between UDP and ESP.
    Udp(Outline),
    /// A socket took off both.
    Socket(UdpPath),
}

/// A state whose packets look as an earlier one did.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    used: u32,
    outer: &'a Outer,
    window: &'a ReplayWindow,
}

/// What is to be opened of a packet that looks like its state's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claimed {
    /// Where ESP begins in the packet, and its bytes.
    pub(super) at: u32,
    pub(super) len: u32,
    pub(super) number: Candidate,
    pub(super) tos: u8,
}

impl Outer {
    /// Of a packet that was peeled. `None` where others are always to be looked at themselves.
    pub(super) fn of(
        envelope: &Envelope,
        manner: Manner,
        buffer: &PacketBuf,
        item: &Item,
    ) -> Option<Self> {
        let Envelope { at, len, spi, shell, .. } = *envelope;
        let outside = shell.map_or(0, |shell| usize::from(shell.len));
        let outline = || Outline::of(item.bytes(buffer).get(..at + len)?);
        let around = match (envelope.encap, at - outside) {
            (Some(UdpEncapKind::Esp), 0) if shell.is_none() => Around::Socket(buffer.udp?),
            (Some(UdpEncapKind::Esp), udp::HEADER_LEN) => Around::Udp(outline()?),
            (None, 0) => Around::Ip(outline()?),
            (Some(UdpEncapKind::NonIke | UdpEncapKind::Esp | UdpEncapKind::Tcp) | None, _) => {
                return None;
            }
        };
        Some(Self { around, at, spi, mark: item.mark, manner })
    }

    /// That of a packet that is IP and ESP alone.
    pub(super) fn outline(&self) -> Option<Outline> {
        match self.around {
            Around::Ip(outline) => Some(outline),
            Around::Udp(_) | Around::Socket(_) => None,
        }
    }

    pub(super) fn at(&self) -> u32 {
        narrow(self.at)
    }

    pub(super) fn mark(&self) -> u32 {
        self.mark
    }

    /// What is read of a packet that looks like this one, perhaps but for the SPI; `None` if it does not, or anything is wrong with it.
    #[inline(always)]
    pub(super) fn read(&self, path: Option<&UdpPath>, bytes: &[u8]) -> Option<Extent> {
        match (&self.around, path) {
            (Around::Ip(outline), None) => outline.read(bytes),
            (Around::Udp(outline), None) => {
                let (extent, upper_at) = (outline.read(bytes)?, outline.header_len());
                let [high, low] = bytes.get(upper_at + 4..)?.first_chunk().copied()?;
                let len = usize::from(u16::from_be_bytes([high, low]));
                (upper_at + len == extent.len).then_some(extent)
            }
            (Around::Socket(known), Some(path)) => {
                let is_same = (known.remote, known.local) == (path.remote, path.local);
                is_same.then_some(Extent { len: bytes.len(), tos: path.tos })
            }
            (Around::Ip(_) | Around::Udp(_), Some(_)) | (Around::Socket(_), None) => None,
        }
    }

    /// SPI and sequence number, where a packet that looks like this one has them.
    #[inline(always)]
    fn header(&self, bytes: &[u8]) -> Option<(u32, u32)> {
        let [a, b, c, d, sequence @ ..] = *bytes.get(self.at..)?.first_chunk::<8>()?;
        Some((u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes(sequence)))
    }
}

impl<'a> Known<'a> {
    /// The state in a place, if it is known how its packets look.
    pub(super) fn of(used: &'a UsedStates, place: u32) -> Option<Self> {
        let outer = used.looks(place)?.outer.as_ref()?;
        Some(Self { used: place, outer, window: used[place as usize].sa.replay() })
    }

    /// The other state that an item may be of, by its SPI.
    fn other(&self, item: &Item, buffer: &PacketBuf, used: &'a UsedStates) -> Option<Self> {
        let (spi, _) = self.outer.header(item.bytes(buffer))?;
        let other = used.of_spi(spi).filter(|_| spi != self.outer.spi)?;
        Self::of(used, other).filter(|other| other.outer.spi == spi)
    }

    /// The state that a packet may be of by its SPI: this one, or another of this batch or before.
    #[inline(always)]
    pub(super) fn or_earlier(
        self,
        item: &Item,
        buffer: &PacketBuf,
        used: &'a UsedStates,
    ) -> Option<Self> {
        let (spi, _) = self.outer.header(item.bytes(buffer))?;
        if spi == self.outer.spi {
            return Some(self);
        }
        Self::of(used, used.once_of_spi(spi)?)
    }

    /// Claims items, the first of them in `place`, up to the first that does not look like the state's. Says how many.
    #[inline]
    fn claim(
        &self,
        place: usize,
        items: &mut [Item],
        buffers: &[Option<PacketBuf>],
        sealed: &mut Vec<Sealed>,
    ) -> usize {
        let before = sealed.len();
        for (item, place) in items.iter_mut().zip(narrow(place)..) {
            let Some(buffer) = &buffers[item.buffer as usize] else { break };
            if item.fate != Fate::New || !item.path.is_empty() {
                break;
            }
            let Some(claimed) = self.claim_one(place, item, buffer) else { break };
            item.fate = Fate::Sealed;
            sealed.push(claimed);
        }
        sealed.len() - before
    }

    /// Claims an item that was not looked at yet, in `place`; `None` if it does not look like the state's, or its number is not to be taken.
    #[inline(always)]
    pub(super) fn claim_one(&self, place: u32, item: &Item, buffer: &PacketBuf) -> Option<Sealed> {
        let bytes = buffer.part(item.start, item.len)?;
        let claimed = self.look(bytes, item.mark, buffer.udp.as_ref())?;
        Some(self.sealed(&claimed, place, item))
    }

    /// What is to be opened of a packet; `None` as above.
    #[inline(always)]
    pub(super) fn look(&self, bytes: &[u8], mark: u32, path: Option<&UdpPath>) -> Option<Claimed> {
        let Self { outer, window, .. } = *self;
        let (spi, sequence) = outer.header(bytes)?;
        if spi != outer.spi || mark != outer.mark {
            return None;
        }
        let Extent { len: end, tos } = outer.read(path, bytes)?;
        if end < outer.at + esp::HEADER_LEN {
            return None;
        }
        let (at, len) = (narrow(outer.at), narrow(end - outer.at));
        Some(Claimed { at, len, number: window.check(sequence).ok()?, tos })
    }

    /// The same, as one among others: the item in `place`.
    #[inline(always)]
    pub(super) fn sealed(&self, claimed: &Claimed, place: u32, item: &Item) -> Sealed {
        let Claimed { at, len, number, tos } = *claimed;
        Sealed {
            item: place,
            used: self.used,
            buffer: item.buffer,
            at: item.start + at,
            len,
            number,
            carried: None,
            tos,
            manner: self.outer.manner,
        }
    }
}

impl Inbound {
    /// Claims packets that look like the latest one of their state, which is the `latest` first of all, up to the first that does not. Says which
    /// that is.
    #[inline(never)]
    pub(super) fn follow(&mut self, places: Range<usize>, latest: &mut Option<u32>) -> usize {
        let Self { items, buffers, used, sealed, marks, .. } = self;
        let mut known = latest.and_then(|latest| Known::of(used, latest));
        let mut place = places.start;
        while let Some(state) = known.filter(|_| marks.is_empty()) {
            let claimed = state.claim(place, &mut items[place..places.end], buffers, sealed);
            place += claimed;
            if claimed > 0 {
                *latest = Some(state.used);
            } else if *latest != Some(state.used) {
                break;
            }
            let next = items[..places.end].get(place);
            known = next.and_then(|item| {
                let buffer = buffers[item.buffer as usize].as_ref()?;
                state.other(item, buffer, used)
            });
        }
        place
    }
}
