//! Destinations that workers asked for lately. A successor resolves them before packets come.

use std::{
    collections::HashSet,
    mem,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use uxfrm_engine::Moment;

use super::KNOWN_FOR;

/// What is in use is asked for again within this time.
const IN_USE: Duration = KNOWN_FOR.saturating_mul(2);

/// Destinations that are kept of a time: as many as a worker knows.
const MOST: usize = 1 << 16;

/// Destinations that were asked for lately. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestedDestinations(Arc<Mutex<RecentDestinations>>);

#[derive(Debug, Default)]
struct RecentDestinations {
    since: Moment,
    now: HashSet<IpAddr>,
    before: HashSet<IpAddr>,
}

impl RequestedDestinations {
    /// One was asked for.
    pub(super) fn note(&self, destination: IpAddr, now: Moment) {
        let mut lately = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if now.since(lately.since) >= IN_USE {
            lately.since = now;
            lately.before = mem::take(&mut lately.now);
        }
        if lately.now.len() < MOST {
            lately.now.insert(destination);
        }
    }

    /// All that are in use, and some that were a little while ago.
    pub(crate) fn all(&self) -> Vec<IpAddr> {
        let lately = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lately.now.union(&lately.before).copied().take(MOST).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_destinations_keep_repeated_ones() {
        let requested = RequestedDestinations::default();
        let [often, once] = [1, 2].map(|last| IpAddr::from([192, 0, 2, last]));
        requested.note(once, Moment::from_secs(1));
        for seconds in 1..100 {
            if seconds % KNOWN_FOR.as_secs() == 0 {
                requested.note(often, Moment::from_secs(seconds));
                assert!(requested.all().contains(&often));
            }
        }
        assert_eq!(requested.all(), [often]);
    }
}
