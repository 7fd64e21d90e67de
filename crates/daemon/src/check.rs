//! `uxfrm check`: what states and policies say that will not work, though each line is right.
//!
//! Each rule looks at the databases that the files make, and at how the host is set; none changes
//! anything. A rule tells what is wrong, where, and the line or command that mends it.
//!
//! A gateway that starts, or is told other files, warns by the same rules of what is in its
//! databases.

mod ends;
mod host_settings;
mod missing_policies;
mod own_answers;
mod own_filter;
mod shadows;
mod states;
mod templates;
#[cfg(test)]
mod tests;
mod tun_mtu;

use std::{collections::HashSet, fmt};

use uxfrm_engine::{Lifecycle, Sa, Settings, Snapshot};

pub(crate) use self::host_settings::HostSettings;

/// Findings of one rule that are told singly.
const MOST: usize = 10;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    /// Packets that the files mean to protect are dropped, or the protection is weak.
    Warning,
    /// It may be meant so.
    Note,
}

/// One thing that a rule found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    /// What is wrong, and where.
    pub(crate) text: String,
    /// The line or command that mends it.
    pub(crate) mend: String,
}

/// What all rules look at.
#[derive(Clone, Copy, Debug)]
struct Subject<'a> {
    snapshot: &'a Snapshot,
    settings: &'a Settings,
    host: &'a HostSettings,
}

impl Subject<'_> {
    /// All states but those that a key manager was asked for.
    fn states(&self) -> impl Iterator<Item = &Sa> {
        let all = self.snapshot.sad.iter().map(|sa| &**sa);
        all.filter(|sa| sa.lifecycle() != Lifecycle::Acquire)
    }
}

impl Finding {
    fn warning(text: String, mend: String) -> Self {
        Self { severity: Severity::Warning, text, mend }
    }

    fn note(text: String, mend: String) -> Self {
        Self { severity: Severity::Note, text, mend }
    }
}

/// Two lines: what is wrong, and what mends it.
impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Warning => "warning",
            Severity::Note => "note",
        };
        write!(out, "{severity}: {}\n  {}", self.text, self.mend)
    }
}

/// A rule.
type Rule = fn(&Subject<'_>) -> Vec<Finding>;

const RULES: [Rule; 17] = [
    templates::without_state,
    templates::of_another_family,
    shadows::behind_plain,
    ends::of_other_hosts,
    ends::to_oneself,
    ends::to_nowhere,
    missing_policies::in_without_fwd,
    missing_policies::out_without_way_back,
    missing_policies::forwarding_is_off,
    own_answers::into_the_tunnel,
    own_filter::drops_forwarded,
    tun_mtu::does_not_fit,
    states::without_policy,
    states::without_authentication,
    states::without_replay_window,
    states::without_cipher,
    states::with_one_key_for_both_ways,
];

/// Lines about all that the rules find, warnings first.
pub(crate) fn findings(snapshot: &Snapshot, host: &HostSettings) -> Vec<String> {
    let mut all = all(snapshot, host);
    all.sort_by_key(|finding| finding.severity);
    all.iter().map(ToString::to_string).collect()
}

/// States and policies of which a running gateway has warnings looked for: its clients wait
/// meanwhile.
const SEARCHED: usize = 4096;

/// Warnings about what a running gateway has or is told; none where there is too much of it.
pub(crate) fn warnings(snapshot: &Snapshot, host: &HostSettings) -> Vec<String> {
    if snapshot.sad.len() + snapshot.spd.len() > SEARCHED {
        return Vec::new();
    }
    let mut all = all(snapshot, host);
    all.retain(|finding| finding.severity == Severity::Warning);
    all.iter().map(ToString::to_string).collect()
}

/// Warnings about what there is now that what there was before does not have.
pub(crate) fn new_warnings(
    (before, host_before): (&Snapshot, &HostSettings),
    (now, host_now): (&Snapshot, &HostSettings),
) -> Vec<String> {
    let mut new = warnings(now, host_now);
    if !new.is_empty() {
        let known: HashSet<_> = warnings(before, host_before).into_iter().collect();
        new.retain(|warning| !known.contains(warning));
    }
    new
}

fn all(snapshot: &Snapshot, host: &HostSettings) -> Vec<Finding> {
    let settings = Settings::default();
    let subject = Subject { snapshot, settings: &settings, host };
    RULES.iter().flat_map(|rule| bounded(rule(&subject))).collect()
}

/// The first findings of a rule, and how many more there are.
fn bounded(mut findings: Vec<Finding>) -> Vec<Finding> {
    let more = findings.len().saturating_sub(MOST);
    findings.truncate(MOST);
    if let (1.., Some(last)) = (more, findings.last_mut()) {
        last.mend += &format!("\n  … and {more} more like this");
    }
    findings
}
