//! One client: what it has asked, and what it is still to be sent.

use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    os::unix::net::UnixStream,
    time::Duration,
};

use uxfrm_engine::Moment;
use uxfrm_status::protocol::{LONGEST_REQUEST, RequestRefusal, StatusAnswer, StatusRequest};

use super::{access::Access, board::Ticket, watch::Watch};

/// How long a client may take to send a request, from when it connected or began one.
const TO_ASK: Duration = Duration::from_secs(5);
/// How long it may stay connected after an answer without asking again.
const BETWEEN: Duration = Duration::from_secs(60);
/// How long it may read nothing of an answer.
const TO_READ: Duration = Duration::from_secs(10);
/// How long it may take for all of one.
const TO_READ_ALL: Duration = Duration::from_secs(60);
/// How long the control thread is waited for: less than clients wait.
const FOR_POST: Duration = Duration::from_secs(3);

/// Bytes taken from a client at once.
const CHUNK: usize = 4096;

/// A client, its connection and what it is in the middle of.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) stream: UnixStream,
    /// What it may be told.
    pub(super) access: Access,
    input: Vec<u8>,
    /// How much of `input` is known to have no end of line.
    searched: usize,
    output: Vec<u8>,
    written: usize,
    pub(super) phase: Phase,
    /// Until when what it is in the middle of has to be done.
    pub(super) until: Moment,
    /// Until when it has to have read all of an answer.
    all_until: Moment,
    /// Whether it will send nothing more, or not be heard any more.
    is_last: bool,
    /// The packets that it watches.
    pub(super) watch: Option<Watch>,
}

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The client: a request.
    Asks,
    /// The control thread: what this request needs of it.
    Waits(StatusRequest, Ticket),
    /// The client: room for what is left of an answer.
    Reads,
}

/// What a client's place is needed for; the least makes room first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Need {
    /// Nothing, until it asks.
    Nothing,
    /// A request that has not come to its end.
    Request,
    /// An answer that it has not read.
    Reader,
    /// An answer that is being made, or packets that it watches.
    Answer,
}

/// What reading or writing came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// A request is there.
    Asked(StatusRequest),
    /// The client has something to read first.
    Answered,
    /// Nothing more can be done now.
    Pending,
    /// The client is gone, or all is done.
    Over,
}

impl Client {
    /// One that has just connected.
    pub(super) fn new(stream: UnixStream, access: Access, now: Moment) -> Self {
        Self {
            stream,
            access,
            input: Vec::new(),
            searched: 0,
            output: Vec::new(),
            written: 0,
            phase: Phase::Asks,
            until: now.plus(TO_ASK),
            all_until: now,
            is_last: false,
            watch: None,
        }
    }

    /// Whether it has sent nothing of a request yet, and watches nothing.
    pub(super) fn is_quiet(&self) -> bool {
        self.need() == Need::Nothing
    }

    /// Whether its request has not come to its end.
    pub(super) fn is_asking(&self) -> bool {
        self.phase == Phase::Asks
    }

    /// What its place is needed for.
    pub(super) fn need(&self) -> Need {
        match self.phase {
            Phase::Asks if self.watch.is_some() => Need::Answer,
            Phase::Asks if self.input.is_empty() => Need::Nothing,
            Phase::Asks => Need::Request,
            Phase::Reads => Need::Reader,
            Phase::Waits(..) => Need::Answer,
        }
    }

    /// Tells it that there is no place for it, as far as that is no part of an answer.
    pub(super) fn turn_away(mut self) {
        if self.owed() == 0 {
            turn_away(&mut self.stream);
        }
    }

    /// Bytes that wait for it.
    pub(super) fn owed(&self) -> usize {
        self.output.len() - self.written
    }

    /// Reads what it has sent, up to the first request.
    pub(super) fn hear(&mut self, now: Moment) -> Progress {
        loop {
            match self.next_request(now) {
                Progress::Pending => {}
                heard @ (Progress::Asked(_) | Progress::Answered | Progress::Over) => return heard,
            }
            if self.is_last {
                return Progress::Over;
            }
            let begins = self.input.is_empty();
            match self.fill() {
                Ok(0) => self.is_last = true,
                Ok(_) if begins => self.until = now.plus(TO_ASK),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Progress::Pending,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_gone) => return Progress::Over,
            }
        }
    }

    /// Takes the first request out of what has come.
    fn next_request(&mut self, now: Moment) -> Progress {
        let end = self.input[self.searched..].iter().position(|byte| *byte == b'\n');
        let end = end.map(|end| self.searched + end);
        let (line, used) = match end {
            Some(end) => (&self.input[..end], end + 1),
            // Its last request needs no end of line.
            None if self.is_last && !self.input.is_empty() => (&self.input[..], self.input.len()),
            None if self.input.len() >= LONGEST_REQUEST => {
                self.is_last = true;
                self.input.clear();
                self.searched = 0;
                let message = format!("a request is longer than {LONGEST_REQUEST} bytes");
                return self.refuse(RequestRefusal::new(message), now);
            }
            None => {
                self.searched = self.input.len();
                return Progress::Pending;
            }
        };
        let read = StatusRequest::from_line(line);
        self.input.drain(..used);
        self.searched = 0;
        match read {
            Ok(request) => Progress::Asked(request),
            Err(refusal) => self.refuse(refusal, now),
        }
    }

    fn refuse(&mut self, refusal: RequestRefusal, now: Moment) -> Progress {
        self.answer(StatusAnswer::Refusal(refusal).to_line(), now);
        Progress::Answered
    }

    /// Reads some more, up to the longest request.
    fn fill(&mut self) -> io::Result<usize> {
        let before = self.input.len();
        let room = CHUNK.min(LONGEST_REQUEST.saturating_sub(before));
        self.input.resize(before + room, 0);
        let read = self.stream.read(&mut self.input[before..]);
        self.input.truncate(before + read.as_ref().copied().unwrap_or_default());
        read
    }

    /// Has it wait for an answer.
    #[cfg(test)]
    pub(super) fn note_asked(&mut self) {
        self.wait(StatusRequest::Counters, Ticket::default(), Moment(0));
    }

    /// Has it sent this.
    #[cfg(test)]
    pub(super) fn note_input(&mut self, input: &[u8]) {
        self.input.extend_from_slice(input);
    }

    /// Has it wait for the control thread.
    pub(super) fn wait(&mut self, request: StatusRequest, ticket: Ticket, now: Moment) {
        self.phase = Phase::Waits(request, ticket);
        self.until = now.plus(FOR_POST);
    }

    /// Gives it an answer to read.
    pub(super) fn answer(&mut self, line: Vec<u8>, now: Moment) {
        (self.output, self.written) = (line, 0);
        self.phase = Phase::Reads;
        self.until = now.plus(TO_READ);
        self.all_until = now.plus(TO_READ_ALL);
    }

    /// Sends what there is room for; then it may ask again.
    pub(super) fn send(&mut self, now: Moment) -> Progress {
        while self.owed() > 0 {
            match self.stream.write(&self.output[self.written..]) {
                Ok(0) => return Progress::Over,
                Ok(count) => {
                    self.written += count;
                    self.until = now.plus(TO_READ).min(self.all_until);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Progress::Pending,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_gone) => return Progress::Over,
            }
        }
        (self.output, self.written) = (Vec::new(), 0);
        self.phase = Phase::Asks;
        self.until = now.plus(BETWEEN);
        Progress::Answered
    }
}

/// Tells one that has just connected, or is to go, that all places are taken.
pub(super) fn turn_away(stream: &mut UnixStream) {
    let refusal = RequestRefusal::for_want_of_place("all places for clients are in use");
    // A socket has room for one line, unless its client does not read.
    let _full = stream.write(&StatusAnswer::Refusal(refusal).to_line());
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;

    use super::*;

    fn pair() -> (Client, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        (Client::new(near, Access::Full, Moment(0)), far)
    }

    const NOW: Moment = Moment::from_secs(1);

    #[test]
    fn requests_are_read_in_pieces_and_in_order() {
        let (mut client, mut far) = pair();
        assert_eq!(client.hear(NOW), Progress::Pending);
        let line = StatusRequest::Counters.to_line();
        far.write_all(&line[..7]).unwrap();
        assert_eq!(client.hear(NOW), Progress::Pending);
        assert_eq!(client.until, NOW.plus(TO_ASK), "from its first byte");
        let later = NOW.plus(Duration::from_secs(2));
        far.write_all(&[&line[7..], b"nonsense\n", &line[..]].concat()).unwrap();
        assert_eq!(client.hear(later), Progress::Asked(StatusRequest::Counters));
        assert_eq!(client.hear(later), Progress::Answered, "a refusal");
        assert_eq!(client.send(later), Progress::Answered);
        assert_eq!(client.hear(later), Progress::Asked(StatusRequest::Counters));
        far.shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.hear(later), Progress::Over);
    }

    #[test]
    fn last_request_needs_no_end_of_line() {
        let (mut client, mut far) = pair();
        let line = StatusRequest::Counters.to_line();
        far.write_all(line.trim_ascii_end()).unwrap();
        far.shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.hear(NOW), Progress::Asked(StatusRequest::Counters));
        assert_eq!(client.hear(NOW), Progress::Over);
    }

    #[test]
    fn endless_request_is_refused_and_the_last() {
        let (mut client, far) = pair();
        far.set_nonblocking(true).unwrap();
        let mut progress = Progress::Pending;
        for _ in 0..100 {
            let _full = (&far).write(&[b'x'; 4096]);
            progress = client.hear(NOW);
            assert!(client.input.len() <= LONGEST_REQUEST);
            if progress != Progress::Pending {
                break;
            }
        }
        assert_eq!(progress, Progress::Answered);
        let text = String::from_utf8(client.output.clone()).unwrap();
        assert!(text.contains("longer than 65536 bytes"), "{text}");
        assert_eq!(client.send(NOW), Progress::Answered);
        assert_eq!(client.hear(NOW), Progress::Over);
    }

    #[test]
    fn answer_waits_for_room_and_is_given_up_in_time() {
        let (mut client, mut far) = pair();
        client.answer(vec![b'!'; 4 << 20], NOW);
        assert_eq!(client.send(NOW), Progress::Pending);
        assert!(client.owed() > 0 && client.phase == Phase::Reads);
        let mut some = vec![0; 1 << 16];
        let mut now = NOW;
        for _ in 0..9 {
            assert!(far.read(&mut some).unwrap() > 0);
            now = now.plus(Duration::from_secs(8));
            assert_eq!(client.send(now), Progress::Pending);
        }
        assert_eq!(client.until, NOW.plus(TO_READ_ALL), "however it goes on");
    }
}
