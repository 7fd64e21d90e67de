use uxfrm_engine::{Database, Moment};
use uxfrm_io::rtnetlink;
use uxfrm_packet::Version;

use super::super::ruleset_state::MANY;
use super::*;
use crate::batch::apply;

/// The table for policies in the words of `ip xfrm`.
fn made(lines: &[&str]) -> Table {
    let directory = tempfile();
    let batch = directory.join("p.batch");
    std::fs::write(&batch, lines.join("\n")).unwrap();
    let mut database = Database::new(uxfrm_crypto::Backend::Auto, 1);
    apply::load(&mut database, &[batch], Moment(0)).unwrap();
    std::fs::remove_dir_all(directory).unwrap();
    let context = RulesetContext {
        tun: "tun9".to_owned(),
        mark: 7,
        ports: [500, 4500].into(),
        inline: Vec::new(),
        parts: ChainKind::ALL,
    };
    let spd = &database.snapshot().spd;
    let (layout, sets) = RulesetState::of(spd, ChainKind::ALL, 0, MANY);
    table(&context, spd, &layout, sets)
}

/// A directory of this test's thread.
fn tempfile() -> std::path::PathBuf {
    let name = format!("uxfrm-guard-{}-{:?}", std::process::id(), std::thread::current().id());
    let directory = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

fn chain<'a>(table: &'a Table, name: &str) -> &'a [Rule] {
    &table.chains.iter().find(|chain| chain.name == name).unwrap().rules
}

/// Verdict and counter of each rule.
fn outcomes(rules: &[Rule]) -> Vec<(RuleVerdict, Option<&'static str>)> {
    rules.iter().map(|rule| (rule.verdict, rule.counter)).collect()
}

/// What stands before policies: so many that pass, and among them ICMP, which is judged.
fn exempted(chain: &str, count: usize) -> Vec<(RuleVerdict, Option<&'static str>)> {
    let mut rules = vec![(RuleVerdict::Accept, None); count];
    if chain == "out" {
        rules.splice(3..3, [(RuleVerdict::Jump("errors"), None); 2]);
    }
    rules
}

const ESP_REQUIRED: &str = "tmpl src 10.9.0.2 dst 10.9.0.1 proto esp mode tunnel";
const ESP_OPTIONAL: &str = "tmpl src 10.9.0.2 dst 10.9.0.1 proto esp mode tunnel level use";
const TEMPLATE: Option<&str> = Some("in_unprotected");
const BLOCK: Option<&str> = Some("in_policy_block");
const NO_POLICY: Option<&str> = Some("in_default_block");

#[test]
fn ruleset_without_policies_accepts_all() {
    let table = made(&[]);
    assert_eq!(table.name, "uxfrm-tun9");
    assert_eq!(
        table.counters,
        [
            "in_unprotected",
            "in_policy_block",
            "in_held",
            "in_default_block",
            "out_unprotected",
            "out_quotes_protected",
            "out_policy_block",
            "out_held",
            "out_default_block",
        ]
    );
    for (name, next, exempt) in [
        ("in", RuleVerdict::Goto("in-sub"), 13),
        ("fwd", RuleVerdict::Goto("fwd-sub"), 1),
        ("out", RuleVerdict::Jump("out-main"), 8),
    ] {
        let (last, before) = chain(&table, name).split_last().unwrap();
        assert_eq!(last.verdict, next);
        assert_eq!(outcomes(before), exempted(name, exempt));
    }
    for (name, main) in [("in-sub", "in-main"), ("fwd-sub", "fwd-main")] {
        assert_eq!(outcomes(chain(&table, name)), [(RuleVerdict::Jump(main), None)]);
    }
    for name in ["in-main", "fwd-main", "out-main", "in-whole", "fwd-whole"] {
        assert!(chain(&table, name).is_empty(), "{name}");
    }
}

#[test]
fn ruleset_accepts_packets_from_tun() {
    let table = made(&["xfrm policy setdefault in block fwd block"]);
    for name in ["in", "fwd"] {
        assert_eq!(chain(&table, name)[0].conditions, [Condition::came_by("tun9")]);
        assert_eq!(chain(&table, name)[0].verdict, RuleVerdict::Accept);
    }
}

#[test]
fn ruleset_keeps_policy_order() {
    let table = made(&[
        &format!(
            "xfrm policy add src 10.2.0.0/16 dst 10.1.0.0/16 dir in priority 7 {ESP_REQUIRED}"
        ),
        "xfrm policy add src 10.2.0.0/24 dst 10.1.0.0/16 dir in priority 7 action block",
        "xfrm policy add src 10.2.0.9/32 dst 10.1.0.0/16 dir in priority 3",
        &format!(
            "xfrm policy add src 10.2.1.0/24 dst 10.1.0.0/16 dir in priority 9 {ESP_OPTIONAL}"
        ),
    ]);
    assert_eq!(
        outcomes(chain(&table, "in-main")),
        [
            (RuleVerdict::Accept, None),
            (RuleVerdict::Drop, TEMPLATE),
            (RuleVerdict::Drop, BLOCK),
            (RuleVerdict::Accept, None),
        ]
    );
    assert!(chain(&table, "fwd-main").is_empty());
}

#[test]
fn ruleset_sub_allow_continues_with_main() {
    let table = made(&[
        "xfrm policy add src 10.2.0.0/16 dst 10.1.0.0/16 dir fwd ptype sub",
        &format!(
            "xfrm policy add src 10.3.0.0/16 dst 10.1.0.0/16 dir fwd ptype sub {ESP_REQUIRED}"
        ),
        "xfrm policy add src 10.2.0.0/24 dst 10.1.0.0/16 dir fwd action block",
        "xfrm policy setdefault fwd block",
    ]);
    assert_eq!(
        outcomes(chain(&table, "fwd-sub")),
        [
            (RuleVerdict::Goto("fwd-main"), None),
            (RuleVerdict::Drop, TEMPLATE),
            (RuleVerdict::Jump("fwd-main"), None),
            (RuleVerdict::Drop, NO_POLICY),
        ]
    );
    assert_eq!(outcomes(chain(&table, "fwd-main")), [(RuleVerdict::Drop, BLOCK)]);
}

#[test]
fn ruleset_default_is_per_direction() {
    let table = made(&["xfrm policy setdefault in block"]);
    assert_eq!(chain(&table, "in-sub").last().map(|rule| rule.counter), Some(NO_POLICY));
    assert_eq!(
        chain(&table, "fwd-sub").last().map(|rule| rule.verdict),
        Some(RuleVerdict::Jump("fwd-main"))
    );
}

#[test]
fn ruleset_selector_becomes_conditions() {
    let table = made(&[
        "xfrm policy add src 10.2.0.5/16 dst 10.1.0.1/32 proto tcp dport 80 dir in mark 3 mask 0xf action block",
        "xfrm policy add src ::/0 dst fd01::/64 dir in action block",
    ]);
    let prefix =
        |text: &str, length| rtnetlink::RoutePrefix::new(text.parse().unwrap(), length).unwrap();
    let found: Vec<_> = chain(&table, "in-main").iter().map(|rule| &rule.conditions[..]).collect();
    assert_eq!(
        found,
        [
            &[
                Condition::version(Version::V4),
                Condition::mark(3, 0xf),
                Condition::source(prefix("10.2.0.0", 16)),
                Condition::destination(prefix("10.1.0.1", 32)),
                Condition::protocol(6),
                Condition::upper_pair(2, 80, 0xffff),
            ][..],
            &[Condition::version(Version::V6), Condition::destination(prefix("fd01::", 64))][..],
            &[Condition::version(Version::V6), Condition::last_segment(prefix("fd01::", 64))][..],
        ]
    );
}

/// A program may have a packet go by others, and a neighbour's may have any routing header.
#[test]
fn ruleset_checks_next_hop_and_final_address() {
    let prefix = rtnetlink::RoutePrefix::new("fd02::".parse().unwrap(), 16).unwrap();
    let table = made(&[
        "xfrm policy add src ::/0 dst fd02::/16 dir out action block",
        "xfrm policy add src ::/0 dst fd02::/16 dir fwd action block",
        "xfrm policy add src ::/0 dst ::/0 dir out priority 9 action block",
        "xfrm policy add src ::/0 dst fd02::/16 dir in action allow",
    ]);
    let conditions = |name| -> Vec<_> {
        chain(&table, name).iter().map(|rule| rule.conditions[1..].to_vec()).collect()
    };
    let mut out = conditions("out-main");
    out.sort_by_key(Vec::len);
    assert_eq!(
        out,
        [vec![], vec![Condition::destination(prefix)], vec![Condition::last_segment(prefix)],]
    );
    let passes = [Condition::no_routing_header(), Condition::destination(prefix)];
    assert_eq!(conditions("in-main"), [passes]);
    assert_eq!(conditions("fwd-main"), [[Condition::destination(prefix)]]);
}

#[test]
fn ruleset_ignores_xfrm_interface_policies() {
    let table =
        made(&["xfrm policy add src 10.2.0.0/16 dst 10.1.0.0/16 dir in if_id 5 action block"]);
    assert!(chain(&table, "in-main").is_empty());
}

#[test]
fn ruleset_checks_outgoing_packets_past_tun() {
    let table = made(&[
        &format!("xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 dir out {ESP_REQUIRED}"),
        "xfrm policy add src 10.1.0.0/16 dst 10.2.0.9/32 dir out priority 1",
        "xfrm policy add src 10.1.0.0/16 dst 10.3.0.0/16 dir out priority 2 tmpl proto esp mode transport level use",
        "xfrm policy add src 10.1.0.0/16 dst 10.4.0.0/16 dir out priority 3 action block",
        "xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 dir out ptype sub",
        "xfrm policy setdefault out block",
    ]);
    assert_eq!(
        outcomes(chain(&table, "out-main")),
        [
            (RuleVerdict::Drop, Some("out_unprotected")),
            (RuleVerdict::Accept, None),
            (RuleVerdict::Accept, None),
            (RuleVerdict::Drop, Some("out_policy_block")),
        ]
    );
    let out = chain(&table, "out");
    let exempt: Vec<_> = out[..3].iter().map(|rule| &rule.conditions[..]).collect();
    let ours = Condition::mark(7, u32::MAX);
    assert_eq!(exempt, [[ours], [Condition::leaves_by("tun9")], [Condition::leaves_by("lo")]]);
    assert_eq!(
        outcomes(&out[10..]),
        [
            (RuleVerdict::Goto("out-main"), None),
            (RuleVerdict::Jump("out-main"), None),
            (RuleVerdict::Drop, Some("out_default_block")),
        ]
    );
}

/// A line for a host behind `10.2`, and what is done with its packets.
fn host(serial: usize, direction: &str, action: &str) -> String {
    let [.., high, low] = serial.to_be_bytes();
    format!("xfrm policy add src 10.1.0.0/16 dst 10.2.{high}.{low}/32 dir {direction} {action}")
}

fn made_of(lines: &[String]) -> Table {
    made(&lines.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn many_similar_policies_share_rule_and_set() {
    let lines: Vec<_> = (0..1000).map(|serial| host(serial, "out", "action block")).collect();
    let table = made_of(&lines);
    let [rule] = chain(&table, "out-main") else { panic!("one rule") };
    assert_eq!(rule.conditions, [Condition::version(Version::V4)]);
    assert_eq!((rule.verdict, rule.counter), (RuleVerdict::Drop, Some("out_policy_block")));
    let [set, _for_the_way] = &table.sets[..] else { panic!("one set for each") };
    assert_eq!(rule.set_lookup.as_ref().unwrap().set, set.id);
    let mut keys: Vec<_> = set.keys.iter().collect();
    keys.sort_unstable();
    assert_eq!(keys.len(), 1000);
    assert_eq!(keys[1], [10, 1, 0, 0, 10, 2, 0, 1]);
}

#[test]
fn few_policies_have_own_rules() {
    for (count, rules, sets) in [(4, 4, 0), (5, 1, 1)] {
        let lines: Vec<_> = (0..count).map(|serial| host(serial, "fwd", "action block")).collect();
        let table = made_of(&lines);
        assert_eq!((chain(&table, "fwd-main").len(), table.sets.len()), (rules, sets));
    }
}

#[test]
fn other_verdict_separates_neighbouring_groups() {
    let action = |serial| if serial == 500 { "action allow" } else { "action block" };
    let lines: Vec<_> = (0..1000).map(|serial| host(serial, "fwd", action(serial))).collect();
    let table = made_of(&lines);
    let drop = (RuleVerdict::Drop, BLOCK);
    assert_eq!(outcomes(chain(&table, "fwd-main")), [drop, (RuleVerdict::Accept, None), drop]);
    let sizes: Vec<_> = table.sets.iter().map(|set| set.keys.iter().len()).collect();
    assert_eq!(sizes, [500, 499]);
}

/// Neighbours that do otherwise share nothing: each has a rule, and a packet would walk along all
/// of them.
#[test]
fn outgoing_rules_over_limit_are_left_out() {
    let action = |serial: usize| ["action block", "action allow"][serial % 2];
    for (count, expected) in [(MANY, MANY), (MANY + 1, 0)] {
        let lines = (0..count).map(|serial| host(serial, "out", action(serial)));
        let lines: Vec<_> = lines.chain([host(0, "in", "action block")]).collect();
        let table = made_of(&lines);
        assert_eq!(chain(&table, "out-main").len(), expected);
        assert_eq!(chain(&table, "in-main").len(), 1);
    }
}

#[test]
fn closed_ruleset_drops_all_but_exempt() {
    let context = RulesetContext {
        tun: "tun9".to_owned(),
        mark: 7,
        ports: [500, 4500].into(),
        inline: Vec::new(),
        parts: ChainKind::ALL,
    };
    let table = closed(&context);
    for (name, next, exempt) in [
        ("in", (RuleVerdict::Goto("in-sub"), None), 13),
        ("fwd", (RuleVerdict::Goto("fwd-sub"), None), 1),
        ("out", (RuleVerdict::Drop, Some("out_unprotected")), 8),
    ] {
        let (last, before) = outcomes(chain(&table, name))
            .split_last()
            .map_or_else(|| panic!("no rule"), |(last, before)| (*last, before.to_vec()));
        assert_eq!(last, next);
        assert_eq!(before, exempted(name, exempt));
    }
    for name in ["in-sub", "fwd-sub"] {
        assert_eq!(outcomes(chain(&table, name)), [(RuleVerdict::Drop, TEMPLATE)]);
    }
}
