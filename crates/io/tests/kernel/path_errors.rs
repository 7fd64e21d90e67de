use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use uxfrm_io::{Port, Raw, RawOptions, icmp_errors::IcmpErrors, icmp_sender::IcmpSender};
use uxfrm_packet::{Batch, PacketBuf, Pool, Protocol, Version, checksum::Sum};
use uxfrm_testkit::packets;

use crate::in_namespace;

/// An ICMP message to the host itself, about what it would have sent to `about`.
fn message(kind: u8, code: u8, about: IpAddr, quoted: usize) -> PacketBuf {
    let (own, protocol): (IpAddr, _) = match about {
        IpAddr::V4(_) => ([127, 0, 0, 1].into(), Protocol::ICMP),
        IpAddr::V6(_) => ("::1".parse().unwrap(), Protocol::ICMPV6),
    };
    let sent = packets::ip(own, about, Protocol::ESP, &[7; 40]);
    let mut message = vec![kind, code, 0, 0, 0, 0, 5, 0x14];
    message.extend(&sent[..quoted]);
    let len = u32::try_from(message.len()).unwrap();
    let sum = match about {
        IpAddr::V4(_) => Sum::of(&message),
        IpAddr::V6(_) => Sum::of_pseudo(own, own, protocol, len).plus_bytes(&message),
    };
    message[2..4].copy_from_slice(&sum.checksum().to_be_bytes());
    PacketBuf::from_slice(&packets::ip(own, own, protocol, &message))
}

#[test]
fn errors_about_esp_are_reported_and_other_messages_are_not() {
    in_namespace(|| {
        let errors = IcmpErrors::open().unwrap();
        assert_eq!(errors.descriptors().count(), 2);
        let end = |text: &str| text.parse::<IpAddr>().unwrap();
        for (version, others, wanted, cut) in [
            (
                Version::V4,
                [(3, 3, end("192.0.2.1")), (8, 0, end("192.0.2.2")), (11, 0, end("192.0.2.3"))],
                (3, 4, end("192.0.2.9")),
                19,
            ),
            (
                Version::V6,
                [(1, 0, end("fd00::1")), (128, 0, end("fd00::2")), (3, 0, end("fd00::3"))],
                (2, 0, end("fd00::9")),
                39,
            ),
        ] {
            let mut port = Raw::open(&RawOptions::new(version)).unwrap();
            let (kind, code, about) = wanted;
            let mut batch: Batch = others
                .map(|(kind, code, about)| message(kind, code, about, 40))
                .into_iter()
                .chain([message(kind, code, about, cut), message(kind, code, about, 48)])
                .collect();
            assert_eq!(port.transmit(&mut batch, &mut Pool::new()).packets, 5);
            let is_told = |&(kind, ..): &(u8, u8, IpAddr)| ![8, 128].contains(&kind);
            let told: BTreeSet<_> = others.into_iter().filter(is_told).chain([wanted]).collect();
            let mut met = BTreeSet::new();
            let begun = Instant::now();
            while met != told && begun.elapsed() < Duration::from_secs(30) {
                errors.take(|error| {
                    assert!(error.told_by.is_loopback() && error.from.is_loopback(), "{error:?}");
                    assert_eq!(error.is_too_big(), error.to == about);
                    assert!(error.spi == Some(0x0707_0707) || error.to != about);
                    met.insert((error.kind, error.code, error.to));
                });
            }
            assert_eq!(met, told);
        }
    });
}

/// Its source is the destination of the packet that it is about; the kernel chooses another.
#[test]
fn errors_leave_from_an_address_of_the_host() {
    in_namespace(|| {
        let sender = IcmpSender::open().unwrap();
        let elsewhere = |text: &str| text.parse::<IpAddr>().unwrap();
        for (version, kind, about) in [
            (Version::V4, (3, 4), elsewhere("192.0.2.9")),
            (Version::V6, (2, 0), elsewhere("fd00::9")),
        ] {
            let errors = IcmpErrors::open().unwrap();
            let mut answer = message(kind.0, kind.1, about, 48);
            uxfrm_packet::icmp_error::set_source(&mut answer, about).unwrap();
            sender.send(&answer).unwrap();
            let mut met = BTreeSet::new();
            let begun = Instant::now();
            while met.is_empty() && begun.elapsed() < Duration::from_secs(30) {
                errors.take(|packet| {
                    met.insert(packet.to);
                });
            }
            assert_eq!(
                met,
                BTreeSet::from([about]),
                "{version:?}: it has come, its checksum is right"
            );
        }
        let unreachable =
            packets::ip([10, 0, 0, 1].into(), [192, 0, 2, 1].into(), Protocol::ICMP, &[3; 8]);
        assert!(sender.send(&PacketBuf::from_slice(&unreachable)).is_err(), "no route leads there");
        assert!(sender.send(&PacketBuf::from_slice(b"no IP")).is_err());
    });
}
