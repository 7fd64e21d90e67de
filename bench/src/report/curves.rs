//! Curves of cycles over the number of policies, as self-contained SVG: figures of several panels.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::rows::{BenchReport, Case, Row};

const PANEL: f64 = 320.0;
const HEIGHT: f64 = 270.0;
/// Margins of a panel: tick labels to the left and below, the title above, the curves' names to the
/// right.
const LEFT: f64 = 40.0;
const RIGHT: f64 = 76.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 40.0;
/// Distance between names of curves.
const LINE: f64 = 13.0;
const COLOURS: [&str; 7] =
    ["#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#bf3989", "#57606a"];
const GREY: &str = "#8c959f";

/// Values that have their own panels, and the panels' titles.
const FLOWS: [(&str, &str); 4] = [
    ("4", "4 flows"),
    ("16384", "16k flows"),
    ("1048576", "1M flows"),
    ("new", "every packet a new flow"),
];
const MATCHES: [(&str, &str); 4] =
    [("first", "the first policy"), ("last", "the last"), ("random", "any"), ("none", "none")];
const CACHES: [(&str, &str); 3] =
    [("off", "without cache"), ("on", "cache on"), ("auto", "cache auto")];

/// Numbers of policies and cycles.
type Points = Vec<(f64, f64)>;

/// Panels of one scale under a title.
struct Figure {
    title: String,
    panels: Vec<Panel>,
}

struct Panel {
    title: String,
    curves: BTreeMap<String, Points>,
}

/// The figures of a report, each as an SVG element.
pub(crate) fn figures(report: &BenchReport) -> Vec<String> {
    all(&report.rows).iter().map(|figure| svg(&drawn(figure, 0.0), figure.size())).collect()
}

/// All figures below each other, as an SVG file.
pub(crate) fn file(report: &BenchReport) -> String {
    let mut content = String::from("<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n");
    let mut size: (f64, f64) = (0.0, 0.0);
    for figure in all(&report.rows) {
        content.push_str(&drawn(&figure, size.1));
        let (width, height) = figure.size();
        size = (size.0.max(width), size.1 + height);
    }
    svg(&content, size)
}

/// Whether rows of these cases have curves.
pub(crate) fn are_of(cases: impl IntoIterator<Item = Case>) -> bool {
    let rows: Vec<Row> = cases.into_iter().map(placeholder).collect();
    !all(&rows).is_empty()
}

/// A row with placeholder figures.
fn placeholder(case: Case) -> Row {
    let figures = ["cycles_per_packet", "floor_cycles"].map(|name| (name.to_owned(), 1.into()));
    Row { case, figures: figures.into_iter().collect() }
}

fn all(rows: &[Row]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for direction in [("out", "outbound"), ("in", "inbound")] {
        for family in ["4", "6"] {
            figures.extend(of_direction(rows, direction, family));
        }
    }
    // A single point is no curve.
    let draws = |panel: &Panel| panel.curves.values().any(|points| points.len() > 1);
    figures.iter_mut().for_each(|figure| figure.panels.retain(draws));
    figures.retain(|figure| !figure.panels.is_empty());
    // Drops figures that would repeat a part of another.
    figures.retain(|figure| match figure.title.split_whitespace().next() {
        Some("All") => figure.panels.iter().any(|panel| panel.curves.len() > 1),
        Some("Which") => figure.panels.len() > 1,
        Some(_) | None => true,
    });
    figures
}

/// The figures of one direction and one version of IP.
fn of_direction(rows: &[Row], (direction, name): (&str, &str), family: &str) -> [Figure; 3] {
    let here = || {
        let rows = rows.iter().filter(|row| row.case.value("changes").is_none());
        rows.filter(|row| is(row, "direction", direction) && is(row, "family", family))
    };
    let title = |what: &str| format!("{what}, IPv{family}, {name}");
    let tunnels = || here().filter(|row| is(row, "profile", "tunnels"));
    let random = tunnels().filter(|row| is(row, "match", "random"));
    let without = tunnels().filter(|row| is(row, "cache", "off"));
    let few = without.filter(|row| is(row, "flows", "4") || is(row, "flows", "16384"));
    let usual = here().filter(|row| is(row, "match", "random") && is(row, "flows", "16384"));
    [
        Figure {
            title: title("Tunnels to sites that do not overlap"),
            panels: panels(random, "flows", &FLOWS, by_cache),
        },
        Figure {
            title: title("Which policy matches, without cache"),
            panels: panels(few, "match", &MATCHES, |row| vec![flows_of(row)]),
        },
        Figure {
            title: title("All profiles, 16k flows"),
            panels: panels(usual, "cache", &CACHES, by_profile),
        },
    ]
}

type Named = (String, &'static str);

fn by_cache(row: &Row) -> Vec<Named> {
    let cache = row.case.value("cache").unwrap_or_default();
    vec![(format!("cache {cache}"), "cycles_per_packet"), ("parsing".to_owned(), "floor_cycles")]
}

fn by_profile(row: &Row) -> Vec<Named> {
    row.case.value("profile").map(|name| (name, "cycles_per_packet")).into_iter().collect()
}

fn flows_of(row: &Row) -> Named {
    let few = is(row, "flows", "4");
    (if few { "4 flows" } else { "16k flows" }.to_owned(), "cycles_per_packet")
}

/// A panel for each value of a key; `curves` returns the curves that a row has a point on, and the
/// point's figure.
fn panels<'a>(
    rows: impl Iterator<Item = &'a Row>,
    key: &str,
    values: &[(&str, &str)],
    curves: impl Fn(&Row) -> Vec<Named>,
) -> Vec<Panel> {
    let title = |name: &str| (*name).to_owned();
    let mut panels: Vec<Panel> = values
        .iter()
        .map(|(_, name)| Panel { title: title(name), curves: BTreeMap::new() })
        .collect();
    for row in rows {
        let value = row.case.value(key);
        let place = values.iter().position(|(word, _)| value.as_deref() == Some(word));
        let Some(panel) = place.map(|place| &mut panels[place]) else { continue };
        for (name, figure) in curves(row) {
            let points = panel.curves.entry(name).or_default();
            if let Some(point) = point(row, figure)
                && !points.iter().any(|(policies, _)| *policies == point.0)
            {
                points.push(point);
            }
        }
    }
    for points in panels.iter_mut().flat_map(|panel| panel.curves.values_mut()) {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    panels
}

fn is(row: &Row, key: &str, value: &str) -> bool {
    row.case.value(key).is_some_and(|own| own == value)
}

fn point(row: &Row, figure: &str) -> Option<(f64, f64)> {
    let policies = row.case.value("policies")?.parse().ok()?;
    Some((policies, row.figures.get(figure)?.as_f64()?))
}

fn svg(content: &str, (width, height): (f64, f64)) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" font-family=\"system-ui, sans-serif\" \
         font-size=\"11\" role=\"img\">\n{content}</svg>\n"
    )
}

fn drawn(figure: &Figure, y: f64) -> String {
    let cycles = figure.panels.iter().flat_map(|panel| panel.curves.values().flatten());
    let scale = Scale::up_to(cycles.map(|(_, cycles)| *cycles).fold(100.0, f64::max));
    let mut text = format!(
        "<g transform=\"translate(0 {y})\">\n<text x=\"8\" y=\"20\" font-size=\"14\" font-weight=\"600\">{}</text>\n",
        figure.title
    );
    for (place, panel) in figure.panels.iter().enumerate() {
        let (x, y) = figure.place(place);
        let _ = writeln!(text, "<g transform=\"translate({x} {y})\">"); // writing to a string cannot fail
        panel.draw(&scale, &mut text);
        text.push_str("</g>\n");
    }
    text.push_str("</g>\n");
    text
}

impl Figure {
    /// Panels side by side: at most three, or two of four.
    const fn columns(&self) -> usize {
        match self.panels.len() {
            columns @ 0..=3 => columns,
            4 => 2,
            _ => 3,
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a handful")]
    fn place(&self, panel: usize) -> (f64, f64) {
        let (column, line) = (panel % self.columns(), panel / self.columns());
        (column as f64 * PANEL, line as f64 * (HEIGHT - LINE))
    }

    fn size(&self) -> (f64, f64) {
        let (last, widest) = (self.panels.len().max(1) - 1, self.columns().max(1) - 1);
        (self.place(widest).0 + PANEL, self.place(last).1 + HEIGHT)
    }
}

/// Cycles from 0 to a round number, and lines at round steps.
struct Scale {
    most: f64,
    step: f64,
}

impl Scale {
    fn up_to(cycles: f64) -> Self {
        let steps = [20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0];
        let step = steps.into_iter().find(|step| cycles / step <= 6.0).unwrap_or(50_000.0);
        Self { most: (cycles / step).ceil() * step, step }
    }

    fn y(&self, cycles: f64) -> f64 {
        HEIGHT - BOTTOM - cycles.min(self.most) / self.most * (HEIGHT - BOTTOM - TOP)
    }
}

impl Panel {
    fn draw(&self, scale: &Scale, text: &mut String) {
        let all = || self.curves.values().flatten();
        let most = all().map(|(policies, _)| *policies).fold(10.0, f64::max);
        let x = |policies: f64| LEFT + policies.log10() / most.log10() * (PANEL - LEFT - RIGHT);
        let _ = writeln!(text, "<text x=\"{LEFT}\" y=\"{}\">{}</text>", TOP - 14.0, self.title);
        axes(scale, most, x, text);
        let mut ends: Vec<(f64, &str, &str)> = Vec::new();
        for ((name, points), other) in self.curves.iter().zip(COLOURS.iter().cycle()) {
            let (colour, dash) = look(name, other);
            let path: Vec<String> = points
                .iter()
                .map(|(policies, cycles)| format!("{:.1},{:.1}", x(*policies), scale.y(*cycles)))
                .collect();
            let _ = writeln!(
                text,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>",
                path.join(" ")
            );
            ends.extend(points.last().map(|(_, cycles)| (scale.y(*cycles), name.as_str(), colour)));
        }
        for (y, name, colour) in apart(ends) {
            let x = PANEL - RIGHT + 6.0;
            let _ = writeln!(
                text,
                "<text x=\"{x}\" y=\"{y:.1}\" fill=\"{colour}\" dy=\"4\">{name}</text>"
            );
        }
    }
}

fn axes(scale: &Scale, most: f64, x: impl Fn(f64) -> f64, text: &mut String) {
    let (from, to) = (LEFT, PANEL - RIGHT);
    let mut cycles = 0.0;
    while cycles <= scale.most {
        let y = scale.y(cycles);
        let _ = writeln!(
            text,
            "<path d=\"M{from} {y:.1}H{to}\" stroke=\"#d8dee4\"/><text x=\"{}\" y=\"{y:.1}\" text-anchor=\"end\" dy=\"4\">{cycles}</text>",
            from - 5.0
        );
        cycles += scale.step;
    }
    let y = HEIGHT - BOTTOM + 15.0;
    for (policies, label) in [
        (1.0, "1"),
        (1e1, "10"),
        (1e2, "100"),
        (1e3, "1k"),
        (1e4, "10k"),
        (1e5, "100k"),
        (1e6, "1M"),
    ] {
        if policies <= most * 1.01 {
            let x = x(policies);
            let _ = writeln!(
                text,
                "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{label}</text>"
            );
        }
    }
    let (middle, y) = (f64::midpoint(from, to), y + 15.0);
    let _ = writeln!(
        text,
        "<text x=\"{middle}\" y=\"{y}\" text-anchor=\"middle\" fill=\"{GREY}\">policies; cycles per packet</text>"
    );
}

/// The same curve has the same colour in every figure.
fn look(name: &str, other: &'static str) -> (&'static str, &'static str) {
    match name {
        "parsing" => (GREY, " stroke-dasharray=\"3 3\""),
        "cache off" => (COLOURS[1], ""),
        "cache on" => (COLOURS[0], ""),
        "cache auto" => (COLOURS[2], " stroke-dasharray=\"7 3\""),
        _ => (other, ""),
    }
}

/// Moves names so that none covers another.
fn apart<'a>(mut names: Vec<(f64, &'a str, &'a str)>) -> Vec<(f64, &'a str, &'a str)> {
    names.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut free = HEIGHT - BOTTOM;
    for name in &mut names {
        name.0 = name.0.min(free);
        free = name.0 - LINE;
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Machine, Samples};

    fn row(flows: u32, cache: &str, policies: u32, cycles: f64) -> Row {
        let case =
            Case::new().with("profile", "tunnels").with("family", 4).with("direction", "out");
        let case = case.with("match", "random").with("flows", flows).with("cache", cache);
        let mut sample = Samples::default();
        sample.push(cycles);
        let mut row = Row::of_packets(case.with("policies", policies), &sample, 64, 2e9);
        row.figure("floor_cycles", 30.0, 1);
        row
    }

    fn report() -> BenchReport {
        let machine = Machine { cpu: "x".into(), cores: 1, tsc_hz: 2e9, kernel: "6".into() };
        let mut rows = Vec::new();
        for (policies, cycles) in [(1, 50.0), (1000, 90.0), (1_000_000, 300.0)] {
            rows.extend([4, 16_384].map(|flows| row(flows, "off", policies, cycles)));
            rows.extend([4, 16_384].map(|flows| row(flows, "on", policies, 60.0)));
        }
        BenchReport { bench: "lookup", machine, rows }
    }

    #[test]
    fn each_number_of_flows_has_a_panel_with_a_curve_per_cache() {
        let text = file(&report());
        for part in ["4 flows", "16k flows", "cache on", "cache off", "parsing", ">1M<", ">300<"] {
            assert!(text.contains(part), "{part}");
        }
        assert!(!text.contains("1M flows") && !text.contains("NaN") && !text.contains("inbound"));
        assert_eq!(text.matches("<polyline").count(), 2 * 3);
        assert_eq!(text.matches("<svg").count(), 1);
    }

    #[test]
    fn curve_names_do_not_overlap() {
        let placed =
            apart(vec![(100.0, "a", ""), (99.0, "b", ""), (101.0, "c", ""), (20.0, "d", "")]);
        let heights: Vec<f64> = placed.iter().map(|(height, ..)| *height).collect();
        assert_eq!(heights, [101.0, 88.0, 75.0, 20.0]);
    }
}
