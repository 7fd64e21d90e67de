//! Busy polling: stays with a client that sends its next request as soon as it has an answer, until
//! it stops or others have waited too long.
//!
//! Its requests come on the page that it shares with us, if it shares one, else on the socket. The
//! page is closed before we turn to anything else, so that nothing lies there unseen.

pub(crate) mod follow_up;

use std::{hint::spin_loop, time::Instant};

use uxfrm_control::mailbox::{CloseOutcome, ServerPoll};
use zeroize::Zeroize as _;

use super::{BUDGET, Control, Presence, TURN, session::Session};
use crate::protocol::{ClientId, Protocol};

/// Looks at a page between two looks at the clock.
const LOOKS: usize = 64;

/// What waiting for a client brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// A request, or several, that were carried out.
    Request,
    /// Nothing in time.
    Nothing,
    /// It is gone.
    Gone,
}

impl Control {
    /// Serves one client until somebody else waits; whether somebody does is asked when the budget
    /// of a call that began at `begun` is spent.
    pub(super) fn busy_poll_client(
        &mut self,
        id: ClientId,
        begun: Instant,
        protocol: &mut impl Protocol,
    ) {
        let (mut answered, mut asked) = (Instant::now(), begun);
        loop {
            if answered.duration_since(asked) >= BUDGET {
                if protocol.is_wanted() {
                    break;
                }
                asked = answered;
            }
            protocol.prepare();
            match self.wait_for(id, answered, protocol) {
                Next::Request => self.follow_up.rest(),
                Next::Nothing => {
                    self.follow_up.pause_waiting();
                    break;
                }
                Next::Gone => return self.disconnect(id, protocol),
            }
            // When it asked is not known, but that it did so in time.
            if self.end_round(answered, protocol) != Some(id) {
                break;
            }
            answered = Instant::now();
        }
        self.leave(id, protocol);
    }

    /// Waits for the next request of a client that was answered a moment ago. One that had been on
    /// the socket already may be one of many.
    fn wait_for(&mut self, id: ClientId, answered: Instant, protocol: &mut impl Protocol) -> Next {
        let (mut answered, mut most) = (answered, TURN);
        self.client(id).into_iter().for_each(Session::open_mailbox);
        loop {
            for _ in 0..LOOKS {
                match self.look(id) {
                    ServerPoll::Request(length) => {
                        self.take_from_page(id, length, protocol);
                        return Next::Request;
                    }
                    ServerPoll::Nothing => spin_loop(),
                    ServerPoll::Closed => {
                        if self.receive_from(id, most, protocol) == Presence::Gone {
                            return Next::Gone;
                        }
                        if !self.heard.is_empty() {
                            return Next::Request;
                        }
                        most = 1;
                        break;
                    }
                }
            }
            if self.wake(id) {
                answered = Instant::now();
            } else if answered.elapsed() >= follow_up::PATIENCE {
                return Next::Nothing;
            }
        }
    }

    /// Sends a client on the socket what it has not collected by now: it sleeps there. False when
    /// it has collected it.
    fn wake(&mut self, id: ClientId) -> bool {
        let client = Self::client_mut(&mut self.clients, id);
        let Some(length) = client.and_then(|client| client.take_back(&mut self.buffer)) else {
            return false;
        };
        self.send_left(id, length);
        self.client(id).into_iter().for_each(Session::open_mailbox);
        true
    }

    /// Turns to others: what lies on the page goes the way of the socket.
    fn leave(&mut self, id: ClientId, protocol: &mut impl Protocol) {
        let Some(client) = Self::client_mut(&mut self.clients, id) else { return };
        match client.close_mailbox(&mut self.buffer) {
            CloseOutcome::Request(length) => {
                self.take_from_page(id, length, protocol);
                self.end_round(Instant::now(), protocol);
            }
            CloseOutcome::Answer(length) => self.send_left(id, length),
            CloseOutcome::Nothing => {}
        }
    }

    /// Sends an answer that lay on the page, and now lies in the buffer, on the socket.
    fn send_left(&mut self, id: ClientId, length: usize) {
        let answer = self.buffer[..length].to_vec();
        self.outbox.send(id, answer);
        self.post();
    }

    fn look(&mut self, id: ClientId) -> ServerPoll {
        let client = Self::client_mut(&mut self.clients, id);
        client.map_or(ServerPoll::Closed, |client| client.look(&mut self.buffer))
    }

    fn take_from_page(&mut self, id: ClientId, length: usize, protocol: &mut impl Protocol) {
        if length > 0 {
            self.take(id, length, protocol);
            self.buffer[..length].zeroize();
        }
    }

    fn client_mut(clients: &mut [Option<Session>], id: ClientId) -> Option<&mut Session> {
        clients.get_mut(id.0 as usize)?.as_mut()
    }
}
