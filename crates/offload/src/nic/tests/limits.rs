//! Counts, limits and the end of numbers: each event once, nothing passes after a hard limit.

use uxfrm_engine::{LifetimeLimits, ReplayConfig, SoftHardLimit};

use super::*;

fn packets_limited(soft: u64, hard: u64) -> IpsecSetup {
    let packets = SoftHardLimit { soft, hard };
    IpsecSetup {
        limits: LifetimeLimits { packets, ..LifetimeLimits::default() },
        ..IpsecSetup::tunnel4()
    }
}

#[test]
fn soft_limit_once_hard_limit_once_then_nothing_in_both_directions() {
    let wrapping = packets_limited(5, 8);
    let (mut left, mut right) = (TestBed::new("connectx6dx"), TestBed::new("connectx6dx"));
    let out = left.add_sending(&wrapping, OffloadKind::Packet);
    let into = right.add_receiving(&wrapping, OffloadKind::Packet);
    let mut sender = Sender::new(&IpsecSetup::tunnel4().sa(PairDirection::LeftToRight, FIRST_SPI));
    let state = wrapping.sa(PairDirection::LeftToRight, FIRST_SPI).id;
    let soft = |handle| NicEvent::SoftLimit { handle, state };
    let hard = |handle| NicEvent::HardLimit { handle, state };
    let plain = datagrams(&wrapping, &[64]);
    for number in 1..=20 {
        let sent = left.protect(out, copies(&plain)).len();
        let esp = sender.esp(&plain[0], number);
        let received = right.receive(vec![esp]).len();
        assert_eq!((sent, received), if number <= 8 { (1, 1) } else { (0, 0) }, "{number}");
        // As in software, the packet after the one that reached a limit sees it.
        let expected = |handle| match number {
            6 => vec![soft(handle)],
            9 => vec![hard(handle)],
            _ => vec![],
        };
        assert_eq!(left.events(), expected(out), "{number}");
        assert_eq!(right.events(), expected(into), "{number}");
    }
    assert_eq!(left.nic.drops().of(NicDrop::TxHardLimit), 12);
    assert_eq!(right.nic.drops().of(NicDrop::RxHardLimit), 12);
    assert_eq!((left.counts(out).packets, right.counts(into).packets), (8, 8));
}

#[test]
fn limits_of_bytes_lie_within_a_super_packet_too() {
    let bytes = SoftHardLimit { soft: 5_000, hard: 10_000 };
    let wrapping = IpsecSetup {
        limits: LifetimeLimits { bytes, ..LifetimeLimits::default() },
        ..IpsecSetup::tunnel4()
    };
    let mut bed = TestBed::new("unlimited");
    let handle = bed.add_sending(&wrapping, OffloadKind::Packet);
    let super_packet = packets::tcp_super("10.1.0.1:7", "10.2.0.1:9", &[7; 20_000], 960);
    // Segments of 1000 bytes: the eleventh finds the limit reached.
    assert_eq!(bed.protect(handle, vec![super_packet]).len(), 10);
    assert_eq!(bed.events().len(), 2);
    assert_eq!(bed.nic.drops().of(NicDrop::TxHardLimit), 11);
    assert_eq!(bed.counts(handle).bytes, 10_000);
}

#[test]
fn sequence_ends_without_esn_and_continues_with_it() {
    let plain = datagrams(&IpsecSetup::tunnel4(), &[64]);
    for (flags, passed) in [(SaFlags::empty(), 2), (SaFlags::ESN, 5)] {
        let event = |handle, state| match passed {
            5 => NicEvent::SequenceWrap { handle, state },
            _ => NicEvent::SequenceEnd { handle, state },
        };
        let wrapping = IpsecSetup { flags, ..IpsecSetup::tunnel4() };
        let mut bed = TestBed::new("unlimited");
        let mut sa = wrapping.sa(PairDirection::LeftToRight, FIRST_SPI);
        sa.replay = ReplayConfig { sent: u64::from(u32::MAX) - 2, ..sa.replay };
        let state = sa.id;
        let handle = bed.add(sa, OffloadKind::Packet, Direction::Out);
        let sent: u64 = (0..5).map(|_| bed.protect(handle, copies(&plain)).len() as u64).sum();
        assert_eq!(sent, passed, "{flags:?}");
        assert_eq!(bed.events(), [event(handle, state)], "{flags:?}");
        assert_eq!(bed.nic.drops().of(NicDrop::TxSequence), 5 - passed);
    }
}

#[test]
fn receiver_infers_esn_upper_half() {
    let wrapping = IpsecSetup { flags: SaFlags::ESN, ..IpsecSetup::tunnel4() };
    let mut sa = wrapping.sa(PairDirection::LeftToRight, FIRST_SPI);
    sa.replay.received = u64::from(u32::MAX) - 3;
    let state = sa.id;
    let mut bed = TestBed::new("connectx6dx");
    let handle = bed.add(sa, OffloadKind::Packet, Direction::In);
    let mut sender = Sender::new(&wrapping.sa(PairDirection::LeftToRight, FIRST_SPI));
    let plain = datagrams(&wrapping, &[64]);
    let first = u64::from(u32::MAX) - 2;
    let wire = (first..first + 6).map(|number| sender.esp(&plain[0], number)).collect();
    assert_eq!(bed.receive(wire).len(), 6);
    assert_eq!(bed.events(), [NicEvent::SequenceWrap { handle, state }]);
    assert_eq!(bed.counts(handle).received, first + 5);
}

#[test]
fn only_reserved_numbers_are_sent() {
    let wrapping = IpsecSetup::tunnel4();
    let mut bed = TestBed::new("unlimited");
    let handle = bed.add_sending(&wrapping, OffloadKind::Packet);
    // A restart: the numbers up to 500 may have been used.
    bed.port().reserve(handle, 501..=503);
    let plain = datagrams(&wrapping, &[64; 5]);
    let number =
        |packet: &PacketBuf| u32::from_be_bytes(*packet.bytes()[24..].first_chunk().unwrap());
    let sent = bed.protect(handle, copies(&plain));
    assert_eq!(sent.iter().map(number).collect::<Vec<_>>(), [501, 502, 503]);
    assert_eq!(bed.nic.drops().of(NicDrop::TxSequenceReserve), 2);
    assert_eq!(bed.events(), [], "more may be reserved");
    bed.port().reserve(handle, 504..=600);
    assert_eq!(bed.protect(handle, plain).len(), 5);
}
