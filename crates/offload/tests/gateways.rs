//! Two gateways, each with a model NIC between it and the wire: the engine's half of offload and
//! the device's, together.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

use std::sync::{Arc, Mutex, MutexGuard};

use uxfrm_engine::{
    DeviceId, Direction, DropReason, Event, Handle, HostAddresses, LifetimeLimits, Mark, Offload,
    OffloadKind, ReceivedPacket, SaFlags, Settings, SoftHardLimit,
};
use uxfrm_offload::{
    Fault, FunctionId, LinkState, ModelNic, NicDrop, NicQueues, NicSetup, Nics, Profile,
};
use uxfrm_packet::{Batch, PacketBuf, Pool};
use uxfrm_testkit::{
    FIRST_SPI, IpsecSetup, PairDirection, PlaintextDetector, TestGateway, packets,
};

const NIC: DeviceId = DeviceId(7);
const MARKER: &[u8] = b"plaintext must not leave";

/// A gateway and its device.
struct Site {
    gateway: TestGateway,
    nics: Nics,
    nic: Arc<Mutex<ModelNic>>,
    pool: Pool,
    queues: NicQueues,
}

impl Site {
    fn new(wrapping: &IpsecSetup, way: PairDirection, profile: &str) -> Self {
        let addresses: HostAddresses =
            [wrapping.gateways(way).0, wrapping.hosts(way).0].into_iter().collect();
        let mut gateway = TestGateway::new(Settings { addresses, ..wrapping.settings.clone() });
        let nic = ModelNic::new(NicSetup::new(Profile::by_name(profile).unwrap(), NIC)).unwrap();
        let (queues, nic, nics) = (nic.queues(), Arc::new(Mutex::new(nic)), Nics::default());
        assert!(nics.add_function("nic0", &nic, FunctionId::PHYSICAL));
        gateway.database.set_devices(Box::new(nics.clone()));
        Self { gateway, nics, nic, pool: Pool::new(), queues }
    }

    fn nic(&self) -> MutexGuard<'_, ModelNic> {
        self.nic.lock().unwrap()
    }

    fn add_states(
        &mut self,
        wrapping: &IpsecSetup,
        way: PairDirection,
        kind: OffloadKind,
        spi: u32,
    ) {
        let back = if way == PairDirection::LeftToRight {
            PairDirection::RightToLeft
        } else {
            PairDirection::LeftToRight
        };
        for (of, direction) in [(way, Direction::Out), (back, Direction::In)] {
            let mut sa = wrapping.sa(of, spi + u32::from(of == PairDirection::RightToLeft));
            sa.offload = Some(Offload { kind, device: "nic0".into(), direction });
            self.gateway.add_sa(sa);
        }
    }

    fn add_policies(&mut self, wrapping: &IpsecSetup, way: PairDirection, kind: OffloadKind) {
        let back = if way == PairDirection::LeftToRight {
            PairDirection::RightToLeft
        } else {
            PairDirection::LeftToRight
        };
        for (direction, of) in
            [(Direction::Out, way), (Direction::In, back), (Direction::Forward, back)]
        {
            let mut policy = wrapping.policy(direction, of);
            if kind == OffloadKind::Packet && direction != Direction::Forward {
                policy.offload = Some(Offload { kind, device: "nic0".into(), direction });
            }
            self.gateway.add_policy(policy);
        }
    }

    fn add_policies_again(&mut self, wrapping: &IpsecSetup, kind: OffloadKind) {
        for (direction, way) in [
            (Direction::Out, PairDirection::LeftToRight),
            (Direction::In, PairDirection::RightToLeft),
        ] {
            let mut policy = wrapping.policy(direction, way);
            policy.offload = Some(Offload { kind, device: "nic0".into(), direction });
            self.gateway.add_policy(policy);
        }
    }

    fn forget(&mut self, wrapping: &IpsecSetup, spi: u32) {
        for (way, spi) in [(PairDirection::LeftToRight, spi), (PairDirection::RightToLeft, spi + 1)]
        {
            let id = wrapping.sa(way, spi).id;
            let now = self.gateway.now;
            let gone =
                |change: &mut uxfrm_engine::Transaction<'_>| change.delete_sa(id, Mark::default());
            self.gateway.database.apply(now, gone).expect("a state");
        }
    }

    /// From the host to the wire, as a lane and the device's thread do.
    fn send(&mut self, plain: Vec<PacketBuf>) -> Vec<PacketBuf> {
        let (through, _) = self.gateway.outbound(plain);
        let mut nic = self.nic.lock().unwrap();
        let (mut wire, now) = (Batch::new(), self.gateway.now);
        nic.transmit(&mut self.gateway.handed, now, &mut self.pool, &mut wire);
        let mut through: Batch = through.into_iter().collect();
        nic.forward(&mut through, now, &mut self.pool, &mut wire);
        wire.drain().collect()
    }

    /// From the wire to the host.
    fn receive(&mut self, wire: Vec<PacketBuf>) -> Vec<PacketBuf> {
        let mut batch: Batch = wire.into_iter().collect();
        let now = self.gateway.now;
        self.nic.lock().unwrap().receive(&mut batch, now, &mut self.pool, &mut self.queues);
        let received: Vec<ReceivedPacket> = self.queues.drain().collect();
        self.gateway.inbound_from_device(received)
    }

    /// What the devices say reaches the database, as the control thread has it.
    fn hear(&mut self) -> Vec<Event> {
        let (mut said, mut events) = (Vec::new(), Vec::new());
        self.nics.take_events(&mut said);
        let told = said.into_iter().filter_map(|(device, event)| Some((device, event.to_hear()?)));
        for (device, event) in told {
            self.gateway.database.hear(device, event, self.gateway.now, &mut events);
        }
        self.gateway.database.publish();
        events
    }

    fn assert_accounts(&self) {
        self.gateway.assert_packets_accounted();
        let nic = self.nic();
        let (outward, inward) = (nic.outward(), nic.inward());
        for traffic in [outward, inward] {
            assert_eq!(traffic.received, traffic.sent + traffic.dropped + traffic.held);
        }
    }
}

fn pair(wrapping: &IpsecSetup, kind: OffloadKind, profile: &str) -> (Site, Site) {
    let mut sites = [PairDirection::LeftToRight, PairDirection::RightToLeft].map(|way| {
        let mut site = Site::new(wrapping, way, profile);
        site.add_policies(wrapping, way, kind);
        site.add_states(wrapping, way, kind, FIRST_SPI);
        site
    });
    let [left, right] = &mut sites;
    assert_eq!(left.nic().states(), (1, 1));
    assert_eq!(right.nic().states(), (1, 1));
    sites.into()
}

fn datagrams(wrapping: &IpsecSetup, way: PairDirection, count: usize) -> Vec<PacketBuf> {
    let (source, destination) = wrapping.hosts(way);
    let end = |address, port| std::net::SocketAddr::new(address, port).to_string();
    let payload = MARKER.repeat(3);
    (0..count).map(|_| packets::udp(&end(source, 5), &end(destination, 9), &payload)).collect()
}

fn bytes(packets: &[PacketBuf]) -> Vec<&[u8]> {
    packets.iter().map(PacketBuf::bytes).collect()
}

#[test]
fn packets_pass_both_ways_in_both_kinds_and_nothing_else_encrypts() {
    let esn = |wrapping| IpsecSetup { flags: SaFlags::ESN, ..wrapping };
    for (wrapping, kind, profile) in [
        (IpsecSetup::tunnel4(), OffloadKind::Packet, "connectx6dx"),
        (esn(IpsecSetup::tunnel4()), OffloadKind::Packet, "unlimited"),
        (IpsecSetup::transport4(), OffloadKind::Packet, "connectx6dx"),
        (IpsecSetup::transport4(), OffloadKind::Crypto, "niantic"),
        (esn(IpsecSetup::tunnel4()), OffloadKind::Crypto, "connectx6dx"),
    ] {
        let (mut left, mut right) = pair(&wrapping, kind, profile);
        let mut listener = PlaintextDetector::new(MARKER);
        for _ in 0..3 {
            let wire = left.send(datagrams(&wrapping, PairDirection::LeftToRight, 50));
            listener.listen(&wire);
            let arrived = right.receive(wire);
            assert_eq!(
                bytes(&arrived),
                bytes(&datagrams(&wrapping, PairDirection::LeftToRight, 50)),
                "{kind:?}"
            );
            let wire = right.send(datagrams(&wrapping, PairDirection::RightToLeft, 50));
            listener.listen(&wire);
            assert_eq!(left.receive(wire).len(), 50, "{kind:?} {:?}", left.gateway.reasons());
        }
        assert_eq!((listener.passed, listener.seen), (300, 0));
        for site in [&left, &right] {
            site.assert_accounts();
            assert_eq!(site.gateway.reasons(), []);
        }
    }
}

#[test]
fn peer_cannot_distinguish_device_from_software() {
    for kind in [OffloadKind::Packet, OffloadKind::Crypto] {
        let wrapping = IpsecSetup::tunnel4();
        let (mut left, _) = pair(&wrapping, kind, "unlimited");
        let mut software = uxfrm_testkit::TestGatewayPair::new(&wrapping);
        let plain = || -> Vec<_> {
            datagrams(&wrapping, PairDirection::LeftToRight, 9)
                .into_iter()
                .map(packets::dont_fragment)
                .collect()
        };
        let wire = left.send(plain());
        let arrived = software.left_to_right(plain()).len();
        assert_eq!(bytes(&wire), bytes(&software.last_on_wire), "{kind:?}");
        assert_eq!(arrived, 9);
        let (wire, _) =
            software.right.outbound(datagrams(&wrapping, PairDirection::RightToLeft, 9));
        assert_eq!(left.receive(wire).len(), 9, "{kind:?}");
    }
}

#[test]
fn super_packets_pass_whole_and_in_order() {
    let wrapping = IpsecSetup::tunnel4();
    for kind in [OffloadKind::Packet, OffloadKind::Crypto] {
        let (mut left, mut right) = pair(&wrapping, kind, "connectx6dx");
        let payload: Vec<u8> = (0..=250).cycle().take(60_000).collect();
        for _ in 0..5 {
            let big = packets::tcp_super("10.1.0.1:7", "10.2.0.1:9", &payload, 1400);
            let wire = left.send(vec![big]);
            let arrived = right.receive(wire.iter().flat_map(uxfrm_testkit::split_burst).collect());
            let joined: Vec<u8> =
                arrived.iter().flat_map(|packet| packet.bytes()[40..].to_vec()).collect();
            assert_eq!(joined, payload, "{kind:?}");
        }
    }
}

#[test]
fn a_rekey_by_a_limit_on_the_device_loses_nothing() {
    let limits = LifetimeLimits {
        packets: SoftHardLimit { soft: 40, hard: 100 },
        ..LifetimeLimits::default()
    };
    let wrapping = IpsecSetup { limits, ..IpsecSetup::tunnel4() };
    let (mut left, mut right) = pair(&wrapping, OffloadKind::Packet, "connectx6dx");
    let (mut spi, mut rekeys, mut arrived) = (FIRST_SPI, 0, 0);
    for _ in 0..60 {
        let wire = left.send(datagrams(&wrapping, PairDirection::LeftToRight, 10));
        arrived += right.receive(wire).len();
        let soft = |event: &Event| matches!(event, Event::SaSoftLimit(_));
        let told = left.hear().iter().filter(|event| soft(event)).count();
        assert!(told <= 1);
        right.hear();
        if told == 1 {
            let old = spi;
            spi += 2;
            rekeys += 1;
            // The receiver first, then the sender; then the old ones go.
            right.add_states(&wrapping, PairDirection::RightToLeft, OffloadKind::Packet, spi);
            left.add_states(&wrapping, PairDirection::LeftToRight, OffloadKind::Packet, spi);
            for (site, way) in
                [(&mut left, PairDirection::LeftToRight), (&mut right, PairDirection::RightToLeft)]
            {
                for (of, spi) in
                    [(PairDirection::LeftToRight, old), (PairDirection::RightToLeft, old + 1)]
                {
                    let id = wrapping.sa(of, spi).id;
                    let now = site.gateway.now;
                    let gone = site
                        .gateway
                        .database
                        .apply(now, |change| change.delete_sa(id, Mark::default()).is_ok());
                    assert!(gone, "{way:?}");
                }
            }
        }
    }
    assert_eq!(arrived, 600);
    assert!(rekeys >= 10, "{rekeys}");
    assert_eq!((left.nic().states(), right.nic().states()), ((1, 1), (1, 1)));
    assert_eq!(left.nic().drops().total() + right.nic().drops().total(), 0);
}

#[test]
fn nothing_passes_hard_limit_and_expire_is_sent() {
    let limits = LifetimeLimits {
        packets: SoftHardLimit { soft: 10, hard: 20 },
        ..LifetimeLimits::default()
    };
    let wrapping = IpsecSetup { limits, ..IpsecSetup::tunnel4() };
    let (mut left, _) = pair(&wrapping, OffloadKind::Packet, "connectx6dx");
    assert_eq!(left.send(datagrams(&wrapping, PairDirection::LeftToRight, 30)).len(), 20);
    assert_eq!(left.nic().drops().of(NicDrop::TxHardLimit), 10);
    let id = wrapping.sa(PairDirection::LeftToRight, FIRST_SPI).id;
    let hard = Event::SaHardLimit(id);
    assert_eq!(left.hear().into_iter().filter(|event| *event == hard).count(), 1);
    assert_eq!(left.nic().states(), (1, 0));
    assert!(left.send(datagrams(&wrapping, PairDirection::LeftToRight, 5)).is_empty());
    left.assert_accounts();
}

#[test]
fn link_flapping_leaks_nothing_and_keeps_counts() {
    let wrapping = IpsecSetup::tunnel4();
    for kind in [OffloadKind::Packet, OffloadKind::Crypto] {
        let (mut left, mut right) = pair(&wrapping, kind, "connectx6dx");
        let mut listener = PlaintextDetector::new(MARKER);
        let (mut given, mut arrived, mut spi) = (0, 0, FIRST_SPI);
        for _ in 0..1000 {
            let mut carry = |left: &mut Site, right: &mut Site| {
                given += 3;
                let wire = left.send(datagrams(&wrapping, PairDirection::LeftToRight, 3));
                listener.listen(&wire);
                arrived += right.receive(wire).len() as u64;
            };
            carry(&mut left, &mut right);
            left.nic.lock().unwrap().set_link(LinkState::Down, &mut left.pool);
            carry(&mut left, &mut right);
            left.hear();
            assert_eq!(left.nic().states(), (0, 0));
            assert_eq!(left.nic().policies(), 0);
            carry(&mut left, &mut right);
            left.nic.lock().unwrap().set_link(LinkState::Up, &mut left.pool);
            left.hear();
            carry(&mut left, &mut right);
            // What an IKE daemon does then.
            spi += 2;
            if kind == OffloadKind::Packet {
                left.add_policies_again(&wrapping, kind);
            }
            left.add_states(&wrapping, PairDirection::LeftToRight, kind, spi);
            right.add_states(&wrapping, PairDirection::RightToLeft, kind, spi);
            right.forget(&wrapping, spi - 2);
        }
        assert_eq!(listener.seen, 0, "{kind:?}");
        assert!(arrived >= 3000, "{arrived}");
        let (engine, nic) = (left.gateway.worker.outward(), left.nic().outward());
        assert_eq!(engine.received, given);
        assert_eq!(engine.received, engine.sent + engine.dropped + engine.held);
        assert_eq!(nic.received, nic.sent + nic.dropped);
        assert_eq!((engine.sent, nic.sent), (nic.received, arrived));
        left.assert_accounts();
    }
}

#[test]
fn failed_decryption_is_counted_by_sa() {
    let wrapping = IpsecSetup::transport4();
    let (mut left, mut right) = pair(&wrapping, OffloadKind::Crypto, "niantic");
    right.nic().inject(Fault::WrongDecryptions(2));
    let wire = left.send(datagrams(&wrapping, PairDirection::LeftToRight, 5));
    assert_eq!(right.receive(wire).len(), 3);
    assert_eq!(right.gateway.reasons(), [(DropReason::InForged, 2)]);
}

#[test]
fn decryption_without_mark_is_matched_by_engine() {
    let wrapping = IpsecSetup::transport4();
    let (mut left, _) = pair(&wrapping, OffloadKind::Crypto, "niantic");
    let mut profile = Profile::by_name("niantic").unwrap();
    profile.marks_received = false;
    let mut right = Site::new(&wrapping, PairDirection::RightToLeft, "niantic");
    *right.nic() = ModelNic::new(NicSetup::new(profile, NIC)).unwrap();
    right.add_policies(&wrapping, PairDirection::RightToLeft, OffloadKind::Crypto);
    right.add_states(&wrapping, PairDirection::RightToLeft, OffloadKind::Crypto, FIRST_SPI);
    let wire = left.send(datagrams(&wrapping, PairDirection::LeftToRight, 5));
    assert_eq!(right.receive(wire).len(), 5, "{:?}", right.gateway.reasons());
}

#[test]
fn names_are_taken_once_and_given_back() {
    let wrapping = IpsecSetup::tunnel4();
    let site = Site::new(&wrapping, PairDirection::LeftToRight, "unlimited");
    assert!(!site.nics.add_function("nic0", &site.nic, FunctionId::PHYSICAL), "taken");
    assert!(
        !site.nics.add_function("nic0v0", &site.nic, FunctionId::of_virtual(0)),
        "no such function"
    );
    assert_eq!(site.nics.names(), [("nic0".to_owned(), NIC)]);
    assert_eq!(site.nics.remove_function("nic0"), Some(NIC));
    assert_eq!(site.nics.remove_function("nic0"), None);
    let mut nics = site.nics.clone();
    let mut sa = wrapping.sa(PairDirection::LeftToRight, 1);
    for (kind, software) in [(OffloadKind::Crypto, true), (OffloadKind::Packet, false)] {
        sa.offload = Some(Offload { kind, device: "nic0".into(), direction: Direction::Out });
        let attached = uxfrm_engine::OffloadDevices::attach_state(&mut nics, &sa);
        assert_eq!(attached.is_ok(), software, "{kind:?}: {attached:?}");
    }
    assert!(uxfrm_engine::OffloadDevices::counts(&mut nics, NIC, Handle(1)).is_none());
}

#[test]
fn recently_removed_sa_is_still_counted() {
    let wrapping = IpsecSetup::tunnel4();
    let (mut left, _) = pair(&wrapping, OffloadKind::Packet, "unlimited");
    let id = wrapping.sa(PairDirection::LeftToRight, FIRST_SPI).id;
    let sad = |left: &Site| left.gateway.database.snapshot().sad.find(id, 0).cloned();
    let place = sad(&left).unwrap().attachment().unwrap();
    assert_eq!(left.send(datagrams(&wrapping, PairDirection::LeftToRight, 5)).len(), 5);
    let counts = |left: &Site| {
        uxfrm_engine::OffloadDevices::counts(&mut left.nics.clone(), place.device, place.handle)
    };
    assert_eq!(counts(&left).unwrap().sent, 5);
    let now = left.gateway.now;
    left.gateway.database.apply(now, |change| change.delete_sa(id, Mark::default())).unwrap();
    assert_eq!(left.nic().states(), (1, 0));
    assert_eq!(counts(&left).unwrap().sent, 5);
    for spi in 0..300 {
        left.add_states(
            &wrapping,
            PairDirection::LeftToRight,
            OffloadKind::Packet,
            0x2000 + 2 * spi,
        );
        left.forget(&wrapping, 0x2000 + 2 * spi);
    }
    assert!(counts(&left).is_none(), "freed by now");
}
