//! Stages 3 and 4: SA look-up and replay check.

use std::sync::Arc;

use uxfrm_packet::IpPacket;

use crate::datapath::context::BatchContext;
use crate::{Direction, DropReason, Sa, SaId, Spi};

use super::parse_outer::{self, EspBounds};
use crate::datapath::inbound::outer_template::OuterTemplate;
use crate::datapath::inbound::rx_cache::RxCache;
use crate::datapath::inbound::{
    DecapParams, Fate, Opener, RxBatch, RxItem, SaLookupKey, SealedEsp, narrow,
};
use crate::ids::MAX_DEPTH;

/// Stages 3 and 4. Consecutive packets often have the same SA, `latest`.
#[inline(always)]
pub(crate) fn match_sa(
    place: usize,
    location: &EspBounds,
    latest: &mut Option<u32>,
    rx: &mut RxBatch,
    ctx: &BatchContext<'_>,
) -> Result<Fate, DropReason> {
    let RxItem { buffer, start, mark, ref path, .. } = rx.items[place];
    let (lookup_key, depth) = ((location.id(), mark), path.len());
    let entry = match *latest {
        Some(latest) if rx.rx_cache[latest as usize].has_key(&lookup_key) => latest,
        Some(_) | None => match rx.rx_cache.find_sa(lookup_key, ctx)? {
            Some(found) => *latest.insert(found),
            None => return no_such_sa(place, location, rx, ctx),
        },
    };
    let state = &rx.rx_cache[entry as usize];
    let encap = state.encap;
    if depth == MAX_DEPTH {
        return Err(DropReason::InTooDeep);
    }
    if encap != location.encap {
        return Err(DropReason::InEncapMismatch);
    }
    let (sa, is_ours) = (&state.sa, !state.offloaded && rx.metadata.is_empty());
    let opener = if is_ours { Opener::Engine } else { rx.metadata.opener(&rx.items[place], sa)? };
    let number = sa.replay().check(location.sequence).map_err(|reason| {
        let reason = sa.replay().explain(location.sequence, reason);
        sa.count_failure(reason);
        reason
    })?;
    let opener = match is_ours {
        true => opener,
        false => rx.metadata.opener_of(&rx.items[place], sa, number, opener),
    };
    let moved = encap.is_some() && has_moved(place, location, entry, rx);
    let params =
        DecapParams { outer_hdr: location.outer_hdr, in_udp: location.encap.is_some(), opener };
    if is_ours && !moved && depth == 0 {
        store_outer(place, location, entry, params, rx);
    }
    rx.sealed.push(SealedEsp {
        item: narrow(place),
        entry,
        buffer,
        at: start + narrow(location.at),
        len: narrow(location.len),
        number,
        carried: None,
        tos: location.tos,
        params,
    });
    Ok(Fate::Encrypted)
}

/// Stores the packet's outer headers as the SA's template.
#[inline]
fn store_outer(
    place: usize,
    location: &EspBounds,
    entry: u32,
    params: DecapParams,
    rx: &mut RxBatch,
) {
    let item = &rx.items[place];
    let Some(buffer) = &rx.buffers[item.buffer as usize] else { return };
    rx.rx_cache.store_outer(entry, || OuterTemplate::of(location, params, buffer, item));
}

/// Whether ESP in UDP came from another source than the SA's; records it.
#[inline]
fn has_moved(place: usize, location: &EspBounds, entry: u32, rx: &mut RxBatch) -> bool {
    let sa = &rx.rx_cache[entry as usize].sa;
    let Some(encap) = &sa.config().encap else { return false };
    let item = &rx.items[place];
    let Some(buffer) = &rx.buffers[item.buffer as usize] else { return false };
    let from = match (&location.outer_hdr, &buffer.udp) {
        (Some(outer_hdr), _) => parse_outer::source(item.bytes(buffer), outer_hdr),
        (None, path) => path.as_ref().map(|path| path.remote),
    };
    let moved = from.filter(|from| encap.has_moved(sa.source(), *from));
    rx.nat_remaps.extend(moved.map(|from| (narrow(place), from)));
    moved.is_some()
}

/// ESP without an SA. Packets to other hosts are forwarded like any other.
#[cold]
fn no_such_sa(
    place: usize,
    location: &EspBounds,
    rx: &mut RxBatch,
    ctx: &BatchContext<'_>,
) -> Result<Fate, DropReason> {
    let item = &rx.items[place];
    let buffer = rx.buffers[item.buffer as usize].as_ref();
    let whole = buffer.filter(|_| location.outer_hdr.is_some());
    match whole.map(|buffer| IpPacket::parse(item.bytes(buffer))) {
        Some(Ok(ip)) if !ctx.settings.addresses.holds(ip.destination) => {
            Ok(rx.plain(place, &ip, Direction::Forward))
        }
        Some(_) | None => Err(DropReason::InNoState),
    }
}

impl RxCache {
    /// The SA of the latest packet, if it still receives.
    pub(crate) fn resume(&mut self) -> Option<u32> {
        let latest = self.latest()?;
        self.receives(latest).then_some(latest)
    }

    /// Whether an SA receives; checked once per batch.
    #[inline]
    pub(crate) fn receives(&mut self, entry: u32) -> bool {
        if !self.seen_in_batch(entry) {
            if self[entry as usize].sa.receives().is_err() {
                return false;
            }
            self.mark_seen(entry);
        }
        true
    }

    /// Stage 3: finds an SA that receives. The result is cached; whether it receives is checked
    /// once per batch.
    #[inline(never)]
    fn find_sa(
        &mut self,
        lookup_key: SaLookupKey,
        ctx: &BatchContext<'_>,
    ) -> Result<Option<u32>, DropReason> {
        Ok(Some(match self.find_by_key(lookup_key) {
            Some(known) if self.seen_in_batch(known) => known,
            Some(known) => {
                self[known as usize].sa.receives()?;
                self.mark_seen(known);
                known
            }
            None => {
                let (SaId { destination, spi, protocol }, mark) = lookup_key;
                let found = ctx.snapshot.sad.inbound(destination, spi, protocol, mark);
                let Some(sa) = found.filter(|_| spi != Spi(0)) else { return Ok(None) };
                self.remember(sa, lookup_key)?
            }
        }))
    }

    /// Caches the SA of a look-up that is about to be repeated.
    #[inline]
    pub(crate) fn remember_found(&mut self, sa: &Arc<Sa>, lookup_key: SaLookupKey) {
        if lookup_key.0.spi != Spi(0) && self.find_by_key(lookup_key).is_none() {
            // An SA that does not receive is found again and refused by the repeated look-up.
            let _ = self.remember(sa, lookup_key);
        }
    }

    /// Creates the SA's entry, if the SA receives, and stores its key.
    #[inline]
    fn remember(&mut self, sa: &Arc<Sa>, lookup_key: SaLookupKey) -> Result<u32, DropReason> {
        sa.receives()?;
        let place = self.entry_of(sa);
        self.store_key(place, lookup_key);
        Ok(place)
    }
}
