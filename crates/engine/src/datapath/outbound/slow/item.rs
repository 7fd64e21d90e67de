//! An item: one packet, or the segments of a super-packet, on the outbound slow path.

use uxfrm_crypto::SaKey;
use uxfrm_packet::PacketBuf;

use super::device::Sealer;
use crate::Sa;
use crate::datapath::outbound::seal_jobs::SealJobs;
use crate::datapath::outbound::{ip_id, narrow};
use crate::drop_log::{DropSite, EspAround, SeenPacket};
use crate::esp::encap::{EncapLayer, InnerInfo};
use crate::esp::headers::{self, SeqAndId};

/// Packets of one flow in equal frames, end to end. One cache line.
#[derive(Debug)]
pub(crate) struct TxItem {
    pub(crate) packet: PacketBuf,
    /// Sequence number of the first packet in the current layer.
    pub(crate) sequence: u64,
    pub(crate) bundle: u32,
    /// Frames left; 0 when all were dropped.
    pub(crate) count: u32,
    /// Offset of the current packet in each frame.
    pub(crate) at: u32,
    /// Length of the current packet; only the last one's may differ.
    pub(crate) len: u32,
    pub(crate) last_len: u32,
    /// Bytes of a frame.
    pub(crate) stride: u32,
    /// Properties of the current packet that the next layer needs.
    pub(crate) inner: InnerInfo,
    pub(crate) sealer: Sealer,
}

impl TxItem {
    /// Whether the same layers are sealed by the same engine or device.
    #[inline(always)]
    pub(crate) fn same_encap(&self, other: &Self) -> bool {
        self.bundle == other.bundle && self.sealer == other.sealer
    }

    /// Stage 7: writes a layer around the item's packets and adds seal jobs with `key`.
    #[inline(always)]
    pub(in crate::datapath::outbound) fn wrap<'a>(
        &'a mut self,
        (layer, key): (&EncapLayer, &'a SaKey),
        ident: &mut u32,
        (place, jobs): (usize, &mut SealJobs<'a, '_>),
    ) {
        if self.count != 1 {
            return self.wrap_each((layer, key), ident, (place, jobs));
        }
        let inner = self.inner;
        layer.apply_to(&mut self.inner);
        self.at -= narrow(layer.headroom());
        *ident = ident.wrapping_add(1);
        let seq_id = SeqAndId { sequence: self.sequence, id: ip_id(*ident) };
        let room = &mut self.packet.bytes_mut()[self.at as usize..];
        let len = self.len as usize;
        let esp = headers::wrap(room, len, layer, (&inner, &self.inner), seq_id);
        self.len = narrow(esp.end);
        self.last_len = self.len;
        jobs.push(place, key, layer.seq_high_and_iv(seq_id.sequence), &mut room[esp]);
    }

    /// Like [`TxItem::wrap`], for several packets.
    #[inline(never)]
    fn wrap_each<'a>(
        &'a mut self,
        (layer, key): (&EncapLayer, &'a SaKey),
        ident: &mut u32,
        (place, jobs): (usize, &mut SealJobs<'a, '_>),
    ) {
        let (inner, at) = (self.inner, self.at as usize - layer.headroom());
        layer.apply_to(&mut self.inner);
        let (len, last_len) = (self.len as usize, self.last_len as usize);
        self.at = narrow(at);
        self.len = narrow(layer.sealed_len(len, &inner));
        self.last_len = narrow(layer.sealed_len(last_len, &inner));
        let frames = self.packet.bytes_mut().chunks_mut(self.stride as usize);
        for (k, frame) in (0..self.count).zip(frames) {
            *ident = ident.wrapping_add(1);
            let seq_id = SeqAndId { sequence: self.sequence + u64::from(k), id: ip_id(*ident) };
            let len = if k + 1 == self.count { last_len } else { len };
            let room = &mut frame[at..];
            let esp = headers::wrap(room, len, layer, (&inner, &self.inner), seq_id);
            jobs.push(place, key, layer.seq_high_and_iv(seq_id.sequence), &mut room[esp]);
        }
    }

    /// What is known of the packet in frame `k`, which is dropped.
    pub(crate) fn site(&self, k: u32, sa: &Sa, wrapping: EspAround) -> DropSite<'_> {
        // A device that segments gets one packet for all frames.
        let frame = if self.sealer == Sealer::SegmentingDevice { 0 } else { k * self.stride };
        let len = if k + 1 == self.count { self.last_len } else { self.len };
        let seen = SeenPacket::of(&self.packet);
        let from = seen.bytes.get((frame + self.at) as usize..).unwrap_or_default();
        let bytes = &from[..from.len().min(len as usize)];
        let packet = Some(SeenPacket { bytes, wrapping, ..seen });
        DropSite { packet, ..DropSite::default() }.by_sa(sa)
    }

    /// The frames left, each with the length of its packet.
    pub(crate) fn frames(&mut self) -> impl Iterator<Item = (&mut [u8], usize)> {
        let (count, len, last_len) = (self.count, self.len as usize, self.last_len as usize);
        let frames = self.packet.bytes_mut().chunks_mut(self.stride as usize);
        (0..count)
            .zip(frames)
            .map(move |(k, frame)| (frame, if k + 1 == count { last_len } else { len }))
    }
}
