//! The tunnel encapsulation limit (RFC 2473 §4.1.1; `net/ipv6/ip6_tunnel.c:
//! ip6_tnl_parse_tlv_enc_lim`): how many more tunnels may follow, in a destination options header
//! of the packet that enters a tunnel over IPv6.

use uxfrm_packet::{IpPacket, Protocol, Version, ipv6};

use crate::{DropReason, EncapRefused, Message};

/// The option's type.
const LIMIT: u8 = 4;

/// The limit for the outer header: the packet's own less one, or the tunnel's.
///
/// # Errors
/// When the packet's own is 0. The ICMP error names its offset.
pub(crate) fn next(
    tunnels: Option<u8>,
    outer: Version,
    ip: &IpPacket,
    bytes: &[u8],
) -> Result<Option<u8>, EncapRefused> {
    if outer == Version::V4 || ip.version == Version::V4 || !ip.has_options {
        return Ok(tunnels);
    }
    let Some(at) = find(bytes.get(..ip.header_len).unwrap_or_default(), bytes[6]) else {
        return Ok(tunnels);
    };
    match bytes[at] {
        0 => {
            let pointer = u32::try_from(at).unwrap_or(u32::MAX);
            let tell = Some(Message::ParameterProblem { pointer });
            Err(EncapRefused { reason: DropReason::OutEncapLimit, tell })
        }
        limit => Ok(Some(limit - 1)),
    }
}

/// Offset of the limit's value in a packet's headers, which `IpPacket` has validated.
fn find(headers: &[u8], first: u8) -> Option<usize> {
    let (mut kind, mut at) = (first, ipv6::HEADER_LEN);
    for _ in 0..=ipv6::MAX_EXTENSIONS {
        let &[next, words] = headers.get(at..)?.first_chunk()?;
        let len = match Protocol(kind) {
            Protocol::FRAGMENT => 8,
            Protocol(_) => (usize::from(words) + 1) * 8,
        };
        if Protocol(kind) == Protocol::DSTOPTS
            && let Some(offset) = in_options(headers.get(at..at + len)?)
        {
            return Some(at + offset);
        }
        (kind, at) = (next, at + len);
    }
    None
}

/// Offset of the limit's value in a destination options header.
fn in_options(header: &[u8]) -> Option<usize> {
    let mut at = 2;
    while let Some(&kind) = header.get(at) {
        if kind == 0 {
            at += 1;
            continue;
        }
        let len = *header.get(at + 1)?;
        if kind == LIMIT && len == 1 {
            return header.get(at + 2).map(|_| at + 2);
        }
        at += 2 + usize::from(len);
    }
    None
}

#[cfg(test)]
mod tests {
    use uxfrm_testkit::packets;

    use super::*;

    fn with_options(options: &[u8]) -> Vec<u8> {
        let ends = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
        let mut upper = vec![59, 0];
        upper.extend(options);
        packets::ip(ends.0, ends.1, Protocol::DSTOPTS, &upper)
    }

    fn next_of(bytes: &[u8]) -> Result<Option<u8>, EncapRefused> {
        next(Some(4), Version::V6, &IpPacket::parse(bytes).unwrap(), bytes)
    }

    #[test]
    fn own_encap_limit_is_decremented() {
        assert_eq!(next_of(&with_options(&[4, 1, 3, 1, 1, 0])), Ok(Some(2)));
        assert_eq!(next_of(&with_options(&[0, 0, 0, 4, 1, 1])), Ok(Some(0)));
        let refused = next_of(&with_options(&[1, 1, 0, 4, 1, 0])).unwrap_err();
        assert_eq!(refused.reason, DropReason::OutEncapLimit);
        assert_eq!(refused.tell, Some(Message::ParameterProblem { pointer: 47 }));
    }

    #[test]
    fn packets_without_limit_get_tunnels() {
        for options in [[1, 4, 0, 0, 0, 0], [4, 9, 9, 9, 9, 9], [0, 0, 0, 0, 0, 4]] {
            assert_eq!(next_of(&with_options(&options)), Ok(Some(4)));
        }
        let plain = packets::udp_bytes("[fd00::1]:1", "[fd00::2]:2", b"");
        assert_eq!(next_of(&plain), Ok(Some(4)));
    }
}
