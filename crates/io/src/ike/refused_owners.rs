//! Socket addresses whose owners get no IKE messages, remembered for a moment, so that who takes a
//! daemon's name does not have the kernel look for its owner at each message.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use nix::unistd::Uid;

use super::DaemonAddress;

/// How long a refusal holds. A daemon that gets its name back waits no longer for its messages.
pub(super) const HOLDS: Duration = Duration::from_secs(1);

/// Addresses that are remembered; the oldest is forgotten for another.
const MOST: usize = 64;

/// An address, who has it, and until when that is believed.
#[derive(Debug)]
struct Refused {
    address: DaemonAddress,
    user: Uid,
    until: Instant,
}

/// The refused owners, the oldest first.
#[derive(Debug, Default)]
pub(super) struct RefusedOwners(VecDeque<Refused>);

impl RefusedOwners {
    /// The user who was there a moment ago and was refused.
    pub(super) fn find(&self, address: &DaemonAddress, now: Instant) -> Option<Uid> {
        let is_it = |refused: &&Refused| refused.address == *address && now < refused.until;
        let found = self.0.iter().find(is_it);
        found.map(|refused| refused.user)
    }

    /// Remembers a refusal.
    pub(super) fn note(&mut self, address: &DaemonAddress, user: Uid, now: Instant) {
        self.0.retain(|refused| refused.address != *address);
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back(Refused { address: address.clone(), user, until: now + HOLDS });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_holds_for_its_time_and_for_so_many_names() {
        let (mut refused, now) = (RefusedOwners::default(), Instant::now());
        let (user, name) = (Uid::from_raw(1000), |name: &str| DaemonAddress::Name(name.to_owned()));
        let a = name("a");
        refused.note(&a, user, now);
        assert_eq!(refused.find(&a, now + HOLDS / 2), Some(user));
        assert_eq!(refused.find(&name("b"), now), None);
        assert_eq!(refused.find(&DaemonAddress::File("a".into()), now), None);
        assert_eq!(refused.find(&a, now + HOLDS), None, "it is asked for anew");
        refused.note(&a, Uid::from_raw(7), now + HOLDS);
        assert_eq!(refused.find(&a, now + HOLDS), Some(Uid::from_raw(7)));
        (0..MOST).for_each(|number| refused.note(&name(&number.to_string()), user, now));
        assert_eq!((refused.0.len(), refused.find(&a, now)), (MOST, None));
    }
}
