use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

use uxfrm_io::{FanoutShare, Port, Raw, RawOptions};
use uxfrm_packet::{Batch, IpPacket, PacketBuf, Pool, Protocol, Segments, Version};
use uxfrm_testkit::packets;

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
    let mut burst =
        PacketBuf::from_slice(&[packet(&[1; 500]), packet(&[2; 500]), packet(&[3; 99])].concat());
    let stride = u16::try_from(packet(&[0; 500]).len()).unwrap();
    burst.segments = Segments::Burst { stride };
    let single = PacketBuf::from_slice(&packet(&[4; 5000]));
    let mut batch: Batch = [burst, single].into_iter().collect();
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
fn oversized_or_other_version_is_refused() {
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
            let path = done.refused.path.unwrap();
            let to = IpPacket::parse(&packet(&[])).unwrap().destination;
            assert_eq!((path.to, path.mtu), (to, 1400));
        }
    });
}

/// Packets of 64 states, ten of each, over three ports that share them.
fn spread(version: Version, packet: fn(&[u8]) -> Vec<u8>) {
    let open = |nth| {
        let share = FanoutShare::new(nth, 3).unwrap();
        Raw::open(&RawOptions { share, ..RawOptions::new(version) }).unwrap()
    };
    let mut ports = [open(0), open(1), open(2)];
    let numbers = (0..640_u32).map(|number| (0x1000 + number % 64, number));
    let sent =
        numbers.map(|(spi, number)| packet(&[spi.to_be_bytes(), number.to_be_bytes()].concat()));
    let short = packet(&[1, 2, 3]);
    let sent: Vec<_> = sent.chain([short]).collect();
    for packets in sent.chunks(64) {
        let mut batch: Batch = packets.iter().map(|bytes| PacketBuf::from_slice(bytes)).collect();
        assert_eq!(ports[0].transmit(&mut batch, &mut Pool::new()).refused.packets(), 0);
    }
    let header = packet(&[]).len();
    let mut owner = std::collections::BTreeMap::new();
    let mut total = 0;
    for (nth, port) in ports.iter_mut().enumerate() {
        let got = receive_until(port, |_| false);
        let payloads = got.iter().map(|got| &got.bytes()[header..]);
        let (whole, short): (Vec<_>, Vec<_>) = payloads.partition(|payload| payload.len() == 8);
        assert!(
            short.len() == usize::from(nth == 0),
            "what has no SPI comes to the first one, once"
        );
        assert!(whole.is_sorted_by_key(|payload| payload[4..8].to_vec()), "in order");
        assert!(whole.len() > 64, "port {nth} has {} of 640", whole.len());
        for payload in &whole {
            assert_eq!(*owner.entry(payload[..4].to_vec()).or_insert(nth), nth, "one port a state");
        }
        total += whole.len();
    }
    assert_eq!(total, 640, "each packet came once");
}

#[test]
fn esp_fanout_shares_by_spi() {
    in_namespace(|| spread(Version::V4, ipv4));
    in_namespace(|| spread(Version::V6, ipv6));
}

#[test]
fn timed_raw_port_reports_waiting_time() {
    const WAIT: Duration = Duration::from_millis(20);
    in_namespace(|| {
        for (version, packet) in [(Version::V4, ipv4 as fn(&[u8]) -> Vec<u8>), (Version::V6, ipv6)]
        {
            for timed in [true, false] {
                let mut port =
                    Raw::open(&RawOptions { timed, ..RawOptions::new(version) }).unwrap();
                // The kernel begins to note times a moment after it was asked to.
                std::thread::sleep(WAIT);
                let mut batch: Batch =
                    [PacketBuf::from_slice(&packet(&[1; 50]))].into_iter().collect();
                assert_eq!(port.transmit(&mut batch, &mut Pool::new()).packets, 1);
                std::thread::sleep(WAIT);
                assert_eq!(receive_until(&mut port, |got| !got.is_empty()).len(), 1);
                assert_eq!(port.waited() >= WAIT, timed, "{version:?}: {:?}", port.waited());
            }
        }
    });
}

/// Sends so many packets and looks at none until all are sent: those that came, and those that are
/// said to be lost.
fn overflow(version: Version, packet: fn(&[u8]) -> Vec<u8>, sent: u64) -> (u64, u64) {
    let small = RawOptions { buffer: 4096, ..RawOptions::new(version) };
    let (mut port, mut pool) = (Raw::open(&small).unwrap(), Pool::new());
    assert_eq!(port.overflowed(), 0);
    for number in 0..sent {
        let payload = number.to_be_bytes();
        let mut batch: Batch = [PacketBuf::from_slice(&packet(&payload))].into_iter().collect();
        assert_eq!(port.transmit(&mut batch, &mut pool).packets, 1);
    }
    // The last one is lost, so that no later packet would bring the count, as it does with
    // `SO_RXQ_OVFL`.
    let (mut lost, mut came) = (0, 0);
    let deadline = Instant::now() + Duration::from_secs(10);
    while came + lost < sent && Instant::now() < deadline {
        lost += port.overflowed();
        if lost > 0 {
            let mut batch = Batch::new();
            port.receive(&mut pool, &mut batch).unwrap();
            came += batch.len() as u64;
        }
    }
    assert_eq!(port.overflowed(), 0, "what was told is not told again");
    (came, lost)
}

#[test]
fn full_queue_losses_are_counted() {
    in_namespace(|| {
        for (version, packet) in [(Version::V4, ipv4 as fn(&[u8]) -> _), (Version::V6, ipv6)] {
            let (came, lost) = overflow(version, packet, 500);
            assert!(came > 0 && lost > 0, "{came} came, {lost} lost");
            assert_eq!(came + lost, 500);
        }
    });
}

/// What the kernel says on a TUN for that link alone is lost to nobody; other packets are.
#[test]
fn chatter_of_a_link_does_not_count_as_refused() {
    in_namespace(|| {
        let from = "fd00::1".parse().unwrap();
        let mut port = Raw::open(&RawOptions::new(Version::V6)).unwrap();
        let mut refused = |to: &str, protocol| {
            let packet = packets::ip(from, to.parse().unwrap(), protocol, &[143; 24]);
            let mut batch: Batch = [PacketBuf::from_slice(&packet)].into_iter().collect();
            port.transmit(&mut batch, &mut Pool::new()).refused
        };
        for link in ["ff02::16", "ff02::2", "fe80::7"] {
            assert_eq!(refused(link, Protocol::ICMPV6).packets(), 0, "{link}");
        }
        let elsewhere = refused("2001:db8::9", Protocol::ICMPV6);
        assert_eq!((elsewhere.failed, elsewhere.errno), (1, Some(libc::ENETUNREACH)));
        assert_eq!(refused("ff02::16", Protocol::ESP).failed, 1);
    });
}
