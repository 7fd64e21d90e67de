//! The workers of a gateway: per worker a queue of the TUN, sockets towards the network, and an
//! engine.
//!
//! Raw sockets are not shared out by the kernel: each gets a copy of every ESP packet. A filter in
//! each lets in only the states that are its own ([`FanoutShare`]), so that a state's packets stay
//! in order. UDP ports are shared by `SO_REUSEPORT` among the workers, and with IKE daemons as
//! [`crate::ports::ike`] does.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::OwnedFd,
    sync::{Arc, mpsc::SyncSender},
    time::Duration,
};

use anyhow::Context as _;
use uxfrm_engine::{
    Cpu, Database, DropRecords, Drops, Family, HostAddresses, HostPort, MssClamp, PacketTap,
    Settings, SharedCacheStats, SharedDropTallies, SourcePorts, UdpSuper, WaitingPacket,
    WireHeaders, Worker,
};
use uxfrm_io::{
    FanoutShare, Port, Raw, RawOptions, SegmentingPort, Tun, Udp, UdpOptions, affinity,
    icmp_sender::IcmpSender,
    ike::{IkeDaemonQueue, IkeDatagram},
    ipv6_support::{MissingIpPort, is_missing},
    random,
    tun::QueueOrder,
    xdp::Program,
};
use uxfrm_packet::{Protocol, Version};
use uxfrm_runtime::{
    DevicePorts, EventLoop, Events, SharedWorkerFigures, UdpSocketPort, WirePorts, WorkerLoop,
    WorkerThread,
};

use crate::{
    config::{Config, Runtime},
    descriptor_store::DescriptorStore,
    local_ports,
    ports::{
        af_xdp::AfXdpDevice,
        ike,
        next_hops::{NextHopResolver, RequestedDestinations, ResolvedWorker, ResolverChannel},
    },
};

/// The port of ESP and IKE where NAT may be between (RFC 3948 §2).
const NAT_TRAVERSAL: u16 = 4500;

/// The host's addresses and MTU as the workers need them.
#[derive(Debug)]
pub(crate) struct HostContext {
    /// The largest IP packet that the network takes.
    pub(crate) mtu: u32,
    /// The host's own addresses.
    pub(crate) own: HostAddresses,
    /// Destinations that were in use by the gateway before.
    pub(crate) destinations: Vec<IpAddr>,
}

/// All workers of a gateway, started.
#[derive(Debug)]
pub(crate) struct RunningWorkers {
    /// The workers.
    pub(crate) workers: Vec<WorkerThread>,
    /// What they drop, and what is dropped beside them.
    pub(crate) drops: Vec<Arc<Drops>>,
    /// What they tell of the packets that they drop.
    pub(crate) feeds: Vec<DropFeed>,
    /// What their flow caches do.
    pub(crate) caches: Vec<Arc<SharedCacheStats>>,
    /// What they do.
    pub(crate) figures: Vec<Arc<SharedWorkerFigures>>,
    /// The settings of the first.
    pub(crate) settings: Settings,
    /// Who tells them their ways past the host's stack.
    pub(crate) resolver: Option<WorkerThread>,
    /// The destinations that they ask for.
    pub(crate) requested: RequestedDestinations,
}

/// What a worker tells of the packets that it drops and carries, for another thread.
#[derive(Clone, Debug)]
pub(crate) struct DropFeed {
    /// How many, by reason.
    pub(crate) drops: Arc<Drops>,
    /// Some of them.
    pub(crate) records: Arc<DropRecords>,
    /// How many, by whose they were.
    pub(crate) tallies: Arc<SharedDropTallies>,
    /// Where it shows its packets.
    pub(crate) tap: Arc<PacketTap>,
}

impl DropFeed {
    /// A worker's.
    pub(crate) fn of(worker: &Worker) -> Self {
        let (drops, records) = (worker.drops(), worker.drop_records());
        Self { drops, records, tallies: worker.drop_tallies(), tap: worker.tap() }
    }
}

/// Offload devices and AF_XDP, between the engines and the wire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkerAttachments<'a> {
    /// Offload devices.
    pub(crate) bay: &'a DevicePorts,
    /// The device past the kernel's network stack, if there is one.
    pub(crate) af_xdp: Option<&'a AfXdpDevice>,
}

/// All workers of a gateway, open and not started.
#[derive(Default)]
pub(crate) struct PreparedWorkers {
    pub(crate) workers: Vec<Box<dyn EventLoop>>,
    pub(crate) drops: Vec<Arc<Drops>>,
    pub(crate) feeds: Vec<DropFeed>,
    pub(crate) caches: Vec<Arc<SharedCacheStats>>,
    pub(crate) figures: Vec<Arc<SharedWorkerFigures>>,
    pub(crate) settings: Settings,
    pub(crate) resolver: Option<NextHopResolver>,
    /// Programs at devices that workers read by `AF_XDP`.
    pub(crate) programs: Vec<Arc<Program>>,
}

impl PreparedWorkers {
    /// Goes on where the workers of the gateway before were laid down.
    pub(crate) fn take_up(&mut self) -> io::Result<()> {
        self.workers.iter_mut().try_for_each(|lane| lane.restore_state())
    }

    /// Packets that waited for states with workers of another process, by their numbers, wait with
    /// these, or leave.
    pub(crate) fn wait_with(&mut self, waiting: Vec<(usize, Vec<WaitingPacket>)>) {
        for (number, packets) in waiting {
            if let Some(lane) = self.workers.get_mut(number) {
                lane.wait_with(packets);
            }
        }
    }

    /// Starts each on its thread.
    pub(crate) fn start(self, config: &Config) -> anyhow::Result<RunningWorkers> {
        let Self { workers, drops, feeds, caches, figures, settings, resolver, .. } = self;
        let workers = start(workers, &config.runtime)?;
        let requested = resolver.as_ref().map(NextHopResolver::requested).unwrap_or_default();
        let start = |resolver| WorkerThread::start(resolver, "uxfrm-ways".to_owned(), None);
        let resolver = resolver.map(start).transpose()?;
        Ok(RunningWorkers { workers, drops, feeds, caches, figures, settings, resolver, requested })
    }
}

/// Puts programs where those of the gateway before are, which may not take what these do, as where
/// UDP ports are others now.
pub(crate) fn put_in_place(programs: &[Arc<Program>]) {
    for program in programs {
        if let Err(error) = program.put_in_place() {
            tracing::warn!(%error, "AF_XDP: a device has the program of the process before still");
        }
    }
}

/// Opens all sockets and queues, or takes those of the gateway before: the first worker has `tun`
/// itself, the others a queue more of it each. The devices of `bay` are between each worker's
/// engine and its wire, and with `af_xdp` ESP passes by that where it can: then somebody guides the
/// workers.
pub(crate) fn open_all(
    config: &Config,
    tun: Tun,
    database: &Database,
    around: &HostContext,
    events: &Events,
    attachments: WorkerAttachments<'_>,
    descriptors: &mut DescriptorStore,
) -> anyhow::Result<PreparedWorkers> {
    let WorkerAttachments { bay, af_xdp } = attachments;
    let mut resolver = af_xdp.map(|af_xdp| af_xdp.resolver(config)).transpose()?;
    let ports = udp_ports(config, descriptors)?;
    let source_ports = source_ports()?;
    let icmp = IcmpSender::open().context("can't open a raw ICMP socket (needs CAP_NET_RAW)")?;
    let icmp = Arc::new(icmp);
    let workers = u32::try_from(config.runtime.workers.count().get())?;
    let workers = queues(config, tun, descriptors)?
        .into_iter()
        .zip(0..)
        .map(|(queue, number)| {
            let share = FanoutShare::new(number, workers).context("more lanes than workers")?;
            let cpu = Cpu(number);
            let encap_ports = ports.iter().map(|port| port.number).collect();
            let source_ports = source_ports.clone();
            let settings =
                Settings { cpu, source_ports, encap_ports, ..settings(config, &queue, around)? };
            let engine = Worker::new(settings, &database.published())?;
            let host = Box::new(SegmentingPort::new(queue));
            let wire = wire(config, &ports, share, descriptors)?;
            let attachments = af_xdp.zip(resolver.as_ref());
            let (wire, talk) = with_express(wire, attachments, cpu, descriptors)?;
            let lane = WorkerLoop::new(host, wire, engine, events.clone())?;
            let lane = lane.with_icmp_sender(Arc::clone(&icmp));
            if let Some((resolver, talk)) = resolver.as_mut().zip(talk) {
                resolver.add(ResolvedWorker { talk, waker: lane.waker() });
            }
            Ok(match queue_delay(config) {
                Some(delay) => lane.with_queue_delay(delay).with_devices(bay),
                None => lane.with_devices(bay),
            })
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    if let Some((af_xdp, resolver)) = af_xdp.zip(resolver.as_mut()) {
        af_xdp.gather(config, resolver);
        resolver.expect(&around.destinations);
    }
    let unclaimed = ports.into_iter().filter_map(|port| port.unclaimed);
    let drops = workers.iter().map(|lane| lane.worker().drops()).chain(unclaimed).collect();
    let feeds = workers.iter().map(|lane| DropFeed::of(lane.worker())).collect();
    let caches = workers.iter().map(|lane| lane.worker().cache_counts()).collect();
    let figures = workers.iter().map(WorkerLoop::figures).collect();
    let settings = workers.first().map(|lane| lane.worker().settings().clone()).unwrap_or_default();
    let workers =
        workers.into_iter().map(|lane| -> Box<dyn EventLoop> { Box::new(lane) }).collect();
    let programs = af_xdp.and_then(AfXdpDevice::program).into_iter().collect();
    Ok(PreparedWorkers { workers, drops, feeds, caches, figures, settings, resolver, programs })
}

/// A worker's wire with a device's queue, where there is one for it, and the talk about ways that
/// lead by the device.
fn with_express(
    wire: WirePorts,
    af_xdp: Option<(&AfXdpDevice, &NextHopResolver)>,
    worker: Cpu,
    descriptors: &mut DescriptorStore,
) -> anyhow::Result<(WirePorts, Option<ResolverChannel>)> {
    let mut open =
        |(af_xdp, resolver): (&AfXdpDevice, _)| af_xdp.open(worker, resolver, descriptors);
    let opened = af_xdp.map(&mut open).transpose()?;
    Ok(match opened.flatten() {
        Some((af_xdp, talk)) => (wire.with_af_xdp(af_xdp), Some(talk)),
        None => (wire, None),
    })
}

/// The TUN's queues, one for each worker.
pub(crate) fn queues(
    config: &Config,
    tun: Tun,
    descriptors: &mut DescriptorStore,
) -> anyhow::Result<Vec<Tun>> {
    let options = tun.options();
    let mut queues = vec![tun];
    for number in 1..config.runtime.workers.count().get() {
        let queue = match descriptors.take(&tun_queue(number)) {
            Some(queue) => Tun::of_queue(queue, &options, QueueOrder::Other),
            None => queues[0].another_queue(),
        };
        queues.push(queue.context("can't open another queue of the TUN")?);
    }
    for (number, queue) in queues.iter().enumerate() {
        queue
            .descriptor()
            .into_iter()
            .try_for_each(|queue| descriptors.keep(&tun_queue(number), queue))?;
    }
    Ok(queues)
}

/// What a queue of the TUN is called in the descriptor store.
pub(crate) fn tun_queue(number: usize) -> String {
    format!("tun {number}")
}

/// Starts each worker on its thread; several workers on a CPU of their own each, if asked to and as
/// far as there are any.
fn start(workers: Vec<Box<dyn EventLoop>>, runtime: &Runtime) -> anyhow::Result<Vec<WorkerThread>> {
    let is_pinned = runtime.pin && workers.len() > 1;
    let cpus = if is_pinned { affinity::allowed()? } else { Vec::new() };
    if is_pinned && cpus.len() < workers.len() {
        let (workers, processors) = (workers.len(), cpus.len());
        tracing::warn!(
            workers,
            processors,
            "workers without a processor of their own run where there is room"
        );
    }
    workers
        .into_iter()
        .enumerate()
        .map(|(index, lane)| {
            Ok(WorkerThread::start_boxed(lane, format!("uxfrm-{index}"), cpus.get(index).copied())?)
        })
        .collect()
}

pub(crate) fn settings(
    config: &Config,
    queue: &Tun,
    around: &HostContext,
) -> anyhow::Result<Settings> {
    let accepts = queue.accepts();
    let udp = if accepts.udp4 && accepts.udp6 { UdpSuper::Taken } else { UdpSuper::Refused };
    let host = if accepts.tcp4 && accepts.tcp6 && accepts.partial_checksums {
        HostPort::SuperPackets { udp }
    } else {
        HostPort::Packets
    };
    Ok(Settings {
        headers: WireHeaders::UdpSocket,
        host,
        mtu: u16::try_from(around.mtu).unwrap_or(u16::MAX),
        addresses: around.own.clone(),
        seed: seed()?,
        cache: config.cache.into(),
        clamp_mss: if config.host.clamp_mss { MssClamp::On } else { MssClamp::Off },
        ..Settings::default()
    })
}

/// The ports that flows have whose state leaves them open.
pub(crate) fn source_ports() -> anyhow::Result<SourcePorts> {
    Ok(SourcePorts { seed: seed()?, range: local_ports::range() })
}

fn seed() -> anyhow::Result<u64> {
    let [a, b, c, d, e, f, g, h, ..] = random::seed().context("can't get a random seed")?;
    Ok(u64::from_ne_bytes([a, b, c, d, e, f, g, h]))
}

fn wire(
    config: &Config,
    ports: &[UdpPort],
    share: FanoutShare,
    descriptors: &mut DescriptorStore,
) -> anyhow::Result<WirePorts> {
    let mut sockets = Vec::new();
    for port in ports {
        for local in unspecified(port.number) {
            let family = Family::of(local.ip());
            let socket = open(config, port, local, share, descriptors)?;
            sockets.push(UdpSocketPort { family, udp_port: port.number, port: Box::new(socket) });
        }
    }
    let [v4, v6] = raw(config, share, descriptors)?;
    Ok(WirePorts::new(v4, v6, sockets))
}

/// A worker's raw sockets: its share of the ESP that the host's stack has, of IPv4 and of IPv6.
pub(crate) fn raw(
    config: &Config,
    share: FanoutShare,
    descriptors: &mut DescriptorStore,
) -> anyhow::Result<[Box<dyn Port>; 2]> {
    let mark = config.wire.mark.get();
    let timed = queue_delay(config).is_some();
    let mut open = |version| -> anyhow::Result<Box<dyn Port>> {
        let options = RawOptions { mark, share, timed, ..RawOptions::new(version) };
        let name = format!("esp {version:?} {}", share.nth());
        let before = descriptors.take(&name);
        let port = raw_port(&options, before)
            .context("can't open a raw ESP socket (needs CAP_NET_RAW)")?;
        port.descriptor().into_iter().try_for_each(|socket| descriptors.keep(&name, socket))?;
        Ok(port)
    };
    Ok([open(Version::V4)?, open(Version::V6)?])
}

/// A raw socket, or what stands for it where the kernel does without the version of IP.
///
/// # Errors
/// The kernel's.
fn raw_port(options: &RawOptions, before: Option<OwnedFd>) -> io::Result<Box<dyn Port>> {
    if is_missing(options.version) {
        return Ok(Box::new(MissingIpPort::new()?));
    }
    let raw = before.map_or_else(|| Raw::open(options), |socket| Raw::receiving(socket, options));
    Ok(Box::new(SegmentingPort::new(raw?)))
}

/// How long packets may wait in a port before a sender is told, if anybody asks.
fn queue_delay(config: &Config) -> Option<Duration> {
    let microseconds = config.wire.queue_delay;
    (microseconds > 0).then(|| Duration::from_micros(microseconds.into()))
}

/// Sockets for whole packets that only send: a device's.
pub(crate) fn sending(mark: u32) -> anyhow::Result<WirePorts> {
    // IPPROTO_RAW
    const SENDS_ONLY: Protocol = Protocol(255);
    let raw = |version| -> anyhow::Result<Box<dyn Port>> {
        let options = RawOptions { mark, protocol: SENDS_ONLY, ..RawOptions::new(version) };
        raw_port(&options, None).context("can't open a raw socket (needs CAP_NET_RAW)")
    };
    Ok(WirePorts::new(raw(Version::V4)?, raw(Version::V6)?, Vec::new()))
}

/// A UDP port of all workers.
#[derive(Debug)]
pub(crate) struct UdpPort {
    pub(crate) number: u16,
    /// Where its IKE messages go, and the count of those that nobody takes.
    daemons: Option<SyncSender<IkeDatagram>>,
    pub(crate) unclaimed: Option<Arc<Drops>>,
}

impl UdpPort {
    /// Who takes its IKE messages, if anybody may.
    pub(crate) fn daemons(&self) -> Option<IkeDaemonQueue> {
        let messages = self.daemons.clone()?;
        Some(IkeDaemonQueue { port: self.number, messages })
    }
}

/// The numbers of the configured ports. With a control socket there may be IKE daemons: they get a
/// share of each, and of 4500 in any case.
pub(crate) fn numbers(config: &Config) -> Vec<u16> {
    let mut numbers: Vec<_> = config.wire.udp_ports.iter().map(|port| port.get()).collect();
    if config.control.enabled && !numbers.contains(&NAT_TRAVERSAL) {
        numbers.push(NAT_TRAVERSAL);
    }
    numbers
}

pub(crate) fn udp_ports(
    config: &Config,
    descriptors: &mut DescriptorStore,
) -> anyhow::Result<Vec<UdpPort>> {
    numbers(config)
        .into_iter()
        .map(|number| {
            if !config.control.enabled {
                return Ok(UdpPort { number, daemons: None, unclaimed: None });
            }
            let (daemons, unclaimed) =
                ike::share(number, config.wire.mark.get(), config.control.user, descriptors)
                    .with_context(|| format!("can't share UDP port {number} with IKE daemons"))?;
            Ok(UdpPort { number, daemons: Some(daemons), unclaimed: Some(unclaimed) })
        })
        .collect()
}

pub(crate) fn open(
    config: &Config,
    port: &UdpPort,
    local: SocketAddr,
    share: FanoutShare,
    descriptors: &mut DescriptorStore,
) -> anyhow::Result<Udp> {
    let shared = config.runtime.workers.count().get() > 1 || port.daemons.is_some();
    let mark = config.wire.mark.get();
    let timed = queue_delay(config).is_some();
    let options = UdpOptions { mark, shared, timed, ..UdpOptions::new(local) };
    let name = format!("udp {local} {}", share.nth());
    let socket = descriptors
        .take(&name)
        .map_or_else(|| Udp::open(&options), |socket| Udp::of_socket(socket, &options))
        .with_context(|| format!("can't open UDP {local}"))?;
    socket.descriptor().into_iter().try_for_each(|socket| descriptors.keep(&name, socket))?;
    Ok(match &port.daemons {
        Some(daemons) => socket.sharing_with(daemons.clone()),
        None => socket,
    })
}

pub(crate) fn unspecified(udp_port: u16) -> impl Iterator<Item = SocketAddr> {
    let v6 = (!is_missing(Version::V6)).then(|| (Ipv6Addr::UNSPECIFIED, udp_port).into());
    [Some((Ipv4Addr::UNSPECIFIED, udp_port).into()), v6].into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_delay_is_off_by_default() {
        let delay = |text| queue_delay(&Config::parse("c.toml", text).unwrap());
        assert_eq!(delay(""), None);
        assert_eq!(delay("[wire]\nqueue_delay = 0"), None);
        assert_eq!(delay("[wire]\nqueue_delay = 350"), Some(Duration::from_micros(350)));
    }
}
