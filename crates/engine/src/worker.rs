//! One thread's engine: everything that a batch needs and no other worker touches.
//!
//! A worker reads the published snapshot once per batch, keeps scratch room that is allocated once, and counts on its
//! own. It promises that every packet it is given either comes out, waits for a state or for other fragments, or is dropped under exactly
//! one [`DropReason`](crate::DropReason): see [`Traffic`].

use std::net::IpAddr;
use std::sync::Arc;

use uxfrm_crypto::Crypter;
use uxfrm_packet::{Batch, Pool};

use crate::datapath::context::{BatchContext, Output, Traffic};
use crate::datapath::inbound::Inbound;
use crate::datapath::outbound::{Outbound, WaitingPacket};
use crate::settings::Settings;
use crate::{
    CacheCounts, CacheStats, Drops, Event, Host, Moment, Published, Received, Snapshot, Watch,
    least_path,
};

/// One thread's engine.
#[derive(Debug)]
pub struct Worker {
    settings: Settings,
    snapshots: arc_swap::Cache<Published, Arc<Snapshot>>,
    crypter: Crypter,
    drops: Arc<Drops>,
    cache_counts: Arc<CacheCounts>,
    outbound: Outbound,
    inbound: Inbound,
    /// What the settings were last told of the host.
    host: Option<Arc<Host>>,
}

impl Worker {
    /// A worker with its scratch room allocated, which follows what is `published`.
    ///
    /// # Errors
    /// When the crypto library has no memory.
    pub fn new(settings: Settings, published: &Published) -> Result<Self, uxfrm_crypto::Error> {
        Ok(Self {
            outbound: Outbound::new(&settings),
            inbound: Inbound::new(&settings),
            settings,
            snapshots: arc_swap::Cache::new(Arc::clone(published)),
            crypter: Crypter::new()?,
            drops: Arc::new(Drops::default()),
            cache_counts: Arc::default(),
            host: None,
        })
    }

    /// Takes plain packets from the host, protects them as the policies say, and puts them into `out.wire`.
    ///
    /// `batch` is empty afterwards. ICMP errors for the senders are in `out.host`. Packets without a state wait for it, if key managers
    /// [listen](crate::Acquires), and fragments for others; who wants them to leave, or to be dropped in time, also where no others come, calls this with an
    /// empty batch while any [wait](Self::waiting).
    pub fn outbound(&mut self, batch: &mut Batch, now: Moment, pool: &mut Pool, out: &mut Output) {
        self.outbound_watched(batch, now, pool, out, &mut ());
    }

    /// As [`Worker::outbound`], and tells `watch` of each stage.
    #[inline(always)]
    pub fn outbound_watched(
        &mut self,
        batch: &mut Batch,
        now: Moment,
        pool: &mut Pool,
        out: &mut Output,
        watch: &mut impl Watch,
    ) {
        let (mut ctx, outbound, _) = self.ctx(now, pool, out);
        outbound.run(batch, &mut ctx, watch);
    }

    /// Takes packets from the network, checks and opens them, and puts what the policies let pass into `out.host`.
    ///
    /// `batch` is empty afterwards.
    pub fn inbound(&mut self, batch: &mut Batch, now: Moment, pool: &mut Pool, out: &mut Output) {
        self.inbound_watched(batch, now, pool, out, &mut ());
    }

    /// As [`Worker::inbound`], and tells `watch` of each stage.
    #[inline(always)]
    pub fn inbound_watched(
        &mut self,
        batch: &mut Batch,
        now: Moment,
        pool: &mut Pool,
        out: &mut Output,
        watch: &mut impl Watch,
    ) {
        let (mut ctx, _, inbound) = self.ctx(now, pool, out);
        inbound.run(batch, &mut ctx, watch);
    }

    /// As [`Worker::inbound`], of what a device received: packets that it decrypted, each with its mark, and all others. `received` is empty
    /// afterwards.
    pub fn inbound_from_device(
        &mut self,
        received: &mut Vec<Received>,
        now: Moment,
        pool: &mut Pool,
        out: &mut Output,
    ) {
        let (mut ctx, _, inbound) = self.ctx(now, pool, out);
        inbound.run_marked(received, &mut ctx);
    }

    /// Lets go of states that are no longer in the snapshot, and of their keys. Every batch does; a worker without traffic is to
    /// be asked to about once a second. Lets go of policies that are gone, too, 4,096 of their places each time, and shows what the flow caches did so far.
    pub fn refresh(&mut self) {
        self.settle();
        let snapshot = self.snapshots.load();
        self.outbound.let_go(snapshot);
        self.inbound.let_go(snapshot);
        let (outbound, inbound) = (&self.outbound.policies, &self.inbound.policies);
        self.cache_counts.write([outbound.stats_by_family(), inbound.stats_by_family()]);
    }

    /// Has policies count the last few packets, which a worker that gets one packet at a time charges together, and states those of the last ten
    /// milliseconds, if there were packets of many in turn. Whoever has nothing to do calls it,
    /// so that what is shown is exact; [`Worker::refresh`] does it too.
    pub fn settle(&mut self) {
        self.outbound.flush_deferred();
        self.inbound.flush_deferred();
    }

    /// Whether [`Worker::settle`] has something to do.
    #[must_use]
    pub fn owes(&self) -> bool {
        self.outbound.has_deferred() || self.inbound.has_deferred()
    }

    /// A port refused to send: the network takes `mtu` bytes towards there and no more. Says so in `events` unless that is known.
    #[cold]
    pub fn meet_narrow_path(&self, to: IpAddr, mtu: u32, events: &mut Vec<Event>) {
        let event = Event::NarrowPath(to);
        // Beneath the least, nobody will ever know it to be so narrow.
        let mtu = mtu.max(least_path(to).into());
        if mtu < self.settings.mtu_to(to).into() && !events.contains(&event) {
            events.push(event);
        }
    }

    /// Copies of the packets that wait for states, for a worker that takes this one's place.
    #[must_use]
    pub fn portray_waiting(&self) -> Vec<WaitingPacket> {
        self.outbound.portray_waiting()
    }

    /// Goes on with packets that waited with another worker, once there are its states, policies and [acquires](crate::Acquires):
    /// they wait here, or leave.
    pub fn wait_with(
        &mut self,
        waiting: Vec<WaitingPacket>,
        now: Moment,
        pool: &mut Pool,
        out: &mut Output,
    ) {
        let (mut ctx, outbound, _) = self.ctx(now, pool, out);
        outbound.adopt_waiting(waiting, &mut ctx);
    }

    /// Outbound buffers that wait for a state, and datagrams that wait for the rest of their fragments.
    #[must_use]
    #[inline]
    pub fn waiting(&self) -> usize {
        self.outbound.waiting()
    }

    /// What the worker was set up with.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Its drops, to be read by whoever shows statistics.
    #[must_use]
    pub fn drops(&self) -> Arc<Drops> {
        Arc::clone(&self.drops)
    }

    /// What went out so far.
    #[must_use]
    pub fn outward(&self) -> Traffic {
        self.outbound.traffic
    }

    /// What the flow caches did so far, outbound and inbound.
    #[must_use]
    pub fn caches(&self) -> [CacheStats; 2] {
        [self.outbound.policies.stats(), self.inbound.policies.stats()]
    }

    /// What the flow caches did until the latest [`Worker::refresh`], to be read by whoever shows statistics.
    #[must_use]
    pub fn cache_counts(&self) -> Arc<CacheCounts> {
        Arc::clone(&self.cache_counts)
    }

    /// What came in so far.
    #[must_use]
    pub fn inward(&self) -> Traffic {
        self.inbound.traffic
    }

    /// What a batch needs, of the newest snapshot; and who works with it.
    #[inline(always)]
    fn ctx<'a>(
        &'a mut self,
        now: Moment,
        pool: &'a mut Pool,
        out: &'a mut Output,
    ) -> (BatchContext<'a>, &'a mut Outbound, &'a mut Inbound) {
        let snapshot = self.snapshots.load();
        meet_host(snapshot, &mut self.host, &mut self.settings);
        let Self { settings, crypter, drops, outbound, inbound, .. } = self;
        (BatchContext { settings, snapshot, crypter, drops, now, pool, out }, outbound, inbound)
    }
}

/// Lets what the snapshot says of the host be the settings'. It must be the snapshot of the batch: bundles are kept by its host.
#[inline(always)]
fn meet_host(snapshot: &Snapshot, met: &mut Option<Arc<Host>>, settings: &mut Settings) {
    if let Some(host) = &snapshot.host
        && !met.as_ref().is_some_and(|met| Arc::ptr_eq(met, host))
    {
        take_over(host, settings);
        *met = Some(Arc::clone(host));
    }
}

#[cold]
fn take_over(host: &Host, settings: &mut Settings) {
    settings.addresses = host.addresses.clone();
    settings.mtu = host.mtu;
    settings.narrow = host.narrow.clone();
}
