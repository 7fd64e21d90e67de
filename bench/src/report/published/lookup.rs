//! The two published tables that `bench lookup` answers, and its figures beside them.

use std::fmt::Write as _;

use crate::report::rows::{BenchReport, Row};

/// Megapackets a second by the index of the matching policy, without and with the flow cache (VPP
/// of 2021, `ipsec4-output`, one core, null encryption, 64 bytes; commit message of "ipsec:
/// Performance improvement of ipsec4_output_node using flow cache"). Since March 2026 the scan of
/// IPv4 policies is SIMD (commit 9d92e18dfc1), so the figures without the cache no longer hold for
/// VPP.
const VPP: [(&str, [(f64, f64); 4]); 3] = [
    ("Arm Neoverse N1", [(5.2, 4.84), (4.55, 4.84), (2.11, 4.84), (0.3295, 4.84)]),
    ("Arm TX2", [(2.81, 2.6), (2.51, 2.6), (1.27, 2.6), (0.177, 2.6)]),
    ("Intel SKX", [(4.93, 4.48), (4.29, 4.46), (2.05, 4.48), (0.337, 4.47)]),
];

/// Without and with the cache.
type CyclePairs = [(u32, u32); 4];

/// Mbit/s of 64-byte packets with 1 to 4 processors, without and with the flow cache ("xfrm: is the
/// flow cache still needed?", veth).
const KERNEL: [(&str, CyclePairs); 2] = [
    ("4 flows", [(198, 241), (320, 469), (503, 690), (688, 880)]),
    ("16k flows", [(190, 112), (307, 193), (488, 305), (668, 435)]),
];

const SIZES: [(&str, &str); 7] = [
    ("1", "1"),
    ("10", "10"),
    ("100", "100"),
    ("1000", "1k"),
    ("10000", "10k"),
    ("100000", "100k"),
    ("1000000", "1M"),
];

/// A table with its title, head and lines.
struct Table {
    title: &'static str,
    head: Vec<String>,
    lines: Vec<(String, Vec<String>)>,
}

/// As lines of text.
pub(crate) fn text(report: &BenchReport) -> String {
    let mut text = String::new();
    for Table { title, head, lines } in tables(report) {
        let _ = writeln!(text, "\n{title}"); // writing to a string cannot fail
        let cells = |cells: &[String]| -> String {
            cells.iter().map(|cell| format!("{cell:>17}")).collect()
        };
        let _ = writeln!(text, "{:>26}{}", "", cells(&head));
        for (name, line) in lines {
            let _ = writeln!(text, "{name:>26}{}", cells(&line));
        }
    }
    text
}

/// As HTML.
pub(crate) fn html(report: &BenchReport) -> String {
    let mut text = String::new();
    for Table { title, head, lines } in tables(report) {
        let cells = |tag: &str, cells: &[String]| -> String {
            cells.iter().map(|cell| format!("<{tag}>{cell}</{tag}>")).collect()
        };
        let _ = writeln!(text, "<p>{title}</p>\n<table><tr><th></th>{}</tr>", cells("th", &head));
        for (name, line) in lines {
            let _ = writeln!(text, "<tr><th>{name}</th>{}</tr>", cells("td", &line));
        }
        text.push_str("</table>\n");
    }
    text
}

/// The tables; none without a figure of ours.
fn tables(report: &BenchReport) -> Vec<Table> {
    let all = vec![vpp(report), kernel_theirs(), kernel_ours(report)];
    let ours =
        all.iter().flat_map(|table| &table.lines).filter(|(name, _)| name.starts_with("uxfrm"));
    let measured = |cell: &String| cell.contains(|character: char| character.is_ascii_digit());
    if ours.flat_map(|(_, line)| line).any(measured) { all } else { Vec::new() }
}

fn vpp(report: &BenchReport) -> Table {
    let pair = |off: f64, on: f64| format!("{} / {}", mpps(off), mpps(on));
    let mut lines: Vec<_> = VPP
        .iter()
        .map(|(name, cells)| ((*name).to_owned(), cells.map(|(off, on)| pair(off, on)).into()))
        .collect();
    for cache in ["on", "auto"] {
        let cells = ["1", "10", "100", "1000"].map(|policies| {
            let figure = |cache| find(report, policies, "last", "4", cache);
            pair(figure("off"), figure(cache))
        });
        lines.push((format!("uxfrm, cache {cache}"), cells.into()));
    }
    let head = ["1", "10", "100", "1000"].map(|index| format!("policy {index}")).into();
    let title = "VPP's table: Mpps without / with its flow cache, by the index of the policy that matches. Ours is the last of so many, parse + \
                 look-up + verdict alone: only what a line's columns have to each other can be compared.";
    Table { title, head, lines }
}

fn kernel_theirs() -> Table {
    let lines = KERNEL.map(|(flows, cells)| {
        let cells = cells.map(|(off, on)| per_cent(f64::from(on) / f64::from(off)));
        (format!("Linux, {flows}"), cells.into())
    });
    let head = ["1 processor", "2", "3", "4"].map(str::to_owned).into();
    let title =
        "The kernel's table: packets with the flow cache that it had, per cent of those without.";
    Table { title, head, lines: lines.into() }
}

fn kernel_ours(report: &BenchReport) -> Table {
    let mut lines = Vec::new();
    for (flows, word) in [
        ("4", "4 flows"),
        ("16384", "16k flows"),
        ("1048576", "1M flows"),
        ("new", "ever new flows"),
    ] {
        for cache in ["on", "auto"] {
            let cells = SIZES.map(|(policies, _)| {
                let figure = |cache| find(report, policies, "random", flows, cache);
                per_cent(figure(cache) / figure("off"))
            });
            lines.push((format!("uxfrm {cache}, {word}"), cells.into()));
        }
    }
    let head = SIZES.map(|(_, word)| format!("{word} policies")).into();
    Table {
        title: "Ours, the same way: look-ups with the flow cache, per cent of those without.",
        head,
        lines,
    }
}

fn mpps(value: f64) -> String {
    if value.is_nan() { "-".to_owned() } else { format!("{value:.2}") }
}

fn per_cent(ratio: f64) -> String {
    if ratio.is_nan() { "-".to_owned() } else { format!("{:.0} %", ratio * 100.0) }
}

/// Mpps of the outbound `tunnels` rows over IPv4; not a number where there is none.
fn find(report: &BenchReport, policies: &str, met: &str, flows: &str, cache: &str) -> f64 {
    let wanted = |row: &&Row| {
        let has = |key: &str, value: &str| row.case.value(key).is_some_and(|own| own == value);
        has("profile", "tunnels")
            && has("family", "4")
            && has("direction", "out")
            && has("policies", policies)
            && has("match", met)
            && has("flows", flows)
            && has("cache", cache)
            && row.case.value("changes").is_none()
    };
    let figure = |row: &Row| row.figures.get("mpps").and_then(serde_json::Value::as_f64);
    report.rows.iter().find(wanted).and_then(figure).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Case, Machine, Samples};

    /// A row of more than a hundred million packets a second.
    fn row(cache: &str) -> Row {
        let case =
            Case::new().with("profile", "tunnels").with("family", 4).with("direction", "out");
        let case = case.with("policies", 1).with("match", "last").with("flows", 4);
        let mut sample = Samples::default();
        sample.push(20.0);
        Row::of_packets(case.with("cache", cache), &sample, 64, 2.6e9)
    }

    #[test]
    fn columns_do_not_touch() {
        let machine = Machine { cpu: "x".into(), cores: 1, tsc_hz: 2.6e9, kernel: "6".into() };
        let rows = ["off", "on", "auto"].map(row).into();
        let text = text(&BenchReport { bench: "lookup", machine, rows });
        assert!(text.contains("uxfrm, cache auto  130.00 / 130.00  "), "{text}");
        let starts = |line: &&str| line.contains("ever new flows") || line.contains("Arm TX2");
        let ends: Vec<usize> = text.lines().filter(starts).map(str::len).collect();
        assert_eq!(ends, [26 + 4 * 17, 26 + 7 * 17, 26 + 7 * 17]);
    }
}
