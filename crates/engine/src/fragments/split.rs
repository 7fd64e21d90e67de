//! Fragmentation of IP packets (RFC 791 §3.2, RFC 8200 §4.5).

use uxfrm_packet::ipv6::FragmentHeader;
use uxfrm_packet::{Batch, Pool, Protocol, SizeClass, Version, ipv4, ipv6};
use zerocopy::IntoBytes;

/// How to fragment a packet.
#[derive(Clone, Copy, Debug)]
pub struct FragmentPlan {
    /// IP version of the packet.
    pub version: Version,
    /// Offset of the fragmentable part; the bytes before it are copied to every fragment.
    pub place: usize,
    /// Offset of the byte that names the protocol of the fragmentable part.
    pub next_header_at: usize,
    /// Maximum length of a fragment.
    pub mtu: usize,
    /// Identification for all fragments. A non-zero one of an IPv4 packet takes precedence, and
    /// that of a fragment always.
    pub ident: u32,
}

/// The part of the datagram that a fragment carries.
#[derive(Clone, Copy, Debug)]
struct FragmentSpan {
    /// In bytes, within the fragmentable part.
    offset: usize,
    is_last: bool,
}

/// Fragments the IP packet `whole` and appends the fragments to `out` in order.
pub fn fragment(whole: &[u8], cut: &FragmentPlan, mark: u32, pool: &mut Pool, out: &mut Batch) {
    let (head, body) = whole.split_at(cut.place.min(whole.len()));
    let extra = match cut.version {
        Version::V4 => 0,
        Version::V6 => size_of::<FragmentHeader>(),
    };
    let room = cut.mtu.saturating_sub(head.len() + extra) / 8 * 8;
    let room = room.max(8);
    for (number, piece) in body.chunks(room).enumerate() {
        let offset = number * room;
        let part = FragmentSpan { offset, is_last: offset + piece.len() == body.len() };
        let len = head.len() + extra + piece.len();
        let mut packet = pool.take(SizeClass::holding(len));
        packet.mark = mark;
        let Some(bytes) = packet.append(len) else {
            debug_assert!(false, "a piece is not longer than the whole");
            return pool.give(packet);
        };
        bytes[..head.len()].copy_from_slice(head);
        bytes[head.len() + extra..].copy_from_slice(piece);
        match cut.version {
            Version::V4 => finish_v4(bytes, cut, part),
            Version::V6 => finish_v6(bytes, cut, part),
        }
        out.push(packet);
    }
}

/// A fragment may be fragmented further; the results are fragments of its datagram
/// (`net/ipv4/ip_output.c: ip_frag_init`).
fn finish_v4(bytes: &mut [u8], cut: &FragmentPlan, part: FragmentSpan) {
    let [_, _, high, low] = cut.ident.to_be_bytes();
    let whole = u16::from_be_bytes([bytes[6], bytes[7]]) & !ipv4::DONT_FRAGMENT;
    let more = if part.is_last { whole & ipv4::MORE_FRAGMENTS } else { ipv4::MORE_FRAGMENTS };
    let flags = whole.wrapping_add(narrow(part.offset / 8)) & ipv4::OFFSET | more;
    if part.offset > 0 {
        blank_options(&mut bytes[ipv4::HEADER_LEN..cut.place]);
    }
    let len = narrow(bytes.len());
    bytes[2..4].copy_from_slice(&len.to_be_bytes());
    // A packet with DF may have no identification.
    if whole == 0 && bytes[4..6] == [0, 0] {
        bytes[4..6].copy_from_slice(&[high, low]);
    }
    bytes[6..8].copy_from_slice(&flags.to_be_bytes());
    // The header is complete: it was copied from the whole packet.
    let _ = ipv4::fill_checksum(bytes);
}

fn finish_v6(bytes: &mut [u8], cut: &FragmentPlan, part: FragmentSpan) {
    let header = FragmentHeader {
        next_header: Protocol(bytes[cut.next_header_at]),
        reserved: 0,
        offset_more: (narrow(part.offset) | u16::from(!part.is_last)).into(),
        id: cut.ident.into(),
    };
    bytes[cut.place..cut.place + size_of::<FragmentHeader>()].copy_from_slice(header.as_bytes());
    bytes[cut.next_header_at] = Protocol::FRAGMENT.0;
    let len = narrow(bytes.len() - ipv6::HEADER_LEN);
    bytes[4..6].copy_from_slice(&len.to_be_bytes());
}

/// Options without the copied bit are only in the first fragment; others have "no operation" in
/// their place.
fn blank_options(mut options: &mut [u8]) {
    while let [kind, rest @ ..] = options {
        let len = match (*kind, rest.first()) {
            (0, _) => return,
            (1, _) | (_, None) => 1,
            (_, Some(len)) => usize::from(*len).max(2),
        };
        let (option, next) =
            std::mem::take(&mut options).split_at_mut_checked(len).unwrap_or_default();
        if option.first().is_some_and(|kind| kind & 0x80 == 0) {
            option.fill(1);
        }
        options = next;
    }
}

/// A length or offset within an IP packet.
fn narrow(len: usize) -> u16 {
    debug_assert!(len <= usize::from(u16::MAX));
    #[expect(clippy::cast_possible_truncation, reason = "an IP packet is below 64 KiB")]
    let narrow = len as u16;
    narrow
}
