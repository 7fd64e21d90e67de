//! Bar charts of `bench tunnel`, one group for each test.

use std::fmt::Write as _;

use crate::report::rows::{BenchReport, Row};

/// A group: its title, its rows' test and load, and the figure that the bars show.
const GROUPS: [(&str, &str, Option<&str>, &str); 10] = [
    ("One TCP stream, Gbit/s", "tcp1", None, "gbps"),
    ("Four TCP streams, Gbit/s", "tcp4", None, "gbps"),
    (
        "UDP 64 bytes, 160,000 per second offered: percent lost",
        "udp64",
        Some("160k"),
        "loss_percent",
    ),
    ("UDP 64 bytes, peak: thousands per second received", "udp64", Some("peak"), "kpps"),
    (
        "UDP 64 bytes, twice the peak offered: thousands per second received",
        "udp64",
        Some("2xpeak"),
        "kpps",
    ),
    ("UDP 1300 bytes, peak: thousands per second received", "udp1300", Some("peak"), "kpps"),
    (
        "UDP 1300 bytes, twice the peak offered: thousands per second received",
        "udp1300",
        Some("2xpeak"),
        "kpps",
    ),
    ("Round trip, idle, microseconds", "rtt", Some("idle"), "rtt_us"),
    ("Round trip beside a TCP stream, microseconds", "rtt", Some("tcp1"), "rtt_us"),
    ("CPU seconds of both gateways or relays per GB, one TCP stream", "tcp1", None, "cpu_s_per_gb"),
];

/// All groups that have rows. A bar is the median; the thin line on it spans all rounds.
pub(crate) fn html(report: &BenchReport) -> String {
    let mut page = format!("<style>{STYLE}</style>\n");
    for (title, test, load, figure) in GROUPS {
        let rows = report.rows.iter().filter(|row| {
            row.case.value("test").as_deref() == Some(test)
                && row.case.value("load").as_deref() == load
        });
        let bars: Vec<Bar> = rows.filter_map(|row| Bar::of(row, figure)).collect();
        if !bars.is_empty() {
            group(&mut page, title, &bars);
        }
    }
    page
}

struct Bar {
    name: String,
    value: f64,
    /// Least and most of the figure, if it is the row's first.
    spread: Option<(f64, f64)>,
    missed: bool,
}

impl Bar {
    fn of(row: &Row, figure: &str) -> Option<Self> {
        let number = |name: &str| row.figures.get(name)?.as_f64();
        let words = ["path", "transform"].into_iter().filter_map(|key| row.case.value(key));
        let mut name = words.collect::<Vec<_>>().join(" ");
        if row.case.value("frames").as_deref() == Some("1500") {
            name.push_str(", 1500-byte frames");
        }
        if let Some(workers) = row.case.value("workers").filter(|workers| workers != "1") {
            let _ = write!(name, ", {workers} workers"); // writing to a string cannot fail
        }
        if let Some(delay) = row.case.value("queue_delay").filter(|delay| delay != "0") {
            let _ = write!(name, ", queue_delay {delay}"); // writing to a string cannot fail
        }
        let shown = ["gbps", "kpps", "rtt_us"].contains(&figure);
        if let Some(congestion) = row.case.value("congestion") {
            let _ = write!(name, ", {congestion}"); // writing to a string cannot fail
        }
        let spread = number("min").zip(number("max")).filter(|_| shown);
        let goal = row.figures.get("goal").and_then(|goal| goal.as_str()).unwrap_or_default();
        let missed = goal.starts_with("MISSED") && goal.contains(&format!("{figure} "));
        Some(Self { name, value: number(figure)?, spread, missed })
    }
}

fn group(page: &mut String, title: &str, bars: &[Bar]) {
    let most = bars.iter().map(|bar| bar.spread.map_or(bar.value, |(_, max)| max));
    let scale = 100.0 / most.fold(f64::MIN_POSITIVE, f64::max);
    let _ = writeln!(page, "<h2>{title}</h2>\n<div class=\"bars\">");
    for Bar { name, value, spread, missed } in bars {
        let class = if *missed { "bar missed" } else { "bar" };
        let whisker = spread.map_or_else(String::new, |(min, max)| {
            format!("<i style=\"left:{:.2}%;width:{:.2}%\"></i>", min * scale, (max - min) * scale)
        });
        let _ = writeln!(
            page,
            "<span>{name}</span><div><b class=\"{class}\" style=\"width:{:.2}%\"></b>{whisker}</div><span>{value}{}</span>",
            value * scale,
            if *missed { ", goal missed" } else { "" },
        );
    }
    page.push_str("</div>\n");
}

const STYLE: &str = "h2{font-size:1em;margin:1.6em 0 .4em}.bars{display:grid;grid-template-columns:max-content minmax(12em,40em) max-content;gap:.25em .8em;align-items:center}\
                     .bars div{position:relative;height:1em;background:#f6f8fa}.bars .bar{display:block;height:100%;background:#2f6fb3}.bars .missed{background:#c2570c}\
                     .bars i{position:absolute;top:45%;height:10%;background:#1f2328}";
