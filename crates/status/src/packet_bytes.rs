//! Bytes of packets; in JSON as text in hexadecimal.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Bytes of a packet, which may be somebody's data: not shown by `Debug`.
///
/// ```
/// use uxfrm_status::packet_bytes::PacketBytes;
///
/// let bytes = PacketBytes::from(&[0x45, 0, 0xff][..]);
/// assert_eq!(serde_json::to_string(&bytes)?, r#""4500ff""#);
/// assert_eq!(serde_json::from_str::<PacketBytes>(r#""4500ff""#)?, bytes);
/// assert!(serde_json::from_str::<PacketBytes>(r#""45 0""#).is_err());
/// assert_eq!(format!("{bytes:?}"), "PacketBytes(3 bytes)");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PacketBytes(pub Vec<u8>);

/// Text that is no bytes in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes are pairs of hexadecimal digits")]
pub struct PacketBytesError;

const DIGITS: &[u8; 16] = b"0123456789abcdef";

impl From<&[u8]> for PacketBytes {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl From<PacketBytes> for String {
    fn from(bytes: PacketBytes) -> Self {
        let mut text = Self::with_capacity(bytes.0.len() * 2);
        for byte in bytes.0 {
            text.push(char::from(DIGITS[usize::from(byte >> 4)]));
            text.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
        text
    }
}

impl TryFrom<String> for PacketBytes {
    type Error = PacketBytesError;

    fn try_from(text: String) -> Result<Self, PacketBytesError> {
        let digit = |byte: u8| {
            let digit = char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
            digit.ok_or(PacketBytesError)
        };
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if !rest.is_empty() {
            return Err(PacketBytesError);
        }
        pairs
            .iter()
            .map(|[high, low]| Ok(digit(*high)? << 4 | digit(*low)?))
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

impl fmt::Debug for PacketBytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "PacketBytes({} bytes)", self.0.len())
    }
}
