//! Curves of cycles over policies, as SVG that needs nothing else.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::report::{Report, Row};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 52.0;
const BOTTOM: f64 = 34.0;
const COLOURS: [&str; 7] =
    ["#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#bf3989", "#57606a"];

/// Points of a curve: policies and cycles.
type Points = Vec<(f64, f64)>;

/// One diagram for each family and number of flows (by cache), and one of all profiles.
pub(crate) fn page(report: &Report) -> String {
    let mut diagrams: BTreeMap<String, BTreeMap<String, Points>> = BTreeMap::new();
    for row in report.rows.iter().filter(|row| row.case.value("changes").is_none()) {
        let word = |key: &str| row.case.value(key).unwrap_or_default();
        let Some(point) = point(row) else { continue };
        let family = word("family");
        let mut add = |title: String, curve: String| {
            diagrams.entry(title).or_default().entry(curve).or_default().push(point);
        };
        if word("profile") == "tunnels" && word("match") == "random" {
            let title = format!("tunnels, IPv{family}, {} flows: by cache", word("flows"));
            add(title, format!("cache {}", word("cache")));
        }
        if word("match") == "random" && word("flows") == "16384" && word("cache") == "off" {
            add(format!("All profiles, IPv{family}, 16384 flows, without cache"), word("profile"));
        }
    }
    diagrams.iter().map(|(title, curves)| diagram(title, curves)).collect()
}

fn point(row: &Row) -> Option<(f64, f64)> {
    let policies = row.case.value("policies")?.parse().ok()?;
    Some((policies, row.figures.get("min")?.as_f64()?))
}

/// Both axes logarithmic.
fn diagram(title: &str, curves: &BTreeMap<String, Points>) -> String {
    let points = || curves.values().flatten();
    let most = points().map(|(policies, _)| *policies).fold(10.0, f64::max);
    let top = points().map(|(_, cycles)| *cycles).fold(100.0, f64::max);
    let x = |policies: f64| LEFT + policies.log10() / most.log10() * (WIDTH - LEFT - 120.0);
    let y = |cycles: f64| {
        let height = (cycles.max(10.0) / 10.0).log10() / (top / 10.0).log10();
        HEIGHT - BOTTOM - height * (HEIGHT - BOTTOM - 30.0)
    };
    let mut svg = format!(
        "<h2>{title}</h2>\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" role=\"img\" aria-label=\"{title}\" font-size=\"11\">\n"
    );
    for power in 0..7 {
        let (policies, label) = (10_f64.powi(power), 10_u32.pow(power.unsigned_abs()));
        if policies <= most * 1.01 {
            let _ = writeln!(
                svg, // writing to a string cannot fail
                "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{label}</text>",
                x(policies),
                HEIGHT - BOTTOM + 16.0
            );
        }
    }
    for cycles in [10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0] {
        if cycles <= top * 1.2 {
            let _ = writeln!(
                svg,
                "<path d=\"M{LEFT} {0:.1}H{1}\" stroke=\"#ddd\"/><text x=\"{2}\" y=\"{0:.1}\" text-anchor=\"end\" dy=\"4\">{cycles}</text>",
                y(cycles),
                WIDTH - 120.0,
                LEFT - 6.0
            );
        }
    }
    for ((name, points), colour) in curves.iter().zip(COLOURS.iter().cycle()) {
        let mut points = points.clone();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let path: Vec<String> =
            points.iter().map(|(a, b)| format!("{:.1},{:.1}", x(*a), y(*b))).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        if let Some((policies, cycles)) = points.last() {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\" dy=\"4\">{name}</text>",
                x(*policies) + 6.0,
                y(*cycles)
            );
        }
    }
    svg.push_str(
        "</svg>\n<p>Cycles per packet (parse, look-up, verdict) over the number of policies.</p>\n",
    );
    svg
}
