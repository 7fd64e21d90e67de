//! Packets with a device's metadata ([`crate::device::contract`] has the contract).
//!
//! Mirrors `net/xfrm/xfrm_input.c: xfrm_input` and `include/net/xfrm.h: __xfrm_policy_check2`, as
//! far as they read `struct xfrm_offload`. One difference: Linux trusts packet offload and checks
//! no policy; here such packets are checked like others.

use uxfrm_crypto::OpenStatus;
use uxfrm_packet::{Checksum, PacketBuf};

use super::item::RxItem;
use crate::datapath::context::BatchContext;
use crate::datapath::inbound::RxBatch;
use crate::datapath::inbound::rx_cache::RxCache;
use crate::{DeviceId, DeviceMetadata, Direction, DropReason, OffloadKind, Sa, UncheckedSeq};

/// Who opens a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opener {
    /// The crypto library.
    Engine,
    /// A device opened it and found it authentic.
    Device,
    /// A device tried, and found it forged.
    DeviceForged,
}

impl Opener {
    /// The device's status.
    pub(crate) const fn status(self) -> Option<OpenStatus> {
        match self {
            Self::Engine => None,
            Self::Device => Some(OpenStatus::Authentic),
            Self::DeviceForged => Some(OpenStatus::Forged),
        }
    }
}

/// A device's metadata by packet; none if the packets came otherwise.
#[derive(Debug, Default)]
pub(crate) struct MetadataByBuffer {
    by_buffer: Vec<Option<DeviceMetadata>>,
}

impl MetadataByBuffer {
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_buffer.is_empty()
    }

    pub(crate) fn push(&mut self, metadata: Option<DeviceMetadata>) {
        self.by_buffer.push(metadata);
    }

    pub(crate) fn clear(&mut self) {
        self.by_buffer.clear();
    }

    /// The device's metadata of an item; packets of a burst share one.
    fn of(&self, item: &RxItem) -> Option<DeviceMetadata> {
        *self.by_buffer.get(item.buffer as usize)?
    }

    /// The device that an item came from, if it says so.
    pub(crate) fn device_of(&self, item: &RxItem) -> Option<DeviceId> {
        self.of(item).map(|metadata| metadata.device)
    }

    /// Who opens an ESP packet of an offloaded SA, or one with a device's metadata.
    pub(crate) fn opener(&self, item: &RxItem, sa: &Sa) -> Result<Opener, DropReason> {
        // Device metadata is about the outermost layer only.
        let metadata = self.of(item).filter(|_| item.path.is_empty());
        let Some(metadata) = metadata else {
            return match sa.packet_device() {
                Some(_) => Err(DropReason::InDeviceOnly),
                None => Ok(Opener::Engine),
            };
        };
        let is_its = sa.attachment().is_some_and(|at| {
            at.kind == OffloadKind::Crypto
                && at.device == metadata.device
                && metadata.handle.is_none_or(|handle| handle == at.handle)
        });
        if !is_its {
            return Err(DropReason::InDeviceMark);
        }
        match metadata.status.refusal() {
            None => Ok(Opener::Device),
            Some(DropReason::InForged) => Ok(Opener::DeviceForged),
            Some(reason) => Err(reason),
        }
    }

    /// A device's status holds for the sequence number it used. Below the window the upper half is
    /// taken for the next one (RFC 4303 §A2.2), which only the ICV can refute.
    pub(crate) fn opener_of(
        &self,
        item: &RxItem,
        sa: &Sa,
        number: UncheckedSeq,
        opener: Opener,
    ) -> Opener {
        let as_another = || {
            let metadata = self.of(item);
            sa.extended() && metadata.is_none_or(|it| u64::from(it.high) != number.number() >> 32)
        };
        match opener {
            Opener::Device if as_another() => Opener::DeviceForged,
            Opener::Engine | Opener::Device | Opener::DeviceForged => opener,
        }
    }

    /// Takes over a device's checksum status, unless a layer was removed since.
    pub(crate) fn believe_checksum(&self, item: &mut RxItem, buffer: Option<&PacketBuf>) {
        let whole = self.of(item).is_some_and(|it| it.kind == OffloadKind::Packet);
        if item.path.len() == usize::from(whole)
            && buffer.is_some_and(|buffer| buffer.checksum == Checksum::Verified)
        {
            item.checksum_verified = true;
        }
    }
}

/// Packets with packet offload enter through their SAs here; from here on they are processed like
/// others.
pub(crate) fn admit_from_device(rx: &mut RxBatch, ctx: &mut BatchContext<'_>) {
    let mut latest = None;
    for place in 0..rx.items.len() {
        let RxBatch { items, metadata, rx_cache, .. } = rx;
        let item = &mut items[place];
        let Some(metadata) = metadata.of(item).filter(|it| it.kind == OffloadKind::Packet) else {
            continue;
        };
        // Consecutive packets often have the same SA.
        let outcome = match latest {
            Some((known, state)) if known == metadata => Ok(state),
            Some(_) | None => sa_from_device(metadata, rx_cache, ctx),
        };
        match outcome {
            Ok(state) => {
                latest = Some((metadata, state));
                item.mark = rx_cache[state as usize].framing.output_mark.applied_to(item.mark);
                item.path.push(state);
            }
            Err(reason) => rx.drop(place, reason, ctx),
        }
    }
}

/// Entry of the SA that a device says it processed.
fn sa_from_device(
    metadata: DeviceMetadata,
    rx_cache: &mut RxCache,
    ctx: &BatchContext<'_>,
) -> Result<u32, DropReason> {
    let handle = metadata.handle.ok_or(DropReason::InDeviceMark)?;
    let sa = ctx.snapshot.sad.attached(metadata.device, handle);
    let is_its = |sa: &Sa| {
        let way = sa.config().offload.as_ref().map(|offload| offload.direction);
        sa.packet_device() == Some(metadata.device) && way == Some(Direction::In)
    };
    let sa = sa.filter(|sa| is_its(sa)).ok_or(DropReason::InDeviceMark)?;
    if let Some(reason) = metadata.status.refusal() {
        return Err(reason);
    }
    sa.receives()?;
    Ok(rx_cache.entry_of(sa))
}
