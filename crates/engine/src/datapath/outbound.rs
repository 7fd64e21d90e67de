//! From the host to the network.
//!
//! # The map
//! One batch walks through these stages. The code follows the numbers.
//!
//! 1. **Receive**: count; complete checksums that the host left open; plan how super-packets are cut. Where a policy asks for ports or transport
//!    mode, put together what the host has [cut](gather).
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
//! Neighbours to which nothing is done but what one state does take the [express way](express): 6 to 10 at once, and no [item](Item) is made of them.
//! Where most packets are of other flows than the ones before, those of which all is known go [together](mixed) likewise.
//!
//! What a device does for a state is left out here, and the packet [handed over](handover) to it: after 5 if it does all, after 7 if it
//! encrypts.
//!
//! Mirrors `net/xfrm/xfrm_policy.c: xfrm_lookup_with_ifid` and `net/xfrm/xfrm_output.c: xfrm_output_one`.

mod interleaved;
mod number;
mod pre_parsed;
mod run;
mod seal_jobs;
mod single;
pub(crate) mod slow;
mod transmit;

use std::vec::Drain;

use uxfrm_packet::{Batch, IpPacket, PacketBuf, ParseError, SegmentPlan, Segments, checksum};

use crate::bundle::{BundleCache, first_query};
use crate::datapath::context::{Bench, Traffic};
use crate::flow_cache::Known;
use crate::fragments::reassembly::Reassembly;
use crate::pmtu::{self, ErrorBudget};
use crate::sa::deferred_counters::Arrears;
use crate::{
    AnswerId, Direction, DropReason, FlowKey, PolicyCache, Ruling, Settings, Snapshot, Stage, Watch,
};
use interleaved::{Mixed, Sent};
use pre_parsed::{Ahead, Head};
use slow::acquire_queue::{Held, Waiting};
use slow::device::Sealer;
use slow::item::Item;
use slow::verdict::Verdict;

pub use slow::acquire_queue::WaitingPacket;

/// The outbound half of a worker: scratch and what it remembers between batches.
#[derive(Debug)]
pub(crate) struct Outbound {
    pub(crate) traffic: Traffic,
    items: Vec<Item>,
    /// Packets on the express way.
    together: Vec<PacketBuf>,
    mixed: Mixed,
    /// SAs around one of them at the most.
    deepest: usize,
    pub(crate) policies: PolicyCache,
    cache: BundleCache,
    ahead: Ahead,
    arrears: Arrears,
    /// Accounts that this layer of this batch draws on.
    drawn: Vec<u32>,
    numbering: Numbering,
    /// What the latest packets are counted as.
    tally: Option<Tally>,
    /// A bundle that was found to work in this batch.
    working: Option<u32>,
    /// Items in which the crypto library refused a packet.
    failed: Vec<usize>,
    /// Something is to be written into packets that are sealed.
    unfinished: bool,
    errors: ErrorBudget,
    waiting: Waiting,
    /// Datagrams that the host has cut.
    pieces: Reassembly,
    /// One that is cut again.
    cut: Batch,
    /// The next identification of outer headers and fragments.
    ident: u32,
}

/// How many packets ahead a packet's note, and how many its first bytes, are fetched.
const NOTES_AHEAD: usize = 8;
const BYTES_AHEAD: usize = 4;

/// Packets of one answer that are yet to be counted for its policies.
#[derive(Debug)]
struct Tally {
    answer: AnswerId,
    packets: u32,
    bytes: u64,
}

/// Who gives the packets of a layer their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Numbering {
    /// Each SA has numbers for all of its packets: whoever writes headers takes them.
    Whole,
    /// Some SA has not: they were handed out beforehand.
    Short,
}

impl Outbound {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            traffic: Traffic::default(),
            items: Vec::with_capacity(uxfrm_packet::BATCH),
            together: Vec::with_capacity(uxfrm_packet::BATCH),
            mixed: Mixed::default(),
            deepest: 0,
            policies: PolicyCache::new(settings.cache.outbound, settings.seed),
            cache: BundleCache::default(),
            ahead: Ahead::default(),
            arrears: Arrears::default(),
            drawn: Vec::new(),
            numbering: Numbering::Whole,
            tally: None,
            working: None,
            failed: Vec::new(),
            unfinished: false,
            errors: ErrorBudget::new(),
            waiting: Waiting::new(settings.patience),
            pieces: Reassembly::default(),
            cut: Batch::default(),
            ident: fold(settings.seed),
        }
    }

    /// Asks again for what other states may change, and begins to let go of those that are gone.
    #[inline]
    fn refresh(&mut self, snapshot: &Snapshot) {
        if self.cache.begin(snapshot) {
            self.policies.forget_bundles();
            // Others may hold more against limits now.
            self.arrears.pay();
        }
    }

    /// Charges policies and states with all that was noted for them.
    pub(crate) fn pay(&mut self) {
        self.policies.charge();
        self.arrears.pay();
    }

    /// Whether anything is.
    pub(crate) fn owes(&self) -> bool {
        self.policies.owes() || self.arrears.are_any()
    }

    /// Lets go of all states that are gone, and of some policies that are.
    pub(crate) fn let_go(&mut self, snapshot: &Snapshot) {
        self.policies.let_go(&snapshot.spd);
        self.refresh(snapshot);
        self.cache.let_go(snapshot);
    }

    /// Buffers that wait for a state, and datagrams that wait for the rest of them.
    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len() + self.pieces.datagrams()
    }

    #[inline(always)]
    pub(crate) fn run(&mut self, batch: &mut Batch, bench: &mut Bench<'_>, watch: &mut impl Watch) {
        self.policies.begin(&bench.snapshot.spd);
        self.refresh(bench.snapshot);
        self.working = None;
        self.resume(bench);
        self.expire_pieces(bench);
        match batch.take_alone() {
            Some(packet) => self.receive_alone(packet, bench, watch),
            None => self.receive_all(batch, bench, watch),
        }
        self.note_tally();
        self.policies.settle(bench.now);
        self.arrears.settle(bench.now);
        watch.passed(Stage::Frame);
        self.send_left(bench, watch);
    }

    /// 6 Number to 10 Transmit, of all items.
    #[inline(never)]
    fn send_items(&mut self, bench: &mut Bench<'_>, watch: &mut impl Watch) {
        for depth in 0..std::mem::take(&mut self.deepest) {
            self.number(depth, bench);
            watch.passed(Stage::Number);
            self.seal(depth, bench);
            watch.passed(Stage::Seal);
            self.finish(depth);
            watch.passed(Stage::Finish);
        }
        self.transmit(bench);
        watch.passed(Stage::Transmit);
    }

    /// 2 Flow key to 5 PMTU, of a whole batch; of most packets all that follows, too.
    #[inline(never)]
    fn receive_all(&mut self, batch: &mut Batch, bench: &mut Bench<'_>, watch: &mut impl Watch) {
        if self.mixed.is_expected() {
            return self.receive_mixes(batch, bench, watch);
        }
        let packets = batch.len();
        self.receive_some(&mut batch.drain(), usize::MAX, bench, watch);
        self.mixed.expect(packets, self.ahead.runs.len());
    }

    /// As [`Self::receive_all`], where most packets are of other flows than the ones before.
    #[inline(never)]
    fn receive_mixes(&mut self, batch: &mut Batch, bench: &mut Bench<'_>, watch: &mut impl Watch) {
        let mut rest = batch.drain();
        let (mut together, mut others) = (0, 0);
        while !rest.as_slice().is_empty() {
            // Where one among many was otherwise, the next ones need not be, not even where it was among the first.
            let most = if interleaved::pays(together, others, rest.len()) {
                let Sent { together: sent, first } = self.send_mixed(&mut rest, bench, watch);
                together += sent;
                first + interleaved::FEW
            } else {
                usize::MAX
            };
            others += rest.len().min(most);
            self.receive_some(&mut rest, most, bench, watch);
        }
        self.mixed.judge(together, others);
    }

    /// 2 Flow key to 5 PMTU, of the first packets; of most all that follows, too.
    #[inline(never)]
    fn receive_some(
        &mut self,
        packets: &mut Drain<'_, PacketBuf>,
        most: usize,
        bench: &mut Bench<'_>,
        watch: &mut impl Watch,
    ) {
        let all = packets.as_slice();
        let count = all.len().min(most);
        if count == 0 {
            return;
        }
        self.look_ahead(&all[..count], bench, watch);
        let mut run = 0;
        while run < self.ahead.runs.len() {
            if self.may_overtake(run, bench) {
                self.send_left(bench, watch);
                run += self.send_express(run, packets, bench, watch);
            }
            if run < self.ahead.runs.len() {
                self.receive_run(run, packets, bench);
                run += 1;
            }
        }
    }

    /// As [`Self::send_items`], where there mostly are none.
    #[inline(always)]
    fn send_left(&mut self, bench: &mut Bench<'_>, watch: &mut impl Watch) {
        if !self.items.is_empty() {
            self.send_items(bench, watch);
        }
    }

    /// 1 Receive, 4 Verdict, 5 PMTU, of packets each of which is looked at.
    #[inline(never)]
    fn receive_run(
        &mut self,
        run: usize,
        packets: &mut Drain<'_, PacketBuf>,
        bench: &mut Bench<'_>,
    ) {
        let known = self.ahead.known[run];
        for packet in packets.take(self.ahead.runs[run].packets as usize) {
            let head = Head::with_flow(&packet);
            self.receive(packet, head.as_ref(), known, bench);
        }
    }

    /// 2 Flow key, 3 Look up.
    fn look_ahead(&mut self, packets: &[PacketBuf], bench: &Bench<'_>, watch: &mut impl Watch) {
        self.ahead.clear();
        for (place, packet) in packets.iter().enumerate() {
            packets.get(place + NOTES_AHEAD).inspect(|packet| packet.prefetch());
            packets.get(place + BYTES_AHEAD).inspect(|packet| packet.prefetch_bytes());
            self.ahead.note(packet);
        }
        watch.passed(Stage::Parse);
        let Ahead { flows, known, .. } = &mut self.ahead;
        self.policies.know_each(&bench.snapshot.spd, Direction::Out, flows, &[], known);
        if bench.snapshot.sad.is_far() {
            self.fetch_states(bench);
        }
        if self.cache.is_far() {
            // Packets of one flow often follow each other.
            let runs = self.ahead.known.chunk_by(|a, b| a.bundle() == b.bundle());
            self.cache.fetch(runs.filter_map(|run| run[0].bundle()));
        }
        watch.passed(Stage::LookUp);
    }

    /// Asks for the states of all flows without a bundle before the first is waited for.
    #[inline(never)]
    fn fetch_states(&self, bench: &Bench<'_>) {
        let Ahead { flows, known, .. } = &self.ahead;
        let mut latest: Option<&FlowKey> = None;
        let queries = flows.iter().zip(known).filter_map(|(flow, known)| {
            // Packets of one flow often follow each other.
            let asks = known.answer.ruling() == Ruling::Protect && known.bundle().is_none();
            if !asks || latest.replace(flow) == Some(flow) {
                return None;
            }
            let entry = self.policies.answer(known.answer).first()?;
            first_query(entry, flow, bench.settings)
        });
        bench.snapshot.sad.fetch_outbound(queries);
    }

    /// 1 Receive; a packet of which nothing is taken for granted.
    fn receive(
        &mut self,
        mut packet: PacketBuf,
        head: Option<&(Head, FlowKey)>,
        known: Known,
        bench: &mut Bench<'_>,
    ) {
        if packet.segments != Segments::One {
            return self.receive_many(packet, head, known, bench);
        }
        self.traffic.received += 1;
        self.traffic.received_bytes += packet.len() as u64;
        let Some((head, flow)) = head.filter(|_| checksum::complete(&mut packet).is_ok()) else {
            return self.discard(packet, 1, DropReason::OutMalformed, bench);
        };
        packet.trim(head.total_len as usize);
        if head.fragment && bench.snapshot.spd.asks_for_whole(Direction::Out) {
            return self.gather(packet, bench);
        }
        self.tally(known.answer, 1, packet.len() as u64);
        match self.rule(flow, known, bench) {
            Verdict::Bundle(bundle) => self.enter(packet, None, (head, flow), bundle, bench),
            Verdict::Pass if head.options && Self::is_led_astray(&packet, flow, bench) => {
                self.discard(packet, 1, DropReason::OutUnprotected, bench);
            }
            Verdict::Pass => self.pass(packet, None, bench),
            Verdict::Drop(reason) => self.discard(packet, 1, reason, bench),
            Verdict::Wait => self.wait(Held::new(packet, 1), flow, bench),
        }
    }

    /// Counts packets for their policies; neighbours of one answer together.
    #[inline(always)]
    fn tally(&mut self, answer: AnswerId, packets: u32, bytes: u64) {
        match &mut self.tally {
            Some(tally) if tally.answer == answer => {
                tally.packets += packets;
                tally.bytes += bytes;
            }
            Some(_) | None => {
                self.note_tally();
                self.tally = Some(Tally { answer, packets, bytes });
            }
        }
    }

    #[inline(always)]
    fn note_tally(&mut self) {
        if let Some(Tally { answer, packets, bytes }) = self.tally.take() {
            self.policies.count(answer, packets, bytes);
        }
    }

    /// 1 Receive; a super-packet, whose segments get their checksums when they are cut.
    fn receive_many(
        &mut self,
        mut packet: PacketBuf,
        head: Option<&(Head, FlowKey)>,
        known: Known,
        bench: &mut Bench<'_>,
    ) {
        let plan = plan_of(&packet);
        let count = plan.as_ref().ok().and_then(Option::as_ref).map_or(1, SegmentPlan::count);
        self.traffic.received += count as u64;
        self.traffic.received_bytes += packet.len() as u64;
        let (Ok(plan), Some((head, flow))) = (plan, head) else {
            return self.discard(packet, count, DropReason::OutMalformed, bench);
        };
        packet.trim(head.total_len as usize);
        let packets = u32::try_from(count).unwrap_or(u32::MAX);
        self.policies.count(known.answer, packets, packet.len() as u64);
        match self.rule(flow, known, bench) {
            Verdict::Pass if head.options && Self::is_led_astray(&packet, flow, bench) => {
                self.discard(packet, count, DropReason::OutUnprotected, bench);
            }
            Verdict::Pass => self.pass(packet, plan.as_ref(), bench),
            Verdict::Drop(reason) => self.discard(packet, count, reason, bench),
            Verdict::Bundle(bundle) => {
                self.enter(packet, plan.as_ref(), (head, flow), bundle, bench)
            }
            Verdict::Wait => self.wait(Held::new(packet, count), flow, bench),
        }
    }

    /// 5 PMTU.
    #[inline(always)]
    fn enter(
        &mut self,
        packet: PacketBuf,
        plan: Option<&SegmentPlan>,
        (head, flow): (&Head, &FlowKey),
        place: u32,
        bench: &mut Bench<'_>,
    ) {
        let bundle = self.cache.bundle(place);
        if let Some(device) = bundle.device {
            if let Some(handover) = bundle.as_it_is
                && plan.is_none()
                && !(head.fragment | head.options)
                && packet.len() <= bundle.inner_mtu
            {
                return self.hand(packet, 1, handover, bench);
            }
            return self.enter_device(packet, plan, head, place, (device, bench));
        }
        let mut inside = head.inside;
        if bundle.spreads {
            inside.source_port = flow.source_port(&bench.settings.source_ports);
        }
        // Transport mode is for whole datagrams (RFC 4303 §3.1.1), which it gets unless its policy came just now.
        if head.fragment && bundle.is_transport() {
            let count = plan.map_or(1, SegmentPlan::count);
            return self.discard(packet, count, DropReason::OutModeMismatch, bench);
        }
        let len = plan.map_or(packet.len(), |plan| plan.len(0));
        let limit = bundle.limit(inside.version);
        if len <= limit || !inside.dont_fragment {
            return self.place(packet, plan, inside, (place, Sealer::Engine), bench);
        }
        self.refuse_size(packet, plan, limit, bench);
    }

    /// Tells the sender what fits.
    #[cold]
    fn refuse_size(
        &mut self,
        packet: PacketBuf,
        plan: Option<&SegmentPlan>,
        limit: usize,
        bench: &mut Bench<'_>,
    ) {
        if self.errors.take(bench.now)
            && let Ok(ip) = IpPacket::parse(packet.bytes())
            && let Some(answer) = pmtu::too_big(&packet, &ip, limit, bench.pool)
        {
            self.traffic.originated += 1;
            bench.out.host.push(answer);
        }
        let count = plan.map_or(1, SegmentPlan::count);
        self.discard(packet, count, DropReason::OutTooBig, bench);
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

/// What a packet was found to be when it came.
fn parsed(packet: &PacketBuf) -> Result<(Option<SegmentPlan>, IpPacket), ParseError> {
    let plan = match packet.segments {
        Segments::Train { .. } => None,
        Segments::One | Segments::Tcp { .. } | Segments::Udp { .. } => plan_of(packet)?,
    };
    Ok((plan, IpPacket::parse(packet.bytes())?))
}

/// How a super-packet is cut.
fn plan_of(packet: &PacketBuf) -> Result<Option<SegmentPlan>, ParseError> {
    match packet.segments {
        Segments::One => Ok(None),
        Segments::Tcp { .. } | Segments::Udp { .. } => SegmentPlan::new(packet).map(Some),
        // The host hands over packets, not what goes on a wire.
        Segments::Train { .. } => Err(ParseError::NotSuper),
    }
}

/// Bytes within a buffer.
#[inline(always)]
fn narrow(bytes: usize) -> u32 {
    debug_assert!(u32::try_from(bytes).is_ok());
    #[expect(clippy::cast_possible_truncation, reason = "a buffer is below 4 GiB")]
    let narrow = bytes as u32;
    narrow
}

#[expect(clippy::cast_possible_truncation, reason = "a seed is random in all its bits")]
fn fold(seed: u64) -> u32 {
    (seed ^ seed >> 32) as u32
}

#[expect(clippy::cast_possible_truncation, reason = "IPv4's identification has 16 bits")]
fn fold_half(ident: u32) -> u16 {
    ident as u16
}
