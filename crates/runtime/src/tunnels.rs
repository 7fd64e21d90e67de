//! The tunnels' loop: one thread for all tunnels of a gateway.
//!
//! ```text
//!   TUN of a tunnel ─▶ encapsulate ─▶ raw socket        raw or UDP socket ─▶ decapsulate ─▶ TUN of its tunnel
//! ```
//!
//! 1 wait until a port is readable → 2 from each readable TUN a batch into its tunnel and out → 3 from each readable socket a batch out of its
//! tunnels to their TUNs → 4 from the sockets for ICMP errors, back to inner senders → 1.
//!
//! Packets leave whole, by raw sockets, so that a flow may have any source port. A super-packet of a tunnel with UDP checksums leaves as trains by a
//! UDP socket that has the flow's source port, where that is to be had ([`trains`]; `UDP_SEGMENT` needs the checksum). Their sockets carry no mark: routes, and so the
//! gateway's policies, apply to them, and a tunnel goes through ESP where a policy says so.
//!
//! Known: a Linux on the same machine leaves GRE's checksum to its device, which on virtual links nobody fills in; a raw socket sees 0 then, and
//! the packet is dropped as `tunnel_in_gre_checksum`. Off a real wire it is right.

mod trains;

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use uxfrm_engine::{Cut, Moment, split};
use uxfrm_io::{
    Port, Transmitted, clock,
    poll::{Poller, Waker},
    wire_packets,
};
use uxfrm_packet::{
    Batch, Coalescer, IpPacket, Notes, PacketBuf, Pool, Protocol, SegmentPlan, Segments, SizeClass,
    Version,
};
use uxfrm_tunnel::{
    DropReason, Egress, Event, HashSeed, Inside, Outer, Ports, Tunnel, Tunnels,
    config::UdpChecksum,
    counters::{Drops, Traffic},
};

use self::trains::TrainSockets;
use crate::Error;

/// How long the loop waits at the most.
const IDLE: Duration = Duration::from_millis(500);

/// `net.ipv4.route.min_pmtu`.
const LEAST_V4: usize = 552;
/// RFC 8200 §5.
const LEAST_V6: usize = 1280;
/// `net.ipv4.route.mtu_expires`: ten minutes in nanoseconds.
const NARROW_FOR: u64 = 600_000_000_000;

/// Ports that one loop can wait for.
const MOST_PORTS: usize = 64;

/// The interface of a tunnel.
#[derive(Debug)]
pub struct Interface {
    /// The tunnel; its name is the interface's.
    pub tunnel: Arc<Tunnel>,
    /// The TUN.
    pub port: Box<dyn Port>,
    /// Our end, where the tunnel does not name it.
    pub local: IpAddr,
    /// What the path to the other end takes, as far as it is known at the start, and what the TUN takes.
    pub egress: Egress,
    /// What it carried, for others to see.
    pub traffic: Arc<Traffic>,
}

/// The sockets towards the network.
#[derive(Debug)]
pub struct Sockets {
    /// For whole packets of a tunnel's protocol, or datagrams of a receive port, with the index of the device that they are bound to, or 0.
    pub incoming: Vec<(Box<dyn Port>, u32)>,
    /// For ICMP errors, as whole packets.
    pub errors: Vec<Box<dyn Port>>,
    /// For whole packets that leave, of IPv4 and of IPv6.
    pub outgoing: [Box<dyn Port>; 2],
}

/// All tunnels of a gateway with their ports.
#[derive(Debug)]
pub struct TunnelLane {
    poller: Poller,
    tunnels: Tunnels,
    ports: Ports,
    interfaces: Vec<Side>,
    sockets: Sockets,
    drops: Arc<Drops>,
    pool: Pool,
    batch: Batch,
    leaving: [Batch; 2],
    trains: TrainSockets,
    /// Trains on their way to a socket.
    train: Batch,
    ident: u32,
}

/// An interface and what waits for it.
#[derive(Debug)]
struct Side {
    interface: Interface,
    coalescer: Coalescer,
    arriving: Batch,
    /// What the path took at the start.
    whole_path: usize,
    /// How long an ICMP error's word of the path's MTU holds.
    narrow_until: Option<Moment>,
}

impl TunnelLane {
    /// A loop for `interfaces`, one for each of `tunnels`.
    ///
    /// # Errors
    /// When a port can't be polled, or there are more than 64.
    pub fn new(
        tunnels: Tunnels,
        ports: Ports,
        interfaces: Vec<Interface>,
        sockets: Sockets,
    ) -> Result<Self, Error> {
        let poller = Poller::new().map_err(Error::Poll)?;
        let incoming = sockets.incoming.iter().map(|(port, _)| port);
        let all = interfaces.iter().map(|interface| &interface.port);
        let all: Vec<&Box<dyn Port>> = all.chain(incoming).chain(&sockets.errors).collect();
        if all.len() > MOST_PORTS {
            return Err(Error::TooManyPorts(all.len()));
        }
        for (token, port) in (0..).zip(all) {
            if let Some(descriptor) = port.descriptor() {
                poller.add(descriptor, token).map_err(Error::Poll)?;
            }
        }
        Ok(Self {
            poller,
            tunnels,
            ports,
            interfaces: interfaces.into_iter().map(Side::new).collect(),
            sockets,
            drops: Arc::default(),
            pool: Pool::new(),
            batch: Batch::new(),
            leaving: [Batch::new(), Batch::new()],
            trains: TrainSockets::default(),
            train: Batch::new(),
            ident: 0,
        })
    }

    /// What it drops, for others to see.
    #[must_use]
    pub fn drops(&self) -> Arc<Drops> {
        Arc::clone(&self.drops)
    }

    /// Ends the current [`turn`](Self::turn)'s wait, or the next one's.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.poller.waker()
    }

    /// One turn of the loop.
    ///
    /// # Errors
    /// When polling fails or a TUN is gone. A broken socket ends nothing: the others go on.
    pub fn turn(&mut self) -> Result<(), Error> {
        // 1
        let ready = self.poller.wait(Some(IDLE)).map_err(Error::Poll)?;
        let mut tokens = 0..;
        // What has no descriptor is asked in turn.
        let mut is_ready = |port: &dyn Port| {
            let token: Option<u8> = tokens.next();
            token.is_some_and(|token| ready.has(token)) || port.descriptor().is_none()
        };
        // 2
        for index in 0..self.interfaces.len() {
            let port = &mut self.interfaces[index].interface.port;
            if is_ready(port.as_ref()) {
                port.receive(&mut self.pool, &mut self.batch).map_err(Error::Host)?;
                self.send(index);
            }
        }
        // 3
        for index in 0..self.sockets.incoming.len() {
            let (port, device) = &mut self.sockets.incoming[index];
            let device = *device;
            if is_ready(port.as_ref()) && received(port.as_mut(), &mut self.pool, &mut self.batch) {
                self.receive(device);
            }
        }
        // 4
        for index in 0..self.sockets.errors.len() {
            let port = self.sockets.errors[index].as_mut();
            if is_ready(port) && received(port, &mut self.pool, &mut self.batch) {
                self.learn();
            }
        }
        Ok(())
    }

    /// Sends what a TUN handed over.
    fn send(&mut self, index: usize) {
        self.interfaces[index].widen(now());
        let mut batch = std::mem::take(&mut self.batch);
        for packet in batch.drain() {
            match packet.segments {
                Segments::One => self.send_one(index, packet),
                Segments::Tcp { .. } | Segments::Udp { .. } => self.send_super(index, packet),
                Segments::Train { .. } => {
                    self.drops.count(DropReason::OutSuper);
                    self.pool.give(packet);
                }
            }
        }
        self.batch = batch;
        transmit(&mut self.sockets, &mut self.leaving, &self.drops, &mut self.pool);
        self.deliver(index);
    }

    fn send_super(&mut self, index: usize, packet: PacketBuf) {
        if !self.send_trains(index, &packet) {
            self.cut(index, &packet);
        }
        self.pool.give(packet);
    }

    /// Sends a super-packet as trains; `false`, and nothing is sent, where it has to be cut.
    fn send_trains(&mut self, index: usize, packet: &PacketBuf) -> bool {
        let Self { interfaces, sockets, trains, train, leaving, drops, pool, .. } = self;
        let Interface { tunnel, egress, local, traffic, .. } = &interfaces[index].interface;
        if !is_summed(tunnel) {
            return false;
        }
        // What is refused is cut: then each piece is refused, counted and told of.
        let Ok(outer) = tunnel.encapsulate_super(packet, egress, pool, train) else {
            return false;
        };
        let local = SocketAddr::new(*local, outer.udp.map_or(0, |ends| ends.source));
        let Some(socket) = trains.bound_to(local, outer.ttl) else {
            pool.give_all(train);
            return false;
        };
        traffic.sent.add(train.as_slice().iter().map(wire_packets).sum(), packet.len());
        // Of one flow, what came before leaves before.
        transmit(sockets, leaving, drops, pool);
        let sent = socket.transmit(train, pool);
        count_refused(drops, DropReason::OutRefused, &sent);
        true
    }

    fn cut(&mut self, index: usize, packet: &PacketBuf) {
        let Ok(plan) = SegmentPlan::new(packet) else {
            return self.drops.count(DropReason::OutSuper);
        };
        for k in 0..plan.count() {
            let mut piece = self.pool.take(SizeClass::holding(plan.len(k)));
            let room = piece.append(plan.len(k));
            if room.and_then(|out| plan.write(k, packet.bytes(), out)).is_some() {
                self.send_one(index, piece);
            } else {
                self.drops.count(DropReason::OutSuper);
                self.pool.give(piece);
            }
        }
    }

    fn send_one(&mut self, index: usize, mut packet: PacketBuf) {
        let side = &mut self.interfaces[index];
        let len = packet.len();
        let Interface { tunnel, egress, local, traffic, .. } = &side.interface;
        let made = tunnel.encapsulate(&mut packet, egress).and_then(|outer| {
            let outer = Outer { source: *local, ..outer };
            outer.push(&mut packet)?;
            Ok(outer)
        });
        match made {
            Ok(outer) => {
                traffic.sent.add(1, len);
                let mtu = egress.path_mtu;
                self.leave(packet, &outer, mtu);
            }
            Err(refused) => {
                self.drops.count(refused.reason);
                let told = refused.tell.and_then(|tell| tell.about(packet.bytes(), &mut self.pool));
                told.into_iter().for_each(|told| side.arriving.push(told));
                self.pool.give(packet);
            }
        }
    }

    /// Queues a packet for the network, in fragments where it is larger than the path takes and may be cut.
    fn leave(&mut self, packet: PacketBuf, outer: &Outer, mtu: usize) {
        let leaving = &mut self.leaving[usize::from(outer.destination.is_ipv6())];
        let may_be_cut = !outer.dont_fragment || outer.destination.is_ipv6();
        if packet.len() <= mtu || !may_be_cut {
            return leaving.push(packet);
        }
        if let Ok(ip) = IpPacket::parse(packet.bytes()) {
            self.ident = self.ident.wrapping_add(1);
            let (place, next_header_at) = match ip.version {
                Version::V4 => (ip.header_len, 9),
                Version::V6 => (ip.esp_offset, ip.next_header_at),
            };
            let cut = Cut { version: ip.version, place, next_header_at, mtu, ident: self.ident };
            split(packet.bytes(), &cut, packet.mark, &mut self.pool, leaving);
        }
        self.pool.give(packet);
    }

    /// Hands on what a socket received.
    fn receive(&mut self, device: u32) {
        let mut batch = std::mem::take(&mut self.batch);
        for packet in batch.drain() {
            match packet.segments {
                Segments::Train { .. } => self.receive_train(packet, device),
                Segments::One | Segments::Tcp { .. } | Segments::Udp { .. } => {
                    self.receive_one(packet, device);
                }
            }
        }
        self.batch = batch;
        transmit(&mut self.sockets, &mut self.leaving, &self.drops, &mut self.pool);
        for index in 0..self.interfaces.len() {
            let Side { coalescer, arriving, .. } = &mut self.interfaces[index];
            coalescer.flush(arriving);
            self.deliver(index);
        }
    }

    fn receive_one(&mut self, mut packet: PacketBuf, device: u32) {
        let tunnel = match self.tunnels.receive(&mut packet, device, &self.ports) {
            Ok(Inside::Tunnel(tunnel)) => tunnel,
            // To our own address, as ESP without UDP: so whoever takes ESP here gets it (`fou_udp_recv` returns the protocol to the IP layer).
            // Nothing else: it would come by loopback, where the inbound guard lets everything pass.
            Ok(Inside::Other(Protocol::ESP)) => {
                let is_v6 = packet.bytes().first().is_some_and(|first| first >> 4 == 6);
                return self.leaving[usize::from(is_v6)].push(packet);
            }
            Ok(Inside::Other(_)) => {
                self.drops.count(DropReason::InUnclaimed);
                return self.pool.give(packet);
            }
            Err(reason) => {
                self.drops.count(reason);
                return self.pool.give(packet);
            }
        };
        if let Some(side) = side_of(&mut self.interfaces, tunnel) {
            side.interface.traffic.received.add(1, packet.len());
            side.coalescer.offer(packet, &mut self.pool, &mut side.arriving);
        }
    }

    fn receive_train(&mut self, mut train: PacketBuf, device: u32) {
        let Self { tunnels, ports, interfaces, pool, drops, .. } = self;
        tunnels.receive_train(&mut train, device, ports, |inner| match inner {
            Ok(inner) => {
                if let Some(side) = side_of(interfaces, inner.tunnel) {
                    side.interface.traffic.received.add(1, inner.bytes.len());
                    let notes: Notes = inner.notes;
                    side.coalescer.offer_slice(inner.bytes, notes, pool, &mut side.arriving);
                }
            }
            Err(reason) => drops.count(reason),
        });
        self.pool.give(train);
    }

    /// Learns from ICMP errors, and tells inner senders.
    fn learn(&mut self) {
        let mut batch = std::mem::take(&mut self.batch);
        for error in batch.drain() {
            // Most are about other traffic of the host: those are no drops.
            if let Ok(news) = self.tunnels.translate(error.bytes())
                && let Some(side) = side_of(&mut self.interfaces, news.tunnel)
            {
                if let Event::PathMtu(mtu) = news.event {
                    side.narrow(mtu, now());
                }
                let told = news.told(error.bytes(), &mut self.pool);
                told.into_iter().for_each(|told| side.arriving.push(told));
            }
            self.pool.give(error);
        }
        self.batch = batch;
        for index in 0..self.interfaces.len() {
            self.deliver(index);
        }
    }

    fn deliver(&mut self, index: usize) {
        let Side { interface, arriving, .. } = &mut self.interfaces[index];
        if !arriving.is_empty() {
            let sent = interface.port.transmit(arriving, &mut self.pool);
            count_refused(&self.drops, DropReason::InRefused, &sent);
        }
    }
}

/// Whether a tunnel's datagrams have checksums.
fn is_summed(tunnel: &Tunnel) -> bool {
    let config = tunnel.config();
    config.udp.is_some_and(|udp| match config.kind.outer() {
        Version::V4 => udp.checksum4 == UdpChecksum::Computed,
        Version::V6 => udp.checksum6 == UdpChecksum::Computed,
    })
}

/// Sends what is queued for the network.
fn transmit(sockets: &mut Sockets, leaving: &mut [Batch; 2], drops: &Drops, pool: &mut Pool) {
    for (port, leaving) in sockets.outgoing.iter_mut().zip(leaving) {
        if !leaving.is_empty() {
            let sent = port.transmit(leaving, pool);
            count_refused(drops, DropReason::OutRefused, &sent);
        }
    }
}

/// The source ports of tunnels' packets: all, with a seed.
#[must_use]
pub fn egress(path_mtu: usize, device_mtu: usize, seed: u64) -> Egress {
    let source_ports = uxfrm_tunnel::ALL_PORTS;
    Egress { path_mtu, device_mtu, seed: HashSeed(seed), source_ports }
}

impl Side {
    fn new(interface: Interface) -> Self {
        let whole_path = interface.egress.path_mtu;
        let (coalescer, arriving) = (Coalescer::new(), Batch::new());
        Self { interface, coalescer, arriving, whole_path, narrow_until: None }
    }

    /// The path's MTU becomes smaller for a while, but not below what every path takes.
    fn narrow(&mut self, told: u32, now: Moment) {
        let least = match self.interface.tunnel.config().kind.outer() {
            Version::V4 => LEAST_V4,
            Version::V6 => LEAST_V6,
        };
        let told = usize::try_from(told).unwrap_or(usize::MAX).max(least);
        let path_mtu = &mut self.interface.egress.path_mtu;
        if told < *path_mtu {
            *path_mtu = told;
            self.narrow_until = Some(Moment(now.0 + NARROW_FOR));
        }
    }

    /// Tries the whole path again when its time has come.
    fn widen(&mut self, now: Moment) {
        if self.narrow_until.is_some_and(|until| now >= until) {
            self.narrow_until = None;
            self.interface.egress.path_mtu = self.whole_path;
        }
    }
}

fn now() -> Moment {
    Moment(clock::boot_nanoseconds())
}

fn side_of<'s>(sides: &'s mut [Side], tunnel: &Arc<Tunnel>) -> Option<&'s mut Side> {
    sides.iter_mut().find(|side| Arc::ptr_eq(&side.interface.tunnel, tunnel))
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

fn count_refused(drops: &Drops, reason: DropReason, sent: &Transmitted) {
    (0..sent.refused.packets()).for_each(|_| drops.count(reason));
}

#[cfg(test)]
mod tests;
