//! The lanes of a gateway: per worker a queue of the TUN, sockets towards the network, and an engine.
//!
//! Raw sockets are not shared out by the kernel: each gets a copy of every ESP packet. So only the first worker
//! receives raw ESP; the others send with sockets of their own. UDP ports are shared by `SO_REUSEPORT`.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::BorrowedFd,
};

use anyhow::Context as _;
use uxfrm_engine::{
    Database, Family, HostAddresses, HostPort, Settings, UdpSuper, WireHeaders, Worker,
};
use uxfrm_io::{
    Accepts, Fitted, Port, Raw, RawOptions, Transmitted, Tun, Udp, UdpOptions, affinity, random,
};
use uxfrm_packet::{Batch, Pool, Version};
use uxfrm_runtime::{Datagrams, Events, Lane, Running, Wire};

use crate::config::Config;

/// What the lanes must know of the host.
#[derive(Debug)]
pub(crate) struct Surroundings {
    /// The largest IP packet that the network takes.
    pub(crate) mtu: u32,
    /// The host's own addresses.
    pub(crate) own: HostAddresses,
}

/// Opens all sockets and queues: the first lane has `tun` itself, the others a queue more of it each.
pub(crate) fn build(
    config: &Config,
    tun: Tun,
    database: &Database,
    around: &Surroundings,
    events: &Events,
) -> anyhow::Result<Vec<Lane>> {
    let more = (1..config.runtime.workers.count().get())
        .map(|_| tun.another_queue().context("can't open another queue of the TUN"))
        .collect::<anyhow::Result<Vec<_>>>()?;
    std::iter::once(tun)
        .chain(more)
        .enumerate()
        .map(|(index, queue)| {
            let role = if index == 0 { Role::ReceivesEsp } else { Role::SendsEsp };
            let engine = Worker::new(settings(&queue, around)?, &database.published())?;
            Ok(Lane::new(
                Box::new(Fitted::new(queue)),
                wire(config, role)?,
                engine,
                events.clone(),
            )?)
        })
        .collect()
}

/// Starts each lane on its thread; several lanes on a CPU of their own each, if asked to and as far as there are any.
pub(crate) fn start(lanes: Vec<Lane>, pin: bool) -> anyhow::Result<Vec<Running>> {
    let cpus = if pin && lanes.len() > 1 { affinity::allowed()? } else { Vec::new() };
    lanes
        .into_iter()
        .enumerate()
        .map(|(index, lane)| {
            Ok(Running::start(lane, format!("uxfrm-{index}"), cpus.get(index).copied())?)
        })
        .collect()
}

/// What a lane does with raw ESP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    ReceivesEsp,
    SendsEsp,
}

fn settings(queue: &Tun, around: &Surroundings) -> anyhow::Result<Settings> {
    let accepts = queue.accepts();
    let udp = if accepts.udp4 && accepts.udp6 { UdpSuper::Taken } else { UdpSuper::Refused };
    let host = if accepts.tcp4 && accepts.tcp6 && accepts.partial_checksums {
        HostPort::SuperPackets { udp }
    } else {
        HostPort::Packets
    };
    let [a, b, c, d, e, f, g, h, ..] = random::seed().context("can't get a random seed")?;
    Ok(Settings {
        headers: WireHeaders::UdpSocket,
        host,
        mtu: u16::try_from(around.mtu).unwrap_or(u16::MAX),
        addresses: around.own.clone(),
        seed: u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        ..Settings::default()
    })
}

fn wire(config: &Config, role: Role) -> anyhow::Result<Wire> {
    let mark = config.wire.mark.get();
    let raw = |version| -> anyhow::Result<Box<dyn Port>> {
        let port = Raw::open(&RawOptions { mark, ..RawOptions::new(version) })
            .map(Fitted::new)
            .context("can't open a raw ESP socket (needs CAP_NET_RAW)")?;
        Ok(match role {
            Role::ReceivesEsp => Box::new(port),
            Role::SendsEsp => Box::new(SendOnly(port)),
        })
    };
    let mut sockets = Vec::new();
    for udp_port in config.wire.udp_ports.iter().map(|port| port.get()) {
        for local in unspecified(udp_port) {
            let shared = config.runtime.workers.count().get() > 1;
            let options = UdpOptions { mark, shared, ..UdpOptions::new(local) };
            let port = Udp::open(&options).with_context(|| format!("can't open UDP {local}"))?;
            let family = Family::of(local.ip());
            sockets.push(Datagrams { family, udp_port, port: Box::new(port) });
        }
    }
    Ok(Wire::new(raw(Version::V4)?, raw(Version::V6)?, sockets))
}

fn unspecified(udp_port: u16) -> [SocketAddr; 2] {
    [(Ipv4Addr::UNSPECIFIED, udp_port).into(), (Ipv6Addr::UNSPECIFIED, udp_port).into()]
}

/// A port that is never asked for packets.
#[derive(Debug)]
struct SendOnly(Fitted<Raw>);

impl Port for SendOnly {
    fn receive(&mut self, _pool: &mut Pool, _into: &mut Batch) -> io::Result<usize> {
        Ok(0)
    }

    fn transmit(&mut self, batch: &mut Batch, pool: &mut Pool) -> Transmitted {
        self.0.transmit(batch, pool)
    }

    fn accepts(&self) -> Accepts {
        self.0.accepts()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
