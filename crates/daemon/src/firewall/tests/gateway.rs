//! Databases whose policies come and go, and a guard that follows them.

use proptest::prelude::*;
use uxfrm_crypto::Backend;
use uxfrm_engine::{
    Action, Database, DefaultActions, Direction, DropReason, FlowKey, Moment, Policy, PolicyChange,
    PolicyIndex, PolicyKey, PolicyKind, Spd, Transaction,
};
use uxfrm_io::nftables::{Error, RuleVerdict};

use super::super::{ChainKind, Firewall, RulesetContext, conditions, run};
use super::{
    CHAINS, context,
    filters::Watched,
    random::{Plain, Request},
};
use crate::config::DIVERTED;

/// What the policies say, one by one: the first that fits, sub before main.
fn expected(spd: &Spd, part: ChainKind, flow: &FlowKey) -> (RuleVerdict, Option<&'static str>) {
    let direction = part.direction();
    let first = |kind| {
        let fits = spd.iter().filter(|entry| {
            (entry.direction(), entry.kind()) == (direction, kind) && entry.matches(flow)
        });
        fits.min_by_key(|entry| entry.precedence())
            .map(|entry| conditions::of_policy(part, &entry.policy()).0)
    };
    let outcome = match first(PolicyKind::Sub) {
        Some(run::Outcome::Drop(reason)) => Some(run::Outcome::Drop(reason)),
        Some(run::Outcome::Divert) => Some(run::Outcome::Divert),
        sub => first(PolicyKind::Main).or(sub),
    };
    match outcome {
        Some(run::Outcome::Drop(reason)) => (RuleVerdict::Drop, Some(reason.as_str())),
        Some(run::Outcome::Divert) => (RuleVerdict::Mark(DIVERTED), None),
        None if part != ChainKind::Way && spd.defaults().of(direction) == Action::Block => {
            let reason = match direction {
                Direction::In | Direction::Forward => DropReason::InDefaultBlock,
                Direction::Out => DropReason::OutDefaultBlock,
            };
            (RuleVerdict::Drop, Some(reason.as_str()))
        }
        Some(run::Outcome::Pass) | None => (RuleVerdict::Accept, None),
    }
}

/// Does what is asked with the policies of these keys, as far as they are still there.
fn make(change: &mut Transaction<'_>, keys: &[PolicyKey], request: Request) {
    match request {
        Request::Add(policies) => {
            policies.into_iter().for_each(|policy| drop(change.add_policy(policy)));
        }
        Request::Update(number, action, templates, priority) => {
            let key = keys.get(number % keys.len().max(1));
            let old = key.and_then(|key| change.find_policy(key));
            let Some(old) = old.map(|entry| entry.policy()) else { return };
            let index = PolicyIndex(0);
            let new = Policy { action, templates, priority, index, ..old };
            change.update_policy(new).unwrap();
        }
        Request::Remove(number, count) => {
            let start = number % keys.len().max(1);
            for key in keys.iter().skip(start).take(count) {
                drop(change.delete_policy(key));
            }
        }
    }
}

pub(super) struct Gateway {
    pub(super) database: Database,
    pub(super) guard: Firewall<Watched>,
}

impl Gateway {
    pub(super) fn new(
        policies: Vec<Policy>,
        defaults: DefaultActions,
        packets: Vec<Plain>,
    ) -> Self {
        Self::with(ChainKind::ALL, policies, defaults, packets)
    }

    /// One that leads nothing to uxfrm: its table is half as large.
    pub(super) fn that_guards(
        policies: Vec<Policy>,
        defaults: DefaultActions,
        packets: Vec<Plain>,
    ) -> Self {
        Self::with(ChainKind::GUARD, policies, defaults, packets)
    }

    fn with(
        parts: &'static [ChainKind],
        policies: Vec<Policy>,
        defaults: DefaultActions,
        packets: Vec<Plain>,
    ) -> Self {
        let mut database = Database::new(Backend::Auto, 1);
        database.track_changes();
        database.apply(Moment(0), |change| {
            change.set_defaults(defaults);
            for policy in policies {
                drop(change.add_policy(policy));
            }
        });
        drop(database.take_changes());
        let filter = Watched { packets, ..Watched::default() };
        let context = RulesetContext { parts, ..context() };
        let guard = Firewall::install(filter, context, &database.current().spd).unwrap();
        Self { database, guard }
    }

    pub(super) fn handle(&mut self, request: Request) {
        self.handle_together(vec![request]);
    }

    /// What the guard is told of at once.
    pub(super) fn handle_together(&mut self, requests: Vec<Request>) {
        self.carry_out(requests);
        let changes = self.database.take_changes();
        self.guard.change(&changes.policies, &self.database.current().spd).unwrap();
    }

    pub(super) fn carry_out(&mut self, requests: Vec<Request>) {
        let keys: Vec<PolicyKey> = {
            let mut entries: Vec<_> = self.database.current().spd.iter().cloned().collect();
            entries.sort_unstable_by_key(|entry| entry.index());
            entries.iter().map(|entry| entry.key()).collect()
        };
        self.database.apply(Moment(0), |change| {
            requests.into_iter().for_each(|request| make(change, &keys, request));
        });
    }

    /// Does all or nothing of it.
    pub(super) fn try_together(&mut self, requests: Vec<Request>) -> Result<(), Error> {
        self.carry_out(requests);
        let changes = self.database.take_changes().policies;
        let result = self.guard.change(&changes, &self.database.current().spd);
        if result.is_err() {
            self.database.apply(Moment(0), |change| {
                changes.iter().rev().for_each(|done| match done {
                    PolicyChange::Added(entry) => drop(change.delete_policy(&entry.key()).unwrap()),
                    PolicyChange::Removed(entry) => drop(change.restore_policy(entry).unwrap()),
                });
            });
            drop(self.database.take_changes());
        }
        result
    }

    pub(super) fn check(&self) -> Result<(), TestCaseError> {
        let spd = &self.database.current().spd;
        for packet in &self.guard.filter.packets {
            let parts = self.guard.context.parts;
            // What errors quote decides about them as well, and these quote nothing.
            let is_judged = |(part, _): &(ChainKind, &str)| {
                parts.contains(part) && !(*part == ChainKind::Out && packet.is_error())
            };
            for (part, chain) in CHAINS.into_iter().filter(is_judged) {
                let judged = self.guard.filter.replica.judge(chain, &packet.sample(part));
                let flow = packet.flow(part);
                let wanted = expected(spd, part, &flow);
                match packet
                    .flow_at_last(part)
                    .filter(|_| [ChainKind::In, ChainKind::Out].contains(&part))
                {
                    None => prop_assert_eq!(judged, wanted, "{} {:?}", chain, flow),
                    // It may be refused though neither is, where each passes by a policy of its
                    // own.
                    Some(last) => {
                        let fates = [wanted, expected(spd, part, &last)];
                        let refused =
                            fates.iter().any(|(verdict, _)| *verdict == RuleVerdict::Drop);
                        prop_assert!(
                            !refused || judged.0 == RuleVerdict::Drop,
                            "{} {:?}",
                            chain,
                            flow
                        );
                    }
                }
            }
        }
        Ok(())
    }

    pub(super) fn one_by_one(&mut self, policies: impl Iterator<Item = Policy>) {
        for policy in policies {
            self.handle(Request::Add(vec![policy]));
        }
    }

    /// How many rules the main policies `out` have, sets, keys, and how often all was replaced.
    pub(super) fn sizes(&self) -> (usize, usize, usize, usize) {
        let replica = &self.guard.filter.replica;
        let (sets, keys) = replica.sizes();
        (replica.rules_of("out-main"), sets, keys, replica.replaced)
    }
}
