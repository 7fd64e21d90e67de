//! What is scarce, by client: so much in all, and of that so much for one client, so that nobody
//! can have all of it. Root has a share beside all others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::access::Client;

/// How much there is.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShareBounds {
    /// For all but root.
    pub(super) all: usize,
    /// For one client.
    pub(super) one: usize,
    /// For all sessions of browsers: who knows the token can begin any number of them.
    pub(super) sessions: usize,
}

/// What clients have of it.
#[derive(Clone, Debug)]
pub(super) struct ClientShares {
    bounds: ShareBounds,
    taken: Arc<Mutex<HashMap<Client, usize>>>,
}

/// What was taken for one client, until this is dropped.
#[derive(Debug)]
pub(super) struct TakenShare {
    shares: ClientShares,
    client: Client,
    amount: usize,
}

/// Why there is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShareError {
    /// All of it is taken.
    Exhausted,
    /// The client has all that one may have.
    Greedy,
}

impl ClientShares {
    /// Nobody has anything.
    pub(super) fn new(bounds: ShareBounds) -> Self {
        Self { bounds, taken: Arc::default() }
    }

    /// So much for this client.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn take(&self, client: Client, amount: usize) -> Result<TakenShare, ShareError> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        // Few clients have something at a time.
        let of = |wanted: fn(&Client) -> bool| -> usize {
            taken.iter().filter(|(client, _)| wanted(client)).map(|(_, amount)| amount).sum()
        };
        if !client.is_root() && of(|client| !client.is_root()) + amount > self.bounds.all {
            return Err(ShareError::Exhausted);
        }
        let is_over = client.is_session() && of(Client::is_session) + amount > self.bounds.sessions;
        let own = taken.get(&client).copied().unwrap_or_default();
        if is_over || own + amount > self.bounds.one {
            return Err(ShareError::Greedy);
        }
        taken.insert(client, own + amount);
        Ok(TakenShare { shares: self.clone(), client, amount })
    }
}

impl Drop for TakenShare {
    fn drop(&mut self) {
        let mut taken = self.shares.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(amount) = taken.get_mut(&self.client) {
            *amount -= self.amount;
            if *amount == 0 {
                taken.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: ShareBounds = ShareBounds { all: 64, one: 16, sessions: 32 };

    fn enter(all: &ClientShares, client: Client, count: usize) -> Vec<TakenShare> {
        (0..count).map(|_| all.take(client, 1).unwrap()).collect()
    }

    fn error(all: &ClientShares, client: Client) -> Option<ShareError> {
        all.take(client, 1).err()
    }

    #[test]
    fn one_client_has_a_share_and_leaves_the_rest() {
        let all = ClientShares::new(BOUNDS);
        let mut of_token = enter(&all, Client::Token, BOUNDS.one);
        assert_eq!(error(&all, Client::Token), Some(ShareError::Greedy));
        let of_user = enter(&all, Client::User(7), BOUNDS.one);
        assert_eq!(error(&all, Client::User(7)), Some(ShareError::Greedy));
        drop(of_token.pop());
        of_token.push(all.take(Client::Token, 1).unwrap());
        drop((of_token, of_user));
        assert!(all.taken.lock().unwrap().is_empty(), "nothing is kept of clients that have gone");
    }

    #[test]
    fn many_sessions_are_no_way_around_the_share() {
        let all = ClientShares::new(BOUNDS);
        let first = enter(&all, Client::Session(1), BOUNDS.one);
        assert_eq!(error(&all, Client::Session(1)), Some(ShareError::Greedy));
        let more: Vec<_> = (2..18).map(|number| all.take(Client::Session(number), 1)).collect();
        assert!(more.iter().all(Result::is_ok));
        assert_eq!(error(&all, Client::Session(18)), Some(ShareError::Greedy));
        let others = [Client::Token, Client::User(7)].map(|client| enter(&all, client, 16));
        assert_eq!(error(&all, Client::Server), Some(ShareError::Exhausted));
        drop((first, others));
        all.take(Client::Server, 1).unwrap();
    }

    #[test]
    fn root_has_its_share_whatever_others_have() {
        let all = ClientShares::new(BOUNDS);
        let _users: Vec<_> = (1..5).map(|user| enter(&all, Client::User(user), 16)).collect();
        assert_eq!(error(&all, Client::User(5)), Some(ShareError::Exhausted));
        let root = enter(&all, Client::User(0), BOUNDS.one);
        assert_eq!(error(&all, Client::User(0)), Some(ShareError::Greedy));
        drop(root);
        let other = ClientShares::new(BOUNDS);
        let _root = enter(&other, Client::User(0), BOUNDS.one);
        let _users: Vec<_> = (1..5).map(|user| enter(&other, Client::User(user), 16)).collect();
    }

    #[test]
    fn amounts_count() {
        let all = ClientShares::new(BOUNDS);
        let large = all.take(Client::Token, 15).unwrap();
        assert!(all.take(Client::Token, 2).is_err());
        let small = all.take(Client::Token, 1).unwrap();
        drop(large);
        assert!(all.take(Client::Token, 15).is_ok() && all.take(Client::Token, 16).is_err());
        drop(small);
        assert!(all.take(Client::Token, 17).is_err(), "more than a share");
    }
}
