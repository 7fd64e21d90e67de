//! Lines of `ip xfrm` without their keys.

/// What stands in a key's place.
pub(super) const MASK: &str = "KEY";

/// Words that a name and a key follow.
const ALGORITHMS: &[&str] = &["enc", "auth", "auth-trunc", "aead"];

/// Digits from which on a number is taken for a key wherever it stands.
const KEY_DIGITS: usize = 16;

/// The same text, with [`MASK`] for each key.
pub(super) fn without_keys(text: &str) -> String {
    let mut masked = String::with_capacity(text.len());
    let mut words_to_key = None;
    for piece in pieces(text) {
        let is_space = piece.starts_with([' ', '\t', '\n', '\r', '\\']);
        if is_space {
            masked.push_str(piece);
            continue;
        }
        let is_key = words_to_key == Some(0) || is_long_number(piece);
        masked.push_str(if is_key { MASK } else { piece });
        words_to_key = match words_to_key {
            Some(0) => None,
            Some(left) => Some(left - 1),
            None => ALGORITHMS.contains(&piece).then_some(1),
        };
    }
    masked
}

/// Whether a text has a [`MASK`] where a key is to be.
pub(super) fn has_masks(text: &str) -> bool {
    let mut words = pieces(text).filter(|piece| !piece.starts_with([' ', '\t', '\n', '\r', '\\']));
    words.any(|word| word == MASK)
}

/// Words and what stands between them, in turn. A word that begins with a quotation mark ends with
/// one.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let is_space = |letter: char| letter.is_whitespace() || letter == '\\';
        let end = match first {
            '"' | '\'' => rest[1..].find(first).map_or(rest.len(), |at| at + 2),
            _ if is_space(first) => rest.find(|letter| !is_space(letter)).unwrap_or(rest.len()),
            _ => rest.find(is_space).unwrap_or(rest.len()),
        };
        let (piece, behind) = rest.split_at(end);
        rest = behind;
        Some(piece)
    })
}

fn is_long_number(word: &str) -> bool {
    let digits = word.trim_matches(['"', '\'']).strip_prefix("0x").unwrap_or_default();
    digits.len() >= KEY_DIGITS && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_by_table() {
        for (text, masked) in [
            ("enc cbc(aes) 0x0011 sel src 10.0.0.0/8", "enc cbc(aes) KEY sel src 10.0.0.0/8"),
            (
                "aead rfc4106(gcm(aes)) 0xaa 128 mode tunnel",
                "aead rfc4106(gcm(aes)) KEY 128 mode tunnel",
            ),
            (
                "auth-trunc hmac(sha256) \"a b\" 96\nenc x 1",
                "auth-trunc hmac(sha256) KEY 96\nenc x KEY",
            ),
            ("enc 'cbc(aes)' \\\n  0x00", "enc 'cbc(aes)' \\\n  KEY"),
            ("spi 0x00001000 reqid 1", "spi 0x00001000 reqid 1"),
            ("stray 0x00112233445566778899", "stray KEY"),
        ] {
            assert_eq!(without_keys(text), masked);
            assert_eq!(has_masks(&without_keys(text)), masked.contains(MASK));
            assert!(!has_masks(text), "{text}");
        }
    }
}
