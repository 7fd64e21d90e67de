//! A state whose packets look alike, outside and inside, and may pass: all that the next one is held against, in two cache lines, as of many
//! states each packet needs another's.
//!
//! It is made of what [`Outer`], [`Inner`](super::inner_template::Inner) and the policies say. Whatever is not so, or is to be dropped, is left to the long
//! way, which says what it is.

use std::sync::Arc;

use uxfrm_crypto::{SaKey, SeqHigh};
use uxfrm_packet::{Extent, Outline, PacketBuf, UdpPath, Version, esp};

use super::inner_template::Bare;
use super::narrow;
use super::open::upper_half;
use super::outer_template::{Claimed, Outer};
use super::rx_cache::{Looks, Used};
use crate::esp::decap;
use crate::sa::config::SaFlags;
use crate::sa::replay::Candidate;
use crate::{AnswerId, Mode, Sa, ecn};

#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Regular {
    pub(super) sa: Arc<Sa>,
    pub(super) key: Arc<SaKey>,
    outside: Outside,
    spi: u32,
    /// The packet's, and what it is once the packet is opened.
    mark: u32,
    bare_mark: u32,
    if_id: u32,
    inside: Inside,
    /// The policies under which packets pass.
    pub(super) answer: AnswerId,
    /// The policies of which [epoch](super::rx_cache::UsedStates) say so.
    pub(super) epoch: u16,
    /// What this batch's tally of it is, if that is its own.
    pub(super) tally: u32,
    /// Where what its state is yet to count is likely to be.
    pub(super) debt: u32,
    /// Where ESP begins.
    at: u8,
    /// Bytes of SPI, sequence number and IV; and of ICV.
    lead: u8,
    icv: u8,
    flags: SaFlags,
    extended: bool,
    pub(super) protocol: u8,
}

/// What stands around ESP.
#[derive(Debug)]
enum Outside {
    /// IPv4 alone.
    V4([u64; 3]),
    Other(Box<Outer>),
}

/// How the packet inside looks.
#[derive(Debug)]
enum Inside {
    V4([u64; 3]),
    V6(Box<Outline>),
}

impl Regular {
    /// Of a tunnel's state that is known so well. `None` if something is open yet.
    pub(super) fn of(used: &Used, looks: &Looks, answer: AnswerId) -> Option<Self> {
        let (outer, inner) = (looks.outer.as_ref()?, looks.inner.as_ref()?);
        let around = &used.around;
        let bare_mark = around.output_mark.applied_to(outer.mark());
        if around.mode != Mode::Tunnel || bare_mark != inner.flow.mark {
            return None;
        }
        let small = |bytes: u32| u8::try_from(bytes).ok();
        Some(Self {
            sa: Arc::clone(&used.sa),
            key: Arc::clone(used.sa.shared_key()),
            outside: Outside::of(outer),
            spi: around.spi.0,
            mark: outer.mark(),
            bare_mark,
            if_id: inner.flow.if_id,
            inside: Inside::of(inner.outline()),
            answer,
            epoch: 0,
            tally: 0,
            debt: 0,
            at: small(outer.at())?,
            lead: small(around.lead)?,
            icv: small(around.icv)?,
            flags: around.flags,
            extended: used.extended,
            protocol: inner.flow.protocol,
        })
    }

    /// What is to be opened of a packet; `None` if it does not look like the state's, or its number is not to be taken.
    #[inline(always)]
    pub(super) fn look(&self, bytes: &[u8], mark: u32, path: Option<&UdpPath>) -> Option<Claimed> {
        let at = usize::from(self.at);
        let [a, b, c, d, sequence @ ..] = *bytes.get(at..)?.first_chunk::<8>()?;
        if u32::from_be_bytes([a, b, c, d]) != self.spi || mark != self.mark {
            return None;
        }
        let Extent { len: end, tos } = self.outside.read(path, bytes)?;
        let len = end.checked_sub(at).filter(|len| *len >= esp::HEADER_LEN)?;
        let number = self.sa.replay().check(u32::from_be_bytes(sequence)).ok()?;
        Some(Claimed { at: narrow(at), len: narrow(len), number, tos })
    }

    /// What of a packet's number is not in the packet.
    #[inline(always)]
    pub(super) fn high_of(&self, number: Candidate) -> SeqHigh {
        match self.extended {
            true => SeqHigh::Esn(upper_half(number.number())),
            false => SeqHigh::None,
        }
    }

    /// Of what is inside.
    #[inline(always)]
    pub(super) fn version(&self) -> Version {
        match self.inside {
            Inside::V4(_) => Version::V4,
            Inside::V6(_) => Version::V6,
        }
    }

    /// How a packet that was opened lies in its buffer, if it looks like the state's and stays as it is.
    #[inline(always)]
    pub(super) fn bare(&self, claimed: &Claimed, buffer: &PacketBuf) -> Option<Bare> {
        let (lead, icv) = (u32::from(self.lead), u32::from(self.icv));
        let at = claimed.at + lead;
        let text = buffer.part(at, claimed.len.checked_sub(lead + icv)?)?;
        let stripped = decap::strip(text).ok()?;
        let inside = self.inside.outline();
        let extent = inside.read(&text[..stripped.len])?;
        let stays = stripped.next_header == inside.protocol()
            && buffer.if_id == self.if_id
            && ecn::stays(claimed.tos, self.flags);
        stays.then_some(Bare {
            at,
            len: narrow(extent.len),
            mark: self.bare_mark,
            carried: narrow(stripped.len),
        })
    }
}

impl Outside {
    fn of(outer: &Outer) -> Self {
        match outer.outline() {
            Some(Outline::V4(outline)) => Self::V4(outline),
            Some(Outline::V6(..)) | None => Self::Other(Box::new(outer.clone())),
        }
    }

    #[inline(always)]
    fn read(&self, path: Option<&UdpPath>, bytes: &[u8]) -> Option<Extent> {
        match self {
            Self::V4(outline) if path.is_none() => Outline::V4(*outline).read(bytes),
            Self::V4(_) => None,
            Self::Other(outer) => outer.read(path, bytes),
        }
    }
}

impl Inside {
    fn of(outline: Outline) -> Self {
        match outline {
            Outline::V4(outline) => Self::V4(outline),
            Outline::V6(..) => Self::V6(Box::new(outline)),
        }
    }

    #[inline(always)]
    fn outline(&self) -> Outline {
        match self {
            Self::V4(outline) => Outline::V4(*outline),
            Self::V6(outline) => **outline,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_two_cache_lines() {
        assert_eq!((size_of::<Regular>(), align_of::<Regular>()), (128, 64));
        assert_eq!(size_of::<Option<Regular>>(), 128);
    }
}
