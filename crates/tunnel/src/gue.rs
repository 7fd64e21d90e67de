//! GUE headers (draft-ietf-intarea-gue; `include/net/gue.h`): variant 0 with its flags, private
//! field and remote checksum offload, and variant 1, which is no header at all.
//!
//! ```text
//!  0                   1                   2                   3
//! | 0 |C|  Hlen   |  Proto/ctype  |           flags             |P|
//! |                  private flags (with P): R…                   |
//! |  checksum start (with R)      |  checksum field (with R)      |
//! ```

use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use uxfrm_packet::Protocol;

use crate::DropReason;

/// Bytes of a header without optional fields.
pub const HEADER_LEN: usize = 4;

/// Bytes of a header with remote checksum offload.
pub const REMOTE_CHECKSUM_LEN: usize = HEADER_LEN + 8;

/// Flag in [`GueHeader::flags`]: private flags follow the standard fields.
pub const PRIVATE: u16 = 1;

/// Private flag: where a checksum starts and is to be stored follows.
pub const REMOTE_CHECKSUM: u32 = 1 << 31;

/// In [`GueHeader::version_control_len`]: a control message.
const CONTROL: u8 = 0x20;

/// The fixed 4 bytes of variant 0.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct GueHeader {
    /// Version (2 bits), control (1), length of the optional fields in words of 4 bytes (5).
    pub version_control_len: u8,
    /// Protocol of the payload; of a control message, its type.
    pub protocol: Protocol,
    /// Optional fields.
    pub flags: U16,
}

/// Location of an open checksum, counted from the end of the GUE header.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct RemoteChecksum {
    /// Start of the sum, which runs to the payload's end.
    pub start: U16,
    /// Offset of the checksum field, which holds the pseudo-header's sum.
    pub field: U16,
}

/// The private field of a header with remote checksum offload.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PrivateField {
    flags: U32,
    checksum: RemoteChecksum,
}

/// A parsed GUE header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gue {
    /// Bytes of GUE header: 0 for variant 1.
    pub header_len: usize,
    /// What follows the header.
    pub protocol: Protocol,
    /// Remote checksum offload, if requested.
    pub checksum: Option<RemoteChecksum>,
}

impl Gue {
    /// Parses a UDP payload, as `net/ipv4/fou_core.c: gue_udp_recv` and `validate_gue_flags`.
    /// Optional fields without a flag are skipped.
    ///
    /// # Errors
    /// The variants of [`DropReason`] named `InGue…`, except [`DropReason::InGueRemoteChecksum`]:
    /// the checksum's location is not checked.
    pub fn parse(payload: &[u8]) -> Result<Self, DropReason> {
        let (header, rest) =
            GueHeader::ref_from_prefix(payload).map_err(|_| DropReason::InGueTruncated)?;
        match header.version_control_len >> 6 {
            0 => Self::variant_0(header, rest),
            1 => Self::variant_1(header.version_control_len),
            _ => Err(DropReason::InGueVersion),
        }
    }

    /// A header for a payload of `protocol`.
    #[must_use]
    pub const fn plain(protocol: Protocol) -> Self {
        Self { header_len: HEADER_LEN, protocol, checksum: None }
    }

    /// A header that leaves a checksum to the receiver.
    #[must_use]
    pub const fn with_checksum(protocol: Protocol, checksum: RemoteChecksum) -> Self {
        Self { header_len: REMOTE_CHECKSUM_LEN, protocol, checksum: Some(checksum) }
    }

    /// Writes a variant 0 header to the front of `out` and returns its length; `None`, with nothing
    /// written, if it does not fit.
    #[must_use]
    pub fn write(&self, out: &mut [u8]) -> Option<usize> {
        let len = if self.checksum.is_some() { REMOTE_CHECKSUM_LEN } else { HEADER_LEN };
        let (fixed, rest) = out.get_mut(..len)?.split_at_mut(HEADER_LEN);
        let words = if self.checksum.is_some() { 2 } else { 0 };
        let flags = if self.checksum.is_some() { PRIVATE } else { 0 };
        let header =
            GueHeader { version_control_len: words, protocol: self.protocol, flags: flags.into() };
        fixed.copy_from_slice(header.as_bytes());
        if let Some(checksum) = self.checksum {
            rest.copy_from_slice(
                PrivateField { flags: REMOTE_CHECKSUM.into(), checksum }.as_bytes(),
            );
        }
        Some(len)
    }

    fn variant_0(header: &GueHeader, rest: &[u8]) -> Result<Self, DropReason> {
        let fields_len = usize::from(header.version_control_len & 0x1f) * 4;
        let fields = rest.get(..fields_len).ok_or(DropReason::InGueTruncated)?;
        let checksum = remote_checksum(header.flags.get(), fields)?;
        if header.version_control_len & CONTROL != 0 {
            return Err(DropReason::InGueControl);
        }
        if header.protocol == Protocol(0) {
            return Err(DropReason::InGueProtocol);
        }
        Ok(Self { header_len: HEADER_LEN + fields_len, protocol: header.protocol, checksum })
    }

    /// The version bits 01 are the start of IPv4's and IPv6's versions; the packet itself follows
    /// the UDP header.
    fn variant_1(first: u8) -> Result<Self, DropReason> {
        let protocol = match first >> 4 {
            4 => Protocol::IPIP,
            6 => Protocol::IPV6,
            _ => return Err(DropReason::InGueVersion),
        };
        Ok(Self { header_len: 0, protocol, checksum: None })
    }
}

/// The private field, if present.
fn remote_checksum(flags: u16, fields: &[u8]) -> Result<Option<RemoteChecksum>, DropReason> {
    if flags & !PRIVATE != 0 {
        return Err(DropReason::InGueFlags);
    }
    if flags & PRIVATE == 0 {
        return Ok(None);
    }
    let (private, rest) = U32::ref_from_prefix(fields).map_err(|_| DropReason::InGueTruncated)?;
    match private.get() {
        0 => Ok(None),
        // The kernel trusts the flag without checking the header's length.
        REMOTE_CHECKSUM => {
            let (checksum, _) =
                RemoteChecksum::ref_from_prefix(rest).map_err(|_| DropReason::InGueTruncated)?;
            Ok(Some(*checksum))
        }
        _ => Err(DropReason::InGueFlags),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gue_header_round_trips() {
        let checksum = RemoteChecksum { start: 24.into(), field: 40.into() };
        for gue in [Gue::plain(Protocol::GRE), Gue::with_checksum(Protocol::IPIP, checksum)] {
            let mut bytes = [0xee; 16];
            assert_eq!(gue.write(&mut bytes), Some(gue.header_len));
            assert_eq!(Gue::parse(&bytes), Ok(gue));
            assert_eq!(gue.write(&mut bytes[..gue.header_len - 1]), None);
        }
    }

    #[test]
    fn bytes_are_the_kernels() {
        let mut bytes = [0; 12];
        let checksum = RemoteChecksum { start: 0x14.into(), field: 0x24.into() };
        Gue::with_checksum(Protocol::IPIP, checksum).write(&mut bytes).unwrap();
        assert_eq!(bytes, [0x02, 4, 0, 1, 0x80, 0, 0, 0, 0, 0x14, 0, 0x24]);
        Gue::plain(Protocol::ESP).write(&mut bytes).unwrap();
        assert_eq!(bytes[..4], [0, 50, 0, 0]);
    }

    #[test]
    fn gue_fault_has_its_drop_reason() {
        use DropReason as D;
        let cases: [(&[u8], DropReason); 12] = [
            (&[], D::InGueTruncated),
            (&[0, 4, 0], D::InGueTruncated),
            (&[1, 4, 0, 0], D::InGueTruncated),
            (&[0, 4, 0, 1], D::InGueTruncated),
            (&[1, 4, 0, 1, 0x80, 0, 0, 0], D::InGueTruncated),
            (&[0x80, 4, 0, 0], D::InGueVersion),
            (&[0xc0, 4, 0, 0], D::InGueVersion),
            (&[0x55, 4, 0, 0], D::InGueVersion),
            (&[0, 4, 0, 2], D::InGueFlags),
            (&[1, 4, 0, 1, 0x40, 0, 0, 0], D::InGueFlags),
            (&[0x20, 1, 0, 0], D::InGueControl),
            (&[0, 0, 0, 0], D::InGueProtocol),
        ];
        for (bytes, reason) in cases {
            assert_eq!(Gue::parse(bytes), Err(reason), "{bytes:02x?}");
        }
    }

    #[test]
    fn variant_1_is_the_packet_itself() {
        let read = |first| Gue::parse(&[first, 0, 0, 0]).map(|gue| (gue.header_len, gue.protocol));
        assert_eq!(read(0x45), Ok((0, Protocol::IPIP)));
        assert_eq!(read(0x60), Ok((0, Protocol::IPV6)));
    }

    #[test]
    fn fields_that_no_flag_announces_are_skipped() {
        let gue = Gue::parse(&[2, 41, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        assert_eq!((gue.header_len, gue.checksum), (12, None));
    }
}
