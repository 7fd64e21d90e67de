//! Kind *crypto*: the host encapsulates, numbers and decapsulates, the device encrypts and
//! verifies.

use uxfrm_engine::decapsulate;
use uxfrm_packet::Segments;

use super::*;

const LENGTHS: [usize; 5] = [0, 3, 64, 700, 1300];

#[test]
fn device_encryption_equals_engine() {
    for wrapping in wrappings() {
        let mut pair = pair_of(&wrapping);
        let mut bed = TestBed::new("unlimited");
        let handle = bed.add_sending(&wrapping, OffloadKind::Crypto);
        let sender = Sender::new(&wrapping.sa(PairDirection::LeftToRight, FIRST_SPI));
        let plain = datagrams(&wrapping, &LENGTHS);
        let (expected, _) = pair.left.outbound(copies(&plain));
        let handed = plain.iter().zip(1..).map(|(plain, sequence)| OffloadedPacket {
            packet: sender.frame(plain, sequence).0,
            handover: OffloadOrder { device: NIC, handle, task: OffloadTask::Encrypt { sequence } },
        });
        let sent = bed.transmit(handed.collect());
        assert_eq!(bytes_of(&sent), bytes_of(&expected), "{wrapping:?}");
    }
}

#[test]
fn a_train_is_encrypted_frame_by_frame() {
    let wrapping = IpsecSetup::tunnel4();
    let mut pair = pair_of(&wrapping);
    let mut bed = TestBed::new("unlimited");
    let handle = bed.add_sending(&wrapping, OffloadKind::Crypto);
    let sender = Sender::new(&wrapping.sa(PairDirection::LeftToRight, FIRST_SPI));
    // 100 frames exceed one call of the crypto library; the last is shorter.
    let plain = datagrams(&wrapping, &[[400; 99].as_slice(), &[100]].concat());
    let (expected, _) = pair.left.outbound(copies(&plain));
    let frames: Vec<_> =
        plain.iter().zip(1..).map(|(plain, sequence)| sender.frame(plain, sequence).0).collect();
    let stride = frames[0].len();
    let bytes: Vec<u8> = frames.iter().flat_map(|frame| frame.bytes().to_vec()).collect();
    let mut burst = PacketBuf::from_slice(&bytes);
    burst.segments = Segments::Burst { stride: u16::try_from(stride).unwrap() };
    let task = OffloadTask::Encrypt { sequence: 1 };
    let handover = OffloadOrder { device: NIC, handle, task };
    let sent = bed.transmit(vec![OffloadedPacket { packet: burst, handover }]);
    assert_eq!(bed.nic.outward().sent, 100);
    let apart: Vec<_> = sent.iter().flat_map(uxfrm_testkit::split_burst).collect();
    assert_eq!(bytes_of(&apart), bytes_of(&expected));
}

#[test]
fn decryption_is_in_place() {
    for wrapping in wrappings() {
        let sa = wrapping.sa(PairDirection::LeftToRight, FIRST_SPI);
        let mut sender = Sender::new(&sa);
        let mut bed = TestBed::new("unlimited");
        let handle = bed.add_receiving(&wrapping, OffloadKind::Crypto);
        let plain = datagrams(&wrapping, &LENGTHS);
        let wire: Vec<_> = plain.iter().zip(1..).map(|(plain, n)| sender.esp(plain, n)).collect();
        let wrapped = bytes_of(&wire);
        let mut received = bed.receive(wire);
        received.sort_by_key(|received| received.packet.len());
        for ((mut received, wrapped), plain) in received.into_iter().zip(wrapped).zip(&plain) {
            let mark = received.metadata.unwrap();
            assert_eq!((mark.handle, mark.status), (Some(handle), DeviceStatus::Success));
            assert_eq!(mark.kind, OffloadKind::Crypto);
            let (_, esp) = sender.frame(plain, 1);
            let (packet, icv) = (received.packet.bytes_mut(), esp.end - 16);
            assert_eq!(packet[..esp.start + 16], wrapped[..esp.start + 16], "headers and IV");
            assert_eq!(packet[icv..], wrapped[icv..], "ICV");
            let got = decapsulate(packet, esp, sender.encapsulation.sa()).unwrap();
            assert_eq!(packet[got.plain], *plain.bytes(), "{wrapping:?}");
        }
    }
}

#[test]
fn forged_or_truncated_is_dropped_by_name() {
    let wrapping = IpsecSetup::transport4();
    let mut sender = Sender::new(&wrapping.sa(PairDirection::LeftToRight, FIRST_SPI));
    let mut bed = TestBed::new("niantic");
    let handle = bed.add_receiving(&wrapping, OffloadKind::Crypto);
    let plain = datagrams(&wrapping, &[64]);
    let mut forged = sender.esp(&plain[0], 1);
    *forged.bytes_mut().last_mut().unwrap() ^= 1;
    let short = packets::ip(
        wrapping.gateways(PairDirection::LeftToRight).0,
        wrapping.gateways(PairDirection::LeftToRight).1,
        uxfrm_packet::Protocol::ESP,
        &[&FIRST_SPI.to_be_bytes()[..], &[0; 12]].concat(),
    );
    let statuses: Vec<_> = [forged, PacketBuf::from_slice(&short)]
        .into_iter()
        .map(|packet| bed.receive(vec![packet])[0].metadata.unwrap().status)
        .collect();
    assert_eq!(statuses, [DeviceStatus::AuthFailed, DeviceStatus::InvalidSyntax]);
    assert_eq!(bed.counts(handle).failures.integrity_failed, 1);
    assert_eq!(bed.counts(handle).packets, 0);
}

#[test]
fn esn_upper_half_is_nearest_to_reported() {
    let wrapping = IpsecSetup { flags: SaFlags::ESN, ..IpsecSetup::tunnel4() };
    let mut sender = Sender::new(&wrapping.sa(PairDirection::LeftToRight, FIRST_SPI));
    let mut bed = TestBed::new("unlimited");
    let handle = bed.add_receiving(&wrapping, OffloadKind::Crypto);
    let plain = datagrams(&wrapping, &[64]);
    let mut status = |bed: &mut TestBed, number| {
        bed.receive(vec![sender.esp(&plain[0], number)])[0].metadata.unwrap().status
    };
    let (good, bad) = (DeviceStatus::Success, DeviceStatus::AuthFailed);
    assert_eq!(status(&mut bed, 1), good);
    assert_eq!(status(&mut bed, (1 << 32) + 5), bad, "nobody told of numbers so far on");
    bed.port().advance_esn(handle, 0xffff_fff0);
    assert_eq!(status(&mut bed, 0xffff_fff5), good);
    assert_eq!(status(&mut bed, (1 << 32) + 5), good);
    bed.port().advance_esn(handle, (1 << 32) + 5);
    assert_eq!(status(&mut bed, 0xffff_fff8), good, "late ones");
    bed.port().advance_esn(handle, 7 << 32);
    assert_eq!(status(&mut bed, (7 << 32) + 1), good);
    assert_eq!(status(&mut bed, (1 << 32) + 9), bad);
}
