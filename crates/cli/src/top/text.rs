//! Numbers in few columns, and text that is safe to show.

/// Text without characters that control a terminal or turn the direction of writing.
pub(crate) fn escaped(text: &str) -> String {
    let is_shown = |char: char| !char.is_control() && !is_formatting(char);
    text.chars().fold(String::with_capacity(text.len()), |mut shown, char| {
        match is_shown(char) {
            true => shown.push(char),
            false => shown.extend(char.escape_default()),
        }
        shown
    })
}

/// Marks of direction and of width zero (Unicode's `Bidi_Control`, and what hides beside it).
fn is_formatting(char: char) -> bool {
    matches!(char,
        '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}'
        | '\u{feff}')
}

/// A number in at most five columns: `999`, `1.2k`, `34.5M`.
pub(crate) fn short(number: f64) -> String {
    const UNITS: [&str; 6] = ["", "k", "M", "G", "T", "P"];
    let mut unit = 0;
    let mut left = number.max(0.0);
    // What rounds to four digits is one of the next unit.
    while left >= 999.5 && unit + 1 < UNITS.len() {
        left /= 1000.0;
        unit += 1;
    }
    match unit {
        0 if left.fract() == 0.0 || left >= 99.95 => format!("{left:.0}"),
        0 => format!("{left:.1}"),
        _ if left < 99.95 => format!("{left:.1}{}", UNITS[unit]),
        _ => format!("{left:.0}{}", UNITS[unit]),
    }
}

/// A share of one in percent, without decimals from ten on: `0.3`, `42`.
pub(crate) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent < 9.95 { format!("{percent:.1}") } else { format!("{percent:.0}") }
}

/// The largest unit of a span of seconds: `59s`, `3m`, `4h`, `12d`.
pub(crate) fn short_span(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds}s"),
        120..=7199 => format!("{}m", seconds / 60),
        7200..=172_799 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_would_drive_a_terminal_is_shown_escaped() {
        assert_eq!(escaped("eth0 ü 雪"), "eth0 ü 雪");
        assert_eq!(escaped("\x1b]0;x\x07"), "\\u{1b}]0;x\\u{7}");
        assert_eq!(escaped("a\u{9b}2J"), "a\\u{9b}2J");
        assert_eq!(escaped("a\u{202e}b\u{200b}"), "a\\u{202e}b\\u{200b}");
    }

    #[test]
    fn numbers_stay_short() {
        for (number, text) in [
            (0.0, "0"),
            (0.25, "0.2"),
            (7.0, "7"),
            (99.96, "100"),
            (999.0, "999"),
            (999.96, "1.0k"),
            (12_345.0, "12.3k"),
            (999_960.0, "1.0M"),
            (123_456_789.0, "123M"),
            (1.5e18, "1500P"),
            (-3.0, "0"),
        ] {
            assert_eq!(short(number), text);
        }
        assert_eq!([percent(0.003), percent(0.0996), percent(0.42)], ["0.3", "10", "42"]);
        let spans = [59, 3 * 60, 2 * 3600, 200_000].map(short_span);
        assert_eq!(spans, ["59s", "3m", "2h", "2d"]);
    }
}
