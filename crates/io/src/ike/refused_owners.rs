//! Socket names whose owners get no IKE messages, remembered for a moment, so that who takes a
//! daemon's name does not have the kernel look for its owner at each message.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use nix::unistd::Uid;

/// How long a refusal holds. A daemon that gets its name back waits no longer for its messages.
pub(super) const HOLDS: Duration = Duration::from_secs(1);

/// Names that are remembered; the oldest is forgotten for another.
const MOST: usize = 64;

/// A name, who has it, and until when that is believed.
#[derive(Debug)]
struct Refused {
    name: String,
    user: Uid,
    until: Instant,
}

/// The refused owners, the oldest first.
#[derive(Debug, Default)]
pub(super) struct RefusedOwners(VecDeque<Refused>);

impl RefusedOwners {
    /// The user who had this name a moment ago and was refused.
    pub(super) fn find(&self, name: &str, now: Instant) -> Option<Uid> {
        let found = self.0.iter().find(|refused| refused.name == name && now < refused.until);
        found.map(|refused| refused.user)
    }

    /// Remembers a refusal.
    pub(super) fn note(&mut self, name: &str, user: Uid, now: Instant) {
        self.0.retain(|refused| refused.name != name);
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back(Refused { name: name.to_owned(), user, until: now + HOLDS });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_holds_for_its_time_and_for_so_many_names() {
        let (mut refused, now) = (RefusedOwners::default(), Instant::now());
        let user = Uid::from_raw(1000);
        refused.note("a", user, now);
        assert_eq!(refused.find("a", now + HOLDS / 2), Some(user));
        assert_eq!(refused.find("b", now), None);
        assert_eq!(refused.find("a", now + HOLDS), None, "it is asked for anew");
        refused.note("a", Uid::from_raw(7), now + HOLDS);
        assert_eq!(refused.find("a", now + HOLDS), Some(Uid::from_raw(7)));
        (0..MOST).for_each(|number| refused.note(&number.to_string(), user, now));
        assert_eq!((refused.0.len(), refused.find("a", now)), (MOST, None));
    }
}
