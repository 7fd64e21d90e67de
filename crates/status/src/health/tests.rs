use super::{Health::*, HealthReason as Why, *};

/// A side with usable states that has carried so many packets: the first and the latest so many
/// seconds ago.
fn carried(packets: u64, first: u64, last: u64) -> Option<SideFacts> {
    let (first_seconds_ago, last_seconds_ago) = (Some(first), Some(last));
    let of = SideFacts { usable: 1, packets, ..SideFacts::default() };
    Some(SideFacts { first_seconds_ago, last_seconds_ago, ..of })
}

fn unused() -> Option<SideFacts> {
    Some(SideFacts { usable: 1, ..SideFacts::default() })
}

fn missing(fault: Option<SideFault>) -> Option<SideFacts> {
    Some(SideFacts { fault, ..SideFacts::default() })
}

fn both(outbound: Option<SideFacts>, inbound: Option<SideFacts>) -> HealthFacts {
    HealthFacts { outbound, inbound, ..HealthFacts::default() }
}

#[test]
fn health_of_tunnels_with_states_by_table() {
    let unanswered =
        |sent, received, seconds| Some(Why::NothingReceived { sent, received, seconds });
    let quiet = |seconds| Some(Why::Quiet { seconds });
    let table = [
        // Sent                    received                  health and reason
        (carried(9, 50, 1), carried(9, 50, 1), (Up, None)),
        (carried(9, 500, 119), carried(9, 500, 300), (OneWay, unanswered(9, 9, 300))),
        (carried(9, 500, 119), carried(9, 500, 148), (Up, None)),
        (carried(9, 500, 120), carried(9, 500, 121), (Idle, quiet(Some(120)))),
        (unused(), unused(), (Idle, quiet(None))),
        (unused(), carried(5, 90, 3), (Up, None)),
        (unused(), carried(5, 900, 300), (Idle, quiet(Some(300)))),
        (carried(1, 29, 29), unused(), (Up, None)),
        (carried(1, 30, 30), unused(), (OneWay, unanswered(1, 0, 30))),
        (carried(412, 31, 0), unused(), (OneWay, unanswered(412, 0, 31))),
        (carried(9, 9000, 29), carried(9, 9000, 58), (Up, None)),
        (carried(9, 9000, 29), carried(9, 9000, 59), (OneWay, unanswered(9, 9, 59))),
        (carried(9, 50, 1), None, (Up, None)),
        (None, carried(9, 50, 1), (Up, None)),
        (None, unused(), (Idle, quiet(None))),
    ];
    for (row, (outbound, inbound, expected)) in table.into_iter().enumerate() {
        assert_eq!(judge(&both(outbound, inbound)), expected, "row {row}");
    }
}

#[test]
fn tunnel_whose_packets_are_dropped_is_not_well() {
    let drops = |reason: &str, dropped, of| {
        let reason = reason.to_owned();
        Some(SideDrops { reason, dropped, of, seconds_ago: 2 })
    };
    let dropping =
        |side: Option<SideFacts>, dropped| side.map(|side| SideFacts { dropped, ..side });
    let refused = dropping(carried(49, 50, 2), drops("in_no_policy", 48, 49));
    let (health, why) = judge(&both(carried(49, 50, 2), refused));
    assert_eq!(health, OneWay);
    assert_eq!(
        why.unwrap().to_string(),
        "nothing gets in: of 49 received 48 packets were dropped afterwards, the last 2 s ago: \
         in_no_policy"
    );
    let unsent = dropping(unused(), drops("out_no_state", 1, 1));
    let (health, why) = judge(&both(unsent.clone(), unused()));
    assert_eq!(health, Down);
    assert_eq!(
        why.unwrap().to_string(),
        "no state takes what is to leave: 1 packet dropped, the last 2 s ago: out_no_state"
    );
    let facts = HealthFacts { key_management: KeyManagement::Listening, ..both(unsent, unused()) };
    assert_eq!(judge(&facts).0, Idle, "a key manager is asked for one that does");
}

#[test]
fn health_without_state_by_table() {
    use KeyManagement::{Absent, Asked, Listening};
    let expired = || Some(("0x00001001".to_owned(), 12));
    let why_expired = || Why::Expired { spi: "0x00001001".to_owned(), seconds_ago: 12 };
    let table = [
        // Fault               key manager  expired  health and reason
        (None, Absent, None, (Down, Why::NoState)),
        (None, Absent, expired(), (Down, why_expired())),
        (None, Listening, None, (Idle, Why::WaitsForPacket)),
        (None, Listening, expired(), (Down, why_expired())),
        (None, Asked, None, (Down, Why::AcquirePending)),
        (Some(SideFault::Expired), Absent, expired(), (Down, why_expired())),
        (Some(SideFault::Expired), Absent, None, (Down, Why::NoState)),
        (Some(SideFault::NumbersUsedUp), Listening, None, (Down, Why::NumbersUsedUp)),
        (Some(SideFault::WrongDirection), Absent, None, (Down, Why::WrongDirection)),
        (Some(SideFault::WrongDirection), Asked, None, (Down, Why::AcquirePending)),
    ];
    for (row, (fault, key_management, expired, (health, why))) in table.into_iter().enumerate() {
        let facts = both(missing(fault), carried(9, 50, 1));
        let facts = HealthFacts { key_management, expired, ..facts };
        assert_eq!(judge(&facts), (health, Some(why)), "row {row}");
    }
}

#[test]
fn missing_inbound_state_is_down_though_it_sends() {
    let facts = both(carried(9, 50, 1), missing(None));
    assert_eq!(judge(&facts), (Down, Some(Why::NoInboundState)));
    assert_eq!(judge(&both(None, missing(None))), (Down, Some(Why::NoInboundState)));
}

#[test]
fn optional_tunnel_without_state_leaves_plain() {
    let optional = |facts| HealthFacts { requirement: Requirement::Optional, ..facts };
    let says = (Idle, Some(Why::OptionalWithoutState));
    assert_eq!(judge(&optional(both(missing(None), unused()))), says);
    assert_eq!(judge(&optional(both(unused(), missing(None)))), says);
    assert!(Why::OptionalWithoutState.to_string().contains("PLAIN"));
}

#[test]
fn worst_health_sorts_first() {
    let mut all = [Up, Down, Idle, OneWay];
    all.sort_unstable();
    assert_eq!(all, [Down, OneWay, Idle, Up]);
    assert_eq!(all.map(Health::is_bad), [true, true, false, false]);
}

#[test]
fn reason_keeps_its_kind_in_json() {
    let reason = Why::NothingReceived { sent: 412, received: 0, seconds: 30 };
    let json = serde_json::to_string(&reason).unwrap();
    assert_eq!(json, r#"{"kind":"nothing-received","sent":412,"received":0,"seconds":30}"#);
    assert_eq!(serde_json::from_str::<Why>(&json).unwrap(), reason);
    assert_eq!(reason.to_string(), "sent 412 packets and received none in 30 s");
}
