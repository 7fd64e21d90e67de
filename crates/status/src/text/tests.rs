use super::*;
use crate::{
    counters::CounterList,
    health::HealthReason,
    limit::{LimitKind, LimitStatus},
    tunnel::{FailureStatus, PolicyTally, ProtectedNets},
};

fn gateway() -> GatewayIdentity {
    GatewayIdentity {
        version: "1.2.3".to_owned(),
        pid: 42,
        started: 1000,
        uptime_seconds: 3720,
        configuration: "/etc/uxfrm/gateway.toml".to_owned(),
        mode: "host".to_owned(),
        tun: "uxfrm0".to_owned(),
        workers: 2,
        udp_ports: vec![4500],
        interfaces: Vec::new(),
        devices: Vec::new(),
        key_manager_listens: false,
    }
}

fn state(spi: &str, direction: Option<&str>) -> StateStatus {
    StateStatus {
        spi: spi.to_owned(),
        source: [192, 0, 2, 1].into(),
        destination: [192, 0, 2, 2].into(),
        direction: direction.map(str::to_owned),
        mode: "tunnel".to_owned(),
        reqid: 7,
        if_id: 0,
        lifecycle: "valid".to_owned(),
        cipher: "rfc4106(gcm(aes)) 128".to_owned(),
        encapsulation: None,
        device: None,
        added_seconds_ago: 60,
        traffic: TrafficStatus::default(),
        failures: FailureStatus::default(),
        replay_window: 64,
        sequence_sent: 0,
        sequence_received: 0,
        sequence_ratio: 0.0,
        rekey: None,
        expiry: None,
    }
}

fn up() -> TunnelStatus {
    let limit = |used_ratio, left| Some(LimitStatus { of: LimitKind::Added, used_ratio, left });
    TunnelStatus {
        local: [192, 0, 2, 1].into(),
        remote: [192, 0, 2, 2].into(),
        mode: "tunnel".to_owned(),
        protocol: "esp".to_owned(),
        reqid: 7,
        if_id: 0,
        health: Health::Up,
        reason: None,
        explanation: None,
        nets: vec![ProtectedNets {
            local: "10.1.0.0/16".to_owned(),
            remote: "10.2.0.0/16".to_owned(),
            traffic: None,
        }],
        nets_total: 1,
        policies: PolicyTally { outbound: 1, inbound: 1, forward: 1 },
        cipher: Some("rfc4106(gcm(aes)) 128".to_owned()),
        encapsulation: Some(UdpStatus {
            kind: "espinudp".to_owned(),
            source_port: 4500,
            destination_port: 4500,
        }),
        device: None,
        sent: TrafficStatus { packets: 1234, bytes: 1_200_000, last_seconds_ago: Some(1) },
        received: TrafficStatus { packets: 1, bytes: 84, last_seconds_ago: Some(125) },
        failures: FailureStatus { replay: 3, replay_window: 0, integrity_failed: 1 },
        drops: CounterList::default(),
        icmp_errors: Vec::new(),
        rekey: limit(0.5, 2880),
        expiry: limit(0.4, 3600),
        sequence_ratio: Some(0.0004),
        states: vec![state("0x00001001", Some("out")), state("0x00001002", Some("in"))],
        states_total: 2,
    }
}

fn down() -> TunnelStatus {
    let reason = HealthReason::NoState;
    TunnelStatus {
        remote: [192, 0, 2, 9].into(),
        health: Health::Down,
        explanation: Some(reason.to_string()),
        reason: Some(reason),
        cipher: None,
        encapsulation: None,
        sent: TrafficStatus::default(),
        received: TrafficStatus::default(),
        failures: FailureStatus::default(),
        rekey: None,
        expiry: None,
        sequence_ratio: None,
        states: Vec::new(),
        states_total: 0,
        ..up()
    }
}

fn status(tunnels: Vec<TunnelStatus>) -> GatewayStatus {
    let mut totals = StatusTotals { states: 2, policies: 4, ..StatusTotals::default() };
    tunnels.iter().for_each(|tunnel| totals.count(tunnel.health));
    GatewayStatus {
        gateway: gateway(),
        at: 5000,
        age_seconds: 0,
        totals,
        plain: PlainPolicies::default(),
        tunnels,
        unmatched_states: Vec::new(),
        unmatched_states_total: 0,
        next: None,
        notices: Vec::new(),
    }
}

#[test]
fn status_has_head_and_three_lines_a_tunnel() {
    let text = render(&status(vec![down(), up()]), Colour::Plain);
    let expected = "\
uxfrm 1.2.3 (pid 42), up 1 h 2 min, host mode, 2 workers, UDP 4500, /etc/uxfrm/gateway.toml
sent 0 packets (0 B), received 0 packets (0 B), dropped 0 packets
2 tunnels: 1 down, 1 up; 2 states, 4 policies

192.0.2.1 <-> 192.0.2.9  10.1.0.0/16 <-> 10.2.0.0/16  tunnel reqid 7
  down (no state fits the template, and no key manager listens to make one): received nothing; sent nothing
  states in none, out none

192.0.2.1 <-> 192.0.2.2  10.1.0.0/16 <-> 10.2.0.0/16  tunnel reqid 7, rfc4106(gcm(aes)) 128, UDP 4500
  up: received 1 packet (84 B), last 2 min 5 s ago; sent 1,234 packets (1.2 MB), last 1 s ago
  states in 0x00001002, out 0x00001001, rekey in 48 min, expires in 1 h, 3 replayed, 1 not authentic
";
    assert_eq!(text, expected);
}

#[test]
fn head_names_the_most_frequent_reasons_and_plain_policies() {
    let mut status = status(vec![up()]);
    let counts = [("a", 1), ("b", 5000), ("c", 3), ("d", 4), ("e", 2), ("f", 1)];
    status.totals.dropped_by_reason =
        CounterList(counts.map(|(name, count)| (name.to_owned(), count)).to_vec());
    status.totals.dropped = 5011;
    status.plain = PlainPolicies { bypass: 3, block: 1, held: 0 };
    let text = head(&status);
    assert!(
        text.contains("dropped 5,011 packets (b 5,000, d 4, c 3, e 2, 2 more reasons)"),
        "{text}"
    );
    assert!(text.contains("1 tunnel: 1 up; 2 states, 4 policies (3 bypass, 1 block)"), "{text}");
}

#[test]
fn what_is_left_out_is_said() {
    let mut status = status(vec![up()]);
    status.totals.tunnels = 100_000;
    status.unmatched_states = vec![state("0x00000100", None)];
    status.unmatched_states_total = 3;
    status.notices = vec!["held: 2 policies".to_owned()];
    let text = render(&status, Colour::Plain);
    assert!(text.contains("99,999 tunnels more"), "{text}");
    let line =
        "0x00000100 192.0.2.1 -> 192.0.2.2, tunnel reqid 7, rfc4106(gcm(aes)) 128, valid, unused";
    assert!(text.contains(&format!("3 states fit no policy\n  {line}\n  and 2 more\n")), "{text}");
    assert!(text.contains("notice: held: 2 policies\n"), "{text}");
}

#[test]
fn only_a_terminal_gets_colours() {
    let status = status(vec![down()]);
    assert!(!render(&status, Colour::Plain).contains('\x1b'));
    assert!(render(&status, Colour::Ansi).contains("\x1b[31mdown\x1b[0m"));
}

#[test]
fn unspecified_ends_many_nets_and_odd_ports_are_readable() {
    let mut tunnel = up();
    tunnel.local = [0, 0, 0, 0].into();
    tunnel.nets_total = 12;
    tunnel.nets[0].traffic = Some("6 port 443".to_owned());
    tunnel.if_id = 16;
    tunnel.device = Some("nic0".to_owned());
    let udp = |source_port| UdpStatus {
        kind: "espinudp".to_owned(),
        source_port,
        destination_port: 4500,
    };
    tunnel.encapsulation = Some(udp(0));
    let line = name(&tunnel);
    assert_eq!(
        line,
        "any <-> 192.0.2.2  10.1.0.0/16 <-> 10.2.0.0/16 proto 6 port 443 and 11 more  \
         tunnel reqid 7 if_id 0x10, rfc4106(gcm(aes)) 128, UDP to 4500, offload nic0"
    );
    assert_eq!(encapsulation(&udp(31000)), "UDP 31000 to 4500");
    tunnel.drops = CounterList(vec![("in_replay".to_owned(), 1200)]);
    assert!(limits(&tunnel).ends_with(", 1,200 dropped (in_replay 1,200)"));
    tunnel.sequence_ratio = Some(0.5);
    assert!(limits(&tunnel).contains("50.0 % of sequence numbers used"));
}
