//! Entry points of the fuzzers in `fuzz/`: foreign bytes through decoders, without system calls.
//! Built for tests and fuzzers only.

use std::io::Cursor;
use std::sync::mpsc::sync_channel;

use uxfrm_packet::{Checksum, PacketBuf, Pool, Segments, UdpPath};

use crate::ike;

use crate::pcap::PcapReader;
use crate::virtio::{HEADER, VirtioHeader};

/// Decodes a packet behind its virtio header, or a capture file, as the first byte says.
///
/// # Panics
/// When a decoder does, or accepts an impossible value.
pub fn decode(bytes: &[u8]) {
    match bytes.split_first() {
        Some((0, rest)) => virtio(rest),
        Some((_, rest)) => capture(rest),
        None => {}
    }
}

/// Decodes a datagram of rtnetlink or `nf_tables` as the kernel answers, an IKE message of a
/// daemon, or a packet at a shared port, as the first byte says.
///
/// # Panics
/// When a decoder does, or accepts an impossible value.
pub fn answers(bytes: &[u8]) {
    match bytes.split_first() {
        Some((0, rest)) => crate::rtnetlink::bytes::decode(rest),
        Some((1, rest)) => crate::nftables::bytes::decode(rest),
        Some((2, rest)) => ike::there_and_back(rest),
        Some((_, rest)) => shared_port(rest),
        None => {}
    }
}

/// A GSO burst behind its segment length: what is not taken stays, in order.
fn shared_port(bytes: &[u8]) {
    let Some((&stride, bytes)) = bytes.split_first() else { return };
    let mut packet = PacketBuf::from_slice(bytes);
    packet.udp = Some(UdpPath {
        local: ([192, 0, 2, 2], 4500).into(),
        remote: ([192, 0, 2, 1], 4500).into(),
        tos: 0,
        dont_fragment: false,
    });
    if stride > 0 {
        packet.segments = Segments::Burst { stride: stride.into() };
    }
    let (sender, messages) = sync_channel(3);
    let is_left = ike::take(&mut packet, &sender);
    assert!(!is_left || !packet.is_empty() || bytes.is_empty());
    let taken: Vec<_> = messages.try_iter().collect();
    assert_eq!(
        taken.iter().map(|taken| taken.payload.len()).sum::<usize>() + packet.len(),
        bytes.len()
    );
    assert!(taken.iter().all(|taken| taken.payload.starts_with(&[0; 4])));
}

fn virtio(bytes: &[u8]) {
    let Some((header, bytes)) = bytes.split_first_chunk::<HEADER>() else { return };
    let mut packet = PacketBuf::from_slice(bytes);
    let header = VirtioHeader::from_bytes(*header);
    assert_eq!(VirtioHeader::from_bytes(header.to_bytes()), header);
    header.note(&mut packet);
    if let Checksum::Partial { start, offset } = packet.checksum {
        assert!(usize::from(start) + usize::from(offset) + 2 <= bytes.len());
    }
    assert!(!matches!(packet.segments, Segments::Burst { .. }));
    let mut again = PacketBuf::from_slice(bytes);
    let written = VirtioHeader::of(&packet);
    VirtioHeader::from_bytes(written.to_bytes()).note(&mut again);
    assert_eq!(again.segments, packet.segments);
}

fn capture(bytes: &[u8]) {
    let Ok(mut source) = PcapReader::of(Box::new(Cursor::new(bytes.to_vec()))) else { return };
    let mut pool = Pool::new();
    while let Ok(Some(packet)) = source.next(&mut pool) {
        assert!(!packet.is_empty());
        pool.give(packet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seeds of the corpus.
    #[test]
    #[ignore = "writes fuzz/corpus/io: for `make fuzz-seeds`"]
    fn seeds() {
        let corpus = uxfrm_testkit::fuzz::Corpus::of("io");
        for (kind, size) in [(0, 0), (1, 1000), (4, 1000), (5, 512)] {
            let mut input = vec![0, 1, kind];
            for field in [54_u16, size, 20, 16] {
                input.extend(field.to_ne_bytes());
            }
            let packet = uxfrm_testkit::packets::tcp("10.1.0.1:7", "10.2.0.1:9", 1, &[7; 30]);
            input.extend(packet.bytes());
            corpus.add(&format!("seed-virtio-{kind}"), &input);
        }
        let header = |link: u32| {
            let fields = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 0xffff, link, 1, 2, 44, 44];
            fields.map(u32::to_le_bytes).concat()
        };
        let ip = uxfrm_testkit::packets::udp("10.1.0.1:7", "10.2.0.1:9", &[7; 16]);
        corpus.add("seed-pcap-raw", &[&[1][..], &header(101), ip.bytes()].concat());
        let frame = [&[2; 12][..], &[8, 0], &ip.bytes()[..30]].concat();
        corpus.add("seed-pcap-ethernet", &[&[1][..], &header(1), &frame].concat());
        let section = [0x0a0d_0d0a, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28];
        let interface = [1, 20, 101, 0xffff, 20];
        let block = [&[6_u32, 32 + 44, 0, 0, 0, 44, 44][..]].concat();
        let words = [&section[..], &interface, &block].concat();
        let words: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        let end = 76_u32.to_le_bytes();
        corpus.add("seed-pcapng", &[&[1][..], &words, ip.bytes(), &end].concat());
    }

    #[test]
    #[ignore = "writes fuzz/corpus/kernel: for `make fuzz-seeds`"]
    fn seeds_of_answers() {
        let corpus = uxfrm_testkit::fuzz::Corpus::of("kernel");
        let add = |kind: u8, name: &str, bytes: &[u8]| {
            corpus.add(&format!("seed-{name}"), &[&[kind][..], bytes].concat());
        };
        for (number, datagram) in crate::rtnetlink::bytes::seeds().iter().enumerate() {
            add(0, &format!("rtnetlink-{number}"), datagram);
        }
        for (number, datagram) in crate::nftables::bytes::seeds().iter().enumerate() {
            add(1, &format!("nf_tables-{number}"), datagram);
        }
        let ends = [
            &b"uxd1\x04\x00\0\0\x11\x94\x01\xf4\0\0\0\0"[..],
            &[192, 0, 2, 1],
            &[0; 12],
            &[192, 0, 2, 2],
            &[0; 12],
        ];
        let ike = [&[0; 4][..], &[7; 28]].concat();
        add(2, "ike", &[&ends.concat()[..], &ike].concat());
        add(3, "shared", &[&[32][..], &ike, &[9; 32], &ike, &[8; 5]].concat());
    }

    #[test]
    fn the_corpus_breaks_nothing() {
        uxfrm_testkit::fuzz::replay("io", decode);
        uxfrm_testkit::fuzz::replay("kernel", answers);
    }
}
