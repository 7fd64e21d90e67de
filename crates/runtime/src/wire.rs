//! The network side of a lane: which port a packet leaves by.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use uxfrm_engine::{Family, Moment};
use uxfrm_io::{Port, Transmitted};
use uxfrm_packet::{Batch, PacketBuf, Pool, congestion::Told};

use crate::standing_queue::StandingQueue;

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
        Self { exits }
    }

    /// How many ports there are.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.exits.len()
    }

    /// The port at `index`, below [`len`](Self::len).
    pub(crate) fn port(&mut self, index: usize) -> &mut dyn Port {
        self.exits[index].port.as_mut()
    }

    /// Has senders of TCP [told](Self::relieve) from now on once packets wait in a port's queue for `target`.
    pub(crate) fn watch(&mut self, target: Duration) {
        for exit in &mut self.exits {
            exit.queue = Some(StandingQueue::new(target));
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
        let Exit { port, queue, .. } = &mut self.exits[index];
        queue.as_mut()?.relieve(port.waited(), now, batch, pool)
    }

    /// Whether whole IP packets come from the port at `index`.
    pub(crate) fn takes_packets(&self, index: usize) -> bool {
        matches!(self.exits[index].takes, Takes::Packets(_))
    }

    /// Sends every packet of `batch` by the port that takes it, in order for each port; what became of them.
    ///
    /// A packet for a UDP port that nobody has bound is counted as unsupported.
    pub fn transmit(&mut self, batch: &mut Batch, pool: &mut Pool) -> Transmitted {
        let mut total = Transmitted::default();
        for packet in batch.drain() {
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
        total
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
