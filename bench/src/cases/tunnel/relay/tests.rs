use std::slice;

use uxfrm_packet::{Batch, Checksum, PacketBuf, Pool, Segments, SizeClass};

use super::reassembler::Reassembler;
use super::{RelayEncap, chunks};
use crate::cases::lookup::Random;

const STRIDE: u16 = RelayEncap::Udp.piece();

/// A packet as a TUN gives it: in a buffer of the class that fits, and full of numbers that are its own.
fn packet(len: usize, random: &mut Random) -> PacketBuf {
    let mut packet = Pool::new().take(SizeClass::holding(len));
    packet.append(len).unwrap().fill_with(|| random.next().to_be_bytes()[0]);
    packet.segments =
        random.pick(&[Segments::One, Segments::Tcp { mss: 1386 }, Segments::Udp { size: 1300 }]);
    let partial = Checksum::Partial { start: random.short(), offset: random.short() };
    packet.checksum = random.pick(&[Checksum::AsIs, Checksum::Verified, partial]);
    packet
}

/// What a packet becomes on the wire.
fn pieces(packet: &PacketBuf, number: u32, stride: u16) -> Vec<Vec<u8>> {
    let mut cut = in_class(packet);
    chunks::split(&mut cut, number, stride).unwrap();
    let single = Segments::Train { stride };
    assert_eq!(cut.segments == single, cut.len() > stride.into(), "{}", cut.len());
    cut.bytes().chunks(stride.into()).map(<[u8]>::to_vec).collect()
}

/// A copy in a buffer that is no larger than the TUN's.
fn in_class(packet: &PacketBuf) -> PacketBuf {
    let mut copy = Pool::new().take(SizeClass::holding(packet.len()));
    copy.append(packet.len()).unwrap().copy_from_slice(packet.bytes());
    copy.inherit(packet);
    copy
}

/// A message of these pieces, in a buffer like a socket's.
fn message(pieces: &[Vec<u8>], stride: u16) -> PacketBuf {
    let bytes = pieces.concat();
    let mut message = Pool::new().take(SizeClass::holding(bytes.len()));
    message.append(bytes.len()).unwrap().copy_from_slice(&bytes);
    if pieces.len() > 1 {
        message.segments = Segments::Train { stride };
    }
    message
}

/// What comes of the messages, and how many parcels were given up.
fn joined(messages: Vec<PacketBuf>, stride: u16) -> (Vec<PacketBuf>, u64) {
    let (mut reassembler, mut pool, mut whole) =
        (Reassembler::new(stride), Pool::new(), Batch::new());
    for message in messages {
        reassembler.take(message, &mut pool, &mut whole);
    }
    (whole.drain().collect(), reassembler.given_up())
}

fn assert_same(found: &[PacketBuf], expected: &[&PacketBuf]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.bytes() == expected.bytes(), "{} bytes", expected.len());
        let notes = |packet: &PacketBuf| (packet.segments, packet.checksum, packet.udp);
        assert_eq!(notes(found), notes(expected));
    }
}

/// Lengths at which pieces, what tags displace, or both just fit, and those around them.
fn lengths(stride: u16) -> Vec<usize> {
    let step = usize::from(stride);
    let around = (1..=45).flat_map(|pieces| {
        let displaced = pieces * 4;
        (pieces * step - displaced - 24)..(pieces * step - displaced + 24)
    });
    let edges = (1..=44).flat_map(|pieces| (pieces * step - 24)..(pieces * step + 8));
    (1..200).chain(around).chain(edges).chain(65_400..=65_535).filter(|len| *len < 65_536).collect()
}

#[test]
fn packets_of_every_length_come_out_as_they_went_in() {
    let mut random = Random::new(1);
    for encap in [RelayEncap::Udp, RelayEncap::Esp] {
        let stride = encap.piece();
        for len in lengths(stride) {
            let packet = packet(len, &mut random);
            let pieces = pieces(&packet, 7, stride);
            assert!(pieces.iter().rev().skip(1).all(|piece| piece.len() == usize::from(stride)));
            let trains = pieces.chunks(44).map(|train| message(train, stride)).collect();
            let singles =
                pieces.iter().map(|piece| message(slice::from_ref(piece), stride)).collect();
            for messages in [trains, singles] {
                let (whole, given_up) = joined(messages, stride);
                assert_same(&whole, &[&packet]);
                assert_eq!(given_up, 0);
            }
        }
    }
}

#[test]
fn trains_may_hold_the_end_of_one_packet_and_the_beginning_of_the_next() {
    let mut random = Random::new(2);
    for _ in 0..200 {
        let packets: Vec<_> = (0..4).map(|_| packet(1 + random.below(9000), &mut random)).collect();
        let on_wire: Vec<_> = (0..)
            .zip(&packets)
            .flat_map(|(number, packet)| pieces(packet, number, STRIDE))
            .collect();
        let mut messages = Vec::new();
        let mut rest = &on_wire[..];
        while !rest.is_empty() {
            // A shorter one ends a train, and it has one stride.
            let whole = rest.iter().take_while(|piece| piece.len() == usize::from(STRIDE)).count();
            let (train, others) = rest.split_at((1 + random.below(whole + 1)).min(rest.len()));
            messages.push(message(train, STRIDE));
            rest = others;
        }
        assert_same(&joined(messages, STRIDE).0, &packets.iter().collect::<Vec<_>>());
    }
}

#[test]
fn small_packets_of_one_train_are_taken_apart() {
    let mut random = Random::new(3);
    let packets: Vec<_> = (0..30).map(|_| packet(92, &mut random)).collect();
    let on_wire: Vec<_> =
        (0..).zip(&packets).flat_map(|(number, packet)| pieces(packet, number, STRIDE)).collect();
    let (whole, given_up) = joined(vec![message(&on_wire, 106)], STRIDE);
    assert_same(&whole, &packets.iter().collect::<Vec<_>>());
    assert_eq!(given_up, 0);
}

#[test]
fn a_lost_piece_costs_its_own_packet_only() {
    let mut random = Random::new(4);
    let packets: Vec<_> = (0..3).map(|_| packet(4000, &mut random)).collect();
    let on_wire: Vec<_> =
        (0..).zip(&packets).flat_map(|(number, packet)| pieces(packet, number, STRIDE)).collect();
    assert_eq!(on_wire.len(), 9);
    for lost in 0..on_wire.len() {
        let messages = on_wire.iter().enumerate().filter(|(nth, _)| *nth != lost);
        let messages = messages.map(|(_, piece)| message(slice::from_ref(piece), STRIDE)).collect();
        let whole: Vec<_> =
            (0..3).filter(|nth| *nth != lost / 3).map(|nth| &packets[nth]).collect();
        let (found, _) = joined(messages, STRIDE);
        assert_same(&found, &whole);
    }
}

#[test]
fn a_packet_whose_end_is_the_next_ones_is_not_made() {
    let mut random = Random::new(5);
    let [one, other] = [4000, 4000].map(|len| packet(len, &mut random));
    let (one, rest) = (pieces(&one, 1, STRIDE), pieces(&other, 2, STRIDE));
    let messages =
        [&one[0], &one[1], &rest[2]].map(|piece| message(slice::from_ref(piece), STRIDE));
    let (found, given_up) = joined(messages.into(), STRIDE);
    assert_same(&found, &[]);
    assert_eq!(given_up, 1);
    let train = message(&[one[0].clone(), rest[1].clone(), one[2].clone()], STRIDE);
    assert_same(&joined(vec![train], STRIDE).0, &[]);
}

#[test]
fn whatever_order_pieces_come_in_no_other_packets_are_made() {
    let mut random = Random::new(6);
    let mut made = 0;
    for _ in 0..300 {
        let packets: Vec<_> = (0..6).map(|_| packet(1 + random.below(6000), &mut random)).collect();
        let mut on_wire: Vec<_> = (0..)
            .zip(&packets)
            .flat_map(|(number, packet)| pieces(packet, number, STRIDE))
            .collect();
        for _ in 0..3 {
            let (one, other) = (random.below(on_wire.len()), random.below(on_wire.len()));
            on_wire.swap(one, other);
        }
        on_wire.remove(random.below(on_wire.len()));
        on_wire.push(on_wire[random.below(on_wire.len())].clone());
        let last = packet(3000, &mut random);
        on_wire.extend(pieces(&last, 9, STRIDE));
        let messages =
            on_wire.iter().map(|piece| message(slice::from_ref(piece), STRIDE)).collect();
        let (found, _) = joined(messages, STRIDE);
        for found in &found {
            let is_sent =
                packets.iter().chain([&last]).any(|packet| packet.bytes() == found.bytes());
            assert!(is_sent, "{} bytes that nobody sent", found.len());
        }
        assert_same(&found[found.len() - 1..], &[&last]);
        made += found.len();
    }
    assert!(made > 600, "some are made all the same: {made}");
}

#[test]
fn what_is_no_parcel_is_given_up() {
    let mut random = Random::new(7);
    let strange = |bytes: &[u8]| {
        let (found, _) = joined(vec![message(&[bytes.to_vec()], STRIDE)], STRIDE);
        assert_same(&found, &[]);
    };
    strange(&[]);
    strange(&[0; 3]);
    strange(&[0; 13]);
    strange(&[0xff; 1472]);
    let whole = pieces(&packet(100, &mut random), 1, STRIDE).concat();
    strange(&whole[..113]);
    strange(&[&whole[..], &[0]].concat());
    let mut first = pieces(&packet(4000, &mut random), 1, STRIDE)[0].clone();
    first[3] &= 0xc0; // it says that it is the last one, too
    strange(&first);
    assert!(chunks::split(&mut PacketBuf::from_slice(&[0; 65_536]), 1, STRIDE).is_none());
    assert!(chunks::join(&mut in_class(&packet(14, &mut random)), STRIDE).is_none());
}
