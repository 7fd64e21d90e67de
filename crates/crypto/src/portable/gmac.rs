//! AES-GMAC (RFC 4543): GCM with everything, including the IV, as associated data and no text.

use super::Aad;
use super::aead::AeadKey;
use crate::job::EspParts;
use crate::transform::HEADER_LEN;

/// Grows to the longest ESN packet.
#[derive(Debug, Default)]
pub(crate) struct Scratch(Vec<u8>);

pub(super) fn seal(key: &AeadKey, scratch: &mut Scratch, aad: &Aad, parts: EspParts<'_>) -> bool {
    let message = scratch.message(aad, &parts);
    key.sign(&parts.header_iv[HEADER_LEN..], message, parts.icv)
}

pub(super) fn verify(
    key: &AeadKey,
    scratch: &mut Scratch,
    aad: &Aad,
    parts: &EspParts<'_>,
) -> bool {
    let message = scratch.message(aad, parts);
    key.verify(&parts.header_iv[HEADER_LEN..], message, parts.icv)
}

impl Scratch {
    /// SPI | [high half |] sequence number | IV | text in one piece, as `EVP_AEAD` requires.
    fn message(&mut self, aad: &Aad, parts: &EspParts<'_>) -> &[u8] {
        self.0.clear();
        self.0.extend_from_slice(aad.bytes());
        self.0.extend_from_slice(&parts.header_iv[HEADER_LEN..]);
        self.0.extend_from_slice(parts.text);
        &self.0
    }
}
