//! Retries failed kernel updates with exponential back-off. A reason is logged once until it
//! changes.

use std::time::Duration;

use uxfrm_engine::Moment;

/// The pause behind the first try.
const SHORTEST: Duration = Duration::from_millis(400);

/// The longest pause.
const LONGEST: Duration = Duration::from_secs(8);

/// The time of the next try, if one is due.
#[derive(Debug, Default)]
pub(crate) struct Retry(Option<PendingRetry>);

#[derive(Debug)]
struct PendingRetry {
    due: Moment,
    pause: Duration,
    /// The reason that was told of: an errno.
    told: Option<i32>,
}

impl Retry {
    /// Something is to be tried, at once if nothing was before.
    pub(crate) fn owe(&mut self, now: Moment) {
        self.0.get_or_insert(PendingRetry { due: now, pause: SHORTEST, told: None });
    }

    /// What is to be tried may be another thing now: it is not waited any longer.
    pub(crate) fn hurry(&mut self, now: Moment) {
        if let Some(owed) = &mut self.0 {
            (owed.due, owed.pause) = (now, SHORTEST);
        }
    }

    /// Whether it is time to try.
    pub(crate) fn is_due(&self, now: Moment) -> bool {
        self.0.as_ref().is_some_and(|owed| owed.due <= now)
    }

    /// It was tried in vain; whether that is to be told of.
    pub(crate) fn fail(&mut self, reason: i32, now: Moment) -> bool {
        self.owe(now);
        let Some(owed) = &mut self.0 else { return true };
        owed.due = now.plus(owed.pause);
        owed.pause = (2 * owed.pause).min(LONGEST);
        owed.told.replace(reason) != Some(reason)
    }

    /// It has come true; whether it was told that it had not.
    pub(crate) fn succeed(&mut self) -> bool {
        self.0.take().is_some_and(|owed| owed.told.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(millis: u64) -> Moment {
        Moment(millis * 1_000_000)
    }

    /// Looks every 200 ms, as the gateway does.
    fn tries(retry: &mut Retry, looks: std::ops::Range<u64>, reason: i32) -> (usize, usize) {
        let due = |retry: &Retry, look: &u64| retry.is_due(at(look * 200));
        let mut counts = (0, 0);
        for look in looks {
            if due(retry, &look) {
                counts.0 += 1;
                counts.1 += usize::from(retry.fail(reason, at(look * 200)));
            }
        }
        counts
    }

    #[test]
    fn retry_backs_off_and_logs_reason_once() {
        let mut retry = Retry::default();
        assert!(!retry.is_due(at(0)) && !retry.succeed());
        retry.owe(at(0));
        // At 0, 0.4, 1.2, 2.8, 6, 12.4, 20.4, 28.4 … s.
        assert_eq!(tries(&mut retry, 0..5 * 13, 12), (6, 1));
        assert_eq!(tries(&mut retry, 5 * 13..5 * 93, 12), (10, 0));
        assert_eq!(tries(&mut retry, 5 * 93..5 * 103, 90), (1, 1), "another reason");
        assert!(retry.succeed());
        assert!(!retry.is_due(at(200_000)));
    }

    #[test]
    fn retry_runs_at_once_on_change_only() {
        let mut retry = Retry::default();
        retry.hurry(at(0));
        assert!(!retry.is_due(at(0)), "there is nothing to try");
        retry.owe(at(0));
        tries(&mut retry, 0..5 * 13, 12);
        retry.owe(at(13_000));
        assert!(!retry.is_due(at(13_000)));
        retry.hurry(at(13_000));
        assert!(retry.is_due(at(13_000)));
        assert!(!retry.fail(12, at(13_000)), "it was told of");
        assert!(retry.is_due(at(13_400)));
    }

    #[test]
    fn retry_success_at_first_try_logs_nothing() {
        let mut retry = Retry::default();
        retry.owe(at(0));
        assert!(!retry.succeed());
    }
}
