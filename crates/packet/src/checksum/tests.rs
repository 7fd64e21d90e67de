use proptest::prelude::*;

use super::*;

/// RFC 1071 §4.1 in its plainest form.
fn naive(bytes: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap()
}

#[test]
fn rfc_1071_example_matches() {
    let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
    assert_eq!(Sum::of(&bytes).fold(), 0xddf2);
}

#[test]
fn rfc_1624_example_matches() {
    assert_eq!(update(0xdd2f, 0x5555, 0x3285), 0x0000);
}

#[test]
fn checksum_field_outside_packet_is_refused() {
    for (start, offset) in [(5, 0), (0, 3), (4, 0), (u16::MAX, u16::MAX)] {
        let mut packet = PacketBuf::from_slice(b"abcd");
        packet.checksum = Checksum::Partial { start, offset };
        assert_eq!(complete(&mut packet), Err(ParseError::ChecksumRange));
        assert_eq!(packet.bytes(), b"abcd");
    }
}

/// A field that selects the flow must not be overwritten.
#[test]
fn checksum_field_over_flow_fields_is_refused() {
    let complete_at = |start, offset| {
        let bytes = datagram(0x1234, |_, _| 0);
        let mut packet = PacketBuf::from_slice(&bytes);
        packet.checksum = Checksum::Partial { start, offset };
        complete(&mut packet)
    };
    let (length, protocol, source, destination) = (2, 8, 12, 16);
    for offset in [0, length, protocol, source, destination, destination + 2] {
        assert_eq!(complete_at(0, offset), Err(ParseError::ChecksumRange), "{offset}");
    }
    for offset in [0, 2] {
        assert_eq!(complete_at(20, offset), Err(ParseError::ChecksumRange), "port at {offset}");
    }
    assert_eq!(complete_at(20, 6), Ok(()));
}

#[test]
fn udp_checksum_is_optional_over_ipv4_only() {
    let verify = |bytes: &[u8]| verify(&IpPacket::parse(bytes).unwrap(), bytes);
    let mut four = vec![
        0x45, 0, 0, 29, 0, 0, 0, 0, 64, 17, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 0, 2, 0, 9, 0, 0, 9,
    ];
    assert_eq!(verify(&four), Verification::Absent);
    four[27] = 1;
    assert_eq!(verify(&four), Verification::Wrong);
    four[25] = 10;
    assert_eq!(verify(&four), Verification::Wrong, "longer than the packet");
    four[6] = 0x20;
    assert_eq!(verify(&four), Verification::Unknown);
    let mut six = vec![0x60, 0, 0, 0, 0, 8, 17, 64];
    six.resize(40, 1);
    six.extend_from_slice(&[0, 1, 0, 2, 0, 8, 0, 0]);
    assert_eq!(verify(&six), Verification::Wrong);
    six[6] = 58;
    assert_eq!(verify(&six), Verification::Unknown);
}

/// A datagram of one word over IPv4 with this checksum field.
fn datagram(word: u16, field: impl FnOnce(Sum, &[u8]) -> u16) -> Vec<u8> {
    let mut bytes = vec![
        0x45, 0, 0, 30, 0, 0, 0, 0, 64, 17, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 0, 2, 0, 10, 0, 0,
    ];
    bytes.extend(word.to_be_bytes());
    let ip = IpPacket::parse(&bytes).unwrap();
    let pseudo = Sum::of_pseudo(ip.source, ip.destination, ip.protocol, 10);
    let field = field(pseudo, &bytes[20..]);
    bytes[26..28].copy_from_slice(&field.to_be_bytes());
    bytes
}

#[test]
#[cfg_attr(miri, ignore = "minutes there")]
fn partial_checksum_is_recognized() {
    let surmised = |bytes: &[u8]| verify_if_cheap(&IpPacket::parse(bytes).unwrap(), bytes);
    let open = Checksum::Partial { start: 20, offset: 6 };
    let mut ambiguous = 0;
    for word in 0..=u16::MAX {
        let right = datagram(word, |pseudo, upper| pseudo.plus_bytes(upper).nonzero_checksum());
        assert_eq!(surmised(&right), Checksum::AsIs);
        let left_open = datagram(word, |pseudo, _| pseudo.fold());
        ambiguous += u32::from(right == left_open);
        assert!(surmised(&left_open) == open || right == left_open);
        let wrong = datagram(word, |pseudo, upper| !pseudo.plus_bytes(upper).nonzero_checksum());
        assert!(surmised(&wrong) == Checksum::AsIs || wrong == left_open);
    }
    assert_eq!(ambiguous, 1, "once among them what is right looks as if it were left open");
}

#[test]
fn fragments_and_other_protocols_are_as_is() {
    let left_open = datagram(7, |pseudo, _| pseudo.fold());
    for (at, byte) in [(6, 0x20), (7, 1), (9, 1), (9, 50)] {
        let mut other = left_open.clone();
        other[at] = byte;
        let ip = IpPacket::parse(&other).unwrap();
        assert_eq!(verify_if_cheap(&ip, &other), Checksum::AsIs, "{ip:?}");
    }
    let mut short = left_open;
    short.truncate(27);
    short[3] = 27;
    assert_eq!(verify_if_cheap(&IpPacket::parse(&short).unwrap(), &short), Checksum::AsIs);
}

proptest! {
    #[test]
    fn wide_sum_equals_plain_sum_at_any_alignment(room in proptest::collection::vec(any::<u8>(), 0..1800), from in 0_usize..200) {
        let bytes = &room[from.min(room.len())..];
        prop_assert_eq!(Sum::of(bytes).fold(), naive(bytes));
        prop_assert_eq!(Sum(sum_narrow(bytes)).fold(), naive(bytes));
    }

    #[test]
    fn sums_of_even_parts_add_up(bytes in proptest::collection::vec(any::<u8>(), 0..400), cut in 0_usize..200) {
        let (front, back) = bytes.split_at((cut * 2).min(bytes.len() & !1));
        prop_assert_eq!(Sum::of(front).plus_bytes(back).fold(), naive(&bytes));
    }

    #[test]
    fn sum_of_words_equals_sum_of_bytes(words in proptest::collection::vec(any::<[u8; 8]>(), 0..20)) {
        prop_assert_eq!(Sum::of_words(&words).fold(), naive(words.as_flattened()));
    }

    #[test]
    fn incremental_update_equals_new_sum(words in proptest::collection::vec(any::<u16>(), 2..40), at in any::<prop::sample::Index>(), new in any::<u16>()) {
        let sum = |words: &[u16]| words.iter().fold(Sum::ZERO, |sum, word| sum.plus_u16(*word)).checksum();
        let at = at.index(words.len());
        let mut changed = words.clone();
        changed[at] = new;
        // Over all zeros, 0 and 0xffff are the same number.
        prop_assume!(changed.iter().any(|word| *word != 0));
        prop_assert_eq!(update(sum(&words), words[at], new), sum(&changed));
    }

    #[test]
    fn update_u32_equals_two_updates(checksum in any::<u16>(), old in any::<[u16; 2]>(), new in any::<[u16; 2]>()) {
        let join = |[high, low]: [u16; 2]| u32::from(high) << 16 | u32::from(low);
        let one_by_one = update(update(checksum, old[0], new[0]), old[1], new[1]);
        let at_once = update_u32(checksum, join(old), join(new));
        prop_assert!(at_once == one_by_one || (at_once ^ one_by_one) == 0xffff && [0, 0xffff].contains(&at_once));
    }
}

#[test]
fn is_right_agrees_with_fold() {
    let mut seed = 1_u64;
    for turn in 0..10_000_u64 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // Many of them are valid.
        let word = if turn % 2 == 0 { seed } else { (seed >> 16).wrapping_mul(0xffff) };
        let sum = Sum::of_word(word);
        assert_eq!(sum.is_right(), sum.fold() == 0xffff, "{word:x}");
    }
    for (word, is_right) in [(0, false), (0xffff, true), (u64::MAX, true), (0xfffe, false)] {
        assert_eq!(Sum::of_word(word).is_right(), is_right);
    }
    let bytes = [0x45, 0, 0, 28, 0, 0, 0x40, 0];
    assert_eq!(Sum::of_word(u64::from_ne_bytes(bytes)).fold(), Sum::of(&bytes).fold());
}

#[test]
#[cfg_attr(miri, ignore = "minutes there")]
fn wide_sum_covers_any_length_without_overflow() {
    let bytes = vec![0xff; 3 << 16];
    for len in (0..2048).chain([(1 << 16) - 1, 1 << 16, (1 << 16) + 1, 3 << 16]) {
        let bytes = &bytes[..len];
        assert_eq!(Sum::of(bytes).fold(), naive(bytes), "{len} bytes");
        assert_eq!(wide::sum(bytes) == 0, len == 0, "{len} bytes");
    }
    for at in 0..1400 {
        let mut bytes = [0; 1401];
        bytes[at] = 3;
        let of = |from: usize| Sum::of(&bytes[from..]).fold();
        assert_eq!((of(0), of(1)), (naive(&bytes), naive(&bytes[1..])), "byte {at}");
    }
}
