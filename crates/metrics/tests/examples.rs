//! Alerts and dashboard use metrics that exist, with labels that they have; alerts do what they are
//! for; the page of all metrics has all of them.
//!
//! `UPDATE=1 cargo test -p uxfrm-metrics --test examples` writes that page's table.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;
use uxfrm_metrics::catalogue::{self, Kind, Metric};
use uxfrm_status::health::{Health, HealthReason};

/// A file of the repository.
fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(path(name)).expect("a file of this repository")
}

/// Labels that Prometheus adds itself.
const TARGET: [&str; 4] = ["job", "instance", "alertname", "severity"];
/// Labels that a tunnel may have besides.
const OPTIONAL: [&str; 2] = ["if_id", "protocol"];

/// Names of metrics in an expression.
fn metrics(expression: &str) -> BTreeSet<String> {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let words = expression.split(|letter| !is_name(letter));
    words
        .filter(|word| word.starts_with("uxfrm_") || word.starts_with("node_"))
        .map(str::to_owned)
        .collect()
}

/// Names of labels in the braces of an expression.
fn labels(expression: &str) -> BTreeSet<String> {
    let braces = expression.split('{').skip(1).filter_map(|behind| behind.split('}').next());
    let parts = braces.flat_map(|inside| inside.split(','));
    let names = parts.filter_map(|part| part.split(['=', '!', '~']).next());
    names.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
}

/// All strings of a field of this name, however deep.
fn fields<'a>(value: &'a Value, name: &str, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(map) => {
            found.extend(map.get(name).and_then(Value::as_str));
            map.values().for_each(|value| fields(value, name, found));
        }
        Value::Array(list) => list.iter().for_each(|value| fields(value, name, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn check(expression: &str, known: &BTreeMap<&str, &Metric>) {
    let mut allowed: BTreeSet<&str> = TARGET.into_iter().chain(OPTIONAL).collect();
    for name in metrics(expression) {
        let metric = known.get(name.as_str()).unwrap_or_else(|| panic!("{name}: {expression}"));
        allowed.extend(metric.all_labels());
    }
    for label in labels(expression) {
        assert!(allowed.contains(label.as_str()), "label {label}: {expression}");
    }
}

fn known() -> BTreeMap<&'static str, &'static Metric> {
    catalogue::all().map(|metric| (metric.name, metric)).collect()
}

#[test]
fn dashboard_uses_metrics_that_exist() {
    let dashboard: Value =
        serde_json::from_str(&text("examples/grafana/uxfrm.json")).expect("JSON");
    let mut expressions = Vec::new();
    fields(&dashboard, "expr", &mut expressions);
    fields(&dashboard, "definition", &mut expressions);
    assert!(expressions.len() > 20, "{expressions:?}");
    let known = known();
    expressions.iter().for_each(|expression| check(expression, &known));
    let panels = dashboard["panels"].as_array().expect("panels");
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len(), "each has a number of its own");
}

#[test]
fn alerts_use_metrics_that_exist() {
    let alerts = text("examples/prometheus/uxfrm-alerts.yml");
    assert_eq!(alerts.matches("- alert: ").count(), 6);
    let known = known();
    // Not the words of annotations, which have braces of another kind.
    for rule in alerts.split("- alert: ").skip(1) {
        let expression = rule.split("expr:").nth(1).and_then(|rest| rest.split("for:").next());
        check(expression.expect("an expression"), &known);
        assert!(
            !metrics(rule).is_empty() && rule.contains("Next:\n") | rule.contains("Next: "),
            "{rule}"
        );
        assert!(rule.contains("`uxfrm ") && rule.contains("summary: "), "{rule}");
    }
}

/// Why a tunnel is not well, and words for it that texts for people have in common.
fn bad_reasons() -> [(Health, HealthReason, &'static str); 9] {
    use Health::{Down, OneWay};
    let (drop_reason, dropped, seconds_ago) = ("in_no_policy".to_owned(), 9, 1);
    let (sent, received, seconds) = (9, 0, 30);
    [
        (Down, HealthReason::NoState, "can't be sent"),
        (Down, HealthReason::AcquirePending, "can't be sent"),
        (Down, HealthReason::Expired { spi: "0x1".to_owned(), seconds_ago }, "can't be sent"),
        (Down, HealthReason::NumbersUsedUp, "can't be sent"),
        (Down, HealthReason::WrongDirection, "can't be sent"),
        (Down, HealthReason::NoInboundState, "can't come in"),
        (
            Down,
            HealthReason::SentDropped { drop_reason: drop_reason.clone(), dropped, seconds_ago },
            "takes none of it",
        ),
        (OneWay, HealthReason::NothingReceived { sent, received, seconds }, "has no answer"),
        (
            OneWay,
            HealthReason::ReceivedDropped { drop_reason, dropped, received: 9, seconds_ago },
            "is dropped here",
        ),
    ]
}

/// A reason of another kind is added above as well.
fn is_bad(reason: &HealthReason) -> bool {
    match reason {
        HealthReason::NoState
        | HealthReason::AcquirePending
        | HealthReason::Expired { .. }
        | HealthReason::NumbersUsedUp
        | HealthReason::WrongDirection
        | HealthReason::NoInboundState
        | HealthReason::NothingReceived { .. }
        | HealthReason::ReceivedDropped { .. }
        | HealthReason::SentDropped { .. } => true,
        HealthReason::WaitsForPacket
        | HealthReason::OptionalWithoutState
        | HealthReason::Quiet { .. } => false,
    }
}

#[test]
fn alerts_and_their_table_name_each_way_of_not_being_well() {
    let (alerts, page) = (text("examples/prometheus/uxfrm-alerts.yml"), text("docs/metrics.md"));
    for (health, reason, words) in bad_reasons() {
        assert!(is_bad(&reason), "{reason:?}");
        let alert = match health {
            Health::Down => "UxfrmTunnelDown",
            Health::OneWay => "UxfrmTunnelOneWay",
            Health::Idle | Health::Up => unreachable!("not bad"),
        };
        let rule = alerts.split("- alert: ").find(|rule| rule.starts_with(alert)).expect("a rule");
        let rule = rule.split_whitespace().collect::<Vec<_>>().join(" ");
        let row = page.lines().find(|line| line.starts_with(&format!("| `{alert}`")));
        assert!(rule.contains(words), "{reason:?}: {rule}");
        assert!(row.is_some_and(|row| row.contains(words)), "{reason:?}: {row:?}");
    }
}

#[test]
fn promtool_takes_the_alerts_and_their_tests() {
    let commands: [&[&str]; 3] = [
        &["check", "rules", "examples/prometheus/uxfrm-alerts.yml"],
        &["test", "rules", "tests/prometheus/uxfrm-alerts-test.yml"],
        // Without the files that it names: the token is another machine's.
        &["check", "config", "--syntax-only", "examples/prometheus/prometheus.yml"],
    ];
    for words in commands {
        let done = Command::new("promtool").args(words).current_dir(path("")).output();
        let Ok(done) = done else {
            assert_ne!(env::var("CI").as_deref(), Ok("true"), "promtool is not installed");
            return eprintln!("not run: promtool, for want of the package prometheus");
        };
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        let said = said + &String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() && said.contains("SUCCESS"), "{words:?}: {said}");
    }
}

fn row(metric: &Metric) -> String {
    let kind = match metric.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Info => "info",
    };
    let own = match metric.scope {
        catalogue::Scope::Gateway => None,
        catalogue::Scope::Tunnel => Some("*tunnel*".to_owned()),
    };
    let labels = own.into_iter().chain(metric.labels.iter().map(|label| format!("`{label}`")));
    let labels = labels.collect::<Vec<_>>().join(", ");
    format!("| `{}` | {kind} | {labels} | {} |\n", metric.name, metric.help)
}

#[test]
fn page_of_all_metrics_has_all_of_them() {
    const BEGIN: &str = "| name | type | labels | meaning |\n| --- | --- | --- | --- |\n";
    let (page, rows) = (text("docs/metrics.md"), catalogue::all().map(row).collect::<String>());
    let (before, behind) = page.split_once(BEGIN).expect("a table");
    let end = behind.find("\n\n").expect("text behind the table") + 1;
    let today = format!("{before}{BEGIN}{rows}{}", &behind[end..]);
    if env::var_os("UPDATE").is_some() {
        fs::write(path("docs/metrics.md"), &today).expect("a file of this repository");
    }
    let differs = page.lines().zip(today.lines()).find(|(there, here)| there != here);
    assert!(page == today || env::var_os("UPDATE").is_some(), "run it with UPDATE=1: {differs:?}");
}

#[test]
fn the_check_sees_a_metric_or_label_that_is_not() {
    let wrong = |expression: &'static str| {
        std::panic::catch_unwind(|| check(expression, &known())).is_err()
    };
    assert!(!wrong(r#"rate(uxfrm_drops_total{reason!~"in_.*", instance="x"}[5m])"#));
    assert!(wrong("uxfrm_drops") && wrong("node_xfrm_in_errors_total"));
    assert!(wrong(r#"uxfrm_drops_total{cause="x"}"#) && wrong(r#"uxfrm_up{peer="x"}"#));
}
