use std::slice;

use uxfrm_packet::{Batch, Checksum, PacketBuf, Pool, Segments, SizeClass};

use super::reassembler::Reassembler;
use super::{RelayEncap, chunks};
use crate::cases::lookup::Random;

const STRIDE: u16 = RelayEncap::Udp.chunk_len();

/// A packet as a TUN gives it, in a buffer of the class that fits, with random bytes.
fn packet(len: usize, random: &mut Random) -> PacketBuf {
    let mut packet = Pool::new().take(SizeClass::holding(len));
    packet.append(len).unwrap().fill_with(|| random.next().to_be_bytes()[0]);
    packet.segments =
        random.pick(&[Segments::One, Segments::Tcp { mss: 1386 }, Segments::Udp { size: 1300 }]);
    let partial = Checksum::Partial { start: random.short(), offset: random.short() };
    packet.checksum = random.pick(&[Checksum::AsIs, Checksum::Verified, partial]);
    packet
}

/// A packet's chunks on the wire.
fn split_chunks(packet: &PacketBuf, number: u32, stride: u16) -> Vec<Vec<u8>> {
    let mut cut = in_class(packet);
    chunks::split(&mut cut, number, stride).unwrap();
    let single = Segments::Burst { stride };
    assert_eq!(cut.segments == single, cut.len() > stride.into(), "{}", cut.len());
    cut.bytes().chunks(stride.into()).map(<[u8]>::to_vec).collect()
}

/// A copy in a buffer no larger than the TUN's.
fn in_class(packet: &PacketBuf) -> PacketBuf {
    let mut copy = Pool::new().take(SizeClass::holding(packet.len()));
    copy.append(packet.len()).unwrap().copy_from_slice(packet.bytes());
    copy.inherit(packet);
    copy
}

/// A message of these chunks, in a buffer like a socket's.
fn message(chunks: &[Vec<u8>], stride: u16) -> PacketBuf {
    let bytes = chunks.concat();
    let mut message = Pool::new().take(SizeClass::holding(bytes.len()));
    message.append(bytes.len()).unwrap().copy_from_slice(&bytes);
    if chunks.len() > 1 {
        message.segments = Segments::Burst { stride };
    }
    message
}

/// The packets that the messages hold, and how many were dropped.
fn joined(messages: Vec<PacketBuf>, stride: u16) -> (Vec<PacketBuf>, u64) {
    let (mut reassembler, mut pool, mut whole) =
        (Reassembler::new(stride), Pool::new(), Batch::new());
    for message in messages {
        reassembler.take(message, &mut pool, &mut whole);
    }
    (whole.drain().collect(), reassembler.incomplete())
}

fn assert_same(found: &[PacketBuf], expected: &[&PacketBuf]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.bytes() == expected.bytes(), "{} bytes", expected.len());
        let header = |packet: &PacketBuf| (packet.segments, packet.checksum, packet.udp);
        assert_eq!(header(found), header(expected));
    }
}

/// Lengths at which chunks and displaced bytes just fit, and those around them.
fn lengths(stride: u16) -> Vec<usize> {
    let step = usize::from(stride);
    let around = (1..=45).flat_map(|chunks| {
        let displaced = chunks * 4;
        (chunks * step - displaced - 24)..(chunks * step - displaced + 24)
    });
    let edges = (1..=44).flat_map(|chunks| (chunks * step - 24)..(chunks * step + 8));
    (1..200).chain(around).chain(edges).chain(65_400..=65_535).filter(|len| *len < 65_536).collect()
}

#[test]
fn packets_of_every_length_are_reassembled() {
    let mut random = Random::new(1);
    for encap in [RelayEncap::Udp, RelayEncap::Esp] {
        let stride = encap.chunk_len();
        for len in lengths(stride) {
            let packet = packet(len, &mut random);
            let chunks = split_chunks(&packet, 7, stride);
            assert!(chunks.iter().rev().skip(1).all(|chunk| chunk.len() == usize::from(stride)));
            let bursts = chunks.chunks(44).map(|burst| message(burst, stride)).collect();
            let singles =
                chunks.iter().map(|chunk| message(slice::from_ref(chunk), stride)).collect();
            for messages in [bursts, singles] {
                let (whole, incomplete) = joined(messages, stride);
                assert_same(&whole, &[&packet]);
                assert_eq!(incomplete, 0);
            }
        }
    }
}

#[test]
fn burst_with_chunks_of_two_packets_is_reassembled() {
    let mut random = Random::new(2);
    for _ in 0..200 {
        let packets: Vec<_> = (0..4).map(|_| packet(1 + random.below(9000), &mut random)).collect();
        let on_wire: Vec<_> = (0..)
            .zip(&packets)
            .flat_map(|(number, packet)| split_chunks(packet, number, STRIDE))
            .collect();
        let mut messages = Vec::new();
        let mut rest = &on_wire[..];
        while !rest.is_empty() {
            // A shorter chunk ends a burst, which has one stride.
            let whole = rest.iter().take_while(|chunk| chunk.len() == usize::from(STRIDE)).count();
            let (burst, others) = rest.split_at((1 + random.below(whole + 1)).min(rest.len()));
            messages.push(message(burst, STRIDE));
            rest = others;
        }
        assert_same(&joined(messages, STRIDE).0, &packets.iter().collect::<Vec<_>>());
    }
}

#[test]
fn burst_of_small_packets_is_reassembled() {
    let mut random = Random::new(3);
    let packets: Vec<_> = (0..30).map(|_| packet(92, &mut random)).collect();
    let on_wire: Vec<_> = (0..)
        .zip(&packets)
        .flat_map(|(number, packet)| split_chunks(packet, number, STRIDE))
        .collect();
    let (whole, incomplete) = joined(vec![message(&on_wire, 106)], STRIDE);
    assert_same(&whole, &packets.iter().collect::<Vec<_>>());
    assert_eq!(incomplete, 0);
}

#[test]
fn lost_chunk_drops_only_its_packet() {
    let mut random = Random::new(4);
    let packets: Vec<_> = (0..3).map(|_| packet(4000, &mut random)).collect();
    let on_wire: Vec<_> = (0..)
        .zip(&packets)
        .flat_map(|(number, packet)| split_chunks(packet, number, STRIDE))
        .collect();
    assert_eq!(on_wire.len(), 9);
    for lost in 0..on_wire.len() {
        let messages = on_wire.iter().enumerate().filter(|(nth, _)| *nth != lost);
        let messages = messages.map(|(_, chunk)| message(slice::from_ref(chunk), STRIDE)).collect();
        let whole: Vec<_> =
            (0..3).filter(|nth| *nth != lost / 3).map(|nth| &packets[nth]).collect();
        let (found, _) = joined(messages, STRIDE);
        assert_same(&found, &whole);
    }
}

#[test]
fn chunks_of_two_packets_are_not_joined() {
    let mut random = Random::new(5);
    let [one, other] = [4000, 4000].map(|len| packet(len, &mut random));
    let (one, rest) = (split_chunks(&one, 1, STRIDE), split_chunks(&other, 2, STRIDE));
    let messages =
        [&one[0], &one[1], &rest[2]].map(|chunk| message(slice::from_ref(chunk), STRIDE));
    let (found, incomplete) = joined(messages.into(), STRIDE);
    assert_same(&found, &[]);
    assert_eq!(incomplete, 1);
    let burst = message(&[one[0].clone(), rest[1].clone(), one[2].clone()], STRIDE);
    assert_same(&joined(vec![burst], STRIDE).0, &[]);
}

#[test]
fn reordered_chunks_make_no_other_packets() {
    let mut random = Random::new(6);
    let mut made = 0;
    for _ in 0..300 {
        let packets: Vec<_> = (0..6).map(|_| packet(1 + random.below(6000), &mut random)).collect();
        let mut on_wire: Vec<_> = (0..)
            .zip(&packets)
            .flat_map(|(number, packet)| split_chunks(packet, number, STRIDE))
            .collect();
        for _ in 0..3 {
            let (one, other) = (random.below(on_wire.len()), random.below(on_wire.len()));
            on_wire.swap(one, other);
        }
        on_wire.remove(random.below(on_wire.len()));
        on_wire.push(on_wire[random.below(on_wire.len())].clone());
        let last = packet(3000, &mut random);
        on_wire.extend(split_chunks(&last, 9, STRIDE));
        let messages =
            on_wire.iter().map(|chunk| message(slice::from_ref(chunk), STRIDE)).collect();
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
fn malformed_chunks_are_dropped() {
    let mut random = Random::new(7);
    let strange = |bytes: &[u8]| {
        let (found, _) = joined(vec![message(&[bytes.to_vec()], STRIDE)], STRIDE);
        assert_same(&found, &[]);
    };
    strange(&[]);
    strange(&[0; 3]);
    strange(&[0; 13]);
    strange(&[0xff; 1472]);
    let whole = split_chunks(&packet(100, &mut random), 1, STRIDE).concat();
    strange(&whole[..113]);
    strange(&[&whole[..], &[0]].concat());
    let mut first = split_chunks(&packet(4000, &mut random), 1, STRIDE)[0].clone();
    first[3] &= 0xc0; // claims to be the last chunk too
    strange(&first);
    assert!(chunks::split(&mut PacketBuf::from_slice(&[0; 65_536]), 1, STRIDE).is_none());
    assert!(chunks::join(&mut in_class(&packet(14, &mut random)), STRIDE).is_none());
}
