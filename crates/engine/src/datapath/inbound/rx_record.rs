//! Record of an SA whose packets match one template outside and one inside, and pass: everything
//! that the next packet is checked against, in two cache lines, as consecutive packets may each use
//! another SA.
//!
//! It combines [`OuterTemplate`], [`InnerTemplate`](super::inner_template::InnerTemplate) and the
//! verdict of the policies. All other packets, and those to be dropped, are left to the slow path.

use std::sync::Arc;

use uxfrm_crypto::{SaKey, SeqHigh};
use uxfrm_packet::{HeaderTemplate, PacketBuf, ParsedLen, UdpPath, Version, esp};

use super::inner_template::InnerPacket;
use super::narrow;
use super::open::upper_half;
use super::outer_template::{MatchedEsp, OuterTemplate};
use super::rx_cache::{RxEntry, RxTemplates};
use crate::esp::decap;
use crate::sa::config::SaFlags;
use crate::sa::replay::UncheckedSeq;
use crate::{Mode, Sa, VerdictId, ecn};

#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct RxRecord {
    pub(super) sa: Arc<Sa>,
    pub(super) key: Arc<SaKey>,
    outer: RecordOuter,
    spi: u32,
    /// Mark of the packet, and of the inner packet.
    mark: u32,
    inner_mark: u32,
    if_id: u32,
    inner: RecordInner,
    /// Verdict under which packets pass.
    pub(super) answer: VerdictId,
    /// Policy epoch of `answer`, see [`RxCache`](super::rx_cache::RxCache).
    pub(super) epoch: u16,
    /// Index of the SA's tally in this batch; a hint.
    pub(super) tally: u32,
    /// Likely index of the SA's pending count.
    pub(super) pending_slot: u32,
    /// Offset of ESP.
    at: u8,
    /// Bytes of SPI, sequence number and IV.
    header_iv_len: u8,
    icv: u8,
    flags: SaFlags,
    extended: bool,
    pub(super) protocol: u8,
}

/// Template of the outer headers.
#[derive(Debug)]
enum RecordOuter {
    /// IPv4 alone.
    V4([u64; 3]),
    Other(Box<OuterTemplate>),
}

/// Template of the inner headers.
#[derive(Debug)]
enum RecordInner {
    V4([u64; 3]),
    V6(Box<HeaderTemplate>),
}

impl RxRecord {
    /// Record of a tunnel SA; `None` if a template is missing.
    pub(super) fn of(
        rx_cache: &RxEntry,
        templates: &RxTemplates,
        answer: VerdictId,
    ) -> Option<Self> {
        let (outer, inner) = (templates.outer.as_ref()?, templates.inner.as_ref()?);
        let framing = &rx_cache.framing;
        let inner_mark = framing.output_mark.applied_to(outer.mark());
        if framing.mode != Mode::Tunnel || inner_mark != inner.flow.mark {
            return None;
        }
        let small = |bytes: u32| u8::try_from(bytes).ok();
        Some(Self {
            sa: Arc::clone(&rx_cache.sa),
            key: Arc::clone(rx_cache.sa.shared_key()),
            outer: RecordOuter::of(outer),
            spi: framing.spi.0,
            mark: outer.mark(),
            inner_mark,
            if_id: inner.flow.if_id,
            inner: RecordInner::of(inner.outline()),
            answer,
            epoch: 0,
            tally: 0,
            pending_slot: 0,
            at: small(outer.at())?,
            header_iv_len: small(framing.header_iv_len)?,
            icv: small(framing.icv)?,
            flags: framing.flags,
            extended: rx_cache.extended,
            protocol: inner.flow.protocol,
        })
    }

    /// Matches a packet; `None` if it does not match or fails the replay check.
    #[inline(always)]
    pub(super) fn match_packet(
        &self,
        bytes: &[u8],
        mark: u32,
        path: Option<&UdpPath>,
    ) -> Option<MatchedEsp> {
        let at = usize::from(self.at);
        let [a, b, c, d, sequence @ ..] = *bytes.get(at..)?.first_chunk::<8>()?;
        if u32::from_be_bytes([a, b, c, d]) != self.spi || mark != self.mark {
            return None;
        }
        let ParsedLen { len: end, tos } = self.outer.read(path, bytes)?;
        let len = end.checked_sub(at).filter(|len| *len >= esp::HEADER_LEN)?;
        let number = self.sa.replay().check(u32::from_be_bytes(sequence)).ok()?;
        Some(MatchedEsp { at: narrow(at), len: narrow(len), number, tos })
    }

    /// Upper half of an extended sequence number.
    #[inline(always)]
    pub(super) fn high_of(&self, number: UncheckedSeq) -> SeqHigh {
        match self.extended {
            true => SeqHigh::Esn(upper_half(number.number())),
            false => SeqHigh::None,
        }
    }

    /// IP version of the inner packet.
    #[inline(always)]
    pub(super) fn version(&self) -> Version {
        match self.inner {
            RecordInner::V4(_) => Version::V4,
            RecordInner::V6(_) => Version::V6,
        }
    }

    /// Bounds of the decrypted inner packet if it matches and needs no ECN rewrite.
    #[inline(always)]
    pub(super) fn inner_packet(
        &self,
        matched: &MatchedEsp,
        buffer: &PacketBuf,
    ) -> Option<InnerPacket> {
        let (header_iv_len, icv) = (u32::from(self.header_iv_len), u32::from(self.icv));
        let at = matched.at + header_iv_len;
        let text = buffer.part(at, matched.len.checked_sub(header_iv_len + icv)?)?;
        let stripped = decap::strip(text).ok()?;
        let inner = self.inner.outline();
        let extent = inner.matches_with_checksum(&text[..stripped.len])?;
        let stays = stripped.next_header == inner.protocol()
            && buffer.if_id == self.if_id
            && ecn::stays(matched.tos, self.flags);
        stays.then_some(InnerPacket {
            at,
            len: narrow(extent.len),
            mark: self.inner_mark,
            carried: narrow(stripped.len),
        })
    }
}

impl RecordOuter {
    fn of(outer: &OuterTemplate) -> Self {
        match outer.outline() {
            Some(HeaderTemplate::V4(outline)) => Self::V4(outline),
            Some(HeaderTemplate::V6(..)) | None => Self::Other(Box::new(outer.clone())),
        }
    }

    #[inline(always)]
    fn read(&self, path: Option<&UdpPath>, bytes: &[u8]) -> Option<ParsedLen> {
        match self {
            Self::V4(outline) if path.is_none() => {
                HeaderTemplate::V4(*outline).matches_with_checksum(bytes)
            }
            Self::V4(_) => None,
            Self::Other(outer) => outer.read(path, bytes),
        }
    }
}

impl RecordInner {
    fn of(outline: HeaderTemplate) -> Self {
        match outline {
            HeaderTemplate::V4(outline) => Self::V4(outline),
            HeaderTemplate::V6(..) => Self::V6(Box::new(outline)),
        }
    }

    #[inline(always)]
    fn outline(&self) -> HeaderTemplate {
        match self {
            Self::V4(outline) => HeaderTemplate::V4(*outline),
            Self::V6(outline) => **outline,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rx_record_has_two_cache_lines() {
        assert_eq!((size_of::<RxRecord>(), align_of::<RxRecord>()), (128, 64));
        assert_eq!(size_of::<Option<RxRecord>>(), 128);
    }
}
