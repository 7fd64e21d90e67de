//! Workers: what each carries, and what a packet costs it.

use uxfrm_status::workers::WorkerStatus;

use super::{bad_rate, count, rate};
use crate::top::{
    sample::{Interval, WorkerRates},
    table::{Cell, Column, Row, Table, Tone},
    text::{percent, short},
};

/// The columns.
pub(super) const COLUMNS: &[Column] = &[
    Column::text("WORKER", 6, 0).growing(1),
    Column::number("BUSY %", 6, 1),
    Column::number("OUT p/s", 7, 2),
    Column::number("IN p/s", 7, 3),
    Column::number("OUT b/s", 7, 6),
    Column::number("IN b/s", 7, 7),
    Column::number("BATCH/s", 7, 5),
    Column::number("PKT/BATCH", 9, 8),
    Column::number("CYC/PKT", 7, 4),
    Column::number("ns/PKT", 6, 10),
    Column::number("DROP/s", 6, 9),
    Column::number("WAITING", 7, 11),
];

/// What stands for figures that the gateway does not tell.
pub(super) const OLDER: &str = "the gateway is of a release that does not tell";

/// The workers of the latest sample.
pub(super) fn table(interval: Interval<'_>) -> Table {
    let rows = interval
        .workers()
        .map(|(now, before)| row(now, before.and_then(|before| WorkerRates::between(before, now))));
    Table { columns: COLUMNS, rows: rows.collect(), empty: OLDER, note: None }
}

fn row(worker: &WorkerStatus, rates: Option<WorkerRates>) -> Row {
    let of = |part: fn(&WorkerRates) -> f64| rates.as_ref().map(part);
    let some = |part: fn(&WorkerRates) -> Option<f64>| rates.as_ref().and_then(part);
    Row {
        key: worker.worker.to_string(),
        cells: vec![
            Cell::ranked(worker.worker.into(), &worker.worker.to_string()),
            busy(some(|rates| rates.busy)),
            rate(of(|rates| rates.outbound.packets)),
            rate(of(|rates| rates.inbound.packets)),
            rate(of(|rates| rates.outbound.bytes * 8.0)),
            rate(of(|rates| rates.inbound.bytes * 8.0)),
            rate(of(|rates| rates.batches)),
            rate(some(|rates| rates.packets_per_batch)),
            rate(some(|rates| rates.cycles_per_packet)),
            rate(some(|rates| rates.ns_per_packet)),
            bad_rate(of(|rates| rates.dropped)),
            count(worker.waiting),
        ],
        detail: detail(worker),
    }
}

fn busy(share: Option<f64>) -> Cell {
    share.map_or_else(Cell::unknown, |share| {
        let tone = match share {
            share if share >= 0.95 => Tone::Bad,
            share if share >= 0.8 => Tone::Warn,
            _less => Tone::Plain,
        };
        Cell::number(share, percent(share)).toned(tone)
    })
}

fn detail(worker: &WorkerStatus) -> Vec<String> {
    let total = |packets: u64, bytes: u64| {
        format!("{} packets ({}B)", short(packets as f64), short(bytes as f64))
    };
    let (out, input) = (worker.outbound, worker.inbound);
    vec![
        format!(
            "from the host {}, to the host {}",
            total(out.received, out.received_bytes),
            total(input.sent, input.sent_bytes)
        ),
        format!(
            "{} rounds of its loop, {} batches, {} packets dropped",
            short(worker.turns as f64),
            short(worker.batches as f64),
            short((out.dropped + input.dropped) as f64)
        ),
        "cycles: processor time of its thread, the kernel's share included, by packets".to_owned(),
    ]
}
