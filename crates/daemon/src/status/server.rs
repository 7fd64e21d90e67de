//! The loop of the status thread: listeners, up to 64 clients, and the board.

use std::{
    collections::BTreeSet,
    io::{self, ErrorKind},
    os::{fd::AsFd as _, unix::net::UnixStream},
    thread,
    time::Duration,
};

use uxfrm_engine::Moment;
use uxfrm_io::poll::{Poller, Ready};
use uxfrm_status::protocol::StatusRequest;

use super::{
    Order, Rested,
    access::{Access, Readers},
    answer::Sources,
    board::{Board, Posted},
    client::{self, Client, Phase, Progress},
    drops,
    share::{self, Clients, RoundRobin, is_owed_enough, place},
    socket::StatusListeners,
    watch::Watcher,
};
use crate::clock::now;

/// What the listeners are reported as; clients are by their places, from 1 on.
const LISTENER: u8 = 0;
/// Connections taken before it is the clients' turn: any user may connect, as an abstract name has
/// no permissions, and who did is known only then.
const TURN: usize = 64;
/// The longest wait: orders wake it, deadlines end it earlier, and records of dropped packets are
/// to be taken.
const LONGEST: Duration = drops::ROUND;
/// Where something is short that others give back by and by.
const BREATHER: Duration = Duration::from_millis(10);
/// While it rests: clients that are connected get so long to say what they ask.
const GRACE: Duration = Duration::from_millis(100);

/// The thread's own.
#[derive(Debug)]
pub(super) struct Server {
    listeners: StatusListeners,
    poller: Poller,
    readers: Readers,
    sources: Sources,
    rested: Rested,
    clients: Clients,
    round_robin: RoundRobin,
    /// Whether clients are due whose turn has not come.
    is_behind: bool,
    /// Places whose clients have asked more than one turn answers.
    unfinished: BTreeSet<u8>,
    /// Whether the listeners are waited for.
    listens: bool,
    /// Since when it is to rest, and whether the control thread was told that it does.
    rest: Option<(Moment, RestNotice)>,
}

/// Whether the control thread knows that nobody is being answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RestNotice {
    Due,
    Sent,
}

/// What came of a client that has connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    /// It has a place that was free, or none.
    Done,
    /// It has that of another. It is heard before the next one may take its own.
    InPlaceOfAnother,
}

impl Server {
    /// One without clients.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn new(
        listeners: StatusListeners,
        poller: Poller,
        readers: Readers,
        sources: Sources,
        rested: Rested,
    ) -> io::Result<Self> {
        Ok(Self {
            listeners,
            poller,
            readers,
            sources,
            rested,
            clients: Clients::new(),
            round_robin: RoundRobin::default(),
            is_behind: false,
            unfinished: BTreeSet::new(),
            listens: false,
            rest: None,
        })
    }

    /// Waits for something to do and does it, each client's share.
    ///
    /// # Errors
    /// The kernel's about the poller.
    pub(super) fn turn(&mut self, order: Order, board: &Board) -> io::Result<()> {
        self.follow(order)?;
        let ready = self.poller.wait(Some(self.patience()))?;
        self.sources.collect(board);
        if self.listens && ready.has(LISTENER) {
            self.accept();
        }
        self.hear(&ready, board);
        self.answer(board);
        self.end_overdue();
        self.finish_rest(board);
        Ok(())
    }

    /// Listens, or not, as it is told and there is room.
    fn follow(&mut self, order: Order) -> io::Result<()> {
        self.rest = match order {
            Order::Serve => None,
            Order::Rest | Order::Stop => self.rest.or_else(|| Some((now(), RestNotice::Due))),
        };
        // Whose a connection is shows when it is taken.
        let listens = self.rest.is_none() && place(&self.clients, Access::Full).is_some();
        if listens != self.listens {
            let poller = &mut self.poller;
            match listens {
                true => self.listeners.descriptors().try_for_each(|at| poller.add(at, LISTENER))?,
                false => self.listeners.descriptors().try_for_each(|at| poller.remove(at))?,
            }
            self.listens = listens;
        }
        Ok(())
    }

    /// Until the next deadline. A client whose answer has to wait for others to read theirs has
    /// none.
    fn patience(&self) -> Duration {
        if self.is_behind || !self.unfinished.is_empty() {
            return Duration::ZERO;
        }
        let now = now();
        let next = self.clients.values().map(|client| match client.phase {
            Phase::Waits(..) if client.until <= now => BREATHER,
            Phase::Waits(..) | Phase::Asks | Phase::Reads => client.until.since(now),
        });
        let next = next.min();
        let most = match self.rest {
            Some((_, RestNotice::Due)) => GRACE,
            Some((_, RestNotice::Sent)) | None => LONGEST,
        };
        next.unwrap_or(most).min(most)
    }

    /// Takes up to a turn of those that wait; while more do, a listener stays readable.
    fn accept(&mut self) {
        for _ in 0..TURN {
            if place(&self.clients, Access::Full).is_none() {
                return;
            }
            let client = match self.listeners.accept() {
                Ok(client) => UnixStream::from(client),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::debug!(%error, "a client of the status socket can't be taken");
                    return thread::sleep(BREATHER);
                }
            };
            // Who may not ask is gone at once.
            if let Ok(Some(access)) = self.readers.admit(&client)
                && self.admit(client, access) == Admission::InPlaceOfAnother
            {
                return;
            }
        }
    }

    /// Gives a client a place, if there is one. Who has none, or no longer, is told.
    fn admit(&mut self, mut stream: UnixStream, access: Access) -> Admission {
        let Some(place) = place(&self.clients, access) else {
            client::turn_away(&mut stream);
            return Admission::Done;
        };
        let before = self.remove_client(place);
        match self.poller.add(stream.as_fd(), place) {
            Ok(()) => drop(self.clients.insert(place, Client::new(stream, access, now()))),
            Err(error) => tracing::debug!(%error, "a client of the status socket can't be heard"),
        }
        let Some(before) = before else { return Admission::Done };
        before.turn_away();
        Admission::InPlaceOfAnother
    }

    /// Goes on with those that have sent something, or have read something.
    fn hear(&mut self, ready: &Ready, board: &Board) {
        let is_next = |place: &u8| ready.has(*place) || self.unfinished.contains(place);
        let mut places: Vec<_> = self.clients.keys().copied().filter(is_next).collect();
        places.sort_by_key(|place| self.clients[place].access != Access::Full);
        for place in places {
            self.advance(place, board);
        }
    }

    /// Reads a client's request, or sends what it is owed, as far as that goes in one turn. What is
    /// answered at once, as a refusal, counts as well: nobody sees another turn by asking on.
    fn advance(&mut self, place: u8, board: &Board) {
        self.unfinished.remove(&place);
        let Some(client) = self.clients.get(&place) else { return };
        for _ in 0..share::answers_a_turn(client.access) {
            let Some(client) = self.clients.get_mut(&place) else { return };
            let progress = match client.phase {
                Phase::Asks => client.hear(now()),
                Phase::Reads => client.send(now()),
                Phase::Waits(..) => return,
            };
            match progress {
                Progress::Answered => {}
                Progress::Asked(request) => match self.watch(place, &request, board) {
                    Some(line) => self.answer_at_once(place, line),
                    None => return self.ask(place, request, board),
                },
                Progress::Pending => return self.await_client(place),
                Progress::Over => return self.drop_client(place),
            }
        }
        self.unfinished.insert(place);
    }

    /// Waits for what a client does next.
    fn await_client(&mut self, place: u8) {
        let Some(client) = self.clients.get(&place) else { return };
        let stream = client.stream.as_fd();
        let awaited = match client.phase {
            Phase::Asks => self.poller.await_input(stream, place),
            Phase::Reads => self.poller.await_room(stream, place),
            Phase::Waits(..) => Ok(()),
        };
        if awaited.is_err() {
            self.drop_client(place);
        }
    }

    /// The answer to a client that watches packets, for which nobody else is asked.
    fn watch(&mut self, place: u8, request: &StatusRequest, board: &Board) -> Option<Vec<u8>> {
        let others = self.clients.iter().filter(|(other, _)| **other != place);
        let others = others.filter(|(_, client)| client.watch.is_some()).count();
        let client = self.clients.get_mut(&place)?;
        let posted = board.posted();
        let watcher = Watcher { access: client.access, others, posted: &posted };
        let answer = self.sources.watch(&mut client.watch, request, watcher);
        answer.map(|answer| answer.to_line())
    }

    fn answer_at_once(&mut self, place: u8, line: Vec<u8>) {
        if let Some(client) = self.clients.get_mut(&place) {
            client.answer(line, now());
        }
    }

    /// Asks the control thread on behalf of a client, which is not heard meanwhile.
    fn ask(&mut self, place: u8, request: StatusRequest, board: &Board) {
        let Some(client) = self.clients.get_mut(&place) else { return };
        if self.poller.remove(client.stream.as_fd()).is_err() {
            return self.drop_client(place);
        }
        client.wait(request, board.ask(), now());
    }

    /// Answers those for whom the control thread has posted what it knows, or does not in time:
    /// all with full access, and then one member of the group, so that who comes next does not wait
    /// for all of them.
    fn answer(&mut self, board: &Board) {
        let posted = board.posted();
        let due = self.due(&posted);
        for (place, access) in &due {
            if *access == Access::Full {
                self.answer_one(*place, &posted, board);
            }
        }
        let members = due.iter().filter_map(|(place, access)| match access {
            Access::Full => None,
            Access::Group { user } => Some((*place, *user)),
        });
        let served = self.round_robin.take(members);
        if let Some(place) = served {
            self.answer_one(place, &posted, board);
        }
        self.is_behind = !self.due(&posted).is_empty();
    }

    /// Clients that can be answered now.
    fn due(&self, posted: &Posted) -> Vec<(u8, Access)> {
        let is_due = |client: &Client| match &client.phase {
            Phase::Waits(_, ticket) => {
                posted.answers(*ticket) || self.rest.is_some() || now() >= client.until
            }
            Phase::Asks | Phase::Reads => false,
        };
        let due = self.clients.iter().filter(|(_, client)| is_due(client));
        let due = due.map(|(place, client)| (*place, client.access));
        due.filter(|(_, access)| !is_owed_enough(&self.clients, *access)).collect()
    }

    fn answer_one(&mut self, place: u8, posted: &Posted, board: &Board) {
        let Some(client) = self.clients.get(&place) else { return };
        let Phase::Waits(request, _) = &client.phase else { return };
        if !is_owed_enough(&self.clients, client.access) {
            let line = self.sources.answer(request, posted, client.access).to_line();
            self.send(place, line, board);
        }
    }

    fn send(&mut self, place: u8, line: Vec<u8>, board: &Board) {
        let Some(client) = self.clients.get_mut(&place) else { return };
        client.answer(line, now());
        match self.poller.add(client.stream.as_fd(), place) {
            Ok(()) => self.advance(place, board),
            Err(_) => self.drop_client(place),
        }
    }

    /// Ends clients that took too long. Those that wait for others than themselves are no
    /// slower than the answers before theirs.
    fn end_overdue(&mut self) {
        let now = now();
        let overdue = self.clients.iter().filter(|(_, client)| match client.phase {
            Phase::Asks | Phase::Reads => client.until <= now,
            Phase::Waits(..) => false,
        });
        let overdue: Vec<_> = overdue.map(|(place, _)| *place).collect();
        for place in overdue {
            self.drop_client(place);
        }
    }

    fn remove_client(&mut self, place: u8) -> Option<Client> {
        self.unfinished.remove(&place);
        self.clients.remove(&place)
    }

    fn drop_client(&mut self, place: u8) {
        // Its descriptor's end takes it from the poller.
        drop(self.remove_client(place));
    }

    /// Tells the control thread when nobody is being answered any more. Who is connected and has
    /// not asked by then is left to ask the process that takes over.
    fn finish_rest(&mut self, board: &Board) {
        let Some((since, RestNotice::Due)) = self.rest else { return };
        let is_answered = self.clients.values().all(|client| client.phase == Phase::Asks);
        if is_answered && (self.clients.is_empty() || now().since(since) >= GRACE) {
            self.clients.clear();
            self.rest = Some((since, RestNotice::Sent));
            // The control thread may have given up.
            let _late = self.rested.send(self.sources.last_drops(&board.posted()));
        }
    }
}

#[cfg(test)]
mod tests;
