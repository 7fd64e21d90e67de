//! Documents: one by hand, and any.

use std::net::IpAddr;

use proptest::{collection::vec, option, prelude::*};
use uxfrm_metrics::figures::Figures;
use uxfrm_status::{
    counters::{CacheReport, CounterList, CounterReport},
    drops::{DropTallyReport, DropTallyStatus},
    gateway::{GatewayIdentity, GatewayStatus, PlainPolicies, StatusTotals},
    health::Health,
    limit::{LimitKind, LimitStatus},
    tunnel::{
        FailureStatus, PolicyTally, ProtectedNets, StateStatus, TrafficStatus, TunnelStatus,
        UdpStatus,
    },
    workers::{PortStatus, StreamStatus, WorkerReport, WorkerStatus},
};

/// The documents of one scrape.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) status: GatewayStatus,
    pub(crate) counters: CounterReport,
    pub(crate) devices: DropTallyReport,
    pub(crate) workers: WorkerReport,
}

impl Told {
    pub(crate) fn figures(&self) -> Figures {
        let Self { status, counters, devices, workers } = self.clone();
        Figures::new(status, counters, devices, workers)
    }
}

fn list(counts: &[(&str, u64)]) -> CounterList {
    CounterList(counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect())
}

pub(crate) fn state(spi: u32, direction: &str) -> StateStatus {
    let limit = |of, left| Some(LimitStatus { of, used_ratio: 0.25, left });
    StateStatus {
        spi: format!("{spi:#010x}"),
        source: [192, 0, 2, 1].into(),
        destination: [192, 0, 2, 2].into(),
        direction: Some(direction.to_owned()),
        mode: "tunnel".to_owned(),
        reqid: 1,
        if_id: 0,
        lifecycle: "valid".to_owned(),
        cipher: "rfc4106(gcm(aes)) 128".to_owned(),
        encapsulation: None,
        device: None,
        added_seconds_ago: 900,
        traffic: TrafficStatus::default(),
        failures: FailureStatus::default(),
        replay_window: 32,
        sequence_sent: 7,
        sequence_received: 7,
        sequence_ratio: 0.5,
        rekey: limit(LimitKind::Bytes, 1000),
        expiry: limit(LimitKind::Added, 2700),
    }
}

pub(crate) fn tunnel(number: u16) -> TunnelStatus {
    let [high, low] = number.to_be_bytes();
    let traffic =
        |packets| TrafficStatus { packets, bytes: 100 * packets, last_seconds_ago: Some(3) };
    TunnelStatus {
        local: [192, 0, 2, 1].into(),
        remote: [198, 18, high, low].into(),
        mode: "tunnel".to_owned(),
        protocol: "esp".to_owned(),
        reqid: 1,
        if_id: 0,
        health: Health::Up,
        reason: None,
        explanation: None,
        nets: vec![ProtectedNets {
            local: "10.1.0.0/16".to_owned(),
            remote: "10.2.0.0/16".to_owned(),
            traffic: None,
        }],
        nets_total: 3,
        policies: PolicyTally::default(),
        cipher: Some("rfc4106(gcm(aes)) 128".to_owned()),
        encapsulation: None,
        device: None,
        sent: traffic(12),
        received: traffic(7),
        failures: FailureStatus { replay: 1, ..FailureStatus::default() },
        drops: list(&[("in_replay", 1)]),
        icmp_errors: Vec::new(),
        rekey: None,
        expiry: None,
        sequence_ratio: Some(0.5),
        states: vec![state(0x1001, "out"), state(0x2001, "in"), state(0x1000, "out")],
        states_total: 3,
    }
}

/// A gateway with these tunnels, which has every kind of series.
pub(crate) fn told(tunnels: Vec<TunnelStatus>) -> Told {
    let count = tunnels.len() as u64;
    let status = GatewayStatus {
        gateway: GatewayIdentity {
            version: "0.1.0".to_owned(),
            pid: 4711,
            started: 1_764_000_000,
            uptime_seconds: 100,
            configuration: "/etc/uxfrm/uxfrm.toml".to_owned(),
            mode: "host".to_owned(),
            tun: "uxfrm0".to_owned(),
            workers: 2,
            udp_ports: vec![4500],
            interfaces: Vec::new(),
            devices: vec!["nic0".to_owned()],
            key_manager_listens: true,
        },
        at: 1_764_000_100,
        age_seconds: 0,
        totals: StatusTotals {
            tunnels: count + 5,
            up: count,
            down: 5,
            states: 3 * count,
            policies: 2 * count,
            highest_sequence_ratio: Some(0.5),
            soonest_expiry_seconds: Some(2700),
            ..StatusTotals::default()
        },
        plain: PlainPolicies { held: 2, ..PlainPolicies::default() },
        tunnels,
        unmatched_states: Vec::new(),
        unmatched_states_total: 1,
        next: None,
        notices: vec!["held".to_owned()],
    };
    let cache = CacheReport {
        direction: "out".to_owned(),
        family: "ipv4".to_owned(),
        hits: 9,
        ..CacheReport::default()
    };
    let counters = CounterReport {
        kernel: list(&[("XfrmInError", 0), ("XfrmInNoStates", 12)]),
        reasons: list(&[("in_no_state", 12), ("in_replay", 0)]),
        tunnels: list(&[
            ("tunnel_in_no_tunnel", 1),
            ("tunnel_gre1_sent_packets", 4),
            ("tunnel_gre1_sent_bytes", 400),
            ("fou_5555_received_packets", 3),
            ("fou_5555_received_bytes", 300),
        ]),
        caches: vec![cache],
        ..CounterReport::default()
    };
    let tally = DropTallyStatus {
        state: None,
        policy: None,
        device: Some("nic0".to_owned()),
        reason: "in_replay".to_owned(),
        packets: 2,
    };
    let devices = DropTallyReport { at: 0, tallies: vec![tally], tallies_total: 1 };
    Told { status, counters, devices, workers: workers() }
}

fn workers() -> WorkerReport {
    let stream = |received| StreamStatus { received, sent: received, ..StreamStatus::default() };
    let port = PortStatus { name: "tun".to_owned(), refused: 2, ..PortStatus::default() };
    let worker = WorkerStatus {
        cpu_ns: 1_500_000_000,
        outbound: stream(12),
        inbound: stream(7),
        ports: vec![port],
        ..WorkerStatus::default()
    };
    WorkerReport { workers: vec![worker], ..WorkerReport::default() }
}

/// Names, as they should be, and anything.
fn text() -> impl Strategy<Value = String> {
    let odd = prop_oneof![any::<String>(), "[\\\\\"\n{}=,# \r\0]{0,8}", "[a-z]{100,300}"];
    prop_oneof![3 => "[a-z]{1,2}", 1 => odd]
}

fn counts() -> impl Strategy<Value = CounterList> {
    let name = prop_oneof![
        2 => text(),
        1 => "tunnel_[a-z]{0,2}_(sent|received)_(packets|bytes)",
        1 => Just("XfrmInError".to_owned()),
    ];
    vec((name, any::<u64>()), 0..40).prop_map(CounterList)
}

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![4 => 0.0..1.0, 1 => any::<f64>(), 1 => Just(f64::NAN)]
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        (0..4_u8).prop_map(|last| IpAddr::from([192, 0, 2, last])),
        any::<std::net::Ipv6Addr>().prop_map(IpAddr::from),
    ]
}

fn limit() -> impl Strategy<Value = Option<LimitStatus>> {
    let kinds = [LimitKind::Added, LimitKind::Used, LimitKind::Bytes, LimitKind::Packets];
    let limit = (prop::sample::select(kinds.to_vec()), number(), any::<u64>());
    option::of(limit.prop_map(|(of, used_ratio, left)| LimitStatus { of, used_ratio, left }))
}

fn any_state() -> impl Strategy<Value = StateStatus> {
    let direction = option::of(prop_oneof![Just("in".to_owned()), Just("out".to_owned()), text()]);
    (direction, number(), limit(), limit()).prop_map(|(direction, ratio, rekey, expiry)| {
        StateStatus { direction, sequence_ratio: ratio, rekey, expiry, ..state(1, "out") }
    })
}

fn any_worker() -> impl Strategy<Value = WorkerStatus> {
    let ports = vec((text(), any::<u64>()), 0..4);
    (0..3_u32, any::<u64>(), any::<u64>(), ports).prop_map(|(worker, cpu_ns, received, ports)| {
        let port = |(name, sent)| PortStatus { name, sent, ..PortStatus::default() };
        WorkerStatus {
            worker,
            cpu_ns,
            inbound: StreamStatus { received, ..StreamStatus::default() },
            ports: ports.into_iter().map(port).collect(),
            ..WorkerStatus::default()
        }
    })
}

fn traffic() -> impl Strategy<Value = TrafficStatus> {
    (any::<u64>(), any::<u64>(), option::of(any::<u64>())).prop_map(
        |(packets, bytes, last_seconds_ago)| TrafficStatus { packets, bytes, last_seconds_ago },
    )
}

fn any_tunnel() -> impl Strategy<Value = TunnelStatus> {
    let healths = vec![Health::Down, Health::OneWay, Health::Idle, Health::Up];
    let name = (address(), address(), text(), text(), 0..3_u32, 0..2_u32);
    let told =
        (prop::sample::select(healths), option::of(text()), option::of(text()), any::<u64>());
    let encapsulation = option::of((text(), any::<u16>()));
    let nets = vec((text(), text(), option::of(text())), 0..3);
    let carried = (traffic(), traffic(), counts(), option::of(number()));
    (name, told, encapsulation, nets, carried, vec(any_state(), 0..4)).prop_map(
        |(name, told, encapsulation, nets, carried, states)| {
            let (local, remote, mode, protocol, reqid, if_id) = name;
            let (health, cipher, device, nets_total) = told;
            let encapsulation = encapsulation.map(|(kind, port)| UdpStatus {
                kind,
                source_port: 0,
                destination_port: port,
            });
            let nets = nets.into_iter();
            let nets = nets
                .map(|(local, remote, traffic)| ProtectedNets { local, remote, traffic })
                .collect();
            let (sent, received, drops, sequence_ratio) = carried;
            let own = TunnelStatus { local, remote, mode, protocol, reqid, if_id, ..tunnel(0) };
            let own = TunnelStatus { health, cipher, device, nets_total, nets, ..own };
            TunnelStatus { encapsulation, sent, received, drops, sequence_ratio, states, ..own }
        },
    )
}

/// Any documents at all.
pub(crate) fn any_told() -> impl Strategy<Value = Told> {
    let cache = (0..2_u32, text(), text(), any::<u64>());
    let caches = vec(cache, 0..6);
    let tallies = vec((option::of(text()), text(), any::<u64>()), 0..8);
    let identity = (text(), text(), text(), vec(text(), 0..4), any::<u64>());
    let totals = (any::<u64>(), any::<u64>(), option::of(number()), option::of(any::<u64>()));
    let lists = (counts(), counts(), counts());
    let tunnels = (vec(any_tunnel(), 0..8), vec(any_worker(), 0..4));
    (tunnels, caches, tallies, identity, totals, lists).prop_map(
        |((tunnels, workers), caches, tallies, identity, totals, lists)| {
            let mut told = told(tunnels);
            told.workers.workers = workers;
            let gateway = &mut told.status.gateway;
            let at;
            (gateway.version, gateway.mode, gateway.tun, gateway.devices, at) = identity;
            told.status.at = at;
            let own = &mut told.status.totals;
            (own.tunnels, own.down, own.highest_sequence_ratio, own.soonest_expiry_seconds) =
                totals;
            let counters = &mut told.counters;
            (counters.kernel, counters.reasons, counters.tunnels) = lists;
            let cache = |(worker, direction, family, hits)| CacheReport {
                worker,
                direction,
                family,
                hits,
                ..CacheReport::default()
            };
            counters.caches = caches.into_iter().map(cache).collect();
            let tally = |(device, reason, packets)| DropTallyStatus {
                state: None,
                policy: None,
                device,
                reason,
                packets,
            };
            told.devices.tallies = tallies.into_iter().map(tally).collect();
            told
        },
    )
}
