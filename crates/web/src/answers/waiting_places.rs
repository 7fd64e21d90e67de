//! Places for requests that wait for their turn to ask the gateway: so many in all, and of them so
//! many for one client, so that nobody can hold all of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::Error;
use crate::access::Client;

/// Requests that wait at a time.
const ALL: usize = 64;
/// Those of one client.
const OF_ONE: usize = 16;
/// Those of all sessions of browsers: who knows the token can begin any number of them.
const OF_SESSIONS: usize = 32;

/// The requests that wait, counted by client.
#[derive(Clone, Debug, Default)]
pub(super) struct WaitingRequests(Arc<Mutex<HashMap<Client, usize>>>);

/// The place of one request, until this is dropped.
#[derive(Debug)]
pub(super) struct WaitingPlace {
    all: WaitingRequests,
    client: Client,
}

impl WaitingRequests {
    /// A place for a request of this client.
    ///
    /// # Errors
    /// [`Error::Busy`] where all places are taken, [`Error::Greedy`] where this client has its own.
    pub(super) fn enter(&self, client: Client) -> Result<WaitingPlace, Error> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // No more clients than places.
        let of = |wanted: fn(&Client) -> bool| -> usize {
            waiting.iter().filter(|(client, _)| wanted(client)).map(|(_, count)| count).sum()
        };
        if of(|_| true) >= ALL {
            return Err(Error::Busy);
        }
        let is_over = client.is_session() && of(Client::is_session) >= OF_SESSIONS;
        if is_over || waiting.get(&client).is_some_and(|count| *count >= OF_ONE) {
            return Err(Error::Greedy);
        }
        *waiting.entry(client).or_default() += 1;
        Ok(WaitingPlace { all: self.clone(), client })
    }
}

impl Drop for WaitingPlace {
    fn drop(&mut self) {
        let mut waiting = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = waiting.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                waiting.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(all: &WaitingRequests, client: Client, count: usize) -> Vec<WaitingPlace> {
        (0..count).map(|_| all.enter(client).unwrap()).collect()
    }

    #[test]
    fn one_client_has_a_share_and_leaves_the_rest() {
        let all = WaitingRequests::default();
        let mut of_token = enter(&all, Client::Token, OF_ONE);
        assert!(matches!(all.enter(Client::Token), Err(Error::Greedy)));
        let of_user = enter(&all, Client::User(7), OF_ONE);
        assert!(matches!(all.enter(Client::User(7)), Err(Error::Greedy)));
        drop(of_token.pop());
        of_token.push(all.enter(Client::Token).unwrap());
        drop((of_token, of_user));
        assert!(all.0.lock().unwrap().is_empty(), "nothing is kept of clients that wait no more");
    }

    #[test]
    fn many_sessions_are_no_way_around_the_share() {
        let all = WaitingRequests::default();
        let first = enter(&all, Client::Session(1), OF_ONE);
        assert!(matches!(all.enter(Client::Session(1)), Err(Error::Greedy)));
        let more: Vec<_> = (2..18).map(|number| all.enter(Client::Session(number))).collect();
        assert!(more.iter().all(Result::is_ok));
        assert!(matches!(all.enter(Client::Session(18)), Err(Error::Greedy)));
        let others = [Client::Token, Client::User(0)].map(|client| enter(&all, client, OF_ONE));
        assert!(matches!(all.enter(Client::Server), Err(Error::Busy)));
        drop((first, others));
        all.enter(Client::Server).unwrap();
    }
}
