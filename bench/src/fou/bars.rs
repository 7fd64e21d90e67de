//! The rows as bars: what was measured, and below it what was published, each beside the longest of its own.

use std::fmt::Write as _;

use crate::report::{Report, Row};

const WIDTH: f64 = 420.0;
const LINE: f64 = 17.0;
const LEFT: f64 = 110.0;

/// A picture for each test.
pub(crate) fn figures(report: &Report) -> Vec<String> {
    let tests = [
        ("stream", "gbps", "TCP_STREAM, Gbit/s"),
        ("rr", "tps", "TCP_RR over 200 connections, transactions a second"),
        ("rr1", "tps", "TCP_RR over one connection, transactions a second"),
    ];
    tests
        .into_iter()
        .filter_map(|(test, figure, title)| {
            let of_test = |row: &&Row| row.case.value("test").is_some_and(|value| value == test);
            let rows: Vec<&Row> = report.rows.iter().filter(of_test).collect();
            (!rows.is_empty()).then(|| picture(&rows, figure, title))
        })
        .collect()
}

fn picture(rows: &[&Row], figure: &str, title: &str) -> String {
    let published = format!("published_{figure}");
    let height = LINE * (2.0 * precise(rows.len()) + 2.0);
    let mut svg = format!(
        "<figure><figcaption>{title}: measured, and below in grey as published</figcaption>\n\
         <svg viewBox=\"0 0 {:.0} {height:.0}\" width=\"{0:.0}\" font-size=\"12\">\n",
        LEFT + WIDTH + 90.0
    );
    for (place, row) in (0_u32..).zip(rows) {
        let top = LINE * (2.0 * f64::from(place) + 0.5);
        let name = ["tunnel", "encap"].map(|key| row.case.value(key).unwrap_or_default());
        let _ = writeln!(svg, "<text x=\"0\" y=\"{:.1}\">{}</text>", top + 12.0, name.join(" "));
        bar(&mut svg, top, value(row, figure), longest(rows, figure), "#2f6fb5");
        bar(
            &mut svg,
            top + LINE - 4.0,
            value(row, &published),
            longest(rows, &published),
            "#b8bec6",
        );
    }
    svg.push_str("</svg></figure>\n");
    svg
}

fn bar(svg: &mut String, top: f64, value: Option<f64>, longest: f64, colour: &str) {
    let Some(value) = value else { return };
    let width = value / longest * WIDTH;
    let shown = if value < 1000.0 { format!("{value:.2}") } else { format!("{value:.0}") };
    // Writing to a string cannot fail.
    let _ = writeln!(
        svg,
        "<rect x=\"{LEFT}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"12\" fill=\"{colour}\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\">{shown}</text>",
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

#[expect(clippy::cast_precision_loss, reason = "few rows")]
fn precise(count: usize) -> f64 {
    count as f64
}
