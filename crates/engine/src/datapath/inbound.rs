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
//! 6. **Replay advance**, of neighbours together.
//! 7. **Strip** padding and headers as soon as a packet is accepted; tunnels pass on ECN and DSCP. Then each state is charged: once per
//!    batch, exact at its limits.
//! 8. **Check** selectors and policies: `in` for the host's own addresses, `fwd` for all else.
//! 9. **Coalesce**, where the host takes super-packets.
//! 10. **Transmit** to the host.
//!
//! Packets that look like an earlier one of their state, outside (2 to 4, [`outer`]), inside (7, [`inner`]), or that may pass as the one before
//! (8, `hand_on_alike`), take a short way, which only accepts: whatever is otherwise goes the long way, and that alone drops. Such a packet that
//! is alone in its batch takes them without lists ([`alone`]), and many of them that follow each other are opened and framed where they lie: of one
//! state ([`express`]), or of many ([`mixed`]).
//!
//! Mirrors `net/xfrm/xfrm_input.c: xfrm_input` and `net/xfrm/xfrm_policy.c: __xfrm_policy_check`.

mod deliver;
mod inner_template;
mod interleaved;
mod open;
mod outer_template;
mod run;
mod rx_cache;
mod rx_record;
mod single;
pub(crate) mod slow;
mod spi_index;

use std::net::{IpAddr, SocketAddr};
use std::vec::Drain;

use uxfrm_crypto::Authenticity;
use uxfrm_packet::{Batch, Coalescer, PacketBuf, Segments};

use crate::datapath::context::{Bench, Traffic};
use crate::esp::decap::Shell;
use crate::fragments::reassembly::Reassembly;
use crate::ids::MAX_DEPTH;
use crate::sa::deferred_counters::Arrears;
use crate::sa::replay::Candidate;
use crate::{DeviceMark, DropReason, PolicyCache, Received, Settings, Snapshot, Spi, Stage, Watch};
use deliver::Passed;
use interleaved::Mixed;
use run::{Together, WORTH};
use rx_cache::UsedStates;
use slow::device::Opener;
use slow::item::{Fate, Item};
use slow::policy_lookups::Questions;

/// The inbound half of a worker: scratch and what it remembers between batches.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) traffic: Traffic,
    pub(crate) policies: PolicyCache,
    /// The states' generation, in which the policies' cache knows by which of them a flow may pass.
    states: u64,
    /// The batch's buffers; those handed on are gone.
    buffers: Vec<Option<PacketBuf>>,
    /// A batch from a device, and what that says of its buffers.
    from_device: Batch,
    marks: Vec<Option<DeviceMark>>,
    items: Vec<Item>,
    /// States that this batch met, and some before it.
    used: UsedStates,
    /// ESP to be opened in this round, in order of buffers and places.
    sealed: Vec<Sealed>,
    /// Neighbours that are opened where they lie.
    together: Together,
    mixed: Mixed,
    arrears: Arrears,
    /// Some packets of this batch got a new buffer: only these are out of order.
    settled: bool,
    verdicts: Vec<Authenticity>,
    /// Items whose UDP source is another than their state's.
    movers: Vec<(u32, SocketAddr)>,
    questions: Questions,
    passed: Passed,
    reassembly: Reassembly,
    coalescer: Coalescer,
}

/// An ESP packet that waits to be opened.
#[derive(Debug)]
struct Sealed {
    item: u32,
    used: u32,
    buffer: u32,
    /// Where ESP begins in the buffer, and its bytes.
    at: u32,
    len: u32,
    number: Candidate,
    /// Bytes of text for which its state is to be charged; none unless it was accepted.
    carried: Option<u32>,
    tos: u8,
    manner: Manner,
}

/// How an ESP packet came, and is to be opened.
#[derive(Clone, Copy, Debug)]
struct Manner {
    /// The packet's own header, which transport mode keeps; `None` when a socket took it off.
    shell: Option<Shell>,
    in_udp: bool,
    opener: Opener,
}

/// By what a state is found: SPI, destination and mark.
type Name = (Spi, IpAddr, u32);

/// With more states than these, what packets need of them is out of the second-level cache before it is needed again.
const FEW: usize = 128;
/// Packets whose states are fetched together: as many as that cache holds what is needed of.
const TOGETHER: usize = 32;
/// Packets that go all the way before the next ones are begun: as many as the first-level cache holds what is read and written of.
const PIECE: usize = 64;
/// How many packets ahead a packet's note is fetched. Its first bytes are when it is received, and again so many ahead where much was read since.
const NOTES_AHEAD: usize = 8;
const BYTES_AHEAD: usize = 4;

impl Inbound {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            traffic: Traffic::default(),
            policies: PolicyCache::new(settings.cache.inbound, !settings.seed),
            states: 0,
            buffers: Vec::with_capacity(uxfrm_packet::BATCH),
            from_device: Batch::default(),
            marks: Vec::new(),
            items: Vec::with_capacity(uxfrm_packet::BATCH),
            used: UsedStates::new(),
            sealed: Vec::with_capacity(uxfrm_packet::BATCH),
            together: Together::new(),
            mixed: Mixed::new(),
            arrears: Arrears::default(),
            settled: false,
            verdicts: Vec::with_capacity(uxfrm_packet::BATCH),
            movers: Vec::new(),
            questions: Questions::default(),
            passed: Passed::default(),
            reassembly: Reassembly::default(),
            coalescer: Coalescer::new(),
        }
    }

    pub(crate) fn run(&mut self, batch: &mut Batch, bench: &mut Bench<'_>, watch: &mut impl Watch) {
        self.policies.begin(&bench.snapshot.spd);
        if self.states != bench.snapshot.states {
            self.states = bench.snapshot.states;
            self.policies.forget_bundles();
            // Others may hold more against limits now.
            self.arrears.pay();
        }
        let late = self.reassembly.expire(bench.now, bench.pool);
        bench.refuse(&mut self.traffic, late, DropReason::InFragment);
        if !self.run_alone(batch, bench, watch) {
            self.run_all(batch, bench, watch);
        }
        self.coalescer.flush(&mut bench.out.host);
        self.policies.settle(bench.now);
        self.arrears.settle(bench.now);
        watch.passed(Stage::Deliver);
        self.traffic.held = self.reassembly.held();
        self.marks.clear();
    }

    fn run_all(&mut self, batch: &mut Batch, bench: &mut Bench<'_>, watch: &mut impl Watch) {
        let (mut rest, mut alike, mut mixes) = (batch.drain(), true, true);
        // Where one among many was otherwise, the next ones need not be.
        let mut most = usize::MAX;
        while !rest.as_slice().is_empty() {
            alike = alike && self.run_express(&mut rest, bench, watch);
            if alike {
                continue;
            }
            if mixes && self.run_mixed(&mut rest, bench, watch) {
                most = WORTH;
                continue;
            }
            self.run_some(&mut rest, most, bench, watch);
            (mixes, most) = (most == WORTH, usize::MAX);
        }
    }

    /// All that is done to packets, so many of them that they stay at hand.
    fn run_some(
        &mut self,
        rest: &mut Drain<'_, PacketBuf>,
        most: usize,
        bench: &mut Bench<'_>,
        watch: &mut impl Watch,
    ) {
        self.used.begin(bench.snapshot);
        // Many states' packets go together, so that each is charged once. What a device says of packets is by their place in the batch.
        let goes_on = self.marks.is_empty() && self.used.are_few();
        self.receive(rest, if goes_on { most.min(PIECE) } else { most });
        if !self.marks.is_empty() {
            self.admit_marked(bench);
        }
        watch.passed(Stage::Receive);
        self.take_off_layers(bench, watch);
        self.deliver(bench, watch);
        watch.passed(Stage::Deliver);
        self.finish_some();
    }

    /// 2 Peel to 7 Strip, once per layer.
    fn take_off_layers(&mut self, bench: &mut Bench<'_>, watch: &mut impl Watch) {
        for _ in 0..=MAX_DEPTH {
            self.peel_all(bench);
            watch.passed(Stage::Peel);
            if self.sealed.is_empty() {
                break;
            }
            self.open(bench);
            watch.passed(Stage::Open);
            let more = self.accept(bench);
            watch.passed(Stage::Accept);
            if !more {
                break;
            }
        }
    }

    /// Lets go of what holds for these packets only.
    fn finish_some(&mut self) {
        self.settled = false;
        self.used.finish();
        self.movers.clear();
    }

    /// As [`Inbound::run`], of what a device received.
    pub(crate) fn run_marked(&mut self, received: &mut Vec<Received>, bench: &mut Bench<'_>) {
        let mut batch = std::mem::take(&mut self.from_device);
        for Received { packet, mark } in received.drain(..) {
            batch.push(packet);
            self.marks.push(mark);
        }
        self.run(&mut batch, bench, &mut ());
        self.from_device = batch;
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

    /// Lets go of states that are gone, and of some policies that are.
    pub(crate) fn let_go(&mut self, snapshot: &Snapshot) {
        self.policies.let_go(&snapshot.spd);
        self.used.let_go(snapshot);
    }

    /// 1 Receive.
    #[inline]
    fn receive(&mut self, rest: &mut Drain<'_, PacketBuf>, most: usize) {
        let count = rest.len().min(most);
        let packets = &rest.as_slice()[..count];
        packets.iter().take(NOTES_AHEAD).for_each(PacketBuf::prefetch);
        self.items.reserve(packets.len());
        let (first, mut bytes) = (self.items.len(), 0);
        for (buffer, packet) in (0..).zip(packets) {
            packets.get(buffer as usize + NOTES_AHEAD).inspect(|packet| packet.prefetch());
            packet.prefetch_bytes();
            bytes += packet.len();
            match packet.segments {
                Segments::Train { stride } if stride > 0 => {
                    self.receive_train(buffer, packet, stride);
                }
                Segments::Train { .. }
                | Segments::One
                | Segments::Tcp { .. }
                | Segments::Udp { .. } => {
                    self.items.push(Item::new(buffer, 0, packet.len(), packet.mark));
                }
            }
        }
        self.buffers.extend(rest.take(count).map(Some));
        self.traffic.received += (self.items.len() - first) as u64;
        self.traffic.received_bytes += bytes as u64;
    }

    #[inline(never)]
    fn receive_train(&mut self, buffer: u32, train: &PacketBuf, stride: u16) {
        for start in (0..train.len().max(1)).step_by(stride.into()) {
            let len = usize::from(stride).min(train.len() - start);
            self.items.push(Item::new(buffer, start, len, train.mark));
        }
    }

    fn drop(&mut self, place: usize, reason: DropReason, bench: &Bench<'_>) {
        self.items[place].fate = Fate::Gone;
        bench.refuse(&mut self.traffic, 1, reason);
    }
}

/// Places in a buffer or in a batch, both far below 4 GiB.
#[inline(always)]
fn narrow(place: usize) -> u32 {
    debug_assert!(u32::try_from(place).is_ok());
    #[expect(
        clippy::cast_possible_truncation,
        reason = "buffers are below 64 KiB, batches smaller"
    )]
    let narrow = place as u32;
    narrow
}
