//! 3 State, 4 Replay check: which state a packet is of, and whether its number is new.

use uxfrm_packet::IpPacket;

use crate::worker::Bench;
use crate::{DropReason, SaProtocol, Spi};

use super::peel::{self, Envelope};
use super::{Fate, Inbound, Item, Latest, Name, Opener, Sealed, narrow};

impl Inbound {
    /// 3 State, 4 Replay check. Neighbours often are of one state, the `latest`.
    #[inline(always)]
    pub(super) fn claim(
        &mut self,
        place: usize,
        envelope: &Envelope,
        latest: &mut Option<Latest>,
        bench: &Bench<'_>,
    ) -> Result<Fate, DropReason> {
        let Item { buffer, start, mark, ref path, .. } = self.items[place];
        let (name, is_deepest) = ((Spi(envelope.spi), envelope.destination, mark), path.is_full());
        let Latest { encap, used, is_ours, .. } = match latest {
            Some(latest) if latest.name == name => *latest,
            Some(_) | None => match self.find(name, bench)? {
                Some(found) => *latest.insert(found),
                None => return self.unclaimed(place, envelope, bench),
            },
        };
        if is_deepest {
            return Err(DropReason::InTooDeep);
        }
        if encap != envelope.encap {
            return Err(DropReason::InEncapMismatch);
        }
        let sa = &self.used[used as usize].sa;
        let opener = if is_ours { Opener::Engine } else { self.opener(place, sa)? };
        let number =
            sa.replay().check(envelope.sequence).inspect_err(|reason| sa.count_failure(*reason))?;
        let moved = encap.is_some() && self.has_moved(place, envelope, used);
        self.sealed.push(Sealed {
            item: narrow(place),
            used,
            buffer,
            at: start + narrow(envelope.at),
            len: narrow(envelope.len),
            number,
            carried: None,
            shell: envelope.shell,
            tos: envelope.tos,
            in_udp: envelope.encap.is_some(),
            moved,
            opener,
        });
        Ok(Fate::Sealed)
    }

    /// Whether ESP in UDP came from elsewhere than its state says. If so, that is noted.
    #[inline]
    fn has_moved(&mut self, place: usize, envelope: &Envelope, used: u32) -> bool {
        let sa = &self.used[used as usize].sa;
        let Some(encap) = &sa.config().encap else { return false };
        let item = &self.items[place];
        let Some(buffer) = &self.buffers[item.buffer as usize] else { return false };
        let from = match (&envelope.shell, &buffer.udp) {
            (Some(shell), _) => peel::source(item.bytes(buffer), shell),
            (None, path) => path.as_ref().map(|path| path.remote),
        };
        let moved = from.filter(|from| encap.has_moved(sa.source(), *from));
        self.movers.extend(moved.map(|from| (narrow(place), from)));
        moved.is_some()
    }

    /// 3 State: one that receives. Each is looked up once, as long as no other takes its hint, and asked in each batch whether it receives.
    #[inline(never)]
    fn find(&mut self, name: Name, bench: &Bench<'_>) -> Result<Option<Latest>, DropReason> {
        let used = match self.used.named(name) {
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
                sa.receives()?;
                let place = self.used.place(sa);
                self.used.note_name(place, name);
                place
            }
        };
        let state = &self.used[used as usize];
        let is_ours = !state.offloaded && self.marks.is_empty();
        Ok(Some(Latest { name, encap: state.encap, used, is_ours }))
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
                Ok(self.plain(place, &ip, false))
            }
            Some(_) | None => Err(DropReason::InNoState),
        }
    }
}
