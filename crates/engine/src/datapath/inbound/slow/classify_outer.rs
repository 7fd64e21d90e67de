//! 2 Peel, 3 State and 4 Replay check: what each packet is.

use std::ops::Range;
use std::sync::Arc;

use arrayvec::ArrayVec;
use uxfrm_packet::IpPacket;

use super::outer::{self, Envelope, Peeled, Usual};
use crate::datapath::context::Bench;
use crate::datapath::inbound::{BYTES_AHEAD, FEW, Fate, Inbound, TOGETHER};
use crate::spd::fragment_rules::Piece;
use crate::{Action, Direction, DropReason, FlowKey, Sa, SaId, SaProtocol, Spi};

impl Inbound {
    /// 2 Peel, 3 State, 4 Replay check.
    pub(crate) fn peel_all(&mut self, bench: &mut Bench<'_>) {
        let mut latest = self.resume();
        let are_many = bench.snapshot.sad.len() > FEW;
        let mut first = 0;
        while first < self.items.len() {
            let group = first..self.items.len().min(first + TOGETHER);
            first = group.end;
            if are_many {
                self.fetch_states(group.clone(), bench);
            }
            let mut rest = group;
            while !rest.is_empty() {
                rest.start = self.follow(rest.clone(), &mut latest);
                let Some(place) = rest.next() else { break };
                if self.items[place].fate != Fate::New {
                    continue;
                }
                let fate = self.look_at(place, &mut latest, bench);
                match fate {
                    Ok(fate) => self.items[place].fate = fate,
                    Err(reason) => self.drop(place, reason, bench),
                }
            }
        }
        self.used.note_latest(latest);
        if self.settled {
            self.sealed.sort_unstable_by_key(|sealed| (sealed.buffer, sealed.at));
        }
    }

    /// Finds the states of a group's packets, and asks for what each says, what changes with each packet, and keys and windows, before the first is
    /// waited for.
    fn fetch_states(&mut self, group: Range<usize>, bench: &Bench<'_>) {
        let sad = &bench.snapshot.sad;
        let mut wanted: ArrayVec<(SaId, u32), TOGETHER> = ArrayVec::new();
        let mut numbers: ArrayVec<u32, TOGETHER> = ArrayVec::new();
        for place in group.filter(|place| self.items[*place].fate == Fate::New) {
            self.fetch_ahead(self.items[place].buffer);
            let Some(envelope) = self.usual(place, bench) else { continue };
            let (spi, destination) = (Spi(envelope.spi), envelope.destination);
            let id = SaId { destination, spi, protocol: SaProtocol::Esp };
            // Packets of one state often follow each other.
            if wanted.last().is_none_or(|(last, _)| *last != id) {
                wanted.push((id, self.items[place].mark));
                numbers.push(envelope.sequence);
            }
        }
        let mut found: ArrayVec<Option<&Arc<Sa>>, TOGETHER> = ArrayVec::new();
        sad.inbound_each(&wanted, |sa| {
            sa.inspect(|sa| sa.fetch_live());
            found.push(sa);
        });
        for ((sa, number), (id, mark)) in found.iter().zip(&numbers).zip(&wanted) {
            let Some(sa) = sa else { continue };
            sa.fetch_window(*number);
            sa.fetch_key_head();
            self.expect(sa, (id.spi, id.destination, *mark));
        }
        found.iter().flatten().for_each(|sa| sa.fetch_keys());
    }

    /// A packet that is ESP at first glance.
    #[inline]
    fn usual(&self, place: usize, bench: &Bench<'_>) -> Option<Envelope> {
        let item = &self.items[place];
        let buffer = self.buffers[item.buffer as usize].as_ref()?;
        match &buffer.udp {
            Some(path) if item.path.is_empty() => outer::socket(item.bytes(buffer), path).ok(),
            Some(_) | None => match outer::usual(item.bytes(buffer), bench.settings) {
                Usual::Esp(envelope) => Some(envelope),
                Usual::Plain(_) | Usual::Unclear => None,
            },
        }
    }

    /// Asks for the first bytes of a buffer that comes soon.
    #[inline(always)]
    fn fetch_ahead(&self, buffer: u32) {
        let ahead = self.buffers.get(buffer as usize + BYTES_AHEAD);
        ahead.and_then(Option::as_ref).inspect(|buffer| buffer.prefetch_bytes());
    }

    /// 2 Peel, 3 State, 4 Replay check of one packet: nearly all are ESP from a socket, or in IPv4 alone, or what was in it.
    #[inline(always)]
    fn look_at(
        &mut self,
        place: usize,
        latest: &mut Option<u32>,
        bench: &mut Bench<'_>,
    ) -> Result<Fate, DropReason> {
        let item = &self.items[place];
        let Some(buffer) = &self.buffers[item.buffer as usize] else {
            return Err(DropReason::InUnexpected);
        };
        let bytes = item.bytes(buffer);
        match &buffer.udp {
            Some(path) if item.path.is_empty() => {
                let envelope = outer::socket(bytes, path)?;
                self.claim(place, &envelope, latest, bench)
            }
            // Apart by version: an address that is known to be of IPv4 is compared and moved in one word.
            Some(_) | None => match outer::usual_v4(bytes, bench.settings) {
                Usual::Esp(envelope) => self.claim(place, &envelope, latest, bench),
                Usual::Plain(direction) => self.usual_plain(place, direction),
                Usual::Unclear => self.look_at_v6(place, latest, bench),
            },
        }
    }

    /// As [`Inbound::look_at`], of all that is not IPv4 without options.
    #[inline(never)]
    fn look_at_v6(
        &mut self,
        place: usize,
        latest: &mut Option<u32>,
        bench: &mut Bench<'_>,
    ) -> Result<Fate, DropReason> {
        let item = &self.items[place];
        let Some(buffer) = &self.buffers[item.buffer as usize] else {
            return Err(DropReason::InUnexpected);
        };
        match outer::usual_v6(item.bytes(buffer), bench.settings) {
            Usual::Esp(envelope) => self.claim(place, &envelope, latest, bench),
            Usual::Plain(direction) => self.usual_plain(place, direction),
            Usual::Unclear => self.look_closely(place, latest, bench),
        }
    }

    /// A packet without ESP whose header is right and has no options.
    #[inline(never)]
    fn usual_plain(&mut self, place: usize, direction: Direction) -> Result<Fate, DropReason> {
        let Self { items, buffers, questions, used, .. } = self;
        let item = &mut items[place];
        let Some(buffer) = &buffers[item.buffer as usize] else {
            return Err(DropReason::InUnexpected);
        };
        let bytes = item.bytes(buffer);
        let ask =
            |ip: IpPacket| Fate::Plain(item.ask(&ip, Some(buffer), direction, used, questions));
        IpPacket::parse_then(bytes, ask).map_err(|_| DropReason::InMalformed)
    }

    /// As [`Inbound::look_at`], of whatever it may be.
    #[inline(never)]
    fn look_closely(
        &mut self,
        place: usize,
        latest: &mut Option<u32>,
        bench: &mut Bench<'_>,
    ) -> Result<Fate, DropReason> {
        match self.peel(place, bench)? {
            Peeled::Esp(envelope) => self.claim(place, &envelope, latest, bench),
            Peeled::Plain(ip, direction) => {
                if ip.is_piece() {
                    self.refuse_piece(place, &ip, bench)?;
                }
                Ok(self.plain(place, &ip, direction))
            }
            // It may make a whole packet, to be looked at in its place.
            Peeled::Fragment(ip) => self.reassemble(place, &ip, bench),
        }
    }

    /// Drops a plain piece that is to be forwarded if a policy may be for it that refuses plain
    /// packets. What passes is judged as a packet without ports.
    #[cold]
    fn refuse_piece(
        &self,
        place: usize,
        ip: &IpPacket,
        bench: &Bench<'_>,
    ) -> Result<(), DropReason> {
        let item = &self.items[place];
        let Some(buffer) = self.buffers[item.buffer as usize].as_ref() else { return Ok(()) };
        if !item.path.is_empty() {
            return Ok(());
        }
        let bytes = item.bytes(buffer);
        let flow = FlowKey { mark: item.mark, ..FlowKey::of(buffer, ip, bytes) };
        let Some(entry) = bench.snapshot.spd.refuses_piece(&Piece::of(&flow, ip)) else {
            return Ok(());
        };
        entry.charge(1, bytes.len() as u64, bench.now);
        Err(match entry.action() {
            Action::Block if entry.is_held() => DropReason::InHeld,
            Action::Block => DropReason::InPolicyBlock,
            Action::Allow if entry.device().is_some() => DropReason::InDeviceUnmarked,
            Action::Allow => DropReason::InTemplateMismatch,
        })
    }

    pub(crate) fn peel(&self, place: usize, bench: &Bench<'_>) -> Result<Peeled, DropReason> {
        let item = &self.items[place];
        let Some(buffer) = &self.buffers[item.buffer as usize] else {
            return Err(DropReason::InUnexpected);
        };
        let bytes = item.bytes(buffer);
        match &buffer.udp {
            Some(path) if item.path.is_empty() => outer::socket(bytes, path).map(Peeled::Esp),
            Some(_) | None => outer::packet(bytes, bench.settings),
        }
    }

    /// A packet without ESP.
    #[inline(always)]
    pub(crate) fn plain(&mut self, place: usize, ip: &IpPacket, direction: Direction) -> Fate {
        let Self { items, buffers, questions, used, .. } = self;
        let item = &mut items[place];
        let buffer = buffers[item.buffer as usize].as_ref();
        Fate::Plain(item.ask(ip, buffer, direction, used, questions))
    }
}
