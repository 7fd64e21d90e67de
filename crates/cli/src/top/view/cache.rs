//! Flow caches of each worker, direction and family.

use uxfrm_status::counters::CacheReport;

use super::{count, rate};
use crate::top::{
    sample::{Interval, Sample},
    table::{Cell, Column, Row, Table, Tone},
    text::{percent, short},
};

/// The columns.
pub(super) const COLUMNS: &[Column] = &[
    Column::text("CACHE", 12, 0).growing(1),
    Column::number("HIT %", 5, 1),
    Column::number("HITS/s", 7, 2),
    Column::number("MISS/s", 7, 3),
    Column::number("STALE/s", 7, 5),
    Column::number("BYPASS/s", 8, 6),
    Column::number("ENTRIES", 7, 4),
    Column::number("ROOM", 6, 7),
    Column::number("EVICTED", 7, 8),
];

/// The caches of the latest sample.
pub(super) fn table(interval: Interval<'_>) -> Table {
    let rows = interval.now.counters.caches.iter().map(|cache| row(interval, cache)).collect();
    Table { columns: COLUMNS, rows, empty: "no flow cache was used yet", note: None }
}

fn row(interval: Interval<'_>, cache: &CacheReport) -> Row {
    let of = |count: fn(&CacheReport) -> u64| {
        interval.rate(|sample| Some(same(sample, cache).map_or(0, count)))
    };
    let CacheReport { worker, direction, family, .. } = cache;
    Row {
        key: format!("{worker} {direction} {family}"),
        cells: vec![
            Cell::text(&format!("{worker} {direction} {family}")),
            share(cache),
            rate(of(|cache| cache.hits)),
            rate(of(|cache| cache.misses)),
            rate(of(|cache| cache.stale)),
            rate(of(|cache| cache.bypassed)),
            count(cache.entries),
            count(cache.room),
            count(cache.evicted),
        ],
        detail: detail(cache),
    }
}

/// Look-ups that found their flow, of all since the gateway started.
fn share(cache: &CacheReport) -> Cell {
    let all = cache.hits + cache.misses + cache.stale + cache.bypassed;
    if all == 0 {
        return Cell::unknown();
    }
    let share = cache.hits as f64 / all as f64;
    let tone = if share < 0.5 { Tone::Warn } else { Tone::Plain };
    Cell::number(share, percent(share)).toned(tone)
}

fn detail(cache: &CacheReport) -> Vec<String> {
    let CacheReport { hits, misses, stale, bypassed, bytes, .. } = cache;
    let [hits, misses, stale, bypassed, bytes] =
        [hits, misses, stale, bypassed, bytes].map(|number| short(*number as f64));
    vec![
        format!("hits {hits}, misses {misses}, stale {stale}, {bytes}B of memory"),
        format!("passed by {bypassed} times, as it did not pay ([cache] in uxfrm.toml)"),
        "counts are up to a second old".to_owned(),
    ]
}

fn same<'s>(sample: &'s Sample, cache: &CacheReport) -> Option<&'s CacheReport> {
    let name =
        |cache: &CacheReport| (cache.worker, cache.direction == "out", cache.family == "ipv4");
    sample.counters.caches.iter().find(|other| name(other) == name(cache))
}
