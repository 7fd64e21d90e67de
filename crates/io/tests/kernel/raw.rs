use std::net::Ipv6Addr;

use uxfrm_io::{Port, Raw, RawOptions};
use uxfrm_packet::{Batch, PacketBuf, Pool, Segments, Version};

use crate::{in_namespace, receive_until, sum};

fn ipv4(payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![0x45, 0xba, length[0], length[1], 0, 0, 0x40, 0, 61, 50, 0, 0];
    bytes.extend([127, 0, 0, 1, 127, 0, 0, 2]);
    bytes.extend(payload);
    bytes
}

fn ipv6(payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![0x6b, 0xa0, 0, 0, length[0], length[1], 50, 61];
    bytes.extend(Ipv6Addr::LOCALHOST.octets());
    bytes.extend(Ipv6Addr::LOCALHOST.octets());
    bytes.extend(payload);
    bytes
}

fn round_trip(version: Version, packet: fn(&[u8]) -> Vec<u8>) {
    let mut port = Raw::open(&RawOptions { mark: 3, ..RawOptions::new(version) }).unwrap();
    let mut train =
        PacketBuf::from_slice(&[packet(&[1; 500]), packet(&[2; 500]), packet(&[3; 99])].concat());
    let stride = u16::try_from(packet(&[0; 500]).len()).unwrap();
    train.segments = Segments::Train { stride };
    let single = PacketBuf::from_slice(&packet(&[4; 5000]));
    let mut batch: Batch = [train, single].into_iter().collect();
    let done = port.transmit(&mut batch, &mut Pool::new());
    assert_eq!((done.packets, done.refused.packets()), (4, 0), "{done:?}");
    let got = receive_until(&mut port, |got| got.len() == 4);
    let sent = [packet(&[1; 500]), packet(&[2; 500]), packet(&[3; 99]), packet(&[4; 5000])];
    for (got, sent) in got.iter().zip(&sent) {
        let mut bytes = got.bytes().to_vec();
        if version == Version::V4 {
            assert_eq!(sum(&bytes[..20]), 0xffff, "the kernel's header checksum");
            bytes[4..6].fill(0);
            bytes[10..12].fill(0);
        }
        assert_eq!(&bytes, sent);
    }
    assert_eq!(got.len(), 4);
}

#[test]
fn esp_over_ipv4_goes_out_and_comes_in_whole() {
    in_namespace(|| round_trip(Version::V4, ipv4));
}

#[test]
fn esp_over_ipv6_goes_out_whole_and_gets_its_header_back() {
    in_namespace(|| round_trip(Version::V6, ipv6));
}

#[test]
fn what_is_too_big_or_of_the_other_version_is_refused() {
    in_namespace(|| {
        let mut kernel = uxfrm_io::Rtnetlink::open().unwrap();
        let lo = kernel.link("lo").unwrap().index;
        kernel.set_mtu(lo, 1400).unwrap();
        for (version, packet, other) in [
            (Version::V4, ipv4 as fn(&[u8]) -> Vec<u8>, ipv6 as fn(&[u8]) -> Vec<u8>),
            (Version::V6, ipv6, ipv4),
        ] {
            let mut port = Raw::open(&RawOptions::new(version)).unwrap();
            let mut batch: Batch = [packet(&[0; 1500]), other(&[0; 10]), packet(&[0; 10]), vec![]]
                .iter()
                .map(|bytes| PacketBuf::from_slice(bytes))
                .collect();
            let done = port.transmit(&mut batch, &mut Pool::new());
            assert_eq!(
                (done.packets, done.refused.too_big, done.refused.failed),
                (1, 1, 2),
                "{done:?}"
            );
            assert_eq!(done.refused.mtu, Some(1400));
        }
    });
}
