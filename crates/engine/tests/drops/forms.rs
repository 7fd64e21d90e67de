//! What records say of packets in their several forms.

use std::net::SocketAddr;

use uxfrm_engine::{
    Action, Direction, DropReason, DropRecord, EspEnds, IfId, PacketForm, Policy, PolicyKind,
    Priority, Spi, UdpEncapKind,
};
use uxfrm_packet::{PacketBuf, Protocol, UdpPath};
use uxfrm_testkit::{FIRST_SPI, IpsecSetup, PairDirection, TestGateway, TestGatewayPair, packets};

use crate::outbound::datagram;

const WAY: PairDirection = PairDirection::LeftToRight;

fn last(gateway: &TestGateway) -> DropRecord {
    gateway.worker.drop_records().take().pop().unwrap()
}

/// Forged ESP, number 9, as UDP payload or IP packet.
fn esp() -> Vec<u8> {
    [&FIRST_SPI.to_be_bytes()[..], &[0, 0, 0, 9], &[7; 300]].concat()
}

fn in_udp() -> IpsecSetup {
    IpsecSetup { encap: Some(UdpEncapKind::Esp), ..IpsecSetup::tunnel4() }
}

fn ends(ports: Option<(u16, u16)>) -> Option<EspEnds> {
    let (source, destination) = IpsecSetup::tunnel4().gateways(WAY);
    Some(EspEnds { source, destination, spi: Spi(FIRST_SPI), ports })
}

#[test]
fn esp_in_an_ip_packet_is_recorded_from_its_outer_header_on() {
    let mut right = TestGatewayPair::new(&IpsecSetup::tunnel4()).right;
    let (source, destination) = IpsecSetup::tunnel4().gateways(WAY);
    let packet = packets::ip(source, destination, Protocol::ESP, &esp());
    right.inbound(vec![PacketBuf::from_slice(&packet)]);
    let record = last(&right);
    assert_eq!((record.esp, record.sequence), (ends(None), Some(9)));
    let head = record.packet.unwrap();
    assert_eq!((head.form, head.len), (PacketForm::Esp, packet.len()));
    assert_eq!(head.bytes[..28], packet[..28], "its text may be decrypted");
    assert!(!format!("{head:?}").contains("69, 0"), "no bytes in logs");
}

#[test]
fn esp_in_udp_has_ports() {
    let mut right = TestGatewayPair::new(&in_udp()).right;
    let (source, destination) = in_udp().gateways(WAY);
    let len = u16::try_from(8 + esp().len()).unwrap().to_be_bytes();
    let port = 4500_u16.to_be_bytes();
    let upper = [&[0x77, 0x77], &port[..], &len, &[0; 2], &esp()].concat();
    let packet = packets::ip(source, destination, Protocol::UDP, &upper);
    right.inbound(vec![PacketBuf::from_slice(&packet)]);
    let record = last(&right);
    assert_eq!(record.reason, DropReason::InForged);
    assert_eq!((record.esp, record.sequence), (ends(Some((0x7777, 4500))), Some(9)));
    assert_eq!(record.packet.unwrap().form, PacketForm::Esp);
}

#[test]
fn payload_of_a_socket_is_recorded_with_its_path() {
    let mut right = TestGatewayPair::new(&in_udp()).right;
    let (source, destination) = in_udp().gateways(WAY);
    let (local, remote) = (SocketAddr::new(destination, 4500), SocketAddr::new(source, 61_000));
    let path = UdpPath { local, remote, tos: 0, dont_fragment: false };
    let mut packet = PacketBuf::from_slice(&esp());
    packet.udp = Some(path);
    right.inbound(vec![packet]);
    let record = last(&right);
    assert_eq!(record.esp, ends(Some((61_000, 4500))));
    assert_eq!(record.packet.unwrap().form, PacketForm::UdpPayload(path));
}

/// A packet that came by ESP and is dropped plain names the ESP's ends too.
#[test]
fn inner_packet_is_recorded_with_the_outer_ends_of_its_state() {
    let setup = IpsecSetup::tunnel4();
    let mut pair = TestGatewayPair::new(&setup);
    pair.right.database.apply(pair.right.now, |to| to.flush_policies(PolicyKind::Main));
    pair.left_to_right(vec![datagram()]);
    let record = last(&pair.right);
    assert_eq!((record.reason, record.esp), (DropReason::InNoPolicy, ends(None)));
    let head = record.packet.unwrap();
    assert_eq!((head.form, &head.bytes[..]), (PacketForm::Plain, datagram().bytes()));
}

/// A sub policy lets pass, the main one blocks: that one dropped the packet.
#[test]
fn policy_that_blocks_is_named_not_the_first_one() {
    let setup = IpsecSetup::tunnel4();
    let policy = |direction, way, action| Policy {
        action,
        templates: Vec::new(),
        priority: Priority(7),
        if_id: IfId(0),
        ..setup.policy(direction, way)
    };
    for direction in [Direction::Out, Direction::In] {
        let mut left = TestGatewayPair::without_sas(&setup).left;
        let way = match direction {
            Direction::Out => WAY,
            Direction::In | Direction::Forward => PairDirection::RightToLeft,
        };
        let sub = policy(direction, way, Action::Allow);
        left.add_policy(Policy { kind: PolicyKind::Sub, ..sub });
        let main = policy(direction, way, Action::Block);
        left.database.apply(left.now, |to| to.update_policy(main)).unwrap();
        match direction {
            Direction::Out => drop(left.outbound(vec![datagram()])),
            Direction::In | Direction::Forward => {
                drop(left.inbound(vec![packets::udp("10.2.0.1:9", "10.1.0.1:7", b"back")]));
            }
        }
        let index = last(&left).subject.policy.unwrap();
        let snapshot = left.database.snapshot();
        let named = snapshot.spd.iter().find(|entry| entry.index() == index).unwrap();
        assert_eq!((named.kind(), named.action()), (PolicyKind::Main, Action::Block));
    }
}
