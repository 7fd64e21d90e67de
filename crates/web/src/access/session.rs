//! Sessions of browsers, in memory only.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::HeaderValue;
use subtle::ConstantTimeEq as _;

use super::Client;

/// The cookie's name.
pub(crate) const COOKIE: &str = "uxfrm-session";
/// How long a session lasts.
const LIFETIME: Duration = Duration::from_secs(12 * 60 * 60);
/// Sessions at a time; the oldest of whoever has the most makes room.
const MOST: usize = 64;

/// The sessions that have begun.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<Begun>);

#[derive(Default)]
struct Begun {
    all: VecDeque<Session>,
    /// How many have begun.
    count: u64,
}

struct Session {
    name: String,
    number: u64,
    began: Instant,
    /// Who logged in.
    client: Client,
}

impl Begun {
    fn make_room(&mut self) {
        let of = |client| self.all.iter().filter(|session| session.client == client).count();
        let most = self.all.iter().map(|session| of(session.client)).max().unwrap_or(0);
        let oldest = self.all.iter().position(|session| of(session.client) == most);
        if let Some(oldest) = oldest.filter(|_| self.all.len() == MOST) {
            self.all.remove(oldest);
        }
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Sessions")
    }
}

impl Sessions {
    /// Begins one: the cookie for it. `None` where the kernel has no random bytes.
    pub(super) fn begin(&self, client: Client) -> Option<HeaderValue> {
        let mut random = [0; 32];
        getrandom::fill(&mut random).ok()?;
        let name = random.iter().fold(String::new(), |mut name, byte| {
            // Writing to a string does not fail.
            let _ = write!(name, "{byte:02x}");
            name
        });
        let seconds = LIFETIME.as_secs();
        let cookie =
            format!("{COOKIE}={name}; HttpOnly; SameSite=Strict; Path=/; Max-Age={seconds}");
        let mut begun = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        begun.make_room();
        let number = begun.count;
        begun.count += 1;
        begun.all.push_back(Session { name, number, began: Instant::now(), client });
        HeaderValue::from_str(&cookie).ok()
    }

    /// The number of the one that a cookie's value names, if that lasts.
    pub(super) fn number_of(&self, value: &str) -> Option<u64> {
        let mut begun = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        begun.all.retain(|session| session.began.elapsed() < LIFETIME);
        let is_named =
            |session: &&Session| -> bool { session.name.as_bytes().ct_eq(value.as_bytes()).into() };
        begun.all.iter().find(is_named).map(|session| session.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_logs_in_often_ends_his_own_sessions() {
        let sessions = Sessions::default();
        let cookie = sessions.begin(Client::User(0)).unwrap();
        let name = cookie.to_str().unwrap().split([';', '=']).nth(1).unwrap();
        for _ in 0..3 * MOST {
            sessions.begin(Client::User(1)).unwrap();
        }
        assert_eq!(sessions.number_of(name), Some(0));
    }

    #[test]
    fn oldest_session_makes_room() {
        let sessions = Sessions::default();
        let name = |cookie: HeaderValue| {
            let text = cookie.to_str().unwrap().to_owned();
            assert!(text.contains("; HttpOnly; SameSite=Strict; "), "{text}");
            text.split([';', '=']).nth(1).unwrap().to_owned()
        };
        let first = name(sessions.begin(Client::User(1)).unwrap());
        assert_eq!(first.len(), 64);
        assert_eq!(sessions.number_of(&first), Some(0));
        assert_eq!((sessions.number_of(""), sessions.number_of(&first[1..])), (None, None));
        let last =
            (0..MOST).map(|_| name(sessions.begin(Client::User(1)).unwrap())).last().unwrap();
        assert_eq!((sessions.number_of(&first), sessions.number_of(&last)), (None, Some(64)));
    }
}
