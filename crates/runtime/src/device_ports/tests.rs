//! Packets that workers hand to devices.

use uxfrm_engine::{Direction, Offload, OffloadKind, SaConfig};
use uxfrm_io::{PathMtu, poll::Poller};
use uxfrm_offload::{FunctionId, NicSetup, Profile};
use uxfrm_packet::{Segments, UdpPath};
use uxfrm_testkit::{FIRST_SPI, IpsecSetup, PairDirection, TestGateway, TestGatewayPair};

use super::*;

const DEVICE: u32 = FIRST_SPI;
const SOFTWARE: u32 = FIRST_SPI + 1;
const BYTES: usize = 40;

/// A device with one SA, and a worker's slot.
fn slot(left: &mut TestGateway, wrapping: &IpsecSetup) -> PortSlot {
    let profile = Profile::by_name("unlimited").unwrap();
    let nic = ModelNic::new(NicSetup::new(profile, DeviceId(7))).unwrap();
    let (nic, nics) = (Arc::new(Mutex::new(nic)), Nics::default());
    assert!(nics.add_function("nic0", &nic, FunctionId(0)));
    left.database.set_devices(Box::new(nics.clone()));
    let (kind, direction) = (OffloadKind::Packet, Direction::In);
    let offload = Some(Offload { kind, device: "nic0".to_owned(), direction });
    left.add_sa(SaConfig { offload, ..wrapping.sa(PairDirection::RightToLeft, DEVICE) });
    let shared_ports = DevicePorts::new(nics);
    let waker = || Poller::new().unwrap().waker();
    let mut slot = shared_ports.add_worker(waker());
    let _port = shared_ports.add_device(nic, vec![DeviceId(7)], waker());
    slot.refresh_devices(&mut Pool::new());
    slot
}

fn burst(states: &[u32]) -> PacketBuf {
    let esp = |spi: &u32| [&spi.to_be_bytes()[..], &[7; BYTES - 4]].concat();
    let mut burst = PacketBuf::from_slice(&states.iter().flat_map(esp).collect::<Vec<_>>());
    burst.segments = Segments::Burst { stride: u16::try_from(BYTES).unwrap() };
    burst.udp = Some(UdpPath {
        local: "192.0.2.1:4500".parse().unwrap(),
        remote: "192.0.2.2:4500".parse().unwrap(),
        tos: 0,
        dont_fragment: false,
    });
    burst
}

/// SPIs of whole single packets.
fn states(packets: &[PacketBuf]) -> Vec<u32> {
    let spi = |packet: &PacketBuf| {
        assert_eq!((packet.udp, packet.segments), (None, Segments::One));
        u32::from_be_bytes(*packet.bytes()[28..].first_chunk().unwrap())
    };
    packets.iter().map(spi).collect()
}

/// As with two SAs between the same addresses and ports of two gateways.
#[test]
fn burst_of_several_sas_is_split_between_device_and_engine() {
    let wrapping = IpsecSetup::tunnel4();
    let mut left = TestGatewayPair::without_sas(&wrapping).left;
    let mut slot = slot(&mut left, &wrapping);
    let mut pool = Pool::new();
    for order in [[DEVICE, SOFTWARE, DEVICE], [SOFTWARE, DEVICE, DEVICE]] {
        let mut batch: Batch = std::iter::once(burst(&order)).collect();
        assert_eq!(slot.dispatch_offloaded(&mut batch, &mut pool), LostPackets::default());
        let mut its = Vec::new();
        slot.attached[0].port.rings[0].arrived.take(&mut its, &mut pool);
        assert_eq!(states(&its), [DEVICE; 2], "{order:?}");
        assert_eq!(states(batch.as_slice()), [SOFTWARE], "{order:?}");
    }
    let mut batch: Batch = std::iter::once(burst(&[SOFTWARE; 3])).collect();
    assert_eq!(slot.dispatch_offloaded(&mut batch, &mut pool), LostPackets::default());
    assert_eq!((batch.len(), batch.as_slice()[0].len()), (1, 3 * BYTES), "whole");
}

/// An MTU below the minimum is never learned; reporting it every turn would keep workers busy.
#[test]
fn mtu_below_minimum_is_reported_once() {
    let nic = ModelNic::new(NicSetup::new(Profile::by_name("unlimited").unwrap(), DeviceId(7)));
    let (shared_ports, nic) =
        (DevicePorts::new(Nics::default()), Arc::new(Mutex::new(nic.unwrap())));
    let (sender, told) = std::sync::mpsc::channel();
    let events = crate::Events::new(sender, Poller::new().unwrap().waker());
    let lane =
        DeviceLoop::new(&shared_ports, nic, vec![DeviceId(7)], DeviceEgress::Worker).unwrap();
    let mut lane = lane.with_events(events);
    for (to, mtu, times) in [
        ("192.0.2.1", 551, 1),
        ("192.0.2.1", 550, 1),
        ("192.0.2.1", 552, 3),
        ("2001:db8::1", 1279, 1),
        ("2001:db8::1", 1280, 3),
    ] {
        (0..3).for_each(|_turn| lane.report_pmtu(PathMtu { to: to.parse().unwrap(), mtu }));
        assert_eq!(told.try_iter().count(), times, "{to} {mtu}");
    }
}
