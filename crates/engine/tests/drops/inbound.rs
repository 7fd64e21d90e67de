//! Reasons of packets on their way in.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use uxfrm_crypto::{KeyMaterial, Transform};
use uxfrm_engine::sa::replay_store::ReplayStore;
use uxfrm_engine::{
    Action, Direction, Policy, PolicyKind, ReplayKeeper, Sa, SaConfig, SaTransform, Selector,
    UdpEncapKind,
};
use uxfrm_packet::{PacketBuf, Protocol, UdpPath, ipv4};
use uxfrm_testkit::{FIRST_SPI, IpsecSetup, PairDirection, TestGateway, TestGatewayPair, packets};

use crate::outbound::{close, datagram, hold, only};
use crate::{Known, Raised};

const BACK: PairDirection = PairDirection::LeftToRight;
const IN_UDP: Known = Known::FLOW;

fn right() -> TestGateway {
    TestGatewayPair::new(&IpsecSetup::tunnel4()).right
}

fn arrived(mut right: TestGateway, packets: Vec<PacketBuf>, known: Known) -> Raised {
    right.inbound(packets);
    Raised::by(right, known)
}

/// Datagrams as the left gateway seals them.
fn sealed(count: usize) -> Vec<PacketBuf> {
    let mut left = TestGatewayPair::new(&IpsecSetup::tunnel4()).left;
    left.outbound((0..count).map(|_| datagram()).collect()).0
}

fn copy(packet: &PacketBuf) -> PacketBuf {
    PacketBuf::from_slice(packet.bytes())
}

/// The right gateway, its state changed.
fn with_state(change: impl FnOnce(&mut SaConfig)) -> TestGateway {
    with_state_of(&IpsecSetup::tunnel4(), change)
}

fn with_state_of(setup: &IpsecSetup, change: impl FnOnce(&mut SaConfig)) -> TestGateway {
    let mut right = TestGatewayPair::without_sas(setup).right;
    let mut state = setup.sa(BACK, FIRST_SPI);
    change(&mut state);
    right.add_sa(state);
    right
}

/// The right gateway, its policy `in` changed.
fn with_policy(change: impl FnOnce(&mut Policy)) -> TestGateway {
    let mut right = right();
    let mut policy = IpsecSetup::tunnel4().policy(Direction::In, BACK);
    change(&mut policy);
    right.database.apply(right.now, |to| to.update_policy(policy)).unwrap();
    right
}

pub(crate) fn malformed() -> Raised {
    let mut cut = sealed(1).remove(0);
    cut.trim(40);
    arrived(right(), vec![cut], Known::NOTHING)
}

pub(crate) fn checksum() -> Raised {
    let mut damaged = sealed(1).remove(0);
    damaged.bytes_mut()[10] ^= 1;
    arrived(right(), vec![damaged], Known::ESP_AND_SA)
}

pub(crate) fn runt() -> Raised {
    let mut short = sealed(1).remove(0);
    short.trim(20 + 8 + 8 + 10);
    short.bytes_mut()[3] = 20 + 8 + 8 + 10;
    ipv4::fill_checksum(short.bytes_mut()).unwrap();
    arrived(right(), vec![short], Known::ESP_AND_SA)
}

pub(crate) fn no_state() -> Raised {
    let right = TestGatewayPair::without_sas(&IpsecSetup::tunnel4()).right;
    arrived(right, sealed(1), Known::ESP)
}

pub(crate) fn state_expired() -> Raised {
    let right = with_state(|state| state.limits = only(2));
    // It was opened before it was charged.
    arrived(right, sealed(9), Known::FLOW_AND_SA)
}

pub(crate) fn state_direction() -> Raised {
    let right = with_state(|state| {
        (state.direction, state.replay.window) = (Some(Direction::Out), 0);
    });
    arrived(right, sealed(1), Known::ESP_AND_SA)
}

pub(crate) fn encap_mismatch() -> Raised {
    let in_udp = IpsecSetup { encap: Some(UdpEncapKind::Esp), ..IpsecSetup::tunnel4() };
    arrived(with_state_of(&in_udp, |_| {}), sealed(1), Known::ESP_AND_SA)
}

pub(crate) fn replay() -> Raised {
    let packet = sealed(1).remove(0);
    let mut right = right();
    assert_eq!(right.inbound(vec![copy(&packet)]).len(), 1);
    arrived(right, vec![packet], Known::ESP_AND_SA)
}

pub(crate) fn too_old() -> Raised {
    let mut packets = sealed(200);
    let mut right = right();
    assert_eq!(right.inbound(packets.split_off(199)).len(), 1);
    packets.truncate(1);
    arrived(right, packets, Known::ESP_AND_SA)
}

/// Keeps nothing in memory: a window begins at its edge after a restart.
#[derive(Debug)]
struct NoMemory;

impl ReplayStore for NoMemory {
    fn claim(&self, _: &Sa) -> Option<&'static AtomicU64> {
        None
    }

    fn release(&self, _: &'static AtomicU64) {}

    fn wake(&self) {}
}

/// The right gateway, which keeps numbers.
fn keeping() -> TestGateway {
    let setup = IpsecSetup::tunnel4();
    let settings = TestGatewayPair::without_sas(&setup).right.worker.settings().clone();
    let mut right = TestGateway::new(settings);
    right.database.track_changes_with(ReplayKeeper::new(Arc::new(NoMemory)));
    right.add_policy(setup.policy(Direction::In, BACK));
    right.add_sa(setup.sa(BACK, FIRST_SPI));
    right.database.publish();
    right
}

pub(crate) fn before_restart() -> Raised {
    let right = keeping();
    right.database.snapshot().sad.iter().for_each(|sa| sa.restart_at(1000));
    arrived(right, sealed(1), Known::ESP_AND_SA)
}

pub(crate) fn replay_reserve() -> Raised {
    let setup = IpsecSetup::tunnel4();
    let mut left = TestGatewayPair::without_sas(&setup).left;
    let mut state = setup.sa(BACK, FIRST_SPI);
    state.replay.sent = 1 << 30;
    left.add_sa(state);
    let far = left.outbound(vec![datagram()]).0;
    // It is authentic, so it was opened.
    arrived(keeping(), far, Known::ESP_AND_SA)
}

pub(crate) fn no_number() -> Raised {
    let mut packet = sealed(1).remove(0);
    packet.bytes_mut()[24..28].fill(0);
    arrived(right(), vec![packet], Known::ESP_AND_SA)
}

pub(crate) fn forged() -> Raised {
    let mut packet = sealed(1).remove(0);
    let last = packet.len() - 1;
    packet.bytes_mut()[last] ^= 1;
    arrived(right(), vec![packet], Known::ESP_AND_SA)
}

/// Neither encrypts nor authenticates, so that any bytes are authentic.
fn open(state: &mut SaConfig) {
    state.transform = SaTransform {
        transform: Transform::cipher_auth(None, None).unwrap(),
        encryption_key: KeyMaterial::empty(),
        authentication_key: KeyMaterial::empty(),
    };
    state.replay.window = 0;
}

/// A packet for such a state: payload, padding with its length, next header.
fn wrapped(sequence: u32, payload: &[u8], padding: &[u8], next_header: u8) -> PacketBuf {
    let spi = FIRST_SPI.to_be_bytes();
    let esp = [&spi[..], &sequence.to_be_bytes(), payload, padding, &[next_header]].concat();
    let (source, destination) = IpsecSetup::tunnel4().gateways(BACK);
    PacketBuf::from_slice(&packets::ip(source, destination, Protocol::ESP, &esp))
}

/// Padding for a payload of this length.
fn pad(len: usize) -> Vec<u8> {
    let padding = u8::try_from((4 - (len + 2) % 4) % 4).unwrap();
    (1..=padding).chain([padding]).collect()
}

fn opened(payload: &[u8], padding: &[u8], next_header: u8, known: Known) -> Raised {
    let packet = wrapped(1, payload, padding, next_header);
    arrived(with_state(open), vec![packet], known)
}

pub(crate) fn padding() -> Raised {
    opened(&[7; 30], &[9, 9, 2], 4, Known::ESP_AND_SA)
}

pub(crate) fn dummy() -> Raised {
    opened(&[], &[1, 2, 2], 59, Known::ESP_AND_SA)
}

pub(crate) fn inner_malformed() -> Raised {
    opened(&[7; 30], &pad(30), 4, Known { number: false, ..Known::ESP_AND_SA })
}

pub(crate) fn inner_checksum() -> Raised {
    let mut inner = datagram().bytes().to_vec();
    inner[10] ^= 1;
    let padding = pad(inner.len());
    opened(&inner, &padding, 4, Known::FLOW_AND_SA)
}

pub(crate) fn mode_mismatch() -> Raised {
    opened(&[7; 30], &pad(30), 17, Known::ESP_AND_SA)
}

pub(crate) fn selector_mismatch() -> Raised {
    let tcp = |state: &mut SaConfig| {
        let selector = state.selector.unwrap();
        state.selector = Some(Selector { protocol: 6, ..selector });
    };
    arrived(with_state(tcp), sealed(1), Known::ALL_PLAIN)
}

pub(crate) fn ecn() -> Raised {
    let mut packet = sealed(1).remove(0);
    packet.bytes_mut()[1] = 3;
    ipv4::fill_checksum(packet.bytes_mut()).unwrap();
    arrived(right(), vec![packet], Known::FLOW_AND_SA)
}

pub(crate) fn too_deep() -> Raised {
    let mut packet = datagram().bytes().to_vec();
    for layer in 1..=7 {
        let padding = pad(packet.len());
        packet = wrapped(layer, &packet, &padding, 4).bytes().to_vec();
    }
    arrived(with_state(open), vec![PacketBuf::from_slice(&packet)], Known::ESP_AND_SA)
}

pub(crate) fn unprotected() -> Raised {
    arrived(right(), vec![datagram()], Known::FLOW_AND_POLICY)
}

pub(crate) fn other_state() -> Raised {
    let right = with_policy(|policy| policy.templates[0].reqid.0 = 9);
    arrived(right, sealed(1), Known::ALL_PLAIN)
}

pub(crate) fn no_policy() -> Raised {
    let mut right = right();
    right.database.apply(right.now, |to| to.flush_policies(PolicyKind::Main));
    arrived(right, sealed(1), Known::FLOW_AND_SA)
}

pub(crate) fn default_block() -> Raised {
    let mut right = right();
    close(&mut right);
    arrived(right, vec![datagram()], Known::FLOW)
}

pub(crate) fn policy_block() -> Raised {
    let right = with_policy(|policy| policy.action = Action::Block);
    arrived(right, sealed(1), Known::ALL_PLAIN)
}

/// Fragments out of ESP for the host, of which one is a duplicate.
pub(crate) fn fragment() -> Raised {
    let whole = packets::udp("10.1.0.1:7", "10.2.0.1:9", &[7; 64]);
    let first = || packets::fragments(whole.bytes(), 48).remove(0);
    let mut left = TestGatewayPair::new(&IpsecSetup::tunnel4()).left;
    let packets = left.outbound(vec![first(), first()]).0;
    arrived(right(), packets, Known::FLOW_AND_SA)
}

pub(crate) fn held() -> Raised {
    arrived(with_policy(hold), sealed(1), Known::ALL_PLAIN)
}

/// What a UDP socket received.
fn payload(bytes: &[u8]) -> PacketBuf {
    let (source, destination) = IpsecSetup::tunnel4().gateways(BACK);
    let end = |address| SocketAddr::new(address, 4500);
    let (local, remote) = (end(destination), end(source));
    let mut packet = PacketBuf::from_slice(bytes);
    packet.udp = Some(UdpPath { local, remote, tos: 0, dont_fragment: false });
    packet
}

pub(crate) fn keepalive() -> Raised {
    arrived(right(), vec![payload(&[0xff])], IN_UDP)
}

pub(crate) fn ike_unclaimed() -> Raised {
    arrived(right(), vec![payload(&[0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8])], IN_UDP)
}
