//! What the policies of the last run protected stays refused until somebody decides anew.
//!
//! Policies that programs put in, as an IKE daemon does, are gone with the process, and come again
//! when the daemon has negotiated anew. So the gateway writes them down ([`saved_policies`],
//! [`saver`]), and the next run puts what files do not say into its databases as *held*
//! policies ([`PolicyFlags::HELD`]): who protected or blocked now blocks, who let pass passes. So
//! routes, guard and workers know of them like of any other policy. One goes when a policy of its
//! name comes, when `ip xfrm policy delete` or `flush` says so, or all by `uxfrm release`; not when
//! a key manager deletes it: that one has just been told that its states are gone, and cleans up
//! before it negotiates.
//!
//! Held policies have the lowest priority, so any live policy decides before them. One exception
//! keeps packets from leaking: a held policy that blocks keeps its priority where a live policy
//! behind it would let pass packets that it decided before.

pub(crate) mod saved_policies;
pub(crate) mod saver;

use std::{io, path::Path, sync::Arc};

use uxfrm_engine::{
    Action, Database, DefaultActions, Direction, LifetimeLimits, Policy, PolicyEntry, PolicyFlags,
    PolicyIndex, Prefix, Priority, Selector, Spd,
};
use uxfrm_status::quantity::things;

use crate::{clock::now, config::AtStart, routes};
use saved_policies::{Cleartext, PolicyOrigin, SavedPolicies, SavedPolicy};

/// Where held policies stand.
const LAST: Priority = Priority(u32::MAX);

/// Pairs of policies that are looked at for who stood before whom. Of more, all stay where they
/// stood.
const MOST_COMPARED: usize = 1 << 24;

/// Held policies that are shown one by one.
const SHOWN: usize = 16;

/// Whether files or the saved policies decide on policies that came from files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PolicyFiles {
    /// The files, as they are now.
    Decide,
    /// Nobody: they can't be read.
    AreFaulty,
}

/// Puts what the last run left in a directory into databases that files alone have filled. How many
/// policies are held now.
pub(crate) fn take_up(
    database: &mut Database,
    directory: &Path,
    at_start: AtStart,
    files: PolicyFiles,
) -> usize {
    if at_start == AtStart::Open {
        return 0;
    }
    match saved_policies::read(directory) {
        Ok(None) => 0,
        Ok(Some(saved)) => hold(database, &saved, files),
        Err(error) => {
            tracing::error!("{}", unreadable(directory, &error, at_start));
            hold(database, &SavedPolicies::unknown(), files)
        }
    }
}

/// Whether anything is known of the last run's policies, for who must not do without.
///
/// # Errors
/// Why it is not known.
pub(crate) fn is_known(directory: &Path) -> io::Result<bool> {
    saved_policies::read(directory).map(|saved| saved.is_some())
}

/// Nothing of the last run is to be held any more.
///
/// # Errors
/// The kernel's.
pub(crate) fn forget(directory: &Path) -> io::Result<()> {
    saved_policies::remove(directory)
}

/// What there is to say of a portrait that is there and can't be used.
pub(crate) fn unreadable(directory: &Path, error: &io::Error, at_start: AtStart) -> String {
    let so = match at_start {
        AtStart::Block => {
            "so a start refuses all that no other policy is for, in all directions. `uxfrm release` lets go of it; `uxfrm clean CONFIG` \
             while no gateway runs"
        }
        AtStart::Open => "and leaves plain until they come again (`at_start = \"open\"`)",
    };
    format!(
        "what programs' policies protected in the last run is not known: {}: {error}; {so}",
        saved_policies::path(directory).display()
    )
}

/// The same, of a portrait that was read.
pub(crate) fn hold(database: &mut Database, saved: &SavedPolicies, files: PolicyFiles) -> usize {
    let is_meant = |policy: &&SavedPolicy| match (policy.origin, files) {
        (PolicyOrigin::Programs, _) | (PolicyOrigin::PolicyFiles, PolicyFiles::AreFaulty) => true,
        (PolicyOrigin::PolicyFiles, PolicyFiles::Decide) => false,
    };
    let said = database.current().spd.defaults();
    let defaults = closed(said, saved, files);
    if defaults != said {
        tracing::warn!(
            "all is refused that no policy is for, as in the last run a program said so: `uxfrm xfrm policy setdefault` says otherwise"
        );
    }
    let meant: Vec<_> = saved.policies.iter().filter(is_meant).collect();
    let passing = passing(database);
    let are_few = passing.len().saturating_mul(meant.len()) <= MOST_COMPARED;
    let mut held = 0;
    database.apply(now(), |change| {
        change.set_defaults(defaults);
        for policy in meant {
            let passes = policy.action == Cleartext::Pass;
            // Where all else is refused nobody has to be told what passed.
            if passes && defaults.of(policy.direction) == Action::Block {
                continue;
            }
            let stays =
                !passes && (!are_few || passing.iter().any(|other| other.is_behind(policy)));
            let priority = if stays { policy.priority } else { LAST };
            // Who has its name has decided already.
            held += usize::from(change.add_policy(standing_for(policy, priority)).is_ok());
        }
    });
    held
}

/// The defaults with those that a program had set to block.
fn closed(now: DefaultActions, saved: &SavedPolicies, files: PolicyFiles) -> DefaultActions {
    let of = |direction: Direction| {
        let blocks = saved.defaults.iter().any(|(blocked, origin)| {
            *blocked == direction
                && (*origin == PolicyOrigin::Programs || files == PolicyFiles::AreFaulty)
        });
        if blocks { Action::Block } else { now.of(direction) }
    };
    DefaultActions {
        inbound: of(Direction::In),
        forward: of(Direction::Forward),
        outbound: of(Direction::Out),
    }
}

/// The held policy of one of the last run.
fn standing_for(policy: &SavedPolicy, priority: Priority) -> Policy {
    Policy {
        direction: policy.direction,
        kind: policy.kind,
        index: PolicyIndex(0),
        selector: policy.selector,
        priority,
        action: match policy.action {
            Cleartext::Pass => Action::Allow,
            Cleartext::Refuse => Action::Block,
        },
        templates: Vec::new(),
        mark: policy.mark,
        if_id: policy.if_id,
        flags: PolicyFlags::HELD,
        limits: LifetimeLimits::default(),
        offload: None,
    }
}

/// A live policy that lets packets pass.
struct AllowPolicy {
    direction: Direction,
    priority: Priority,
    selector: Selector,
}

fn passing(database: &Database) -> Vec<AllowPolicy> {
    let all = database.current().spd.iter();
    let passing = all.filter(|entry| Cleartext::of(entry) == Cleartext::Pass);
    let passing = passing.map(|entry| AllowPolicy {
        direction: entry.direction(),
        priority: entry.precedence().priority(),
        selector: entry.selector(),
    });
    passing.collect()
}

impl AllowPolicy {
    /// Whether it would let pass what one of the last run was asked about before it.
    fn is_behind(&self, policy: &SavedPolicy) -> bool {
        let meet = |one: Prefix, other: Prefix| {
            one.contains(other.address()) || other.contains(one.address())
        };
        self.direction == policy.direction
            && self.priority >= policy.priority
            && meet(self.selector.source, policy.selector.source)
            && meet(self.selector.destination, policy.selector.destination)
    }
}

/// Held policies that let pass go where all is refused that no policy is for.
pub(crate) fn is_pointless(entry: &PolicyEntry, defaults: DefaultActions) -> bool {
    entry.is_held()
        && entry.action() == Action::Allow
        && defaults.of(entry.direction()) == Action::Block
}

/// What a running gateway refuses as it is held, in one line; nothing where all that is held lets
/// pass.
pub(crate) fn notice(database: &Database) -> String {
    let snapshot = database.snapshot();
    let first = refused(&snapshot.spd).filter(|entry| entry.direction() == Direction::Out);
    let first: Vec<_> = first.take(3).map(|entry| short(&entry.selector())).collect();
    let example =
        if first.is_empty() { String::new() } else { format!(", as {}", first.join(", ")) };
    let held = refused(&snapshot.spd).count();
    if held == 0 {
        return String::new();
    }
    let held = things(held as u64, "policy", "policies");
    format!(
        "held: {held} of the last run{example}: what they protected is refused until policies of the same selectors come \
         (from an IKE daemon, `ip xfrm` lines or a file); `uxfrm release` lets go of all, `uxfrm xfrm policy delete` of one\n"
    )
}

/// How many held policies refuse what they are for.
pub(crate) fn refuses(database: &Database) -> usize {
    refused(&database.snapshot().spd).count()
}

fn refused(spd: &Spd) -> impl Iterator<Item = &Arc<PolicyEntry>> {
    spd.iter().filter(|entry| entry.is_held() && Cleartext::of(entry) == Cleartext::Refuse)
}

fn short(selector: &Selector) -> String {
    format!("{} to {}", selector.source, selector.destination)
}

/// What `uxfrm check` says of it, line by line; nothing where nothing is known.
pub(crate) fn describe(directory: &Path, at_start: AtStart) -> Vec<String> {
    let saved = match saved_policies::read(directory) {
        Ok(None) => return Vec::new(),
        Ok(Some(saved)) => saved,
        Err(error) => return vec![unreadable(directory, &error, at_start)],
    };
    let of_programs = || {
        let all = saved.policies.iter().filter(|policy| policy.origin == PolicyOrigin::Programs);
        all.filter(|policy| policy.action == Cleartext::Refuse)
    };
    let (live, held) = of_programs().partition::<Vec<_>, _>(|policy| !policy.is_held);
    let mut lines = Vec::new();
    if !held.is_empty() {
        lines.push(format!(
            "held from the last run: {}; nobody has decided anew, so what they protected is refused; `uxfrm release` lets go of it",
            held.len()
        ));
        lines.extend(held.iter().take(SHOWN).map(|policy| format!("  {policy}")));
        let more = held.len().saturating_sub(SHOWN);
        lines.extend((more > 0).then(|| format!("  … and {more} more")));
    }
    if !live.is_empty() {
        let then = match at_start {
            AtStart::Block => "after a start what they protect is refused until they come again",
            AtStart::Open => {
                "after a start what they protect leaves plain until they come again (`at_start = \"open\"`)"
            }
        };
        lines.push(format!("policies of programs: {}; {then}", live.len()));
    }
    lines
}

/// Whether a policy simply lets pass what came through no state.
fn passes(entry: &PolicyEntry) -> bool {
    routes::passes_plain(entry)
        || entry.action() == Action::Allow
            && entry.templates().all(|template| template.level == uxfrm_engine::TemplateLevel::Use)
}

#[cfg(test)]
mod tests;
