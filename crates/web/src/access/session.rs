//! Sessions of browsers, in memory only.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::HeaderValue;
use subtle::ConstantTimeEq as _;

/// The cookie's name.
pub(crate) const COOKIE: &str = "uxfrm-session";
/// How long a session lasts.
const LIFETIME: Duration = Duration::from_secs(12 * 60 * 60);
/// Sessions at a time; the oldest makes room.
const MOST: usize = 64;

/// The sessions that have begun.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<VecDeque<Session>>);

struct Session {
    name: String,
    began: Instant,
}

impl fmt::Debug for Sessions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Sessions")
    }
}

impl Sessions {
    /// Begins one: the cookie for it. `None` where the kernel has no random bytes.
    pub(super) fn begin(&self) -> Option<HeaderValue> {
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
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() == MOST {
            all.pop_front();
        }
        all.push_back(Session { name, began: Instant::now() });
        HeaderValue::from_str(&cookie).ok()
    }

    /// Whether a cookie's value names one that lasts.
    pub(super) fn has(&self, value: &str) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|session| session.began.elapsed() < LIFETIME);
        all.iter().any(|session| session.name.as_bytes().ct_eq(value.as_bytes()).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_session_makes_room() {
        let sessions = Sessions::default();
        let name = |cookie: HeaderValue| {
            let text = cookie.to_str().unwrap().to_owned();
            assert!(text.contains("; HttpOnly; SameSite=Strict; "), "{text}");
            text.split([';', '=']).nth(1).unwrap().to_owned()
        };
        let first = name(sessions.begin().unwrap());
        assert_eq!(first.len(), 64);
        assert!(sessions.has(&first) && !sessions.has("") && !sessions.has(&first[1..]));
        let last = (0..MOST).map(|_| name(sessions.begin().unwrap())).last().unwrap();
        assert!(!sessions.has(&first) && sessions.has(&last));
    }
}
