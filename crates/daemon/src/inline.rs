//! Inline mode: a gateway between two network devices whose packets never pass the host's stack.
//!
//! ```text
//!   protected ─┬─▶ packet socket, or AF_XDP ─▶ worker ─▶ packet socket, or AF_XDP ─▶ wire
//!              └─▶ host's stack: a packet filter table drops what is not for the host
//! ```
//!
//! It is beside host mode, not in its place: the host's own packets to protected destinations
//! still go through the TUN, and what is decrypted for the host comes back by it. Up: the host's
//! stack is kept out first, so that no packet is forwarded twice or by the kernel alone. After a
//! crash it stays out, and nothing passes between the devices until the next start.

use std::io;
use std::net::IpAddr;

use anyhow::Context as _;
use uxfrm_engine::{Cpu, Database, Settings, WireHeaders, Worker};
use uxfrm_io::{FanoutShare, Rtnetlink, SegmentingPort, Tun, xdp::FrameSelection};
use uxfrm_runtime::{DevicePorts, EventLoop, Events, InlineLoop, InlinePorts};

use crate::{
    config::{Config, Inline},
    descriptor_store::DescriptorStore,
    ports::{
        ethernet::{Device, DeviceConfigKey},
        next_hops::{Links, NextHopResolver, ResolvedWorker},
        workers::{self, DropFeed, HostContext, PreparedWorkers, UdpPort},
    },
};

/// The protected and the wire device of inline mode.
#[derive(Debug)]
pub(crate) struct InlineDevices {
    pub(crate) protected: Device,
    pub(crate) wire: Device,
}

impl InlineDevices {
    /// Looks for the devices of a configuration, which have to be Ethernet, and makes them ready,
    /// or goes on where the gateway before has. What is to one of `own` stays the host's.
    ///
    /// # Errors
    /// When one is not there, is something else, or can't be read as the configuration says.
    pub(crate) fn find(
        config: &Config,
        inline: &Inline,
        own: &[IpAddr],
        descriptors: &mut DescriptorStore,
    ) -> anyhow::Result<Self> {
        let mut rtnetlink = Rtnetlink::open()?;
        let mut protected =
            Device::find(&mut rtnetlink, inline.protected(), DeviceConfigKey::PROTECTED)?;
        let mut wire = Device::find(&mut rtnetlink, inline.wire(), DeviceConfigKey::WIRE)?;
        let workers = config.runtime.workers.count().get();
        protected.prepare(
            inline.protected_by(),
            FrameSelection::Forwarded,
            workers,
            descriptors,
        )?;
        let esp = FrameSelection::Esp { ports: workers::numbers(config) };
        wire.prepare(inline.wire_by(), esp, workers, descriptors)?;
        let devices = Self { protected, wire };
        devices.know_host(own).context("can't tell AF_XDP the host's addresses")?;
        Ok(devices)
    }

    /// The host's addresses have changed.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn know_host(&self, own: &[IpAddr]) -> io::Result<()> {
        // That at the wire takes what is the gateway's whatever the host's addresses.
        self.protected.know_host(own)
    }

    /// Says where the kernel would forward in the clear once uxfrm has ended.
    pub(crate) fn warn_about_forwarding(&self) {
        let key = &self.protected.name;
        for family in ["ipv4", "ipv6"] {
            let path = format!("/proc/sys/net/{family}/conf/{key}/forwarding");
            if std::fs::read_to_string(path).is_ok_and(|value| value.trim() == "1") {
                tracing::warn!(
                    "net.{family}.conf.{key}.forwarding is 1: inline mode does not need it, and after SIGTERM the kernel forwards in the clear"
                );
            }
        }
    }
}

/// The two devices and the offload devices of inline workers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InlineAttachments<'a> {
    /// The two devices that packets pass between.
    pub(crate) devices: &'a InlineDevices,
    /// Offload devices.
    pub(crate) bay: &'a DevicePorts,
}

/// Opens all sockets and queues, or takes those of the gateway before, for workers and who guides
/// them: each worker has a queue of `tun` and a share of both devices' flows.
pub(crate) fn open(
    config: &Config,
    attachments: InlineAttachments<'_>,
    tun: Tun,
    database: &Database,
    around: &HostContext,
    events: &Events,
    descriptors: &mut DescriptorStore,
) -> anyhow::Result<PreparedWorkers> {
    let InlineAttachments { devices, bay } = attachments;
    let ports = workers::udp_ports(config, descriptors)?;
    let source_ports = workers::source_ports()?;
    let links = Links { protected: Some(devices.protected.index), wire: devices.wire.identity() };
    let mut resolver = NextHopResolver::open(config.wire.mark.get(), links)?;
    let mut built = Vec::new();
    for (number, queue) in workers::queues(config, tun, descriptors)?.into_iter().enumerate() {
        let cpu = Cpu(u32::try_from(number).context("workers are at most 1024")?);
        let common = workers::settings(config, &queue, around)?;
        let encap_ports = ports.iter().map(|port| port.number).collect();
        let headers = WireHeaders::Engine;
        let settings =
            Settings { headers, encap_ports, cpu, source_ports: source_ports.clone(), ..common };
        let engine = Worker::new(settings, &database.published())?;
        let (guide, talk) = resolver.talk();
        let ports = inline_ports(config, devices, queue, &ports, cpu, descriptors)?;
        let lane = InlineLoop::new(ports, guide, engine, events.clone())?.with_devices(bay);
        resolver.add(ResolvedWorker { talk, waker: lane.waker() });
        built.push(lane);
    }
    let devices = [&devices.protected, &devices.wire];
    let programs = devices.into_iter().filter_map(Device::program).collect();
    resolver.keep(devices.into_iter().filter_map(|device| device.gather(config.wire.gather)));
    resolver.expect(&around.destinations);
    let unclaimed = ports.into_iter().filter_map(|port| port.unclaimed);
    let drops = built.iter().map(|lane| lane.worker().drops()).chain(unclaimed).collect();
    let feeds = built.iter().map(|lane| DropFeed::of(lane.worker())).collect();
    let caches = built.iter().map(|lane| lane.worker().cache_counts()).collect();
    let figures = built.iter().map(InlineLoop::figures).collect();
    let settings = built.first().map(|lane| lane.worker().settings().clone()).unwrap_or_default();
    let workers = built.into_iter().map(|lane| -> Box<dyn EventLoop> { Box::new(lane) }).collect();
    let resolver = Some(resolver);
    Ok(PreparedWorkers { workers, drops, feeds, caches, figures, settings, resolver, programs })
}

fn inline_ports(
    config: &Config,
    devices: &InlineDevices,
    queue: Tun,
    ports: &[UdpPort],
    cpu: Cpu,
    descriptors: &mut DescriptorStore,
) -> anyhow::Result<InlinePorts> {
    let workers = config.runtime.workers.count().get();
    let share =
        FanoutShare::new(cpu.0, u32::try_from(workers)?).context("more lanes than workers")?;
    let mut sockets = Vec::from(workers::raw(config, share, descriptors)?);
    for port in ports {
        for local in workers::unspecified(port.number) {
            sockets.push(Box::new(workers::open(config, port, local, share, descriptors)?));
        }
    }
    let protected = devices.protected.open(cpu, workers, descriptors)?;
    let wire = devices.wire.open(cpu, workers, descriptors)?;
    let daemons = ports.iter().filter_map(UdpPort::daemons).collect();
    Ok(InlinePorts {
        host: Box::new(SegmentingPort::new(queue)),
        protected,
        wire,
        sockets,
        daemons,
    })
}
