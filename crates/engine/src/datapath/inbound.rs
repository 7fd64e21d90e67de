//! Inbound data path: from the network to the host.
//!
//! # The map
//! A batch passes through these stages; comments in the code name them by number. Stages 2 to 7 run
//! once per ESP layer, at most six times.
//!
//! 1. **Receive**: count; every packet of a segment burst becomes an item, in place.
//! 2. **Peel**: parse IP and UDP, or take a UDP socket's metadata. Keepalives, IKE and plain
//!    packets leave the ESP path here; fragments are reassembled.
//! 3. **State**: find the SA by SPI, destination, protocol and mark.
//! 4. **Replay check**, before any crypto.
//! 5. **Open**: authenticate and decrypt the whole batch, in place.
//! 6. **Replay advance**, for runs of one SA together.
//! 7. **Strip**: remove padding and headers of each accepted packet; tunnels copy ECN and DSCP
//!    inward. Then charge each SA, once per batch and exact at its limits.
//! 8. **Check**: selectors and policies, direction `in` for the host's own addresses, `fwd` for all
//!    others.
//! 9. **Coalesce** (GRO), where the host takes super-packets.
//! 10. **Transmit** to the host.
//!
//! Fast paths accept; whatever does not match takes the slow path. By themselves they drop only
//! packets over a limit of their SA, and a single packet whose number another worker accepted
//! meanwhile. Templates of earlier packets serve stages 2 to 4 ([`outer_template`]) and 7
//! ([`inner_template`]), and the latest verdict serves 8 (`deliver_same_flow`). A [single]
//! packet of a batch uses them without lists. Runs of [one SA](run) and packets of [interleaved
//! SAs](interleaved) are opened and framed in place.
//!
//! Mirrors `net/xfrm/xfrm_input.c: xfrm_input` and `net/xfrm/xfrm_policy.c: __xfrm_policy_check`.

mod deliver;
mod inner_template;
mod interleaved;
mod open;
mod outer_template;
mod run;
mod rx_batch;
mod rx_cache;
mod rx_record;
mod single;
pub(crate) mod slow;
mod spi_index;

use std::vec::Drain;

use uxfrm_packet::{Batch, PacketBuf};

use crate::datapath::context::BatchContext;
use crate::esp::decap::OuterHeader;
use crate::ids::MAX_DEPTH;
use crate::sa::deferred_counters::DeferredCounters;
use crate::sa::replay::UncheckedSeq;
use crate::{
    DatapathKind, PolicyCache, ReceivedPacket, SaId, Settings, Snapshot, Stage, StageWatch,
    TraceStep,
};
use deliver::HostDelivery;
use interleaved::RxInterleaved;
use open::EspOpener;
use run::{MIN_PACKETS, RxRun};
use rx_batch::RxBatch;
use slow::classify_outer::OuterClassifier;
use slow::device::{Opener, admit_from_device};
use slow::item::{Fate, RxItem};
use slow::policy_lookups::PolicyLookups;

/// Inbound half of a worker: the stages, with their scratch buffers, caches and counters.
#[derive(Debug)]
pub(crate) struct Inbound {
    rx: RxBatch,
    /// Generation of the SAs for which the policy cache holds inbound passes.
    sa_generation: u64,
    /// Batch from a device.
    from_device: Batch,
    classifier: OuterClassifier,
    opener: EspOpener,
    delivery: HostDelivery,
    /// A run of one SA that is opened in place.
    run: RxRun,
    interleaved: RxInterleaved,
    deferred: DeferredCounters,
}

/// An ESP packet that is to be opened.
#[derive(Debug)]
struct SealedEsp {
    item: u32,
    entry: u32,
    buffer: u32,
    /// Offset of ESP in the buffer, and its length.
    at: u32,
    len: u32,
    number: UncheckedSeq,
    /// Payload bytes to charge; `None` unless accepted.
    carried: Option<u32>,
    tos: u8,
    params: DecapParams,
}

/// How an ESP packet arrived and who opens it.
#[derive(Clone, Copy, Debug)]
struct DecapParams {
    /// The packet's own IP header, which transport mode keeps; `None` if a socket removed it.
    outer_hdr: Option<OuterHeader>,
    in_udp: bool,
    opener: Opener,
}

/// Key of an SA look-up: SPI, destination, protocol and mark.
type SaLookupKey = (SaId, u32);

/// With more SAs than this, their data leaves the L2 cache between uses.
const FEW: usize = 128;
/// Packets whose SAs are prefetched together: their data fits into the L2 cache.
const SA_PREFETCH_GROUP: usize = 32;
/// Packets that pass all stages before the next ones begin: their data fits into the L1 cache.
const PIECE: usize = 64;
/// How many packets ahead metadata is prefetched. Packet data is prefetched on receipt, and again
/// this far ahead after much else was read.
const META_AHEAD: usize = 8;
const DATA_AHEAD: usize = 4;

impl Inbound {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            rx: RxBatch::new(),
            sa_generation: 0,
            from_device: Batch::default(),
            classifier: OuterClassifier::default(),
            opener: EspOpener::new(),
            delivery: HostDelivery::new(settings),
            run: RxRun::new(),
            interleaved: RxInterleaved::new(),
            deferred: DeferredCounters::default(),
        }
    }

    pub(crate) fn policies(&self) -> &PolicyCache {
        &self.delivery.policies
    }

    pub(crate) fn run(
        &mut self,
        batch: &mut Batch,
        ctx: &mut BatchContext<'_>,
        watch: &mut impl StageWatch,
    ) {
        self.delivery.policies.begin_batch(&ctx.snapshot.spd);
        if self.sa_generation != ctx.snapshot.sa_generation {
            self.sa_generation = ctx.snapshot.sa_generation;
            self.delivery.policies.invalidate_bundles();
            // Another generation of an SA may have tighter limits.
            self.deferred.flush();
        }
        self.classifier.reassembler.expire(ctx);
        if !self.run_single(batch, ctx, watch) {
            self.run_all(batch, ctx, watch);
        }
        self.delivery.coalescer.flush(&mut ctx.out.host);
        self.delivery.policies.flush_due(ctx.now);
        self.deferred.flush_due(ctx.now);
        watch.stage_done(Stage::Deliver);
        ctx.traffic.held = self.classifier.reassembler.held();
        self.rx.metadata.clear();
    }

    fn run_all(
        &mut self,
        batch: &mut Batch,
        ctx: &mut BatchContext<'_>,
        watch: &mut impl StageWatch,
    ) {
        let (mut rest, mut same_sa, mut interleaved) = (batch.drain(), true, true);
        // A slow-path packet among many others does not end the fast path.
        let mut most = usize::MAX;
        while !rest.as_slice().is_empty() {
            same_sa = same_sa && self.run_same_sa(&mut rest, ctx, watch);
            if same_sa {
                continue;
            }
            if interleaved && self.run_interleaved(&mut rest, ctx, watch) {
                most = MIN_PACKETS;
                continue;
            }
            self.run_items(&mut rest, most, ctx, watch);
            (interleaved, most) = (most == MIN_PACKETS, usize::MAX);
        }
    }

    /// All stages for as many packets as stay in the cache.
    fn run_items(
        &mut self,
        rest: &mut Drain<'_, PacketBuf>,
        most: usize,
        ctx: &mut BatchContext<'_>,
        watch: &mut impl StageWatch,
    ) {
        let rx = &mut self.rx;
        rx.rx_cache.begin(ctx.snapshot);
        // With many SAs the whole batch goes together, so that each SA is charged once. Device
        // metadata is indexed by position in the batch.
        let goes_on = rx.metadata.is_empty() && rx.rx_cache.is_small();
        rx.receive(rest, if goes_on { most.min(PIECE) } else { most }, ctx);
        if !rx.metadata.is_empty() {
            admit_from_device(rx, ctx);
        }
        watch.stage_done(Stage::Receive);
        watch.note(|| TraceStep::Path(DatapathKind::Slow));
        self.decapsulate_layers(ctx, watch);
        self.delivery.deliver(&mut self.rx, ctx, watch);
        watch.stage_done(Stage::Deliver);
        self.rx.finish();
    }

    /// Stages 2 to 7, once per layer.
    fn decapsulate_layers(&mut self, ctx: &mut BatchContext<'_>, watch: &mut impl StageWatch) {
        let Self { rx, classifier, opener, .. } = self;
        for _ in 0..=MAX_DEPTH {
            classifier.classify_and_match(rx, ctx);
            watch.stage_done(Stage::Peel);
            if rx.sealed.is_empty() {
                break;
            }
            opener.open(rx, ctx);
            watch.stage_done(Stage::Open);
            note_opened(rx, opener, watch);
            let more = opener.accept(rx, ctx);
            watch.stage_done(Stage::Accept);
            if !more {
                break;
            }
        }
    }

    /// Like [`Inbound::run`], for packets from a device.
    pub(crate) fn run_marked(
        &mut self,
        received: &mut Vec<ReceivedPacket>,
        ctx: &mut BatchContext<'_>,
    ) {
        let mut batch = std::mem::take(&mut self.from_device);
        for ReceivedPacket { packet, metadata } in received.drain(..) {
            batch.push(packet);
            self.rx.metadata.push(metadata);
        }
        self.run(&mut batch, ctx, &mut ());
        self.from_device = batch;
    }

    /// Flushes the deferred counters of policies and SAs.
    pub(crate) fn flush_deferred(&mut self) {
        self.delivery.policies.flush();
        self.deferred.flush();
    }

    /// Whether any counter is deferred.
    pub(crate) fn has_deferred(&self) -> bool {
        self.delivery.policies.has_pending() || self.deferred.has_pending()
    }

    /// Releases removed SAs and some removed policies.
    pub(crate) fn release_stale(&mut self, snapshot: &Snapshot) {
        self.delivery.policies.release_stale(&snapshot.spd);
        self.rx.rx_cache.release_stale(snapshot);
    }
}

/// Notes the states of packets that were to be opened, and whether they were authentic.
#[inline(always)]
fn note_opened(rx: &RxBatch, opener: &EspOpener, watch: &mut impl StageWatch) {
    for (sealed, status) in rx.sealed.iter().zip(&opener.statuses) {
        watch.note(|| rx.state_step(sealed));
        watch.note(|| TraceStep::Opened(*status));
    }
}

/// An offset in a buffer or an index in a batch.
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
