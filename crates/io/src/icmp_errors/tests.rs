use std::os::unix::net::UnixDatagram;

use super::*;

const ROUTER: [u8; 4] = [192, 0, 2, 254];

/// An IPv4 header of so many words.
fn ip4(words: u8, protocol: u8) -> Vec<u8> {
    let mut header = vec![0; usize::from(words) * 4];
    (header[0], header[9]) = (0x40 | words, protocol);
    header[12..20].copy_from_slice(&[ROUTER, [198, 51, 100, 7]].concat());
    header
}

fn ip6(next_header: u8) -> Vec<u8> {
    let mut header = vec![0; 40];
    (header[0], header[6], header[8], header[24]) = (0x60, next_header, 0xfc, 0xfd);
    header
}

/// IPv4 options do not shift the SPI; a router may quote only eight bytes behind the header.
#[test]
fn quoted_spi_is_parsed_if_present() {
    let icmp = [3, 4, 0, 0, 0, 0, 5, 0x14];
    let (esp, in_udp) = ([1, 2, 3, 4, 0, 0, 0, 9], [0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4]);
    let (spi, told_by) = (Some(0x0102_0304), IpAddr::from(ROUTER));
    for (own, header, upper, spi) in [
        (ip4(5, 1), ip4(5, 50), &esp[..], spi),
        (ip4(6, 1), ip4(7, 50), &esp[..], spi),
        (ip4(5, 1), ip4(5, 17), &in_udp[..], spi),
        (ip4(5, 1), ip4(5, 17), &in_udp[..8], None),
        (ip4(5, 1), ip4(5, 6), &in_udp[..], None),
    ] {
        let message = [&own[..], &icmp, &header, upper].concat();
        let (from, to) = (told_by, [198, 51, 100, 7].into());
        let error = IcmpError { kind: 3, code: 4, told_by, from, to, spi };
        assert!(error.is_too_big());
        assert_eq!(parse_v4(&message), Some(error), "{message:?}");
    }
    let told_by = "fd00::1".parse().unwrap();
    for (header, upper, spi) in
        [(ip6(50), &esp[..], spi), (ip6(17), &in_udp[..], spi), (ip6(50), &esp[..3], None)]
    {
        let message = [&[4, 1, 0, 0, 0, 0, 0, 6], &header[..], upper].concat();
        let (from, to) = ("fc00::".parse().unwrap(), "fd00::".parse().unwrap());
        let error = IcmpError { kind: 4, code: 1, told_by, from, to, spi };
        assert!(!error.is_too_big());
        assert_eq!(parse_v6(told_by, &message), Some(error), "{message:?}");
    }
    assert_eq!(parse_v4(&ip4(5, 1)), None);
    assert_eq!(parse_v6(told_by, &[1, 0, 0]), None);
}

/// What the kernel makes of the program.
#[test]
fn filter_accepts_errors_about_esp_and_udp_and_all_sizes() {
    let accepts = |version, message: &[u8]| {
        let (near, far) = UnixDatagram::pair().unwrap();
        socket::attach_filter(far.as_fd(), &mut program(version)).unwrap();
        far.set_nonblocking(true).unwrap();
        let _refused = near.send(message);
        far.recv(&mut [0; ROOM]).is_ok()
    };
    let v4 = |kind, code, protocol| {
        let icmp = [kind, code, 0, 0, 0, 0, 0, 0];
        accepts(Version::V4, &[&ip4(6, 1)[..], &icmp, &ip4(5, protocol), &[0; 8]].concat())
    };
    let v6 = |kind, code, protocol| {
        let icmp = [kind, code, 0, 0, 0, 0, 0, 0];
        accepts(Version::V6, &[&icmp[..], &ip6(protocol), &[0; 8]].concat())
    };
    let accepted = [v4(3, 4, 6), v4(3, 2, 50), v4(3, 13, 17), v4(11, 0, 50), v4(12, 0, 50)];
    assert_eq!(accepted, [true; 5]);
    assert_eq!([v4(3, 3, 6), v4(8, 0, 50), v4(0, 0, 17), v4(11, 0, 1)], [false; 4]);
    let accepted = [v6(2, 0, 6), v6(1, 3, 50), v6(3, 0, 17), v6(4, 1, 50)];
    assert_eq!(accepted, [true; 4]);
    assert_eq!([v6(1, 4, 6), v6(128, 0, 50), v6(135, 0, 17), v6(4, 1, 58)], [false; 4]);
}
