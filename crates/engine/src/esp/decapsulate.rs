//! Out of a decrypted ESP text back to the packet.

use uxfrm_packet::Protocol;

use crate::DropReason;

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
    if !is_padding(&body[len..]) {
        return Err(DropReason::InPadding);
    }
    match Protocol(next_header) {
        Protocol::NONE => Err(DropReason::InDummy),
        next_header => Ok(Stripped { len, next_header }),
    }
}

/// Mostly 3 bytes at the most, as everything but CBC aligns to 4.
#[inline(always)]
fn is_padding(bytes: &[u8]) -> bool {
    match bytes {
        [] => true,
        [1] => true,
        [1, 2] => true,
        [1, 2, 3] => true,
        _ => bytes.iter().zip(1..=u8::MAX).all(|(byte, number)| *byte == number),
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
    fn the_longest_padding_is_taken() {
        let mut text: Vec<u8> = (1..=255).collect();
        text.extend([255, 4]);
        assert_eq!(strip(&text), Ok(Stripped { len: 0, next_header: Protocol::IPIP }));
    }
}
