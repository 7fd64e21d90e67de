//! The tunnel loop: one thread for all tunnels of a gateway.
//!
//! ```text
//!   TUN of a tunnel ─▶ encapsulate ─▶ raw socket
//!   raw or UDP socket ─▶ decapsulate ─▶ TUN of its tunnel
//! ```
//!
//! 1 wait until a port is readable → 2 from each readable TUN a batch into its tunnel and out → 3
//! from each readable socket a batch out of its tunnels to their TUNs → 4 from ICMP error sockets
//! back to inner senders → 1.
//!
//! Whole packets leave by raw sockets, so that a flow may have any source port. A UDP tunnel's
//! super-packet leaves in GSO bursts by a UDP socket bound to the flow's source port, if that port
//! is free ([`gso_sockets`]). These sockets carry no mark: routes, and so the gateway's policies,
//! apply to them, and a tunnel passes through ESP where a policy says so.
//!
//! Known limit: Linux leaves GRE's checksum to its device, which on virtual links nobody fills in;
//! a raw socket on the same machine sees 0, and the packet is dropped as `tunnel_in_gre_checksum`.
//! On a real wire it is correct.

mod control;
mod drop_tally;
mod export;
mod gso_sockets;
mod receive;
mod send;
mod socket;
mod tunnel_port;

use std::{
    ops::RangeInclusive,
    sync::{Arc, mpsc::Receiver},
    time::Duration,
};

use uxfrm_engine::Moment;
use uxfrm_io::{
    PathMtu, Port, clock,
    poll::{Poller, Waker},
};
use uxfrm_packet::{Batch, PacketBuf, Pool};
use uxfrm_tunnel::{
    DecapPorts, DropReason, Egress, HashSeed, Tunnel, Tunnels, counters::TunnelDrops,
};

use self::{
    control::Request, drop_tally::DropTally, gso_sockets::GsoSockets, socket::ReceiveSocket,
    tunnel_port::TunnelPort,
};
pub use self::{
    control::{TunnelChange, TunnelControl},
    export::{ExportedInterface, TunnelLoopExport},
    socket::{ReceivePort, ReceiveSource, SocketCounts, TunnelSockets},
    tunnel_port::{LearnedPmtu, TunnelCounts, TunnelInterface, TunnelRoute},
};
use crate::Error;

/// Longest wait.
const IDLE: Duration = Duration::from_millis(500);

/// Interval at which overflows of sockets and TUNs are counted.
const OVERFLOW_INTERVAL: Duration = Duration::from_secs(1);

/// All tunnels of a gateway with their ports.
#[derive(Debug)]
pub struct TunnelLoop {
    poller: Poller,
    requests: Receiver<Request>,
    tunnels: Tunnels,
    ports: DecapPorts,
    interfaces: Vec<TunnelPort>,
    incoming: Vec<ReceiveSocket>,
    errors: Vec<(Box<dyn Port>, Option<u8>)>,
    outgoing: [Box<dyn Port>; 2],
    drops: Arc<TunnelDrops>,
    pool: Pool,
    batch: Batch,
    to_network: [Batch; 2],
    gso_sockets: GsoSockets,
    /// GSO bursts on their way to a socket.
    bursts: Batch,
    /// Datagrams of a burst that belong to no tunnel.
    others: Vec<PacketBuf>,
    /// Identification of the next fragmented packet.
    ident: u32,
    overflows_counted: Moment,
}

impl TunnelLoop {
    /// A loop without tunnels, and its control.
    ///
    /// # Errors
    /// When a port can't be polled.
    pub fn new(sockets: TunnelSockets) -> Result<(Self, TunnelControl), Error> {
        let poller = Poller::new().map_err(Error::Poll)?;
        let (control, requests) = TunnelControl::new(poller.waker());
        let TunnelSockets { incoming, errors, outgoing } = sockets;
        let mut event_loop = Self {
            poller,
            requests,
            tunnels: Tunnels::new(),
            ports: DecapPorts::new(),
            interfaces: Vec::new(),
            incoming: Vec::new(),
            errors: Vec::new(),
            outgoing,
            drops: Arc::default(),
            pool: Pool::new(),
            batch: Batch::new(),
            to_network: [Batch::new(), Batch::new()],
            gso_sockets: GsoSockets::default(),
            bursts: Batch::new(),
            others: Vec::new(),
            ident: 0,
            overflows_counted: now(),
        };
        for port in errors {
            let token = event_loop.add_to_poller(port.as_ref())?;
            event_loop.errors.push((port, token));
        }
        let listen = incoming.into_iter().map(TunnelChange::Listen).collect();
        event_loop.apply(Tunnels::new(), DecapPorts::new(), listen)?;
        Ok((event_loop, control))
    }

    /// Drop counters, for other threads.
    #[must_use]
    pub fn drops(&self) -> Arc<TunnelDrops> {
        Arc::clone(&self.drops)
    }

    /// Ends the current [`turn`](Self::turn)'s wait, or the next one's.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.poller.waker()
    }

    /// Runs the loop once.
    ///
    /// # Errors
    /// When polling fails. A broken socket or a deleted TUN does not end the loop.
    pub fn turn(&mut self) -> Result<(), Error> {
        // 1
        let ready = self.poller.wait(Some(IDLE)).map_err(Error::Poll)?;
        if ready.woken {
            self.handle_requests();
        }
        self.gso_sockets.close_idle(now());
        // Ports without a descriptor are read every time.
        let is_ready = |token: Option<u8>| token.is_none_or(|token| ready.has(token));
        // 2
        for index in 0..self.interfaces.len() {
            let TunnelPort { interface: TunnelInterface { port, .. }, token, .. } =
                &mut self.interfaces[index];
            if is_ready(*token) {
                match port.receive(&mut self.pool, &mut self.batch) {
                    Ok(_) => self.send(index),
                    Err(error) => self.mark_gone(index, &error),
                }
            }
        }
        // 3
        for index in 0..self.incoming.len() {
            let ReceiveSocket { incoming: ReceivePort { port, .. }, token } =
                &mut self.incoming[index];
            if is_ready(*token) && received(port.as_mut(), &mut self.pool, &mut self.batch) {
                self.receive(index);
            }
        }
        // 4
        self.count_overflows();
        for index in 0..self.errors.len() {
            let (port, token) = &mut self.errors[index];
            if is_ready(*token) && received(port.as_mut(), &mut self.pool, &mut self.batch) {
                self.handle_icmp_errors();
            }
        }
        Ok(())
    }

    /// Counts overflows of queues, which the kernel reports nowhere else.
    fn count_overflows(&mut self) {
        let now = now();
        if now.since(self.overflows_counted) < OVERFLOW_INTERVAL {
            return;
        }
        self.overflows_counted = now;
        let all = &self.drops;
        self.interfaces
            .iter_mut()
            .for_each(|tunnel_port| count_tun_overflow(&mut tunnel_port.interface, all));
        self.incoming
            .iter_mut()
            .for_each(|socket| count_socket_overflow(&mut socket.incoming, all));
        for (port, _) in &mut self.errors {
            all.add(DropReason::ErrorPortFull, port.overflowed());
        }
    }

    /// Applies the requested changes.
    fn handle_requests(&mut self) {
        while let Ok(request) = self.requests.try_recv() {
            // A requester that no longer waits has given up.
            match request {
                Request::Apply { tunnels, ports, changes, done } => {
                    let _given_up = done.send(self.apply(tunnels, ports, changes));
                }
                Request::Export(done) => {
                    let _given_up = done.send(self.portray());
                }
            }
        }
    }

    /// Applies changes; returns ports that are no longer used.
    fn apply(
        &mut self,
        tunnels: Tunnels,
        ports: DecapPorts,
        changes: Vec<TunnelChange>,
    ) -> Result<Vec<Box<dyn Port>>, Error> {
        let mut unused = Vec::new();
        for change in changes {
            unused.extend(self.change(change)?);
        }
        (self.tunnels, self.ports) = (tunnels, ports);
        Ok(unused)
    }

    fn change(&mut self, change: TunnelChange) -> Result<Option<Box<dyn Port>>, Error> {
        match change {
            TunnelChange::Open(interface) => {
                let token = self.add_to_poller(interface.port.as_ref())?;
                self.interfaces.push(TunnelPort::new(interface, token));
            }
            TunnelChange::Replace(route) => {
                let name = route.tunnel.name();
                if let Some(at) =
                    self.interfaces.iter().position(|tunnel_port| tunnel_port.name() == name)
                {
                    self.interfaces[at].replace_route(route);
                }
            }
            TunnelChange::Close(name) => {
                let at = self.interfaces.iter().position(|tunnel_port| tunnel_port.name() == name);
                let port = at.map(|at| {
                    let mut tunnel_port = self.interfaces.remove(at);
                    count_tun_overflow(&mut tunnel_port.interface, &self.drops);
                    tunnel_port.interface.port
                });
                return Ok(port.inspect(|port| self.remove_from_poller(port.as_ref())));
            }
            TunnelChange::Listen(incoming) => {
                if self.socket_index(&incoming.source).is_some() {
                    return Ok(Some(incoming.port));
                }
                let token = self.add_to_poller(incoming.port.as_ref())?;
                self.incoming.push(ReceiveSocket { incoming, token });
            }
            TunnelChange::StopListening(source) => {
                let port = self.socket_index(&source).map(|at| {
                    let mut socket = self.incoming.remove(at);
                    count_socket_overflow(&mut socket.incoming, &self.drops);
                    socket.incoming.port
                });
                return Ok(port.inspect(|port| self.remove_from_poller(port.as_ref())));
            }
        }
        Ok(None)
    }

    fn socket_index(&self, source: &ReceiveSource) -> Option<usize> {
        self.incoming.iter().position(|socket| socket.incoming.source == *source)
    }

    /// Polls a port under a free token; `None` for one without a descriptor.
    fn add_to_poller(&self, port: &dyn Port) -> Result<Option<u8>, Error> {
        let Some(descriptor) = port.descriptor() else { return Ok(None) };
        let interfaces = self.interfaces.iter().map(|tunnel_port| tunnel_port.token);
        let incoming = self.incoming.iter().map(|socket| socket.token);
        let errors = self.errors.iter().map(|(_, token)| *token);
        let mut taken = [false; 256];
        let tokens = interfaces.chain(incoming).chain(errors).flatten();
        tokens.for_each(|token| taken[usize::from(token)] = true);
        let token = (0..=u8::MAX).find(|token| !taken[usize::from(*token)]);
        let token = token.ok_or(Error::TooManyPorts)?;
        self.poller.add(descriptor, token).map_err(Error::Poll)?;
        Ok(Some(token))
    }

    fn remove_from_poller(&self, port: &dyn Port) {
        if let Some(descriptor) = port.descriptor() {
            // A TUN that is gone is not polled any more.
            let _not_there = self.poller.remove(descriptor);
        }
    }

    /// Records that somebody else deleted a TUN: its tunnel carries nothing until it is closed.
    fn mark_gone(&self, index: usize, error: &std::io::Error) {
        let tunnel_port = &self.interfaces[index];
        tracing::info!(tunnel = tunnel_port.name(), %error, "the TUN of a tunnel is gone");
        tunnel_port.mark_gone();
        self.remove_from_poller(tunnel_port.interface.port.as_ref());
    }

    fn tally(&self, index: usize) -> DropTally<'_> {
        DropTally { all: &self.drops, own: &self.interfaces[index].interface.counts.drops }
    }

    fn deliver(&mut self, index: usize) {
        let TunnelPort { interface, to_tun, .. } = &mut self.interfaces[index];
        if !to_tun.is_empty() {
            let sent = interface.port.transmit(to_tun, &mut self.pool);
            let tally = DropTally { all: &self.drops, own: &interface.counts.drops };
            tally.count_refused(DropReason::InRefused, &sent);
        }
    }
}

/// Counts packets that a TUN had no room for.
fn count_tun_overflow(interface: &mut TunnelInterface, all: &TunnelDrops) {
    let lost = interface.port.overflowed();
    DropTally { all, own: &interface.counts.drops }.add(DropReason::OutPortFull, lost);
}

/// Counts packets that a socket had no room for.
fn count_socket_overflow(incoming: &mut ReceivePort, all: &TunnelDrops) {
    let lost = incoming.port.overflowed();
    DropTally { all, own: &incoming.counts.drops }.add(DropReason::InPortFull, lost);
}

/// Sends all queued packets; returns a path whose MTU turned out to be smaller.
fn transmit(
    outgoing: &mut [Box<dyn Port>; 2],
    to_network: &mut [Batch; 2],
    tally: DropTally<'_>,
    pool: &mut Pool,
) -> Option<PathMtu> {
    let mut narrow = None;
    for (port, to_network) in outgoing.iter_mut().zip(to_network) {
        if !to_network.is_empty() {
            let sent = port.transmit(to_network, pool);
            tally.count_refused(DropReason::OutRefused, &sent);
            narrow = sent.refused.path.or(narrow);
        }
    }
    narrow
}

/// Parameters of a tunnel's outer packets: source ports of a range, chosen by a seed.
#[must_use]
pub fn egress(
    (path_mtu, device_mtu): (usize, usize),
    seed: u64,
    source_ports: RangeInclusive<u16>,
) -> Egress {
    Egress { path_mtu, device_mtu, seed: HashSeed(seed), source_ports }
}

fn now() -> Moment {
    Moment(clock::boot_nanoseconds())
}

fn port_of<'s>(ports: &'s mut [TunnelPort], tunnel: &Arc<Tunnel>) -> Option<&'s mut TunnelPort> {
    ports.iter_mut().find(|tunnel_port| Arc::ptr_eq(&tunnel_port.interface.route.tunnel, tunnel))
}

/// Fills the batch; whether anything came.
fn received(port: &mut dyn Port, pool: &mut Pool, batch: &mut Batch) -> bool {
    match port.receive(pool, batch) {
        Ok(count) => count > 0,
        Err(error) => {
            tracing::warn!(%error, "a tunnel's socket failed");
            false
        }
    }
}

#[cfg(test)]
mod tests;
