//! A worker: one thread's engine, with everything that a batch needs and no other worker touches.
//!
//! It reads the published snapshot once per batch, allocates its scratch once, and has its own
//! counters. Every packet that it is given comes out, waits for a state or for other fragments, or
//! is dropped under exactly one [`DropReason`]: see [`TrafficCounters`].

mod clamp;
pub(crate) mod icmp_source;
mod traced;

use std::net::IpAddr;
use std::sync::Arc;

use uxfrm_crypto::Crypter;
use uxfrm_packet::{Batch, PacketBuf, Pool};

use crate::datapath::context::{BatchContext, Output, TrafficCounters};
use crate::datapath::inbound::Inbound;
use crate::datapath::outbound::{Outbound, WaitingPacket};
use crate::drop_log::{DropLog, DropSite, DropView};
use crate::packet_tap::{EncapPorts, ShowSite};
use crate::settings::Settings;
use crate::{
    ByDirection, CacheStats, CapturePoint, Direction, DropReason, DropRecords, Drops, Event,
    HostView, Moment, PacketTap, Published, ReceivedPacket, SaProtocol, SharedCacheStats,
    SharedDropTallies, Snapshot, Spi, StageWatch, min_path_mtu,
};

/// One thread's engine.
///
/// ```
/// use uxfrm_crypto::Backend;
/// use uxfrm_engine::{Database, DropReason, Moment, Output, Settings, Worker};
/// use uxfrm_packet::{Batch, PacketBuf, Pool};
///
/// let database = Database::new(Backend::Auto, 1);
/// let mut worker = Worker::new(Settings::default(), &database.published())?;
/// let (mut pool, mut out) = (Pool::new(), Output::default());
/// let mut batch: Batch = [PacketBuf::from_slice(b"not IP")].into_iter().collect();
/// worker.outbound(&mut batch, Moment(0), &mut pool, &mut out);
/// assert!(batch.is_empty() && out.wire.is_empty());
///
/// let traffic = worker.outward();
/// assert_eq!((traffic.received, traffic.sent, traffic.dropped), (1, 0, 1));
/// let dropped = DropReason::ALL.iter().filter(|reason| worker.drops().of(**reason) > 0);
/// assert_eq!(dropped.count(), 1);
/// # Ok::<(), uxfrm_crypto::Error>(())
/// ```
#[derive(Debug)]
pub struct Worker {
    settings: Settings,
    snapshots: arc_swap::Cache<Published, Arc<Snapshot>>,
    crypter: Crypter,
    drops: Box<DropLog>,
    cache_counts: Arc<SharedCacheStats>,
    outbound: Outbound,
    inbound: Inbound,
    outward: TrafficCounters,
    inward: TrafficCounters,
    /// The host that the settings were last updated from.
    host: Option<Arc<HostView>>,
}

impl Worker {
    /// A worker with its scratch allocated, which follows `published`.
    ///
    /// # Errors
    /// When the crypto library has no memory.
    pub fn new(settings: Settings, published: &Published) -> Result<Self, uxfrm_crypto::Error> {
        Ok(Self {
            outbound: Outbound::new(&settings),
            inbound: Inbound::new(&settings),
            outward: TrafficCounters::default(),
            inward: TrafficCounters::default(),
            settings,
            snapshots: arc_swap::Cache::new(Arc::clone(published)),
            crypter: Crypter::new()?,
            drops: Box::default(),
            cache_counts: Arc::default(),
            host: None,
        })
    }

    /// Takes plain packets from the host, protects them by policy, and puts them into `out.wire`.
    ///
    /// `batch` is empty afterwards. ICMP errors for the senders are in `out.host`. Packets without
    /// a state wait for it if key managers [listen](crate::AcquireView), and fragments wait for
    /// others. While any [wait](Self::waiting), call this with an empty batch too, so that they
    /// leave or are dropped in time.
    pub fn outbound(&mut self, batch: &mut Batch, now: Moment, pool: &mut Pool, out: &mut Output) {
        self.outbound_watched(batch, now, pool, out, &mut ());
    }

    /// [`Worker::outbound`] with a watcher of stages.
    #[inline(always)]
    pub fn outbound_watched(
        &mut self,
        batch: &mut Batch,
        now: Moment,
        pool: &mut Pool,
        out: &mut Output,
        watch: &mut impl StageWatch,
    ) {
        let (mut ctx, outbound, _) = self.ctx(Direction::Out, now, pool, out);
        outbound.run(batch, &mut ctx, watch);
    }

    /// Takes packets from the network, opens and checks them, and puts those that pass into
    /// `out.host`.
    ///
    /// `batch` is empty afterwards.
    pub fn inbound(&mut self, batch: &mut Batch, now: Moment, pool: &mut Pool, out: &mut Output) {
        self.inbound_watched(batch, now, pool, out, &mut ());
    }

    /// [`Worker::inbound`] with a watcher of stages.
    #[inline(always)]
    pub fn inbound_watched(
        &mut self,
        batch: &mut Batch,
        now: Moment,
        pool: &mut Pool,
        out: &mut Output,
        watch: &mut impl StageWatch,
    ) {
        let (mut ctx, _, inbound) = self.ctx(Direction::In, now, pool, out);
        inbound.run(batch, &mut ctx, watch);
    }

    /// Like [`Worker::inbound`], for packets from a device: decrypted ones with their metadata, and
    /// all others. `received` is empty afterwards.
    pub fn inbound_from_device(
        &mut self,
        received: &mut Vec<ReceivedPacket>,
        now: Moment,
        pool: &mut Pool,
        out: &mut Output,
    ) {
        let (mut ctx, _, inbound) = self.ctx(Direction::In, now, pool, out);
        inbound.run_marked(received, &mut ctx);
    }

    /// Releases removed states with their keys. Every batch does; for a worker without traffic call
    /// it about once a second. Also releases removed policies, 4,096 entries per call, and
    /// publishes the flow caches' statistics and the drops by subject.
    pub fn refresh(&mut self) {
        self.settle();
        let snapshot = self.snapshots.load();
        self.outbound.release_stale(snapshot);
        self.inbound.release_stale(snapshot);
        self.drops.publish(snapshot);
        let (outbound, inbound) = (self.outbound.policies(), self.inbound.policies());
        let (outbound, inbound) = (outbound.stats_by_family(), inbound.stats_by_family());
        self.cache_counts.write(ByDirection { outbound, inbound });
    }

    /// Flushes deferred counters: those of policies, which a worker with single packets charges
    /// together, and those of states, up to ten milliseconds old. Call it when idle, so that
    /// counters are exact; [`Worker::refresh`] does it too.
    pub fn settle(&mut self) {
        self.outbound.flush_deferred();
        self.inbound.flush_deferred();
    }

    /// Whether [`Worker::settle`] has something to do.
    #[must_use]
    pub fn has_deferred(&self) -> bool {
        self.outbound.has_deferred() || self.inbound.has_deferred()
    }

    /// A port refused to send: the path MTU towards `to` is `mtu`. Raises an event unless that is
    /// known.
    #[cold]
    pub fn learn_path_mtu(&self, to: IpAddr, mtu: u32, events: &mut Vec<Event>) {
        let event = Event::NarrowPath(to);
        // Smaller path MTUs than the minimum are never believed.
        let mtu = mtu.max(min_path_mtu(to).into());
        if mtu < self.settings.mtu_to(to).into() && !events.contains(&event) {
            events.push(event);
        }
    }

    /// Copies of the packets that wait for states, for a worker that replaces this one.
    #[must_use]
    pub fn copy_waiting(&self) -> Vec<WaitingPacket> {
        self.outbound.copy_queued()
    }

    /// Takes over packets that waited with another worker, once its states, policies and
    /// [acquires](crate::AcquireView) are here: they wait again, or leave.
    pub fn adopt_waiting(
        &mut self,
        waiting: Vec<WaitingPacket>,
        now: Moment,
        pool: &mut Pool,
        out: &mut Output,
    ) {
        let (mut ctx, outbound, _) = self.ctx(Direction::Out, now, pool, out);
        outbound.adopt_waiting(waiting, &mut ctx);
    }

    /// Packets that wait for a state, and datagrams that wait for fragments.
    #[must_use]
    #[inline]
    pub fn waiting(&self) -> usize {
        self.outbound.waiting()
    }

    /// The worker's settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Its drop counters, for statistics.
    #[must_use]
    pub fn drops(&self) -> Arc<Drops> {
        Arc::clone(self.drops.counts())
    }

    /// Its records of dropped packets, for whoever collects them.
    #[must_use]
    pub fn drop_records(&self) -> Arc<DropRecords> {
        Arc::clone(self.drops.records())
    }

    /// Its drops by subject as of the latest [`Worker::refresh`], for any thread.
    #[must_use]
    pub fn drop_tallies(&self) -> Arc<SharedDropTallies> {
        Arc::clone(self.drops.published())
    }

    /// Where it shows its packets, for whoever watches.
    #[must_use]
    pub fn tap(&self) -> Arc<PacketTap> {
        Arc::clone(self.drops.tap())
    }

    /// Whether somebody watches its packets: then a loop calls [`Worker::show`],
    /// [`Worker::outbound_traced`] and [`Worker::inbound_traced`]. For once a round.
    #[must_use]
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.drops.tap().is_armed()
    }

    /// Shows packets at a point to those who capture there. Drops are shown by the worker itself.
    #[cold]
    pub fn show(&self, point: CapturePoint, packets: &[PacketBuf], now: Moment) {
        self.drops.tap().show(point, packets, self.show_site(now));
    }

    fn show_site(&self, at: Moment) -> ShowSite<'_> {
        let ports = EncapPorts(&self.settings.encap_ports);
        ShowSite { at, worker: self.settings.cpu.0, ports }
    }

    /// Counts and perhaps records a buffer of `packets` packets that the caller drops before or
    /// after the engine had it. Not in [`TrafficCounters::dropped`].
    #[cold]
    pub fn note_dropped(
        &mut self,
        packet: &PacketBuf,
        packets: u64,
        reason: DropReason,
        now: Moment,
    ) {
        self.note_drop(packets, reason, &DropSite::of(packet), now);
    }

    /// Like [`Worker::note_dropped`], where only the number is known.
    #[inline]
    pub fn count_dropped(&mut self, packets: u64, reason: DropReason, now: Moment) {
        if packets > 0 {
            self.note_drop(packets, reason, &DropSite::default(), now);
        }
    }

    /// Counts packets that the kernel refused to send with this `errno`, as far as it is known:
    /// `esp` is the destination and SPI of ESP that left by a state, if all did.
    #[cold]
    pub fn count_refused(
        &mut self,
        packets: u64,
        esp: Option<(IpAddr, Spi)>,
        errno: Option<i32>,
        now: Moment,
    ) {
        if packets == 0 {
            return;
        }
        let Self { snapshots, drops, settings, .. } = self;
        let snapshot = snapshots.load();
        let state = esp.and_then(|(destination, spi)| {
            snapshot.sad.inbound(destination, spi, SaProtocol::Esp, 0)
        });
        let site = state.map_or_else(DropSite::default, |sa| DropSite::default().by_sa(sa));
        drops.note_refused(packets, errno, &site, DropView { snapshot, settings, now });
    }

    #[cold]
    fn note_drop(&mut self, packets: u64, reason: DropReason, site: &DropSite<'_>, now: Moment) {
        let Self { snapshots, drops, settings, .. } = self;
        let snapshot = snapshots.load();
        drops.note(packets, reason, site, DropView { snapshot, settings, now });
    }

    /// Outbound traffic so far.
    #[must_use]
    pub fn outward(&self) -> TrafficCounters {
        self.outward
    }

    /// Statistics of the flow caches.
    #[must_use]
    pub fn caches(&self) -> ByDirection<CacheStats> {
        let (outbound, inbound) = (self.outbound.policies(), self.inbound.policies());
        ByDirection { outbound: outbound.stats(), inbound: inbound.stats() }
    }

    /// Statistics of the flow caches as of the latest [`Worker::refresh`], for any thread.
    #[must_use]
    pub fn cache_counts(&self) -> Arc<SharedCacheStats> {
        Arc::clone(&self.cache_counts)
    }

    /// Inbound traffic so far.
    #[must_use]
    pub fn inward(&self) -> TrafficCounters {
        self.inward
    }

    /// The context of a batch on the newest snapshot, and the two halves that use it.
    #[inline(always)]
    fn ctx<'a>(
        &'a mut self,
        direction: Direction,
        now: Moment,
        pool: &'a mut Pool,
        out: &'a mut Output,
    ) -> (BatchContext<'a>, &'a mut Outbound, &'a mut Inbound) {
        let snapshot = self.snapshots.load();
        meet_host(snapshot, &mut self.host, &mut self.settings);
        let Self { settings, crypter, drops, outbound, inbound, outward, inward, .. } = self;
        let traffic = match direction {
            Direction::Out => outward,
            Direction::In | Direction::Forward => inward,
        };
        let ctx = BatchContext { settings, snapshot, crypter, drops, now, pool, out, traffic };
        (ctx, outbound, inbound)
    }
}

/// Updates the settings from the host of the batch's own snapshot: bundles are valid for one host.
#[inline(always)]
fn meet_host(snapshot: &Snapshot, met: &mut Option<Arc<HostView>>, settings: &mut Settings) {
    if let Some(host) = &snapshot.host
        && !met.as_ref().is_some_and(|met| Arc::ptr_eq(met, host))
    {
        take_over(host, settings);
        *met = Some(Arc::clone(host));
    }
}

#[cold]
fn take_over(host: &HostView, settings: &mut Settings) {
    settings.addresses = host.addresses.clone();
    settings.mtu = host.mtu;
    settings.path_mtus = host.path_mtus.clone();
}
