//! The project's goals: packet offload costs the host at most 5 % over the clear, crypto offload at
//! most half of software at 1400 bytes.

use crate::report::Row;

/// The row's `goal` text; `None` where there is none, or the row that it is compared with was left
/// out.
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
