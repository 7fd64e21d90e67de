//! ICMP errors: dropped if the policies protect what they quote, and else only where quotes do not
//! tell enough.

use std::net::Ipv6Addr;

use proptest::prelude::*;
use uxfrm_engine::{Action, DefaultActions, FlowKey, IfId, PolicyEntry, Prefix, Spd};

use super::{
    gateway::Gateway,
    random::{Plain, deeds, packets, policies, requests},
    *,
};

const PROTECTED: (RuleVerdict, Option<&str>) = (RuleVerdict::Drop, Some("out_quotes_protected"));
const PASSES: (RuleVerdict, Option<&str>) = (RuleVerdict::Accept, None);
const DIRECTIONS: [Direction; 2] = [Direction::In, Direction::Forward];

/// Whether quotes tell all that a policy asks for.
fn is_told(policy: &Policy) -> bool {
    policy.mark.mask == 0 && policy.selector.ifindex == 0
}

fn is_for_all(policy: &Policy) -> bool {
    let selector = &policy.selector;
    [selector.source, selector.destination].iter().all(|prefix| prefix.prefix_len() == 0)
}

/// Whether the first policy that speaks of a flow protects it. `speaks` says which do.
fn protects(
    spd: &Spd,
    direction: Direction,
    flow: &FlowKey,
    speaks: impl Fn(&PolicyEntry, &Policy) -> bool,
) -> Option<Policy> {
    let first = |kind| {
        let of_kind = |entry: &&std::sync::Arc<PolicyEntry>| {
            (entry.direction(), entry.kind()) == (direction, kind)
        };
        let entries = spd.iter().filter(of_kind).filter(|entry| speaks(entry, &entry.policy()));
        let entries = entries.filter(|entry| entry.policy().if_id == IfId(0));
        entries.filter(|entry| matches_told(entry, flow)).min_by_key(|entry| entry.precedence())
    };
    let is_protecting = |entry: &std::sync::Arc<PolicyEntry>| {
        conditions::refusal(&entry.policy()) == Some(DropReason::InUnprotected)
    };
    let sub = first(PolicyKind::Sub);
    let deciding = sub.filter(|entry| is_protecting(entry)).or_else(|| first(PolicyKind::Main));
    deciding.filter(|entry| is_protecting(entry)).map(|entry| entry.policy())
}

/// Whether a policy is for a flow, of which mark and device are not known.
fn matches_told(entry: &PolicyEntry, flow: &FlowKey) -> bool {
    let policy = entry.policy();
    let flow = FlowKey { mark: policy.mark.value, ifindex: policy.selector.ifindex, ..*flow };
    entry.matches(&flow)
}

/// What is to become of an error whose quote tells all that a packet has.
fn expected(spd: &Spd, flow: &FlowKey) -> (RuleVerdict, Option<&'static str>) {
    let speaks = |_entry: &PolicyEntry, policy: &Policy| {
        let is_of_unmarked = policy.mark.value & policy.mark.mask == 0;
        match conditions::refusal(policy) {
            // Errors have no mark here.
            Some(DropReason::InUnprotected) if is_for_all(policy) => {
                policy.selector.ifindex == 0 && is_of_unmarked
            }
            Some(DropReason::InUnprotected) => true,
            None => is_told(policy),
            Some(_) => false,
        }
    };
    let is_protected = |direction| protects(spd, direction, flow, speaks).is_some();
    if DIRECTIONS.into_iter().any(is_protected) { PROTECTED } else { PASSES }
}

/// Whether a packet of this flow came in ESP if it came, and errors about it are known for it.
fn came_protected(spd: &Spd, flow: &FlowKey) -> bool {
    let meets = |entry: &PolicyEntry, _policy: &Policy| entry.matches(flow);
    let is_known = |policy: &Policy| is_told(policy) || !is_for_all(policy);
    DIRECTIONS.into_iter().any(|direction| {
        protects(spd, direction, flow, meets).is_some_and(|policy| is_known(&policy))
    })
}

/// The packet where its ports are elsewhere or its fragments hide them, if it is not routed.
fn hidden(whole: &Plain) -> Vec<Plain> {
    let mut all = Vec::new();
    let mut with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut packet = whole.clone();
        change(&mut packet.bytes);
        all.push(packet);
    };
    match (whole.bytes[0] >> 4, whole.bytes[6]) {
        (4, _) => {
            with(&|bytes| bytes[7] = 9);
            with(&|bytes| {
                bytes[0] = 0x46;
                bytes[3] += 4;
                bytes.splice(20..20, [1; 4]);
            });
        }
        (_, 43) => {}
        (_, next) => {
            for header in [[next, 0, 0, 8 << 3, 0, 0, 0, 1], [next, 0, 0, 1, 0, 0, 0, 1]] {
                with(&move |bytes| {
                    bytes[6] = 44;
                    bytes[5] += 8;
                    bytes.splice(40..40, header);
                });
            }
            with(&|bytes| {
                bytes[6] = 60;
                bytes[5] += 8;
                bytes.splice(40..40, [next, 0, 1, 4, 0, 0, 0, 0]);
            });
        }
    }
    all
}

fn judged(gateway: &Gateway, chain: &str, error: &Plain) -> (RuleVerdict, Option<&'static str>) {
    gateway.guard.filter.replica.judge(chain, &error.sample(ChainKind::QuotedIn))
}

fn check(gateway: &Gateway) -> Result<(), TestCaseError> {
    let spd = &gateway.database.current().spd;
    for packet in &gateway.guard.filter.packets {
        let flow = packet.flow(ChainKind::In);
        let is_plain = packet.bytes[0] >> 4 == 4 || packet.bytes[6] != 43;
        let verdict = judged(gateway, "quoted", &packet.told());
        if is_plain {
            prop_assert_eq!(verdict, expected(spd, &flow), "{:?}", packet);
        }
        if !came_protected(spd, &flow) {
            continue;
        }
        prop_assert_eq!(verdict, PROTECTED, "{:?}", packet);
        for packet in hidden(packet) {
            prop_assert_eq!(judged(gateway, "quoted", &packet.told()), PROTECTED, "{:?}", packet);
        }
        let is_forwarded = protects(spd, Direction::Forward, &flow, |entry, policy| {
            entry.matches(&flow) && (is_told(policy) || !is_for_all(policy))
        });
        if packet.bytes[0] >> 4 == 6 && is_forwarded.is_some() && came_protected(spd, &flow) {
            let redirect = packet.redirect();
            prop_assert_eq!(judged(gateway, "redirected", &redirect), PROTECTED, "{:?}", packet);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever policies come and go: no error passes about what they protect, and of those whose
    /// quotes tell enough no other is dropped.
    #[test]
    fn errors_follow_policies_of_what_they_quote(
        first in prop::collection::vec(policies(), 0..60),
        rounds in prop::collection::vec(prop::collection::vec(requests(), 1..5), 1..15),
        packets in prop::collection::vec(packets(), 24),
        inbound in deeds(),
    ) {
        let defaults = DefaultActions { inbound: inbound.0, ..DefaultActions::default() };
        let mut gateway = Gateway::that_guards(first, defaults, packets);
        check(&gateway)?;
        for requests in rounds {
            gateway.handle_together(requests);
            check(&gateway)?;
        }
    }
}

fn required(serial: usize, direction: Direction) -> Policy {
    let template = Template {
        source: Ipv4Addr::new(10, 9, 0, 2).into(),
        destination: Ipv4Addr::new(10, 9, 0, 1).into(),
        protocol: SaProtocol::Esp,
        spi: Spi(0),
        mode: Mode::Tunnel,
        reqid: Reqid(0),
        level: TemplateLevel::Required,
    };
    Policy { direction, templates: vec![template], ..tunnel(serial, Action::Allow) }
}

fn from_tunnel(host: u8) -> Plain {
    let ends = [Ipv4Addr::new(10, 1, 0, 1), Ipv4Addr::new(10, 2, 0, host)];
    let [source, destination] = ends.map(Into::into);
    Plain { bytes: packet(source, destination, 17, &[0; 8]), mark: 0, came_by: 0 }
}

fn verdicts(policies: Vec<Policy>) -> (RuleVerdict, Option<&'static str>) {
    let gateway = Gateway::that_guards(policies, DefaultActions::default(), Vec::new());
    judged(&gateway, "out", &from_tunnel(7).told())
}

/// Also behind what leaves by policies `out`: they are asked when quotes let pass.
#[test]
fn each_direction_is_asked_and_then_out() {
    for direction in DIRECTIONS {
        assert_eq!(verdicts(vec![required(7, direction)]), PROTECTED, "{direction:?}");
    }
    assert_eq!(verdicts(vec![required(8, Direction::Forward)]), PASSES);
    assert_eq!(verdicts(vec![required(7, Direction::Out)]), PASSES);
    let selector = Selector::any(Family::V4);
    let blocks = Policy { selector, ..tunnel(0, Action::Block) };
    let allows = Policy { direction: Direction::In, ..tunnel(7, Action::Allow) };
    for also in [None, Some(allows)] {
        let policies = also.into_iter().chain([blocks.clone()]).collect();
        assert_eq!(verdicts(policies), (RuleVerdict::Drop, Some("out_policy_block")));
    }
}

/// What was protected by the last run may still be told of; what is blocked never came out of ESP.
#[test]
fn held_policies_protect_and_blocking_ones_do_not() {
    let blocks = Policy { direction: Direction::Forward, ..tunnel(7, Action::Block) };
    assert_eq!(verdicts(vec![blocks.clone()]), PASSES);
    let held = Policy { flags: PolicyFlags::HELD, ..blocks };
    assert_eq!(verdicts(vec![held]), PROTECTED);
}

/// As strongSwan's `bypass-lan` beside a tunnel for all addresses.
#[test]
fn policy_that_lets_pass_before_one_for_all_lets_errors_pass() {
    let selector =
        Selector { source: Prefix::any(Family::V4), ..required(7, Direction::In).selector };
    let for_all = Policy { selector, priority: Priority(9), ..required(7, Direction::Forward) };
    assert_eq!(verdicts(vec![for_all.clone()]), PROTECTED);
    let allows = Policy { direction: Direction::Forward, ..tunnel(7, Action::Allow) };
    assert_eq!(verdicts(vec![for_all, allows]), PASSES);
}

/// A mark is not told. Where it alone tells policies from all traffic, errors are asked for it.
#[test]
fn mark_is_asked_of_errors_where_policy_is_for_all_addresses() {
    let mark = Mark { value: 5, mask: 0xff };
    let of_mark = Policy { mark, ..required(7, Direction::Forward) };
    assert_eq!(verdicts(vec![of_mark.clone()]), PROTECTED);
    let for_all = Policy { selector: Selector::any(Family::V4), ..of_mark };
    let gateway = Gateway::that_guards(vec![for_all], DefaultActions::default(), Vec::new());
    let error = from_tunnel(7).told();
    assert_eq!(judged(&gateway, "out", &error), PASSES);
    assert_eq!(judged(&gateway, "out", &Plain { mark: 0x105, ..error }), PROTECTED);
}

/// Echo requests and answers quote nothing, whatever they carry.
#[test]
fn only_errors_are_asked_what_they_quote() {
    let gateway = Gateway::that_guards(
        vec![required(7, Direction::Forward)],
        DefaultActions::default(),
        Vec::new(),
    );
    let mut error = from_tunnel(7).told();
    for (kind, verdict) in
        [(0, PASSES), (8, PASSES), (13, PASSES), (3, PROTECTED), (5, PROTECTED), (12, PROTECTED)]
    {
        error.bytes[20] = kind;
        assert_eq!(judged(&gateway, "out", &error), verdict, "{kind}");
    }
    // Cut before the addresses.
    error.bytes[20] = 11;
    error.bytes.truncate(20 + 8 + 16);
    assert_eq!(judged(&gateway, "out", &error), PASSES);
}

#[test]
fn redirects_of_ipv6_are_judged_before_they_pass_as_discovery() {
    let ends = |host: u16| Ipv6Addr::new(0xfd02, 0, 0, 0, 0, 0, 0, host);
    let bytes = packet(ends(1).into(), ends(2).into(), 17, &[0; 8]);
    let redirect = Plain { bytes, mark: 0, came_by: 0 }.redirect();
    for (host, verdict) in [(2, PROTECTED), (3, PASSES)] {
        let destination = Prefix::host(ends(host).into());
        let selector = Selector { destination, ..Selector::any(Family::V6) };
        let policy = Policy { selector, ..required(0, Direction::Forward) };
        let gateway = Gateway::that_guards(vec![policy], DefaultActions::default(), Vec::new());
        assert_eq!(judged(&gateway, "out", &redirect), verdict);
    }
}

/// A hundred thousand tunnels are a rule for each direction.
#[test]
fn errors_about_many_tunnels_are_looked_up_in_sets() {
    let policies = (0..600).map(|serial| required(serial, Direction::Forward)).collect();
    let gateway = Gateway::that_guards(policies, DefaultActions::default(), Vec::new());
    let replica = &gateway.guard.filter.replica;
    assert_eq!((replica.rules_of("fwd-quoted"), replica.sizes()), (1, (2, 1200)));
    assert_eq!(replica.rules_of("fwd-redirected"), 0, "none of IPv6");
    assert_eq!(judged(&gateway, "out", &from_tunnel(77).told()), PROTECTED);
}
