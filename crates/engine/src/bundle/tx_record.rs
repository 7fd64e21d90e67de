//! All that a packet needs of its bundle where nothing is done to it but that one state puts IPv4 around it, in one cache line: of many states each
//! packet needs another's.

use std::sync::Arc;

use uxfrm_crypto::{Iv, SaKey, SeqHigh};
use uxfrm_packet::{PacketBuf, Version};

use super::Bundle;
use crate::esp::encap::{Inside, Outer, Outside, Wrap};
use crate::esp::encap_layout::{Headers, Seam, Wrapped};
use crate::esp::headers::{HeaderEnd, Stamp, end_of, sum_of};
use crate::sa::usage::Lifecycle;
use crate::{IvPrefix, Mark, Moment, Sa};

/// Around IPv4 in IPv4; the bundle holds for good.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Exit {
    pub(crate) sa: Arc<Sa>,
    /// What its packets are sealed with.
    pub(crate) key: Arc<SaKey>,
    iv_prefix: IvPrefix,
    header: HeaderEnd,
    seam: Seam,
    pub(crate) account: u32,
    inner_mtu: u16,
    extended: bool,
    chosen: Lifecycle,
}

impl Exit {
    /// That of a bundle; `None` if anything else is to be done, or looked at.
    pub(super) fn of(bundle: &Bundle) -> Option<Self> {
        let (Some(_), Version::V4, Moment(u64::MAX), [layer]) =
            (bundle.express, bundle.inner, bundle.until, &*bundle.layers)
        else {
            return None;
        };
        let Wrap::Tunnel(Outer::V4(template, _)) = &layer.wrap else { return None };
        let is_all = layer.udp.is_none()
            && layer.outside == Outside::Packet
            && layer.output_mark == Mark::default();
        let header = *end_of(template)?;
        is_all.then(|| Self {
            sa: Arc::clone(&layer.sa),
            key: Arc::clone(layer.sa.shared_key()),
            iv_prefix: layer.iv_prefix,
            header,
            seam: layer.seam,
            account: layer.account,
            inner_mtu: u16::try_from(bundle.inner_mtu).unwrap_or(u16::MAX),
            extended: layer.extended,
            chosen: layer.chosen,
        })
    }

    /// As [`Layer::is_as_it_was`](crate::esp::encap::Layer::is_as_it_was).
    #[inline(always)]
    pub(crate) fn works(&self) -> bool {
        self.sa.lifecycle() == self.chosen
    }

    /// Whether a packet that says to have `len` bytes fits, and has room for all that comes around it.
    #[inline(always)]
    pub(crate) fn takes(&self, packet: &PacketBuf, len: usize) -> bool {
        let room = self.seam.room();
        len <= self.inner_mtu.into()
            && packet.headroom() >= room.before
            && packet.tailroom() >= room.behind
    }

    /// Puts all around a packet but the encryption: how many bytes leave, and what of them is to be sealed. `None` without room: then it must not leave.
    #[inline(always)]
    pub(crate) fn wrap<'a>(&self, packet: &'a mut PacketBuf, stamp: Stamp) -> Option<Wrapped<'a>> {
        let (mut after, len) = Inside::of_plain(Version::V4, packet.bytes())?;
        self.seam.enclose(&mut after);
        let headers = Headers::V4(&self.header, sum_of(&self.header), None);
        self.seam.wrap(headers, packet, (&after, len), stamp)
    }

    /// What of a packet's number the crypto library is told.
    #[inline(always)]
    pub(crate) fn counted(&self, sequence: u64) -> (SeqHigh, Iv) {
        let high =
            if self.extended { SeqHigh::Esn((sequence >> 32) as u32) } else { SeqHigh::None };
        let counter = self.iv_prefix.counter(sequence);
        (high, Iv::Counter(counter.unwrap_or_else(|| self.sa.iv_counter(sequence))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_one_cache_line() {
        assert_eq!([size_of::<Exit>(), size_of::<Option<Exit>>()], [64, 64]);
    }
}
