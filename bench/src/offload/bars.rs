//! The rows as bars: host cycles by size, and what was published beside what was measured.

use std::fmt::Write as _;

use crate::report::{Report, Row};

const WIDTH: f64 = 420.0;
const LINE: f64 = 17.0;
const LEFT: f64 = 110.0;

/// Rows of a picture, and the figure that is drawn.
struct Group {
    title: String,
    keys: Vec<(&'static str, String)>,
    figure: &'static str,
    published: Option<&'static str>,
}

/// All pictures that have rows.
pub(crate) fn html(report: &Report) -> String {
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
            groups.push(group(
                "host_cycles_per_packet",
                None,
                "host cycles per packet, sending and receiving",
            ));
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
        let published =
            self.published.filter(|figure| rows.iter().any(|row| value(row, figure).is_some()));
        let each = if published.is_some() { 2.0 } else { 1.2 };
        let height = LINE * (each * rows.len() as f64 + 1.0);
        let grey = if published.is_some() {
            "; below in grey as published, to a scale of its own"
        } else {
            ""
        };
        let mut svg = format!(
            "<figure><figcaption>{}{grey}</figcaption>\n<svg viewBox=\"0 0 {:.0} {height:.0}\" width=\"{1:.0}\" font-size=\"12\">\n",
            self.title,
            LEFT + WIDTH + 110.0
        );
        for (place, row) in (0_u32..).zip(rows) {
            let top = LINE * (each * f64::from(place) + 0.5);
            let name = row.case.value("path").unwrap_or_default();
            let missed = row
                .figures
                .get("goal")
                .and_then(|goal| goal.as_str())
                .is_some_and(|goal| goal.starts_with("MISSED"));
            let note = if missed && self.figure == "host_cycles_per_packet" {
                ", goal missed"
            } else {
                ""
            };
            // Writing to a string cannot fail.
            let _ = writeln!(svg, "<text x=\"0\" y=\"{:.1}\">{name}</text>", top + 11.0);
            bar(
                &mut svg,
                top,
                value(row, self.figure),
                longest(rows, self.figure),
                ("#2f6fb5", note),
            );
            if let Some(figure) = published {
                bar(
                    &mut svg,
                    top + LINE - 4.0,
                    value(row, figure),
                    longest(rows, figure),
                    ("#b8bec6", ""),
                );
            }
        }
        svg.push_str("</svg></figure>\n");
        svg
    }
}

fn bar(svg: &mut String, top: f64, value: Option<f64>, longest: f64, (colour, note): (&str, &str)) {
    let Some(value) = value else { return };
    let width = value / longest * WIDTH;
    let shown = if value < 1000.0 { format!("{value:.1}") } else { format!("{value:.0}") };
    // Writing to a string cannot fail.
    let _ = writeln!(
        svg,
        "<rect x=\"{LEFT}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"12\" fill=\"{colour}\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\">{shown}{note}</text>",
        LEFT + width + 5.0,
        top + 11.0
    );
}

fn value(row: &Row, figure: &str) -> Option<f64> {
    row.figures.get(figure)?.as_f64()
}

fn longest(rows: &[&Row], figure: &str) -> f64 {
    rows.iter().filter_map(|row| value(row, figure)).fold(f64::MIN_POSITIVE, f64::max)
}
