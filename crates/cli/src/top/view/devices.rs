//! Offload devices.

use uxfrm_status::workers::OffloadDeviceStatus;

use super::{bad_rate, bits, count, rate};
use crate::top::{
    sample::{Interval, Sample},
    table::{Cell, Column, Row, Table},
    text::{escaped, short},
};

/// The columns.
pub(super) const COLUMNS: &[Column] = &[
    Column::text("DEVICE", 10, 0).growing(1),
    Column::number("SAs IN", 6, 1),
    Column::number("SAs OUT", 7, 2),
    Column::number("IN p/s", 7, 3),
    Column::number("OUT p/s", 7, 4),
    Column::number("IN b/s", 7, 6),
    Column::number("OUT b/s", 7, 7),
    Column::number("DROP/s", 6, 5),
];

/// The devices of the latest sample.
pub(super) fn table(interval: Interval<'_>) -> Table {
    let devices = interval.now.workers.iter().flat_map(|report| &report.devices);
    let rows = devices.map(|device| row(interval, device)).collect();
    Table { columns: COLUMNS, rows, empty: "no offload devices (uxfrm dev add)", note: None }
}

fn row(interval: Interval<'_>, device: &OffloadDeviceStatus) -> Row {
    let of = |count: fn(&OffloadDeviceStatus) -> u64| {
        interval.rate(|sample| named(sample, &device.name).map(count))
    };
    let total = |packets: u64, bytes: u64| {
        format!("{} packets ({}B)", short(packets as f64), short(bytes as f64))
    };
    let (input, out) = (device.inbound, device.outbound);
    Row {
        key: device.name.clone(),
        cells: vec![
            Cell::text(&device.name),
            count(device.states_in),
            count(device.states_out),
            rate(of(|device| device.inbound.sent)),
            rate(of(|device| device.outbound.sent)),
            bits(of(|device| device.inbound.sent_bytes)),
            bits(of(|device| device.outbound.sent_bytes)),
            bad_rate(of(|device| device.inbound.dropped + device.outbound.dropped)),
        ],
        detail: vec![
            format!(
                "{}: received {}, sent {}, dropped {}",
                escaped(&device.name),
                total(input.sent, input.sent_bytes),
                total(out.sent, out.sent_bytes),
                short((input.dropped + out.dropped) as f64)
            ),
            format!("uxfrm dev show {}: its tables, limits, queues", escaped(&device.name)),
        ],
    }
}

fn named<'s>(sample: &'s Sample, name: &str) -> Option<&'s OffloadDeviceStatus> {
    sample.workers.as_ref()?.devices.iter().find(|device| device.name == name)
}
