//! Finds the steps that make the running databases match the files.

use std::collections::{BTreeMap, HashMap};

use uxfrm_engine::{
    Database, DefaultActions, Direction, Error, Policy, PolicyEntry, PolicyKind, Priority,
    ReplayConfig, Sa, SaConfig, SaTransform, Selector, Snapshot, Transaction,
};

use super::{
    report,
    step::{Policies, States, Step},
};
use crate::batch::provenance::FileOwned;

/// Steps in the order in which they leave no gap: what comes first, what goes last.
#[derive(Debug, Default)]
pub(super) struct Difference(Vec<Step>);

impl Difference {
    /// Between what runs, of which files made `written`, and databases that files say alone.
    pub(super) fn find(running: &Database, written: &FileOwned, said: &Database) -> Self {
        let mut steps = Vec::new();
        steps.extend(added_states(running, said));
        steps.extend(added_policies(running, said));
        steps.extend(defaults(running, written, said));
        steps.extend(removed_policies(running, written, said));
        steps.extend(removed_states(running, written, said));
        Self(steps)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A line for each step, without keys.
    pub(super) fn lines(&self) -> Vec<String> {
        self.0.iter().map(report::step).collect()
    }

    /// Carries all steps out.
    ///
    /// # Errors
    /// The first that is refused, as a line, and why; those before it stand.
    pub(super) fn carry_out(self, change: &mut Transaction<'_>) -> Result<(), (String, Error)> {
        for step in self.0 {
            let line = report::step(&step);
            step.carry_out(change).map_err(|error| (line, error))?;
        }
        Ok(())
    }
}

/// What of the running databases files say.
pub(super) fn written(running: &Database, said: &Database) -> FileOwned {
    let defaults = said.current().spd.defaults();
    FileOwned::restored(states_of(running, said), policies_of(running, said), defaults)
}

/// What files own after a change by others: what has the name of what they owned before.
pub(super) fn still_owned(owned: &FileOwned, before: &Snapshot, running: &Database) -> FileOwned {
    let states = before.sad.iter().filter(|sa| owned.has_state(sa));
    let states = states.filter_map(|sa| counterpart(running, sa)).map(Sa::insertion_seq);
    let known = Names::of(running);
    let policies = before.spd.iter().filter(|entry| owned.has_policy(entry));
    let policies = policies.filter_map(|entry| known.find(&entry.policy()));
    let policies = policies.map(|entry| entry.precedence().insertion_seq());
    FileOwned::restored(states, policies, owned.defaults())
}

/// The turns of the states that run as `said` has them.
fn states_of(running: &Database, said: &Database) -> impl Iterator<Item = u64> {
    said.current().sad.iter().filter_map(|sa| counterpart(running, sa)).map(Sa::insertion_seq)
}

/// The ages of the policies that run as `said` has them.
fn policies_of(running: &Database, said: &Database) -> impl Iterator<Item = u64> {
    let known = Names::of(running);
    let said = said.current().spd.iter();
    said.filter_map(move |entry| known.find(&entry.policy()))
        .map(|entry| entry.precedence().insertion_seq())
}

/// The state that a database has for another's id and mark.
fn counterpart<'d>(database: &'d Database, sa: &Sa) -> Option<&'d Sa> {
    let mark = sa.config().mark;
    let found = database.current().sad.find(sa.id(), mark.value & mark.mask)?;
    (found.config().mark == mark).then_some(found)
}

/// In the order of the files: among states for the same packets the youngest sends.
fn added_states(running: &Database, said: &Database) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut all: Vec<_> = said.current().sad.iter().collect();
    all.sort_unstable_by_key(|sa| sa.insertion_seq());
    for sa in all {
        let wanted = config(sa);
        let step = match counterpart(running, sa).map(|now| as_said(now, sa)) {
            None => States::Add(wanted),
            Some(now) if now == sa.to_config() => continue,
            Some(now) => changed(now, wanted),
        };
        steps.push(Step::State(step));
    }
    steps
}

/// A running state with its offload in the words of `said`, where both come to the same: another
/// name of one device, or a wish that no device granted, which no listing shows.
fn as_said(now: &Sa, said: &Sa) -> SaConfig {
    let place = |sa: &Sa| sa.attachment().map(|place| (place.device, place.kind));
    let mut config = now.to_config();
    let wish = &said.config().offload;
    if place(now) == place(said) && (place(now).is_some() || wish.is_none()) {
        config.offload.clone_from(wish);
    }
    config
}

/// A state as its line says it, with the numbers that it is to begin at.
fn config(sa: &Sa) -> SaConfig {
    let mut config = sa.to_config();
    let (sent, received) = (sa.sequence().last(), sa.highest_received());
    config.replay = ReplayConfig { sent, received, ..config.replay };
    config
}

/// Under the same keys a state goes on with its window, numbers and counts, by `XFRM_MSG_UPDSA`
/// where that can do it.
fn changed(mut now: SaConfig, wanted: SaConfig) -> States {
    let kind = |config: &SaConfig| config.encap.map(|encap| encap.kind);
    if kind(&now) == kind(&wanted) {
        now.encap = wanted.encap;
    }
    now.limits = wanted.limits;
    // No update changes the window. Numbers are those that a new state would begin at.
    now.replay = ReplayConfig { window: now.replay.window, ..wanted.replay };
    let SaTransform { encryption_key, authentication_key, .. } = &wanted.transform;
    let has_its_keys = now.transform.encryption_key == *encryption_key
        && now.transform.authentication_key == *authentication_key;
    if now == wanted {
        States::Update(wanted)
    } else if has_its_keys {
        States::Continue(wanted)
    } else {
        States::Replace(wanted)
    }
}

fn removed_states(running: &Database, written: &FileOwned, said: &Database) -> Vec<Step> {
    let going = running.current().sad.iter().filter(|sa| written.has_state(sa));
    let going = going.filter(|sa| counterpart(said, sa).is_none());
    going.map(|sa| Step::State(States::Remove(sa.id(), sa.config().mark))).collect()
}

/// Policies among which the older goes first.
type Peers = (Direction, PolicyKind, Priority);

/// Those of files in their order. One that is there already stays where it stands, unless it is
/// older than one that files have before it, and both may be for one packet.
fn added_policies(running: &Database, said: &Database) -> Vec<Step> {
    let mut all: Vec<_> = said.current().spd.iter().collect();
    all.sort_unstable_by_key(|entry| entry.precedence().insertion_seq());
    let known = Names::of(running);
    let mut before: HashMap<Peers, Before> = HashMap::new();
    let mut steps = Vec::new();
    for entry in all {
        let policy = entry.policy();
        let peers = (policy.direction, policy.kind, policy.priority);
        let before = before.entry(peers).or_default();
        let Some(now) = known.find(&policy) else {
            before.coming.push(policy.selector);
            steps.push(Step::Policy(Policies::Add(policy)));
            continue;
        };
        let age = now.precedence().insertion_seq();
        if now.policy().priority != policy.priority || before.has_younger(age, &policy.selector) {
            before.coming.push(policy.selector);
            steps.push(Step::Policy(Policies::Move(policy)));
            continue;
        }
        before.staying.insert(age, policy.selector);
        let policy = Policy { index: now.index(), ..policy };
        let mut as_said = now.policy();
        if now.device().is_some() && now.device() == entry.device() {
            as_said.offload.clone_from(&policy.offload);
        }
        if as_said != policy {
            steps.push(Step::Policy(Policies::Update(policy)));
        }
    }
    steps
}

/// Policies that files have before another.
#[derive(Default)]
struct Before {
    /// Those that come are younger than all that stay.
    coming: Vec<Selector>,
    /// By their ages.
    staying: BTreeMap<u64, Selector>,
}

impl Before {
    /// Whether one of them is younger and may be for a packet of this selector.
    fn has_younger(&self, age: u64, selector: &Selector) -> bool {
        let staying = self.staying.range(age..).map(|(_, other)| other);
        self.coming.iter().chain(staying).any(|other| overlap(other, selector))
    }
}

/// Whether some packet may be of both; true where that is not clear.
fn overlap(one: &Selector, other: &Selector) -> bool {
    let protocols = one.protocol == 0 || other.protocol == 0 || one.protocol == other.protocol;
    protocols && one.source.overlaps(other.source) && one.destination.overlaps(other.destination)
}

/// The default rules of a database that nobody told otherwise are not the files' to say.
fn defaults(running: &Database, written: &FileOwned, said: &Database) -> Option<Step> {
    let of = |database: &Database| -> DefaultActions { database.current().spd.defaults() };
    let (now, wanted) = (of(running), of(said));
    let says = wanted != written.defaults() || wanted != DefaultActions::default();
    (says && now != wanted).then_some(Step::Defaults(wanted))
}

fn removed_policies(running: &Database, written: &FileOwned, said: &Database) -> Vec<Step> {
    let said = Names::of(said);
    let going = running.current().spd.iter().filter(|entry| written.has_policy(entry));
    let going = going.map(|entry| entry.policy()).filter(|policy| said.find(policy).is_none());
    going.map(|policy| Step::Policy(Policies::Remove(policy))).collect()
}

/// Policies by what names them.
struct Names<'d>(HashMap<Name, &'d PolicyEntry>);

type Name = (Direction, PolicyKind, [u32; 3], Selector);

impl<'d> Names<'d> {
    fn of(database: &'d Database) -> Self {
        // One that is held only keeps the place of what a file may say.
        let all = database.current().spd.iter().filter(|entry| !entry.is_held());
        Self(all.map(|entry| (key(&entry.policy()), &**entry)).collect())
    }

    fn find(&self, policy: &Policy) -> Option<&'d PolicyEntry> {
        self.0.get(&key(policy)).copied()
    }
}

fn key(policy: &Policy) -> Name {
    let mark = policy.mark;
    (policy.direction, policy.kind, [mark.value, mark.mask, policy.if_id.0], policy.selector)
}
