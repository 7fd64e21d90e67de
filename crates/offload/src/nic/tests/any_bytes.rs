//! Arbitrary input: no panic, no unnamed loss, and no unauthentic packet is marked authentic.

use proptest::prelude::*;

use super::*;

/// Damage to an ESP packet before it arrives.
#[derive(Clone, Debug)]
enum Damage {
    None,
    Flip(usize, u8),
    Cut(usize),
    Grow(Vec<u8>),
    Replace(Vec<u8>),
}

fn damage() -> impl Strategy<Value = Damage> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..80);
    prop_oneof![
        Just(Damage::None),
        (any::<usize>(), 1_u8..).prop_map(|(at, bits)| Damage::Flip(at, bits)),
        any::<usize>().prop_map(Damage::Cut),
        bytes().prop_map(Damage::Grow),
        bytes().prop_map(Damage::Replace),
    ]
}

fn damaged(packet: &PacketBuf, damage: &Damage) -> Vec<u8> {
    let mut bytes = packet.bytes().to_vec();
    match damage {
        Damage::None => {}
        Damage::Flip(at, bits) => {
            let at = at % bytes.len();
            bytes[at] ^= bits;
        }
        Damage::Cut(len) => bytes.truncate(len % bytes.len()),
        Damage::Grow(more) => bytes.extend(more),
        Damage::Replace(other) => bytes.clone_from(other),
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn only_what_is_authentic_is_marked(
        wrapping in prop::sample::select(wrappings()),
        damages in prop::collection::vec(damage(), 1..20),
        crypto in any::<bool>(),
        framing in prop::sample::select(vec![Framing::Ip, Framing::Ethernet]),
    ) {
        let kind = if crypto { OffloadKind::Crypto } else { OffloadKind::Packet };
        let mut sender = Sender::new(&wrapping.sa(PairDirection::LeftToRight, FIRST_SPI));
        let profile = Profile::by_name("unlimited").unwrap();
        let mut bed = TestBed::of(NicSetup { framing, ..NicSetup::new(profile, NIC) });
        let _ = bed.add_receiving(&wrapping, kind);
        let plain = datagrams(&wrapping, &[64]);
        for (damage, number) in damages.iter().zip(1..) {
            let esp = sender.esp(&plain[0], number);
            let mut packet = PacketBuf::from_slice(&damaged(&esp, damage));
            if framing == Framing::Ethernet {
                let kind: &[u8] = if esp.bytes()[0] >> 4 == 4 { &[8, 0] } else { &[0x86, 0xdd] };
                let header = packet.push(14).unwrap();
                header.fill(2);
                header[12..].copy_from_slice(kind);
            }
            for ReceivedPacket { packet, metadata } in bed.receive(vec![packet]) {
                let success = metadata.is_some_and(|mark| mark.status == DeviceStatus::Success);
                if success && !crypto {
                    let (got, expected) = (packet.bytes(), plain[0].bytes());
                    // ECN and NAT's changes of the outer header are not authenticated; IPv6's have
                    // no checksum.
                    prop_assert!(got.ends_with(&expected[expected.len() - 64..]));
                }
                if matches!(damage, Damage::None) {
                    prop_assert!(success);
                }
            }
        }
    }

    #[test]
    fn arbitrary_handover_leaves_sealed_or_not_at_all(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        size in 0_u16..70,
        kind in 0..4,
        crypto in any::<bool>(),
    ) {
        use uxfrm_packet::{Checksum, Segments};
        let wrapping = IpsecSetup::tunnel4();
        let kind_of = if crypto { OffloadKind::Crypto } else { OffloadKind::Packet };
        let mut bed = TestBed::new("unlimited");
        let handle = bed.add_sending(&wrapping, kind_of);
        let mut packet = PacketBuf::from_slice(&bytes);
        packet.segments = match kind {
            0 => Segments::One,
            1 => Segments::Tcp { mss: size },
            2 => Segments::Udp { size },
            _ => Segments::Burst { stride: size },
        };
        packet.checksum = Checksum::Partial { start: size, offset: 6 };
        let task = match size % 3 {
            _ if !crypto => OffloadTask::Protect,
            0 => OffloadTask::Segment { sequence: 1, count: size.into() },
            _ => OffloadTask::Encrypt { sequence: 1 },
        };
        let handover = OffloadOrder { device: NIC, handle, task };
        let sent = bed.transmit(vec![OffloadedPacket { packet, handover }]);
        if let Some(longest) = bytes.get(..24) {
            prop_assert!(sent.iter().all(|sent| !sent.bytes().ends_with(longest)));
        }
    }
}
