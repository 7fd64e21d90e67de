//! Kind *packet*: the device does everything, and its packets equal the software engine's.

use uxfrm_testkit::EspSuite;

use super::*;

const LENGTHS: [usize; 7] = [0, 1, 2, 15, 64, 512, 1300];

#[test]
fn packet_kind_output_equals_engine() {
    for wrapping in wrappings() {
        let mut pair = pair_of(&wrapping);
        let mut bed = TestBed::new("unlimited");
        let handle = bed.add_sending(&wrapping, OffloadKind::Packet);
        let plain = datagrams(&wrapping, &LENGTHS);
        let expected = bytes_of(&plain);
        let arrived = pair.left_to_right(copies(&plain));
        assert_eq!(bytes_of(&arrived), expected, "{wrapping:?}");
        let sent = bed.protect(handle, plain);
        assert_eq!(bytes_of(&sent), bytes_of(&pair.last_on_wire), "{wrapping:?}");
        let mut other = pair_of(&wrapping);
        assert_eq!(bytes_of(&other.right.inbound(sent)), expected, "{wrapping:?}");
        let counts = bed.counts(handle);
        let snapshot = pair.left.database.published().load_full();
        let id = wrapping.sa(PairDirection::LeftToRight, FIRST_SPI).id;
        let usage = snapshot.sad.find(id, 0).unwrap().usage();
        assert_eq!((counts.packets, counts.sent), (7, 7));
        assert_eq!((counts.packets, counts.bytes), (usage.packets(), usage.bytes()));
        assert_eq!(counts.first_used, Some(NOW));
    }
}

#[test]
fn packet_kind_delivers_plain_packet_with_mark() {
    for wrapping in wrappings() {
        let mut pair = pair_of(&wrapping);
        let mut bed = TestBed::new("unlimited");
        let handle = bed.add_receiving(&wrapping, OffloadKind::Packet);
        let plain = datagrams(&wrapping, &LENGTHS);
        let expected = bytes_of(&plain);
        let (wire, _) = pair.left.outbound(plain);
        let mut received = bed.receive(wire);
        received.sort_by_key(|received| received.packet.len());
        for (received, expected) in received.iter().zip(&expected) {
            assert_eq!(received.packet.bytes(), expected, "{wrapping:?}");
            let mark = received.metadata.unwrap();
            assert_eq!((mark.device, mark.handle), (NIC, Some(handle)));
            assert_eq!((mark.kind, mark.status), (OffloadKind::Packet, DeviceStatus::Success));
            assert_eq!(received.packet.checksum, uxfrm_packet::Checksum::Verified);
        }
        let counts = bed.counts(handle);
        assert_eq!((received.len(), counts.packets, counts.received), (7, 7, 7));
    }
}

#[test]
fn every_algorithm_goes_between_two_devices() {
    for suite in EspSuite::ALL {
        let wrapping = IpsecSetup { suite, ..IpsecSetup::tunnel4() };
        let (mut left, mut right) = (TestBed::new("unlimited"), TestBed::new("unlimited"));
        let out = left.add_sending(&wrapping, OffloadKind::Packet);
        let _ = right.add_receiving(&wrapping, OffloadKind::Packet);
        let plain = datagrams(&wrapping, &[100; 40]);
        let expected = bytes_of(&plain);
        let wire = left.protect(out, plain);
        if suite.encrypts() {
            let mut listener = uxfrm_testkit::PlaintextDetector::new(&expected[0][28..60]);
            listener.listen(&wire);
            assert_eq!(listener.seen, 0, "{suite:?}");
        }
        let received: Vec<_> =
            right.receive(wire).into_iter().map(|received| received.packet).collect();
        assert_eq!(bytes_of(&received), expected, "{suite:?}");
    }
}

#[test]
fn packets_without_sa_pass_unchanged() {
    let wrapping = IpsecSetup::tunnel4();
    let mut pair = pair_of(&wrapping);
    let mut bed = TestBed::new("unlimited");
    let plain = datagrams(&wrapping, &[64]);
    let expected = bytes_of(&plain);
    let (esp, _) = pair.left.outbound(copies(&plain));
    let bytes = bytes_of(&esp);
    for (packets, expected) in [(plain, expected), (esp, bytes)] {
        let received = bed.receive(packets);
        assert_eq!(received[0].packet.bytes(), expected[0]);
        assert!(received[0].metadata.is_none());
    }
    let fragments =
        packets::fragments(pair.left.outbound(datagrams(&wrapping, &[64])).0[0].bytes(), 64);
    let _ = bed.add_receiving(&wrapping, OffloadKind::Packet);
    for received in bed.receive(fragments) {
        assert!(received.metadata.is_none(), "fragments are not matched");
    }
}

#[test]
fn device_without_marks_reports_only_decryption() {
    let wrapping = IpsecSetup::transport4();
    let mut profile = Profile::by_name("niantic").unwrap();
    profile.marks_received = false;
    let mut bed = TestBed::of(NicSetup::new(profile, NIC));
    let _ = bed.add_receiving(&wrapping, OffloadKind::Crypto);
    let (wire, _) = pair_of(&wrapping).left.outbound(datagrams(&wrapping, &[64]));
    let mark = bed.receive(wire)[0].metadata.unwrap();
    assert_eq!((mark.handle, mark.status), (None, DeviceStatus::Success));
}

#[test]
fn unsupported_packet_is_dropped_by_name() {
    let wrapping = IpsecSetup::tunnel4();
    let mut bed = TestBed::new("unlimited");
    let handle = bed.add_sending(&wrapping, OffloadKind::Packet);
    let receiving = bed.add(
        wrapping.sa(PairDirection::RightToLeft, FIRST_SPI + 1),
        OffloadKind::Packet,
        Direction::In,
    );
    let wanted = wanted(&wrapping);
    let larval = bed.port().add_larval(&wanted).unwrap();
    let whole = || datagrams(&wrapping, &[64]).remove(0);
    let piece = packets::fragments(whole().bytes(), 64).remove(0);
    let to = |device, handle, task| OffloadOrder { device, handle, task };
    let protect = OffloadTask::Protect;
    for (packet, handover, reason) in [
        (whole(), to(NIC, Handle(99), protect), NicDrop::TxNoState),
        (whole(), to(NIC, larval, protect), NicDrop::TxNoState),
        (whole(), to(NIC, receiving, protect), NicDrop::TxNoState),
        (whole(), to(NIC, handle, OffloadTask::Encrypt { sequence: 1 }), NicDrop::TxNoState),
        (whole(), to(DeviceId(8), handle, protect), NicDrop::TxWrongDevice),
        (piece, to(NIC, handle, protect), NicDrop::TxUnsupported),
        (PacketBuf::from_slice(b"no packet"), to(NIC, handle, protect), NicDrop::TxMalformed),
    ] {
        let before = bed.nic.drops().of(reason);
        assert!(bed.transmit(vec![OffloadedPacket { packet, handover }]).is_empty());
        assert_eq!(bed.nic.drops().of(reason), before + 1, "{reason:?}");
    }
    assert_eq!(bed.counts(handle).packets, 0);
    bed.port().delete_state(handle);
    assert_eq!(bed.protect(handle, vec![whole()]).len(), 1, "it was on its way");
    assert!(bed.port().update_stats(handle).is_some(), "until it is freed");
    bed.port().free_state(handle);
    assert!(bed.protect(handle, vec![whole()]).is_empty());
    assert!(bed.port().update_stats(handle).is_none());
}

pub(super) fn wanted(wrapping: &IpsecSetup) -> SaRequest {
    let template = wrapping.template(PairDirection::LeftToRight);
    SaRequest {
        source: template.source,
        destination: template.destination,
        protocol: template.protocol,
        spi: template.spi,
        mode: template.mode,
        reqid: template.reqid,
        mark: uxfrm_engine::Mark::default(),
        if_id: uxfrm_engine::IfId(0),
        pcpu: None,
    }
}
