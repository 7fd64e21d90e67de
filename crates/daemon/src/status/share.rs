//! What each user may have of the status thread: places, memory and time.
//!
//! Root and the gateway's own user come first, and wait for one answer to somebody else at the
//! most. Members of a group cannot take their places. Where members have taken all of theirs, one
//! who has fewer takes a place of whoever has the most, or of somebody who asks nothing, has not
//! ended a request or does not read: a user may have many numbers (`subuid(5)`), so that a share of
//! each number alone would keep others out.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
};

use super::{
    access::Access,
    client::{Client, Need},
};

/// Clients at once.
pub(super) const CLIENTS: u8 = 64;
/// Of them, members of the group.
const OF_GROUP: usize = 48;
/// Of them, of one user.
const OF_USER: usize = 16;
/// Bytes of answers that may wait for root and the gateway's user before the next one is made.
const OWED: usize = 32 << 20;
/// The same for a member of the group.
const OWED_BY_USER: usize = 8 << 20;
/// Users whose turns are remembered.
const USERS: usize = 256;

/// The clients by their places, from 1 on.
pub(super) type Clients = BTreeMap<u8, Client>;

/// A place for a client that may ask so much: a free one, or that of one that asks nothing, or for
/// root that of a member who is still asking, or for a member that of one who [makes
/// room](makes_room). `None` when it is to be sent away.
pub(super) fn place(clients: &Clients, access: Access) -> Option<u8> {
    let free = || (1..=CLIENTS).find(|place| !clients.contains_key(place));
    match access {
        Access::Full => {
            let quiet = || oldest(clients, Client::is_quiet);
            let asking =
                || oldest(clients, |client| client.access != Access::Full && client.is_asking());
            free().or_else(quiet).or_else(asking)
        }
        Access::Group { .. } => {
            let own = |client: &Client| client.access == access;
            let members = |client: &Client| client.access != Access::Full;
            let own_quiet = || oldest(clients, |client| own(client) && client.is_quiet());
            if count(clients, own) >= OF_USER {
                own_quiet()
            } else if count(clients, members) >= OF_GROUP {
                makes_room(clients, access).or_else(own_quiet)
            } else {
                let quiet = || oldest(clients, Client::is_quiet);
                free().or_else(quiet).or_else(|| makes_room(clients, access))
            }
        }
    }
}

/// The place of a member that goes to another who has fewer: of those who have the most, what they
/// need least, and of that the oldest. The only place of a member is safe while it is being
/// answered.
fn makes_room(clients: &Clients, newcomer: Access) -> Option<u8> {
    let mut counts = HashMap::<u32, usize>::new();
    for user in clients.values().filter_map(|client| client.access.member()) {
        *counts.entry(user).or_default() += 1;
    }
    let count_of = |access: Access| {
        let count = access.member().and_then(|user| counts.get(&user));
        count.copied().unwrap_or_default()
    };
    let own = count_of(newcomer);
    let gives = clients.iter().filter(|(_, client)| {
        let count = count_of(client.access);
        count > own + 1 || count > own && client.need() < Need::Answer
    });
    let found = gives
        .min_by_key(|(_, client)| (Reverse(count_of(client.access)), client.need(), client.until));
    found.map(|(place, _)| *place)
}

fn count(clients: &Clients, which: impl Fn(&Client) -> bool) -> usize {
    clients.values().filter(|client| which(client)).count()
}

fn oldest(clients: &Clients, which: impl Fn(&Client) -> bool) -> Option<u8> {
    let found = clients.iter().filter(|(_, client)| which(client));
    found.min_by_key(|(_, client)| client.until).map(|(place, _)| *place)
}

/// Steps of a client in one turn: a request read, or an answer sent. Behind them comes the next
/// client, those with full access first.
pub(super) const fn answers_a_turn(access: Access) -> usize {
    match access {
        Access::Full => 16,
        Access::Group { .. } => 2,
    }
}

/// Whether so much waits to be read by those with this access that no more is made for them.
pub(super) fn is_owed_enough(clients: &Clients, access: Access) -> bool {
    let theirs = clients.values().filter(|client| client.access == access);
    let owed: usize = theirs.map(Client::owed).sum();
    owed > match access {
        Access::Full => OWED,
        Access::Group { .. } => OWED_BY_USER,
    }
}

/// Whose turn it is among the members of the group.
#[derive(Debug, Default)]
pub(super) struct RoundRobin {
    last: BTreeMap<u32, u64>,
    given: u64,
}

impl RoundRobin {
    /// Of clients that are due, the one whose user has waited longest; it has had its turn.
    pub(super) fn take(&mut self, due: impl IntoIterator<Item = (u8, u32)>) -> Option<u8> {
        let last = |user: &u32| self.last.get(user).copied().unwrap_or_default();
        let (place, user) = due.into_iter().min_by_key(|(place, user)| (last(user), *place))?;
        if self.last.len() >= USERS {
            self.last.clear();
        }
        self.given += 1;
        self.last.insert(user, self.given);
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use uxfrm_engine::Moment;

    use super::*;
    use crate::status::client::Phase;

    fn client(access: Access, until: u64) -> Client {
        let (near, far) = UnixStream::pair().unwrap();
        drop(far);
        let mut client = Client::new(near, access, Moment(0));
        client.until = Moment::from_secs(until);
        client
    }

    fn of(user: u32) -> Access {
        Access::Group { user }
    }

    /// Places from 1 on, each with its access; `asking` have sent half a request.
    fn clients(accesses: impl IntoIterator<Item = Access>, asking: bool) -> Clients {
        let made = accesses.into_iter().zip(1..).map(|(access, place)| {
            let mut client = client(access, u64::from(place));
            if asking {
                client.note_input(b"{");
            }
            (place, client)
        });
        made.collect()
    }

    #[test]
    fn member_has_its_share_and_root_the_rest() {
        let busy = clients((0..16).map(|_| of(1)), true);
        assert_eq!(place(&busy, of(1)), None, "its share is taken");
        assert_eq!(place(&busy, of(2)), Some(17));
        let quiet = clients((0..16).map(|_| of(1)), false);
        assert_eq!(place(&quiet, of(1)), Some(1), "its own oldest goes");

        let group = clients((0..48).map(|at| of(at / 16)), true);
        assert_eq!(place(&group, of(9)), Some(1), "who has the most makes room");
        assert_eq!(place(&group, of(1)), None);
        assert_eq!(place(&group, Access::Full), Some(49));
    }

    /// Who has the place of this number.
    type Users = fn(usize) -> u32;

    /// A place for each of the group, by who has it and what it is in the middle of.
    fn group(by: &[(usize, Users, Need)]) -> Clients {
        let each = by
            .iter()
            .flat_map(|(count, user, need)| (0..*count).map(move |at| (of(user(at)), *need)));
        let made = each.zip(1..).map(|((access, need), place)| {
            let mut client = client(access, u64::from(place));
            match need {
                Need::Nothing => {}
                Need::Request => client.note_input(b"{"),
                Need::Reader => client.phase = Phase::Reads,
                Need::Answer => client.note_asked(),
            }
            client.until = Moment::from_secs(u64::from(place));
            assert_eq!(client.need(), need);
            (place, client)
        });
        made.collect()
    }

    #[test]
    fn newcomer_takes_the_place_that_is_needed_least() {
        use Need::{Answer, Nothing, Reader, Request};
        fn each(at: usize) -> u32 {
            100 + u32::try_from(at).unwrap()
        }
        let (next, one): (Users, Users) = (|at| each(at + 40), |_| 1);
        let newcomer = of(9);
        for (by, expected) in [
            // Many numbers with one place each: who has not ended a request, the oldest first.
            (vec![(48, each as Users, Request)], Some(1)),
            (vec![(40, each, Answer), (8, next, Request)], Some(41)),
            (vec![(40, each, Request), (8, next, Nothing)], Some(41)),
            (vec![(40, each, Answer), (8, next, Reader)], Some(41)),
            (vec![(40, each, Reader), (8, next, Request)], Some(41)),
            // All are being answered, and soon gone.
            (vec![(48, each, Answer)], None),
            // Who has more than one gives the one that it needs least.
            (vec![(46, each as Users, Request), (2, one, Answer)], Some(47)),
            (vec![(46, each, Nothing), (1, one, Answer), (1, one, Reader)], Some(48)),
            (vec![(32, |at| 1 + u32::from(at >= 16), Answer), (16, |_| 3, Request)], Some(33)),
        ] {
            let clients = group(&by);
            assert_eq!(place(&clients, newcomer), expected, "{expected:?}");
        }
        let half = group(&[(48, each as Users, Request)]);
        assert_eq!(place(&half, of(100)), None, "who has as much takes nobody's");
    }

    /// A user's numbers, each with half a request and coming again as soon as it is sent away.
    #[test]
    fn crowd_of_half_requests_leaves_who_is_answered_alone() {
        let mut clients = Clients::new();
        let enter = |clients: &mut Clients, user: u32, at: u64| {
            let place = place(clients, of(user))?;
            clients.insert(place, client(of(user), at));
            Some(place)
        };
        for at in 0..48 {
            let place = enter(&mut clients, 100 + at, at.into()).unwrap();
            clients.get_mut(&place).unwrap().note_input(b"{");
        }
        let member = enter(&mut clients, 9, 48).expect("a member is let in");
        clients.get_mut(&member).unwrap().note_asked();
        for at in 49..500 {
            let place = enter(&mut clients, 100 + at, at.into()).expect("and so are others");
            assert_ne!(place, member);
            clients.get_mut(&place).unwrap().note_input(b"{");
        }
    }

    #[test]
    fn root_takes_a_member_s_place_where_all_are_taken() {
        let all = (0..64).map(|at| if at < 40 { Access::Full } else { of(at / 16) });
        assert_eq!(place(&clients(all.clone(), true), Access::Full), Some(41));
        assert_eq!(
            place(&clients(all, false), Access::Full),
            Some(1),
            "who asks nothing goes first"
        );
        let roots = clients((0..64).map(|_| Access::Full), true);
        assert_eq!(place(&roots, Access::Full), None);
        assert_eq!(place(&roots, of(1)), None, "no member takes root's");
    }

    #[test]
    fn slow_reader_keeps_only_its_user_waiting() {
        let mut clients = clients([of(1), of(1), of(2), Access::Full], false);
        for place in [1, 2] {
            let answer = vec![0; OWED_BY_USER / 2 + 1];
            clients.get_mut(&place).unwrap().answer(answer, Moment(0));
        }
        assert!(is_owed_enough(&clients, of(1)));
        assert!(!is_owed_enough(&clients, of(2)) && !is_owed_enough(&clients, Access::Full));
    }

    #[test]
    fn users_take_turns_however_often_one_asks() {
        let mut round_robin = RoundRobin::default();
        let due = [(1, 10), (2, 10), (3, 10), (4, 11), (5, 12)];
        let order: Vec<_> = (0..6).map(|_| round_robin.take(due).unwrap()).collect();
        assert_eq!(order, [1, 4, 5, 1, 4, 5]);
        assert_eq!(round_robin.take([]), None);
    }
}
