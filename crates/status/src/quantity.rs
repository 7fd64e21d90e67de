//! Numbers for people: bytes, counts and spans of time.

/// Bytes with a decimal prefix: `512 B`, `1.2 kB`, `3.4 GB`.
///
/// ```
/// use uxfrm_status::quantity::bytes;
///
/// assert_eq!((bytes(999).as_str(), bytes(1_000).as_str()), ("999 B", "1.0 kB"));
/// assert_eq!(bytes(3_456_000_000), "3.5 GB");
/// ```
#[must_use]
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if count < 1000 {
        return format!("{count} B");
    }
    // In tenths of the unit, rounded.
    let (mut unit, mut size) = (0, 1000_u128);
    let tenths = |size: u128| (u128::from(count) * 10 + size / 2) / size;
    while tenths(size) >= 10_000 && unit + 1 < UNITS.len() {
        unit += 1;
        size *= 1000;
    }
    let tenths = tenths(size);
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
}

/// A count with its thousands apart: `1,234,567`.
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A span of time in its two largest units: `12 s`, `3 min 5 s`, `2 d 4 h`.
#[must_use]
pub fn span(seconds: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3600, "h"), (60, "min"), (1, "s")];
    let first = UNITS.iter().position(|(size, _)| seconds >= *size).unwrap_or(UNITS.len() - 1);
    let (size, name) = UNITS[first];
    let whole = format!("{} {name}", seconds / size);
    match UNITS.get(first + 1).map(|(small, name)| (seconds % size / small, name)) {
        Some((rest, name)) if rest > 0 => format!("{whole} {rest} {name}"),
        Some(_) | None => whole,
    }
}

/// A number of things: `1 state`, `3 states`.
#[must_use]
pub fn things(number: u64, one: &str, several: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { several })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_by_table() {
        for (number, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.0 kB"),
            (1_250, "1.3 kB"),
            (999_949, "999.9 kB"),
            (999_950, "1.0 MB"),
            (u64::MAX, "18.4 EB"),
        ] {
            assert_eq!(bytes(number), text);
        }
    }

    #[test]
    fn counts_by_table() {
        for (number, text) in
            [(0, "0"), (999, "999"), (1000, "1,000"), (12_345, "12,345"), (1_234_567, "1,234,567")]
        {
            assert_eq!(count(number), text);
        }
        assert_eq!(things(1, "state", "states"), "1 state");
        assert_eq!(things(0, "state", "states"), "0 states");
    }

    #[test]
    fn spans_by_table() {
        for (seconds, text) in [
            (0, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (185, "3 min 5 s"),
            (3600, "1 h"),
            (3660, "1 h 1 min"),
            (187_200, "2 d 4 h"),
            (86_400 + 59, "1 d"),
        ] {
            assert_eq!(span(seconds), text);
        }
    }
}
