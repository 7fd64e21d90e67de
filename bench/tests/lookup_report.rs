//! `uxfrm bench lookup` as a user runs it: its rows, their keys, and the files that it writes.
//! Figures are not checked.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;
use uxfrm_bench::{BenchOptions, run};

/// The keys of a case.
const KEYS: [&str; 7] = ["cache", "direction", "family", "flows", "match", "policies", "profile"];

#[expect(clippy::unwrap_used, reason = "a test ends where it is wrong")]
fn options(only: &str) -> BenchOptions {
    BenchOptions { only: only.parse().unwrap(), quick: true, ..BenchOptions::default() }
}

#[expect(clippy::unwrap_used, reason = "a test ends where it is wrong")]
fn rows(options: &BenchOptions) -> Vec<Value> {
    let mut out = Vec::new();
    let options = BenchOptions { json: Some("-".into()), ..options.clone() };
    run("lookup", &options, &mut out).unwrap();
    let report: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(report["bench"], "lookup");
    report["rows"].as_array().unwrap().clone()
}

/// All values of a key.
fn values(rows: &[Value], key: &str) -> BTreeSet<String> {
    rows.iter().map(|row| row["case"][key].to_string().replace('"', "")).collect()
}

fn set(words: &str) -> BTreeSet<String> {
    words.split(' ').map(str::to_owned).collect()
}

fn temporary(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

#[test]
fn default_run_has_all_values_of_each_key() {
    let rows = rows(&options("policies=10"));
    assert_eq!(values(&rows, "profile"), set("tunnels hosts hub mix acl fw ipc"));
    assert_eq!(values(&rows, "match"), set("first last random none"));
    assert_eq!(values(&rows, "flows"), set("4 16384 new"), "a million is not quick");
    assert_eq!(values(&rows, "cache"), set("on off auto"));
    assert_eq!(values(&rows, "family"), set("4 6"));
    assert_eq!(values(&rows, "direction"), set("in out"));
    for row in &rows {
        let keys: Vec<_> =
            row["case"].as_object().into_iter().flatten().map(|(key, _)| key).collect();
        assert_eq!(keys, KEYS);
        for figure in [
            "cycles_per_packet",
            "floor_cycles",
            "mpps",
            "min",
            "max",
            "rounds",
            "bytes_per_policy",
        ] {
            assert!(row[figure].as_f64().is_some_and(|figure| figure > 0.0), "{figure}: {row}");
        }
        assert_eq!(row["hit_share"].is_number(), row["case"]["cache"] != "off");
    }
}

#[test]
fn filter_selects_cases_outside_the_default() {
    for (profile, other) in [("hosts", "first"), ("mix", "none"), ("ipc", "last")] {
        let only =
            format!("profile={profile},family=6,direction=in,policies=100,match={other},flows=4");
        assert_eq!(rows(&options(&only)).len(), 3, "one for each cache: {only}");
    }
}

#[test]
fn rules_and_trace_are_read_from_files() {
    for name in ["acl_100", "fw_100", "ipc_100"] {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
        let (rules, trace) = (Some(data.join(name)), Some(data.join(format!("{name}_trace"))));
        let rows = rows(&BenchOptions { rules, trace, ..options("") });
        assert_eq!(rows.len(), 3);
        assert_eq!(
            (&rows[0]["case"]["profile"], &rows[0]["case"]["flows"]),
            (&name.into(), &200.into())
        );
    }
}

#[test]
fn page_and_svg_are_well_formed() {
    let only =
        "profile=tunnels,family=4,direction=out,match=random,policies=1,policies=10,policies=100";
    for name in ["lookup.html", "lookup.svg"] {
        let path = temporary(name);
        let options = BenchOptions { html: Some(path.clone()), ..options(only) };
        let mut out = Vec::new();
        run("lookup", &options, &mut out).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.matches("<svg").count(), 1, "{name}");
        for tag in ["svg", "g", "text", "table", "tr", "td", "th", "details"] {
            let opened = text.matches(&format!("<{tag}>")).count()
                + text.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, text.matches(&format!("</{tag}>")).count(), "{tag} in {name}");
        }
        for absent in ["NaN", "inf", "null"] {
            assert!(!text.contains(absent), "{absent} in {name}");
        }
    }
    let one =
        BenchOptions { html: Some(temporary("none.svg")), ..options("profile=acl,policies=1") };
    let error = run("lookup", &one, &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("no curves"), "{error}");
}
