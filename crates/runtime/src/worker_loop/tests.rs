//! A worker with a device between engine and wire; the other gateway has none and cannot tell.

mod af_xdp;
mod queues;

use std::{
    io::{self, Write as _},
    os::{
        fd::{AsFd as _, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::{Mutex, mpsc},
};

use uxfrm_engine::{
    CaptureReader, CaptureRequest, CaptureSides, DeviceId, Direction, Offload, OffloadKind, Policy,
    SaConfig, Settings, TapFilter, WireHeaders,
};
use uxfrm_io::{Accepts, Memory, Transmitted};
use uxfrm_offload::{FunctionId, ModelNic, NicSetup, Nics, Profile};
use uxfrm_packet::PacketBuf;
use uxfrm_testkit::{FIRST_SPI, IpsecSetup, PairDirection, TestGateway, TestGatewayPair, packets};

use super::*;
use crate::{DeviceEgress, DeviceLoop, EventLoop as _};

const BYTES: &[u8] = b"nobody else may read this";

/// Packets that a memory port holds.
const ROOM: usize = 4096;

/// A memory port that is always readable.
#[derive(Debug)]
struct Ready {
    port: Memory,
    readable: UnixStream,
    _writer: UnixStream,
}

impl Ready {
    fn pair() -> (Box<Self>, Memory) {
        let (port, far) = Memory::pair(ROOM);
        let (readable, mut writer) = UnixStream::pair().unwrap();
        writer.write_all(&[1]).unwrap();
        (Box::new(Self { port, readable, _writer: writer }), far)
    }
}

impl Port for Ready {
    fn receive(&mut self, pool: &mut Pool, into: &mut Batch) -> io::Result<usize> {
        self.port.receive(pool, into)
    }

    fn transmit(&mut self, batch: &mut Batch, pool: &mut Pool) -> Transmitted {
        self.port.transmit(batch, pool)
    }

    fn accepts(&self) -> Accepts {
        self.port.accepts()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.readable.as_fd())
    }
}

/// The left gateway's worker behind a device, the far ends of its ports, and the right gateway.
struct Site {
    worker_loop: WorkerLoop,
    device: DeviceLoop,
    host: Memory,
    /// The network's side of the worker.
    wire: Memory,
    /// Output of the device.
    out: Memory,
    right: TestGateway,
    pool: Pool,
}

impl Site {
    fn new(kind: OffloadKind) -> Self {
        let settings = Settings { headers: WireHeaders::UdpSocket, ..Settings::default() };
        let wrapping = IpsecSetup { settings, ..IpsecSetup::tunnel4() };
        let TestGatewayPair { mut left, mut right, .. } = TestGatewayPair::without_sas(&wrapping);
        let profile = Profile::by_name("unlimited").unwrap();
        let nic = ModelNic::new(NicSetup::new(profile, DeviceId(7))).unwrap();
        let (nic, nics) = (Arc::new(Mutex::new(nic)), Nics::default());
        assert!(nics.add_function("nic0", &nic, FunctionId(0)));
        left.database.set_devices(Box::new(nics.clone()));
        let device_ports = DevicePorts::new(nics);
        for (direction, way, spi) in [
            (Direction::Out, PairDirection::LeftToRight, FIRST_SPI),
            (Direction::In, PairDirection::RightToLeft, FIRST_SPI + 1),
        ] {
            let offload = Some(Offload { kind, device: "nic0".to_owned(), direction });
            left.add_sa(SaConfig { offload: offload.clone(), ..wrapping.sa(way, spi) });
            right.add_sa(wrapping.sa(way, spi));
            let offload = offload.filter(|_| kind == OffloadKind::Packet);
            let policy = Policy { offload, ..wrapping.policy(direction, way) };
            left.database.apply(left.now, |change| change.update_policy(policy)).unwrap();
        }
        let ((near_host, host), (near_wire, wire)) = (Ready::pair(), Ready::pair());
        let (network, out) = Memory::pair(ROOM);
        let other = || Box::new(Memory::pair(1).0);
        let events = Events::new(mpsc::channel().0, Poller::new().unwrap().waker());
        let wires = WirePorts::new(near_wire, other(), Vec::new());
        let worker_loop = WorkerLoop::new(near_host, wires, left.worker, events)
            .unwrap()
            .with_devices(&device_ports);
        let exit = DeviceEgress::Wire(WirePorts::new(Box::new(network), other(), Vec::new()));
        let device = DeviceLoop::new(&device_ports, nic, vec![DeviceId(7)], exit).unwrap();
        Self { worker_loop, device, host, wire, out, right, pool: Pool::new() }
    }

    /// Puts a packet into a port, runs worker and device once, and returns the other port's
    /// packets.
    fn turn(&mut self, into: PortSide, packet: PacketBuf) -> Vec<PacketBuf> {
        let (from, to) = match into {
            PortSide::Host => (&mut self.host, &mut self.out),
            PortSide::Wire => (&mut self.wire, &mut self.host),
        };
        let mut batch: Batch = std::iter::once(packet).collect();
        assert_eq!(from.transmit(&mut batch, &mut self.pool).packets, 1);
        self.worker_loop.turn().unwrap();
        self.device.turn().unwrap();
        self.worker_loop.turn().unwrap();
        to.receive(&mut self.pool, &mut batch).unwrap();
        batch.drain().collect()
    }
}

/// Origin of a packet.
enum PortSide {
    Host,
    Wire,
}

fn there() -> PacketBuf {
    packets::udp("10.1.0.1:7", "10.2.0.1:9", BYTES)
}

fn back() -> PacketBuf {
    packets::udp("10.2.0.1:9", "10.1.0.1:7", BYTES)
}

#[test]
fn device_encrypts_outbound_and_decrypts_inbound() {
    for kind in [OffloadKind::Packet, OffloadKind::Crypto] {
        let mut site = Site::new(kind);
        for _ in 0..3 {
            let sealed = site.turn(PortSide::Host, there());
            assert_eq!(sealed.len(), 1, "{kind:?}");
            assert!(!sealed[0].bytes().windows(BYTES.len()).any(|bytes| bytes == BYTES));
            let opened = site.right.inbound(sealed);
            assert_eq!(opened[0].bytes(), there().bytes());
            let sealed = site.right.outbound(vec![back()]).0.remove(0);
            let payload = sealed.bytes().to_vec();
            let opened = site.turn(PortSide::Wire, PacketBuf::from_slice(&payload));
            assert_eq!(opened[0].bytes(), back().bytes());
        }
        assert!(site.turn(PortSide::Wire, back()).is_empty(), "plain");
        assert_eq!(site.worker_loop.worker().drops().of(DropReason::InDeviceUnmarked) > 0, {
            kind == OffloadKind::Packet
        });
    }
}

#[test]
fn watched_packets_are_seen_at_both_sides_of_engine_and_device() {
    let mut site = Site::new(OffloadKind::Packet);
    let sides = CaptureSides { plain: true, wire: true, drops: true };
    let filter = TapFilter::default();
    let request = CaptureRequest { sides, filter, snaplen: 65_536, per_second: 1000 };
    let reader = CaptureReader::new(&[site.worker_loop.worker().tap()], request);
    let points =
        || -> Vec<_> { std::iter::from_fn(|| reader.take()).map(|packet| packet.point).collect() };
    site.turn(PortSide::Host, there());
    assert_eq!(points(), [CapturePoint::Plain(PacketWay::Out)], "the device sends the rest");
    let sealed = site.right.outbound(vec![back()]).0.remove(0);
    site.turn(PortSide::Wire, PacketBuf::from_slice(sealed.bytes()));
    let (wire, plain) = (CapturePoint::Wire(PacketWay::In), CapturePoint::Plain(PacketWay::In));
    assert_eq!(points(), [wire, plain]);
    site.worker_loop.devices = None;
    site.turn(PortSide::Host, there());
    assert_eq!(points(), [CapturePoint::Plain(PacketWay::Out), CapturePoint::Drop(PacketWay::Out)]);
}

#[test]
fn packet_for_missing_device_is_dropped() {
    let mut site = Site::new(OffloadKind::Packet);
    site.worker_loop.devices = None;
    assert!(site.turn(PortSide::Host, there()).is_empty());
    assert_eq!(site.worker_loop.worker().drops().of(DropReason::OutDeviceGone), 1);
}

/// Ports tell numbers only: they are recorded without a packet.
#[test]
fn refused_packets_are_counted_and_recorded_by_cause() {
    let mut site = Site::new(OffloadKind::Packet);
    let mut refused = RefusedPacket::default();
    (refused.busy, refused.too_big, refused.unsupported, refused.failed) = (1, 2, 3, 4);
    refused.errno = Some(1);
    site.worker_loop.count(&refused);
    let worker = site.worker_loop.worker();
    let expected =
        [(DropReason::PortFull, 1), (DropReason::PortTooBig, 2), (DropReason::PortRefused, 7)];
    assert_eq!(expected.map(|(reason, _)| (reason, worker.drops().of(reason))), expected);
    let records = worker.drop_records().take();
    assert_eq!(records.iter().map(|it| (it.reason, it.packets)).collect::<Vec<_>>(), expected);
    assert!(records.iter().all(|record| record.packet.is_none()));
    assert_eq!(records[2].errno, Some(1), "what the kernel said");
}

/// Far more packets than the device's ring holds, while its thread does not run.
#[test]
fn full_device_ring_keeps_burst_without_loss() {
    const BURST: usize = 3000;
    for kind in [OffloadKind::Packet, OffloadKind::Crypto] {
        for side in [PortSide::Host, PortSide::Wire] {
            let mut site = Site::new(kind);
            let plain = match side {
                PortSide::Host => (0..BURST).map(|_| there()).collect(),
                PortSide::Wire => site.right.outbound((0..BURST).map(|_| back()).collect()).0,
            };
            let burst: Vec<_> = plain.iter().flat_map(uxfrm_testkit::split_burst).collect();
            let burst = burst.iter().map(|packet| PacketBuf::from_slice(packet.bytes()));
            let (from, to) = match side {
                PortSide::Host => (&mut site.host, &mut site.out),
                PortSide::Wire => (&mut site.wire, &mut site.host),
            };
            for some in burst.collect::<Vec<_>>().chunks(uxfrm_packet::BATCH) {
                let copies = some.iter().map(|packet| PacketBuf::from_slice(packet.bytes()));
                let sent = from.transmit(&mut copies.collect(), &mut site.pool);
                assert_eq!(sent.refused.packets(), 0);
            }
            let (turns, mut passed) = (BURST / uxfrm_packet::BATCH, 0);
            while !is_full(&site.worker_loop) {
                site.worker_loop.turn().unwrap();
            }
            for _ in 0..8 * turns {
                site.device.turn().unwrap();
                site.worker_loop.turn().unwrap();
                let mut batch = Batch::new();
                while to.receive(&mut site.pool, &mut batch).unwrap() > 0 {
                    passed += batch.drain().map(|packet| count(&packet)).sum::<usize>();
                }
                if passed == BURST {
                    break;
                }
            }
            assert_eq!(passed, BURST, "{kind:?}");
            for drops in [site.worker_loop.worker().drops(), site.device.drops()] {
                assert_eq!(drops.of(DropReason::PortFull), 0, "{kind:?}");
                assert_eq!(drops.of(DropReason::InTooOld), 0, "{kind:?}");
            }
        }
    }
}

fn is_full(worker_loop: &WorkerLoop) -> bool {
    worker_loop.backpressure != Backpressure::default()
}

fn count(packet: &PacketBuf) -> usize {
    uxfrm_testkit::split_burst(packet).len()
}
