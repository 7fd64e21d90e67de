//! Bar charts of `bench offload`: host cycles by size, and published figures below the measured.

use super::BarChart;
use crate::report::rows::{BenchReport, Row};

/// The figure that goals are set for.
const CYCLES: &str = "host_cycles_per_packet";

/// The rows of a chart, and the figure that is drawn.
struct Group {
    title: String,
    keys: Vec<(&'static str, String)>,
    figure: &'static str,
    published: Option<&'static str>,
}

/// All charts that have rows.
pub(crate) fn html(report: &BenchReport) -> String {
    let mut page = String::new();
    for group in groups() {
        let is_its = |row: &&Row| {
            group.keys.iter().all(|(key, value)| row.case.value(key).as_ref() == Some(value))
        };
        let rows: Vec<&Row> = report.rows.iter().filter(is_its).collect();
        if !rows.is_empty() {
            page.push_str(&group.picture(&rows));
        }
    }
    page
}

fn groups() -> Vec<Group> {
    let mut groups = Vec::new();
    for workers in ["1", "2"] {
        for bytes in ["64", "512", "1400", "tso"] {
            let what =
                if bytes == "tso" { "super-packets".to_owned() } else { format!("{bytes} bytes") };
            let keys = [("test", "forward"), ("bytes", bytes), ("workers", workers)];
            let keys = keys.map(|(key, value)| (key, value.to_owned())).to_vec();
            let group = |figure, published, unit: &str| Group {
                title: format!("{what}, workers: {workers}, {unit}"),
                keys: keys.clone(),
                figure,
                published,
            };
            groups.push(group(CYCLES, None, "host cycles per packet, sending and receiving"));
            if bytes == "tso" {
                groups.push(group(
                    "host_gbps_per_core",
                    Some("published_gbps"),
                    "Gbit/s for each core; published: of all",
                ));
            }
        }
    }
    let messages = |title: &str, figure, published| Group {
        title: title.to_owned(),
        keys: vec![("test", "lock-manager".to_owned())],
        figure,
        published: Some(published),
    };
    groups.push(messages(
        "Lock manager, messages a second",
        "messages_per_s",
        "published_messages_per_s",
    ));
    groups.push(messages("Lock manager, microseconds of a message", "host_us", "published_us"));
    groups
}

impl Group {
    fn picture(&self, rows: &[&Row]) -> String {
        let (figure, published) = (self.figure, self.published);
        let name = |row: &Row| row.case.value("path").unwrap_or_default();
        let note = |row: &Row| if figure == CYCLES && misses(row) { ", goal missed" } else { "" };
        BarChart { title: &self.title, figure, published }.picture(rows, name, note)
    }
}

fn misses(row: &Row) -> bool {
    let goal = row.figures.get("goal").and_then(|goal| goal.as_str());
    goal.is_some_and(|goal| goal.starts_with("MISSED"))
}
