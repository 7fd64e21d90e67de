//! What stands for a packet, or for those that a super-packet was cut into, on its way out.

use uxfrm_crypto::SaKey;
use uxfrm_packet::PacketBuf;

use super::device::Sealer;
use crate::datapath::outbound::seal_jobs::Jobs;
use crate::datapath::outbound::{fold_half, narrow};
use crate::esp::encap::{Inside, Layer};
use crate::esp::headers::{self, Stamp};

/// Packets of one flow in equal frames end to end; one packet, or those that a super-packet was cut into. One cache line.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) packet: PacketBuf,
    /// The sequence number of the first one in the layer that is being worked on.
    pub(crate) sequence: u64,
    pub(crate) bundle: u32,
    /// Frames left; none when all were dropped.
    pub(crate) count: u32,
    /// Where in each frame the packet begins that now is.
    pub(crate) at: u32,
    /// Its length; all are equal but for the last.
    pub(crate) len: u32,
    pub(crate) last_len: u32,
    /// Bytes of a frame.
    pub(crate) stride: u32,
    /// What the next header outward is made from.
    pub(crate) inside: Inside,
    pub(crate) sealer: Sealer,
}

impl Item {
    /// Whether the same layers are put around it by the same.
    #[inline(always)]
    pub(crate) fn leaves_like(&self, other: &Self) -> bool {
        self.bundle == other.bundle && self.sealer == other.sealer
    }

    /// 7 Wrap: puts a layer around its packets, which are to be sealed with `key`.
    #[inline(always)]
    pub(crate) fn wrap<'a>(
        &'a mut self,
        (layer, key): (&Layer, &'a SaKey),
        ident: &mut u32,
        (place, jobs): (usize, &mut Jobs<'a, '_>),
    ) {
        if self.count != 1 {
            return self.wrap_each((layer, key), ident, (place, jobs));
        }
        let inside = self.inside;
        layer.enclose(&mut self.inside);
        self.at -= narrow(layer.front());
        *ident = ident.wrapping_add(1);
        let stamp = Stamp { sequence: self.sequence, id: fold_half(*ident) };
        let room = &mut self.packet.bytes_mut()[self.at as usize..];
        let len = self.len as usize;
        let esp = headers::wrap(room, len, layer, (&inside, &self.inside), stamp);
        self.len = narrow(esp.end);
        self.last_len = self.len;
        jobs.push(place, key, layer.counted(stamp.sequence), &mut room[esp]);
    }

    /// As [`Item::wrap`], of those that a super-packet was cut into.
    #[inline(never)]
    fn wrap_each<'a>(
        &'a mut self,
        (layer, key): (&Layer, &'a SaKey),
        ident: &mut u32,
        (place, jobs): (usize, &mut Jobs<'a, '_>),
    ) {
        let (inside, at) = (self.inside, self.at as usize - layer.front());
        layer.enclose(&mut self.inside);
        let (len, last_len) = (self.len as usize, self.last_len as usize);
        self.at = narrow(at);
        self.len = narrow(layer.sealed_len(len, &inside));
        self.last_len = narrow(layer.sealed_len(last_len, &inside));
        let frames = self.packet.bytes_mut().chunks_mut(self.stride as usize);
        for (k, frame) in (0..self.count).zip(frames) {
            *ident = ident.wrapping_add(1);
            let stamp = Stamp { sequence: self.sequence + u64::from(k), id: fold_half(*ident) };
            let len = if k + 1 == self.count { last_len } else { len };
            let room = &mut frame[at..];
            let esp = headers::wrap(room, len, layer, (&inside, &self.inside), stamp);
            jobs.push(place, key, layer.counted(stamp.sequence), &mut room[esp]);
        }
    }

    /// The frames left, and the length of the packet in each.
    pub(crate) fn frames(&mut self) -> impl Iterator<Item = (&mut [u8], usize)> {
        let (count, len, last_len) = (self.count, self.len as usize, self.last_len as usize);
        let frames = self.packet.bytes_mut().chunks_mut(self.stride as usize);
        (0..count)
            .zip(frames)
            .map(move |(k, frame)| (frame, if k + 1 == count { last_len } else { len }))
    }
}
