//! `ALGO-LIST`: `enc|auth|comp NAME KEY`, `aead NAME KEY ICV-BITS`, `auth-trunc NAME KEY BITS`. Keys go straight into
//! [`KeyMaterial`]; no error shows one.

use uxfrm_crypto::{Error as CryptoError, KeyMaterial, Transform};
use uxfrm_engine::{SaProtocol, SaTransform};
use zeroize::Zeroizing;

use super::{
    cursor::{Cursor, Fault},
    error::{Error, one_of},
    keyword::{AEADS, AUTHS, AlgorithmKind, CIPHERS},
    protocol,
    secret::Shown,
    words::Word,
};

/// iproute2's buffer.
const LONGEST_KEY: usize = 512;

/// The algorithms of a state so far.
#[derive(Default)]
pub(super) struct Algorithms<'l, 'a> {
    aead: Option<Algorithm<'l, 'a>>,
    cipher: Option<Algorithm<'l, 'a>>,
    auth: Option<Algorithm<'l, 'a>>,
    compression: Option<&'l Word<'a>>,
}

struct Algorithm<'l, 'a> {
    name: &'l Word<'a>,
    key: KeyMaterial,
    bits: Option<u32>,
}

impl Algorithm<'_, '_> {
    fn key_bits(&self) -> usize {
        self.key.len() * 8
    }
}

impl<'l, 'a> Algorithms<'l, 'a> {
    /// What stands behind `word`, which is `kind`'s.
    pub(super) fn parse(
        &mut self,
        kind: AlgorithmKind,
        word: &Word<'_>,
        cursor: &mut Cursor<'l, 'a>,
    ) -> Result<(), Fault> {
        if self.is_taken(kind) {
            return Err(cursor.duplicate("ALGO-TYPE", word));
        }
        cursor.pass_key();
        let keyword = kind_name(kind);
        let name = cursor.operand(keyword, "ALGO-NAME")?;
        let mut key = || parse_key(cursor, keyword);
        match kind {
            AlgorithmKind::Comp => self.compression = Some(name),
            AlgorithmKind::Enc => self.cipher = Some(Algorithm { name, key: key()?, bits: None }),
            AlgorithmKind::Auth => self.auth = Some(Algorithm { name, key: key()?, bits: None }),
            AlgorithmKind::AuthTrunc => {
                let (key, bits) = (key()?, cursor.number_operand(keyword, "ALGO-TRUNC-LEN")?);
                self.auth = Some(Algorithm { name, key, bits: Some(bits) });
            }
            AlgorithmKind::Aead => {
                let (key, bits) = (key()?, cursor.number_operand(keyword, "ALGO-ICV-LEN")?);
                self.aead = Some(Algorithm { name, key, bits: Some(bits) });
            }
        }
        Ok(())
    }

    fn is_taken(&self, kind: AlgorithmKind) -> bool {
        match kind {
            AlgorithmKind::Aead => {
                self.aead.is_some() || self.cipher.is_some() || self.auth.is_some()
            }
            AlgorithmKind::Enc => self.aead.is_some() || self.cipher.is_some(),
            AlgorithmKind::Auth | AlgorithmKind::AuthTrunc => {
                self.aead.is_some() || self.auth.is_some()
            }
            AlgorithmKind::Comp => self.compression.is_some(),
        }
    }

    /// The transform, if these are the algorithms that the protocol wants.
    pub(super) fn transform(
        self,
        protocol: SaProtocol,
        cursor: &Cursor<'_, '_>,
    ) -> Result<SaTransform, Fault> {
        self.check(protocol).map_err(|rule| cursor.refuse(rule))?;
        match self.aead {
            Some(aead) => aead_transform(aead),
            None => pair_transform(self.cipher, self.auth, cursor),
        }
    }

    /// `ip/xfrm_state.c: xfrm_state_modify`.
    fn check(&self, protocol: SaProtocol) -> Result<(), String> {
        let (encrypts, authenticates, compresses) = (
            self.cipher.is_some() || self.aead.is_some(),
            self.auth.is_some(),
            self.compression.is_some(),
        );
        let with = format!("with XFRM-PROTO value \"{}\"", protocol::ipsec_name(protocol));
        match protocol {
            SaProtocol::Esp if compresses => {
                Err(format!("ALGO-TYPE value \"comp\" is invalid {with}"))
            }
            SaProtocol::Esp if !encrypts => {
                Err(format!("ALGO-TYPE value \"enc\" or \"aead\" is required {with}"))
            }
            SaProtocol::Ah if encrypts || compresses => {
                Err(format!("ALGO-TYPE values \"enc\", \"aead\", and \"comp\" are invalid {with}"))
            }
            SaProtocol::Ah if !authenticates => {
                Err(format!("ALGO-TYPE value \"auth\" or \"auth-trunc\" is required {with}"))
            }
            SaProtocol::Comp if encrypts || authenticates => Err(format!(
                "ALGO-TYPE values \"enc\", \"auth\", \"auth-trunc\", and \"aead\" are invalid {with}"
            )),
            SaProtocol::Comp if !compresses => {
                Err(format!("ALGO-TYPE value \"comp\" is required {with}"))
            }
            SaProtocol::Route2 | SaProtocol::Hao | SaProtocol::Any
                if encrypts || authenticates || compresses =>
            {
                Err(format!("ALGO is invalid {with}"))
            }
            SaProtocol::Esp
            | SaProtocol::Ah
            | SaProtocol::Comp
            | SaProtocol::Route2
            | SaProtocol::Hao
            | SaProtocol::Any => Ok(()),
        }
    }
}

fn aead_transform(aead: Algorithm<'_, '_>) -> Result<SaTransform, Fault> {
    let icv_bits = aead.bits.unwrap_or_default();
    let transform = Transform::aead(aead.name.text(), aead.key_bits(), icv_bits)
        .map_err(|error| refused(&error, aead.name, "aead", AEADS))?;
    Ok(SaTransform {
        transform,
        encryption_key: aead.key,
        authentication_key: KeyMaterial::empty(),
    })
}

fn pair_transform(
    cipher: Option<Algorithm<'_, '_>>,
    auth: Option<Algorithm<'_, '_>>,
    cursor: &Cursor<'_, '_>,
) -> Result<SaTransform, Fault> {
    // One after the other, so that a refusal names the right word.
    let cipher_name = cipher.as_ref().map(|cipher| (cipher.name.text(), cipher.key_bits()));
    if let Some(cipher) = &cipher {
        Transform::cipher_auth(cipher_name, None)
            .map_err(|error| refused(&error, cipher.name, "enc", CIPHERS))?;
    }
    let auth_name = auth.as_ref().map(|auth| (auth.name.text(), auth.key_bits(), auth.bits));
    let transform =
        Transform::cipher_auth(cipher_name, auth_name).map_err(|error| match &auth {
            Some(auth) if auth.bits.is_some() => refused(&error, auth.name, "auth-trunc", AUTHS),
            Some(auth) => refused(&error, auth.name, "auth", AUTHS),
            None => cursor.refuse(error.to_string()),
        })?;
    let key = |algorithm: Option<Algorithm<'_, '_>>| {
        algorithm.map_or_else(KeyMaterial::empty, |algorithm| algorithm.key)
    };
    Ok(SaTransform { transform, encryption_key: key(cipher), authentication_key: key(auth) })
}

fn refused(
    error: &CryptoError,
    name: &Word<'_>,
    keyword: &'static str,
    known: &[&'static str],
) -> Fault {
    let detail = match error {
        // The name may be a key whose algorithm was forgotten.
        CryptoError::AeadNotFound { icv_bits, .. } => {
            format!("{} with an ICV of {icv_bits} bits", Shown::behind_key(name.text()))
        }
        CryptoError::CipherNotFound { .. }
        | CryptoError::AuthNotFound { .. }
        | CryptoError::AuthTruncNotFound { .. } => Shown::behind_key(name.text()).to_string(),
        CryptoError::TruncatedIcv { .. }
        | CryptoError::KeyLength { .. }
        | CryptoError::KeyMismatch { .. }
        | CryptoError::BackendUnavailable(_)
        | CryptoError::Library(_)
        | _ => error.detail(),
    };
    let error = Error::Algorithm {
        what: error.to_string(),
        detail,
        algorithm: keyword,
        expected: one_of(known),
    };
    Fault { at: name.at, error }
}

fn kind_name(kind: AlgorithmKind) -> &'static str {
    match kind {
        AlgorithmKind::Enc => "enc",
        AlgorithmKind::Auth => "auth",
        AlgorithmKind::AuthTrunc => "auth-trunc",
        AlgorithmKind::Comp => "comp",
        AlgorithmKind::Aead => "aead",
    }
}

fn parse_key(cursor: &mut Cursor<'_, '_>, keyword: &'static str) -> Result<KeyMaterial, Fault> {
    let word = cursor.operand(keyword, "ALGO-KEYMAT")?;
    read_key(word.text()).map_err(|what| Fault {
        at: word.at,
        error: Error::Wrong {
            word: Shown::key(word.text()),
            what: what.to_owned(),
            expected: format!(
                "0x and hexadecimal digits, or characters; {LONGEST_KEY} bytes at the most"
            ),
        },
    })
}

/// `0x` and digits (an odd number of them gets a zero in front), or the bytes as they stand (`xfrm_algo_parse`).
fn read_key(text: &str) -> Result<KeyMaterial, &'static str> {
    const TOO_LONG: &str = "ALGO-KEYMAT value makes buffer overflow";
    let Some(digits) = text.strip_prefix("0x").filter(|digits| !digits.is_empty()) else {
        return if text.len() > LONGEST_KEY {
            Err(TOO_LONG)
        } else {
            Ok(KeyMaterial::new(text.as_bytes()))
        };
    };
    if digits.len().div_ceil(2) > LONGEST_KEY {
        return Err(TOO_LONG);
    }
    let mut bytes = Zeroizing::new(vec![0_u8; digits.len().div_ceil(2)]);
    // From the end: it is the first byte that an odd digit stands alone in.
    for (byte, pair) in bytes.iter_mut().rev().zip(digits.as_bytes().rchunks(2)) {
        for digit in pair {
            let value = char::from(*digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
            *byte = *byte << 4 | value.ok_or("ALGO-KEYMAT value is invalid")?;
        }
    }
    Ok(KeyMaterial::new(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_hexadecimal_or_the_bytes_themselves() {
        for (text, bytes) in [
            ("0x0102ff", &[1, 2, 255][..]),
            ("0xabc", &[0x0a, 0xbc]),
            ("0x1", &[1]),
            ("0xAb", &[0xab]),
            ("1234567890123456dcba", b"1234567890123456dcba"),
            ("0x", b"0x"),
            ("0X12", b"0X12"),
            ("", b""),
            ("schlüssel", "schlüssel".as_bytes()),
        ] {
            assert_eq!(read_key(text).unwrap().expose(), bytes, "{text}");
        }
        for text in ["0xg", "0x1 2", "0xé", "0x+1"] {
            assert!(read_key(text).is_err(), "{text}");
        }
        assert!(read_key(&"k".repeat(512)).is_ok());
        assert!(read_key(&"k".repeat(513)).is_err());
        assert!(read_key(&format!("0x{}", "0".repeat(1025))).is_err());
    }

    /// What errors offer, crypto takes.
    #[test]
    fn every_name_that_errors_list_is_one() {
        for name in AEADS {
            assert!(
                [160, 152, 288].iter().any(|bits| Transform::aead(name, *bits, 128).is_ok()),
                "{name}"
            );
        }
        for name in CIPHERS {
            assert!(
                [0, 128, 160]
                    .iter()
                    .any(|bits| Transform::cipher_auth(Some((name, *bits)), None).is_ok()),
                "{name}"
            );
        }
        for name in AUTHS {
            assert!(Transform::cipher_auth(None, Some((name, 128, None))).is_ok(), "{name}");
        }
    }
}
