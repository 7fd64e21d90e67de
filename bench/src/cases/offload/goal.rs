//! What the project wants: a device that does all costs the host no more than 5 % over the clear, one that encrypts no more than half of software
//! at 1400 bytes.

use crate::report::Row;

/// A row's goal and whether it reaches it, in words; `None` where there is none, or the row that it is held against was left out.
pub(super) fn verdict(row: &Row) -> Option<String> {
    let is = |key: &str, value: &str| row.case.value(key).as_deref() == Some(value);
    let (figure, most) = if is("path", "packet") && is("test", "forward") {
        ("to_clear", 1.05)
    } else if is("path", "crypto") && is("bytes", "1400") {
        ("to_software", 0.5)
    } else {
        return None;
    };
    let value = row.figures.get(figure)?.as_f64()?;
    let word = if value <= most { "met" } else { "MISSED" };
    Some(format!("{word}: {figure} ≤ {most}"))
}
