//! A page of memory shared by a client and the gateway: one request and its answer, without a
//! system call at either end.
//!
//! It is used only while both are awake. The gateway opens it while it waits for a client's next
//! request and closes it before it turns to anything else; an end that finds it closed uses the
//! socket, and pending content is sent there. So it never has to wake a sleeping end, and an end
//! that dies leaves no more behind than a closed socket reveals.
//!
//! ```text
//!             open            ask              answer              collect
//!   closed ─────────► open ─────────► asked ──────────► answered ─────────► open …
//!             gateway         client          gateway              client
//! ```
//!
//! The gateway may go to `closed` from every state, and the client from `open`, to have it look at
//! the socket. A client that has not collected its answer some microseconds later sleeps on its
//! socket: the gateway takes the answer back and sends it there. Each step is a compare-and-swap,
//! so exactly one end owns a request or an answer: outside `asked` one thread of the client owns
//! the request's words; in `asked` the gateway owns the answer's, and remembers itself what it has
//! read ([`MailboxServer`]). Either end may be hostile: every length is checked, and words are read
//! once into copies. Requests with keys do not belong here.
//!
//! Each cache line that moves between processors costs time. So there are no intermediate steps,
//! and a short answer, which most are, shares a line with the state word.

use crate::sync::{AtomicU64, Ordering};

/// Version of the page's layout and states: ends with different ones share no page.
pub const LAYOUT: u32 = 2;

/// Words of a page.
pub const WORDS: usize = 512;

/// The page. A new one is all zeros: closed.
pub type Page = [AtomicU64; WORDS];

/// Largest request and answer in bytes.
pub const ROOM: usize = 8 * (REQUEST - ANSWER - 1);

/// Index of the state word.
const TURN: usize = 0;
/// A length in bytes, and the content. An answer of up to 48 bytes, such as an acknowledgement, is
/// in the state's cache line.
const ANSWER: usize = 1;
const REQUEST: usize = 256;
const _: () = assert!(REQUEST + ROOM.div_ceil(8) < WORDS && ANSWER + ROOM.div_ceil(8) < REQUEST);

const CLOSED: u64 = 0;
const OPEN: u64 = 1;
const ASKED: u64 = 2;
const ANSWERED: u64 = 3;

/// State for a client that waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientPoll {
    /// The answer is there, for [`Mailbox::read_answer`] until the next request.
    Answer,
    /// No answer yet.
    Nothing,
    /// The answer comes by the socket.
    Closed,
}

/// State for the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerPoll {
    /// A request of this length.
    Request(usize),
    /// No request yet.
    Nothing,
    /// Something is on the socket.
    Closed,
}

/// Content when the gateway closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseOutcome {
    /// A request of this length, to be answered by the socket.
    Request(usize),
    /// An uncollected answer, to be sent by the socket.
    Answer(usize),
    /// Nothing.
    Nothing,
}

/// The client's view of the page.
#[derive(Clone, Copy, Debug)]
pub struct Mailbox<'a>(&'a Page);

/// The gateway's end of a page: whether it owes an answer.
#[derive(Debug, Default)]
pub struct MailboxServer {
    owes: bool,
}

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

    /// Sends a request; only one thread of the client may do so at a time. `false` when the gateway
    /// does not wait here, or it is too long: send it by the socket.
    #[must_use]
    pub fn ask(self, request: &[u8]) -> bool {
        request.len() <= ROOM && self.is_open() && {
            write(self.0, REQUEST, request);
            turn(self.0, OPEN, ASKED)
        }
    }

    /// Directs the gateway to the socket before something is sent there.
    pub fn redirect_to_socket(self) {
        turn(self.0, OPEN, CLOSED);
    }

    /// Collects the answer, if it is there.
    #[must_use]
    pub fn collect(self) -> ClientPoll {
        match self.0[TURN].load(Ordering::Acquire) {
            ANSWERED if turn(self.0, ANSWERED, OPEN) => ClientPoll::Answer,
            ASKED => ClientPoll::Nothing,
            _ => ClientPoll::Closed,
        }
    }

    /// Copies the collected answer as far as there is room; returns its length.
    #[must_use]
    pub fn read_answer(self, to: &mut [u8]) -> usize {
        read(self.0, ANSWER, to)
    }
}

impl MailboxServer {
    /// Waits for requests from now on.
    pub fn open(&self, page: &Page) {
        turn(page, CLOSED, OPEN);
    }

    /// Takes a new request, if there is one; `to` has [`ROOM`] for it.
    #[must_use]
    pub fn take(&mut self, page: &Page, to: &mut [u8]) -> ServerPoll {
        match page[TURN].load(Ordering::Acquire) {
            ASKED if !std::mem::replace(&mut self.owes, true) => {
                ServerPoll::Request(read(page, REQUEST, to))
            }
            CLOSED => ServerPoll::Closed,
            _ => ServerPoll::Nothing,
        }
    }

    /// Answers the last request. `false` when the answer must go by the socket: it is too long, or
    /// there was no request here.
    #[must_use]
    pub fn answer(&mut self, page: &Page, answer: &[u8]) -> bool {
        if answer.len() > ROOM {
            self.decline(page);
            return false;
        }
        std::mem::take(&mut self.owes) && {
            write(page, ANSWER, answer);
            // The state stays `asked` until here, so it need not be read.
            page[TURN].store(ANSWERED, Ordering::Release);
            true
        }
    }

    /// Takes back an uncollected answer, as the client sleeps on the socket, and closes; `to` has
    /// [`ROOM`] for it.
    #[must_use]
    pub fn take_back(&self, page: &Page, to: &mut [u8]) -> Option<usize> {
        turn(page, ANSWERED, CLOSED).then(|| read(page, ANSWER, to))
    }

    /// Directs the client to the socket for the answer to the last request.
    pub fn decline(&mut self, page: &Page) {
        if std::mem::take(&mut self.owes) {
            turn(page, ASKED, CLOSED);
        }
    }

    /// Stops waiting; `to` has [`ROOM`] for the content.
    #[must_use]
    pub fn close(&mut self, page: &Page, to: &mut [u8]) -> CloseOutcome {
        let owes = std::mem::take(&mut self.owes);
        match page[TURN].swap(CLOSED, Ordering::AcqRel) {
            ASKED if !owes => CloseOutcome::Request(read(page, REQUEST, to)),
            ANSWERED => CloseOutcome::Answer(read(page, ANSWER, to)),
            _ => CloseOutcome::Nothing,
        }
    }
}

fn turn(page: &Page, from: u64, to: u64) -> bool {
    page[TURN].compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// `bytes` are at most [`ROOM`].
fn write(page: &Page, at: usize, bytes: &[u8]) {
    page[at].store(bytes.len() as u64, Ordering::Relaxed);
    let (whole, rest) = bytes.as_chunks::<8>();
    for (word, bytes) in page[at + 1..].iter().zip(whole) {
        word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
    }
    if !rest.is_empty() {
        let mut padded = [0; 8];
        padded[..rest.len()].copy_from_slice(rest);
        page[at + 1 + whole.len()].store(u64::from_ne_bytes(padded), Ordering::Relaxed);
    }
}

fn read(page: &Page, at: usize, to: &mut [u8]) -> usize {
    let length = usize::try_from(page[at].load(Ordering::Relaxed)).unwrap_or(ROOM).min(ROOM);
    let room = length.min(to.len());
    let (whole, rest) = to[..room].as_chunks_mut::<8>();
    for (bytes, word) in whole.iter_mut().zip(&page[at + 1..]) {
        *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
    }
    if !rest.is_empty() {
        let last = page[at + 1 + whole.len()].load(Ordering::Relaxed).to_ne_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }
    length
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
        let (mailbox, mut desk) = (Mailbox::new(&page), MailboxServer::default());
        let mut buffer = [0; ROOM];
        assert!(!mailbox.is_open() && !mailbox.ask(b"too early"));
        assert_eq!(desk.take(&page, &mut buffer), ServerPoll::Closed);
        desk.open(&page);
        assert!(mailbox.is_open());
        assert_eq!(desk.take(&page, &mut buffer), ServerPoll::Nothing);
        assert!(!mailbox.ask(&[0; ROOM + 1]) && mailbox.is_open(), "too long");
        assert!(!desk.answer(&page, b"nobody asked"));
        assert!(mailbox.ask(b"a question?"));
        assert!(!mailbox.ask(b"another one"));
        assert_eq!(mailbox.collect(), ClientPoll::Nothing);
        assert_eq!(desk.take(&page, &mut buffer), ServerPoll::Request(11));
        assert_eq!(&buffer[..11], b"a question?");
        assert_eq!(
            (desk.take(&page, &mut buffer), mailbox.collect()),
            (ServerPoll::Nothing, ClientPoll::Nothing)
        );
        assert!(desk.answer(&page, b"yes") && !desk.answer(&page, b"no"));
        assert_eq!(mailbox.collect(), ClientPoll::Answer);
        let mut short = [0; 2];
        assert_eq!((mailbox.read_answer(&mut short), &short), (3, b"ye"), "a look first");
        assert_eq!((mailbox.read_answer(&mut buffer), &buffer[..3]), (3, &b"yes"[..]));
        assert!(mailbox.is_open(), "for the next");
    }

    #[test]
    fn largest_request_arrives_whole() {
        let page = page();
        let (mailbox, mut desk) = (Mailbox::new(&page), MailboxServer::default());
        let (mut request, mut answer) = ([0; ROOM], [0; ROOM]);
        for (byte, count) in request.iter_mut().zip(0_usize..) {
            *byte = count.to_le_bytes()[0];
        }
        for length in [1, 8, 9, 36, ROOM - 1, ROOM] {
            desk.open(&page);
            assert!(mailbox.ask(&request[..length]));
            let mut taken = [0; ROOM];
            assert_eq!(desk.take(&page, &mut taken), ServerPoll::Request(length));
            assert!(
                desk.answer(&page, &request[..length]) && mailbox.collect() == ClientPoll::Answer
            );
            assert_eq!(mailbox.read_answer(&mut answer), length);
            assert!(taken[..length] == request[..length] && answer[..length] == request[..length]);
        }
    }

    #[test]
    fn pending_content_on_close_goes_to_socket() {
        let page = page();
        let (mailbox, mut desk) = (Mailbox::new(&page), MailboxServer::default());
        let mut buffer = [0; ROOM];
        desk.open(&page);
        mailbox.redirect_to_socket();
        assert_eq!(desk.take(&page, &mut buffer), ServerPoll::Closed);
        desk.open(&page);
        assert_eq!(desk.close(&page, &mut buffer), CloseOutcome::Nothing);
        desk.open(&page);
        assert!(mailbox.ask(b"left"));
        let left = desk.close(&page, &mut buffer);
        assert_eq!((left, &buffer[..4]), (CloseOutcome::Request(4), &b"left"[..]));
        assert_eq!(mailbox.collect(), ClientPoll::Closed);
        desk.open(&page);
        assert!(mailbox.ask(b"x"));
        assert_eq!(desk.take(&page, &mut buffer), ServerPoll::Request(1));
        assert!(desk.answer(&page, b"late"));
        let left = desk.close(&page, &mut buffer);
        assert_eq!((left, &buffer[..4]), (CloseOutcome::Answer(4), &b"late"[..]));
        assert_eq!(mailbox.collect(), ClientPoll::Closed);
        desk.open(&page);
        assert!(mailbox.ask(b"x"));
        assert_eq!(desk.take(&page, &mut buffer), ServerPoll::Request(1));
        assert_eq!(desk.close(&page, &mut buffer), CloseOutcome::Nothing, "it was taken");
        assert!(!desk.answer(&page, b"on the socket"));
        assert_eq!(mailbox.collect(), ClientPoll::Closed);
    }

    #[test]
    fn uncollected_answer_is_taken_back_once() {
        let page = page();
        let (mailbox, mut desk) = (Mailbox::new(&page), MailboxServer::default());
        let mut buffer = [0; ROOM];
        desk.open(&page);
        assert_eq!(desk.take_back(&page, &mut buffer), None, "nothing is asked");
        assert!(mailbox.ask(b"x"));
        assert_eq!(desk.take_back(&page, &mut buffer), None, "nothing is answered");
        assert_eq!(desk.take(&page, &mut buffer), ServerPoll::Request(1));
        assert!(desk.answer(&page, b"yes"));
        assert_eq!((desk.take_back(&page, &mut buffer), &buffer[..3]), (Some(3), &b"yes"[..]));
        assert_eq!(mailbox.collect(), ClientPoll::Closed);
        assert_eq!(desk.take_back(&page, &mut buffer), None, "it was taken");
        desk.open(&page);
        assert_eq!(mailbox.collect(), ClientPoll::Closed, "it is on the socket");
        assert!(mailbox.ask(b"the next"));
        assert_eq!(desk.take(&page, &mut buffer), ServerPoll::Request(8));
        assert!(desk.answer(&page, b"no") && mailbox.collect() == ClientPoll::Answer);
        assert_eq!(desk.take_back(&page, &mut buffer), None, "it was collected");
    }

    #[test]
    fn request_is_taken_once() {
        let page = page();
        let (mailbox, mut desk) = (Mailbox::new(&page), MailboxServer::default());
        let mut buffer = [0; ROOM];
        for long in [false, true] {
            desk.open(&page);
            assert!(mailbox.ask(b"once"));
            assert_eq!(desk.take(&page, &mut buffer), ServerPoll::Request(4));
            desk.open(&page);
            assert_eq!(desk.take(&page, &mut buffer), ServerPoll::Nothing);
            if long {
                assert!(!desk.answer(&page, &[0; ROOM + 1]));
            } else {
                desk.decline(&page);
            }
            assert_eq!(mailbox.collect(), ClientPoll::Closed, "the answer comes on the socket");
            desk.open(&page);
            assert_eq!(desk.take(&page, &mut buffer), ServerPoll::Nothing);
            assert!(!desk.answer(&page, b"again"));
        }
    }

    #[test]
    fn mailbox_bounds_hostile_client() {
        let page = page();
        let mailbox = Mailbox::new(&page);
        let mut buffer = [0; ROOM];
        for turn in [CLOSED, OPEN, ASKED, ANSWERED, 4, u64::MAX] {
            for length in [0, 1, ROOM as u64, ROOM as u64 + 1, u64::MAX] {
                let mut desk = MailboxServer::default();
                for slot in [REQUEST, ANSWER] {
                    page[slot].store(length, Ordering::Relaxed);
                }
                page[TURN].store(turn, Ordering::Relaxed);
                if let ServerPoll::Request(taken) = desk.take(&page, &mut buffer) {
                    assert!(taken <= ROOM);
                }
                for mut desk in [desk, MailboxServer::default()] {
                    page[TURN].store(turn, Ordering::Relaxed);
                    match desk.close(&page, &mut buffer) {
                        CloseOutcome::Request(length) | CloseOutcome::Answer(length) => {
                            assert!(length <= ROOM)
                        }
                        CloseOutcome::Nothing => {}
                    }
                }
                assert!(!mailbox.is_open());
            }
        }
    }

    /// Both ends at work, the gateway closing at random: each request is answered once, by page or
    /// socket.
    #[test]
    fn nothing_is_lost_between_two_threads() {
        const REQUESTS: u32 = 10_000;
        let page = page();
        let mailbox = Mailbox::new(&page);
        let (to_gateway, socket) = std::sync::mpsc::channel::<u32>();
        let (to_client, answers) = std::sync::mpsc::channel::<u32>();
        thread::scope(|scope| {
            let page = &page;
            scope.spawn(move || serve(page, &socket, &to_client));
            let mut by_page = 0;
            for number in 0..REQUESTS {
                // If both ends share a processor, an answer by the socket always finds the page
                // closed.
                while number % 2 == 0 && !mailbox.is_open() {
                    thread::yield_now();
                }
                if !mailbox.ask(&number.to_ne_bytes()) {
                    to_gateway.send(number).unwrap();
                    assert_eq!(answers.recv().unwrap(), number);
                    continue;
                }
                let answer = loop {
                    match mailbox.collect() {
                        ClientPoll::Nothing => thread::yield_now(),
                        ClientPoll::Closed => break answers.recv().unwrap(),
                        ClientPoll::Answer => {
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

    /// The gateway's end of the test: it stays a moment, leaves, and returns.
    fn serve(
        page: &Page,
        socket: &std::sync::mpsc::Receiver<u32>,
        answers: &std::sync::mpsc::Sender<u32>,
    ) {
        let (mut buffer, mut desk) = ([0; ROOM], MailboxServer::default());
        let number = |buffer: &[u8]| u32::from_ne_bytes(buffer[..4].try_into().unwrap());
        loop {
            desk.open(page);
            for look in 1..=200 {
                if look % 50 == 0 {
                    thread::yield_now();
                }
                if desk.take(page, &mut buffer) == ServerPoll::Request(4) {
                    assert!(desk.answer(page, &number(&buffer).to_ne_bytes()));
                }
            }
            match desk.close(page, &mut buffer) {
                CloseOutcome::Request(_) | CloseOutcome::Answer(_) => {
                    answers.send(number(&buffer)).unwrap()
                }
                CloseOutcome::Nothing => {}
            }
            match socket.try_recv() {
                Ok(number) => answers.send(number).unwrap(),
                Err(std::sync::mpsc::TryRecvError::Empty) => {}
                Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
            }
        }
    }
}
