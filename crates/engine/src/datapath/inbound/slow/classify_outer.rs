//! Stages 2 to 4: classifies each packet and finds its SA.

use std::ops::Range;
use std::sync::Arc;

use arrayvec::ArrayVec;
use uxfrm_packet::{IpPacket, PacketBuf};

use super::match_sa::match_sa;
use super::parse_outer::{self, CommonClass, EspBounds, OuterClass};
use super::reassemble::Reassembler;
use crate::datapath::context::BatchContext;
use crate::datapath::inbound::outer_template::match_same_sa;
use crate::datapath::inbound::{
    DATA_AHEAD, FEW, Fate, RxBatch, RxItem, SA_PREFETCH_GROUP, SaLookupKey,
};
use crate::spd::fragment_rules::PlainFragment;
use crate::{Action, Direction, DropReason, FlowKey, Sa};

/// Stages 2 to 4.
#[derive(Debug, Default)]
pub(crate) struct OuterClassifier {
    pub(crate) reassembler: Reassembler,
}

impl OuterClassifier {
    /// Stages 2 to 4.
    pub(crate) fn classify_and_match(&mut self, rx: &mut RxBatch, ctx: &mut BatchContext<'_>) {
        let mut latest = rx.rx_cache.resume();
        let are_many = ctx.snapshot.sad.len() > FEW;
        let mut first = 0;
        while first < rx.items.len() {
            let group = first..rx.items.len().min(first + SA_PREFETCH_GROUP);
            first = group.end;
            if are_many {
                prefetch_sas(group.clone(), rx, ctx);
            }
            let mut rest = group;
            while !rest.is_empty() {
                rest.start = match_same_sa(rest.clone(), &mut latest, rx);
                let Some(place) = rest.next() else { break };
                if rx.items[place].fate != Fate::New {
                    continue;
                }
                let fate = self.classify_outer(place, &mut latest, rx, ctx);
                match fate {
                    Ok(fate) => rx.items[place].fate = fate,
                    Err(reason) => rx.drop(place, reason, ctx),
                }
            }
        }
        rx.rx_cache.note_latest(latest);
        if rx.has_new_buffers {
            rx.sealed.sort_unstable_by_key(|sealed| (sealed.buffer, sealed.at));
        }
    }

    /// Stages 2 to 4 of one packet: mostly ESP from a socket or in IPv4 without options, or an
    /// inner packet.
    #[inline(always)]
    fn classify_outer(
        &mut self,
        place: usize,
        latest: &mut Option<u32>,
        rx: &mut RxBatch,
        ctx: &mut BatchContext<'_>,
    ) -> Result<Fate, DropReason> {
        let item = &rx.items[place];
        let Some(buffer) = &rx.buffers[item.buffer as usize] else {
            return Err(DropReason::InUnexpected);
        };
        let bytes = item.bytes(buffer);
        match &buffer.udp {
            Some(path) if item.path.is_empty() => {
                let location = parse_outer::socket(bytes, path)?;
                match_sa(place, &location, latest, rx, ctx)
            }
            // Separate code per version: IPv4 addresses are compared and copied as words.
            Some(_) | None => match parse_outer::classify_ipv4(bytes, ctx.settings) {
                CommonClass::Esp(location) => match_sa(place, &location, latest, rx, ctx),
                CommonClass::Plain(direction) => plain_common(place, direction, rx),
                CommonClass::Unclear => self.classify_outer_v6(place, latest, rx, ctx),
            },
        }
    }

    /// Like [`Self::classify_outer`], for all but IPv4 without options.
    #[inline(never)]
    fn classify_outer_v6(
        &mut self,
        place: usize,
        latest: &mut Option<u32>,
        rx: &mut RxBatch,
        ctx: &mut BatchContext<'_>,
    ) -> Result<Fate, DropReason> {
        let item = &rx.items[place];
        let Some(buffer) = &rx.buffers[item.buffer as usize] else {
            return Err(DropReason::InUnexpected);
        };
        match parse_outer::classify_ipv6(item.bytes(buffer), ctx.settings) {
            CommonClass::Esp(location) => match_sa(place, &location, latest, rx, ctx),
            CommonClass::Plain(direction) => plain_common(place, direction, rx),
            CommonClass::Unclear => self.classify_slow(place, latest, rx, ctx),
        }
    }

    /// Like [`Self::classify_outer`], with a full parse.
    #[inline(never)]
    fn classify_slow(
        &mut self,
        place: usize,
        latest: &mut Option<u32>,
        rx: &mut RxBatch,
        ctx: &mut BatchContext<'_>,
    ) -> Result<Fate, DropReason> {
        match parse_whole(place, rx, ctx)? {
            OuterClass::Esp(location) => match_sa(place, &location, latest, rx, ctx),
            OuterClass::Plain(ip, direction) => {
                if ip.is_piece() {
                    reject_fragment(place, &ip, rx, ctx)?;
                }
                Ok(rx.plain(place, &ip, direction))
            }
            // It may complete a datagram, which is classified in its place.
            OuterClass::Fragment(ip) => self.reassembler.reassemble(place, &ip, rx, ctx),
        }
    }
}

/// Looks up the SAs of a group of packets and prefetches their usage, windows and keys.
fn prefetch_sas(group: Range<usize>, rx: &mut RxBatch, ctx: &BatchContext<'_>) {
    let sad = &ctx.snapshot.sad;
    let mut wanted: ArrayVec<SaLookupKey, SA_PREFETCH_GROUP> = ArrayVec::new();
    let mut numbers: ArrayVec<u32, SA_PREFETCH_GROUP> = ArrayVec::new();
    for item in rx.items[group].iter().filter(|item| item.fate == Fate::New) {
        prefetch_data(item.buffer, &rx.buffers);
        let Some(location) = classify_common(item, &rx.buffers, ctx) else { continue };
        let id = location.id();
        // Consecutive packets often have the same SA.
        if wanted.last().is_none_or(|(last, _)| *last != id) {
            wanted.push((id, item.mark));
            numbers.push(location.sequence);
        }
    }
    let mut found: ArrayVec<Option<&Arc<Sa>>, SA_PREFETCH_GROUP> = ArrayVec::new();
    sad.lookup_inbound_batch(&wanted, |sa| {
        sa.inspect(|sa| sa.fetch_live());
        found.push(sa);
    });
    for ((sa, number), lookup_key) in found.iter().zip(&numbers).zip(&wanted) {
        let Some(sa) = sa else { continue };
        sa.fetch_window(*number);
        sa.fetch_key_head();
        rx.rx_cache.remember_found(sa, *lookup_key);
    }
    found.iter().flatten().for_each(|sa| sa.fetch_keys());
}

/// The ESP of a packet with common headers.
#[inline]
fn classify_common(
    item: &RxItem,
    buffers: &[Option<PacketBuf>],
    ctx: &BatchContext<'_>,
) -> Option<EspBounds> {
    let buffer = buffers[item.buffer as usize].as_ref()?;
    match &buffer.udp {
        Some(path) if item.path.is_empty() => parse_outer::socket(item.bytes(buffer), path).ok(),
        Some(_) | None => match parse_outer::classify_common(item.bytes(buffer), ctx.settings) {
            CommonClass::Esp(location) => Some(location),
            CommonClass::Plain(_) | CommonClass::Unclear => None,
        },
    }
}

/// Prefetches the first bytes of a buffer further on.
#[inline(always)]
fn prefetch_data(buffer: u32, buffers: &[Option<PacketBuf>]) {
    let ahead = buffers.get(buffer as usize + DATA_AHEAD);
    ahead.and_then(Option::as_ref).inspect(|buffer| buffer.prefetch_bytes());
}

/// A packet without ESP, with a valid header and no options.
#[inline(never)]
fn plain_common(place: usize, direction: Direction, rx: &mut RxBatch) -> Result<Fate, DropReason> {
    let RxBatch { items, buffers, lookups, rx_cache, .. } = rx;
    let item = &mut items[place];
    let Some(buffer) = &buffers[item.buffer as usize] else {
        return Err(DropReason::InUnexpected);
    };
    let bytes = item.bytes(buffer);
    let ask = |ip: IpPacket| {
        Fate::Plain(item.queue_lookup(&ip, Some(buffer), direction, rx_cache, lookups))
    };
    IpPacket::parse_then(bytes, ask).map_err(|_| DropReason::InMalformed)
}

/// Drops a plain fragment that is to be forwarded if a policy that may apply refuses plain packets.
/// What passes is checked as a packet without ports.
#[cold]
fn reject_fragment(
    place: usize,
    ip: &IpPacket,
    rx: &RxBatch,
    ctx: &BatchContext<'_>,
) -> Result<(), DropReason> {
    let item = &rx.items[place];
    let Some(buffer) = rx.buffers[item.buffer as usize].as_ref() else { return Ok(()) };
    if !item.path.is_empty() {
        return Ok(());
    }
    let bytes = item.bytes(buffer);
    let flow = FlowKey { mark: item.mark, ..FlowKey::of(buffer, ip, bytes) };
    let Some(entry) = ctx.snapshot.spd.refuses_fragment(&PlainFragment::of(&flow, ip)) else {
        return Ok(());
    };
    entry.record_use(1, bytes.len() as u64, ctx.now);
    Err(match entry.action() {
        Action::Block if entry.is_held() => DropReason::InHeld,
        Action::Block => DropReason::InPolicyBlock,
        Action::Allow if entry.device().is_some() => DropReason::InDeviceUnmarked,
        Action::Allow => DropReason::InUnprotected,
    })
}

pub(crate) fn parse_whole(
    place: usize,
    rx: &RxBatch,
    ctx: &BatchContext<'_>,
) -> Result<OuterClass, DropReason> {
    let item = &rx.items[place];
    let Some(buffer) = &rx.buffers[item.buffer as usize] else {
        return Err(DropReason::InUnexpected);
    };
    let bytes = item.bytes(buffer);
    match &buffer.udp {
        Some(path) if item.path.is_empty() => parse_outer::socket(bytes, path).map(OuterClass::Esp),
        Some(_) | None => parse_outer::packet(bytes, ctx.settings),
    }
}
