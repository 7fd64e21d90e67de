//! Jobs: one packet each, with the layout of its parts. Every length is checked here, once;
//! backends rely on it.

use core::{fmt, ptr};

use crate::key::SaKey;
use crate::transform::HEADER_LEN;

/// The half of the sequence number that is not in the packet (RFC 4303 §2.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeqHigh {
    /// 32-bit sequence numbers: nothing is authenticated in addition.
    None,
    /// Extended sequence numbers: these upper 32 bits are authenticated too.
    Esn(u32),
}

/// Origin of a sealed packet's IV.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Iv {
    /// The caller has written it. It must never repeat under one key, and must be unpredictable for
    /// CBC.
    InPacket,
    /// The backend writes it. GCM, CCM, GMAC, CTR and ChaCha20-Poly1305: the counter, big-endian.
    /// CBC: the counter as a 128-bit block, encrypted under the SA's key (NIST SP 800-38A, appendix
    /// C). Null: none. The caller never reuses a counter under one key.
    Counter(u64),
}

/// Result of a [`SealJob`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SealStatus {
    /// Pending.
    #[default]
    Pending,
    /// The packet is ready to leave.
    Sealed,
    /// No room for header, IV, at least two bytes of trailer and ICV; or the text is not whole
    /// blocks; or `plain` differs in length. The packet was zeroed, so that no plaintext leaves.
    Malformed,
}

/// Result of an [`OpenJob`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OpenStatus {
    /// Pending.
    #[default]
    Pending,
    /// The ICV is correct (or the transform has none); the plaintext is in place.
    Authentic,
    /// The ICV is wrong. No plaintext is given out: the text is ciphertext or zeros.
    Forged,
    /// Shorter than header, IV, two bytes of trailer and ICV; or the text is not whole blocks; or
    /// `plain` is too short. Nothing was touched.
    TooShort,
}

/// One packet to encrypt and authenticate.
///
/// `esp` is SPI | sequence number | IV | payload, padding, pad length, next header | room for the
/// ICV, in one piece.
pub struct SealJob<'a> {
    /// The SA's key.
    pub key: &'a SaKey,
    /// Extended sequence numbers, or none.
    pub seq_high: SeqHigh,
    /// Who writes the IV.
    pub iv: Iv,
    /// The packet, from SPI to the end of the ICV.
    pub esp: &'a mut [u8],
    /// Out of place: source of payload to next header, exactly as long as their room in `esp`.
    pub plain: Option<&'a [u8]>,
    /// The result.
    pub status: SealStatus,
    /// The caller's identifier, unused here.
    pub tag: u32,
}

impl<'a> SealJob<'a> {
    /// A packet whose plaintext is already in place.
    #[must_use]
    pub fn in_place(key: &'a SaKey, seq_high: SeqHigh, iv: Iv, esp: &'a mut [u8]) -> Self {
        Self { key, seq_high, iv, esp, plain: None, status: SealStatus::Pending, tag: 0 }
    }

    /// A packet whose plaintext is read from elsewhere, in the pass that encrypts it.
    #[must_use]
    pub fn out_of_place(
        key: &'a SaKey,
        seq_high: SeqHigh,
        iv: Iv,
        esp: &'a mut [u8],
        plain: &'a [u8],
    ) -> Self {
        Self { key, seq_high, iv, esp, plain: Some(plain), status: SealStatus::Pending, tag: 0 }
    }

    /// Bytes of text, or `None` for [`SealStatus::Malformed`].
    pub(crate) fn text_len(&self) -> Option<usize> {
        let len = self.key.shape.text_len(self.esp.len())?;
        self.plain.is_none_or(|plain| plain.len() == len).then_some(len)
    }
}

/// One packet to check and decrypt. `esp` is as in [`SealJob`], as received.
pub struct OpenJob<'a> {
    /// The SA's key.
    pub key: &'a SaKey,
    /// Extended sequence numbers, or none.
    pub seq_high: SeqHigh,
    /// The packet, from SPI to the end of the ICV.
    pub esp: &'a mut [u8],
    /// Out of place: target of payload to next header, at least as long; `esp` then keeps the
    /// ciphertext.
    pub plain: Option<&'a mut [u8]>,
    /// The result.
    pub status: OpenStatus,
}

impl<'a> OpenJob<'a> {
    /// A packet to be decrypted in place.
    #[must_use]
    pub fn in_place(key: &'a SaKey, seq_high: SeqHigh, esp: &'a mut [u8]) -> Self {
        Self { key, seq_high, esp, plain: None, status: OpenStatus::Pending }
    }

    /// A packet to be decrypted into `plain`.
    #[must_use]
    pub fn out_of_place(
        key: &'a SaKey,
        seq_high: SeqHigh,
        esp: &'a mut [u8],
        plain: &'a mut [u8],
    ) -> Self {
        Self { key, seq_high, esp, plain: Some(plain), status: OpenStatus::Pending }
    }

    /// Bytes of text, or `None` for [`OpenStatus::TooShort`].
    pub(crate) fn text_len(&self) -> Option<usize> {
        let len = self.key.shape.text_len(self.esp.len())?;
        self.plain.as_ref().is_none_or(|plain| plain.len() >= len).then_some(len)
    }
}

impl fmt::Debug for SealJob<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealJob({:?}, {} bytes, {:?})", self.key, self.esp.len(), self.status)
    }
}

impl fmt::Debug for OpenJob<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenJob({:?}, {} bytes, {:?})", self.key, self.esp.len(), self.status)
    }
}

/// A packet split into its parts. `header_iv` is SPI, sequence number and IV.
pub(crate) struct EspParts<'p> {
    pub(crate) header_iv: &'p mut [u8],
    pub(crate) text: &'p mut [u8],
    pub(crate) icv: &'p mut [u8],
}

impl<'p> EspParts<'p> {
    /// `text_len` is from the job's own `text_len`, so all parts are inside.
    pub(crate) fn of(esp: &'p mut [u8], iv_len: usize, text_len: usize) -> Self {
        let (header_iv, rest) = esp.split_at_mut(HEADER_LEN + iv_len);
        let (text, icv) = rest.split_at_mut(text_len);
        Self { header_iv, text, icv }
    }
}

/// Text for a library call: `len` bytes at `src` and `dst`, which are equal or do not overlap.
/// Valid while the slices it was made of are.
#[derive(Clone, Copy)]
pub(crate) struct TextSpan {
    pub(crate) src: *const u8,
    pub(crate) dst: *mut u8,
    pub(crate) len: usize,
}

impl TextSpan {
    /// No text.
    pub(crate) const EMPTY: Self = Self { src: ptr::dangling(), dst: ptr::dangling_mut(), len: 0 };

    /// From `source` into `text`, which is as long, or `text` in place.
    pub(crate) fn into(text: &mut [u8], source: Option<&[u8]>) -> Self {
        let dst = text.as_mut_ptr();
        debug_assert!(source.is_none_or(|source| source.len() == text.len()), "a checked job's");
        Self { src: source.map_or(dst, |source| source.as_ptr().cast_mut()), dst, len: text.len() }
    }

    /// From `text` into `target`, which is as long, or `text` in place.
    pub(crate) fn out_of(text: &mut [u8], target: Option<&mut [u8]>) -> Self {
        match target {
            Some(target) => Self::into(target, Some(text)),
            None => Self::into(text, None),
        }
    }
}
