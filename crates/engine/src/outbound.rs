//! From the host to the network.
//!
//! # The map
//! One batch walks through these stages. The code follows the numbers.
//!
//! 1. **Receive**: count; complete checksums that the host left open; plan how super-packets are cut.
//! 2. **Flow key**: addresses, protocol, ports, mark, interface id; of the whole batch before anything else is done.
//! 3. **Look up** policies and bundles of the whole batch together, once per super-packet.
//! 4. **Verdict**: pass, drop, or a bundle: the chain of SAs, innermost first, from the worker's caches. Without a state that is
//!    required, wait for key managers to make it; those that have waited come before the batch.
//! 5. **PMTU**: too big and not to be fragmented, and the sender is told; all others get their frame, in which they will
//!    be wrapped without being moved again. Super-packets are cut straight into theirs.
//!
//! Then for each layer of the chains, innermost first:
//!
//! 6. **Number**: each SA is charged, and gives a block of sequence numbers, once per batch.
//! 7. **Wrap**: headers, padding, trailer.
//! 8. **Seal** the whole batch.
//! 9. **Finish**: UDP's checksum over IPv6, which covers sealed bytes.
//!
//! And at last:
//!
//! 10. **Transmit**: single packets, trains, or fragments of what is larger than the network takes.
//!
//! Mirrors `net/xfrm/xfrm_policy.c: xfrm_lookup_with_ifid` and `net/xfrm/xfrm_output.c: xfrm_output_one`.

mod frame;
mod number;
mod transmit;
mod waiting;

use std::net::{IpAddr, Ipv4Addr};

use arrayvec::ArrayVec;
use uxfrm_crypto::{Crypter, Iv, SealJob, Sealing, SeqHigh};
use uxfrm_packet::{Batch, IpPacket, PacketBuf, ParseError, SegmentPlan, Segments, checksum};

use crate::bundle::{BundleCache, Deciding, Resolution};
use crate::esp::encapsulate::{self, Stamp};
use crate::esp::layer::{Inside, Layer, Wrap};
use crate::pmtu::{self, ErrorBudget};
use crate::spd::flow_cache::Known;
use crate::worker::{Bench, Traffic};
use crate::{
    Action, AnswerId, Direction, DropReason, FlowKey, PolicyCache, Ruling, Settings, Snapshot, Spi,
    Stage, Watch,
};
use waiting::Waiting;

/// The outbound half of a worker: scratch and what it remembers between batches.
#[derive(Debug)]
pub(crate) struct Outbound {
    pub(crate) traffic: Traffic,
    items: Vec<Item>,
    pub(crate) policies: PolicyCache,
    cache: BundleCache,
    ahead: Ahead,
    /// Accounts that this layer of this batch draws on.
    drawn: Vec<u32>,
    /// Items in which the crypto library refused a packet.
    failed: Vec<usize>,
    errors: ErrorBudget,
    waiting: Waiting,
    /// The next identification of outer headers and fragments.
    ident: u32,
}

/// Packets of one flow in equal frames end to end; one packet, or those that a super-packet was cut into.
#[derive(Debug)]
struct Item {
    packet: PacketBuf,
    bundle: u32,
    /// What the next header outward is made from.
    inside: Inside,
    /// The plain packet's addresses.
    ends: (IpAddr, IpAddr),
    /// Where in each frame the packet begins that now is.
    at: usize,
    /// Its length; all are equal but for the last.
    len: usize,
    last_len: usize,
    /// Bytes of a frame.
    stride: usize,
    /// Frames left; none when all were dropped.
    count: u32,
    /// The sequence number of the first one in the layer that is being worked on.
    sequence: u64,
}

/// The batch's packets before they are touched, one place each: their headers, their flows, and what is known of those.
#[derive(Debug, Default)]
struct Ahead {
    headers: Vec<Result<IpPacket, ParseError>>,
    flows: Vec<FlowKey>,
    known: Vec<Known>,
}

/// What the policies say.
enum Verdict {
    Pass,
    Drop(DropReason),
    Bundle(u32),
    /// Wait for a state.
    Wait,
}

impl Outbound {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            traffic: Traffic::default(),
            items: Vec::with_capacity(uxfrm_packet::BATCH),
            policies: PolicyCache::new(settings.cache.outbound, settings.seed),
            cache: BundleCache::default(),
            ahead: Ahead::default(),
            drawn: Vec::new(),
            failed: Vec::new(),
            errors: ErrorBudget::new(),
            waiting: Waiting::new(settings.patience),
            ident: fold(settings.seed),
        }
    }

    /// Asks again for what other states may change, and begins to let go of those that are gone.
    fn refresh(&mut self, snapshot: &Snapshot) {
        if self.cache.begin(snapshot) {
            self.policies.forget_bundles();
        }
    }

    /// Lets go of all states that are gone.
    pub(crate) fn let_go(&mut self, snapshot: &Snapshot) {
        self.refresh(snapshot);
        self.cache.let_go(snapshot);
    }

    /// Buffers that wait for a state.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn run(&mut self, batch: &mut Batch, bench: &mut Bench<'_>, watch: &mut impl Watch) {
        self.policies.begin(&bench.snapshot.spd);
        self.refresh(bench.snapshot);
        self.resume(bench);
        self.look_ahead(batch, bench, watch);
        let ahead = std::mem::take(&mut self.ahead);
        let known = ahead.headers.iter().zip(&ahead.flows).zip(&ahead.known);
        for (packet, ((ip, flow), known)) in batch.drain().zip(known) {
            self.receive(packet, ip, flow, *known, bench);
        }
        self.ahead = ahead;
        self.policies.settle(bench.now);
        watch.passed(Stage::Frame);
        let cache = &self.cache;
        let depths = self.items.iter().map(|item| cache.bundle(item.bundle).layers.len());
        for depth in 0..depths.max().unwrap_or(0) {
            self.number(depth, bench);
            watch.passed(Stage::Number);
            self.wrap(depth);
            watch.passed(Stage::Wrap);
            self.seal(depth, bench);
            watch.passed(Stage::Seal);
            self.finish(depth);
            watch.passed(Stage::Finish);
        }
        self.transmit(bench);
        watch.passed(Stage::Transmit);
    }

    /// 2 Flow key, 3 Look up.
    fn look_ahead(&mut self, batch: &Batch, bench: &Bench<'_>, watch: &mut impl Watch) {
        let Ahead { headers, flows, known } = &mut self.ahead;
        headers.clear();
        flows.clear();
        known.clear();
        for packet in batch.as_slice() {
            let ip = IpPacket::parse(packet.bytes());
            // What cannot be parsed is dropped whatever the policies say.
            let none = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
            flows.push(match &ip {
                Ok(ip) => FlowKey::of(packet, ip, packet.bytes()),
                Err(_) => FlowKey::between(none, none),
            });
            headers.push(ip);
        }
        watch.passed(Stage::Parse);
        self.policies.know_each(&bench.snapshot.spd, Direction::Out, flows, &[], known);
        watch.passed(Stage::LookUp);
    }

    /// 1 Receive.
    fn receive(
        &mut self,
        mut packet: PacketBuf,
        ip: &Result<IpPacket, ParseError>,
        flow: &FlowKey,
        known: Known,
        bench: &mut Bench<'_>,
    ) {
        let plan = match packet.segments {
            Segments::One => Ok(None),
            Segments::Tcp { .. } | Segments::Udp { .. } => SegmentPlan::new(&packet).map(Some),
            // The host hands over packets, not what goes on a wire.
            Segments::Train { .. } => Err(ParseError::NotSuper),
        };
        let count = plan.as_ref().ok().and_then(Option::as_ref).map_or(1, SegmentPlan::count);
        self.traffic.received += count as u64;
        self.traffic.received_bytes += packet.len() as u64;
        let parsed = plan.and_then(|plan| {
            checksum_of(&mut packet, plan.as_ref())?;
            Ok((plan, (*ip)?))
        });
        let Ok((plan, ip)) = parsed else {
            return self.discard(packet, count, DropReason::OutMalformed, bench);
        };
        packet.trim(ip.total_len);
        let packets = u32::try_from(count).unwrap_or(u32::MAX);
        self.policies.count(known.answer, packets, packet.len() as u64);
        match self.rule(flow, known, bench) {
            Verdict::Pass => self.pass(packet, plan.as_ref(), bench),
            Verdict::Drop(reason) => self.discard(packet, count, reason, bench),
            Verdict::Bundle(bundle) => self.enter(packet, plan.as_ref(), &ip, bundle, bench),
            Verdict::Wait => self.wait(packet, flow, count, bench),
        }
    }

    /// 3 Look up, 4 Verdict; of one packet that comes again.
    fn look_up(&mut self, flow: &FlowKey, bench: &mut Bench<'_>) -> Verdict {
        let spd = &bench.snapshot.spd;
        let answer = self.policies.lookup(spd, Direction::Out, flow, Spi(0));
        self.rule(flow, Known::only(answer), bench)
    }

    /// 4 Verdict.
    fn rule(&mut self, flow: &FlowKey, known: Known, bench: &mut Bench<'_>) -> Verdict {
        match known.answer.ruling() {
            Ruling::Default => match bench.snapshot.spd.defaults().outbound {
                Action::Allow => Verdict::Pass,
                Action::Block => Verdict::Drop(DropReason::OutDefaultBlock),
            },
            Ruling::Block => Verdict::Drop(DropReason::OutPolicyBlock),
            Ruling::Pass => Verdict::Pass,
            Ruling::Protect => {
                let working = |place: &u32| self.cache.works(*place, bench.now);
                match known.bundle().filter(working) {
                    Some(place) => Verdict::Bundle(place),
                    None => self.resolve(flow, known.answer, bench),
                }
            }
        }
    }

    /// The verdict of a flow whose bundle is not known; only one with layers is.
    fn resolve(&mut self, flow: &FlowKey, answer: AnswerId, bench: &mut Bench<'_>) -> Verdict {
        let deciding: Deciding<'_> = self.policies.answer(answer).iter().collect();
        let cache = &mut self.cache;
        let resolution = cache.resolve(bench.snapshot, &deciding, flow, bench.settings, bench.now);
        drop(deciding);
        match resolution {
            Resolution::Bundle(place) => self.verdict(flow, answer, place),
            Resolution::Asking(place) => {
                self.ask_for_optional(flow, bench);
                self.verdict(flow, answer, place)
            }
            Resolution::Refused(reason) => Verdict::Drop(reason),
            Resolution::Missing => Verdict::Wait,
        }
    }

    /// That of a bundle, which the flow's next packets find without asking.
    fn verdict(&mut self, flow: &FlowKey, answer: AnswerId, place: u32) -> Verdict {
        if self.cache.bundle(place).layers.is_empty() {
            return Verdict::Pass;
        }
        self.policies.teach(Direction::Out, flow, answer, place);
        Verdict::Bundle(place)
    }

    /// 5 PMTU.
    fn enter(
        &mut self,
        packet: PacketBuf,
        plan: Option<&SegmentPlan>,
        ip: &IpPacket,
        place: u32,
        bench: &mut Bench<'_>,
    ) {
        let count = plan.map_or(1, SegmentPlan::count);
        let bundle = self.cache.bundle(place);
        // Transport mode is for whole datagrams (RFC 4303 §3.1.1).
        let transport =
            bundle.layers.first().is_some_and(|layer| matches!(layer.wrap, Wrap::Transport));
        if transport && ip.is_fragment() {
            return self.discard(packet, count, DropReason::OutModeMismatch, bench);
        }
        let len = plan.map_or(packet.len(), |plan| plan.len(0));
        let limit = bundle.limit(ip.version);
        if len <= limit || !ip.dont_fragment {
            return self.place(packet, plan, ip, place, bench);
        }
        if self.errors.take(bench.now)
            && let Some(answer) = pmtu::too_big(&packet, ip, limit, bench.pool)
        {
            self.traffic.originated += 1;
            bench.out.host.push(answer);
        }
        self.discard(packet, count, DropReason::OutTooBig, bench);
    }

    /// 7 Wrap.
    fn wrap(&mut self, depth: usize) {
        for item in &mut self.items {
            let Some(layer) = self.cache.bundle(item.bundle).layers.get(depth) else { continue };
            let (at, inside, sequence) = (item.at, item.inside, item.sequence);
            for (k, frame, len) in item.frames() {
                self.ident = self.ident.wrapping_add(1);
                let stamp = Stamp { sequence: sequence + k, id: fold_half(self.ident) };
                encapsulate::wrap(frame, at, len, layer, &inside, stamp);
            }
        }
    }

    /// 8 Seal.
    fn seal(&mut self, depth: usize, bench: &mut Bench<'_>) {
        self.seal_all(depth, bench.crypter);
        for place in self.failed.drain(..) {
            let item = &mut self.items[place];
            bench.refuse(&mut self.traffic, item.count.into(), DropReason::OutCrypto);
            item.count = 0;
        }
    }

    fn seal_all(&mut self, depth: usize, crypter: &mut Crypter) {
        let mut jobs = Jobs::new();
        for (place, item) in self.items.iter_mut().enumerate() {
            let Some(layer) = self.cache.bundle(item.bundle).layers.get(depth) else { continue };
            let (at, inside, sequence) = (item.at, item.inside, item.sequence);
            for (k, frame, len) in item.frames() {
                if jobs.is_full() {
                    jobs.run(crypter, &mut self.failed);
                }
                let esp = &mut frame[layer.esp(at, len, &inside)];
                jobs.push(place, job(layer, sequence + k, esp));
            }
        }
        jobs.run(crypter, &mut self.failed);
    }

    /// 9 Finish.
    fn finish(&mut self, depth: usize) {
        for item in &mut self.items {
            let Some(layer) = self.cache.bundle(item.bundle).layers.get(depth) else { continue };
            let start = item.at - layer.front();
            let (inside, after) = (item.inside, layer.after(&item.inside));
            for (_, frame, len) in item.frames() {
                let end = start + layer.sealed_len(len, &inside);
                encapsulate::finish(&mut frame[start..end], layer, &after);
            }
            item.at = start;
            item.len = layer.sealed_len(item.len, &inside);
            item.last_len = layer.sealed_len(item.last_len, &inside);
            item.inside = after;
        }
    }

    fn discard(
        &mut self,
        packet: PacketBuf,
        count: usize,
        reason: DropReason,
        bench: &mut Bench<'_>,
    ) {
        bench.refuse(&mut self.traffic, count as u64, reason);
        bench.pool.give(packet);
    }
}

impl Item {
    /// The frames left: number, bytes, length of the packet in it.
    fn frames(&mut self) -> impl Iterator<Item = (u64, &mut [u8], usize)> {
        let (count, len, last_len) = (self.count, self.len, self.last_len);
        let frames = self.packet.bytes_mut().chunks_mut(self.stride);
        (0..count).zip(frames).map(move |(k, frame)| {
            (u64::from(k), frame, if k + 1 == count { last_len } else { len })
        })
    }
}

/// Jobs of one call of the crypto library, and of which item each is.
struct Jobs<'a> {
    jobs: ArrayVec<SealJob<'a>, CHUNK>,
    places: ArrayVec<usize, CHUNK>,
}

/// Enough for the library's bursts, little enough for the stack and the first-level cache.
const CHUNK: usize = 64;

impl<'a> Jobs<'a> {
    fn new() -> Self {
        Self { jobs: ArrayVec::new(), places: ArrayVec::new() }
    }

    fn is_full(&self) -> bool {
        self.jobs.is_full()
    }

    fn push(&mut self, place: usize, job: SealJob<'a>) {
        self.jobs.push(job);
        self.places.push(place);
    }

    /// Seals and forgets them; a refused one was zeroed by the library and its item is noted.
    fn run(&mut self, crypter: &mut Crypter, failed: &mut Vec<usize>) {
        crypter.seal(&mut self.jobs);
        for (job, place) in self.jobs.iter().zip(&self.places) {
            if job.verdict != Sealing::Sealed && failed.last() != Some(place) {
                failed.push(*place);
            }
        }
        self.jobs.clear();
        self.places.clear();
    }
}

fn job<'a>(layer: &'a Layer, sequence: u64, esp: &'a mut [u8]) -> SealJob<'a> {
    let high = if layer.sa.extended() { SeqHigh::Esn(fold_high(sequence)) } else { SeqHigh::None };
    SealJob::in_place(layer.sa.key(), high, Iv::Counter(layer.sa.ivs().counter(sequence)), esp)
}

/// What a packet was found to be when it came.
fn parsed(packet: &PacketBuf) -> Result<(Option<SegmentPlan>, IpPacket), ParseError> {
    let plan = match packet.segments {
        Segments::One | Segments::Train { .. } => None,
        Segments::Tcp { .. } | Segments::Udp { .. } => Some(SegmentPlan::new(packet)?),
    };
    Ok((plan, IpPacket::parse(packet.bytes())?))
}

/// Segments of a super-packet get their checksums when they are cut.
fn checksum_of(packet: &mut PacketBuf, plan: Option<&SegmentPlan>) -> Result<(), ParseError> {
    if plan.is_some() { Ok(()) } else { checksum::complete(packet) }
}

#[expect(clippy::cast_possible_truncation, reason = "a seed is random in all its bits")]
fn fold(seed: u64) -> u32 {
    (seed ^ seed >> 32) as u32
}

#[expect(clippy::cast_possible_truncation, reason = "IPv4's identification has 16 bits")]
fn fold_half(ident: u32) -> u16 {
    ident as u16
}

fn fold_high(sequence: u64) -> u32 {
    (sequence >> 32) as u32
}
