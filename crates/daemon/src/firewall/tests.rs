//! The guard beside policies that come and go, with a replica of the kernel's table, against what
//! the policies themselves say.

mod changes;
mod divert;
mod filters;
mod fragments;
mod gateway;
mod quotes;
mod random;

use std::{net::Ipv4Addr, rc::Rc};

use uxfrm_crypto::Backend;
use uxfrm_engine::{
    Action, Database, DefaultActions, Direction, Family, IfId, LifetimeLimits, Mark, Mode, Moment,
    Policy, PolicyFlags, PolicyIndex, PolicyKind, Prefix, Priority, Reqid, SaProtocol, Selector,
    Spi, Template, TemplateLevel,
};
use uxfrm_io::nftables::RuleVerdict;

use super::*;
use filters::Narrow;
use gateway::Gateway;
use random::{Plain, Request, packet};

const CHAINS: [(ChainKind, &str); 4] = [
    (ChainKind::In, "in"),
    (ChainKind::Forward, "fwd"),
    (ChainKind::Out, "out"),
    (ChainKind::Way, "way"),
];

/// Nothing passes until the policies are there, also what they will let pass.
#[test]
fn firewall_installed_in_pieces_drops_until_complete() {
    let to = |host| {
        let [source, destination] = [Ipv4Addr::new(10, 1, 0, 1), Ipv4Addr::new(10, 2, 0, host)];
        packet(source.into(), destination.into(), 17, &[0; 8])
    };
    for (host, last) in [(1, RuleVerdict::Drop), (200, RuleVerdict::Accept)] {
        let database = blocking();
        let filter = Narrow { packet: to(host), ..Narrow::default() };
        let guard = Firewall::install(filter, context(), &database.current().spd).unwrap();
        assert_eq!(*guard.filter.judged.borrow(), [RuleVerdict::Drop, last]);
    }
}

/// More rules than fit into a transaction: the gateway does not start. It cuts nobody off then, but
/// what an earlier one kept out stays out.
#[test]
fn firewall_incomplete_is_removed_unless_replacing() {
    let database = blocking();
    let spd = &database.current().spd;
    let to = [Ipv4Addr::new(10, 1, 0, 1), Ipv4Addr::new(10, 2, 0, 200)];
    for (was_there, seen) in
        [(false, &[RuleVerdict::Drop, RuleVerdict::Accept][..]), (true, &[RuleVerdict::Drop][..])]
    {
        let packet = packet(to[0].into(), to[1].into(), 17, &[0; 8]);
        let mut filter = Narrow { packet, too_many: Some(1), ..Narrow::default() };
        if was_there {
            filter.replica.install(&rules::closed(&context())).unwrap();
        }
        let judged = Rc::clone(&filter.judged);
        let error = Firewall::install(filter, context(), spd).unwrap_err();
        assert!(matches!(error, Error::TooLong { .. }), "{error}");
        assert_eq!(*judged.borrow(), seen, "{was_there}");
    }
}

/// States come and go far more often than policies do.
#[test]
fn firewall_without_policy_change_sends_nothing() {
    let mut gateway = Gateway::that_guards(Vec::new(), DefaultActions::default(), Vec::new());
    gateway.guard.filter.room = Some(0);
    gateway.carry_out(vec![Request::Add(vec![tunnel(1, Action::Block)])]);
    let changes = gateway.database.take_changes();
    let spd = &gateway.database.current().spd;
    gateway.guard.change(&changes.policies, spd).unwrap_err();
    gateway.guard.change(&[], spd).unwrap();
    assert_eq!(gateway.guard.filter.replica.replaced, 1, "not even after an error");
    gateway.guard.follow(spd).unwrap();
    assert_eq!(gateway.guard.filter.replica.replaced, 2);
    gateway.check().unwrap();
}

/// A hundred tunnels whose packets are not to pass.
fn blocking() -> Database {
    let mut database = Database::new(Backend::Auto, 1);
    database.apply(Moment(0), |change| {
        for serial in 0..100 {
            change.add_policy(tunnel(serial, Action::Block)).unwrap();
        }
    });
    database
}

fn context() -> RulesetContext {
    RulesetContext {
        tun: "tun9".to_owned(),
        mark: 7,
        ports: [500].into(),
        inline: Vec::new(),
        parts: ChainKind::ALL,
    }
}

fn tunnel(serial: usize, action: Action) -> Policy {
    let [.., high, low] = serial.to_be_bytes();
    let selector = Selector {
        source: Prefix::new(Ipv4Addr::new(10, 1, 0, 0).into(), 16).unwrap(),
        destination: Prefix::host(Ipv4Addr::new(10, 2, high, low).into()),
        ..Selector::any(Family::V4)
    };
    Policy {
        direction: Direction::Out,
        kind: PolicyKind::Main,
        index: PolicyIndex(0),
        selector,
        priority: Priority(5),
        action,
        templates: Vec::new(),
        mark: Mark { value: 0, mask: 0 },
        if_id: IfId(0),
        flags: PolicyFlags::empty(),
        limits: LifetimeLimits::default(),
        offload: None,
    }
}

#[test]
fn similar_policies_change_set_keys_only() {
    let mut gateway = Gateway::that_guards(Vec::new(), DefaultActions::default(), Vec::new());
    gateway.one_by_one((0..4).map(|serial| tunnel(serial, Action::Block)));
    assert_eq!(gateway.sizes(), (4, 0, 0, 1), "a few have rules");
    gateway.one_by_one((4..600).map(|serial| tunnel(serial, Action::Block)));
    assert_eq!(gateway.sizes(), (1, 1, 600, 1));
    gateway.handle(Request::Remove(0, 599));
    assert_eq!(gateway.sizes(), (1, 1, 1, 1));
    gateway.handle(Request::Remove(0, 1));
    assert_eq!(gateway.sizes(), (0, 0, 0, 1));
}

/// Their names differ, by bits behind the prefix; what they ask of packets does not.
#[test]
fn shared_set_key_goes_with_last_policy() {
    let to = |host| Plain {
        bytes: packet(
            Ipv4Addr::new(10, 1, 0, 1).into(),
            Ipv4Addr::new(10, 2, 0, host).into(),
            17,
            &[0; 8],
        ),
        mark: 0,
        came_by: 0,
    };
    let mut gateway = Gateway::that_guards(Vec::new(), DefaultActions::default(), vec![to(0)]);
    gateway.one_by_one((0..10).map(|serial| tunnel(serial, Action::Block)));
    let first = tunnel(0, Action::Block);
    let source = Prefix::new(Ipv4Addr::new(10, 1, 2, 3).into(), 16).unwrap();
    let selector = Selector { source, ..first.selector };
    gateway.one_by_one(std::iter::once(Policy { selector, ..first }));
    assert_eq!(gateway.sizes(), (1, 1, 10, 1));
    gateway.handle(Request::Remove(0, 1));
    assert_eq!(gateway.sizes(), (1, 1, 10, 1));
    gateway.check().unwrap();
    gateway.handle(Request::Remove(9, 1));
    assert_eq!(gateway.sizes(), (1, 1, 9, 1));
    gateway.check().unwrap();
}

#[test]
fn policy_with_other_verdict_splits_run() {
    let mut gateway = Gateway::that_guards(Vec::new(), DefaultActions::default(), Vec::new());
    gateway.one_by_one((0..10).map(|serial| tunnel(serial, Action::Block)));
    gateway.one_by_one((10..20).map(|serial| tunnel(serial, Action::Allow)));
    gateway.one_by_one((20..30).map(|serial| tunnel(serial, Action::Block)));
    assert_eq!(gateway.sizes(), (3, 3, 30, 1));
    let first = Policy { priority: Priority(1), ..tunnel(30, Action::Allow) };
    gateway.one_by_one(std::iter::once(first));
    assert_eq!(gateway.sizes(), (4, 3, 30, 1), "before all others");
    let (action, templates) = (Action::Allow, Vec::new());
    gateway.handle(Request::Update(5, action, templates, Priority(5)));
    let (rules, sets, keys, replaced) = gateway.sizes();
    assert_eq!(replaced, 1, "it parts the first ten");
    assert_eq!((rules, sets, keys), (1 + 1 + 1 + 4 + 1 + 1, 3, 25));
}

/// What stood between two runs goes, again and again: they do not stay apart for ever.
#[test]
fn many_equal_runs_are_joined() {
    let action = |serial| [Action::Block, Action::Allow][serial % 2];
    let mut gateway = Gateway::that_guards(Vec::new(), DefaultActions::default(), Vec::new());
    gateway.one_by_one((0..80).map(|serial| tunnel(serial, action(serial))));
    assert_eq!(gateway.sizes(), (80, 0, 0, 1));
    let (action, templates) = (Action::Block, Vec::<Template>::new());
    for number in (1..80).step_by(2) {
        gateway.handle(Request::Update(number, action, templates.clone(), Priority(9)));
    }
    assert!(gateway.sizes().0 < 40, "{:?}", gateway.sizes());
    assert_eq!(gateway.sizes().3, 2);
}

/// A packet goes along rules in their order, also those of one group.
#[test]
fn new_run_precedes_rules_of_next_run() {
    let to = Plain {
        bytes: packet(
            Ipv4Addr::new(10, 1, 0, 1).into(),
            Ipv4Addr::new(10, 2, 0, 0).into(),
            17,
            &[0; 8],
        ),
        mark: 0,
        came_by: 0,
    };
    let mut gateway = Gateway::that_guards(Vec::new(), DefaultActions::default(), vec![to]);
    gateway.one_by_one((0..3).map(|serial| tunnel(serial, Action::Block)));
    gateway.check().unwrap();
    let first = Policy { priority: Priority(1), ..tunnel(0, Action::Allow) };
    let selector = Selector { destination: Prefix::any(Family::V4), ..first.selector };
    gateway.one_by_one(std::iter::once(Policy { selector, ..first }));
    gateway.check().unwrap();
    assert_eq!(gateway.sizes(), (4, 0, 0, 1));
}

#[test]
fn combined_changes_keep_table() {
    let mut gateway = Gateway::that_guards(Vec::new(), DefaultActions::default(), Vec::new());
    let priority = |serial, priority, action| Policy {
        priority: Priority(priority),
        ..tunnel(serial, action)
    };
    gateway.one_by_one((0..4).map(|serial| tunnel(serial, Action::Block)));
    let more = (4..8).map(|serial| tunnel(serial, Action::Block)).collect();
    gateway.handle_together(vec![Request::Remove(0, 1), Request::Add(more)]);
    assert_eq!(gateway.sizes(), (1, 1, 7, 1), "the set never had what went with the rules");
    gateway.handle(Request::Remove(0, 7));
    gateway.one_by_one([5, 9].into_iter().map(|at| priority(at as usize, at, Action::Block)));
    let amid = vec![priority(7, 7, Action::Allow)];
    gateway.handle_together(vec![Request::Remove(0, 2), Request::Add(amid)]);
    assert_eq!(gateway.sizes(), (1, 0, 0, 1), "in the midst of a run that has gone");
}

/// `nft flush ruleset`, on a kernel where the table is everybody's.
#[test]
fn removed_firewall_is_restored_in_pieces() {
    let database = blocking();
    let spd = &database.current().spd;
    let [source, to] = [Ipv4Addr::new(10, 1, 0, 1), Ipv4Addr::new(10, 2, 0, 1)];
    let packet = packet(source.into(), to.into(), 17, &[0; 8]);
    let filter = Narrow { packet, ..Narrow::default() };
    let mut guard = Firewall::install(filter, context(), spd).unwrap();
    let name = guard.name.clone();
    guard.filter.remove(&name).unwrap();
    guard.follow(spd).unwrap();
    let judged = guard.filter.judged.borrow();
    assert_eq!(judged[2..], [RuleVerdict::Accept, RuleVerdict::Drop, RuleVerdict::Drop]);
}

/// They would be joined by a new table.
#[test]
fn equal_runs_stay_apart_without_room() {
    let action = |serial| [Action::Block, Action::Allow][serial % 2];
    let mut gateway = Gateway::that_guards(Vec::new(), DefaultActions::default(), Vec::new());
    gateway.one_by_one((0..80).map(|serial| tunnel(serial, action(serial))));
    gateway.guard.filter.is_full = true;
    for number in (1..80).step_by(2) {
        gateway.handle(Request::Update(number, Action::Block, Vec::new(), Priority(9)));
    }
    assert_eq!(gateway.sizes().3, 1);
    gateway.guard.filter.is_full = false;
    gateway.handle(Request::Remove(0, PUT_OFF));
    assert_eq!(gateway.sizes().3, 2);
    assert!(gateway.sizes().0 < 40, "{:?}", gateway.sizes());
}

/// Neighbours that do otherwise share nothing. Those `out` are left to the routes until they need
/// clearly fewer rules: each time, all is told anew.
#[test]
fn outgoing_rules_return_below_limit() {
    let action = |serial| [Action::Block, Action::Allow][serial % 2];
    let many = (0..ruleset_state::MANY).map(|serial| tunnel(serial, action(serial)));
    let mut gateway = Gateway::that_guards(many.collect(), DefaultActions::default(), Vec::new());
    assert_eq!(gateway.sizes(), (ruleset_state::MANY, 0, 0, 1));
    gateway.handle(Request::Add(vec![tunnel(ruleset_state::MANY, Action::Block)]));
    assert_eq!(gateway.sizes(), (0, 0, 0, 2));
    assert!(gateway.guard.leaves_out);
    for serial in ruleset_state::MANY + 1..ruleset_state::MANY + 9 {
        gateway.handle(Request::Remove(0, 1));
        gateway.handle(Request::Remove(0, 1));
        gateway.handle(Request::Add(vec![tunnel(serial, action(serial))]));
        assert_eq!(gateway.sizes(), (0, 0, 0, 2), "to and fro over the edge");
    }
    gateway.handle(Request::Remove(0, ruleset_state::MANY - 8 - ruleset_state::FEWER));
    assert_eq!(gateway.sizes(), (0, 0, 0, 2));
    gateway.handle(Request::Remove(0, 1));
    assert_eq!(gateway.sizes(), (ruleset_state::FEWER, 0, 0, 3));
    assert!(!gateway.guard.leaves_out);
}

/// They would have none any more, by a new table, which the kernel does not take.
#[test]
fn outgoing_rules_are_not_retried_each_change() {
    let action = |serial| [Action::Block, Action::Allow][serial % 2];
    let many = (0..ruleset_state::MANY).map(|serial| tunnel(serial, action(serial)));
    let mut gateway = Gateway::that_guards(many.collect(), DefaultActions::default(), Vec::new());
    gateway.guard.filter.refuses_tables = Some(12);
    for serial in ruleset_state::MANY..ruleset_state::MANY + 20 {
        gateway.handle(Request::Add(vec![tunnel(serial, action(serial))]));
    }
    assert_eq!(
        gateway.sizes(),
        (ruleset_state::MANY + 20, 0, 0, 1),
        "they are followed nevertheless"
    );
    assert_eq!(gateway.guard.filter.refused, 1, "asked for once");
    gateway.guard.filter.refuses_tables = None;
    gateway.handle(Request::Remove(0, ruleset_state::MANY / 8));
    gateway.handle(Request::Remove(0, 1));
    assert_eq!(gateway.sizes().3, 1, "they are few enough");
}

/// What stands before it, or behind, is moved out of its way: whichever is less.
#[test]
fn split_run_moves_smaller_part() {
    for (at, moved) in [(100_u32, 100), (900, 100)] {
        let to = |host: u32| Plain {
            bytes: packet(
                Ipv4Addr::new(10, 1, 0, 1).into(),
                Ipv4Addr::from_bits(0x0a02_0000 + host).into(),
                17,
                &[0; 8],
            ),
            mark: 0,
            came_by: 0,
        };
        let packets = [0, at - 1, at, 999, 1000].map(to).into();
        let of = |serial: u32| Policy {
            priority: Priority(2 * serial),
            ..tunnel(serial as usize, Action::Block)
        };
        let mut gateway =
            Gateway::that_guards((0..1000).map(of).collect(), DefaultActions::default(), packets);
        gateway.guard.filter.seen.clear();
        let amid = Policy { priority: Priority(2 * at - 1), ..tunnel(0, Action::Allow) };
        let selector = Selector { destination: Prefix::any(Family::V4), ..amid.selector };
        gateway.one_by_one(std::iter::once(Policy { selector, ..amid }));
        gateway.check().unwrap();
        assert_eq!(gateway.sizes(), (3, 2, 1000, 1));
        let seen = gateway.guard.filter.seen.len();
        assert_eq!(
            seen,
            1 + 2 * moved + 1 + 1,
            "a set, keys that come and go, its rule; the policy's"
        );
    }
}

/// It let pass from then on, as those before it, and left its place to them.
#[test]
fn split_run_excludes_moved_first_policy() {
    let of = |(serial, priority): (usize, u32)| Policy {
        priority: Priority(priority),
        ..tunnel(serial, Action::Block)
    };
    let blocks = [(1, 5), (2, 5), (3, 7), (4, 7), (5, 7)].map(of);
    let first = Policy { action: Action::Allow, ..of((0, 1)) };
    let policies = std::iter::once(first).chain(blocks).collect();
    let mut gateway = Gateway::that_guards(policies, DefaultActions::default(), Vec::new());
    gateway.handle(Request::Update(1, Action::Allow, Vec::new(), Priority(5)));
    assert_eq!(gateway.sizes(), (3, 1, 4, 1));
    gateway.one_by_one(std::iter::once(Policy { action: Action::Allow, ..of((6, 6)) }));
    gateway.check().unwrap();
    assert_eq!(gateway.sizes().3, 1);
}
