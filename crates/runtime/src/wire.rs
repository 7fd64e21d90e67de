//! The network side of a worker: selects the port of each outgoing packet.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use uxfrm_engine::{Family, Moment};
use uxfrm_io::{Port, Transmitted};
use uxfrm_packet::{Batch, PacketBuf, Pool, congestion::CongestionSignal};

use crate::{AfXdpEsp, PortTraffic, codel::Codel};

/// A UDP socket for ESP-in-UDP.
#[derive(Debug)]
pub struct UdpSocketPort {
    /// Address family.
    pub family: Family,
    /// The local UDP port it is bound to.
    pub udp_port: u16,
    /// The socket.
    pub port: Box<dyn Port>,
}

/// All ports towards the network, each with its queued packets.
#[derive(Debug)]
pub struct WirePorts {
    ports: Vec<WirePort>,
    /// Its index is behind the ports'.
    af_xdp: Option<Box<AfXdpEsp>>,
    af_xdp_traffic: PortTraffic,
}

#[derive(Debug)]
struct WirePort {
    form: PacketForm,
    port: Box<dyn Port>,
    waiting: Batch,
    /// Receive queue in the kernel, if it is monitored.
    queue: Option<Codel>,
    traffic: PortTraffic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PacketForm {
    Packets(Family),
    Datagrams(Family, u16),
}

impl WirePorts {
    /// Ports for whole IPv4 packets, whole IPv6 packets, and datagrams.
    #[must_use]
    pub fn new(ip4: Box<dyn Port>, ip6: Box<dyn Port>, sockets: Vec<UdpSocketPort>) -> Self {
        let packets =
            [(PacketForm::Packets(Family::V4), ip4), (PacketForm::Packets(Family::V6), ip6)];
        let datagrams = sockets
            .into_iter()
            .map(|socket| (PacketForm::Datagrams(socket.family, socket.udp_port), socket.port));
        let ports = packets
            .into_iter()
            .chain(datagrams)
            .map(|(form, port)| WirePort {
                form,
                port,
                waiting: Batch::new(),
                queue: None,
                traffic: PortTraffic::default(),
            })
            .collect();
        Self { ports, af_xdp: None, af_xdp_traffic: PortTraffic::default() }
    }

    /// Sends ESP by AF_XDP where that is possible.
    #[must_use]
    pub fn with_af_xdp(mut self, af_xdp: AfXdpEsp) -> Self {
        self.af_xdp = Some(Box::new(af_xdp));
        self
    }

    /// Number of ports.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.ports.len() + usize::from(self.af_xdp.is_some())
    }

    /// Descriptor of the port at `index`, below [`len`](Self::len).
    pub(crate) fn descriptor(&self, index: usize) -> Option<BorrowedFd<'_>> {
        match self.ports.get(index) {
            Some(port) => port.port.descriptor(),
            None => self.af_xdp.as_ref()?.descriptor(),
        }
    }

    /// Receives from the port at `index`.
    ///
    /// # Errors
    /// The port's.
    pub(crate) fn receive(
        &mut self,
        index: usize,
        pool: &mut Pool,
        into: &mut Batch,
    ) -> io::Result<usize> {
        let (count, traffic) = match (self.ports.get_mut(index), &mut self.af_xdp) {
            (Some(port), _) => (port.port.receive(pool, into)?, &mut port.traffic),
            (None, Some(af_xdp)) => (af_xdp.receive(pool, into)?, &mut self.af_xdp_traffic),
            (None, None) => return Ok(0),
        };
        traffic.count_received(count);
        Ok(count)
    }

    /// The ports' names, in the order of their indices: `esp4`, `esp6`, `udp4:4500`, `af_xdp`.
    pub(crate) fn names(&self) -> impl Iterator<Item = String> {
        let af_xdp = self.af_xdp.as_ref().map(|_| "af_xdp".to_owned());
        self.ports.iter().map(|port| port.form.name()).chain(af_xdp)
    }

    /// What each port carried, in the order of their indices.
    pub(crate) fn traffic(&self) -> impl Iterator<Item = PortTraffic> {
        let af_xdp = self.af_xdp.as_ref().map(|_| self.af_xdp_traffic);
        self.ports.iter().map(|port| port.traffic).chain(af_xdp)
    }

    /// Applies next-hop updates, and sends what the device had no room for.
    pub(crate) fn poll_af_xdp(&mut self, now: fn() -> Moment, pool: &mut Pool) -> Transmitted {
        let Some(af_xdp) = &mut self.af_xdp else { return Transmitted::default() };
        af_xdp.apply_updates(now());
        let sent = af_xdp.transmit(pool);
        self.af_xdp_traffic.count_sent(&sent);
        sent
    }

    /// See [`uxfrm_io::FramePort::save_state`].
    pub(crate) fn save_state(&mut self) {
        self.af_xdp.iter_mut().for_each(|af_xdp| af_xdp.save_state());
    }

    /// See [`uxfrm_io::FramePort::restore_state`].
    pub(crate) fn restore_state(&mut self) -> io::Result<()> {
        self.af_xdp.as_mut().map_or(Ok(()), |af_xdp| af_xdp.restore_state())
    }

    /// Packets lost in full receive queues since the last call.
    pub(crate) fn lost(&mut self) -> u64 {
        let sockets: u64 = self.ports.iter_mut().map(|port| port.port.overflowed()).sum();
        sockets + self.af_xdp.as_mut().map_or(0, |af_xdp| af_xdp.lost())
    }

    /// Whether a device had no room for all packets, so that [`poll_af_xdp`](Self::poll_af_xdp)
    /// must be called soon.
    pub(crate) fn has_backlog(&mut self) -> bool {
        self.af_xdp.as_mut().is_some_and(|af_xdp| af_xdp.has_backlog())
    }

    /// Signals congestion to TCP senders from now on once packets wait in a port's queue for
    /// `target`.
    pub(crate) fn watch(&mut self, target: Duration) {
        for port in &mut self.ports {
            port.queue = Some(Codel::new(target));
        }
        if let Some(af_xdp) = &mut self.af_xdp {
            af_xdp.watch(target);
        }
    }

    /// Slows a TCP sender down if the queue of the port at `index` stands; `batch` holds what the
    /// last receive became.
    pub(crate) fn signal_congestion(
        &mut self,
        index: usize,
        now: Moment,
        batch: &mut Batch,
        pool: &mut Pool,
    ) -> Option<CongestionSignal> {
        match self.ports.get_mut(index) {
            Some(WirePort { port, queue, .. }) => {
                queue.as_mut()?.signal_congestion(port.waited(), now, batch, pool)
            }
            None => self.af_xdp.as_mut()?.signal_congestion(now, batch, pool),
        }
    }

    /// Whether the port at `index` receives whole IP packets.
    pub(crate) fn is_raw(&self, index: usize) -> bool {
        self.ports.get(index).is_none_or(|port| matches!(port.form, PacketForm::Packets(_)))
    }

    /// Sends every packet by its port, in order per port.
    ///
    /// A packet for a UDP port without a socket is counted as unsupported.
    pub fn transmit(&mut self, batch: &mut Batch, pool: &mut Pool) -> Transmitted {
        let mut total = Transmitted::default();
        for packet in batch.drain() {
            let Some(packet) = try_af_xdp(&mut self.af_xdp, packet) else { continue };
            let wanted = PacketForm::of(&packet);
            match self.ports.iter_mut().find(|port| port.form == wanted) {
                Some(port) => port.waiting.push(packet),
                None => {
                    total.unsupported(&packet);
                    pool.give(packet);
                }
            }
        }
        for port in self.ports.iter_mut().filter(|port| !port.waiting.is_empty()) {
            let sent = port.port.transmit(&mut port.waiting, pool);
            port.traffic.count_sent(&sent);
            total += sent;
        }
        if let Some(af_xdp) = &mut self.af_xdp {
            let sent = af_xdp.transmit(pool);
            self.af_xdp_traffic.count_sent(&sent);
            total += sent;
        }
        total
    }
}

/// Tries AF_XDP; returns a packet that it does not take.
#[inline]
fn try_af_xdp(af_xdp: &mut Option<Box<AfXdpEsp>>, packet: PacketBuf) -> Option<PacketBuf> {
    match af_xdp {
        Some(af_xdp) if packet.udp.is_none() => af_xdp.take(packet).err(),
        Some(_) | None => Some(packet),
    }
}

impl PacketForm {
    fn name(self) -> String {
        let digit = |family| match family {
            Family::V4 => 4,
            Family::V6 => 6,
        };
        match self {
            Self::Packets(family) => format!("esp{}", digit(family)),
            Self::Datagrams(family, port) => format!("udp{}:{port}", digit(family)),
        }
    }

    fn of(packet: &PacketBuf) -> Self {
        match packet.udp {
            Some(path) => Self::Datagrams(family_of(path.remote), path.local.port()),
            None if packet.bytes().first().is_some_and(|byte| byte >> 4 == 6) => {
                Self::Packets(Family::V6)
            }
            None => Self::Packets(Family::V4),
        }
    }
}

fn family_of(end: SocketAddr) -> Family {
    match end.ip() {
        IpAddr::V4(_) => Family::V4,
        IpAddr::V6(_) => Family::V6,
    }
}

#[cfg(test)]
mod tests {
    use uxfrm_io::Memory;
    use uxfrm_packet::UdpPath;

    use super::*;

    fn datagram(local: u16) -> PacketBuf {
        let mut packet = PacketBuf::from_slice(b"esp");
        packet.udp = Some(UdpPath {
            local: SocketAddr::from(([0, 0, 0, 0], local)),
            remote: SocketAddr::from(([192, 0, 2, 1], 4500)),
            tos: 0,
            dont_fragment: true,
        });
        packet
    }

    #[test]
    fn packet_leaves_by_port_of_its_form() {
        let (ip4, mut far4) = Memory::pair(8);
        let (ip6, mut far6) = Memory::pair(8);
        let (udp, mut far_udp) = Memory::pair(8);
        let socket = UdpSocketPort { family: Family::V4, udp_port: 4500, port: Box::new(udp) };
        let mut wire = WirePorts::new(Box::new(ip4), Box::new(ip6), vec![socket]);
        let mut pool = Pool::new();
        let mut batch: Batch = [
            PacketBuf::from_slice(&[0x45, 1]),
            PacketBuf::from_slice(&[0x60, 2]),
            datagram(4500),
            datagram(4501),
        ]
        .into_iter()
        .collect();
        let sent = wire.transmit(&mut batch, &mut pool);
        assert_eq!((sent.packets, sent.refused.unsupported), (3, 1));
        let mut arrived = Batch::new();
        for far in [&mut far4, &mut far6, &mut far_udp] {
            assert_eq!(far.receive(&mut pool, &mut arrived).unwrap(), 1);
        }
        assert_eq!(arrived.as_slice()[1].bytes(), &[0x60, 2]);
    }
}
