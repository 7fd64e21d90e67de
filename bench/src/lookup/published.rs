//! The two published tables that this bench answers, beside what was measured here.

use std::fmt::Write as _;

use crate::report::{Report, Row};

/// Megapackets a second by the index of the policy that matches, without and with the flow cache (VPP, `ipsec4-output`, one core,
/// null encryption, 64 bytes; commit message of "ipsec: Performance improvement of ipsec4_output_node using flow cache").
const VPP: [(&str, [(f64, f64); 4]); 3] = [
    ("Arm Neoverse N1", [(5.2, 4.84), (4.55, 4.84), (2.11, 4.84), (0.3295, 4.84)]),
    ("Arm TX2", [(2.81, 2.6), (2.51, 2.6), (1.27, 2.6), (0.177, 2.6)]),
    ("Intel SKX", [(4.93, 4.48), (4.29, 4.46), (2.05, 4.48), (0.337, 4.47)]),
];

/// Without and with the cache.
type Pairs = [(u32, u32); 4];

/// Mbit/s of 64-byte packets with 1 to 4 processors, without and with the flow cache ("xfrm: is the flow cache still needed?", veth).
const KERNEL: [(&str, &str, Pairs); 2] = [
    ("4", "4", [(198, 241), (320, 469), (503, 690), (688, 880)]),
    ("16k", "16384", [(190, 112), (307, 193), (488, 305), (668, 435)]),
];

/// Both tables as lines of text. Ours is parsing and look-up alone, theirs is all of a packet's way: what can be compared is how the
/// columns of one table relate to each other.
pub(crate) fn side_by_side(report: &Report) -> String {
    let mut text = String::from(
        "\nVPP's table: Mpps without / with flow cache, by the index of the policy that matches. Ours is parse + look-up + verdict alone.\n",
    );
    let mut line = |name: &str, cells: [(f64, f64); 4]| {
        let cells =
            cells.map(|(off, on)| format!("{:>16}", format!("{} / {}", mpps(off), mpps(on))));
        let _ = writeln!(text, "{name:>18}{}", cells.concat()); // writing to a string cannot fail
    };
    for (name, cells) in VPP {
        line(name, cells);
    }
    let ours = |policies: &str| {
        let figure = |cache| find(report, policies, "last", "4", cache, "mpps");
        (figure("off"), figure("on"))
    };
    line("uxfrm, 4 flows", ["1", "10", "100", "1000"].map(ours));
    text.push_str("\nThe kernel's table: with the flow cache, per cent of without, 1 to 4 processors; ours at 1, 10, 1000 and 100,000 policies.\n");
    for (word, flows, cells) in KERNEL {
        let theirs = cells.map(|(off, on)| per_cent(f64::from(on) / f64::from(off)));
        let _ = writeln!(text, "{:>18}{}", format!("Linux, {word} flows"), theirs.concat());
        let ours = ["1", "10", "1000", "100000"].map(|policies| {
            let figure = |cache| find(report, policies, "random", flows, cache, "mpps");
            per_cent(figure("auto") / figure("off"))
        });
        let _ = writeln!(text, "{:>18}{}", format!("uxfrm, {word} flows"), ours.concat());
    }
    text
}

fn mpps(value: f64) -> String {
    if value.is_nan() { "-".to_owned() } else { format!("{value:.2}") }
}

fn per_cent(ratio: f64) -> String {
    if ratio.is_nan() { format!("{:>9}", "-") } else { format!("{:>8.0}%", ratio * 100.0) }
}

/// A figure of the `tunnels` rows over IPv4; not a number where there is none.
fn find(report: &Report, policies: &str, met: &str, flows: &str, cache: &str, name: &str) -> f64 {
    let wanted = |row: &&Row| {
        let has = |key: &str, value: &str| row.case.value(key).is_some_and(|own| own == value);
        has("profile", "tunnels")
            && has("family", "4")
            && has("policies", policies)
            && has("match", met)
            && has("flows", flows)
            && has("cache", cache)
            && row.case.value("changes").is_none()
    };
    let figure = |row: &Row| row.figures.get(name).and_then(serde_json::Value::as_f64);
    report.rows.iter().find(wanted).and_then(figure).unwrap_or(f64::NAN)
}
