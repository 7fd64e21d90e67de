//! Numbers as `strtoul` with base 0 reads them: `16`, `0x10`, `020`.

/// An unsigned number of some width.
pub(super) trait Number: TryFrom<u64> {
    /// The largest.
    const LARGEST: u64;

    /// The number that `text` is, all of it.
    fn read(text: &str) -> Option<Self> {
        Self::try_from(unsigned(text)?).ok()
    }

    /// What a text has to be, for errors.
    fn expected() -> String {
        format!("a number from 0 to {}", Self::LARGEST)
    }
}

impl Number for u8 {
    const LARGEST: u64 = 0xff;
}

impl Number for u16 {
    const LARGEST: u64 = 0xffff;
}

impl Number for u32 {
    const LARGEST: u64 = 0xffff_ffff;
}

impl Number for u64 {
    const LARGEST: Self = Self::MAX;
}

/// Digits only: `strtoul` also takes signs and leading blanks, which no one means.
fn unsigned(text: &str) -> Option<u64> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if text.len() > 1 && text.starts_with('0') => (text, 8),
        None => (text, 10),
    };
    if !digits.starts_with(|c: char| c.is_digit(radix)) {
        return None;
    }
    u64::from_str_radix(digits, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_bases_are_strtouls() {
        for (text, number) in [
            ("0", Some(0)),
            ("7", Some(7)),
            ("0x07", Some(7)),
            ("0XfF", Some(255)),
            ("010", Some(8)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("08", None),
            ("", None),
            ("0x", None),
            ("0x+1", None),
            ("+1", None),
            ("-1", None),
            (" 1", None),
            ("1a", None),
        ] {
            assert_eq!(<u64 as Number>::read(text), number, "{text:?}");
        }
        assert_eq!(<u8 as Number>::read("256"), None);
        assert_eq!(<u16 as Number>::read("65535"), Some(65535));
        assert_eq!(<u32 as Number>::read("0x100000000"), None);
    }
}
