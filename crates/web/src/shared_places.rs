//! Places that clients share: where all are taken, whoever has the most makes room.
//!
//! So each of N clients has an Nth of the places for certain, and one alone may have all of them
//! while nobody else asks. Root takes any other's place, and keeps up to half of the places whoever
//! asks. A client that has the most itself gives up a place where it does nothing. Where many have
//! few, a place of somebody who has shown nothing goes, then one that is idle, so that many users,
//! or the many numbers of one, shut nobody out who asks at once.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::access::Client;

/// What a place is needed for; the least makes room first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Need {
    /// Nothing, so far: nobody has shown that he may ask.
    Unproven,
    /// Nothing, until the client asks again.
    Idle,
    /// An answer that is being made or read.
    Busy,
}

/// Places, and who has them.
#[derive(Clone, Debug)]
pub(crate) struct SharedPlaces {
    count: usize,
    table: Arc<Mutex<Table>>,
}

/// The place of one client, until this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    number: u64,
    table: Arc<Mutex<Table>>,
    need: CurrentNeed,
}

/// Comes true when a place is given to another.
pub(crate) type GivenAway = oneshot::Receiver<Infallible>;

/// What a place is needed for now, for whoever finds out.
#[derive(Clone, Debug)]
pub(crate) struct CurrentNeed(Arc<AtomicU8>);

#[derive(Debug, Default)]
struct Table {
    /// How many places were given.
    given: u64,
    /// The oldest first.
    taken: Vec<TakenPlace>,
}

#[derive(Debug)]
struct TakenPlace {
    number: u64,
    client: Client,
    need: CurrentNeed,
    /// Ends [`GivenAway`] by its own end.
    _keeps: oneshot::Sender<Infallible>,
}

impl SharedPlaces {
    /// So many.
    pub(crate) fn new(count: usize) -> Self {
        Self { count, table: Arc::default() }
    }

    /// A place for a client, and when that goes to another. `None` where nobody makes room.
    pub(crate) fn enter(&self, client: Client, need: Need) -> Option<(Place, GivenAway)> {
        let mut table = lock(&self.table);
        if table.taken.len() >= self.count {
            let gone = table.makes_room(client, self.count / 2)?;
            drop(table.taken.remove(gone));
        }
        let (keeps, given_away) = oneshot::channel();
        let (number, need) = (table.given, CurrentNeed(Arc::new(AtomicU8::new(need as u8))));
        table.given += 1;
        table.taken.push(TakenPlace { number, client, need: need.clone(), _keeps: keeps });
        Some((Place { number, table: Arc::clone(&self.table), need }, given_away))
    }
}

impl Table {
    /// Whose place a newcomer takes.
    fn makes_room(&self, newcomer: Client, roots: usize) -> Option<usize> {
        let mut counts = HashMap::<Client, usize>::new();
        self.taken.iter().for_each(|taken| *counts.entry(taken.client).or_default() += 1);
        let own = counts.get(&newcomer).copied().unwrap_or_default();
        let easiest = |which: &dyn Fn(&TakenPlace) -> bool| {
            let taken = self.taken.iter().enumerate().filter(|(_, taken)| which(taken));
            let found = taken.min_by_key(|(_, taken)| {
                (Reverse(counts[&taken.client]), taken.need.now(), taken.number)
            });
            found.map(|(at, _)| at)
        };
        let is_kept = |taken: &TakenPlace| {
            taken.client.is_root()
                && taken.need.now() == Need::Busy
                && counts[&taken.client] <= roots
        };
        easiest(&|taken| counts[&taken.client] > own + 1 && !is_kept(taken))
            .or_else(|| {
                easiest(&|taken| taken.client == newcomer && taken.need.now() != Need::Busy)
            })
            .or_else(|| easiest(&|taken| newcomer.is_root() && !taken.client.is_root()))
            .or_else(|| {
                easiest(&|taken| counts[&taken.client] > own && taken.need.now() != Need::Busy)
            })
    }
}

impl Place {
    /// What it is needed for.
    pub(crate) fn need(&self) -> &CurrentNeed {
        &self.need
    }
}

impl CurrentNeed {
    /// It is needed for this now.
    pub(crate) fn set(&self, need: Need) {
        self.0.store(need as u8, Ordering::Relaxed);
    }

    /// What it is needed for.
    pub(crate) fn now(&self) -> Need {
        let number = self.0.load(Ordering::Relaxed);
        let known = [Need::Unproven, Need::Idle].into_iter().find(|need| *need as u8 == number);
        known.unwrap_or(Need::Busy)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.table).taken.retain(|taken| taken.number != self.number);
    }
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Client = Client::User(0);
    const COUNT: usize = 8;

    /// Places that these have taken, the oldest first.
    fn taken(by: &[(Client, Need, usize)]) -> (SharedPlaces, Vec<(Place, GivenAway)>) {
        let places = SharedPlaces::new(COUNT);
        let each = by.iter().flat_map(|(client, need, count)| vec![(*client, *need); *count]);
        let taken = each.map(|(client, need)| places.enter(client, need).unwrap()).collect();
        (places, taken)
    }

    /// Which place a newcomer gets: the number of the one whose it was.
    fn given(by: &[(Client, Need, usize)], newcomer: Client) -> Option<usize> {
        let (places, mut taken) = taken(by);
        assert_eq!(taken.len(), COUNT);
        let _place = places.enter(newcomer, Need::Unproven)?;
        let gone: Vec<_> =
            (0..COUNT).filter(|at| taken[*at].1.try_recv().is_err_and(is_closed)).collect();
        assert_eq!(gone.len(), 1, "{gone:?}");
        gone.first().copied()
    }

    fn is_closed(error: oneshot::error::TryRecvError) -> bool {
        error == oneshot::error::TryRecvError::Closed
    }

    #[test]
    fn whoever_has_the_most_makes_room() {
        use Need::{Busy, Idle, Unproven};
        let [a, b, c] = [1, 2, 3].map(Client::User);
        for (by, newcomer, expected) in [
            // One has all: anybody else gets in, at the place that is needed least.
            (vec![(a, Busy, 8)], b, Some(0)),
            (vec![(a, Busy, 4), (a, Idle, 4)], b, Some(4)),
            (vec![(a, Busy, 4), (a, Idle, 2), (a, Unproven, 2)], b, Some(6)),
            // Its own goes on only where it does nothing.
            (vec![(a, Busy, 8)], a, None),
            (vec![(a, Busy, 6), (a, Idle, 2)], a, Some(6)),
            // Those with a fair share keep it from others and from those who have more.
            (vec![(a, Busy, 4), (b, Busy, 4)], c, Some(0)),
            (vec![(a, Busy, 6), (b, Busy, 2)], a, None),
            (vec![(a, Busy, 6), (b, Unproven, 2)], a, None),
            (vec![(a, Busy, 6), (b, Busy, 2)], b, Some(0)),
            (vec![(a, Busy, 5), (b, Busy, 3)], b, Some(0)),
            (vec![(a, Busy, 4), (b, Busy, 4)], b, None),
            (vec![(a, Busy, 4), (b, Busy, 3), (b, Idle, 1)], b, Some(7)),
            // Many with few: who has shown nothing, and among them the oldest.
            (vec![(a, Busy, 3), (b, Busy, 3), (c, Unproven, 2)], Client::User(4), Some(0)),
            (vec![(a, Busy, 3), (b, Busy, 4), (c, Unproven, 1)], Client::User(4), Some(3)),
            // Root.
            (vec![(a, Busy, 1), (b, Busy, 1), (ROOT, Busy, 6)], ROOT, Some(0)),
            (vec![(a, Busy, 2), (ROOT, Busy, 5), (ROOT, Idle, 1)], ROOT, Some(7)),
            (vec![(ROOT, Busy, 8)], ROOT, None),
            (vec![(ROOT, Busy, 8)], a, Some(0)),
            (vec![(ROOT, Busy, 4), (b, Busy, 2), (c, Busy, 2)], a, Some(4)),
            (vec![(ROOT, Idle, 4), (b, Busy, 2), (c, Busy, 2)], a, Some(0)),
        ] {
            assert_eq!(given(&by, newcomer), expected, "{by:?} {newcomer:?}");
        }
    }

    /// A user has many numbers, or many users are one.
    #[test]
    fn many_strangers_make_room_for_one_more() {
        let places = SharedPlaces::new(COUNT);
        let strangers = 1..=100;
        let enter = |user| places.enter(Client::User(user), Need::Unproven).unwrap();
        let mut held: Vec<_> = strangers.map(enter).collect();
        let (place, mut given_away) = enter(101);
        place.need().set(Need::Busy);
        held.extend((102..=200).map(enter));
        assert!(!given_away.try_recv().is_err_and(is_closed));
    }

    /// Numbers of a user that no file tells of: each has shown the token, and asks nothing more.
    #[test]
    fn many_idle_users_make_room_for_one_more() {
        let places = SharedPlaces::new(COUNT);
        let idle = |user| places.enter(Client::User(user), Need::Idle).unwrap();
        let mut held: Vec<_> = (1..=100).map(idle).collect();
        let (place, mut given_away) = places.enter(Client::User(101), Need::Unproven).unwrap();
        place.need().set(Need::Busy);
        held.extend((102..=200).map(idle));
        assert!(!given_away.try_recv().is_err_and(is_closed), "who is answered keeps its place");
        assert!(places.enter(Client::User(200), Need::Unproven).is_some(), "its own idle one goes");
    }

    #[test]
    fn place_that_is_left_is_free() {
        let (places, mut held) = taken(&[(Client::Token, Need::Busy, COUNT)]);
        assert!(places.enter(Client::Token, Need::Busy).is_none());
        held[3].0.need().set(Need::Idle);
        held.push(places.enter(Client::Token, Need::Busy).unwrap());
        assert!(held[3].1.try_recv().is_err_and(is_closed));
        assert!(places.enter(Client::Token, Need::Busy).is_none());
        // Whose place was given away takes nobody's with it.
        drop(held.remove(3));
        assert!(places.enter(Client::Token, Need::Busy).is_none());
        drop(held.pop());
        assert!(places.enter(Client::Token, Need::Busy).is_some());
    }
}
