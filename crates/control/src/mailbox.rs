//! A page of memory that a client and the gateway share: one request and its answer, without a system call at either end.
//!
//! It is used only while both are awake. The gateway opens it for as long as it waits for a client's next request and closes it before it
//! turns to anything else; whoever finds it closed uses the socket, and what lies in it then is sent there. So nobody who sleeps is
//! woken by it, and an end that dies leaves no more behind than a closed socket tells.
//!
//! ```text
//!             open            ask                take              answer            collect
//!   closed ─────────► open ─────────► asked ─────────► taken ─────────► answered ─────────► open …
//!             gateway         client             gateway           gateway            client
//! ```
//!
//! From everywhere the gateway may go to `closed`, and from `open` the client, to have it look at the socket. Each step is a
//! compare-and-swap, so exactly one end has a request or an answer. Either end may be hostile: every length is checked, words are read
//! once, and what is read are copies. Requests with keys do not belong here.

use std::sync::atomic::{AtomicU64, Ordering};

/// Words of a page.
pub const WORDS: usize = 512;

/// The page. New, it is all zeros: closed.
pub type Page = [AtomicU64; WORDS];

/// Bytes of the longest request, and of the longest answer.
pub const ROOM: usize = 8 * (ANSWER - REQUEST - 1);

/// Where the turn stands. Request and answer have cache lines of their own.
const TURN: usize = 0;
/// A length in bytes, and what is so long.
const REQUEST: usize = 8;
const ANSWER: usize = 256;
const _: () = assert!(ANSWER + ROOM.div_ceil(8) < WORDS);

const CLOSED: u64 = 0;
const OPEN: u64 = 1;
/// The client is writing its request.
const WRITING: u64 = 2;
const ASKED: u64 = 3;
const TAKEN: u64 = 4;
const ANSWERED: u64 = 5;

/// What a client finds while it waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The answer, for [`Mailbox::read_answer`] until the next request.
    Answer,
    /// Nothing yet.
    Nothing,
    /// That the answer comes on the socket.
    Closed,
}

/// What the gateway finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// A request of so many bytes.
    Request(usize),
    /// Nothing yet.
    Nothing,
    /// That something is on the socket.
    Closed,
}

/// What the gateway finds when it closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// A request of so many bytes, to be answered on the socket.
    Request(usize),
    /// An answer that was not collected, to be sent on the socket.
    Answer(usize),
    /// Nothing.
    Nothing,
}

/// One end's view of the page.
#[derive(Clone, Copy, Debug)]
pub struct Mailbox<'a>(&'a Page);

/// The client's end.
impl<'a> Mailbox<'a> {
    /// The view of a page.
    #[must_use]
    pub const fn new(page: &'a Page) -> Self {
        Self(page)
    }

    /// Whether the gateway waits for a request here.
    #[must_use]
    pub fn is_open(self) -> bool {
        self.0[TURN].load(Ordering::Acquire) == OPEN
    }

    /// Asks. False when the gateway does not wait for it here, or it is too long: it has to be sent on the socket.
    #[must_use]
    pub fn ask(self, request: &[u8]) -> bool {
        request.len() <= ROOM && self.turn(OPEN, WRITING) && {
            self.write(REQUEST, request);
            self.turn(WRITING, ASKED)
        }
    }

    /// Sends the gateway to the socket, where something is about to be.
    pub fn step_aside(self) {
        self.turn(OPEN, CLOSED);
    }

    /// Takes the answer, if it is there.
    #[must_use]
    pub fn collect(self) -> Found {
        match self.0[TURN].load(Ordering::Acquire) {
            ANSWERED if self.turn(ANSWERED, OPEN) => Found::Answer,
            ASKED | TAKEN => Found::Nothing,
            _ => Found::Closed,
        }
    }

    /// Copies the answer that was collected last; as much as there is room for. Its length.
    #[must_use]
    pub fn read_answer(self, to: &mut [u8]) -> usize {
        self.read(ANSWER, to)
    }
}

/// The gateway's end.
impl Mailbox<'_> {
    /// Waits for a request from here on.
    pub fn open(self) {
        self.turn(CLOSED, OPEN);
    }

    /// Takes the request, if one is there; `to` has [`ROOM`] for it.
    #[must_use]
    pub fn take(self, to: &mut [u8]) -> Heard {
        match self.0[TURN].load(Ordering::Acquire) {
            ASKED if self.turn(ASKED, TAKEN) => Heard::Request(self.read(REQUEST, to)),
            CLOSED => Heard::Closed,
            _ => Heard::Nothing,
        }
    }

    /// Answers the request that was taken last. False when the answer is too long, or the client has gone on without it.
    #[must_use]
    pub fn answer(self, answer: &[u8]) -> bool {
        answer.len() <= ROOM && self.0[TURN].load(Ordering::Relaxed) == TAKEN && {
            self.write(ANSWER, answer);
            self.turn(TAKEN, ANSWERED)
        }
    }

    /// Waits no longer; `to` has [`ROOM`] for what is left.
    #[must_use]
    pub fn close(self, to: &mut [u8]) -> Left {
        match self.0[TURN].swap(CLOSED, Ordering::AcqRel) {
            ASKED => Left::Request(self.read(REQUEST, to)),
            ANSWERED => Left::Answer(self.read(ANSWER, to)),
            _ => Left::Nothing,
        }
    }
}

impl Mailbox<'_> {
    fn turn(self, from: u64, to: u64) -> bool {
        self.0[TURN].compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// `bytes` are at most [`ROOM`].
    fn write(self, at: usize, bytes: &[u8]) {
        self.0[at].store(bytes.len() as u64, Ordering::Relaxed);
        for (word, chunk) in self.0[at + 1..].iter().zip(bytes.chunks(8)) {
            let mut padded = [0; 8];
            padded[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_ne_bytes(padded), Ordering::Relaxed);
        }
    }

    fn read(self, at: usize, to: &mut [u8]) -> usize {
        let length = usize::try_from(self.0[at].load(Ordering::Relaxed)).unwrap_or(ROOM).min(ROOM);
        let room = length.min(to.len());
        for (chunk, word) in to[..room].chunks_mut(8).zip(&self.0[at + 1..]) {
            let bytes = word.load(Ordering::Relaxed).to_ne_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
        length
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn page() -> Page {
        [const { AtomicU64::new(0) }; WORDS]
    }

    #[test]
    fn a_request_gets_its_answer() {
        let page = page();
        let mailbox = Mailbox::new(&page);
        let mut buffer = [0; ROOM];
        assert!(!mailbox.is_open() && !mailbox.ask(b"too early"));
        assert_eq!(mailbox.take(&mut buffer), Heard::Closed);
        mailbox.open();
        assert!(mailbox.is_open());
        assert_eq!(mailbox.take(&mut buffer), Heard::Nothing);
        assert!(!mailbox.ask(&[0; ROOM + 1]) && mailbox.is_open(), "too long");
        assert!(!mailbox.answer(b"nobody asked"));
        assert!(mailbox.ask(b"a question?"));
        assert!(!mailbox.ask(b"another one"));
        assert_eq!(mailbox.collect(), Found::Nothing);
        assert_eq!(mailbox.take(&mut buffer), Heard::Request(11));
        assert_eq!(&buffer[..11], b"a question?");
        assert_eq!(
            (mailbox.take(&mut buffer), mailbox.collect()),
            (Heard::Nothing, Found::Nothing)
        );
        assert!(!mailbox.answer(&[0; ROOM + 1]) && mailbox.answer(b"yes"));
        assert!(!mailbox.answer(b"no"));
        assert_eq!(mailbox.collect(), Found::Answer);
        let mut short = [0; 2];
        assert_eq!((mailbox.read_answer(&mut short), &short), (3, b"ye"), "a look first");
        assert_eq!((mailbox.read_answer(&mut buffer), &buffer[..3]), (3, &b"yes"[..]));
        assert!(mailbox.is_open(), "for the next");
    }

    #[test]
    fn what_is_left_when_it_closes_goes_to_the_socket() {
        let page = page();
        let mailbox = Mailbox::new(&page);
        let mut buffer = [0; ROOM];
        mailbox.open();
        mailbox.step_aside();
        assert_eq!(mailbox.take(&mut buffer), Heard::Closed);
        mailbox.open();
        assert_eq!(mailbox.close(&mut buffer), Left::Nothing);
        mailbox.open();
        assert!(mailbox.ask(b"left"));
        assert_eq!((mailbox.close(&mut buffer), &buffer[..4]), (Left::Request(4), &b"left"[..]));
        assert_eq!(mailbox.collect(), Found::Closed);
        mailbox.open();
        assert!(mailbox.ask(b"x"));
        assert_eq!(mailbox.take(&mut buffer), Heard::Request(1));
        assert!(mailbox.answer(b"late"));
        assert_eq!((mailbox.close(&mut buffer), &buffer[..4]), (Left::Answer(4), &b"late"[..]));
        assert_eq!(mailbox.collect(), Found::Closed);
        mailbox.open();
        assert!(mailbox.ask(b"x"));
        assert_eq!(mailbox.take(&mut buffer), Heard::Request(1));
        assert_eq!(mailbox.close(&mut buffer), Left::Nothing);
        assert!(!mailbox.answer(b"on the socket"));
    }

    #[test]
    fn a_client_that_writes_anything_is_bounded() {
        let page = page();
        let mailbox = Mailbox::new(&page);
        let mut buffer = [0; ROOM];
        for turn in [CLOSED, OPEN, WRITING, ASKED, TAKEN, ANSWERED, 6, u64::MAX] {
            for length in [0, 1, ROOM as u64, ROOM as u64 + 1, u64::MAX] {
                for slot in [REQUEST, ANSWER] {
                    page[slot].store(length, Ordering::Relaxed);
                }
                page[TURN].store(turn, Ordering::Relaxed);
                if let Heard::Request(taken) = mailbox.take(&mut buffer) {
                    assert!(taken <= ROOM);
                }
                page[TURN].store(turn, Ordering::Relaxed);
                match mailbox.close(&mut buffer) {
                    Left::Request(length) | Left::Answer(length) => assert!(length <= ROOM),
                    Left::Nothing => {}
                }
                assert!(!mailbox.is_open());
            }
        }
    }

    /// Both ends at work, the gateway closing whenever it likes: each request is answered once, by one way or the other.
    #[test]
    fn nothing_is_lost_between_two_threads() {
        const REQUESTS: u32 = 10_000;
        let page = page();
        let mailbox = Mailbox::new(&page);
        let (to_gateway, socket) = std::sync::mpsc::channel::<u32>();
        let (to_client, answers) = std::sync::mpsc::channel::<u32>();
        thread::scope(|scope| {
            scope.spawn(move || serve(mailbox, &socket, &to_client));
            let mut by_page = 0;
            for number in 0..REQUESTS {
                if !mailbox.ask(&number.to_ne_bytes()) {
                    to_gateway.send(number).unwrap();
                    assert_eq!(answers.recv().unwrap(), number);
                    continue;
                }
                let answer = loop {
                    match mailbox.collect() {
                        Found::Nothing => thread::yield_now(),
                        Found::Closed => break answers.recv().unwrap(),
                        Found::Answer => {
                            let mut bytes = [0; 4];
                            assert_eq!(mailbox.read_answer(&mut bytes), 4);
                            by_page += 1;
                            break u32::from_ne_bytes(bytes);
                        }
                    }
                };
                assert_eq!(answer, number);
            }
            drop(to_gateway);
            assert!(by_page > 0, "all went the long way");
        });
    }

    /// The gateway's end of the test: it stays a moment, leaves, and comes back.
    fn serve(
        mailbox: Mailbox<'_>,
        socket: &std::sync::mpsc::Receiver<u32>,
        answers: &std::sync::mpsc::Sender<u32>,
    ) {
        let mut buffer = [0; ROOM];
        let number = |buffer: &[u8]| u32::from_ne_bytes(buffer[..4].try_into().unwrap());
        loop {
            mailbox.open();
            for _ in 0..200 {
                if mailbox.take(&mut buffer) == Heard::Request(4) {
                    assert!(mailbox.answer(&number(&buffer).to_ne_bytes()));
                }
            }
            match mailbox.close(&mut buffer) {
                Left::Request(_) | Left::Answer(_) => answers.send(number(&buffer)).unwrap(),
                Left::Nothing => {}
            }
            match socket.try_recv() {
                Ok(number) => answers.send(number).unwrap(),
                Err(std::sync::mpsc::TryRecvError::Empty) => {}
                Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
            }
        }
    }
}
