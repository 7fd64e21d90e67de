//! Stages 2 to 4 for packets whose outer headers match those of an earlier packet of the SA.
//!
//! All other packets, and those to be dropped, are left to the slow path.

use std::ops::Range;

use uxfrm_packet::{HeaderTemplate, PacketBuf, ParsedLen, UdpPath, esp, udp};

use super::rx_cache::RxCache;
use super::slow::parse_outer::EspBounds;
use super::{DecapParams, Fate, RxBatch, RxItem, SealedEsp, narrow};
use crate::sa::replay::{ReplayWindow, UncheckedSeq};

/// Outer headers of a packet that the engine opens and that came from the SA's own source.
#[derive(Clone, Debug)]
pub(super) struct OuterTemplate {
    outer_match: OuterMatch,
    /// Offset of ESP.
    at: usize,
    spi: u32,
    /// The packet's mark.
    mark: u32,
    params: DecapParams,
}

#[derive(Clone, Debug)]
enum OuterMatch {
    Ip(HeaderTemplate),
    /// Nothing between UDP and ESP.
    Udp(HeaderTemplate),
    /// A socket removed both headers.
    Socket(UdpPath),
}

/// An SA with an outer template.
#[derive(Clone, Copy)]
pub(super) struct SaMatcher<'a> {
    entry: u32,
    outer: &'a OuterTemplate,
    window: &'a ReplayWindow,
}

/// ESP bounds and sequence number of a packet that matched.
#[derive(Clone, Copy, Debug)]
pub(super) struct MatchedEsp {
    /// Offset of ESP in the packet, and its length.
    pub(super) at: u32,
    pub(super) len: u32,
    pub(super) number: UncheckedSeq,
    pub(super) tos: u8,
}

impl OuterTemplate {
    /// Template of a parsed packet. `None` if later packets always need a full parse.
    pub(super) fn of(
        location: &EspBounds,
        params: DecapParams,
        buffer: &PacketBuf,
        item: &RxItem,
    ) -> Option<Self> {
        let EspBounds { at, len, spi, outer_hdr, .. } = *location;
        let outside = outer_hdr.map_or(0, |outer_hdr| usize::from(outer_hdr.len));
        let outline = || HeaderTemplate::of(item.bytes(buffer).get(..at + len)?);
        let outer_match = match (location.encap, at - outside) {
            (Some(kind), _) if !kind.properties().marker.is_empty() => return None,
            (Some(_), 0) if outer_hdr.is_none() => OuterMatch::Socket(buffer.udp?),
            (Some(_), udp::HEADER_LEN) => OuterMatch::Udp(outline()?),
            (None, 0) => OuterMatch::Ip(outline()?),
            (Some(_) | None, _) => return None,
        };
        Some(Self { outer_match, at, spi, mark: item.mark, params })
    }

    /// Header template of a packet with IP and ESP alone.
    pub(super) fn outline(&self) -> Option<HeaderTemplate> {
        match self.outer_match {
            OuterMatch::Ip(outline) => Some(outline),
            OuterMatch::Udp(_) | OuterMatch::Socket(_) => None,
        }
    }

    pub(super) fn at(&self) -> u32 {
        narrow(self.at)
    }

    pub(super) fn mark(&self) -> u32 {
        self.mark
    }

    /// Length and TOS of a packet that matches, apart from its SPI; `None` if it does not match or
    /// is malformed.
    #[inline(always)]
    pub(super) fn read(&self, path: Option<&UdpPath>, bytes: &[u8]) -> Option<ParsedLen> {
        match (&self.outer_match, path) {
            (OuterMatch::Ip(outline), None) => outline.matches_with_checksum(bytes),
            (OuterMatch::Udp(outline), None) => {
                let (extent, upper_at) =
                    (outline.matches_with_checksum(bytes)?, outline.header_len());
                let [high, low] = bytes.get(upper_at + 4..)?.first_chunk().copied()?;
                let len = usize::from(u16::from_be_bytes([high, low]));
                (upper_at + len == extent.len).then_some(extent)
            }
            (OuterMatch::Socket(known), Some(path)) => {
                let is_same = (known.remote, known.local) == (path.remote, path.local);
                is_same.then_some(ParsedLen { len: bytes.len(), tos: path.tos })
            }
            (OuterMatch::Ip(_) | OuterMatch::Udp(_), Some(_)) | (OuterMatch::Socket(_), None) => {
                None
            }
        }
    }

    /// SPI and sequence number at the template's offset.
    #[inline(always)]
    fn header(&self, bytes: &[u8]) -> Option<(u32, u32)> {
        let [a, b, c, d, sequence @ ..] = *bytes.get(self.at..)?.first_chunk::<8>()?;
        Some((u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes(sequence)))
    }
}

impl<'a> SaMatcher<'a> {
    /// The SA in an entry, if it has an outer template.
    pub(super) fn of(rx_cache: &'a RxCache, place: u32) -> Option<Self> {
        let outer = rx_cache.templates(place)?.outer.as_ref()?;
        Some(Self { entry: place, outer, window: rx_cache[place as usize].sa.replay() })
    }

    /// Another SA of this batch, by the item's SPI.
    fn other(&self, item: &RxItem, buffer: &PacketBuf, rx_cache: &'a RxCache) -> Option<Self> {
        let (spi, _) = self.outer.header(item.bytes(buffer))?;
        let other = rx_cache.seen_with_spi(spi).filter(|_| spi != self.outer.spi)?;
        Self::of(rx_cache, other).filter(|other| other.outer.spi == spi)
    }

    /// This SA or any cached one, by the packet's SPI.
    #[inline(always)]
    pub(super) fn or_earlier(
        self,
        item: &RxItem,
        buffer: &PacketBuf,
        rx_cache: &'a RxCache,
    ) -> Option<Self> {
        let (spi, _) = self.outer.header(item.bytes(buffer))?;
        if spi == self.outer.spi {
            return Some(self);
        }
        Self::of(rx_cache, rx_cache.with_spi(spi)?)
    }

    /// Matches items from index `place` on, up to the first that does not match. Returns how many.
    #[inline]
    fn match_sa(
        &self,
        place: usize,
        items: &mut [RxItem],
        buffers: &[Option<PacketBuf>],
        sealed: &mut Vec<SealedEsp>,
    ) -> usize {
        let before = sealed.len();
        for (item, place) in items.iter_mut().zip(narrow(place)..) {
            let Some(buffer) = &buffers[item.buffer as usize] else { break };
            if item.fate != Fate::New || !item.path.is_empty() {
                break;
            }
            let Some(matched) = self.match_item(place, item, buffer) else { break };
            item.fate = Fate::Encrypted;
            sealed.push(matched);
        }
        sealed.len() - before
    }

    /// Matches one item; `None` if it does not match or fails the replay check.
    #[inline(always)]
    pub(super) fn match_item(
        &self,
        place: u32,
        item: &RxItem,
        buffer: &PacketBuf,
    ) -> Option<SealedEsp> {
        let bytes = buffer.part(item.start, item.len)?;
        let matched = self.match_packet(bytes, item.mark, buffer.udp.as_ref())?;
        Some(self.sealed(&matched, place, item))
    }

    /// Matches one packet; `None` as above.
    #[inline(always)]
    pub(super) fn match_packet(
        &self,
        bytes: &[u8],
        mark: u32,
        path: Option<&UdpPath>,
    ) -> Option<MatchedEsp> {
        let Self { outer, window, .. } = *self;
        let (spi, sequence) = outer.header(bytes)?;
        if spi != outer.spi || mark != outer.mark {
            return None;
        }
        let ParsedLen { len: end, tos } = outer.read(path, bytes)?;
        if end < outer.at + esp::HEADER_LEN {
            return None;
        }
        let (at, len) = (narrow(outer.at), narrow(end - outer.at));
        Some(MatchedEsp { at, len, number: window.check(sequence).ok()?, tos })
    }

    /// The matched packet as an entry of the list to open, for item `place`.
    #[inline(always)]
    pub(super) fn sealed(&self, matched: &MatchedEsp, place: u32, item: &RxItem) -> SealedEsp {
        let MatchedEsp { at, len, number, tos } = *matched;
        SealedEsp {
            item: place,
            entry: self.entry,
            buffer: item.buffer,
            at: item.start + at,
            len,
            number,
            carried: None,
            tos,
            params: self.outer.params,
        }
    }
}

/// Matches items against the latest SA and then against the SAs that follow by SPI. Returns the
/// index of the first that does not match.
#[inline(never)]
pub(super) fn match_same_sa(
    places: Range<usize>,
    latest: &mut Option<u32>,
    rx: &mut RxBatch,
) -> usize {
    let RxBatch { items, buffers, rx_cache, sealed, metadata, .. } = rx;
    let mut known = latest.and_then(|latest| SaMatcher::of(rx_cache, latest));
    let mut place = places.start;
    while let Some(state) = known.filter(|_| metadata.is_empty()) {
        let matched = state.match_sa(place, &mut items[place..places.end], buffers, sealed);
        place += matched;
        if matched > 0 {
            *latest = Some(state.entry);
        } else if *latest != Some(state.entry) {
            break;
        }
        let next = items[..places.end].get(place);
        known = next.and_then(|item| {
            let buffer = buffers[item.buffer as usize].as_ref()?;
            state.other(item, buffer, rx_cache)
        });
    }
    place
}
