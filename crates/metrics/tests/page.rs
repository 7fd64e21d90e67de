//! Pages of documents made by hand and of any documents.

mod documents;
mod exposition;

use std::{
    collections::BTreeSet,
    io::Write as _,
    process::{Command, Stdio},
};

use documents::{any_told, state, told, tunnel};
use exposition::{Exposition, Series, read};
use proptest::prelude::*;
use uxfrm_metrics::{
    catalogue::{self, Kind},
    figures::Figures,
    format::TextFormat,
    page::page,
};
use uxfrm_status::{
    health::{Health, HealthFacts, SideDrops, SideFacts, judge},
    protocol::StatusRequest,
    workers::WorkerStatus,
};

/// Both forms of a page, which must say the same.
fn both(told: &documents::Told) -> (String, Exposition) {
    let (text, open) = (
        page(told.figures(), TextFormat::Prometheus),
        page(told.figures(), TextFormat::OpenMetrics),
    );
    let (read_text, read_open) = (read(&text), read(&open));
    assert!(!read_text.ends && read_open.ends);
    assert_eq!(read_text.series, read_open.series);
    for (name, head) in &read_open.heads {
        let suffix = match head.kind.as_str() {
            "counter" => "_total",
            "info" => "_info",
            "gauge" => "",
            other => panic!("a type {other}"),
        };
        let same = &read_text.heads[&format!("{name}{suffix}")];
        let kind = if head.kind == "info" { "gauge" } else { &head.kind };
        assert_eq!((&same.help, same.kind.as_str()), (&head.help, kind));
        assert!(head.unit.as_ref().is_none_or(|unit| name.ends_with(&format!("_{unit}"))));
    }
    (text, read_text)
}

/// `promtool check metrics` of the form 0.0.4; where there is no promtool, that is said.
fn promtool(page: &str) {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "promtool is not installed");
        eprintln!("not run: promtool check metrics, for want of the package prometheus");
        return;
    };
    let mut input = child.stdin.take().expect("it was asked for");
    input.write_all(page.as_bytes()).expect("it reads");
    drop(input);
    let done = child.wait_with_output().expect("it ends");
    let said = [done.stdout, done.stderr].concat();
    assert!(done.status.success() && said.is_empty(), "{}", String::from_utf8_lossy(&said));
}

const NAME: [(&str, &str); 4] =
    [("peer", "198.18.0.7"), ("local", "192.0.2.1"), ("reqid", "1"), ("mode", "tunnel")];

#[test]
fn every_metric_of_the_catalogue_is_there() {
    let mut told = told(vec![tunnel(7)]);
    told.counters.kernel.0 = catalogue::all()
        .filter(|metric| metric.name.starts_with("node_"))
        .map(|metric| (metric.help.split(':').next().unwrap().to_owned(), 1))
        .collect();
    told.status.tunnels[0].states[0].rekey = told.status.tunnels[0].states[0].expiry;
    let (text, page) = both(&told);
    promtool(&text);
    let names: BTreeSet<_> = page.series.iter().map(|series| series.name.as_str()).collect();
    assert_eq!(names, catalogue::all().map(|metric| metric.name).collect());
    for metric in catalogue::all() {
        let known: BTreeSet<_> = metric.all_labels().collect();
        let series = page.series.iter().filter(|series| series.name == metric.name);
        for Series { labels, .. } in series {
            let has: BTreeSet<_> = labels.keys().map(String::as_str).collect();
            match metric.kind {
                Kind::Info => assert!(has.is_subset(&known), "{metric:?} {has:?}"),
                Kind::Counter | Kind::Gauge => assert_eq!(has, known, "{metric:?}"),
            }
        }
        assert!(!metric.help.contains(['\\', '"', '\n']) && metric.help.is_ascii(), "{metric:?}");
        assert!(!metric.help.ends_with('.'), "{metric:?}");
    }
}

#[test]
fn tunnel_by_its_series() {
    let mut other = tunnel(8);
    other.health = Health::OneWay;
    (other.if_id, other.sequence_ratio, other.states) = (5, None, vec![state(1, "in")]);
    let (_, page) = both(&told(vec![tunnel(7), other]));
    let of = |name| page.of(name, &NAME);
    assert_eq!(of("uxfrm_tunnel_up"), Some(1.0));
    assert_eq!(of("uxfrm_tunnel_sent_packets_total"), Some(12.0));
    assert_eq!(of("uxfrm_tunnel_received_bytes_total"), Some(700.0));
    assert_eq!(of("uxfrm_tunnel_last_received_timestamp_seconds"), Some(1_764_000_097.0));
    assert_eq!(of("uxfrm_state_sequence_ratio"), Some(0.5));
    let with = |name, label| page.of(name, &[&NAME[..], &[label]].concat());
    assert_eq!(with("uxfrm_tunnel_health", ("health", "up")), Some(1.0));
    assert_eq!(with("uxfrm_tunnel_health", ("health", "down")), Some(0.0));
    assert_eq!(with("uxfrm_state_expires_seconds", ("direction", "out")), Some(2700.0));
    assert_eq!(with("uxfrm_state_rekey_seconds", ("direction", "out")), None, "it is of bytes");
    assert_eq!(with("uxfrm_tunnel_failures_total", ("kind", "replay")), Some(1.0));
    assert_eq!(with("uxfrm_tunnel_drops_total", ("reason", "in_replay")), Some(1.0));
    let nets = ("nets", "10.1.0.0/16 <-> 10.2.0.0/16 and 2 more");
    assert_eq!(with("uxfrm_tunnel_info", nets), Some(1.0));
    let other = [("peer", "198.18.0.8"), ("if_id", "5")];
    assert_eq!(page.of("uxfrm_tunnel_up", &other), Some(0.0));
    assert_eq!(page.of("uxfrm_state_sequence_ratio", &other), None);
}

/// It carries packets, and is not well: they go no further.
#[test]
fn tunnel_whose_packets_are_dropped_is_not_up() {
    let dropped =
        || Some(SideDrops { reason: "in_no_policy".to_owned(), dropped: 9, of: 9, seconds_ago: 1 });
    let used = SideFacts { usable: 1, packets: 9, last_seconds_ago: Some(1), ..Default::default() };
    let lost = SideFacts { dropped: dropped(), ..used.clone() };
    for (outbound, inbound, health, up) in [
        (&used, &used, Health::Up, 1.0),
        (&used, &lost, Health::OneWay, 0.0),
        (&lost, &used, Health::Down, 0.0),
    ] {
        let sides = (Some(outbound.clone()), Some(inbound.clone()));
        let facts = HealthFacts { outbound: sides.0, inbound: sides.1, ..Default::default() };
        let mut tunnel = tunnel(7);
        (tunnel.health, tunnel.reason) = judge(&facts);
        assert_eq!(tunnel.health, health, "{:?}", tunnel.reason);
        let (_, page) = both(&told(vec![tunnel]));
        assert_eq!(page.of("uxfrm_tunnel_up", &NAME), Some(up), "{health}");
        let label = ("health", health.as_str());
        let series = page.of("uxfrm_tunnel_health", &[&NAME[..], &[label]].concat());
        assert_eq!(series, Some(1.0), "{health}");
    }
}

#[test]
fn totals_are_of_all_tunnels() {
    let (_, page) = both(&told(vec![tunnel(7), tunnel(8)]));
    assert_eq!(page.of("uxfrm_tunnels", &[("health", "up")]), Some(2.0));
    assert_eq!(page.of("uxfrm_tunnels", &[("health", "down")]), Some(5.0));
    assert_eq!(page.of("uxfrm_tunnels_omitted", &[]), Some(5.0));
    assert_eq!(page.of("uxfrm_plain_policies", &[("action", "held")]), Some(2.0));
    assert_eq!(page.of("node_xfrm_in_no_states_packets_total", &[]), Some(12.0));
    assert_eq!(page.of("uxfrm_drops_total", &[("reason", "in_replay")]), Some(0.0));
    assert_eq!(page.of("uxfrm_link_sent_bytes_total", &[("link", "gre1")]), Some(400.0));
    assert_eq!(page.of("uxfrm_link_received_packets_total", &[("link", "fou_5555")]), Some(3.0));
    assert_eq!(page.of("uxfrm_link_drops_total", &[("reason", "tunnel_in_no_tunnel")]), Some(1.0));
    assert_eq!(page.of("uxfrm_up", &[]), Some(1.0));
}

#[test]
fn worker_by_its_series_and_no_more_than_so_many() {
    let mut told = told(Vec::new());
    let (_, page) = both(&told);
    let of = |name, more: &[(&str, &str)]| page.of(name, &[&[("worker", "0")], more].concat());
    assert_eq!(of("uxfrm_worker_cpu_seconds_total", &[]), Some(1.5));
    assert_eq!(of("uxfrm_worker_received_packets_total", &[("direction", "out")]), Some(12.0));
    assert_eq!(of("uxfrm_worker_sent_packets_total", &[("direction", "in")]), Some(7.0));
    assert_eq!(of("uxfrm_worker_port_refused_packets_total", &[("port", "tun")]), Some(2.0));
    let worker = told.workers.workers[0].clone();
    told.workers.workers =
        (0..1000).map(|number| WorkerStatus { worker: number, ..worker.clone() }).collect();
    let (_, page) = both(&told);
    let named = page.series.iter().filter(|series| series.name == "uxfrm_worker_turns_total");
    assert_eq!(named.count(), 256);
}

#[test]
fn a_gateway_that_does_not_answer_is_down() {
    let text = page(Figures::silent(), TextFormat::Prometheus);
    assert_eq!(
        text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>(),
        ["uxfrm_up 0"]
    );
    promtool(&text);
}

#[test]
fn gateway_is_asked_for_the_busiest_of_the_worst() {
    let requests = Figures::requests(7).map(|request| {
        StatusRequest::from_line(&request.to_line()).expect("a request of the protocol")
    });
    let StatusRequest::Status(query) = &requests[0] else { panic!("{requests:?}") };
    let line = String::from_utf8(requests[0].to_line()).unwrap();
    assert!(query.limit() == 7 && line.contains(r#""order":"traffic""#), "{line}");
}

/// A tunnel has so many series at the most, and so many bytes are left of a page without any.
#[test]
fn page_grows_with_the_tunnels_that_it_names_only() {
    let size = |tunnels: u16| {
        let mut told = told((0..tunnels).map(tunnel).collect());
        told.status.totals.tunnels = 100_000;
        page(told.figures(), TextFormat::Prometheus).len()
    };
    let (one, thousand) = (size(1), size(1000));
    eprintln!("a page of 1,000 tunnels has {thousand} bytes, {} a tunnel", thousand / 1000);
    assert!(thousand < one + 1000 * 4096);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn any_documents_give_a_page(told in any_told()) {
        let (_, page) = both(&told);
        let known: BTreeSet<_> = catalogue::all().map(|metric| metric.name).collect();
        for Series { name, value, .. } in &page.series {
            prop_assert!(known.contains(name.as_str()), "{name}");
            prop_assert!(value.is_finite());
        }
    }
}

proptest! {
    // A process each.
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn promtool_takes_the_page_of_any_documents(told in any_told()) {
        promtool(&page(told.figures(), TextFormat::Prometheus));
    }
}
