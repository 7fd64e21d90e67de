//! The network side of a lane: which port a packet leaves by.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use uxfrm_engine::{Family, Moment};
use uxfrm_io::{Port, Transmitted};
use uxfrm_packet::{Batch, PacketBuf, Pool, congestion::Told};

use crate::{Express, standing_queue::StandingQueue};

/// A UDP socket for ESP-in-UDP.
#[derive(Debug)]
pub struct Datagrams {
    /// Its family.
    pub family: Family,
    /// The local UDP port it is bound to.
    pub udp_port: u16,
    /// The socket.
    pub port: Box<dyn Port>,
}

/// All ports towards the network, each with the packets that wait for it.
#[derive(Debug)]
pub struct Wire {
    exits: Vec<Exit>,
    /// Behind the exits where they are counted.
    express: Option<Box<Express>>,
}

#[derive(Debug)]
struct Exit {
    takes: Takes,
    port: Box<dyn Port>,
    waiting: Batch,
    /// What waits in the kernel to be received, where it is watched.
    queue: Option<StandingQueue>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    Packets(Family),
    Datagrams(Family, u16),
}

impl Wire {
    /// A wire of a port for whole IPv4 packets, one for whole IPv6 packets, and sockets for datagrams.
    #[must_use]
    pub fn new(ip4: Box<dyn Port>, ip6: Box<dyn Port>, sockets: Vec<Datagrams>) -> Self {
        let packets = [(Takes::Packets(Family::V4), ip4), (Takes::Packets(Family::V6), ip6)];
        let datagrams = sockets
            .into_iter()
            .map(|socket| (Takes::Datagrams(socket.family, socket.udp_port), socket.port));
        let exits = packets
            .into_iter()
            .chain(datagrams)
            .map(|(takes, port)| Exit { takes, port, waiting: Batch::new(), queue: None })
            .collect();
        Self { exits, express: None }
    }

    /// The same wire, whose ESP goes by `express` where that can.
    #[must_use]
    pub fn with_express(mut self, express: Express) -> Self {
        self.express = Some(Box::new(express));
        self
    }

    /// How many ports there are.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.exits.len() + usize::from(self.express.is_some())
    }

    /// What to poll of the port at `index`, below [`len`](Self::len).
    pub(crate) fn descriptor(&self, index: usize) -> Option<BorrowedFd<'_>> {
        match self.exits.get(index) {
            Some(exit) => exit.port.descriptor(),
            None => self.express.as_ref()?.descriptor(),
        }
    }

    /// Appends what waits at the port at `index`.
    ///
    /// # Errors
    /// The port's.
    pub(crate) fn receive(
        &mut self,
        index: usize,
        pool: &mut Pool,
        into: &mut Batch,
    ) -> io::Result<usize> {
        match (self.exits.get_mut(index), &mut self.express) {
            (Some(exit), _) => exit.port.receive(pool, into),
            (None, Some(express)) => express.receive(pool, into),
            (None, None) => Ok(0),
        }
    }

    /// Takes in news of ways, and sends what a device had no room for.
    pub(crate) fn attend(&mut self, now: fn() -> Moment, pool: &mut Pool) -> Transmitted {
        let Some(express) = &mut self.express else { return Transmitted::default() };
        express.hear(now());
        express.transmit(pool)
    }

    /// See [`uxfrm_io::FramePort::lay_down`].
    pub(crate) fn lay_down(&mut self) {
        self.express.iter_mut().for_each(|express| express.lay_down());
    }

    /// See [`uxfrm_io::FramePort::take_up`].
    pub(crate) fn take_up(&mut self) -> io::Result<()> {
        self.express.as_mut().map_or(Ok(()), |express| express.take_up())
    }

    /// Packets that found no room in the queues of any port, since the last time.
    pub(crate) fn lost(&mut self) -> u64 {
        let sockets: u64 = self.exits.iter_mut().map(|exit| exit.port.overflowed()).sum();
        sockets + self.express.as_mut().map_or(0, |express| express.lost())
    }

    /// Whether a device had no room for all, so that [`attend`](Self::attend) is to be called soon.
    pub(crate) fn keeps(&mut self) -> bool {
        self.express.as_mut().is_some_and(|express| express.keeps())
    }

    /// Has senders of TCP [told](Self::relieve) from now on once packets wait in a port's queue for `target`.
    pub(crate) fn watch(&mut self, target: Duration) {
        for exit in &mut self.exits {
            exit.queue = Some(StandingQueue::new(target));
        }
        if let Some(express) = &mut self.express {
            express.watch(target);
        }
    }

    /// Has a sender send less where packets stand in the queue of the port at `index`; `batch` is what came of those that were received just now.
    pub(crate) fn relieve(
        &mut self,
        index: usize,
        now: Moment,
        batch: &mut Batch,
        pool: &mut Pool,
    ) -> Option<Told> {
        match self.exits.get_mut(index) {
            Some(Exit { port, queue, .. }) => {
                queue.as_mut()?.relieve(port.waited(), now, batch, pool)
            }
            None => self.express.as_mut()?.relieve(now, batch, pool),
        }
    }

    /// Whether whole IP packets come from the port at `index`.
    pub(crate) fn takes_packets(&self, index: usize) -> bool {
        self.exits.get(index).is_none_or(|exit| matches!(exit.takes, Takes::Packets(_)))
    }

    /// Sends every packet of `batch` by the port that takes it, in order for each port; what became of them.
    ///
    /// A packet for a UDP port that nobody has bound is counted as unsupported.
    pub fn transmit(&mut self, batch: &mut Batch, pool: &mut Pool) -> Transmitted {
        let mut total = Transmitted::default();
        for packet in batch.drain() {
            let Some(packet) = express(&mut self.express, packet) else { continue };
            let wanted = Takes::of(&packet);
            match self.exits.iter_mut().find(|exit| exit.takes == wanted) {
                Some(exit) => exit.waiting.push(packet),
                None => {
                    total.unsupported(&packet);
                    pool.give(packet);
                }
            }
        }
        for exit in self.exits.iter_mut().filter(|exit| !exit.waiting.is_empty()) {
            total += exit.port.transmit(&mut exit.waiting, pool);
        }
        if let Some(express) = &mut self.express {
            total += express.transmit(pool);
        }
        total
    }
}

/// A packet that does not go by express.
#[inline]
fn express(express: &mut Option<Box<Express>>, packet: PacketBuf) -> Option<PacketBuf> {
    match express {
        Some(express) if packet.udp.is_none() => express.take(packet).err(),
        Some(_) | None => Some(packet),
    }
}

impl Takes {
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
    fn each_packet_leaves_by_its_own_port() {
        let (ip4, mut far4) = Memory::pair(8);
        let (ip6, mut far6) = Memory::pair(8);
        let (udp, mut far_udp) = Memory::pair(8);
        let socket = Datagrams { family: Family::V4, udp_port: 4500, port: Box::new(udp) };
        let mut wire = Wire::new(Box::new(ip4), Box::new(ip6), vec![socket]);
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
