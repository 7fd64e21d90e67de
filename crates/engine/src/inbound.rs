//! From the network to the host.
//!
//! # The map
//! One batch walks through these stages. The code follows the numbers; 2 to 7 are walked once per layer of ESP, at most
//! six times.
//!
//! 1. **Receive**: count; every packet of a train becomes an item of its own, in place.
//! 2. **Peel** IP and UDP, or what a UDP socket left; keep-alives, IKE and plain packets part here. Fragments are put together.
//! 3. **State** by SPI, destination, protocol and mark.
//! 4. **Replay check**, before the work.
//! 5. **Open** the whole batch, in place.
//! 6. **Replay advance**, and the state is charged: once per batch, exact at its limits.
//! 7. **Strip** padding and headers; tunnels pass on ECN and DSCP.
//! 8. **Check** selectors and policies: `in` for the host's own addresses, `fwd` for all else.
//! 9. **Coalesce**, where the host takes super-packets.
//! 10. **Transmit** to the host.
//!
//! Mirrors `net/xfrm/xfrm_input.c: xfrm_input` and `net/xfrm/xfrm_policy.c: __xfrm_policy_check`.

mod check;
mod deliver;
mod open;
mod peel;
mod quote;
mod strip;

use std::sync::Arc;

use arrayvec::ArrayVec;
use uxfrm_crypto::Authenticity;
use uxfrm_packet::{Batch, Checksum, Coalescer, IpPacket, PacketBuf, Segments};

use crate::esp::decapsulate::Stripped;
use crate::fragments::reassembly::{Outcome, Reassembly};
use crate::sa::replay::Candidate;
use crate::spd::flow_cache::Known;
use crate::worker::{Bench, Traffic};
use crate::{
    Direction, DropReason, FlowKey, PolicyCache, Sa, SaId, SaProtocol, Settings, Spi, Stage,
    UdpEncap, Watch,
};
use check::MAX_DEPTH;
use peel::{Envelope, Peeled};

/// The inbound half of a worker: scratch and what it remembers between batches.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) traffic: Traffic,
    pub(crate) policies: PolicyCache,
    /// The batch's buffers; those handed on are gone.
    buffers: Vec<Option<PacketBuf>>,
    items: Vec<Item>,
    /// States that this batch met; neighbours differ.
    used: Vec<Used>,
    /// ESP to be opened in this round, in order of buffers and places.
    sealed: Vec<Sealed>,
    verdicts: Vec<Authenticity>,
    questions: Questions,
    reassembly: Reassembly,
    coalescer: Coalescer,
}

/// One packet in one of the buffers.
#[derive(Debug)]
struct Item {
    buffer: u32,
    start: u32,
    len: u32,
    fate: Fate,
    /// States it came through, the outermost first, by their place in `used`.
    path: ArrayVec<u32, MAX_DEPTH>,
    mark: u32,
    checksum: Checksum,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Not looked at yet, or with one more layer off.
    New,
    /// Among `sealed`.
    Sealed,
    /// To be checked and handed on, with this header.
    Plain(IpPacket),
    /// Counted: dropped, or held as a fragment.
    Gone,
}

/// A state and what it is to be charged for this round.
#[derive(Debug)]
struct Used {
    sa: Arc<Sa>,
    packets: u32,
    bytes: u64,
    standing: Standing,
}

/// What charging a state's packets together gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// All pass.
    Good,
    /// Only some fit under a hard limit: each is charged on its own.
    OneByOne,
    /// None passes.
    Expired,
}

/// What the policies are asked about the batch's plain packets, one place each, and what they say.
#[derive(Debug, Default)]
struct Questions {
    flows: Vec<FlowKey>,
    /// Of the innermost state that each came by.
    spis: Vec<Spi>,
    directions: Vec<Direction>,
    known: Vec<Known>,
}

/// An ESP packet that waits to be opened.
#[derive(Debug)]
struct Sealed {
    item: u32,
    used: u32,
    envelope: Envelope,
    number: Candidate,
    /// Where ESP begins in the buffer.
    at: usize,
    /// What was in it; known once it is open.
    stripped: Stripped,
}

impl Inbound {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            traffic: Traffic::default(),
            policies: PolicyCache::new(settings.cache.inbound, !settings.seed),
            buffers: Vec::with_capacity(uxfrm_packet::BATCH),
            items: Vec::with_capacity(uxfrm_packet::BATCH),
            used: Vec::new(),
            sealed: Vec::with_capacity(uxfrm_packet::BATCH),
            verdicts: Vec::with_capacity(uxfrm_packet::BATCH),
            questions: Questions::default(),
            reassembly: Reassembly::default(),
            coalescer: Coalescer::new(),
        }
    }

    pub(crate) fn run(&mut self, batch: &mut Batch, bench: &mut Bench<'_>, watch: &mut impl Watch) {
        self.policies.begin(&bench.snapshot.spd);
        let late = self.reassembly.expire(bench.now, bench.pool);
        bench.refuse(&mut self.traffic, late, DropReason::InFragment);
        for packet in batch.drain() {
            self.receive(packet);
        }
        watch.passed(Stage::Receive);
        for _ in 0..=MAX_DEPTH {
            self.peel_all(bench);
            watch.passed(Stage::Peel);
            if self.sealed.is_empty() {
                break;
            }
            self.open(bench);
            watch.passed(Stage::Open);
            self.accept(bench);
            watch.passed(Stage::Accept);
            self.strip(bench);
            watch.passed(Stage::Strip);
        }
        self.deliver(bench, watch);
        watch.passed(Stage::Deliver);
        self.traffic.held = self.reassembly.held();
        self.used.clear();
    }

    /// 1 Receive.
    fn receive(&mut self, packet: PacketBuf) {
        let stride = match packet.segments {
            Segments::Train { stride } if stride > 0 => stride.into(),
            Segments::Train { .. }
            | Segments::One
            | Segments::Tcp { .. }
            | Segments::Udp { .. } => packet.len().max(1),
        };
        let buffer = narrow(self.buffers.len());
        self.traffic.received_bytes += packet.len() as u64;
        for start in (0..packet.len().max(1)).step_by(stride) {
            self.traffic.received += 1;
            self.items.push(Item {
                buffer,
                start: narrow(start),
                len: narrow(stride.min(packet.len() - start)),
                fate: Fate::New,
                path: ArrayVec::new(),
                mark: packet.mark,
                checksum: Checksum::AsIs,
            });
        }
        self.buffers.push(Some(packet));
    }

    /// 2 Peel, 3 State, 4 Replay check.
    fn peel_all(&mut self, bench: &mut Bench<'_>) {
        if bench.snapshot.sad.is_far() {
            self.fetch_states(bench);
        }
        for place in 0..self.items.len() {
            if self.items[place].fate != Fate::New {
                continue;
            }
            // A fragment may make a whole packet, to be looked at in its place.
            let looked = match self.peel(place, bench) {
                Ok(Peeled::Fragment(ip)) => self.reassemble(place, &ip, bench),
                other => other,
            };
            let fate = match looked {
                Ok(Peeled::Plain(ip)) => Ok(self.plain(place, ip)),
                Ok(Peeled::Esp(envelope)) => self.claim(place, envelope, bench),
                Ok(Peeled::Fragment(_)) => Ok(Fate::Gone),
                Err(reason) => Err(reason),
            };
            match fate {
                Ok(fate) => self.items[place].fate = fate,
                Err(reason) => self.drop(place, reason, bench),
            }
        }
        // Only packets with a new buffer are out of order.
        let items = &self.items;
        let place = |sealed: &Sealed| (items[sealed.item as usize].buffer, sealed.at);
        if !self.sealed.is_sorted_by_key(place) {
            self.sealed.sort_unstable_by_key(place);
        }
    }

    /// Asks for the states of all packets before the first is waited for.
    fn fetch_states(&self, bench: &Bench<'_>) {
        let mut ids: ArrayVec<SaId, { uxfrm_packet::BATCH }> = ArrayVec::new();
        for place in (0..self.items.len()).filter(|place| self.items[*place].fate == Fate::New) {
            let Ok(Peeled::Esp(envelope)) = self.peel(place, bench) else { continue };
            let (spi, destination) = (Spi(envelope.spi), envelope.destination);
            // Packets of one state often follow each other.
            let id = SaId { destination, spi, protocol: SaProtocol::Esp };
            if ids.last() != Some(&id) && ids.try_push(id).is_err() {
                break;
            }
        }
        bench.snapshot.sad.fetch_inbound(&ids);
    }

    fn peel(&self, place: usize, bench: &Bench<'_>) -> Result<Peeled, DropReason> {
        let item = &self.items[place];
        let Some(buffer) = &self.buffers[item.buffer as usize] else {
            return Err(DropReason::InUnexpected);
        };
        let bytes = item.bytes(buffer);
        match &buffer.udp {
            Some(path) if item.path.is_empty() => peel::socket(bytes, path).map(Peeled::Esp),
            Some(_) | None => peel::packet(bytes, bench.settings),
        }
    }

    /// Fragments to this host wait for each other.
    fn reassemble(
        &mut self,
        place: usize,
        ip: &IpPacket,
        bench: &mut Bench<'_>,
    ) -> Result<Peeled, DropReason> {
        if !self.items[place].path.is_empty() {
            // Inside a tunnel: the host's own stack puts it together.
            return Ok(Peeled::Plain(*ip));
        }
        let packet = self.take(place, bench);
        let (outcome, evicted) = self.reassembly.add(packet, ip, bench.now, bench.pool);
        bench.refuse(&mut self.traffic, evicted, DropReason::InFragment);
        match outcome {
            Outcome::Held => Ok(Peeled::Fragment(*ip)),
            Outcome::Refused => Err(DropReason::InFragment),
            Outcome::Ruined { pieces } => {
                bench.refuse(&mut self.traffic, pieces - 1, DropReason::InFragment);
                Err(DropReason::InFragment)
            }
            Outcome::Whole { packet, pieces } => {
                self.traffic.absorbed += pieces - 1;
                self.settle(place, packet);
                match self.peel(place, bench)? {
                    Peeled::Fragment(_) => Err(DropReason::InFragment),
                    other @ (Peeled::Plain(_) | Peeled::Esp(_)) => Ok(other),
                }
            }
        }
    }

    /// 3 State, 4 Replay check.
    fn claim(
        &mut self,
        place: usize,
        envelope: Envelope,
        bench: &Bench<'_>,
    ) -> Result<Fate, DropReason> {
        let item = &self.items[place];
        let (spi, destination) = (Spi(envelope.spi), envelope.destination);
        let found = bench.snapshot.sad.inbound(destination, spi, SaProtocol::Esp, item.mark);
        let Some(sa) = found.filter(|_| spi != Spi(0)) else {
            // ESP of others passes through like any packet.
            return match envelope.header {
                Some(header) if !header.own => Ok(self.plain(place, header.ip)),
                Some(_) | None => Err(DropReason::InNoState),
            };
        };
        if item.path.is_full() {
            return Err(DropReason::InTooDeep);
        }
        sa.receives()?;
        if sa.config().encap.map(|UdpEncap { kind, .. }| kind) != envelope.encap {
            return Err(DropReason::InEncapMismatch);
        }
        let number =
            sa.replay().check(envelope.sequence).inspect_err(|reason| sa.count_failure(*reason))?;
        let at = item.start as usize + envelope.at;
        let used = self.used(sa);
        let item = narrow(place);
        self.sealed.push(Sealed {
            item,
            used,
            envelope,
            number,
            at,
            stripped: Stripped::default(),
        });
        Ok(Fate::Sealed)
    }

    /// A packet without ESP; what is behind its own length is not its own.
    fn plain(&mut self, place: usize, ip: IpPacket) -> Fate {
        self.items[place].len = narrow(ip.total_len);
        Fate::Plain(ip)
    }

    /// The place of a state in `used`; the last one is often it.
    fn used(&mut self, sa: &Arc<Sa>) -> u32 {
        if !self.used.last().is_some_and(|last| Arc::ptr_eq(&last.sa, sa)) {
            let sa = Arc::clone(sa);
            self.used.push(Used { sa, packets: 0, bytes: 0, standing: Standing::Good });
        }
        narrow(self.used.len() - 1)
    }

    fn drop(&mut self, place: usize, reason: DropReason, bench: &Bench<'_>) {
        self.items[place].fate = Fate::Gone;
        bench.refuse(&mut self.traffic, 1, reason);
    }

    /// The item's packet in a buffer of its own: the one it has if nothing else is in there, a copy if not.
    fn take(&mut self, place: usize, bench: &mut Bench<'_>) -> PacketBuf {
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
    fn settle(&mut self, place: usize, packet: PacketBuf) {
        let item = &mut self.items[place];
        (item.buffer, item.start, item.len) = (narrow(self.buffers.len()), 0, narrow(packet.len()));
        self.buffers.push(Some(packet));
    }
}

impl Item {
    fn bytes<'a>(&self, buffer: &'a PacketBuf) -> &'a [u8] {
        &buffer.bytes()[self.start as usize..(self.start + self.len) as usize]
    }

    fn bytes_mut<'a>(&self, buffer: &'a mut PacketBuf) -> &'a mut [u8] {
        &mut buffer.bytes_mut()[self.start as usize..(self.start + self.len) as usize]
    }
}

/// Places in a buffer or in a batch, both far below 4 GiB.
fn narrow(place: usize) -> u32 {
    debug_assert!(u32::try_from(place).is_ok());
    #[expect(
        clippy::cast_possible_truncation,
        reason = "buffers are below 64 KiB, batches smaller"
    )]
    let narrow = place as u32;
    narrow
}
