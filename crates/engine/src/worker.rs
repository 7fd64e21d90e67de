//! One thread's engine: everything that a batch needs and no other worker touches.
//!
//! A worker reads the published snapshot once per batch, keeps scratch room that is allocated once, and counts on its
//! own. It promises that every packet it is given either comes out, waits for a state or for other fragments, or is dropped under exactly
//! one [`DropReason`](crate::DropReason): see [`Traffic`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use uxfrm_crypto::Crypter;
use uxfrm_packet::{Batch, Pool};

use crate::inbound::Inbound;
use crate::outbound::{Outbound, WaitingPacket};
use crate::{
    CacheCounts, CacheStats, Caches, Cpu, DropReason, Drops, Event, Handed, Host, Moment,
    NarrowPaths, Published, Received, Snapshot, SourcePorts, Watch, least_path,
};

/// Who writes the headers outside ESP-in-UDP packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WireHeaders {
    /// The engine: whole IP packets, for raw sockets, memory ports and `AF_PACKET`.
    #[default]
    Engine,
    /// The kernel, for states with UDP encapsulation: the engine yields UDP payloads with a
    /// [`UdpPath`](uxfrm_packet::UdpPath). Without encapsulation, whole IP packets all the same.
    UdpSocket,
}

/// What the host's port takes in one buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostPort {
    /// One packet.
    #[default]
    Packets,
    /// Super-packets too: TCP, and UDP when the port says so.
    SuperPackets {
        /// Which datagrams may be put together.
        udp: UdpSuper,
    },
}

/// Whether the host's port takes UDP super-packets (`TUN_F_USO4`, kernel 6.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UdpSuper {
    /// It does not.
    #[default]
    Refused,
    /// It does.
    Taken,
}

/// The addresses that are the host's own: what goes to them is checked by `in` policies, all else by `fwd` ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostAddresses {
    /// As numbers, which are compared faster; sorted.
    v4: Vec<u32>,
    v6: Vec<u128>,
}

impl HostAddresses {
    /// Whether a packet to `address` is for this host: an own address, multicast, or IPv4's limited broadcast.
    #[must_use]
    #[inline]
    pub fn holds(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => {
                v4.is_multicast()
                    || v4.is_broadcast()
                    || self.v4.binary_search(&v4.to_bits()).is_ok()
            }
            IpAddr::V6(v6) => v6.is_multicast() || self.v6.binary_search(&v6.to_bits()).is_ok(),
        }
    }

    /// The first own address of the same family as `other`: what an ICMP error comes from.
    #[must_use]
    pub fn like(&self, other: IpAddr) -> Option<IpAddr> {
        let v4 = self.v4.iter().map(|bits| IpAddr::V4(Ipv4Addr::from_bits(*bits)));
        let v6 = self.v6.iter().map(|bits| IpAddr::V6(Ipv6Addr::from_bits(*bits)));
        let mut own = v4.chain(v6);
        own.find(|own| own.is_ipv4() == other.is_ipv4() && !own.is_loopback())
    }
}

impl FromIterator<IpAddr> for HostAddresses {
    fn from_iter<I: IntoIterator<Item = IpAddr>>(addresses: I) -> Self {
        let mut own = Self::default();
        for address in addresses {
            match address {
                IpAddr::V4(v4) => own.v4.push(v4.to_bits()),
                IpAddr::V6(v6) => own.v6.push(v6.to_bits()),
            }
        }
        own.v4.sort_unstable();
        own.v4.dedup();
        own.v6.sort_unstable();
        own.v6.dedup();
        own
    }
}

/// How much a worker lets wait for states that key managers are to make. A super-packet is one buffer; bytes are those of whole
/// buffers, whatever is in them, as that is what is missing elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Buffers for one state.
    pub buffers_each: usize,
    /// Bytes for one state.
    pub bytes_each: usize,
    /// Buffers in all.
    pub buffers: usize,
    /// Bytes in all.
    pub bytes: usize,
}

impl Default for Patience {
    /// 100 buffers for each state as in Linux (`XFRM_MAX_QUEUE_LEN`), but no more than 1 MiB; 1,024 in all, but no more than 8 MiB.
    fn default() -> Self {
        Self { buffers_each: 100, bytes_each: 1 << 20, buffers: 1024, bytes: 8 << 20 }
    }
}

/// How a worker is set up. All workers of a gateway share these but for `cpu` and `seed`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Who writes outer headers.
    pub headers: WireHeaders,
    /// What the host takes.
    pub host: HostPort,
    /// Bytes of the largest IP packet that the network takes, headers included; at least 576.
    pub mtu: u16,
    /// Peers towards which it takes less.
    pub narrow: NarrowPaths,
    /// TTL and hop limit of outer headers.
    pub hop_limit: u8,
    /// The host's own addresses, until a [`Host`] says otherwise; so for `mtu` and `narrow`.
    pub addresses: HostAddresses,
    /// UDP ports at which whole IP packets may hold ESP (RFC 3948: 4500). Socket payloads are peeled at any port.
    pub encap_ports: Vec<u16>,
    /// How what was found out about flows is remembered.
    pub cache: Caches,
    /// How much may wait for states.
    pub patience: Patience,
    /// Which `pcpu-num` is this worker's (RFC 9611); different in every worker.
    pub cpu: Cpu,
    /// Seed of outer IPv4 ids, IPv6 fragment ids and flow caches; different in every worker.
    pub seed: u64,
    /// The source ports that inner flows have of their own.
    pub source_ports: SourcePorts,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            headers: WireHeaders::default(),
            host: HostPort::default(),
            mtu: 1500,
            narrow: NarrowPaths::new(),
            hop_limit: 64,
            addresses: HostAddresses::default(),
            encap_ports: vec![4500],
            cache: Caches::default(),
            patience: Patience::default(),
            cpu: Cpu(0),
            seed: 0,
            source_ports: SourcePorts::default(),
        }
    }
}

impl Settings {
    /// Bytes of the largest IP packet that the network takes towards `peer`.
    #[must_use]
    pub fn mtu_to(&self, peer: IpAddr) -> u16 {
        self.narrow.get(&peer).map_or(self.mtu, |narrow| self.mtu.min(*narrow))
    }

    /// Bytes of the largest plain packet that is sent as it is. The kernel's raw sockets cut none that is longer than its link takes, and tell nobody; whoever
    /// else sends knows each packet's way.
    #[inline]
    pub(crate) fn plain_limit(&self) -> usize {
        match self.headers {
            WireHeaders::UdpSocket => self.mtu.into(),
            WireHeaders::Engine => usize::MAX,
        }
    }
}

/// What a call of [`Worker::outbound`] or [`Worker::inbound`] yields. Reused from batch to batch: the caller drains it.
#[derive(Debug, Default)]
pub struct Output {
    /// For the network: single packets and trains, checksums complete. Whole IP packets, or UDP payloads where
    /// [`Label::udp`](uxfrm_packet::Label::udp) is set.
    pub wire: Batch,
    /// For devices, in order.
    pub handed: Vec<Handed>,
    /// For the host, or to be forwarded: plain packets, super-packets if the host's port takes them.
    pub host: Batch,
    /// What key managers are to hear.
    pub events: Vec<Event>,
}

/// Packets and bytes of one direction. A train or super-packet counts as the packets it holds.
///
/// `received == sent + dropped + absorbed + held`, after every batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets given to the worker.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Packets that came out; before outer fragmentation and coalescing.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets dropped, each under one reason.
    pub dropped: u64,
    /// Fragments that went into a reassembled packet, which counts in their place as one.
    pub absorbed: u64,
    /// Packets that wait now: outbound for a state, inbound fragments for others.
    pub held: u64,
    /// Packets that the engine itself made (ICMP errors); not in `sent`.
    pub originated: u64,
}

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
        let (mut bench, outbound, _) = self.bench(now, pool, out);
        outbound.run(batch, &mut bench, watch);
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
        let (mut bench, _, inbound) = self.bench(now, pool, out);
        inbound.run(batch, &mut bench, watch);
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
        let (mut bench, _, inbound) = self.bench(now, pool, out);
        inbound.run_marked(received, &mut bench);
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
        self.outbound.pay();
        self.inbound.pay();
    }

    /// Whether [`Worker::settle`] has something to do.
    #[must_use]
    pub fn owes(&self) -> bool {
        self.outbound.owes() || self.inbound.owes()
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
        let (mut bench, outbound, _) = self.bench(now, pool, out);
        outbound.wait_with(waiting, &mut bench);
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
    fn bench<'a>(
        &'a mut self,
        now: Moment,
        pool: &'a mut Pool,
        out: &'a mut Output,
    ) -> (Bench<'a>, &'a mut Outbound, &'a mut Inbound) {
        let snapshot = self.snapshots.load();
        meet_host(snapshot, &mut self.host, &mut self.settings);
        let Self { settings, crypter, drops, outbound, inbound, .. } = self;
        (Bench { settings, snapshot, crypter, drops, now, pool, out }, outbound, inbound)
    }
}

/// What both directions work with for one batch.
pub(crate) struct Bench<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) crypter: &'a mut Crypter,
    pub(crate) drops: &'a Drops,
    pub(crate) now: Moment,
    pub(crate) pool: &'a mut Pool,
    pub(crate) out: &'a mut Output,
}

impl Bench<'_> {
    /// Counts `packets` packets as dropped.
    pub(crate) fn refuse(&self, traffic: &mut Traffic, packets: u64, reason: DropReason) {
        self.drops.add(reason, packets);
        traffic.dropped += packets;
    }

    /// Says something to key managers, once per batch.
    pub(crate) fn tell(&mut self, event: Event) {
        if !self.out.events.contains(&event) {
            self.out.events.push(event);
        }
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
