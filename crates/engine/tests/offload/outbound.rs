//! Which packets a device gets, in which form.

use std::{collections::HashMap, sync::Arc, time::Duration};

use uxfrm_engine::{
    AcquireView, Action, Direction, DropReason, Event, Family, KeyManagers, LifetimeLimits, Mode,
    OffloadKind, OffloadOrder, OffloadTask, OffloadedPacket, Policy, Priority, Reqid, SaConfig,
    Segmentation, Settings, SoftHardLimit, Spi, UdpEncapKind,
};
use uxfrm_packet::{PacketBuf, Protocol, Segments};
use uxfrm_testkit::{FIRST_SPI, IpsecSetup, PairDirection, TestGateway, TestGatewayPair, packets};

use crate::nic::{NIC0, Nics, offload};

const PACKET: OffloadKind = OffloadKind::Packet;
const CRYPTO: OffloadKind = OffloadKind::Crypto;

fn datagram(len: usize) -> PacketBuf {
    packets::udp("10.1.0.1:7", "10.2.0.1:9", &vec![b'x'; len])
}

/// The same packet with four bytes of IPv4 options.
fn with_options(packet: &PacketBuf) -> PacketBuf {
    let mut bytes = packet.bytes().to_vec();
    bytes.splice(20..20, [1, 1, 1, 0]);
    bytes[0] = 0x46;
    let len = u16::try_from(bytes.len()).unwrap();
    bytes[2..4].copy_from_slice(&len.to_be_bytes());
    uxfrm_packet::ipv4::fill_checksum(&mut bytes).unwrap();
    PacketBuf::from_slice(&bytes)
}

fn policy(setup: &IpsecSetup, device: Option<&str>) -> Policy {
    let offload = device.and_then(|device| offload(PACKET, device, Direction::Out));
    Policy { offload, ..setup.policy(Direction::Out, PairDirection::LeftToRight) }
}

fn state(setup: &IpsecSetup, kind: OffloadKind, device: Option<&str>) -> SaConfig {
    let offload = device.and_then(|device| offload(kind, device, Direction::Out));
    SaConfig { offload, ..setup.sa(PairDirection::LeftToRight, FIRST_SPI) }
}

/// A pair whose left gateway has its outbound policy and state on devices.
fn pair(
    setup: &IpsecSetup,
    kind: OffloadKind,
    on: [Option<&str>; 2],
    segmentation: Segmentation,
) -> (TestGatewayPair, Nics) {
    let (mut pair, nics) = (TestGatewayPair::without_sas(setup), Nics::default());
    nics.tables().segmentation = segmentation;
    pair.left.database.set_devices(Box::new(nics.clone()));
    let policy = policy(setup, on[0]);
    pair.left.database.apply(pair.left.now, |change| change.update_policy(policy)).unwrap();
    pair.left.add_sa(state(setup, kind, on[1]));
    pair.right.add_sa(setup.sa(PairDirection::LeftToRight, FIRST_SPI));
    (pair, nics)
}

fn packet_kind() -> (TestGatewayPair, Nics) {
    pair(&IpsecSetup::tunnel4(), PACKET, [Some("nic0"); 2], Segmentation::Engine)
}

fn crypto_kind(setup: &IpsecSetup) -> (TestGatewayPair, Nics) {
    pair(setup, CRYPTO, [None, Some("nic0")], Segmentation::Engine)
}

/// Sends; nothing leaves for the wire. What is handed over.
fn hand(gateway: &mut TestGateway, packets: Vec<PacketBuf>) -> Vec<OffloadedPacket> {
    let (wire, host) = gateway.outbound(packets);
    assert_eq!((wire.len(), host.len()), (0, 0));
    gateway.assert_packets_accounted();
    std::mem::take(&mut gateway.handed)
}

/// What becomes of one packet that is not handed over.
fn refusal(gateway: &mut TestGateway, packet: PacketBuf) -> DropReason {
    assert!(hand(gateway, vec![packet]).is_empty());
    let [(reason, _)] = gateway.reasons()[..] else { panic!("{:?}", gateway.reasons()) };
    reason
}

/// Through the device, over the wire, out of the other gateway.
fn across(pair: &mut TestGatewayPair, nics: &Nics, handed: Vec<OffloadedPacket>) -> Vec<Vec<u8>> {
    let wire = handed.into_iter().map(|handed| nics.encrypt(handed).unwrap());
    let wire = wire.flat_map(|packet| uxfrm_testkit::split_burst(&packet)).collect();
    pair.right.inbound(wire).iter().map(|packet| packet.bytes().to_vec()).collect()
}

#[test]
fn packet_offload_hands_over_plain_packet() {
    let (mut pair, nics) = packet_kind();
    let packets = [datagram(1), datagram(1400 - 28), datagram(40)];
    let expected: Vec<Vec<u8>> = packets.iter().map(|packet| packet.bytes().to_vec()).collect();
    let handed = hand(&mut pair.left, packets.into());
    let over = OffloadOrder { device: NIC0, handle: nics.handle(), task: OffloadTask::Protect };
    assert!(handed.iter().all(|handed| handed.handover == over));
    let got: Vec<Vec<u8>> = handed.iter().map(|one| one.packet.bytes().to_vec()).collect();
    assert_eq!(got, expected);
    assert_eq!(pair.left.worker.outward().sent, 3);
    let sa = pair.left.database.snapshot().sad.iter().next().cloned().unwrap();
    assert_eq!((sa.usage().packets(), sa.sequence().last()), (0, 0), "the device counts");
}

#[test]
fn policy_and_state_must_be_on_the_same_device() {
    let setup = IpsecSetup::tunnel4();
    for on in [
        [Some("nic0"), Some("nic1")],
        [Some("nic1"), Some("nic0")],
        [Some("nic0"), None],
        [None, Some("nic0")],
    ] {
        let (mut pair, _) = pair(&setup, PACKET, on, Segmentation::Engine);
        let reason = refusal(&mut pair.left, datagram(1));
        assert_eq!(reason, DropReason::OutDeviceMismatch, "{on:?}");
        // Key managers who listen are asked for the right one, as in Linux.
        pair.left.listen([]);
        assert!(hand(&mut pair.left, vec![datagram(1)]).is_empty());
        assert!(matches!(pair.left.events[..], [Event::Acquire { .. }]), "{on:?}");
        assert_eq!(pair.left.worker.waiting(), 1);
    }
    let (mut crypto, _) = pair(&setup, CRYPTO, [Some("nic0"); 2], Segmentation::Engine);
    assert_eq!(refusal(&mut crypto.left, datagram(1)), DropReason::OutDeviceMismatch);
}

#[test]
fn refused_larval_sa_drops_queued_packets() {
    let setup = IpsecSetup::tunnel4();
    let mut left = TestGatewayPair::without_sas(&setup).left;
    left.database.set_devices(Box::new(Nics::default()));
    let policy = policy(&setup, Some("nic0"));
    left.database.apply(left.now, |change| change.update_policy(policy)).unwrap();
    left.listen([]);
    assert!(hand(&mut left, vec![datagram(1)]).is_empty());
    let [Event::Acquire { wanted, .. }] = left.events[..] else { panic!("{:?}", left.events) };
    assert_eq!(left.worker.waiting(), 1);
    left.events.clear();
    let second = Duration::from_secs(1);
    let refused = Arc::new(HashMap::from([(wanted, left.now.plus(second))]));
    let key_managers = KeyManagers::Listening;
    left.database.set_acquires(AcquireView { key_managers, refused, ..AcquireView::default() });
    assert!(hand(&mut left, vec![datagram(1)]).is_empty());
    assert_eq!(left.reasons(), [(DropReason::OutDeviceRefused, 2)]);
    assert_eq!((left.worker.waiting(), left.events.len()), (0, 0));
    left.now = left.now.plus(second);
    assert!(hand(&mut left, vec![datagram(1)]).is_empty());
    assert_eq!((left.worker.waiting(), left.events.len()), (1, 1), "asked anew");
}

#[test]
fn sa_on_right_device_is_found_among_others() {
    let (mut pair, nics) = packet_kind();
    let right = nics.handle();
    for (spi, device) in [(1, Some("nic1")), (2, None)] {
        let id = uxfrm_engine::SaId {
            spi: Spi(spi),
            ..state(&IpsecSetup::tunnel4(), PACKET, device).id
        };
        pair.left.add_sa(SaConfig { id, ..state(&IpsecSetup::tunnel4(), PACKET, device) });
    }
    let handed = hand(&mut pair.left, vec![datagram(1)]);
    assert_eq!(handed[0].handover.handle, right, "younger ones elsewhere don't count");
}

#[test]
fn packet_offload_drops_unsuitable_packets() {
    let fragment = || packets::fragments(datagram(64).bytes(), 48).remove(0);
    for (what, packet) in [
        ("options", with_options(&datagram(1))),
        ("a fragment", fragment()),
        ("too big without DF", datagram(1480)),
    ] {
        let (mut pair, _) = packet_kind();
        assert_eq!(refusal(&mut pair.left, packet), DropReason::OutDeviceUnfit, "{what}");
    }
    let v6 = IpsecSetup::new(Mode::Tunnel, Family::V6, Family::V4);
    let (mut six, _) = pair(&v6, PACKET, [Some("nic0"); 2], Segmentation::Engine);
    let (from, to) = v6.hosts(PairDirection::LeftToRight);
    // Hop-by-hop options: next header UDP, 8 bytes, PadN.
    let hop =
        packets::ip(from, to, Protocol(0), &[17, 0, 1, 4, 0, 0, 0, 0, 0, 7, 0, 9, 0, 8, 0, 0]);
    let reason = refusal(&mut six.left, PacketBuf::from_slice(&hop));
    assert_eq!(reason, DropReason::OutDeviceUnfit);
    let fits = hand(&mut six.left, vec![packets::udp("[fd00:1::1]:7", "[fd00:2::1]:9", b"x")]);
    assert_eq!(fits.len(), 1);
}

#[test]
fn pmtu_errors_precede_offload() {
    for kind in [PACKET, CRYPTO] {
        let policy = (kind == PACKET).then_some("nic0");
        let on = [policy, Some("nic0")];
        let (mut pair, _) = pair(&IpsecSetup::tunnel4(), kind, on, Segmentation::Device);
        let (wire, host) = pair.left.outbound(vec![packets::dont_fragment(datagram(1480))]);
        assert_eq!((wire.len(), host.len(), pair.left.handed.len()), (0, 1, 0));
        assert_eq!(pair.left.reasons(), [(DropReason::OutTooBig, 1)]);
    }
}

/// IPv6 may be 1280 bytes long wherever it goes (RFC 8200 §5), in fragments if need be; no device
/// makes any.
#[test]
fn ipv6_above_mtu_is_not_offloaded() {
    for kind in [PACKET, CRYPTO] {
        let mut v6 = IpsecSetup::new(Mode::Tunnel, Family::V6, Family::V4);
        v6.settings.mtu = 1300;
        let policy = (kind == PACKET).then_some("nic0");
        let (mut six, _) = pair(&v6, kind, [policy, Some("nic0")], Segmentation::Device);
        let longest = packets::udp("[fd00:1::1]:7", "[fd00:2::1]:9", &[7; 1280 - 48]);
        let (wire, host) = six.left.outbound(vec![longest]);
        assert_eq!((host.len(), six.left.handed.len()), (0, 0), "{kind:?}");
        match kind {
            PACKET => assert_eq!(six.left.reasons(), [(DropReason::OutDeviceUnfit, 1)]),
            CRYPTO => assert_eq!(six.right.inbound(wire)[0].len(), 1280),
        }
    }
}

#[test]
fn super_packet_is_segmented_in_order_or_handed_over_whole() {
    let long = || packets::tcp_super("10.1.0.1:7", "10.2.0.1:9", &[7; 4500], 1000);
    let (mut cut, _) = packet_kind();
    let lens: Vec<usize> =
        hand(&mut cut.left, vec![long()]).iter().map(|handed| handed.packet.len()).collect();
    assert_eq!(lens, [1040, 1040, 1040, 1040, 540]);
    let mut fragments: Vec<u32> = Vec::new();
    for handed in hand(&mut cut.left, vec![long(), long()]) {
        assert_eq!(handed.packet.segments, Segments::One);
        let tcp = &handed.packet.bytes()[24..28];
        fragments.push(u32::from_be_bytes(tcp.try_into().unwrap()));
    }
    assert_eq!(fragments[..5], [1000, 2000, 3000, 4000, 5000]);
    assert_eq!(fragments[5..], fragments[..5]);
    let on = [Some("nic0"); 2];
    let (mut whole, _) = pair(&IpsecSetup::tunnel4(), PACKET, on, Segmentation::Device);
    let handed = hand(&mut whole.left, vec![long()]);
    assert_eq!(handed.len(), 1);
    assert_eq!(handed[0].packet.segments, Segments::Tcp { mss: 1000 });
    assert_eq!(whole.left.worker.outward().sent, 5);
}

#[test]
fn crypto_offload_leaves_only_encryption() {
    for setup in [
        IpsecSetup::tunnel4(),
        IpsecSetup::new(Mode::Tunnel, Family::V6, Family::V4),
        IpsecSetup::transport4(),
        IpsecSetup { flags: uxfrm_engine::SaFlags::ESN, ..IpsecSetup::tunnel4() },
        IpsecSetup { suite: uxfrm_testkit::EspSuite::CbcSha256, ..IpsecSetup::tunnel4() },
    ] {
        let (mut pair, nics) = crypto_kind(&setup);
        let (from, to) = setup.hosts(PairDirection::LeftToRight);
        let packets = || [(); 2].map(|()| packets::echo(from, to, b"ping"));
        let expected: Vec<Vec<u8>> = packets().iter().map(|one| one.bytes().to_vec()).collect();
        for round in 0..2 {
            let handed = hand(&mut pair.left, packets().into());
            let sequences: Vec<u64> = handed.iter().map(|one| sequence(one.handover)).collect();
            assert_eq!(sequences, [round * 2 + 1, round * 2 + 2]);
            assert_eq!(across(&mut pair, &nics, handed), expected, "{setup:?}");
        }
        let sa = pair.left.database.snapshot().sad.iter().next().cloned().unwrap();
        assert_eq!((sa.usage().packets(), sa.sequence().last()), (4, 4), "the engine counts");
        pair.assert_accounts();
    }
}

fn sequence(handover: OffloadOrder) -> u64 {
    match handover.task {
        OffloadTask::Encrypt { sequence } | OffloadTask::Segment { sequence, .. } => sequence,
        OffloadTask::Protect => panic!("{handover:?}"),
    }
}

#[test]
fn crypto_offload_burst_has_consecutive_numbers() {
    let (mut pair, nics) = crypto_kind(&IpsecSetup::tunnel4());
    let long = packets::tcp_super("10.1.0.1:7", "10.2.0.1:9", &[7; 4500], 1000);
    let handed = hand(&mut pair.left, vec![datagram(1), long, datagram(2)]);
    let sequences: Vec<u64> = handed.iter().map(|one| sequence(one.handover)).collect();
    assert_eq!(sequences, [1, 2, 7]);
    let lens: Vec<usize> = across(&mut pair, &nics, handed).iter().map(Vec::len).collect();
    assert_eq!(lens, [29, 1040, 1040, 1040, 1040, 540, 30]);
    assert_eq!(pair.right.reasons(), []);
}

#[test]
fn crypto_offload_super_packet_goes_whole_to_segmenting_device() {
    let long = || packets::tcp_super("10.1.0.1:7", "10.2.0.1:9", &[7; 4500], 1000);
    let packets = SoftHardLimit { soft: u64::MAX, hard: 8 };
    let limits = LifetimeLimits { packets, ..LifetimeLimits::default() };
    for (setup, counts) in [
        (IpsecSetup::tunnel4(), [5, 5].as_slice()),
        (IpsecSetup { limits, ..IpsecSetup::tunnel4() }, &[5, 2]),
    ] {
        let on = [None, Some("nic0")];
        let (mut pair, _) = pair(&setup, CRYPTO, on, Segmentation::Device);
        let handed = hand(&mut pair.left, vec![long(), datagram(1), long()]);
        let told: Vec<_> = handed.iter().map(|one| (one.handover.task, one.packet.len())).collect();
        let whole = |sequence, count| (OffloadTask::Segment { sequence, count }, long().len());
        assert_eq!((told[0], told[2]), (whole(1, 5), whole(7, counts[1])));
        assert!(matches!(told[1].0, OffloadTask::Encrypt { sequence: 6 }));
        assert_eq!(handed[0].packet.segments, Segments::Tcp { mss: 1000 });
        let sent = u64::from(counts[0] + 1 + counts[1]);
        assert_eq!(pair.left.worker.outward().sent, sent);
    }
}

#[test]
fn crypto_offload_falls_back_for_unsuitable_packets() {
    let (mut pair, nics) = crypto_kind(&IpsecSetup::tunnel4());
    let packets = vec![datagram(1), with_options(&datagram(2)), datagram(3), datagram(1480)];
    let mut expected: Vec<usize> = packets.iter().map(|packet| packet.len()).collect();
    expected.sort_unstable();
    let (wire, _) = pair.left.outbound(packets);
    let handed = std::mem::take(&mut pair.left.handed);
    assert_eq!((wire.len(), handed.len()), (3, 2), "the long one in two fragments");
    let mut all =
        handed.into_iter().map(|handed| nics.encrypt(handed).unwrap()).collect::<Vec<_>>();
    all.extend(wire);
    let mut lens: Vec<usize> = pair.right.inbound(all).iter().map(|packet| packet.len()).collect();
    lens.sort_unstable();
    assert_eq!(lens, expected);
    assert_eq!(pair.right.reasons(), []);
    pair.assert_accounts();
}

#[test]
fn crypto_offload_of_esp_in_udp_uses_software() {
    let encap = Some(UdpEncapKind::Esp);
    let (mut pair, _) = crypto_kind(&IpsecSetup { encap, ..IpsecSetup::tunnel4() });
    assert_eq!(pair.left_to_right(vec![datagram(1)]).len(), 1);
    assert!(pair.left.handed.is_empty());
}

#[test]
fn packet_offload_refuses_nested_sas() {
    let setup = IpsecSetup::tunnel4();
    let (mut pair, _) = packet_kind();
    let mut policy = policy(&setup, Some("nic0"));
    let outer = uxfrm_engine::Template { reqid: Reqid(2), ..policy.templates[0] };
    policy.templates.push(outer);
    pair.left.database.apply(pair.left.now, |change| change.update_policy(policy)).unwrap();
    let id = uxfrm_engine::SaId { spi: Spi(77), ..state(&setup, PACKET, None).id };
    pair.left.add_sa(SaConfig { id, reqid: Reqid(2), ..state(&setup, PACKET, Some("nic0")) });
    assert_eq!(refusal(&mut pair.left, datagram(1)), DropReason::OutDeviceUnfit);
}

#[test]
fn offloaded_policy_precedes_software_policies() {
    let setup = IpsecSetup::tunnel4();
    let (mut pair, _) = packet_kind();
    let mut first = policy(&setup, None);
    (first.priority, first.action) = (Priority(1), Action::Block);
    first.selector.protocol = 17;
    pair.left.add_policy(first);
    assert_eq!(hand(&mut pair.left, vec![datagram(1)]).len(), 1);
}

#[test]
fn socket_port_never_offloads() {
    let headers = uxfrm_engine::WireHeaders::UdpSocket;
    let settings = Settings { headers, ..Settings::default() };
    let (mut pair, nics) = crypto_kind(&IpsecSetup { settings, ..IpsecSetup::tunnel4() });
    let handed = hand(&mut pair.left, vec![datagram(1)]);
    assert_eq!(across(&mut pair, &nics, handed).len(), 1, "a whole packet");
}
