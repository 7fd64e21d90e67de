//! Random changes: what comes of them, and what passes meanwhile.

use proptest::prelude::*;
use uxfrm_engine::{Action, DefaultActions};

use super::{
    gateway::Gateway,
    random::{Request, deeds, packets, policies, requests, single_requests},
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever policies come and go, the table does what the first policy that fits says; and
    /// while it changes, no packet passes that would neither before nor afterwards.
    #[test]
    fn firewall_verdict_equals_first_policy(
        first in prop::collection::vec(policies(), 0..60),
        requests in prop::collection::vec(requests(), 1..25),
        packets in prop::collection::vec(packets(), 24),
        inbound in deeds(),
        outbound in deeds(),
    ) {
        let defaults = DefaultActions { inbound: inbound.0, forward: Action::Allow, outbound: outbound.0 };
        let mut gateway = Gateway::new(first, defaults, packets);
        gateway.check()?;
        for request in requests {
            let before = gateway.guard.filter.passing();
            gateway.guard.filter.seen.clear();
            gateway.handle(request);
            gateway.check()?;
            let after = gateway.guard.filter.passing();
            for seen in &gateway.guard.filter.seen {
                for ((seen, before), after) in seen.iter().zip(&before).zip(&after) {
                    prop_assert!(!seen || *before || *after, "it passes between two steps");
                }
            }
        }
    }

    /// Nothing is lost when several things change at once.
    #[test]
    fn firewall_follows_combined_changes(
        first in prop::collection::vec(policies(), 0..60),
        rounds in prop::collection::vec(prop::collection::vec(requests(), 1..5), 1..15),
        packets in prop::collection::vec(packets(), 24),
    ) {
        let mut gateway = Gateway::new(first, DefaultActions::default(), packets);
        for requests in rounds {
            gateway.handle_together(requests);
            gateway.check()?;
        }
    }

    /// What the kernel refuses half-way lets nothing pass that would neither before nor afterwards,
    /// and can be put right.
    #[test]
    fn change_refused_half_way_lets_nothing_pass(
        first in prop::collection::vec(policies(), 0..60),
        requests in prop::collection::vec((requests(), 0_usize..20), 1..15),
        packets in prop::collection::vec(packets(), 24),
    ) {
        let mut gateway = Gateway::new(first, DefaultActions::default(), packets);
        for (request, room) in requests {
            let before = gateway.guard.filter.passing();
            gateway.guard.filter.room = Some(room);
            gateway.carry_out(vec![request]);
            let changes = gateway.database.take_changes();
            let result = gateway.guard.change(&changes.policies, &gateway.database.current().spd);
            let now = gateway.guard.filter.passing();
            gateway.guard.filter.room = None;
            if result.is_err() {
                let spd = &gateway.database.current().spd;
                gateway.guard.follow(spd).unwrap();
            }
            gateway.check()?;
            let after = gateway.guard.filter.passing();
            for ((now, before), after) in now.iter().zip(&before).zip(&after) {
                prop_assert!(!now || *before || *after, "it passes after an error");
            }
        }
    }

    /// A change of which the kernel does nothing leaves all as it was, and the next ones need no
    /// new table.
    #[test]
    fn change_refused_as_whole_is_undone_alone(
        first in prop::collection::vec(policies(), 0..60),
        rounds in prop::collection::vec((prop::collection::vec(single_requests(), 1..3), any::<bool>()), 1..40),
        packets in prop::collection::vec(packets(), 24),
    ) {
        let mut gateway = Gateway::new(first, DefaultActions::default(), packets);
        gateway.guard.filter.is_full = true;
        for (requests, is_taken) in rounds {
            let before = gateway.guard.filter.passing();
            gateway.guard.filter.room = (!is_taken).then_some(0);
            let result = gateway.try_together(requests);
            gateway.guard.filter.room = None;
            gateway.check()?;
            prop_assert!(gateway.guard.layout.is_some(), "the next change needs no new table");
            prop_assert!(result.is_ok() || gateway.guard.filter.passing() == before);
        }
    }

    /// One policy that comes, goes or does otherwise needs no new table, wherever it stands. Where
    /// it comes, no packet is dropped meanwhile that passes before and afterwards, as a run that it
    /// parts moves.
    #[test]
    fn firewall_follows_policy_by_keys_and_rules(
        first in prop::collection::vec(policies(), 0..60),
        requests in prop::collection::vec(single_requests(), 1..40),
        packets in prop::collection::vec(packets(), 24),
    ) {
        let mut gateway = Gateway::new(first, DefaultActions::default(), packets);
        gateway.guard.filter.is_full = true;
        for request in requests {
            let comes = matches!(request, Request::Add(_));
            let before = gateway.guard.filter.passing();
            gateway.guard.filter.seen.clear();
            gateway.handle(request);
            gateway.check()?;
            let after = gateway.guard.filter.passing();
            for seen in gateway.guard.filter.seen.iter().filter(|_| comes) {
                for ((seen, before), after) in seen.iter().zip(&before).zip(&after) {
                    prop_assert!(*seen || !before || !after, "it is dropped between two steps");
                }
            }
        }
    }

    /// Where all rules together are too many for a transaction, what does not need that goes on,
    /// and what does is refused without a trace.
    #[test]
    fn firewall_not_reloadable_follows_by_keys_and_rules(
        first in prop::collection::vec(policies(), 0..60),
        rounds in prop::collection::vec(prop::collection::vec(requests(), 1..3), 1..25),
        packets in prop::collection::vec(packets(), 24),
    ) {
        let mut gateway = Gateway::new(first, DefaultActions::default(), packets);
        gateway.guard.filter.is_full = true;
        for requests in rounds {
            if gateway.try_together(requests).is_err() {
                gateway.guard.follow(&gateway.database.current().spd).unwrap_err();
            }
            gateway.check()?;
            prop_assert!(gateway.guard.layout.is_some(), "the next change needs no new table");
        }
    }
}
