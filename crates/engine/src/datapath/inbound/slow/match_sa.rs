//! 3 State, 4 Replay check: which state a packet is of, and whether its number is new.

use std::sync::Arc;

use uxfrm_packet::IpPacket;

use crate::datapath::context::Bench;
use crate::{Direction, DropReason, Sa, SaProtocol, Spi};

use super::outer::{self, Envelope};
use crate::datapath::inbound::outer_template::Outer;
use crate::datapath::inbound::{Fate, Inbound, Item, Manner, Name, Opener, Sealed, narrow};
use crate::ids::MAX_DEPTH;

impl Inbound {
    /// 3 State, 4 Replay check. Neighbours often are of one state, the `latest`.
    #[inline(always)]
    pub(crate) fn claim(
        &mut self,
        place: usize,
        envelope: &Envelope,
        latest: &mut Option<u32>,
        bench: &Bench<'_>,
    ) -> Result<Fate, DropReason> {
        let Item { buffer, start, mark, ref path, .. } = self.items[place];
        let (name, depth) = ((Spi(envelope.spi), envelope.destination, mark), path.len());
        let used = match *latest {
            Some(latest) if self.used[latest as usize].is_named(&name) => latest,
            Some(_) | None => match self.find(name, bench)? {
                Some(found) => *latest.insert(found),
                None => return self.unclaimed(place, envelope, bench),
            },
        };
        let state = &self.used[used as usize];
        let encap = state.encap;
        if depth == MAX_DEPTH {
            return Err(DropReason::InTooDeep);
        }
        if encap != envelope.encap {
            return Err(DropReason::InEncapMismatch);
        }
        let (sa, is_ours) = (&state.sa, !state.offloaded && self.marks.is_empty());
        let opener = if is_ours { Opener::Engine } else { self.opener(place, sa)? };
        let number = sa.replay().check(envelope.sequence).map_err(|reason| {
            let reason = sa.replay().explain(envelope.sequence, reason);
            sa.count_failure(reason);
            reason
        })?;
        let opener = if is_ours { opener } else { self.opener_of(place, sa, number, opener) };
        let moved = encap.is_some() && self.has_moved(place, envelope, used);
        let manner = Manner { shell: envelope.shell, in_udp: envelope.encap.is_some(), opener };
        if is_ours && !moved && depth == 0 {
            self.note_outer(place, envelope, used, manner);
        }
        self.sealed.push(Sealed {
            item: narrow(place),
            used,
            buffer,
            at: start + narrow(envelope.at),
            len: narrow(envelope.len),
            number,
            carried: None,
            tos: envelope.tos,
            manner,
        });
        Ok(Fate::Sealed)
    }

    /// Remembers how a packet looks outside, for those of its state that look the same.
    #[inline]
    fn note_outer(&mut self, place: usize, envelope: &Envelope, used: u32, manner: Manner) {
        let item = &self.items[place];
        let Some(buffer) = &self.buffers[item.buffer as usize] else { return };
        let look = || Outer::of(envelope, manner, buffer, item);
        self.used.note_outer(used, look);
    }

    /// The state that the latest packet was of, as long as it receives.
    pub(crate) fn resume(&mut self) -> Option<u32> {
        let latest = self.used.latest()?;
        self.receives(latest).then_some(latest)
    }

    /// Whether a state receives, which it is asked in each batch.
    #[inline]
    pub(crate) fn receives(&mut self, used: u32) -> bool {
        if !self.used.has_met(used) {
            if self.used[used as usize].sa.receives().is_err() {
                return false;
            }
            self.used.meet(used);
        }
        true
    }

    /// Whether ESP in UDP came from elsewhere than its state says. If so, that is noted.
    #[inline]
    fn has_moved(&mut self, place: usize, envelope: &Envelope, used: u32) -> bool {
        let sa = &self.used[used as usize].sa;
        let Some(encap) = &sa.config().encap else { return false };
        let item = &self.items[place];
        let Some(buffer) = &self.buffers[item.buffer as usize] else { return false };
        let from = match (&envelope.shell, &buffer.udp) {
            (Some(shell), _) => outer::source(item.bytes(buffer), shell),
            (None, path) => path.as_ref().map(|path| path.remote),
        };
        let moved = from.filter(|from| encap.has_moved(sa.source(), *from));
        self.movers.extend(moved.map(|from| (narrow(place), from)));
        moved.is_some()
    }

    /// 3 State: one that receives. Each is looked up once, as long as no other takes its hint, and asked in each batch whether it receives.
    #[inline(never)]
    fn find(&mut self, name: Name, bench: &Bench<'_>) -> Result<Option<u32>, DropReason> {
        Ok(Some(match self.used.named(name) {
            Some(known) if self.used.has_met(known) => known,
            Some(known) => {
                self.used[known as usize].sa.receives()?;
                self.used.meet(known);
                known
            }
            None => {
                let (spi, destination, mark) = name;
                let found = bench.snapshot.sad.inbound(destination, spi, SaProtocol::Esp, mark);
                let Some(sa) = found.filter(|_| spi != Spi(0)) else { return Ok(None) };
                self.remember(sa, name)?
            }
        }))
    }

    /// Remembers the state that a name has found, for a packet that is about to ask.
    #[inline]
    pub(crate) fn expect(&mut self, sa: &Arc<Sa>, name: Name) {
        if name.0 != Spi(0) && self.used.named(name).is_none() {
            // One that does not receive is found again, and refused, when the packet asks.
            let _ = self.remember(sa, name);
        }
    }

    /// The place of a state that this batch meets, if it receives; the name finds it from now on.
    #[inline]
    fn remember(&mut self, sa: &Arc<Sa>, name: Name) -> Result<u32, DropReason> {
        sa.receives()?;
        let place = self.used.place(sa);
        self.used.note_name(place, name);
        Ok(place)
    }

    /// ESP without a state. That of others passes through like any packet.
    #[cold]
    fn unclaimed(
        &mut self,
        place: usize,
        envelope: &Envelope,
        bench: &Bench<'_>,
    ) -> Result<Fate, DropReason> {
        let item = &self.items[place];
        let buffer = self.buffers[item.buffer as usize].as_ref();
        let whole = buffer.filter(|_| envelope.shell.is_some());
        match whole.map(|buffer| IpPacket::parse(item.bytes(buffer))) {
            Some(Ok(ip)) if !bench.settings.addresses.holds(ip.destination) => {
                Ok(self.plain(place, &ip, Direction::Forward))
            }
            Some(_) | None => Err(DropReason::InNoState),
        }
    }
}
