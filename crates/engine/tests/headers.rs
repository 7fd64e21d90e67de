//! Position of ESP among other headers, sequence numbers across 2^32, and allocations of a warm
//! worker.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

use uxfrm_engine::sa::config::SaFlags;
use uxfrm_engine::{DropReason, Family, Mode, SaFailures, Spi, XfrmCounter};
use uxfrm_packet::{IpPacket, PacketBuf, Protocol, ipv4};
use uxfrm_testkit::{FIRST_SPI, IpsecSetup, PairDirection, Rng, TestGatewayPair, packets};

/// An IPv6 packet with extension headers before its datagram.
fn with_extensions(kinds: &[Protocol]) -> Vec<u8> {
    let mut packet = packets::udp_bytes("[2001:db8::1]:7", "[2001:db8::2]:9", b"datagram");
    let mut announced_at = 6;
    for (number, kind) in kinds.iter().enumerate() {
        let at = 40 + 8 * number;
        // PadN fills the options; a routing header of type 4 with nothing left does nothing.
        let upper = packet[announced_at];
        let filling = if *kind == Protocol::ROUTING {
            [upper, 0, 4, 0, 0, 0, 0, 0]
        } else {
            [upper, 0, 1, 4, 0, 0, 0, 0]
        };
        packet.splice(at..at, filling);
        packet[announced_at] = kind.0;
        announced_at = at;
    }
    let len = u16::try_from(packet.len() - 40).unwrap();
    packet[4..6].copy_from_slice(&len.to_be_bytes());
    packet
}

#[test]
fn esp_is_placed_behind_per_hop_headers() {
    const HOP: Protocol = Protocol::HOPOPTS;
    const DST: Protocol = Protocol::DSTOPTS;
    const RT: Protocol = Protocol::ROUTING;
    let mut pair = TestGatewayPair::new(&IpsecSetup::new(Mode::Transport, Family::V6, Family::V6));
    // How many of the headers stay before ESP.
    for (kinds, outside) in [
        (&[][..], 0),
        (&[HOP], 1),
        (&[DST], 0),
        (&[HOP, DST], 1),
        (&[HOP, RT, DST], 2),
        (&[HOP, DST, RT, DST], 3),
    ] {
        let plain = with_extensions(kinds);
        let arrived = pair.left_to_right(vec![PacketBuf::from_slice(&plain)]);
        let sent = IpPacket::parse(pair.last_on_wire[0].bytes()).unwrap();
        assert_eq!(
            (sent.protocol, sent.header_len),
            (Protocol::ESP, 40 + 8 * outside),
            "{kinds:?}"
        );
        assert_eq!(arrived.len(), 1, "{kinds:?} {:?}", pair.right.reasons());
        assert!(arrived[0].bytes() == plain, "{kinds:?}");
    }
}

#[test]
fn ipv4_options_stay_outside_in_transport_mode_and_inside_in_a_tunnel() {
    for (mode, source, destination) in [
        (Mode::Transport, "192.0.2.1:7", "192.0.2.2:9"),
        (Mode::Tunnel, "10.1.0.1:7", "10.2.0.1:9"),
    ] {
        let mut plain = packets::udp_bytes(source, destination, b"datagram");
        plain.splice(20..20, [0x94, 4, 0, 0]);
        plain[0] = 0x46;
        let len = u16::try_from(plain.len()).unwrap();
        plain[2..4].copy_from_slice(&len.to_be_bytes());
        ipv4::fill_checksum(&mut plain).unwrap();
        let mut pair = TestGatewayPair::new(&IpsecSetup::new(mode, Family::V4, Family::V4));
        let arrived = pair.left_to_right(vec![PacketBuf::from_slice(&plain)]);
        let sent = IpPacket::parse(pair.last_on_wire[0].bytes()).unwrap();
        assert_eq!(sent.has_options, mode == Mode::Transport);
        assert!(arrived[0].bytes() == plain);
    }
}

fn datagram() -> PacketBuf {
    packets::udp("10.1.0.1:7", "10.2.0.1:9", b"payload")
}

/// SAs that have sent, and received, `sent` packets already.
fn after(flags: SaFlags, sent: u64) -> TestGatewayPair {
    let setup = IpsecSetup { flags, ..IpsecSetup::tunnel4() };
    let mut pair = TestGatewayPair::without_sas(&setup);
    for gateway in [&mut pair.left, &mut pair.right] {
        let mut state = setup.sa(PairDirection::LeftToRight, FIRST_SPI);
        (state.replay.sent, state.replay.received) = (sent, sent);
        gateway.add_sa(state);
    }
    pair
}

#[test]
fn esn_continues_above_32_bits() {
    let mut pair = after(SaFlags::ESN, (1 << 32) - 50);
    let wire = pair.left.outbound((0..100).map(|_| datagram()).collect()).0;
    let again: Vec<_> = wire.iter().map(|packet| PacketBuf::from_slice(packet.bytes())).collect();
    // Swapped in pairs, across the border too.
    let mut swapped: Vec<_> = wire.into_iter().map(Some).collect();
    for pair in swapped.chunks_mut(2) {
        pair.reverse();
    }
    assert_eq!(pair.right.inbound(swapped.into_iter().flatten().collect()).len(), 100);
    assert!(pair.right.inbound(again).is_empty());
    let (old, replayed) =
        (pair.right.drops(DropReason::InTooOld), pair.right.drops(DropReason::InReplay));
    // A number below the window is taken for one 2^32 ahead, whose ICV is wrong (RFC 4303 §A2.2).
    assert_eq!((old, replayed, pair.right.drops(DropReason::InForged)), (0, 64, 36));
}

#[test]
fn numbers_without_esn_end_at_32_bits() {
    let mut pair = after(SaFlags::empty(), (1 << 32) - 50);
    let sent = (0..100).map(|_| datagram()).collect();
    assert_eq!(pair.left_to_right(sent).len(), 49);
    assert_eq!(pair.left.drops(DropReason::OutSequenceOverflow), 51);
    pair.assert_accounts();
}

/// The disk is slow: numbers up to 10 are stored. Packets without a number get this drop reason in
/// any batch, not that of an exhausted SA.
#[test]
fn missing_reservation_has_its_own_drop_reason() {
    for at_once in [1, 7, 20, 64_u64] {
        let mut pair = TestGatewayPair::new(&IpsecSetup::tunnel4());
        let snapshot = pair.left.database.snapshot();
        let sends = snapshot.sad.iter().find(|sa| sa.id().spi == Spi(FIRST_SPI)).cloned();
        sends.unwrap().sequence().reserve(10);
        let mut sent = 0;
        let mut received = 0;
        while received < 128 {
            sent += pair.left.outbound((0..at_once).map(|_| datagram()).collect()).0.len();
            received += at_once;
        }
        let dropped = received - 10;
        assert_eq!(sent, 10, "{at_once} at once");
        assert_eq!(pair.left.reasons(), [(DropReason::OutSequenceReserve, dropped)]);
    }
    let mut pair = TestGatewayPair::new(&IpsecSetup::tunnel4());
    let snapshot = pair.left.database.snapshot();
    snapshot.sad.iter().for_each(|sa| sa.sequence().reserve(3));
    let several = packets::tcp_super("10.1.0.1:7", "10.2.0.1:9", &[7; 5000], 1000);
    pair.left.outbound(vec![several]);
    assert_eq!(pair.left.reasons(), [(DropReason::OutSequenceReserve, 2)]);
}

#[test]
fn number_far_ahead_advances_window() {
    let mut pair = after(SaFlags::empty(), 0);
    let mut wire = pair.left.outbound((0..200).map(|_| datagram()).collect()).0;
    let last = wire.pop().unwrap();
    assert_eq!(pair.right.inbound(vec![last]).len(), 1);
    assert_eq!(pair.right.inbound(wire).len(), 63);
    assert_eq!(pair.right.drops(DropReason::InTooOld), 136);
}

/// As in the kernel, number 0 counts as no failure of the SA.
#[test]
fn number_zero_counts_no_sa_failure() {
    for flags in [SaFlags::empty(), SaFlags::ESN] {
        let mut pair = after(flags, 0);
        let mut packet = pair.left.outbound(vec![datagram()]).0.remove(0);
        packet.bytes_mut()[24..28].copy_from_slice(&[0; 4]);
        assert!(pair.right.inbound(vec![packet]).is_empty());
        let snapshot = pair.right.database.snapshot();
        let failures = snapshot.sad.iter().map(|sa| sa.usage().failures());
        assert_eq!(failures.collect::<Vec<_>>(), [SaFailures::default()]);
        assert_eq!(DropReason::InNoNumber.counter(), Some(XfrmCounter::InStateSeqError));
        assert_eq!(pair.right.drops(DropReason::InNoNumber), 1);
    }
}

#[test]
fn any_flipped_bit_is_refused() {
    let mut pair = TestGatewayPair::new(&IpsecSetup::tunnel4());
    let good = pair.left.outbound(vec![datagram()]).0.remove(0);
    let mut rng = Rng::new(3);
    for place in 20..good.len() {
        let mut bad = PacketBuf::from_slice(good.bytes());
        bad.bytes_mut()[place] ^= 1 << rng.below(8);
        assert!(pair.right.inbound(vec![bad]).is_empty(), "byte {place}");
    }
    assert_eq!(pair.right.inbound(vec![good]).len(), 1);
}

#[test]
fn warm_worker_allocates_no_buffers() {
    let mut pair = TestGatewayPair::new(&IpsecSetup::tunnel4());
    let mut allocated = Vec::new();
    for _ in 0..20 {
        let sent = vec![
            packets::tcp_super("10.1.0.1:7", "10.2.0.1:9", &[5; 40_000], 1300),
            packets::tcp_super("10.1.0.1:7", "10.2.0.1:9", &[5; 600], 500),
        ];
        let wire = pair.left.outbound(sent).0;
        for packet in wire {
            pair.left.pool.give(packet);
        }
        allocated.push(pair.left.pool.stats().allocated);
    }
    assert_eq!(allocated[0], allocated[19], "{allocated:?}");
}

/// RFC 4303 §3.1.1 allows destination options before ESP too; we put them behind it, others may
/// not.
#[test]
fn destination_options_before_esp_are_kept() {
    let mut pair = TestGatewayPair::new(&IpsecSetup::new(Mode::Transport, Family::V6, Family::V6));
    let plain = packets::udp("[2001:db8::1]:7", "[2001:db8::2]:9", b"datagram");
    let upper = plain.bytes()[40..].to_vec();
    let mut wire = pair.left.outbound(vec![plain]).0.remove(0).bytes().to_vec();
    wire.splice(40..40, [Protocol::ESP.0, 0, 1, 4, 0, 0, 0, 0]);
    wire[6] = Protocol::DSTOPTS.0;
    let len = u16::try_from(wire.len() - 40).unwrap();
    wire[4..6].copy_from_slice(&len.to_be_bytes());
    let arrived = pair.right.inbound(vec![PacketBuf::from_slice(&wire)]);
    assert_eq!(arrived.len(), 1, "{:?}", pair.right.reasons());
    let ip = IpPacket::parse(arrived[0].bytes()).unwrap();
    assert_eq!((ip.protocol, ip.header_len), (Protocol::UDP, 48));
    assert_eq!(ip.upper(arrived[0].bytes()), upper);
}
