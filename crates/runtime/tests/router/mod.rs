//! The body of the fuzz target `inline`: any frames at both ports of a gateway that forwards
//! between devices.

use std::net::IpAddr;
use std::sync::mpsc;

use uxfrm_engine::{Action, DefaultActions, HostAddresses};
use uxfrm_io::rtnetlink::NeighbourState;
use uxfrm_io::{Framed, Memory, Port as _, poll::Poller};
use uxfrm_packet::{Batch, Checksum, PacketBuf, Pool, Segments, ethernet::MacAddr};
use uxfrm_runtime::{
    Events, InlineLoop, InlinePorts, NextHop, NextHopRequest, NextHopUpdate, PortSide,
    ResolvedRoute, ResolverEnds,
};
use uxfrm_testkit::{IpsecSetup, TestGatewayPair};

const NEIGHBOUR: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
const PORTS: [MacAddr; 2] = [MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2])];
const ESP: u8 = 50;

/// The input is a sequence of frames, each with a byte of flags and a length in two bytes. Only ESP
/// may leave by the wire, whatever comes by either port, and the loop goes on.
pub(crate) fn inline(bytes: &[u8]) {
    let mut site = Site::new();
    let mut rest = bytes;
    for _ in 0..32 {
        let Some((&[flags, low, high], tail)) = rest.split_first_chunk() else { break };
        let (frame, tail) = tail.split_at(tail.len().min(u16::from_le_bytes([low, high]).into()));
        site.bring(flags, frame);
        rest = tail;
    }
    site.turn();
}

struct Site {
    lane: InlineLoop,
    host: Memory,
    ports: [Memory; 2],
    questions: mpsc::Receiver<NextHopRequest>,
    news: mpsc::Sender<NextHopUpdate>,
    own: HostAddresses,
    pool: Pool,
}

impl Site {
    fn new() -> Self {
        let mut gateway = TestGatewayPair::new(&IpsecSetup::tunnel4()).left;
        let block = DefaultActions { outbound: Action::Block, ..DefaultActions::default() };
        gateway.database.apply(gateway.now, |change| change.set_defaults(block));
        let own = gateway.worker.settings().addresses.clone();
        let (near_host, host) = Memory::pair(256);
        let [(near, protected), (outer, wire)] = [Memory::pair(256), Memory::pair(256)];
        let (asked, questions) = mpsc::sync_channel(64);
        let (news, told) = mpsc::channel();
        let waker = Poller::new().expect("a poller").waker();
        let guide = ResolverEnds { requests: asked, waker: waker.clone(), updates: told };
        let ports = InlinePorts {
            host: Box::new(near_host),
            protected: (Box::new(Framed::new(near)), PORTS[0]),
            wire: (Box::new(Framed::new(outer)), PORTS[1]),
            sockets: Vec::new(),
            daemons: Vec::new(),
        };
        let events = Events::new(mpsc::channel().0, waker);
        let lane = InlineLoop::new(ports, guide, gateway.worker, events).expect("ports of memory");
        let ports = [protected, wire];
        Self { lane, host, ports, questions, news, own, pool: Pool::new() }
    }

    /// The lowest bits of `flags`: which port, add an Ethernet header, run a turn afterwards,
    /// super-packet, fix the IPv4 header checksum.
    fn bring(&mut self, flags: u8, bytes: &[u8]) {
        let mut packet = PacketBuf::from_slice(bytes);
        if flags & 16 != 0 {
            let _ = uxfrm_packet::ipv4::fill_checksum(packet.bytes_mut());
        }
        if flags & 8 != 0 {
            let start = if bytes.first().is_some_and(|byte| byte >> 4 == 6) { 40 } else { 20 };
            packet.checksum = Checksum::Partial { start, offset: 16 };
            packet.segments = Segments::Tcp { mss: 100 };
        }
        if flags & 2 != 0 {
            let kind =
                if bytes.first().is_some_and(|byte| byte >> 4 == 6) { 0x86dd } else { 0x800 };
            let side = PORTS[usize::from(flags & 1)].0;
            let header = [&side[..], &NEIGHBOUR.0, &u16::to_be_bytes(kind)].concat();
            packet.push(14).expect("there is room").copy_from_slice(&header);
        }
        let mut batch: Batch = std::iter::once(packet).collect();
        // Packets without room are given back with the batch.
        let _ = self.ports[usize::from(flags & 1)].transmit(&mut batch, &mut self.pool);
        batch.drain().for_each(|packet| self.pool.give(packet));
        if flags & 4 != 0 {
            self.turn();
        }
    }

    /// Runs one turn, answers its requests, and runs another.
    fn turn(&mut self) {
        for _ in 0..2 {
            self.lane.turn().expect("ports of memory");
            self.answer();
        }
        let mut batch = Batch::new();
        self.host.receive(&mut self.pool, &mut batch).expect("memory");
        batch.drain().for_each(|packet| self.pool.give(packet));
        for (place, port) in self.ports.iter_mut().enumerate() {
            port.receive(&mut self.pool, &mut batch).expect("memory");
            for frame in batch.drain() {
                check(frame.bytes(), place);
                self.pool.give(frame);
            }
        }
    }

    /// Answers requests: 10.1.0.0/16 and fd00:1::/32 are behind the protected port, the gateway's
    /// own addresses here, all else behind the wire.
    fn answer(&self) {
        for question in self.questions.try_iter() {
            let hop = match question {
                NextHopRequest::Neighbour(hop) => hop,
                NextHopRequest::Route(destination) => {
                    let side = side_of(destination);
                    let hop = NextHop { side, address: destination };
                    let source = Some(IpAddr::from([192, 0, 2, 1]));
                    let answer = match self.own.holds(destination) {
                        true => ResolvedRoute::Local,
                        false => ResolvedRoute::Via { hop, mtu: 1500, source },
                    };
                    self.news
                        .send(NextHopUpdate::Route(destination, answer))
                        .expect("the lane is there");
                    hop
                }
            };
            let standing = NeighbourState::Known(NEIGHBOUR);
            self.news.send(NextHopUpdate::Neighbour(hop, standing)).expect("the lane is there");
        }
    }
}

fn side_of(destination: IpAddr) -> PortSide {
    let is_behind = match destination {
        IpAddr::V4(v4) => v4.octets()[..2] == [10, 1],
        IpAddr::V6(v6) => v6.segments()[..2] == [0xfd00, 1],
    };
    if is_behind { PortSide::Protected } else { PortSide::Wire }
}

/// A frame that left by a port goes from the port to the neighbour, and frames on the wire are ESP.
fn check(frame: &[u8], place: usize) {
    assert_eq!(frame[..6], NEIGHBOUR.0);
    assert_eq!(frame[6..12], PORTS[place].0);
    if place == 1 {
        assert_eq!(frame[12..14], [8, 0], "the tunnel is over IPv4");
        assert_eq!(frame[14 + 9], ESP, "plain text leaves");
    }
}
