//! Rules in ethtool's words, against packets.

use super::{
    FlowRule, RssKey, RxQueueId, Steering, SteeringLimits,
    grammar::{RuleCommand, RuleError},
    rule::SteeringRuleId,
    target::Target,
    tuple::Tuple,
};
use proptest::prelude::*;

const LIMITS: SteeringLimits = SteeringLimits { queues: 16, rules: 2048, flex_field: true };

fn steering() -> Steering {
    let mut key = [0; 40];
    key.iter_mut().zip(1..).for_each(|(place, byte)| *place = byte);
    Steering::new(LIMITS, RssKey(key))
}

fn tcp(source: &str, destination: &str, ports: (u16, u16)) -> Tuple {
    Tuple {
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
        protocol: 6,
        source_port: ports.0,
        destination_port: ports.1,
        spi: None,
        vlan: None,
        flex: None,
    }
}

fn tell(steering: &mut Steering, line: &str) -> Result<SteeringRuleId, RuleError> {
    steering.change(line.parse()?)
}

fn only(line: &str) -> FlowRule {
    match line.parse().unwrap() {
        RuleCommand::Add(rule, _) => rule,
        RuleCommand::Delete(_) => panic!("{line} deletes"),
    }
}

#[test]
fn example_rules_steer_decrypted_packets() {
    let mut steering = steering();
    tell(&mut steering, "flow-type ip4 dst-ip 14.0.0.70 src-ip 14.0.0.52 action 14").unwrap();
    tell(&mut steering, "flow-type tcp4 src-port 52790 action 13").unwrap();
    tell(&mut steering, "flow-type esp4 spi 0x7 action 3").unwrap();
    let between = tcp("14.0.0.52", "14.0.0.70", (1, 2));
    assert_eq!(steering.steer(&between), Target::Queue(RxQueueId(14)));
    let port = tcp("10.0.0.1", "14.0.0.70", (52790, 2));
    assert_eq!(steering.steer(&port), Target::Queue(RxQueueId(13)));
    let state = Tuple { spi: Some(7), ..tcp("10.0.0.1", "14.0.0.70", (1, 2)) };
    assert_eq!(steering.steer(&state), Target::Queue(RxQueueId(3)));
}

#[test]
fn each_option_decides() {
    let base = Tuple {
        spi: Some(0x107),
        vlan: Some(0x2005),
        flex: Some(0x0800),
        ..tcp("10.1.2.3", "10.9.8.7", (1000, 2000))
    };
    for (line, fits) in [
        ("flow-type ip4", true),
        ("flow-type ip6", false),
        ("flow-type udp4", false),
        ("flow-type ip4 l4proto 6", true),
        ("flow-type ip4 l4proto 17", false),
        ("flow-type tcp4 src-ip 10.1.2.3 dst-ip 10.9.8.7 src-port 1000 dst-port 2000", true),
        ("flow-type tcp4 src-ip 10.1.2.4", false),
        ("flow-type tcp4 src-ip 10.1.2.4 m 0.0.0.255", true),
        ("flow-type tcp4 dst-ip 10.9.0.0 m 0.0.255.255", true),
        ("flow-type tcp4 src-port 1001", false),
        ("flow-type tcp4 src-port 1001 m 1", true),
        ("flow-type tcp4 dst-port 0x7d0", true),
        ("flow-type esp4 spi 0x107", true),
        ("flow-type esp4 spi 7", false),
        ("flow-type esp4 spi 7 m 0xff00", true),
        ("flow-type tcp4 vlan 5", false),
        ("flow-type tcp4 vlan 5 m 0xf000", true),
        ("flow-type tcp4 vlan-etype 0x800", true),
        ("flow-type tcp4 user-def 0x100800", true),
        ("flow-type tcp4 user-def 0x100801", false),
    ] {
        assert_eq!(only(line).fits(&base), fits, "{line}");
    }
    let plain = Tuple { spi: None, ..base };
    assert!(!only("flow-type esp4").fits(&plain), "what did not come in ESP has no SPI");
}

#[test]
fn lowest_rule_location_decides() {
    let mut steering = steering();
    let packet = tcp("10.0.0.1", "10.0.0.2", (1, 2));
    assert_eq!(tell(&mut steering, "flow-type tcp4 action 1"), Ok(SteeringRuleId(2047)));
    assert_eq!(tell(&mut steering, "flow-type tcp4 action 2"), Ok(SteeringRuleId(2046)));
    assert_eq!(steering.steer(&packet), Target::Queue(RxQueueId(2)));
    assert_eq!(tell(&mut steering, "flow-type tcp4 action -1 loc 5"), Ok(SteeringRuleId(5)));
    assert_eq!(steering.steer(&packet), Target::Drop);
    assert_eq!(tell(&mut steering, "delete 5"), Ok(SteeringRuleId(5)));
    assert_eq!(steering.steer(&packet), Target::Queue(RxQueueId(2)));
    assert_eq!(tell(&mut steering, "delete 5"), Err(RuleError::NoRule(SteeringRuleId(5))));
}

#[test]
fn errors_say_what_would_be_right() {
    for (line, text) in [
        ("", "expected \"flow-type TYPE …\" or \"delete N\", found \"\""),
        (
            "flow-type ether",
            "unknown flow-type \"ether\": ip4, ip6, tcp4, tcp6, udp4, udp6, sctp4, sctp6, esp4 or esp6",
        ),
        ("flow-type ip4 src-port 7", "flow-type ip4: unknown option \"src-port\""),
        ("flow-type tcp4 spi 7", "flow-type tcp4: unknown option \"spi\""),
        ("flow-type tcp4 src-port 65536", "src-port: \"65536\" is not a number from 0 to 65535"),
        ("flow-type tcp4 src-port", "src-port: \"\" is not a number from 0 to 65535"),
        ("flow-type tcp4 src-ip ::1", "src-ip: \"::1\" is not an IPv4 address"),
        ("flow-type tcp4 src-ip 1.2.3.4 m ff", "m: \"ff\" is not a mask of the address's family"),
        ("flow-type tcp4 action 16", "action 16: the device has queues 0 to 15"),
        ("flow-type tcp4 loc 2048", "loc 2048: the device has places 0 to 2047"),
        (
            "flow-type tcp4 user-def 0x410000",
            "user-def: offset 65: the flex field is at an even offset below 64",
        ),
        ("delete x", "delete: \"x\" is not a number of at most 32 bits"),
    ] {
        assert_eq!(tell(&mut steering(), line).unwrap_err().to_string(), text, "{line}");
    }
}

#[test]
fn flex_field_is_common_to_all_rules() {
    let mut steering = steering();
    tell(&mut steering, "flow-type tcp4 user-def 0x200001 loc 1").unwrap();
    assert_eq!(steering.flex_offset(), Some(0x20));
    tell(&mut steering, "flow-type udp4 user-def 0x200002").unwrap();
    assert_eq!(
        tell(&mut steering, "flow-type tcp4 vlan-etype 0x800"),
        Err(RuleError::OtherFlexOffset(0x20))
    );
    let mut without =
        Steering::new(SteeringLimits { flex_field: false, ..LIMITS }, RssKey([7; 40]));
    let refused = tell(&mut without, "flow-type tcp4 vlan-etype 0x800");
    assert_eq!(refused, Err(RuleError::NoFlexField));
}

#[test]
fn full_table_is_enospc_and_keeps_sas() {
    let limits = SteeringLimits { rules: 2, ..LIMITS };
    let mut steering = Steering::new(limits, RssKey([1; 40]));
    for _ in 0..2 {
        tell(&mut steering, "flow-type tcp4 action 1").unwrap();
    }
    assert_eq!(tell(&mut steering, "flow-type tcp4 action 1"), Err(RuleError::Full(2)));
    assert_eq!(steering.rules().count(), 2);
}

proptest! {
    #[test]
    fn rss_keeps_flow_on_queue_and_spreads_flows(seed: u32) {
        let steering = steering();
        let mut seen = std::collections::BTreeSet::new();
        for flow in 0..256_u16 {
            let source = std::net::Ipv4Addr::from_bits(seed.wrapping_add(u32::from(flow) * 7919));
            let packet = tcp(&source.to_string(), "10.0.0.2", (flow.wrapping_mul(31), 443));
            let Target::Queue(queue) = steering.steer(&packet) else { panic!("no rule drops") };
            prop_assert_eq!(steering.steer(&Tuple { spi: Some(9), ..packet }), Target::Queue(queue));
            prop_assert!(queue.0 < 16);
            seen.insert(queue);
        }
        prop_assert!(seen.len() >= 12, "256 flows reach {} of 16 queues", seen.len());
    }

    #[test]
    fn arbitrary_rule_line_is_parsed_or_refused(line in "[ a-z0-9.:x-]{0,60}", tail in "(flow-type tcp4 )?[ a-z0-9-]{0,40}") {
        for line in [line, tail] {
            let _ = line.parse::<RuleCommand>().map(|command| steering().change(command));
        }
    }
}
