//! Internet checksums (RFC 1071): sums by wide loads, incremental updates (RFC 1624), and the
//! transport checksums of whole packets.
//!
//! ```
//! use uxfrm_packet::checksum::{Sum, update};
//!
//! let header = [0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2];
//! let checksum = Sum::of(&header).checksum();
//! // One hop less: word 4 changes from 0x4011 to 0x3f11.
//! let mut forwarded = header;
//! forwarded[8] = 63;
//! assert_eq!(update(checksum, 0x4011, 0x3f11), Sum::of(&forwarded).checksum());
//! ```

mod wide;

use std::net::IpAddr;

use zerocopy::IntoBytes;

use crate::ipv4::Ipv4Header;
use crate::{Checksum, FlowPorts, IpPacket, PacketBuf, ParseError, Protocol};

/// Offset of TCP's checksum.
pub(crate) const TCP_CHECKSUM_AT: usize = 16;

/// Offset of UDP's checksum.
pub(crate) const UDP_CHECKSUM_AT: usize = 6;

/// A one's complement sum of 16-bit big-endian words.
///
/// Kept in 64 bits and native byte order: the sum is the same in either order, except for the order
/// of its own two bytes (RFC 1071 §2 B), which are swapped once, at the end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

/// Inverse of 0xffff modulo 2^64.
const INVERSE: u64 = 0_u64.wrapping_sub(u64::MAX / 0xffff);

impl Sum {
    /// The empty sum.
    pub const ZERO: Self = Self(0);

    /// The sum of `bytes`; an odd last byte counts as if a zero followed.
    #[must_use]
    #[inline]
    pub fn of(bytes: &[u8]) -> Self {
        Self(sum_words(bytes))
    }

    /// The sum of the eight bytes of a word in memory.
    #[must_use]
    #[inline(always)]
    pub const fn of_word(word: u64) -> Self {
        Self(word)
    }

    /// The sum of words of eight bytes: cheaper than [`of`](Self::of) for a constant number.
    #[must_use]
    #[inline(always)]
    pub fn of_words(words: &[[u8; 8]]) -> Self {
        words.iter().fold(Self::ZERO, |sum, word| sum.plus(Self(u64::from_ne_bytes(*word))))
    }

    /// The sum of an IPv4 header without options: five words of 32 bits.
    #[inline(always)]
    pub(crate) fn of_header(header: &Ipv4Header) -> Self {
        let (words, _) = header.as_bytes().as_chunks::<4>();
        Self(words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum())
    }

    /// The sum of the pseudo-header of TCP, UDP and ICMPv6 (RFC 9293 §3.1, RFC 8200 §8.1); `len` is
    /// the upper layer's.
    #[must_use]
    #[inline]
    pub fn of_pseudo(source: IpAddr, destination: IpAddr, protocol: Protocol, len: u32) -> Self {
        Self::of_address(source)
            .plus(Self::of_address(destination))
            .plus_u32(len)
            .plus_u16(protocol.0.into())
    }

    /// Adds `bytes`. Everything added before must have even length.
    #[must_use]
    #[inline]
    pub fn plus_bytes(self, bytes: &[u8]) -> Self {
        self.plus(Self::of(bytes))
    }

    /// Adds one word.
    #[must_use]
    #[inline]
    pub fn plus_u16(self, word: u16) -> Self {
        Self(self.0 + u64::from(word.to_be()))
    }

    /// Adds two words.
    #[must_use]
    #[inline]
    pub fn plus_u32(self, words: u32) -> Self {
        Self(self.0 + u64::from(words.to_be()))
    }

    /// Adds another sum.
    #[must_use]
    #[inline]
    pub fn plus(self, other: Self) -> Self {
        let (sum, carry) = self.0.overflowing_add(other.0);
        Self(sum + u64::from(carry))
    }

    /// The sum in 16 bits, as `Checksum::Partial` stores a pseudo-header's. 0xffff for bytes with a
    /// valid checksum.
    #[must_use]
    #[inline]
    pub fn fold(self) -> u16 {
        // The upper half of the sum with its exchanged halves is the sum of both halves, with its
        // carry.
        let sum = self.0.wrapping_add(self.0.rotate_left(32)) >> 32;
        let sum = sum as u32;
        let sum = sum.wrapping_add(sum.rotate_left(16)) >> 16;
        u16::from_be(sum as u16)
    }

    /// Whether it is the sum of bytes with a valid checksum that are not all 0.
    #[must_use]
    #[inline(always)]
    pub const fn is_right(self) -> bool {
        // Valid sums are multiples of 0xffff, as folding subtracts only those. Only multiples have
        // so small a product.
        let times = self.0.wrapping_mul(INVERSE);
        times != 0 && times <= u64::MAX / 0xffff
    }

    /// The value of a checksum field: the sum's complement.
    #[must_use]
    #[inline]
    pub fn checksum(self) -> u16 {
        !self.fold()
    }

    /// The value of a UDP checksum field, where 0 would mean "no checksum": 0xffff instead (RFC
    /// 768).
    #[must_use]
    #[inline]
    pub fn nonzero_checksum(self) -> u16 {
        match self.checksum() {
            0 => 0xffff,
            checksum => checksum,
        }
    }

    #[inline]
    fn of_address(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self::ZERO.plus_u32(address.to_bits()),
            IpAddr::V6(address) => Self::of(&address.octets()),
        }
    }
}

/// The checksum after one word it covers changed from `old` to `new` (RFC 1624 §3, equation 3).
#[must_use]
#[inline]
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    Sum::ZERO.plus_u16(!checksum).plus_u16(!old).plus_u16(new).checksum()
}

/// Like [`update`], for two words, such as an address.
#[must_use]
#[inline]
pub fn update_u32(checksum: u16, old: u32, new: u32) -> u16 {
    Sum::ZERO.plus_u16(!checksum).plus_u32(!old).plus_u32(new).checksum()
}

/// Completes a partial checksum; the packet is [`Checksum::Verified`] then.
///
/// A packet whose checksum is not [`Checksum::Partial`] is unchanged. Super-packets are for
/// [`SegmentPlan`](crate::SegmentPlan), which completes each segment's.
///
/// # Errors
/// [`ParseError::ChecksumRange`] when the field is outside the upper layer, or overlaps fields that
/// select the flow: the sender chooses its offset, while policies were looked up by the fields
/// before. Such a packet must be dropped.
#[inline]
pub fn complete(packet: &mut PacketBuf) -> Result<(), ParseError> {
    match packet.checksum {
        Checksum::Partial { start, offset } => fill_in(packet, start, offset),
        Checksum::AsIs | Checksum::Verified => Ok(()),
    }
}

fn fill_in(packet: &mut PacketBuf, start: u16, offset: u16) -> Result<(), ParseError> {
    let outside = ParseError::ChecksumRange;
    let bytes = packet.bytes_mut();
    let ip = IpPacket::parse(bytes).map_err(|_| outside)?;
    let ports = FlowPorts::of(&ip, bytes);
    let (start, at) = (usize::from(start), usize::from(start) + usize::from(offset));
    let sum = Sum::of(bytes.get(start..).ok_or(outside)?);
    let field = bytes.get_mut(at..at + 2).filter(|_| at >= ip.header_len).ok_or(outside)?;
    // The kernel avoids 0 for all protocols here, although only UDP must (net/core/dev.c:
    // skb_checksum_help).
    field.copy_from_slice(&sum.nonzero_checksum().to_be_bytes());
    if FlowPorts::of(&ip, bytes) != ports {
        return Err(outside);
    }
    packet.checksum = Checksum::Verified;
    Ok(())
}

/// Result of verifying a transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verification {
    /// Valid.
    Right,
    /// Invalid, or the transport header is truncated.
    Wrong,
    /// None: UDP over IPv4 with 0.
    Absent,
    /// Cannot be verified: a fragment, or neither TCP nor UDP.
    Unknown,
}

/// Verifies the TCP or UDP checksum of the packet that `ip` was parsed from.
///
/// UDP over IPv6 must have one (RFC 8200 §8.1), so 0 is [`Verification::Wrong`] there. The sum
/// covers UDP's own length.
#[must_use]
#[inline]
pub fn verify(ip: &IpPacket, bytes: &[u8]) -> Verification {
    let upper = ip.upper(bytes);
    match ip.protocol {
        _ if ip.is_fragment() => Verification::Unknown,
        Protocol::TCP => verify_covered(ip, upper, TCP_CHECKSUM_AT),
        Protocol::UDP => verify_udp(ip, upper),
        Protocol(_) => Verification::Unknown,
    }
}

/// State of the checksum of a whole TCP or UDP packet without metadata: partial if the field has
/// the pseudo-header's sum (`CHECKSUM_PARTIAL`), unless it is valid as it stands.
///
/// A damaged packet looks like that no more often than any other wrong checksum goes unnoticed.
#[must_use]
#[inline]
pub fn verify_if_cheap(ip: &IpPacket, bytes: &[u8]) -> Checksum {
    let offset = match ip.protocol {
        _ if ip.is_fragment() => return Checksum::AsIs,
        Protocol::TCP => TCP_CHECKSUM_AT,
        Protocol::UDP => UDP_CHECKSUM_AT,
        Protocol(_) => return Checksum::AsIs,
    };
    let upper = ip.upper(bytes);
    let field = upper.get(offset..).and_then(<[u8]>::first_chunk).copied();
    let (Some(field), Ok(len)) = (field, u32::try_from(upper.len())) else {
        return Checksum::AsIs;
    };
    let pseudo = Sum::of_pseudo(ip.source, ip.destination, ip.protocol, len);
    if u16::from_be_bytes(field) != pseudo.fold() || verify(ip, bytes) == Verification::Right {
        return Checksum::AsIs;
    }
    match (u16::try_from(ip.header_len), u16::try_from(offset)) {
        (Ok(start), Ok(offset)) => Checksum::Partial { start, offset },
        (Ok(_) | Err(_), _) => Checksum::AsIs,
    }
}

fn verify_udp(ip: &IpPacket, upper: &[u8]) -> Verification {
    let Ok(datagram) = crate::udp::UdpDatagram::parse(upper) else { return Verification::Wrong };
    match (datagram.header.checksum.get(), ip.source) {
        (0, IpAddr::V4(_)) => Verification::Absent,
        (0, IpAddr::V6(_)) => Verification::Wrong,
        (_, _) => {
            verify_covered(ip, &upper[..upper.len() - datagram.trailing.len()], UDP_CHECKSUM_AT)
        }
    }
}

fn verify_covered(ip: &IpPacket, covered: &[u8], field_at: usize) -> Verification {
    let Ok(len) = u32::try_from(covered.len()) else { return Verification::Wrong };
    if covered.len() < field_at + 2 {
        return Verification::Wrong;
    }
    let sum = Sum::of_pseudo(ip.source, ip.destination, ip.protocol, len).plus_bytes(covered);
    if sum.fold() == 0xffff { Verification::Right } else { Verification::Wrong }
}

/// Sums in native byte order.
#[inline]
fn sum_words(bytes: &[u8]) -> u64 {
    if bytes.len() < WIDE { sum_narrow(bytes) } else { wide::sum(bytes) }
}

/// From this length on, wide registers pay for the feature check.
const WIDE: usize = 128;

/// Adds 32-bit words into 64 bits, which cannot overflow below 2^32 words. Compilers vectorize the
/// plain loop best.
#[inline(always)]
fn sum_narrow(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum::<u64>() + tail(rest)
}

/// The last 0 to 3 bytes, padded with zeros. Copying them would call `memcpy`, for ESP for none.
#[inline(always)]
fn tail(rest: &[u8]) -> u64 {
    let word = match *rest {
        [] => return 0,
        [a] => [a, 0, 0, 0],
        [a, b] => [a, b, 0, 0],
        [a, b, c, ..] => [a, b, c, 0],
    };
    u32::from_ne_bytes(word).into()
}

#[cfg(test)]
mod tests;
