//! Record of a bundle for the interleaved fast path: all that a packet needs if one SA puts IPv4
//! around it and nothing else happens, in one cache line, as consecutive packets may each use
//! another SA.

use std::sync::Arc;

use uxfrm_crypto::{Iv, SaKey, SeqHigh};
use uxfrm_packet::{PacketBuf, Version};

use super::Bundle;
use crate::esp::encap::{EncapMode, InnerInfo, OuterForm, TunnelHeader};
use crate::esp::encap_layout::{EncapLayout, Encapsulated, TunnelHeaders};
use crate::esp::headers::{Ipv4HeaderTail, SeqAndId, end_of, sum_of};
use crate::sa::usage::Lifecycle;
use crate::{IvPrefix, Mark, Moment, Sa};

/// For IPv4 in IPv4; the bundle has no expiry.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct TxRecord {
    pub(crate) sa: Arc<Sa>,
    /// The SA's key.
    pub(crate) key: Arc<SaKey>,
    iv_prefix: IvPrefix,
    header: Ipv4HeaderTail,
    layout: EncapLayout,
    pub(crate) tally: u32,
    inner_mtu: u16,
    extended: bool,
    lifecycle: Lifecycle,
}

impl TxRecord {
    /// Record of a bundle; `None` if its packets need anything else.
    pub(super) fn of(bundle: &Bundle) -> Option<Self> {
        let (Some(_), Version::V4, Moment(u64::MAX), [layer]) =
            (bundle.fast_room, bundle.inner, bundle.until, &*bundle.layers)
        else {
            return None;
        };
        let EncapMode::Tunnel(TunnelHeader::V4(template, _)) = &layer.wrap else { return None };
        let is_all = layer.udp.is_none()
            && layer.outside == OuterForm::Packet
            && layer.output_mark == Mark::default();
        let header = *end_of(template)?;
        is_all.then(|| Self {
            sa: Arc::clone(&layer.sa),
            key: Arc::clone(layer.sa.shared_key()),
            iv_prefix: layer.iv_prefix,
            header,
            layout: layer.layout,
            tally: layer.tally,
            inner_mtu: u16::try_from(bundle.inner_mtu).unwrap_or(u16::MAX),
            extended: layer.extended,
            lifecycle: layer.lifecycle,
        })
    }

    /// As [`EncapLayer::is_unchanged`](crate::esp::encap::EncapLayer::is_unchanged).
    #[inline(always)]
    pub(crate) fn works(&self) -> bool {
        self.sa.lifecycle() == self.lifecycle
    }

    /// Whether a packet of `len` bytes by its own header fits, with room for all headers.
    #[inline(always)]
    pub(crate) fn takes(&self, packet: &PacketBuf, len: usize) -> bool {
        let room = self.layout.room();
        len <= self.inner_mtu.into()
            && packet.headroom() >= room.before
            && packet.tailroom() >= room.behind
    }

    /// Encapsulates a packet, except for encryption. Returns the bytes that leave and the part to
    /// seal. `None` without room: then the packet must not leave.
    #[inline(always)]
    pub(crate) fn wrap<'a>(
        &self,
        packet: &'a mut PacketBuf,
        seq_id: SeqAndId,
    ) -> Option<Encapsulated<'a>> {
        let (mut after, len) = InnerInfo::from_fixed_header(Version::V4, packet.bytes())?;
        self.layout.apply_to(&mut after);
        let headers = TunnelHeaders::V4(&self.header, sum_of(&self.header), None);
        self.layout.wrap(headers, packet, (&after, len), seq_id)
    }

    /// Upper sequence number half and IV for the crypto library.
    #[inline(always)]
    pub(crate) fn seq_high_and_iv(&self, sequence: u64) -> (SeqHigh, Iv) {
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
    fn tx_record_has_one_cache_line() {
        assert_eq!([size_of::<TxRecord>(), size_of::<Option<TxRecord>>()], [64, 64]);
    }
}
