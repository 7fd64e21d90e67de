//! Bar charts of `bench fou`.

use super::BarChart;
use crate::report::rows::{BenchReport, Row};

/// A chart for each test.
pub(crate) fn figures(report: &BenchReport) -> Vec<String> {
    let tests = [
        ("stream", "gbps", "published_gbps", "TCP_STREAM, Gbit/s"),
        ("rr", "tps", "published_tps", "TCP_RR over 200 connections, transactions a second"),
        ("rr1", "tps", "published_tps", "TCP_RR over one connection, transactions a second"),
    ];
    tests
        .into_iter()
        .filter_map(|(test, figure, published, title)| {
            let of_test = |row: &&Row| row.case.value("test").is_some_and(|value| value == test);
            let rows: Vec<&Row> = report.rows.iter().filter(of_test).collect();
            let bars = BarChart { title, figure, published: Some(published) };
            (!rows.is_empty()).then(|| bars.picture(&rows, name, |_| ""))
        })
        .collect()
}

fn name(row: &Row) -> String {
    ["tunnel", "encap"].map(|key| row.case.value(key).unwrap_or_default()).join(" ")
}
