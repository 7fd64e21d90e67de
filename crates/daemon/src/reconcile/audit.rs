//! The log of changes: a line for each state and policy that came, changed or went.
//!
//! Lines are bounded, as a client may change a million: those above the budget are counted, and one
//! line tells how many there were. At level debug all are there.

use std::time::Duration;

use uxfrm_engine::{
    Action, ChangeSet, Moment, PolicyChange, PolicyEntry, Sa, Template, TemplateLevel, UpdatedSa,
};

/// Lines at once.
const BURST: u32 = 50;
/// One more line after so long.
const INTERVAL: Duration = Duration::from_millis(100);
/// How long lines are counted before a line tells how many.
const SUMMARY: Duration = Duration::from_secs(10);

/// What was changed and not told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Untold {
    states: u64,
    policies: u64,
}

/// The log of changes, and its budget.
#[derive(Debug)]
pub(super) struct AuditLog {
    /// Lines left.
    left: u32,
    /// When the budget was last filled.
    filled: Moment,
    untold: Untold,
    /// When what was not told is due.
    due: Moment,
}

/// Which line a change gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Info,
    Debug,
}

impl AuditLog {
    /// A log with a whole budget.
    pub(super) const fn new(now: Moment) -> Self {
        Self { left: BURST, filled: now, untold: Untold { states: 0, policies: 0 }, due: now }
    }

    /// Tells changes that stand.
    pub(super) fn tell(&mut self, changes: &ChangeSet, now: Moment) {
        for sa in &changes.removed {
            tell_state("state deleted", sa, self.next_state(now));
        }
        for sa in &changes.added {
            tell_state("state added", sa, self.next_state(now));
        }
        for UpdatedSa { after, .. } in &changes.updated {
            tell_state("state updated", after, self.next_state(now));
        }
        for change in &changes.policies {
            let line = self.next_policy(now);
            match change {
                PolicyChange::Added(entry) => tell_policy("policy added", entry, line),
                PolicyChange::Removed(entry) => tell_policy("policy deleted", entry, line),
            }
        }
        if changes.defaults {
            tracing::info!("default actions of policies changed");
        }
    }

    /// Tells now and then how many changes got no line.
    pub(super) fn summarise(&mut self, now: Moment) {
        if self.untold != Untold::default() && now >= self.due {
            let Untold { states, policies } = std::mem::take(&mut self.untold);
            tracing::info!(states, policies, "more changes, told singly at level debug");
        }
    }

    fn next_state(&mut self, now: Moment) -> Line {
        let line = self.next(now);
        self.untold.states += u64::from(line == Line::Debug);
        line
    }

    fn next_policy(&mut self, now: Moment) -> Line {
        let line = self.next(now);
        self.untold.policies += u64::from(line == Line::Debug);
        line
    }

    fn next(&mut self, now: Moment) -> Line {
        let intervals = now.since(self.filled).as_millis() / INTERVAL.as_millis();
        if intervals > 0 {
            let more = u32::try_from(intervals).unwrap_or(BURST);
            self.left = self.left.saturating_add(more).min(BURST);
            self.filled = now;
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Line::Info
            }
            None => {
                if self.untold == Untold::default() {
                    self.due = now.plus(SUMMARY);
                }
                Line::Debug
            }
        }
    }
}

fn tell_state(what: &'static str, sa: &Sa, line: Line) {
    let (spi, source, destination) = (sa.id().spi, sa.source(), sa.id().destination);
    let (reqid, mode) = (sa.reqid().0, sa.config().mode);
    match line {
        Line::Info => tracing::info!(%spi, %source, %destination, reqid, %mode, "{what}"),
        Line::Debug => tracing::debug!(%spi, %source, %destination, reqid, %mode, "{what}"),
    }
}

fn tell_policy(what: &'static str, entry: &PolicyEntry, line: Line) {
    if line == Line::Debug && !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let (policy, direction) = (entry.index().0, entry.direction());
    let (selector, action, priority) = (entry.selector(), action(entry), entry.precedence());
    let priority = priority.priority().0;
    match line {
        Line::Info => {
            tracing::info!(policy, %direction, %selector, priority, action, "{what}");
        }
        Line::Debug => {
            tracing::debug!(policy, %direction, %selector, priority, action, "{what}");
        }
    }
}

/// What a policy does, in a few words.
fn action(entry: &PolicyEntry) -> String {
    if entry.action() == Action::Block {
        return "block".into();
    }
    let templates: Vec<_> = entry.templates().map(|template| words(&template)).collect();
    if templates.is_empty() { "allow".into() } else { templates.join(", ") }
}

fn words(template: &Template) -> String {
    let Template { source, destination, mode, reqid, level, .. } = template;
    let level = match level {
        TemplateLevel::Required => "",
        TemplateLevel::Use => " if there is a state",
    };
    format!("{mode} {source} {destination} reqid {}{level}", reqid.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_of_lines_fills_with_time() {
        let begin = Moment::from_secs(100);
        let mut log = AuditLog::new(begin);
        let told = |log: &mut AuditLog, now| {
            (0..1000).filter(|_| log.next_state(now) == Line::Info).count()
        };
        assert_eq!(told(&mut log, begin), BURST as usize);
        assert_eq!(log.untold, Untold { states: 1000 - u64::from(BURST), policies: 0 });
        assert_eq!(told(&mut log, begin.plus(INTERVAL * 7)), 7);
        assert_eq!(told(&mut log, begin.plus(INTERVAL * 7)), 0);
        assert_eq!(told(&mut log, begin.plus(Duration::from_secs(3600))), BURST as usize);
    }

    #[test]
    fn untold_changes_are_summarised_once() {
        let begin = Moment::from_secs(100);
        let mut log = AuditLog::new(begin);
        (0..=BURST).for_each(|_| {
            let _line = log.next_policy(begin);
        });
        log.summarise(begin);
        assert_eq!(log.untold.policies, 1, "not due yet");
        log.summarise(begin.plus(SUMMARY));
        assert_eq!(log.untold, Untold::default());
    }
}
