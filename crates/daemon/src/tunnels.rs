//! The tunnels of a gateway while it runs: what there is, added and removed by batch files and by
//! clients, each a TUN of its name.
//!
//! Whoever asks is answered when it is done: a receive port's socket is bound, a tunnel's TUN is
//! there or gone. One thread carries all of them; it starts with the first and is told of each
//! change between two batches, so that the others go on. TUNs and sockets are opened and closed
//! here, where nothing waits for packets.
//!
//! A tunnel without `local` gets the address that the way to its other end has at that moment.
//! Addresses and routes are the user's own (`ip addr`, `ip route`), and so is the TUN:
//! `ip link del` of it deletes the tunnel.

mod counters;
pub(crate) mod error;
mod genl;
mod handover;
mod per_address_sockets;
mod rtnl;
mod sockets;
mod spec;

use std::sync::Arc;

use uxfrm_io::Rtnetlink;
use uxfrm_link::TunnelLink;
use uxfrm_netlink::{AnswerWriter, ClientId, NetlinkDatagram, NetlinkError, SocketOptions};
use uxfrm_packet::{Protocol, Version};
use uxfrm_runtime::{
    ReceivePort, ReceiveSource, SocketCounts, TunnelChange, TunnelControl, TunnelCounts,
    TunnelInterface, TunnelLoop, TunnelSockets,
};
use uxfrm_tunnel::{
    DecapPort, DecapPorts, PortIdentity, PortRequest, Tunnel, TunnelConfig, Tunnels,
    counters::TunnelDrops,
};

use self::per_address_sockets::WildcardPort;
pub(crate) use self::{
    handover::{SpecHandover, TunnelFinals, TunnelsHandover},
    spec::TunnelSpec,
};
use uxfrm_control::greeting::Dialect;

use crate::{pausable_thread::PausableThread, protocol::Identity};

const EEXIST: i32 = 17;
const ENODEV: i32 = 19;
const EOPNOTSUPP: i32 = 95;

/// All tunnels and receive ports, and their thread.
#[derive(Debug, Default)]
pub(crate) struct TunnelService {
    tunnels: Tunnels,
    ports: DecapPorts,
    interfaces: Vec<TunnelDevice>,
    sockets: Vec<(ReceiveSource, Arc<SocketCounts>)>,
    wide: Vec<WildcardPort>,
    worker: Option<Worker>,
}

/// The interface of a tunnel.
#[derive(Debug)]
struct TunnelDevice {
    name: String,
    index: u32,
    counts: Arc<TunnelCounts>,
}

/// The thread that carries them.
#[derive(Debug)]
struct Worker {
    thread: PausableThread,
    control: TunnelControl,
    drops: Arc<TunnelDrops>,
}

/// Its name.
const THREAD: &str = "uxfrm-tunnels";

impl Worker {
    fn start() -> Result<Self, NetlinkError> {
        let errors = vec![
            sockets::raw(Version::V4, Protocol::ICMP)?,
            sockets::raw(Version::V6, Protocol::ICMPV6)?,
        ];
        let outgoing = [sockets::sending(Version::V4)?, sockets::sending(Version::V6)?];
        let sockets = TunnelSockets { incoming: Vec::new(), errors, outgoing };
        let (lane, control) = TunnelLoop::new(sockets).map_err(error::of_worker)?;
        let drops = lane.drops();
        let thread = PausableThread::start(lane, THREAD.to_owned())
            .map_err(|error| error::of_system(&error, "a thread for tunnels"))?;
        Ok(Self { thread, control, drops })
    }
}

impl TunnelService {
    /// Adds a receive port (`net/ipv4/fou_core.c: fou_create`).
    ///
    /// # Errors
    /// The kernel's errno: `EALREADY` when it is there, `EADDRINUSE` when the UDP port is taken,
    /// `EINVAL` for what can't be.
    pub(crate) fn add_port(&mut self, request: &PortRequest) -> Result<(), NetlinkError> {
        let port = DecapPort::of(request).map_err(error::of_tunnel)?;
        let mut ports = self.ports.clone();
        ports.add(port).map_err(error::of_tunnel)?;
        let socket = sockets::datagrams(&port)?;
        let wide = WildcardPort::of(port, &socket);
        let incoming = ReceivePort {
            source: ReceiveSource::Datagrams(port.identity),
            port: Box::new(socket),
            counts: Arc::default(),
        };
        self.order(self.tunnels.clone(), ports, vec![TunnelChange::Listen(incoming)])?;
        self.wide.extend(wide);
        self.open_per_address();
        Ok(())
    }

    /// Deletes a receive port; its socket is closed.
    ///
    /// # Errors
    /// `EINVAL` when it is not there.
    pub(crate) fn delete_port(&mut self, request: &PortRequest) -> Result<(), NetlinkError> {
        let identity = PortIdentity::of(request).map_err(error::of_tunnel)?;
        let mut ports = self.ports.clone();
        ports.delete(&identity).map_err(error::of_tunnel)?;
        let leave = vec![TunnelChange::StopListening(ReceiveSource::Datagrams(identity))];
        self.order(self.tunnels.clone(), ports, leave)?;
        self.open_per_address();
        Ok(())
    }

    /// Adds a tunnel and its TUN.
    ///
    /// # Errors
    /// `EEXIST` when a tunnel has these ends or an interface this name; what the kernel or
    /// [`uxfrm_tunnel`] does not take.
    pub(crate) fn add_link(&mut self, link: &TunnelLink) -> Result<(), NetlinkError> {
        let tunnel = Tunnel::new(&link.name, link.config.clone()).map_err(error::of_tunnel)?;
        let mut tunnels = self.tunnels.clone();
        let tunnel = tunnels.add(tunnel).map_err(error::of_tunnel)?;
        let mut rtnetlink = Rtnetlink::open().map_err(error::of_rtnetlink)?;
        // Opening it would take over a persistent TUN of that name.
        if rtnetlink.link(&link.name).is_ok() {
            return Err(NetlinkError::bare(EEXIST));
        }
        let route = sockets::route(tunnel, link.mtu, &mut rtnetlink)?;
        let (tun, index) = sockets::tun(link, &route, &mut rtnetlink)?;
        let counts: Arc<TunnelCounts> = Arc::default();
        let interface = TunnelInterface { route, port: tun, counts: Arc::clone(&counts) };
        let mut changes = self.sockets_for(&tunnels)?;
        changes.push(TunnelChange::Open(interface));
        self.order(tunnels, self.ports.clone(), changes)?;
        self.interfaces.push(TunnelDevice { name: link.name.clone(), index, counts });
        self.open_per_address();
        Ok(())
    }

    /// Puts another tunnel in the place of the one of its name; the TUN stays.
    ///
    /// # Errors
    /// `ENODEV` when there is none, `EOPNOTSUPP` when it is of another kind, `EEXIST` when another
    /// has these ends.
    pub(crate) fn change_link(&mut self, link: &TunnelLink) -> Result<(), NetlinkError> {
        let before = self.tunnels.named(&link.name).ok_or(NetlinkError::bare(ENODEV))?;
        if before.config().kind != link.config.kind {
            return Err(NetlinkError::bare(EOPNOTSUPP));
        }
        let index = self.index_of(&link.name)?;
        let (tunnel, overhead) = (Tunnel::new(&link.name, link.config.clone()), before.overhead());
        let mut tunnels = self.tunnels.clone();
        let tunnel = tunnels.change(tunnel.map_err(error::of_tunnel)?).map_err(error::of_tunnel)?;
        let mut rtnetlink = Rtnetlink::open().map_err(error::of_rtnetlink)?;
        let now = rtnetlink.link_of_index(index).map_err(error::of_rtnetlink)?.mtu;
        let kept = (tunnel.overhead() == overhead).then(|| u16::try_from(now).ok()).flatten();
        let route = sockets::route(tunnel, link.mtu.or(kept), &mut rtnetlink)?;
        sockets::adjust(index, &route, link.admin, &mut rtnetlink)?;
        let mut changes = self.sockets_for(&tunnels)?;
        changes.push(TunnelChange::Replace(route));
        self.order(tunnels, self.ports.clone(), changes)?;
        self.open_per_address();
        Ok(())
    }

    /// Deletes a tunnel and its TUN.
    ///
    /// # Errors
    /// `ENODEV` when there is none.
    pub(crate) fn delete_link(&mut self, name: &str) -> Result<(), NetlinkError> {
        let mut tunnels = self.tunnels.clone();
        tunnels.delete(name).map_err(error::of_tunnel)?;
        let mut changes = vec![TunnelChange::Close(name.to_owned())];
        changes.extend(self.sockets_for(&tunnels)?);
        self.order(tunnels, self.ports.clone(), changes)?;
        self.interfaces.retain(|opened| opened.name != name);
        self.open_per_address();
        Ok(())
    }

    /// Deletes the tunnels whose TUNs somebody else has deleted.
    pub(crate) fn maintain(&mut self) {
        let gone = self.interfaces.iter().filter(|opened| opened.counts.is_gone());
        let gone: Vec<String> = gone.map(|opened| opened.name.clone()).collect();
        for name in gone {
            if let Err(refusal) = self.delete_link(&name) {
                tracing::warn!(
                    name,
                    refusal = error::words(&refusal),
                    "a tunnel without TUN stays"
                );
            }
        }
    }

    /// The answers to a client that does not speak of states and policies.
    pub(crate) fn answer(
        &mut self,
        connection: u32,
        identity: Identity,
        datagram: &[u8],
    ) -> impl Iterator<Item = NetlinkDatagram> {
        self.maintain();
        let client = ClientId { connection, port: identity.port };
        let options = SocketOptions::from_bits_truncate(identity.options);
        AnswerWriter::to(datagram, client, options, move |message, answers| {
            match identity.dialect {
                Dialect::Generic => genl::act(self, message, answers),
                Dialect::Route => rtnl::act(self, message, answers),
                Dialect::Xfrm
                | Dialect::Devices
                | Dialect::AcquireExpires
                | Dialect::Reload
                | Dialect::Upgrade => {
                    Err(NetlinkError::bare(EOPNOTSUPP)) // is not asked here
                }
            }
        })
    }

    /// Whether the thread ended by itself.
    pub(crate) fn has_ended(&self) -> bool {
        self.worker.as_ref().is_some_and(|worker| worker.thread.has_ended())
    }

    /// Ends the thread; the TUNs go with it.
    ///
    /// # Errors
    /// What ended it before it was told to.
    pub(crate) fn stop(self) -> anyhow::Result<()> {
        Ok(self.worker.map_or(Ok(()), |worker| worker.thread.stop())?)
    }

    fn index_of(&self, name: &str) -> Result<u32, NetlinkError> {
        let opened = self.interfaces.iter().find(|opened| opened.name == name);
        opened.map(|opened| opened.index).ok_or(NetlinkError::bare(ENODEV))
    }

    /// What has to be different about raw sockets for these tunnels.
    fn sockets_for(&self, tunnels: &Tunnels) -> Result<Vec<TunnelChange>, NetlinkError> {
        let wanted = protocols(tunnels.iter().map(|tunnel| tunnel.config()));
        let there: Vec<ReceiveSource> = self.sockets.iter().map(|(source, _)| *source).collect();
        let mut changes = Vec::new();
        for (version, protocol) in &wanted {
            let source = ReceiveSource::Protocol(*version, *protocol);
            if !there.contains(&source) {
                let port = sockets::raw(*version, *protocol)?;
                changes.push(TunnelChange::Listen(ReceivePort {
                    source,
                    port,
                    counts: Arc::default(),
                }));
            }
        }
        let unused = there.into_iter().filter(|source| match source {
            ReceiveSource::Protocol(version, protocol) => !wanted.contains(&(*version, *protocol)),
            ReceiveSource::Datagrams(_) => false,
        });
        changes.extend(unused.map(TunnelChange::StopListening));
        Ok(changes)
    }

    /// Has the thread make changes, and takes note of them.
    fn order(
        &mut self,
        tunnels: Tunnels,
        ports: DecapPorts,
        changes: Vec<TunnelChange>,
    ) -> Result<(), NetlinkError> {
        let mut sockets = self.sockets.clone();
        for change in &changes {
            match change {
                TunnelChange::Listen(incoming) => {
                    sockets.push((incoming.source, Arc::clone(&incoming.counts)));
                }
                TunnelChange::StopListening(source) => sockets.retain(|(known, _)| known != source),
                TunnelChange::Open(_) | TunnelChange::Replace(_) | TunnelChange::Close(_) => {}
            }
        }
        if self.worker.is_none() {
            self.worker = Some(Worker::start()?);
        }
        if let Some(worker) = &self.worker {
            let ordered = worker.control.apply(tunnels.clone(), ports.clone(), changes);
            ordered.map_err(error::of_worker)?;
        }
        (self.tunnels, self.ports, self.sockets) = (tunnels, ports, sockets);
        Ok(())
    }
}

/// What comes without UDP, each once.
fn protocols<'c>(configs: impl Iterator<Item = &'c TunnelConfig>) -> Vec<(Version, Protocol)> {
    let mut protocols = Vec::new();
    for TunnelConfig { kind, carries, .. } in configs {
        for version in [Version::V4, Version::V6] {
            let wanted = (kind.outer(), kind.protocol(version));
            if carries.takes(version) && !protocols.contains(&wanted) {
                protocols.push(wanted);
            }
        }
    }
    protocols
}
