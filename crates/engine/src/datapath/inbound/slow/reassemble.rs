//! Fragments to this host wait for each other, and go on as one packet in a buffer of its own.

use uxfrm_packet::{IpPacket, PacketBuf, Segments};

use super::outer::Peeled;
use crate::datapath::context::Bench;
use crate::datapath::inbound::{Fate, Inbound, deliver, narrow};
use crate::fragments::origin::Origin;
use crate::fragments::reassembly::Outcome;
use crate::{Direction, DropReason, FlowKey, PolicyKind, Spi};

impl Inbound {
    /// Fragments to this host wait for each other, those out of ESP as well: in the host's own stack
    /// anybody on the wire could add plain ones to them, or have them go for others.
    #[inline(never)]
    pub(crate) fn reassemble(
        &mut self,
        place: usize,
        ip: &IpPacket,
        bench: &mut Bench<'_>,
    ) -> Result<Fate, DropReason> {
        let origin = self.origin(place);
        let packet = self.take(place, bench);
        let (outcome, evicted) = self.reassembly.add(packet, ip, &origin, bench.now, bench.pool);
        bench.refuse(&mut self.traffic, evicted, DropReason::InFragment);
        match outcome {
            Outcome::Held => Ok(Fate::Gone),
            Outcome::Refused => Err(DropReason::InFragment),
            Outcome::Ruined { pieces } => {
                bench.refuse(&mut self.traffic, pieces - 1, DropReason::InFragment);
                Err(DropReason::InFragment)
            }
            Outcome::Whole { packet, pieces, longest: _, is_astride } => {
                self.traffic.absorbed += pieces - 1;
                self.settle(place, packet);
                match self.peel(place, bench)? {
                    Peeled::Fragment(_) => Err(DropReason::InFragment),
                    Peeled::Plain(ip, direction) if is_astride => {
                        self.refuse_wanted_spi(place, &ip, direction, bench)?;
                        Ok(self.plain(place, &ip, direction))
                    }
                    Peeled::Plain(ip, direction) => Ok(self.plain(place, &ip, direction)),
                    // By which state it came, only the policies of what is inside can ask.
                    Peeled::Esp(_) if is_astride => Err(DropReason::InFragment),
                    Peeled::Esp(envelope) => self.claim(place, &envelope, &mut None, bench),
                }
            }
        }
    }

    /// Policies are asked with the states of the last fragment, whose kin the others came by. All that
    /// a template may ask for is the same but the SPI: who wants a certain one gets nothing else.
    fn refuse_wanted_spi(
        &self,
        place: usize,
        ip: &IpPacket,
        direction: Direction,
        bench: &Bench<'_>,
    ) -> Result<(), DropReason> {
        let item = &self.items[place];
        let buffer = self.buffers[item.buffer as usize].as_ref();
        let flow =
            FlowKey::of_bytes(ip, buffer.map(|buffer| item.bytes(buffer)).unwrap_or_default());
        let spd = &bench.snapshot.spd;
        let deciding = [PolicyKind::Sub, PolicyKind::Main]
            .into_iter()
            .filter_map(|kind| spd.lookup_kind(kind, direction, &flow));
        let is_wanted =
            deciding.flat_map(|entry| entry.templates()).any(|wanted| wanted.spi != Spi(0));
        if is_wanted { Err(DropReason::InTemplateMismatch) } else { Ok(()) }
    }

    /// The states that an item came by so far.
    fn origin(&self, place: usize) -> Origin {
        self.items[place].path.iter().map(|used| &*self.used[*used as usize].sa).collect()
    }

    /// The item's packet in a buffer of its own: the one it has if nothing else is in there, a copy if not.
    pub(crate) fn take(&mut self, place: usize, bench: &mut Bench<'_>) -> PacketBuf {
        let item = &self.items[place];
        let slot = &mut self.buffers[item.buffer as usize];
        if slot.as_ref().is_some_and(|buffer| !matches!(buffer.segments, Segments::Train { .. }))
            && let Some(mut own) = slot.take()
        {
            own.pull(item.start as usize);
            own.trim(item.len as usize);
            return own;
        }
        let bytes = slot.as_ref().map(|buffer| item.bytes(buffer)).unwrap_or_default();
        let mut copy = deliver::copy(bytes, bench.pool);
        if let Some(buffer) = slot {
            (copy.mark, copy.if_id) = (buffer.mark, buffer.if_id);
        }
        copy
    }

    /// Puts a packet in a new buffer in the place of an item's old one.
    pub(crate) fn settle(&mut self, place: usize, packet: PacketBuf) {
        let item = &mut self.items[place];
        (item.buffer, item.start, item.len) = (narrow(self.buffers.len()), 0, narrow(packet.len()));
        self.buffers.push(Some(packet));
        self.settled = true;
    }
}
