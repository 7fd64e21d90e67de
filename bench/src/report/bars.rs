//! Bar charts of a report's rows: measured figures, and published ones in grey below them, each to
//! its own scale.

use std::fmt::Write as _;

pub(super) mod fou;
pub(super) mod offload;
pub(super) mod tunnel;

use super::rows::Row;

const WIDTH: f64 = 420.0;
const LINE: f64 = 17.0;
const LEFT: f64 = 110.0;
/// Room for the figure at the end of the longest bar.
const RIGHT: f64 = 110.0;

/// A bar chart of one figure.
#[derive(Debug)]
pub(crate) struct BarChart<'a> {
    /// What it shows, with the unit.
    pub(crate) title: &'a str,
    /// The name of the figure.
    pub(crate) figure: &'a str,
    /// The name of the published figure, if there is one.
    pub(crate) published: Option<&'a str>,
}

impl BarChart<'_> {
    /// Draws these rows, each with a name and a note behind its figure.
    pub(crate) fn picture<'r>(
        &self,
        rows: &'r [&Row],
        name: impl Fn(&'r Row) -> String,
        note: impl Fn(&'r Row) -> &'static str,
    ) -> String {
        let is_there = |figure: &&str| rows.iter().any(|row| value(row, figure).is_some());
        let published = self.published.filter(is_there);
        let (each, grey) = match published {
            Some(_) => (2.0, "; below in grey as published, to a scale of its own"),
            None => (1.2, ""),
        };
        let height = LINE * (each * precise(rows.len()) + 1.0);
        let mut svg = format!(
            "<figure><figcaption>{}{grey}</figcaption>\n\
             <svg viewBox=\"0 0 {:.0} {height:.0}\" width=\"{1:.0}\" font-size=\"12\">\n",
            self.title,
            LEFT + WIDTH + RIGHT
        );
        for (place, row) in (0_u32..).zip(rows) {
            let top = LINE * (each * f64::from(place) + 0.5);
            // Writing to a string cannot fail.
            let _ = writeln!(svg, "<text x=\"0\" y=\"{:.1}\">{}</text>", top + 11.0, name(row));
            bar(&mut svg, top, share(rows, row, self.figure), ("#2f6fb5", note(row)));
            if let Some(figure) = published {
                bar(&mut svg, top + LINE - 4.0, share(rows, row, figure), ("#b8bec6", ""));
            }
        }
        svg.push_str("</svg></figure>\n");
        svg
    }
}

/// A row's figure and its share of the largest one; `None` if the row has none.
fn share(rows: &[&Row], row: &Row, figure: &str) -> Option<(f64, f64)> {
    let longest =
        rows.iter().filter_map(|row| value(row, figure)).fold(f64::MIN_POSITIVE, f64::max);
    value(row, figure).map(|value| (value, value / longest))
}

fn bar(svg: &mut String, top: f64, share: Option<(f64, f64)>, (colour, note): (&str, &str)) {
    let Some((value, share)) = share else { return };
    let width = share * WIDTH;
    let shown = match value {
        ..10.0 => format!("{value:.2}"),
        ..1000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    };
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

#[expect(clippy::cast_precision_loss, reason = "few rows")]
fn precise(count: usize) -> f64 {
    count as f64
}
