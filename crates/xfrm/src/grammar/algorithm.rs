//! `ALGO-LIST`: `enc|auth|comp NAME KEY`, `aead NAME KEY ICV-BITS`, `auth-trunc NAME KEY BITS`.
//! Keys go straight into [`KeyMaterial`]; no error shows one. The databases know the valid names.

use std::fmt;

use uxfrm_crypto::KeyMaterial;
use uxfrm_engine::SaProtocol;
use zeroize::Zeroizing;

use super::{
    cursor::{Cursor, SyntaxError},
    error::{Error, Position},
    keyword::AlgorithmKind,
    lexer::Word,
    protocol,
    secret::RedactedWord,
    state::StateClause,
};

/// What stands for a key that is not shown, as iproute2 has it.
pub(crate) const HIDDEN_KEY: &str = "<<Keys hidden>>";

/// iproute2's buffer.
const LONGEST_KEY: usize = 512;

/// An algorithm as a line has it.
pub struct Algorithm {
    /// Which place it has in a state.
    pub kind: AlgorithmKind,
    /// The name; a key where the name was forgotten.
    name: Zeroizing<String>,
    /// Where the name is.
    pub at: Position,
    /// The key; empty for `comp`.
    pub key: KeyMaterial,
    /// `ALGO-ICV-LEN`, `ALGO-TRUNC-LEN`.
    pub bits: Option<u32>,
}

impl Algorithm {
    /// The name. It may be a misplaced key: never log it; errors use [`Algorithm::shown_name`].
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name as an error may show it: as a length alone if it may be a key, however short.
    #[must_use]
    pub fn shown_name(&self) -> RedactedWord {
        RedactedWord::name(&self.name)
    }

    /// Bits of the key.
    #[must_use]
    pub fn key_bits(&self) -> usize {
        self.key.len() * 8
    }
}

impl fmt::Debug for Algorithm {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Algorithm({:?}, {})", self.kind, self.shown_name())
    }
}

/// What stands behind `word`, which is `kind`'s; `parts` is what the state has already.
pub(super) fn parse(
    kind: AlgorithmKind,
    word: &Word<'_>,
    parts: &[StateClause],
    cursor: &mut Cursor<'_, '_>,
) -> Result<Algorithm, SyntaxError> {
    if is_taken(kind, parts) {
        return Err(cursor.duplicate("ALGO-TYPE", word));
    }
    cursor.pass_key();
    let keyword = kind.name();
    let name = cursor.operand(keyword, "ALGO-NAME")?;
    let (key, bits) = match kind {
        AlgorithmKind::Comp => (KeyMaterial::empty(), None),
        AlgorithmKind::Enc | AlgorithmKind::Auth => (parse_key(cursor, keyword)?, None),
        AlgorithmKind::AuthTrunc => {
            let key = parse_key(cursor, keyword)?;
            (key, Some(cursor.number_operand(keyword, "ALGO-TRUNC-LEN")?))
        }
        AlgorithmKind::Aead => {
            let key = parse_key(cursor, keyword)?;
            (key, Some(cursor.number_operand(keyword, "ALGO-ICV-LEN")?))
        }
    };
    Ok(Algorithm { kind, name: Zeroizing::new(name.text().to_owned()), at: name.at, key, bits })
}

/// The algorithms among the parts of a state.
pub fn algorithms(parts: &[StateClause]) -> impl Iterator<Item = &Algorithm> {
    parts.iter().filter_map(|part| match part {
        StateClause::Algorithm(algorithm) => Some(algorithm),
        StateClause::Encap(_) | StateClause::CareOf(_) | StateClause::Context(_) => None,
    })
}

fn is_taken(kind: AlgorithmKind, parts: &[StateClause]) -> bool {
    let excluded: &[AlgorithmKind] = match kind {
        AlgorithmKind::Aead => &[
            AlgorithmKind::Aead,
            AlgorithmKind::Enc,
            AlgorithmKind::Auth,
            AlgorithmKind::AuthTrunc,
        ],
        AlgorithmKind::Enc => &[AlgorithmKind::Aead, AlgorithmKind::Enc],
        AlgorithmKind::Auth | AlgorithmKind::AuthTrunc => {
            &[AlgorithmKind::Aead, AlgorithmKind::Auth, AlgorithmKind::AuthTrunc]
        }
        AlgorithmKind::Comp => &[AlgorithmKind::Comp],
    };
    algorithms(parts).any(|algorithm| excluded.contains(&algorithm.kind))
}

/// Whether the algorithms are those that the protocol wants (`ip/xfrm_state.c: xfrm_state_modify`).
pub(super) fn check(parts: &[StateClause], protocol: SaProtocol) -> Result<(), String> {
    let has = |kinds: &[AlgorithmKind]| algorithms(parts).any(|one| kinds.contains(&one.kind));
    let (encrypts, authenticates, compresses) = (
        has(&[AlgorithmKind::Enc, AlgorithmKind::Aead]),
        has(&[AlgorithmKind::Auth, AlgorithmKind::AuthTrunc]),
        has(&[AlgorithmKind::Comp]),
    );
    let with = format!("with XFRM-PROTO value \"{}\"", protocol::ipsec_name(protocol));
    match protocol {
        SaProtocol::Esp if compresses => Err(format!("ALGO-TYPE value \"comp\" is invalid {with}")),
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

fn parse_key(
    cursor: &mut Cursor<'_, '_>,
    keyword: &'static str,
) -> Result<KeyMaterial, SyntaxError> {
    let word = cursor.operand(keyword, "ALGO-KEYMAT")?;
    read_key(word.text()).map_err(|what| SyntaxError {
        at: word.at,
        error: Error::Wrong {
            word: RedactedWord::key(word.text()),
            what: what.to_owned(),
            expected: format!(
                "0x and hexadecimal digits, or characters; {LONGEST_KEY} bytes at the most"
            ),
        },
    })
}

/// `0x` and hex digits (an odd number gets a leading zero), or the bytes themselves
/// (`xfrm_algo_parse`).
fn read_key(text: &str) -> Result<KeyMaterial, &'static str> {
    const TOO_LONG: &str = "ALGO-KEYMAT value makes buffer overflow";
    // Unquoted it is two words, of which the first would do as a key of six bytes.
    if text == HIDDEN_KEY || HIDDEN_KEY.split(' ').next() == Some(text) {
        return Err("the keys of this text are hidden (nokeys), so that nobody can restore it");
    }
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
    fn key_is_hexadecimal_or_raw_bytes() {
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
        for text in ["<<Keys", "<<Keys hidden>>", "0xg", "0x1 2", "0xé", "0x+1"] {
            assert!(read_key(text).is_err(), "{text}");
        }
        assert!(read_key(&"k".repeat(512)).is_ok());
        assert!(read_key(&"k".repeat(513)).is_err());
        assert!(read_key(&format!("0x{}", "0".repeat(1025))).is_err());
    }
}
