//! Out of a decrypted ESP text back to the packet.

use uxfrm_packet::checksum::Sum;
use uxfrm_packet::ipv4::Ipv4Header;
use uxfrm_packet::{IpPacket, Protocol, Version};
use zerocopy::FromBytes;

use super::headers::{PADDING, move_header, renew_header, set_tos};
use crate::sa::config::SaFlags;
use crate::{DropReason, ecn};

/// The text without its padding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stripped {
    /// Bytes of payload, TFC padding with them.
    pub(crate) len: usize,
    /// What the payload is.
    pub(crate) next_header: Protocol,
}

/// Reads the trailer that `text` ends with and checks the padding before it (RFC 4303 §2.4: 1, 2, 3 …).
#[inline]
pub(crate) fn strip(text: &[u8]) -> Result<Stripped, DropReason> {
    let (body, &[pad_len, next_header]) = text.split_last_chunk().ok_or(DropReason::InRunt)?;
    let len = body.len().checked_sub(pad_len.into()).ok_or(DropReason::InPadding)?;
    if !ends_in_padding(body, len) {
        return Err(DropReason::InPadding);
    }
    match Protocol(next_header) {
        Protocol::NONE => Err(DropReason::InDummy),
        next_header => Ok(Stripped { len, next_header }),
    }
}

/// What of a packet's own header transport mode needs, to keep it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shell {
    pub(crate) version: Version,
    pub(crate) len: u16,
    /// The byte that names ESP or UDP.
    pub(crate) next_header_at: u16,
}

/// Looks at the packet that was in a tunnel, says what it was, and gives it the TOS byte that it is to have after the outer header's `tos`. TFC padding behind its own
/// length is still there.
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

/// As [`check_tunnelled`], of an IPv4 packet whose header is right, has no options, and stays as it is; `None` of all else, right or wrong.
#[inline(always)]
pub(crate) fn usual_tunnelled(
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

/// As [`check_tunnelled`], of an IPv6 packet without extension headers that stays as it is; `None` of all else, right or wrong.
#[inline(always)]
pub(crate) fn usual_tunnelled_v6(
    packet: &[u8],
    next_header: Protocol,
    outer_tos: u8,
    flags: SaFlags,
) -> Option<IpPacket> {
    let ip = IpPacket::parse_fixed_v6(packet).filter(|_| next_header == Protocol::IPV6)?;
    ecn::stays(outer_tos, flags).then_some(ip)
}

/// Moves the packet's own header to its payload, with which `packet` ends. Says where it begins now.
#[inline]
pub(crate) fn restore(packet: &mut [u8], shell: Shell, stripped: Stripped) -> usize {
    let header_len = usize::from(shell.len);
    let new = packet.len() - stripped.len - header_len;
    move_header(packet, 0..header_len, new);
    let plain = &mut packet[new..];
    renew_header(plain, shell.version, shell.next_header_at.into(), stripped.next_header);
    new
}

/// Behind a NAT the addresses of transport mode are not those that the sender summed (RFC 3948 §3.1.2). The ICV vouches for the payload, so the
/// checksum is written anew. Says whether there is one.
pub(crate) fn renew_checksum(bytes: &mut [u8], ip: &IpPacket) -> bool {
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

/// Mostly 3 bytes at the most, as everything but CBC aligns to 4, and CBC to 16.
#[inline(always)]
fn ends_in_padding(body: &[u8], from: usize) -> bool {
    match (&body[from..], body.last_chunk()) {
        ([] | [1] | [1, 2] | [1, 2, 3], _) => true,
        (padding, Some(tail)) if padding.len() <= tail.len() => {
            // Its first byte comes to lie lowest, and what is before it is shifted out.
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
    fn padding_is_one_two_three() {
        for (text, expected) in [
            (&b"pay\x01\x01\x04"[..], Ok(Stripped { len: 3, next_header: Protocol::IPIP })),
            (b"\x00\x06", Ok(Stripped { len: 0, next_header: Protocol::TCP })),
            (b"pay\x01\x02\x03\x03\x29", Ok(Stripped { len: 3, next_header: Protocol::IPV6 })),
            (b"pay\x01\x03\x02\x04", Err(DropReason::InPadding)),
            (b"pay\x04\x04", Err(DropReason::InPadding)),
            (b"\x00\x3b", Err(DropReason::InDummy)),
            (b"\x00", Err(DropReason::InRunt)),
        ] {
            assert_eq!(strip(text), expected, "{text:?}");
        }
    }

    #[test]
    fn each_byte_of_any_padding_counts() {
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
    fn the_longest_padding_is_taken() {
        let mut text: Vec<u8> = (1..=255).collect();
        text.extend([255, 4]);
        assert_eq!(strip(&text), Ok(Stripped { len: 0, next_header: Protocol::IPIP }));
    }
}
