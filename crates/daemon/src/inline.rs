//! Inline mode: a gateway between two network devices whose packets never pass the host's stack.
//!
//! ```text
//!   protected ─┬─▶ packet socket ─▶ lane ─▶ packet socket ─▶ wire
//!              └─▶ host's stack: kept out by a table of the packet filter, but for what is for the host itself
//! ```
//!
//! Beside host mode, not in its place: the host's own packets to protected destinations still go through the TUN, and what is decrypted for
//! the host comes back by it. Up: the host's stack is kept out first, so that no packet is forwarded twice or by the kernel alone. After a
//! crash it stays out, and nothing passes between the devices until the next start.

mod guide;
mod keep_out;

use std::sync::{Arc, mpsc};

use anyhow::Context as _;
use uxfrm_engine::{Cpu, Database, Settings, WireHeaders, Worker};
use uxfrm_io::{
    Fitted, FramePort, PacketSocket, PacketSocketOptions, Port, Rtnetlink, Tun, Xdp,
    rtnetlink::Link,
    xdp::{Program, ProgramOptions, Queue, XdpError},
};
use uxfrm_packet::ethernet::MacAddr;
use uxfrm_runtime::{Bay, Events, Guide, InlineLane, InlinePorts, Running, Turns as _};

use self::guide::{Guidance, Lanes as Guided};
pub(crate) use self::keep_out::KeepOut;
use crate::{
    config::{self, Config, WireBy},
    lanes::{self, Started, Surroundings, UdpPort},
};

/// Questions of one lane that may wait. What comes on top is asked again.
const QUESTIONS: usize = 1024;

/// The two devices.
#[derive(Debug)]
pub(crate) struct Devices {
    protected: Device,
    wire: Device,
}

#[derive(Debug)]
struct Device {
    name: String,
    index: u32,
    mac: MacAddr,
    mtu: u32,
}

impl Devices {
    /// Looks for the devices of a configuration, which have to be Ethernet.
    ///
    /// # Errors
    /// When one is not there or is something else.
    pub(crate) fn find(inline: &config::Inline) -> anyhow::Result<Self> {
        let mut rtnetlink = Rtnetlink::open()?;
        let mut find = |name: &str, key: &str| -> anyhow::Result<Device> {
            let link = rtnetlink
                .link(name)
                .with_context(|| format!("`{key}` in [inline]: there is no device {name}"))?;
            let mac = ethernet_address(&link).with_context(|| {
                format!("`{key}` in [inline]: {name} is no Ethernet device; inline mode needs two")
            })?;
            if !link.is_up {
                tracing::warn!(device = name, "the device is down; nothing passes until it is up");
            }
            Ok(Device { name: name.to_owned(), index: link.index, mac, mtu: link.mtu })
        };
        let (protected, wire) =
            (find(inline.protected(), "protected")?, find(inline.wire(), "wire")?);
        Ok(Self { protected, wire })
    }

    /// Says where the kernel would forward in the clear once uxfrm has ended.
    pub(crate) fn warn_of_forwarding(&self) {
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

fn ethernet_address(link: &Link) -> Option<MacAddr> {
    link.mac.filter(|_| !link.is_loopback)
}

/// Opens all sockets and queues, and starts the lanes and who guides them: each lane has a queue of `tun` and a share of both
/// devices' flows.
pub(crate) fn start(
    config: &Config,
    devices: &Devices,
    tun: Tun,
    database: &Database,
    around: &Surroundings,
    events: &Events,
    bay: &Bay,
) -> anyhow::Result<(Started, Running)> {
    let ports = lanes::udp_ports(config)?;
    let port_seed = lanes::seed()?;
    let program = program(config, &devices.wire)?;
    let mut guidance = Guidance::open(config.wire.mark.get(), devices)?;
    let mut built = Vec::new();
    for (number, queue) in lanes::queues(config, tun)?.into_iter().enumerate() {
        let cpu = Cpu(u32::try_from(number).context("workers are at most 1024")?);
        let common = lanes::settings(config, &queue, around)?;
        let encap_ports = ports.iter().map(|port| port.number).collect();
        let headers = WireHeaders::Engine;
        let settings = Settings { headers, encap_ports, cpu, port_seed, ..common };
        let engine = Worker::new(settings, &database.published())?;
        let (questions, asked) = mpsc::sync_channel(QUESTIONS);
        let (told, news) = mpsc::channel();
        let guide = Guide { questions, waker: guidance.waker(), news };
        let ports = inline_ports(config, devices, queue, &ports, (program.as_ref(), cpu))?;
        let lane = InlineLane::new(ports, guide, engine, events.clone())?.behind(bay);
        guidance.add(Guided { asked, told, waker: lane.waker() });
        built.push(lane);
    }
    let unclaimed = ports.into_iter().filter_map(|port| port.unclaimed);
    let drops = built.iter().map(|lane| lane.worker().drops()).chain(unclaimed).collect();
    let caches = built.iter().map(|lane| lane.worker().cache_counts()).collect();
    let lanes = lanes::start(built, config.runtime.pin)?;
    let guidance = Running::start(guidance, "uxfrm-ways".to_owned(), None)?;
    Ok((Started { lanes, drops, caches }, guidance))
}

/// The program at the wire's device, if that is to be read by `AF_XDP`.
fn program(config: &Config, wire: &Device) -> anyhow::Result<Option<Arc<Program>>> {
    match config.inline.as_ref().map(config::Inline::wire_by) {
        None | Some(WireBy::AfPacket) => return Ok(None),
        Some(WireBy::AfXdp) => {}
    }
    let queues = config.runtime.workers.count().get();
    let options = ProgramOptions {
        link: wire.index,
        mac: wire.mac,
        mtu: wire.mtu,
        ports: lanes::numbers(config),
        queues: u32::try_from(queues).context("workers are at most 1024")?,
    };
    let program = Program::attach(options)
        .with_context(|| format!("`wire_by = \"af-xdp\"` in [inline]: {}", wire.name))?;
    Ok(Some(program))
}

fn inline_ports(
    config: &Config,
    devices: &Devices,
    queue: Tun,
    ports: &[UdpPort],
    (program, cpu): (Option<&Arc<Program>>, Cpu),
) -> anyhow::Result<InlinePorts> {
    let several = config.runtime.workers.count().get() > 1;
    let open = |device: &Device| {
        // Numbers of groups are per network namespace; the device's own tells ours apart.
        let fanout = several.then(|| u16::try_from(device.index % 65_536).unwrap_or(0));
        let options = PacketSocketOptions { fanout, ..PacketSocketOptions::new(device.index) };
        PacketSocket::open(&options).with_context(|| {
            format!("can't open a packet socket on {} (needs CAP_NET_RAW)", device.name)
        })
    };
    let mut sockets: Vec<Box<dyn Port>> = Vec::new();
    for port in ports {
        for local in lanes::unspecified(port.number) {
            sockets.push(Box::new(lanes::open(config, port, local)?));
        }
    }
    let (protected, wire) = (open(&devices.protected)?, open(&devices.wire)?);
    let wire: Box<dyn FramePort> = match program {
        None => Box::new(wire),
        Some(program) => by_xdp(program, cpu, wire, &devices.wire)?,
    };
    let (protected, macs): (Box<dyn FramePort>, _) =
        (Box::new(protected), [devices.protected.mac, devices.wire.mac]);
    Ok(InlinePorts {
        host: Box::new(Fitted::new(queue)),
        protected: (protected, macs[0]),
        wire: (wire, macs[1]),
        sockets,
    })
}

/// The wire's device for the worker of a number, which has the queue of the same number. Workers beyond the device's queues do with a packet socket.
fn by_xdp(
    program: &Arc<Program>,
    Cpu(number): Cpu,
    others: PacketSocket,
    wire: &Device,
) -> anyhow::Result<Box<dyn FramePort>> {
    let device = &wire.name;
    match Queue::open(program, number) {
        Ok(queue) => {
            let copies = if queue.is_zero_copy()? { "driver" } else { "kernel" };
            tracing::info!(device, queue = number, "AF_XDP: frames come from the {copies}");
            Ok(Box::new(Xdp::new(queue, others)?))
        }
        Err(XdpError::Queue(..)) if number > 0 => {
            tracing::warn!(
                device,
                queue = number,
                "the device has no such queue for AF_XDP: this worker has a packet socket alone"
            );
            Ok(Box::new(others))
        }
        Err(error) => {
            Err(error).with_context(|| format!("`wire_by = \"af-xdp\"` in [inline]: {device}"))
        }
    }
}
