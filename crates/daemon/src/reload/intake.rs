//! The text of `uxfrm xfrm sync`, as it comes: the gateway may read no file, so the client sends
//! what is in it. One client at a time, and no more than it said.

use std::time::Duration;

use uxfrm_control_client::reload::SyncRequest;
use uxfrm_engine::Moment;
use zeroize::Zeroizing;

use crate::protocol::ClientId;

/// Bytes of the longest text.
const LONGEST: u64 = 64 * 1024 * 1024;

/// How long a client may send nothing while another wants to.
const PATIENCE: Duration = Duration::from_secs(60);

/// A whole text, wiped when it is dropped: there are keys in it.
pub(crate) struct WholeText {
    pub(crate) request: SyncRequest,
    pub(crate) bytes: Zeroizing<Vec<u8>>,
}

/// What a piece leads to.
#[derive(Debug)]
pub(crate) enum IntakeStep {
    /// More has to come.
    More,
    /// That was the last one.
    Whole(WholeText),
    /// There was more than the client had said: all of it is forgotten.
    TooMuch,
}

/// Who sends a text, and what has come of it.
#[derive(Debug, Default)]
pub(crate) struct TextIntake(Option<PartialText>);

struct PartialText {
    client: ClientId,
    request: SyncRequest,
    /// With room for all of it: it does not move.
    bytes: Zeroizing<Vec<u8>>,
    /// When its last piece came.
    heard: Moment,
}

impl TextIntake {
    /// Makes room for a client's text.
    ///
    /// # Errors
    /// Why it may not send one, for the user.
    pub(crate) fn begin(
        &mut self,
        client: ClientId,
        request: SyncRequest,
        now: Moment,
    ) -> Result<(), String> {
        let is_busy =
            |other: &PartialText| other.client != client && now.since(other.heard) < PATIENCE;
        if self.0.as_ref().is_some_and(is_busy) {
            return Err("another client is sending a text: try again".to_owned());
        }
        if request.bytes == 0 {
            return Err(format!("{}: {EMPTY}", request.source));
        }
        if request.bytes > LONGEST {
            return Err(format!("{}: more than {LONGEST} bytes are not taken", request.source));
        }
        let mut bytes = Zeroizing::new(Vec::new());
        // At most `LONGEST`.
        let len = usize::try_from(request.bytes).unwrap_or(usize::MAX);
        bytes.try_reserve_exact(len).map_err(|_| "the gateway has no memory for it".to_owned())?;
        self.0 = Some(PartialText { client, request, bytes, heard: now });
        Ok(())
    }

    /// Takes a datagram of a client that is sending a text; `None` for all others.
    pub(crate) fn take(
        &mut self,
        client: ClientId,
        piece: &[u8],
        now: Moment,
    ) -> Option<IntakeStep> {
        let mut partial = self.0.take_if(|partial| partial.client == client)?;
        let missing = partial.bytes.capacity().min(wanted(&partial)) - partial.bytes.len();
        if piece.len() > missing {
            return Some(IntakeStep::TooMuch);
        }
        partial.bytes.extend_from_slice(piece);
        if piece.len() == missing {
            let PartialText { request, bytes, .. } = partial;
            return Some(IntakeStep::Whole(WholeText { request, bytes }));
        }
        partial.heard = now;
        self.0 = Some(partial);
        Some(IntakeStep::More)
    }

    /// A client has left.
    pub(crate) fn forget(&mut self, client: ClientId) {
        self.0.take_if(|partial| partial.client == client);
    }
}

/// Why a text without a line is refused, which a failed command in a pipe leaves.
pub(super) const EMPTY: &str = "it says no state, policy or default, and nothing was changed; `uxfrm xfrm state flush` and `uxfrm xfrm policy flush` remove all";

fn wanted(partial: &PartialText) -> usize {
    usize::try_from(partial.request.bytes).unwrap_or(usize::MAX)
}

impl std::fmt::Debug for WholeText {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "WholeText({} bytes)", self.bytes.len())
    }
}

impl std::fmt::Debug for PartialText {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "PartialText({:?}, {} bytes)", self.client, self.bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use uxfrm_control_client::reload::{SyncCourse, SyncOthers};

    use super::*;

    const ONE: ClientId = ClientId(1);
    const OTHER: ClientId = ClientId(2);

    fn request(bytes: u64) -> SyncRequest {
        let (course, others) = (SyncCourse::Show, SyncOthers::Keep);
        SyncRequest { source: "x".to_owned(), bytes, course, others }
    }

    #[test]
    fn text_is_whole_when_its_bytes_are_there() {
        let mut intake = TextIntake::default();
        let now = Moment(0);
        intake.begin(ONE, request(5), now).unwrap();
        assert!(intake.take(OTHER, b"{}", now).is_none(), "others go on");
        assert!(matches!(intake.take(ONE, b"abc", now), Some(IntakeStep::More)));
        let Some(IntakeStep::Whole(text)) = intake.take(ONE, b"de", now) else { panic!() };
        assert_eq!(text.bytes.as_slice(), b"abcde");
        assert!(intake.take(ONE, b"f", now).is_none(), "it has ended");
    }

    #[test]
    fn text_beyond_what_was_said_is_forgotten() {
        let mut intake = TextIntake::default();
        intake.begin(ONE, request(5), Moment(0)).unwrap();
        assert!(matches!(intake.take(ONE, b"abcdef", Moment(0)), Some(IntakeStep::TooMuch)));
        assert!(intake.take(ONE, b"abc", Moment(0)).is_none());
        assert!(intake.begin(ONE, request(LONGEST + 1), Moment(0)).is_err());
        assert!(intake.begin(ONE, request(0), Moment(0)).is_err());
    }

    #[test]
    fn one_client_sends_at_a_time_until_it_leaves_or_falls_silent() {
        let mut intake = TextIntake::default();
        let now = Moment::from_secs(1000);
        intake.begin(ONE, request(5), now).unwrap();
        assert!(intake.begin(OTHER, request(5), now.plus(PATIENCE / 2)).is_err());
        intake.begin(OTHER, request(5), now.plus(PATIENCE)).unwrap();
        assert!(intake.take(ONE, b"abc", now).is_none());
        intake.forget(ONE);
        assert!(matches!(intake.take(OTHER, b"a", now), Some(IntakeStep::More)));
        intake.forget(OTHER);
        intake.begin(ONE, request(5), now).unwrap();
    }
}
