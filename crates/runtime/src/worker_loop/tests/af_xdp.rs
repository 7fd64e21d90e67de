//! A worker whose ESP passes by AF_XDP once the next hop is known.

use uxfrm_io::{Framed, rtnetlink::NeighbourState};
use uxfrm_packet::ethernet::{EtherType, EthernetHeader, MacAddr};
use zerocopy::IntoBytes as _;

use super::*;
use crate::{AfXdpEsp, NextHop, NextHopRequest, NextHopUpdate, ResolvedRoute, ResolverEnds};

const OWN: MacAddr = MacAddr([2; 6]);
const NEIGHBOUR: MacAddr = MacAddr([4; 6]);

struct Site {
    lane: WorkerLoop,
    host: Memory,
    /// The network behind the raw socket, and behind the AF_XDP device.
    wire: Memory,
    device: Memory,
    asked: mpsc::Receiver<NextHopRequest>,
    told: mpsc::Sender<NextHopUpdate>,
    right: TestGateway,
    pool: Pool,
}

impl Site {
    fn new() -> Self {
        let settings = Settings { headers: WireHeaders::UdpSocket, ..Settings::default() };
        let wrapping = IpsecSetup { settings, ..IpsecSetup::tunnel4() };
        let TestGatewayPair { left, right, .. } = TestGatewayPair::new(&wrapping);
        let ((near_host, host), (near_wire, wire)) = (Ready::pair(), Ready::pair());
        let (near_device, device) = Ready::pair();
        let (questions, asked) = mpsc::sync_channel(8);
        let (told, news) = mpsc::channel();
        let guide = ResolverEnds {
            requests: questions,
            waker: Poller::new().unwrap().waker(),
            updates: news,
        };
        let af_xdp = AfXdpEsp::new(Box::new(Framed::new(*near_device)), OWN, guide);
        let wires = WirePorts::new(near_wire, Box::new(Memory::pair(1).0), Vec::new());
        let events = Events::new(mpsc::channel().0, Poller::new().unwrap().waker());
        let wires = wires.with_af_xdp(af_xdp);
        let lane = WorkerLoop::new(near_host, wires, left.worker, events).unwrap();
        Self { lane, host, wire, device, asked, told, right, pool: Pool::new() }
    }

    fn answer(&self) {
        let asked: Vec<_> = self.asked.try_iter().collect();
        let [NextHopRequest::Route(destination)] = asked[..] else { panic!("{asked:?}") };
        let hop = NextHop { side: crate::PortSide::Wire, address: destination };
        let answer = ResolvedRoute::Via { hop, mtu: 1500, source: None };
        self.told.send(NextHopUpdate::Route(destination, answer)).unwrap();
        self.told.send(NextHopUpdate::Neighbour(hop, NeighbourState::Known(NEIGHBOUR))).unwrap();
    }

    /// Sends a packet from the host; returns what left by the raw socket and by the device.
    fn send(&mut self) -> [Vec<PacketBuf>; 2] {
        put(&mut self.host, there(), &mut self.pool);
        self.lane.turn().unwrap();
        [&mut self.wire, &mut self.device].map(|far| take(far, &mut self.pool))
    }
}

fn put(into: &mut Memory, packet: PacketBuf, pool: &mut Pool) {
    let mut batch: Batch = std::iter::once(packet).collect();
    assert_eq!(into.transmit(&mut batch, pool).packets, 1);
}

fn take(from: &mut Memory, pool: &mut Pool) -> Vec<PacketBuf> {
    let mut batch = Batch::new();
    from.receive(pool, &mut batch).unwrap();
    batch.drain().collect()
}

#[test]
fn esp_leaves_by_af_xdp_once_next_hop_is_known() {
    let mut site = Site::new();
    let [by_kernel, by_device] = site.send();
    assert_eq!((by_kernel.len(), by_device.len()), (1, 0));
    assert_eq!(site.right.inbound(by_kernel)[0].bytes(), there().bytes());
    site.answer();
    let [by_kernel, mut by_device] = site.send();
    assert_eq!((by_kernel.len(), by_device.len()), (0, 1));
    let header =
        EthernetHeader { destination: NEIGHBOUR, source: OWN, ether_type: EtherType::IPV4 };
    assert_eq!(by_device[0].bytes()[..14], *header.as_bytes());
    by_device[0].pull(14);
    assert_eq!(site.right.inbound(by_device)[0].bytes(), there().bytes());
    // And the device receives.
    let sealed = site.right.outbound(vec![back()]).0.remove(0);
    let frame = [header.as_bytes(), sealed.bytes()].concat();
    put(&mut site.device, PacketBuf::from_slice(&frame), &mut site.pool);
    site.lane.turn().unwrap();
    assert_eq!(take(&mut site.host, &mut site.pool)[0].bytes(), back().bytes());
}

/// The worker learns of these changes while it runs.
#[test]
fn route_by_other_device_leaves_packet_to_kernel() {
    let mut site = Site::new();
    site.send();
    site.answer();
    assert_eq!(site.send().map(|left| left.len()), [0, 1]);
    site.told.send(NextHopUpdate::RoutesChanged).unwrap();
    assert_eq!(site.send().map(|left| left.len()), [0, 1], "it asks, and goes on");
    let [NextHopRequest::Route(destination)] = site.asked.try_iter().collect::<Vec<_>>()[..] else {
        panic!("not asked");
    };
    site.told.send(NextHopUpdate::Route(destination, ResolvedRoute::NoRoute)).unwrap();
    assert_eq!(site.send().map(|left| left.len()), [1, 0]);
}
