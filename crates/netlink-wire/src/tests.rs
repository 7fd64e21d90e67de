use proptest::collection::vec;
use proptest::prelude::*;

use crate::genl::{GENL_ID_CTRL, GenlHeader};
use crate::*;

/// An attribute byte by byte; `len` is what its header claims.
fn attribute(len: u16, kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
    bytes.resize(aligned(bytes.len()), 0);
    bytes
}

fn message(len: u32, kind: u16, body: &[u8]) -> Vec<u8> {
    let header = NetlinkHeader { len, kind, flags: 1, seq: 7, pid: 0 };
    [&header.to_bytes()[..], body].concat()
}

/// `nla_for_each_attr` with `nla_ok`, by its definition: type, start and end of each value.
fn naive_attributes(bytes: &[u8]) -> (Vec<(u16, usize, usize)>, usize) {
    let (mut found, mut at) = (Vec::new(), 0);
    while bytes.len() - at >= 4 {
        let len = usize::from(bytes[at]) | usize::from(bytes[at + 1]) << 8;
        let kind = u16::from(bytes[at + 2]) | u16::from(bytes[at + 3]) << 8;
        if len < 4 || len > bytes.len() - at {
            break;
        }
        found.push((kind & 0x3fff, at + 4, at + len));
        at = bytes.len().min(at + len.div_ceil(4) * 4);
    }
    (found, bytes.len() - at)
}

#[test]
fn aligned_rounds_up_to_four() {
    assert_eq!([0, 1, 3, 4, 5, 16].map(aligned), [0, 4, 4, 4, 8, 16]);
}

#[test]
fn attributes_cut_short_end_the_reading() {
    let whole = attribute(6, 1, &[1, 2]);
    let table: [(&str, Vec<u8>, usize); 8] = [
        ("nothing", vec![], 0),
        ("half a header", vec![8, 0, 31], 3),
        ("length 0", attribute(0, 2, &[]), 4),
        ("length below the header's", attribute(3, 2, &[]), 4),
        ("header only", attribute(4, 2, &[]), 0),
        ("longer than the bytes", attribute(9, 2, &[0; 4]), 8),
        ("longest length", attribute(u16::MAX, 2, &[0; 4]), 8),
        ("without padding at the end", vec![5, 0, 2, 0, 9], 0),
    ];
    for (name, end, leftover) in table {
        let bytes = [&whole[..], &end].concat();
        let mut attributes = RawAttributes::of(&bytes);
        let first = attributes.next().unwrap();
        assert_eq!((first.kind, first.value, first.offset), (1, &[1, 2][..], 0), "{name}");
        for more in attributes.by_ref() {
            assert_eq!((more.kind, more.offset), (2, 8), "{name}");
        }
        assert_eq!(attributes.leftover(), leftover, "{name}");
    }
}

#[test]
fn attribute_type_is_read_without_flag_bits() {
    let bytes = attribute(4, 0xc005, &[]);
    assert_eq!(RawAttributes::of(&bytes).next().unwrap().kind, 5);
}

#[test]
fn attribute_table_keeps_first_or_last_of_a_type() {
    let all = [attribute(5, 3, b"a"), attribute(5, 3, b"b"), attribute(5, 64, b"c")].concat();
    assert_eq!(AttributeTable::first_of_each(&all).value(3), Some(&b"a"[..]));
    assert_eq!(AttributeTable::last_of_each(&all).value(3), Some(&b"b"[..]));
    assert_eq!(AttributeTable::last_of_each(&all).value(64), None);
    assert_eq!(AttributeTable::last_of_each(&all).value(u16::MAX), None);
    assert_eq!(find_attribute(&all, 3), Some(&b"a"[..]));
    assert_eq!(find_attribute(&all, 64), Some(&b"c"[..]));
    assert_eq!(find_attribute(&all, 4), None);
}

#[test]
fn debug_shows_no_value() {
    let bytes = attribute(10, 3, b"secret");
    let attributes = RawAttributes::of(&bytes);
    assert_eq!(format!("{attributes:?}"), "RawAttributes(12 bytes)");
    assert_eq!(format!("{:?}", attributes.clone().next().unwrap()), "RawAttribute(3, 6 bytes)");
    assert_eq!(format!("{:?}", AttributeTable::first_of_each(&bytes)), "{3: 6}");
    let message = message(22, 0x10, b"secret");
    let messages = NetlinkMessages::of(&message);
    assert_eq!(format!("{messages:?}"), "Messages(22 bytes)");
    assert!(!format!("{:?}", messages.clone().next()).contains("115"));
}

#[test]
fn messages_cut_short_end_the_reading() {
    let whole = message(17, 0x10, &[9, 0, 0, 0]);
    for (name, end, read) in [
        ("nothing", vec![], 1),
        ("half a header", vec![0; 15], 1),
        ("length below the header's", message(15, 2, &[]), 1),
        ("longer than the datagram", message(17, 2, &[]), 1),
        ("longest length", message(u32::MAX, 2, &[]), 1),
        ("header only", message(16, 2, &[]), 2),
        ("without padding at the end", message(17, 2, &[1]), 2),
    ] {
        let bytes = [&whole[..], &end].concat();
        assert_eq!(NetlinkMessages::of(&bytes).count(), read, "{name}");
        assert_eq!(NetlinkMessages::of(&bytes).next().unwrap().body(), [9], "{name}");
    }
}

#[test]
fn error_code_needs_four_bytes() {
    let code = |body: &[u8]| {
        let len = u32::try_from(16 + body.len()).unwrap();
        NetlinkMessages::of(&message(len, NLMSG_ERROR, body)).next().unwrap().error_code()
    };
    assert_eq!(code(&(-22_i32).to_ne_bytes()), Some(-22));
    assert_eq!(code(&[0; 20]), Some(0));
    assert_eq!(code(&[0; 3]), None);
}

/// `genl ctrl get name fou`, as iproute2 sends it.
#[cfg(target_endian = "little")]
#[test]
fn message_is_written_as_the_kernel_lays_it_out() {
    let mut bytes = Vec::new();
    let header = GenlHeader { command: 3, version: 1 };
    let flags = NetlinkFlags::REQUEST | NetlinkFlags::ACK;
    append_message(&mut bytes, GENL_ID_CTRL, flags, 7, header.to_bytes(), |out| {
        out.text(2, "fou");
    });
    let expected = [
        28, 0, 0, 0, 0x10, 0, 5, 0, 7, 0, 0, 0, 0, 0, 0, 0, // nlmsghdr
        3, 1, 0, 0, // genlmsghdr
        8, 0, 2, 0, b'f', b'o', b'u', 0, // name
    ];
    assert_eq!(bytes, expected);
    let read = NetlinkMessages::of(&bytes).next().unwrap();
    assert_eq!((read.header.kind, read.flags(), read.header.seq), (GENL_ID_CTRL, flags, 7));
    let (genl, attributes) = GenlHeader::split(read.body()).unwrap();
    assert_eq!(genl, header);
    let name = RawAttributes::of(attributes).next().unwrap();
    assert_eq!(fou::is_named_by(&name), Some(true));
    assert_eq!(GenlHeader::split(&[3, 1, 0]), None);
}

#[test]
fn fou_is_named_by_name_or_number() {
    for (kind, value, named) in [
        (1, &fou::FAMILY_ID.to_ne_bytes()[..], Some(true)),
        (1, &[0x1b, 0], Some(false)),
        (2, b"fou\0", Some(true)),
        (2, b"fou", Some(false)),
        (2, b"fou2\0", Some(false)),
        (9, b"fou\0", None),
    ] {
        let attribute = RawAttribute { kind, value, offset: 0 };
        assert_eq!(fou::is_named_by(&attribute), named, "{kind} {value:?}");
    }
    const { assert!(fou::FAMILY_ID > 1023, "GENL_MAX_ID") };
}

#[test]
fn nest_has_the_length_of_its_content_and_its_flag() {
    let mut bytes = vec![0xee; 3];
    let mut out = AttributeWriter::new(&mut bytes);
    out.nest(1, |nest| {
        nest.be32(2, 1);
        nest.nest_unflagged(3, |inner| inner.bytes(4, &[9]));
    });
    out.be64(5, 1);
    let expected = [
        vec![0xee; 3],
        attribute(
            24,
            0x8001,
            &[attribute(8, 2, &[0, 0, 0, 1]), attribute(12, 3, &attribute(5, 4, &[9]))].concat(),
        ),
        attribute(12, 5, &[0, 0, 0, 0, 0, 0, 0, 1]),
    ];
    assert_eq!(bytes, expected.concat());
}

#[test]
fn overlong_value_is_refused_by_readers() {
    let mut bytes = Vec::new();
    AttributeWriter::new(&mut bytes).bytes(1, &vec![0; usize::from(u16::MAX) - 4]);
    assert_eq!(RawAttributes::of(&bytes).next().unwrap().value.len(), 65_531);
    let mut bytes = Vec::new();
    AttributeWriter::new(&mut bytes).bytes(1, &vec![0; usize::from(u16::MAX) - 3]);
    assert_eq!(bytes[..2], u16::MAX.to_ne_bytes());
    let cut = &bytes[..usize::from(u16::MAX) - 1];
    assert_eq!(RawAttributes::of(cut).count(), 0);
}

#[test]
fn set_message_len_leaves_less_than_a_length_alone() {
    let mut bytes = [1, 2, 3];
    set_message_len(&mut bytes);
    assert_eq!(bytes, [1, 2, 3]);
}

proptest! {
    #[test]
    fn attributes_are_those_of_a_naive_reader(bytes in vec(any::<u8>(), 0..256)) {
        check_attributes(&bytes);
    }

    /// Lengths that are about right, so that more attributes are walked.
    #[test]
    fn attributes_of_short_lengths_are_those_of_a_naive_reader(
        lens in vec(0_u8..24, 0..64), flags in any::<u8>(),
    ) {
        let bytes: Vec<u8> = lens.iter().flat_map(|len| [*len, 0, 10, flags]).collect();
        check_attributes(&bytes);
    }

    #[test]
    fn any_datagram_is_read_within_its_bounds(
        lens in vec((0_u32..64, any::<u16>()), 0..8), tail in vec(any::<u8>(), 0..32),
    ) {
        let mut bytes = Vec::new();
        for (len, kind) in lens {
            bytes.extend(message(len, kind, &[3; 24]));
        }
        bytes.extend(tail);
        let read: usize = NetlinkMessages::of(&bytes).map(|message| {
            assert_eq!(message.bytes.len(), message.header.len as usize);
            assert_eq!(message.body().len() + 16, message.bytes.len());
            message.bytes.len()
        }).sum();
        prop_assert!(read <= bytes.len());
    }

    #[test]
    fn written_attributes_are_read(
        attributes in vec((0_u16..0x4000, vec(any::<u8>(), 0..20)), 0..12), cut in 0_usize..20,
    ) {
        let mut bytes = Vec::new();
        let mut out = AttributeWriter::new(&mut bytes);
        for (kind, value) in &attributes {
            let (start, end) = value.split_at(cut.min(value.len()));
            out.parts(*kind, &[start, end]);
        }
        let room = attributes.iter().map(|(_, value)| AttributeWriter::room(value.len()));
        prop_assert_eq!(bytes.len(), room.sum::<usize>());
        let read = RawAttributes::of(&bytes).map(|found| (found.kind, found.value.to_vec()));
        prop_assert_eq!(read.collect::<Vec<_>>(), attributes);
    }

    #[test]
    fn header_is_read_as_written(words in any::<[u32; 3]>(), halves in any::<[u16; 2]>()) {
        let ([len, seq, pid], [kind, flags]) = (words, halves);
        let header = NetlinkHeader { len, kind, flags, seq, pid };
        let bytes = [&header.to_bytes()[..], b"rest"].concat();
        prop_assert_eq!(NetlinkHeader::split(&bytes), Some((header, &b"rest"[..])));
        prop_assert_eq!(NetlinkHeader::split(&bytes[..15]), None);
    }
}

fn check_attributes(bytes: &[u8]) {
    let (expected, leftover) = naive_attributes(bytes);
    let mut attributes = RawAttributes::of(bytes);
    for (kind, start, end) in expected {
        let found = attributes.next().unwrap();
        assert_eq!((found.kind, found.value), (kind, &bytes[start..end]));
        assert_eq!(found.offset + 4, start);
    }
    assert!(attributes.next().is_none());
    assert_eq!(attributes.leftover(), leftover);
}
