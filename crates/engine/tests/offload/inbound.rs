//! Who may come in that a device received.

use uxfrm_engine::{
    DeviceMetadata, DeviceStatus, Direction, DropReason, Handle, Mark, OffloadKind, Policy,
    ReceivedPacket, Reqid, SaConfig, SaId, Spi,
};
use uxfrm_packet::{Checksum, PacketBuf};
use uxfrm_testkit::{FIRST_SPI, IpsecSetup, PairDirection, TestGateway, TestGatewayPair, packets};

use crate::nic::{NIC1, Nics, mark, offload};

const PACKET: OffloadKind = OffloadKind::Packet;
const CRYPTO: OffloadKind = OffloadKind::Crypto;

fn datagram() -> PacketBuf {
    packets::udp("10.1.0.1:7", "10.2.0.1:9", b"payload")
}

fn forwarded() -> PacketBuf {
    packets::udp("10.1.0.5:7", "10.2.0.5:9", b"payload")
}

fn state(kind: OffloadKind) -> SaConfig {
    let offload = offload(kind, "nic0", Direction::In);
    SaConfig { offload, ..IpsecSetup::tunnel4().sa(PairDirection::LeftToRight, FIRST_SPI) }
}

/// The right gateway with its state on a device; in kind *packet* its `in` policy is there too, the
/// one to forward is not.
fn right(kind: OffloadKind) -> (TestGateway, Nics) {
    let (mut right, nics) =
        (TestGatewayPair::without_sas(&IpsecSetup::tunnel4()).right, Nics::default());
    right.database.set_devices(Box::new(nics.clone()));
    if kind == PACKET {
        let offload = offload(PACKET, "nic0", Direction::In);
        let policy = Policy {
            offload,
            ..IpsecSetup::tunnel4().policy(Direction::In, PairDirection::LeftToRight)
        };
        right.database.apply(right.now, |change| change.update_policy(policy)).unwrap();
    }
    right.add_sa(state(kind));
    (right, nics)
}

/// What becomes of one packet from the device.
fn fate(
    right: &mut TestGateway,
    packet: PacketBuf,
    metadata: Option<DeviceMetadata>,
) -> Result<(), DropReason> {
    let before = right.reasons();
    let count = right.inbound_from_device(vec![ReceivedPacket { packet, metadata }]).len();
    right.assert_packets_accounted();
    let told = right.reasons().into_iter().find(|reason| !before.contains(reason));
    match (count, told) {
        (1, None) => Ok(()),
        (0, Some((reason, _))) => Err(reason),
        other => panic!("{other:?}"),
    }
}

/// Sealed as a good peer seals it; but for the encryption, as a device has undone it.
fn sealed(opened: bool) -> PacketBuf {
    all_sealed(opened, 1).remove(0)
}

fn all_sealed(opened: bool, count: usize) -> Vec<PacketBuf> {
    let (mut left, nics) =
        (TestGatewayPair::without_sas(&IpsecSetup::tunnel4()).left, Nics::default());
    left.database.set_devices(Box::new(nics.clone()));
    let offload = offload(CRYPTO, "nic0", Direction::Out).filter(|_| opened);
    left.add_sa(SaConfig {
        offload,
        ..IpsecSetup::tunnel4().sa(PairDirection::LeftToRight, FIRST_SPI)
    });
    let wire = left.outbound((0..count).map(|_| datagram()).collect()).0;
    left.handed.into_iter().map(|handed| handed.packet).chain(wire).collect()
}

/// Of packets with equal headers the engine opens those that the device did not.
#[test]
fn unmarked_packets_beside_marked_ones_are_opened() {
    let (mut gateway, nics) = right(CRYPTO);
    let good = mark(CRYPTO, nics.handle());
    let mut opened = all_sealed(true, 12);
    let mut closed = all_sealed(false, 6).split_off(3);
    let marked = |packets: Vec<PacketBuf>| {
        let marked = |packet| ReceivedPacket { packet, metadata: Some(good) };
        packets.into_iter().map(marked).collect::<Vec<_>>()
    };
    let rest = opened.split_off(6);
    opened.truncate(3);
    assert_eq!(gateway.inbound_from_device(marked(opened)).len(), 3);
    assert_eq!(gateway.inbound(std::mem::take(&mut closed)).len(), 3);
    let mut rest = rest.into_iter();
    let (first, mut short) = (rest.next().unwrap(), rest.next().unwrap());
    let len = 20 + 8 + 8 + 10;
    short.trim(len);
    short.bytes_mut()[3] = u8::try_from(len).unwrap();
    uxfrm_packet::ipv4::fill_checksum(short.bytes_mut()).unwrap();
    let batch = vec![first, short, rest.next().unwrap()];
    assert_eq!(gateway.inbound_from_device(marked(batch)).len(), 2);
    assert_eq!(gateway.reasons(), [(DropReason::InRunt, 1)]);
}

/// A device has nothing to say of a state that it does not have, whatever is known of that.
#[test]
fn foreign_mark_on_matching_packet_is_refused() {
    let (mut gateway, nics) = right(CRYPTO);
    let id = state(CRYPTO).id;
    let handle = mark(CRYPTO, nics.handle());
    gateway.database.apply(gateway.now, |to| to.delete_sa(id, Mark::default())).unwrap();
    gateway.add_sa(IpsecSetup::tunnel4().sa(PairDirection::LeftToRight, FIRST_SPI));
    let mut closed = all_sealed(false, 9);
    let last = closed.split_off(6);
    assert_eq!(gateway.inbound(closed).len(), 6);
    let marked = last.into_iter().map(|packet| ReceivedPacket { packet, metadata: Some(handle) });
    assert!(gateway.inbound_from_device(marked.collect()).is_empty());
    assert_eq!(gateway.reasons(), [(DropReason::InDeviceMark, 3)]);
}

#[test]
fn plain_packet_needs_mark_of_right_sa() {
    let (mut right, nics) = right(PACKET);
    let good = mark(PACKET, nics.handle());
    assert_eq!(fate(&mut right, datagram(), Some(good)), Ok(()));
    let unmarked = Err(DropReason::InDeviceUnmarked);
    assert_eq!(fate(&mut right, datagram(), None), unmarked);
    let by_another_port = right.inbound(vec![datagram()]);
    assert!(by_another_port.is_empty());
    assert_eq!(right.drops(DropReason::InDeviceUnmarked), 2);
    let refused = Err(DropReason::InDeviceMark);
    for (what, mark, expected) in [
        ("unknown", DeviceMetadata { handle: Some(Handle(99)), ..good }, refused),
        ("not told", DeviceMetadata { handle: None, ..good }, refused),
        ("another device", DeviceMetadata { device: NIC1, ..good }, refused),
        ("only decrypted", DeviceMetadata { kind: CRYPTO, ..good }, unmarked),
        (
            "forged",
            DeviceMetadata { status: DeviceStatus::AuthFailed, ..good },
            Err(DropReason::InForged),
        ),
        (
            "failed",
            DeviceMetadata { status: DeviceStatus::GenericError, ..good },
            Err(DropReason::InDeviceError),
        ),
    ] {
        assert_eq!(fate(&mut right, datagram(), Some(mark)), expected, "{what}");
    }
    let other = packets::udp("172.16.0.1:7", "10.2.0.1:9", b"not protected");
    assert_eq!(fate(&mut right, other, None), Ok(()));
}

#[test]
fn device_verified_checksums_are_per_packet() {
    let (mut right, nics) = right(PACKET);
    let good = Some(mark(PACKET, nics.handle()));
    let checksums = [Checksum::Verified, Checksum::Verified, Checksum::AsIs, Checksum::Verified];
    let marked = checksums.map(|checksum| {
        let mut packet = datagram();
        packet.checksum = checksum;
        ReceivedPacket { packet, metadata: good }
    });
    let arrived = right.inbound_from_device(marked.into());
    assert!(arrived.iter().map(|packet| packet.checksum).eq(checksums));
}

#[test]
fn device_verified_checksum_is_kept() {
    let (mut right, nics) = right(PACKET);
    let good = mark(PACKET, nics.handle());
    for checksum in [Checksum::Verified, Checksum::AsIs] {
        let mut packet = datagram();
        packet.checksum = checksum;
        let received = vec![ReceivedPacket { packet, metadata: Some(good) }];
        let [arrived] = right.inbound_from_device(received).try_into().unwrap();
        assert_eq!(arrived.checksum, checksum);
    }
    let mut sealed = sealed(false);
    sealed.checksum = Checksum::Verified;
    let (mut software, _) = self::right(CRYPTO);
    let received = vec![ReceivedPacket { packet: sealed, metadata: None }];
    let [arrived] = software.inbound_from_device(received).try_into().unwrap();
    assert_eq!(arrived.checksum, Checksum::AsIs, "that was of the packet around it");
}

#[test]
fn marked_sa_must_satisfy_policy_and_selector() {
    let (mut right, nics) = right(PACKET);
    let first = nics.handle();
    let id = SaId { spi: Spi(2), ..state(PACKET).id };
    right.add_sa(SaConfig { id, reqid: Reqid(9), ..state(PACKET) });
    let id = SaId { spi: Spi(3), ..state(PACKET).id };
    let out = offload(PACKET, "nic0", Direction::Out);
    right.add_sa(SaConfig { id, offload: out, ..state(PACKET) });
    let [_, other, outward] = nics.tables().states.keys().copied().collect::<Vec<_>>()[..] else {
        panic!("three states");
    };
    let mark = |handle| Some(mark(PACKET, handle));
    let mismatch = Err(DropReason::InOtherState);
    assert_eq!(fate(&mut right, datagram(), mark(other)), mismatch);
    assert_eq!(fate(&mut right, datagram(), mark(outward)), Err(DropReason::InDeviceMark));
    let foreign = packets::udp("172.16.0.1:7", "10.2.0.1:9", b"from elsewhere");
    assert_eq!(fate(&mut right, foreign, mark(first)), Err(DropReason::InNoPolicy));
    assert_eq!(fate(&mut right, forwarded(), mark(first)), Ok(()), "the policy is in software");
    assert_eq!(fate(&mut right, forwarded(), mark(other)), mismatch);
    assert_eq!(fate(&mut right, forwarded(), None), Err(DropReason::InUnprotected));
}

#[test]
fn mark_of_removed_sa_is_refused() {
    let (mut right, nics) = right(PACKET);
    let mark = Some(mark(PACKET, nics.handle()));
    let deleted = |right: &mut TestGateway| {
        let id = state(PACKET).id;
        right.database.apply(right.now, |change| change.delete_sa(id, state(PACKET).mark))
    };
    deleted(&mut right).unwrap();
    assert_eq!(fate(&mut right, datagram(), mark), Err(DropReason::InDeviceMark));
    right.add_sa(state(PACKET));
    assert_eq!(fate(&mut right, datagram(), mark), Err(DropReason::InDeviceMark), "another one");
}

#[test]
fn esp_of_packet_offload_sa_needs_its_device() {
    let (mut right, nics) = right(PACKET);
    assert_eq!(fate(&mut right, sealed(false), None), Err(DropReason::InDeviceOnly));
    let crypto = Some(mark(CRYPTO, nics.handle()));
    assert_eq!(fate(&mut right, sealed(true), crypto), Err(DropReason::InDeviceMark));
}

#[test]
fn offloaded_policy_needs_sa_on_its_device() {
    let (mut right, _) = right(PACKET);
    let id = state(PACKET).id;
    right.database.apply(right.now, |change| change.delete_sa(id, state(PACKET).mark)).unwrap();
    right.add_sa(SaConfig { offload: None, ..state(PACKET) });
    let mismatch = Err(DropReason::InOtherState);
    assert_eq!(fate(&mut right, sealed(false), None), mismatch, "decrypted in software");
    let (mut right, _) = self::right(PACKET);
    right.database.apply(right.now, |change| change.delete_sa(id, state(PACKET).mark)).unwrap();
    let elsewhere = offload(PACKET, "nic1", Direction::In);
    let sa = SaConfig { offload: elsewhere, ..state(PACKET) };
    let sa = right.database.apply(right.now, |change| change.add_sa(sa)).unwrap();
    let handle = sa.attachment().unwrap().handle;
    let mark = DeviceMetadata { device: NIC1, ..mark(PACKET, handle) };
    assert_eq!(fate(&mut right, datagram(), Some(mark)), mismatch, "decrypted by another device");
}

#[test]
fn crypto_offload_skips_decryption_only() {
    let (mut right, nics) = right(CRYPTO);
    let good = mark(CRYPTO, nics.handle());
    assert_eq!(fate(&mut right, sealed(true), Some(good)), Ok(()));
    assert_eq!(fate(&mut right, sealed(true), Some(good)), Err(DropReason::InReplay));
    let sa = right.database.snapshot().sad.iter().next().cloned().unwrap();
    assert_eq!((sa.usage().packets(), sa.highest_received()), (1, 1), "the engine counts");
    let mut policy = IpsecSetup::tunnel4().policy(Direction::In, PairDirection::LeftToRight);
    policy.templates[0].reqid = Reqid(9);
    let (mut strict, nics) = self::right(CRYPTO);
    strict.database.apply(strict.now, |change| change.update_policy(policy)).unwrap();
    let good = mark(CRYPTO, nics.handle());
    let mismatch = Err(DropReason::InOtherState);
    assert_eq!(fate(&mut strict, sealed(true), Some(good)), mismatch);
}

#[test]
fn mark_without_handle_must_match_spi() {
    let (mut right, _) = right(CRYPTO);
    let untold = DeviceMetadata { handle: None, ..mark(CRYPTO, Handle(0)) };
    assert_eq!(fate(&mut right, sealed(true), Some(untold)), Ok(()));
    let (mut software, _) = self::right(CRYPTO);
    let id = state(CRYPTO).id;
    let mark = state(CRYPTO).mark;
    software.database.apply(software.now, |change| change.delete_sa(id, mark)).unwrap();
    software.add_sa(SaConfig { offload: None, ..state(CRYPTO) });
    let refused = Err(DropReason::InDeviceMark);
    assert_eq!(fate(&mut software, sealed(true), Some(untold)), refused, "not on the device");
}

#[test]
fn device_error_gives_drop_reason() {
    for (status, expected) in [
        (DeviceStatus::AuthFailed, DropReason::InForged),
        (DeviceStatus::GenericError, DropReason::InDeviceError),
        (DeviceStatus::InvalidSyntax, DropReason::InDeviceError),
        (DeviceStatus::InvalidProtocol, DropReason::InDeviceProtocol),
    ] {
        let (mut right, nics) = right(CRYPTO);
        let mark = DeviceMetadata { status, ..mark(CRYPTO, nics.handle()) };
        assert_eq!(fate(&mut right, sealed(true), Some(mark)), Err(expected));
        let sa = right.database.snapshot().sad.iter().next().cloned().unwrap();
        let forged = u32::from(expected == DropReason::InForged);
        assert_eq!(sa.usage().failures().integrity_failed, forged);
        assert_eq!(sa.highest_received(), 0);
    }
}

#[test]
fn unmarked_esp_is_decrypted_in_software() {
    let (mut right, _) = right(CRYPTO);
    assert_eq!(fate(&mut right, sealed(false), None), Ok(()));
    let (mut right, _) = self::right(CRYPTO);
    assert_eq!(fate(&mut right, sealed(true), None), Err(DropReason::InForged), "nobody vouches");
}

#[test]
fn mixed_batch_keeps_order_and_marks() {
    let (mut left, nics) =
        (TestGatewayPair::without_sas(&IpsecSetup::tunnel4()).left, Nics::default());
    left.database.set_devices(Box::new(nics.clone()));
    let out = offload(CRYPTO, "nic0", Direction::Out);
    left.add_sa(SaConfig {
        offload: out,
        ..IpsecSetup::tunnel4().sa(PairDirection::LeftToRight, FIRST_SPI)
    });
    let (mut right, own) = right(CRYPTO);
    let good = mark(CRYPTO, own.handle());
    let sizes: Vec<usize> = (1..=150).collect();
    let packets: Vec<PacketBuf> = sizes
        .iter()
        .map(|size| packets::udp("10.1.0.1:7", "10.2.0.1:9", &vec![0; *size]))
        .collect();
    left.outbound(packets);
    let received = left.handed.drain(..).enumerate().map(|(number, handed)| match number % 3 {
        0 => ReceivedPacket { packet: nics.encrypt(handed).unwrap(), metadata: None },
        1 => ReceivedPacket { packet: handed.packet, metadata: Some(good) },
        _ => ReceivedPacket {
            packet: handed.packet,
            metadata: Some(DeviceMetadata { status: DeviceStatus::AuthFailed, ..good }),
        },
    });
    let there = right.inbound_from_device(received.collect());
    let lens: Vec<usize> = there.iter().map(|packet| packet.len() - 28).collect();
    let expected: Vec<usize> = sizes.into_iter().filter(|size| size % 3 != 0).collect();
    assert_eq!(lens, expected);
    assert_eq!(right.reasons(), [(DropReason::InForged, 50)]);
    right.assert_packets_accounted();
}
