//! 3 State, 4 Replay check: which state a packet is of, and whether its number is new.

use std::net::IpAddr;

use uxfrm_packet::IpPacket;

use crate::worker::Bench;
use crate::{DropReason, Sa, SaProtocol, Spi, UdpEncap};

use super::peel::{self, Envelope};
use super::{Fate, Inbound, Latest, Opener, Sealed, narrow};

impl Inbound {
    /// 3 State, 4 Replay check. Neighbours often are of one state, the `latest`.
    #[inline(always)]
    pub(super) fn claim<'a>(
        &mut self,
        place: usize,
        envelope: &Envelope,
        latest: &mut Option<Latest<'a>>,
        bench: &Bench<'a>,
    ) -> Result<Fate, DropReason> {
        let item = &self.items[place];
        let name = (Spi(envelope.spi), envelope.destination, item.mark);
        let Latest { sa, encap, used, is_ours, .. } = match latest {
            Some(latest) if latest.name == name => *latest,
            Some(_) | None => match self.find(name, bench)? {
                Some(found) => *latest.insert(found),
                None => return self.unclaimed(place, envelope, bench),
            },
        };
        let item = &self.items[place];
        if item.path.is_full() {
            return Err(DropReason::InTooDeep);
        }
        if encap.map(|encap| encap.kind) != envelope.encap {
            return Err(DropReason::InEncapMismatch);
        }
        let opener = if is_ours { Opener::Engine } else { self.opener(place, sa)? };
        let number =
            sa.replay().check(envelope.sequence).inspect_err(|reason| sa.count_failure(*reason))?;
        let moved = encap.is_some_and(|encap| self.has_moved(place, envelope, encap, sa));
        let item = &self.items[place];
        self.sealed.push(Sealed {
            item: narrow(place),
            used,
            buffer: item.buffer,
            at: item.start + narrow(envelope.at),
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
    fn has_moved(&mut self, place: usize, envelope: &Envelope, encap: &UdpEncap, sa: &Sa) -> bool {
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

    /// 3 State: one that receives.
    #[inline(never)]
    fn find<'a>(
        &mut self,
        name: (Spi, IpAddr, u32),
        bench: &Bench<'a>,
    ) -> Result<Option<Latest<'a>>, DropReason> {
        let (spi, destination, mark) = name;
        let found = bench.snapshot.sad.inbound(destination, spi, SaProtocol::Esp, mark);
        let Some(sa) = found.filter(|_| spi != Spi(0)) else { return Ok(None) };
        sa.receives()?;
        let config = sa.config();
        Ok(Some(Latest {
            name,
            sa,
            encap: config.encap.as_ref(),
            used: self.used.place(sa),
            is_ours: config.offload.is_none() && self.marks.is_empty(),
        }))
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
