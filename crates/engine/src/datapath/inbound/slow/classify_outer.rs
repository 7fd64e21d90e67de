//! Stages 2 to 4: classifies each packet and finds its SA.

use std::ops::Range;
use std::sync::Arc;

use arrayvec::ArrayVec;
use uxfrm_packet::IpPacket;

use super::parse_outer::{self, CommonClass, EspBounds, OuterClass};
use crate::datapath::context::BatchCtx;
use crate::datapath::inbound::{DATA_AHEAD, FEW, Fate, Inbound, SA_PREFETCH_GROUP};
use crate::spd::fragment_rules::PlainFragment;
use crate::{Action, Direction, DropReason, FlowKey, Sa, SaId, SaProtocol, Spi};

impl Inbound {
    /// Stages 2 to 4.
    pub(crate) fn classify_and_match(&mut self, ctx: &mut BatchCtx<'_>) {
        let mut latest = self.resume();
        let are_many = ctx.snapshot.sad.len() > FEW;
        let mut first = 0;
        while first < self.items.len() {
            let group = first..self.items.len().min(first + SA_PREFETCH_GROUP);
            first = group.end;
            if are_many {
                self.prefetch_sas(group.clone(), ctx);
            }
            let mut rest = group;
            while !rest.is_empty() {
                rest.start = self.match_same_sa(rest.clone(), &mut latest);
                let Some(place) = rest.next() else { break };
                if self.items[place].fate != Fate::New {
                    continue;
                }
                let fate = self.classify_outer(place, &mut latest, ctx);
                match fate {
                    Ok(fate) => self.items[place].fate = fate,
                    Err(reason) => self.drop(place, reason, ctx),
                }
            }
        }
        self.rx_cache.note_latest(latest);
        if self.has_new_buffers {
            self.sealed.sort_unstable_by_key(|sealed| (sealed.buffer, sealed.at));
        }
    }

    /// Looks up the SAs of a group of packets and prefetches their usage, windows and keys.
    fn prefetch_sas(&mut self, group: Range<usize>, ctx: &BatchCtx<'_>) {
        let sad = &ctx.snapshot.sad;
        let mut wanted: ArrayVec<(SaId, u32), SA_PREFETCH_GROUP> = ArrayVec::new();
        let mut numbers: ArrayVec<u32, SA_PREFETCH_GROUP> = ArrayVec::new();
        for place in group.filter(|place| self.items[*place].fate == Fate::New) {
            self.prefetch_data(self.items[place].buffer);
            let Some(location) = self.classify_common(place, ctx) else { continue };
            let (spi, destination) = (Spi(location.spi), location.destination);
            let id = SaId { destination, spi, protocol: SaProtocol::Esp };
            // Consecutive packets often have the same SA.
            if wanted.last().is_none_or(|(last, _)| *last != id) {
                wanted.push((id, self.items[place].mark));
                numbers.push(location.sequence);
            }
        }
        let mut found: ArrayVec<Option<&Arc<Sa>>, SA_PREFETCH_GROUP> = ArrayVec::new();
        sad.lookup_inbound_batch(&wanted, |sa| {
            sa.inspect(|sa| sa.fetch_live());
            found.push(sa);
        });
        for ((sa, number), (id, mark)) in found.iter().zip(&numbers).zip(&wanted) {
            let Some(sa) = sa else { continue };
            sa.fetch_window(*number);
            sa.fetch_key_head();
            self.remember_found(sa, (id.spi, id.destination, *mark));
        }
        found.iter().flatten().for_each(|sa| sa.fetch_keys());
    }

    /// The ESP of a packet with common headers.
    #[inline]
    fn classify_common(&self, place: usize, ctx: &BatchCtx<'_>) -> Option<EspBounds> {
        let item = &self.items[place];
        let buffer = self.buffers[item.buffer as usize].as_ref()?;
        match &buffer.udp {
            Some(path) if item.path.is_empty() => {
                parse_outer::socket(item.bytes(buffer), path).ok()
            }
            Some(_) | None => {
                match parse_outer::classify_common(item.bytes(buffer), ctx.settings) {
                    CommonClass::Esp(location) => Some(location),
                    CommonClass::Plain(_) | CommonClass::Unclear => None,
                }
            }
        }
    }

    /// Prefetches the first bytes of a buffer further on.
    #[inline(always)]
    fn prefetch_data(&self, buffer: u32) {
        let ahead = self.buffers.get(buffer as usize + DATA_AHEAD);
        ahead.and_then(Option::as_ref).inspect(|buffer| buffer.prefetch_bytes());
    }

    /// Stages 2 to 4 of one packet: mostly ESP from a socket or in IPv4 without options, or an
    /// inner packet.
    #[inline(always)]
    fn classify_outer(
        &mut self,
        place: usize,
        latest: &mut Option<u32>,
        ctx: &mut BatchCtx<'_>,
    ) -> Result<Fate, DropReason> {
        let item = &self.items[place];
        let Some(buffer) = &self.buffers[item.buffer as usize] else {
            return Err(DropReason::InUnexpected);
        };
        let bytes = item.bytes(buffer);
        match &buffer.udp {
            Some(path) if item.path.is_empty() => {
                let location = parse_outer::socket(bytes, path)?;
                self.match_sa(place, &location, latest, ctx)
            }
            // Separate code per version: IPv4 addresses are compared and copied as words.
            Some(_) | None => match parse_outer::classify_ipv4(bytes, ctx.settings) {
                CommonClass::Esp(location) => self.match_sa(place, &location, latest, ctx),
                CommonClass::Plain(direction) => self.plain_common(place, direction),
                CommonClass::Unclear => self.classify_outer_v6(place, latest, ctx),
            },
        }
    }

    /// Like [`Inbound::classify_outer`], for all but IPv4 without options.
    #[inline(never)]
    fn classify_outer_v6(
        &mut self,
        place: usize,
        latest: &mut Option<u32>,
        ctx: &mut BatchCtx<'_>,
    ) -> Result<Fate, DropReason> {
        let item = &self.items[place];
        let Some(buffer) = &self.buffers[item.buffer as usize] else {
            return Err(DropReason::InUnexpected);
        };
        match parse_outer::classify_ipv6(item.bytes(buffer), ctx.settings) {
            CommonClass::Esp(location) => self.match_sa(place, &location, latest, ctx),
            CommonClass::Plain(direction) => self.plain_common(place, direction),
            CommonClass::Unclear => self.classify_slow(place, latest, ctx),
        }
    }

    /// A packet without ESP, with a valid header and no options.
    #[inline(never)]
    fn plain_common(&mut self, place: usize, direction: Direction) -> Result<Fate, DropReason> {
        let Self { items, buffers, lookups, rx_cache, .. } = self;
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

    /// Like [`Inbound::classify_outer`], with a full parse.
    #[inline(never)]
    fn classify_slow(
        &mut self,
        place: usize,
        latest: &mut Option<u32>,
        ctx: &mut BatchCtx<'_>,
    ) -> Result<Fate, DropReason> {
        match self.parse_outer(place, ctx)? {
            OuterClass::Esp(location) => self.match_sa(place, &location, latest, ctx),
            OuterClass::Plain(ip, direction) => {
                if ip.is_piece() {
                    self.reject_fragment(place, &ip, ctx)?;
                }
                Ok(self.plain(place, &ip, direction))
            }
            // It may complete a datagram, which is classified in its place.
            OuterClass::Fragment(ip) => self.reassemble(place, &ip, ctx),
        }
    }

    /// Drops a plain fragment that is to be forwarded if a policy that may apply refuses plain
    /// packets. What passes is checked as a packet without ports.
    #[cold]
    fn reject_fragment(
        &self,
        place: usize,
        ip: &IpPacket,
        ctx: &BatchCtx<'_>,
    ) -> Result<(), DropReason> {
        let item = &self.items[place];
        let Some(buffer) = self.buffers[item.buffer as usize].as_ref() else { return Ok(()) };
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
            Action::Allow => DropReason::InTemplateMismatch,
        })
    }

    pub(crate) fn parse_outer(
        &self,
        place: usize,
        ctx: &BatchCtx<'_>,
    ) -> Result<OuterClass, DropReason> {
        let item = &self.items[place];
        let Some(buffer) = &self.buffers[item.buffer as usize] else {
            return Err(DropReason::InUnexpected);
        };
        let bytes = item.bytes(buffer);
        match &buffer.udp {
            Some(path) if item.path.is_empty() => {
                parse_outer::socket(bytes, path).map(OuterClass::Esp)
            }
            Some(_) | None => parse_outer::packet(bytes, ctx.settings),
        }
    }

    /// A packet without ESP.
    #[inline(always)]
    pub(crate) fn plain(&mut self, place: usize, ip: &IpPacket, direction: Direction) -> Fate {
        let Self { items, buffers, lookups, rx_cache, .. } = self;
        let item = &mut items[place];
        let buffer = buffers[item.buffer as usize].as_ref();
        Fate::Plain(item.queue_lookup(ip, buffer, direction, rx_cache, lookups))
    }
}
