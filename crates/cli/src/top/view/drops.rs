//! Drops by reason.

use uxfrm_engine::DropReason;
use uxfrm_status::text::drops::summary;

use super::{bad_rate, count};
use crate::top::{
    sample::{Interval, Sample},
    table::{Cell, Column, Row, Table, Tone},
    text::escaped,
};

/// The columns.
pub(super) const COLUMNS: &[Column] = &[
    Column::text("REASON", 24, 0),
    Column::number("DROP/s", 6, 1),
    Column::number("TOTAL", 6, 2),
    Column::text("CAUSE", 20, 3).growing(1),
];

/// Reasons that had packets.
pub(super) fn table(interval: Interval<'_>) -> Table {
    let counters = &interval.now.counters;
    let some = counters.reasons.0.iter().filter(|(_, number)| *number > 0);
    let rows = some.map(|(name, number)| row(interval, name, *number)).collect();
    Table { columns: COLUMNS, rows, empty: "no packet was dropped", note: None }
}

fn row(interval: Interval<'_>, name: &str, number: u64) -> Row {
    let grown = interval.rate(|sample| {
        // A reason that is new was there with none.
        Some(sample.counters.reasons.of(name).unwrap_or_default())
    });
    let known = DropReason::named(name);
    let cause = known.map_or("", DropReason::cause);
    let tone = if grown.is_some_and(|rate| rate > 0.0) { Tone::Bad } else { Tone::Plain };
    Row {
        key: name.to_owned(),
        cells: vec![
            Cell::text(name).toned(tone),
            bad_rate(grown),
            count(number),
            Cell::text(cause).toned(Tone::Dim),
        ],
        detail: detail(interval.now, name, known),
    }
}

fn detail(sample: &Sample, name: &str, known: Option<DropReason>) -> Vec<String> {
    let mut detail = Vec::new();
    if let Some(record) = sample.dropped.get(name) {
        detail.push(format!("last: {}", escaped(&summary(record))));
    }
    if let Some(reason) = known {
        detail.push(format!("cause: {}", reason.cause()));
        detail.push(format!("next: {}", reason.next_step()));
    }
    detail
}
