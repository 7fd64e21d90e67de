//! From the decrypted ESP payload to the IP packet.

use uxfrm_packet::checksum::Sum;
use uxfrm_packet::ipv4::Ipv4Header;
use uxfrm_packet::{IpPacket, Protocol, Version};
use zerocopy::FromBytes;

use super::headers::{PADDING, move_header, renew_header, set_tos};
use crate::sa::config::SaFlags;
use crate::{DropReason, ecn};

/// ESP payload without padding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EspPayload {
    /// Payload bytes, including TFC padding.
    pub(crate) len: usize,
    /// Protocol of the payload.
    pub(crate) next_header: Protocol,
}

/// Reads the trailer at the end of `text` and checks the padding before it (RFC 4303 §2.4: 1, 2, 3
/// …).
#[inline]
pub(crate) fn strip(text: &[u8]) -> Result<EspPayload, DropReason> {
    let (body, &[pad_len, next_header]) = text.split_last_chunk().ok_or(DropReason::InRunt)?;
    let len = body.len().checked_sub(pad_len.into()).ok_or(DropReason::InPadding)?;
    if !ends_in_padding(body, len) {
        return Err(DropReason::InPadding);
    }
    match Protocol(next_header) {
        Protocol::NONE => Err(DropReason::InDummy),
        next_header => Ok(EspPayload { len, next_header }),
    }
}

/// Properties of the packet's own header that transport mode needs to keep it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OuterHeader {
    pub(crate) version: Version,
    pub(crate) len: u16,
    /// Offset of the byte that names ESP or UDP.
    pub(crate) next_header_at: u16,
}

/// Parses an inner packet and applies the TOS byte that results from the outer header's `tos`. TFC
/// padding beyond the packet's own length is not removed.
#[inline]
pub(crate) fn check_tunnelled(
    packet: &mut [u8],
    next_header: Protocol,
    outer_tos: u8,
    flags: SaFlags,
) -> Result<IpPacket, DropReason> {
    let ip = IpPacket::parse(packet).map_err(|_| DropReason::InInnerMalformed)?;
    let announced = match next_header {
        Protocol::IPIP => Version::V4,
        _ => Version::V6,
    };
    if ip.version != announced {
        return Err(DropReason::InInnerMalformed);
    }
    let tos = ecn::inner_after(outer_tos, ip.tos, flags);
    if let Some(tos) = tos.map_err(|ecn::NotEcnCapable| DropReason::InEcn)? {
        set_tos(packet, ip.version, tos);
    }
    Ok(ip)
}

/// Like [`check_tunnelled`], for a valid IPv4 packet without options whose TOS does not change;
/// `None` for all others, valid or not.
#[inline(always)]
pub(crate) fn check_tunnelled_ipv4(
    packet: &[u8],
    next_header: Protocol,
    outer_tos: u8,
    flags: SaFlags,
) -> Option<IpPacket> {
    let ip = IpPacket::parse_fixed(packet).filter(|_| next_header == Protocol::IPIP)?;
    let (header, _) = Ipv4Header::ref_from_prefix(packet).ok()?;
    let stays = ecn::stays(outer_tos, flags);
    (stays && header.checksum_is_right()).then_some(ip)
}

/// Like [`check_tunnelled`], for an IPv6 packet without extension headers whose traffic class does
/// not change; `None` for all others, valid or not.
#[inline(always)]
pub(crate) fn check_tunnelled_ipv6(
    packet: &[u8],
    next_header: Protocol,
    outer_tos: u8,
    flags: SaFlags,
) -> Option<IpPacket> {
    let ip = IpPacket::parse_fixed_v6(packet).filter(|_| next_header == Protocol::IPV6)?;
    ecn::stays(outer_tos, flags).then_some(ip)
}

/// Moves the packet's own header to its payload, which is at the end of `packet`. Returns the new
/// offset.
#[inline]
pub(crate) fn restore(packet: &mut [u8], outer_hdr: OuterHeader, stripped: EspPayload) -> usize {
    let header_len = usize::from(outer_hdr.len);
    let new = packet.len() - stripped.len - header_len;
    move_header(packet, 0..header_len, new);
    let plain = &mut packet[new..];
    renew_header(plain, outer_hdr.version, outer_hdr.next_header_at.into(), stripped.next_header);
    new
}

/// Behind a NAT the addresses are not those that the sender summed (RFC 3948 §3.1.2). The ICV
/// vouches for the payload, so the checksum is rewritten. Returns whether there is one.
pub(crate) fn rewrite_checksum(bytes: &mut [u8], ip: &IpPacket) -> bool {
    let at = match ip.protocol {
        Protocol::TCP => 16,
        Protocol::UDP => 6,
        Protocol(_) => return false,
    };
    let upper = &mut bytes[ip.header_len..ip.total_len];
    let Some(field) = upper.get(at..at + 2) else { return false };
    if ip.is_fragment() || (ip.protocol == Protocol::UDP && field == [0, 0]) {
        return false;
    }
    upper[at..at + 2].fill(0);
    let len = u32::try_from(upper.len()).unwrap_or(u32::MAX);
    let sum = Sum::of_pseudo(ip.source, ip.destination, ip.protocol, len).plus_bytes(upper);
    let checksum = match ip.protocol {
        Protocol::UDP => sum.nonzero_checksum(),
        _ => sum.checksum(),
    };
    upper[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    true
}

/// As much of the padding as fits into a word.
const NUMBERS: u128 = u128::from_le_bytes(PADDING);

/// Mostly at most 3 bytes: all ciphers but CBC align to 4, CBC to 16.
#[inline(always)]
fn ends_in_padding(body: &[u8], from: usize) -> bool {
    match (&body[from..], body.last_chunk()) {
        ([] | [1] | [1, 2] | [1, 2, 3], _) => true,
        (padding, Some(tail)) if padding.len() <= tail.len() => {
            // The first padding byte becomes the lowest; bytes before it are shifted out.
            let before = 8 * (tail.len() - padding.len());
            (u128::from_le_bytes(*tail) ^ NUMBERS << before) >> before == 0
        }
        (padding, _) => padding.iter().zip(1..=u8::MAX).all(|(byte, number)| byte == &number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_must_be_one_two_three() {
        for (text, expected) in [
            (&b"pay\x01\x01\x04"[..], Ok(EspPayload { len: 3, next_header: Protocol::IPIP })),
            (b"\x00\x06", Ok(EspPayload { len: 0, next_header: Protocol::TCP })),
            (b"pay\x01\x02\x03\x03\x29", Ok(EspPayload { len: 3, next_header: Protocol::IPV6 })),
            (b"pay\x01\x03\x02\x04", Err(DropReason::InPadding)),
            (b"pay\x04\x04", Err(DropReason::InPadding)),
            (b"\x00\x3b", Err(DropReason::InDummy)),
            (b"\x00", Err(DropReason::InRunt)),
        ] {
            assert_eq!(strip(text), expected, "{text:?}");
        }
    }

    #[test]
    fn wrong_padding_byte_is_refused() {
        for (payload, len) in (0..20).flat_map(|payload| (0..40).map(move |len| (payload, len))) {
            let padding: Vec<u8> = (1..=len).collect();
            let right = [&vec![9; payload][..], &padding, &[len, 4]].concat();
            assert_eq!(strip(&right).map(|stripped| stripped.len), Ok(payload), "{len}");
            for at in payload..payload + padding.len() {
                let mut wrong = right.clone();
                wrong[at] ^= 1;
                assert_eq!(strip(&wrong), Err(DropReason::InPadding), "{at} of {len}");
            }
        }
    }

    #[test]
    fn longest_padding_is_accepted() {
        let mut text: Vec<u8> = (1..=255).collect();
        text.extend([255, 4]);
        assert_eq!(strip(&text), Ok(EspPayload { len: 0, next_header: Protocol::IPIP }));
    }
}
