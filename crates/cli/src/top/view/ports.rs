//! Ports of each worker: the TUN, sockets, rings.

use uxfrm_status::workers::{PortStatus, WorkerStatus};

use super::{bad_count, bad_rate, bits, rate, workers::OLDER};
use crate::top::{
    sample::Interval,
    table::{Cell, Column, Row, Table},
    text::short,
};

/// The columns.
pub(super) const COLUMNS: &[Column] = &[
    Column::text("PORT", 10, 0).growing(1),
    Column::number("WORKER", 6, 1),
    Column::number("RX buf/s", 8, 2),
    Column::number("BATCH/s", 7, 5),
    Column::number("TX pkt/s", 8, 3),
    Column::number("TX b/s", 7, 4),
    Column::number("REFUSED/s", 9, 6),
    Column::number("REFUSED", 7, 7),
];

/// The ports of the latest sample.
pub(super) fn table(interval: Interval<'_>) -> Table {
    let mut rows = Vec::new();
    for (worker, before) in interval.workers() {
        for (place, port) in worker.ports.iter().enumerate() {
            let was = before.and_then(|before| Some((before, before.ports.get(place)?)));
            rows.push(row((worker, port), was));
        }
    }
    Table { columns: COLUMNS, rows, empty: OLDER, note: None }
}

type Owned<'w> = (&'w WorkerStatus, &'w PortStatus);

fn row((worker, port): Owned<'_>, was: Option<Owned<'_>>) -> Row {
    let of = |count: fn(&PortStatus) -> u64| {
        let (before, was) = was?;
        let seconds = worker.measured_ns.checked_sub(before.measured_ns)? as f64 / 1e9;
        Some(count(port).checked_sub(count(was))? as f64 / seconds)
    };
    Row {
        key: format!("{} {}", worker.worker, port.name),
        cells: vec![
            Cell::text(&port.name),
            Cell::number(worker.worker.into(), worker.worker.to_string()),
            rate(of(|port| port.received)),
            rate(of(|port| port.batches)),
            rate(of(|port| port.sent)),
            bits(of(|port| port.sent_bytes)),
            bad_rate(of(|port| port.refused)),
            bad_count(port.refused),
        ],
        detail: detail(port),
    }
}

fn detail(port: &PortStatus) -> Vec<String> {
    vec![
        format!(
            "received {} buffers in {} batches, sent {} packets ({}B)",
            short(port.received as f64),
            short(port.batches as f64),
            short(port.sent as f64),
            short(port.sent_bytes as f64)
        ),
        "a buffer is a packet, or several that the kernel has joined".to_owned(),
        "refused: the kernel did not take it; Drops has it by reasons of port".to_owned(),
    ]
}
