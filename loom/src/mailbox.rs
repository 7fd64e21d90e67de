//! The page that a client and the gateway share: what one wrote the other reads, and nothing is
//! answered twice or not at all.

use loom::sync::Arc;
use loom::thread;

use crate::Model;
use crate::control::mailbox::{
    ClientPoll, CloseOutcome, Mailbox, MailboxServer, Page, ROOM, ServerPoll, WORDS,
};
use crate::sync::AtomicU64;

pub(crate) const MODELS: &[Model] = &[
    ("mailbox: asked and answered", || talk(Leaving::WhenAnswered)),
    ("mailbox: the gateway leaves", || talk(Leaving::Early)),
    ("mailbox: the client sleeps on its socket", asleep),
    ("mailbox: the client steps aside", aside),
];

const REQUEST: &[u8] = b"what is there";
const ANSWER: &[u8] = b"nothing";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Leaving {
    WhenAnswered,
    Early,
}

fn page() -> Arc<Page> {
    Arc::new(std::array::from_fn::<_, WORDS, _>(|_| AtomicU64::new(0)))
}

/// What came of a request at one end.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// By the page.
    Page,
    /// To be sent, or to be looked for, on the socket.
    Socket,
    /// It was not asked, or not heard of.
    Nothing,
}

fn gateway(page: &Page, leaving: Leaving) -> End {
    let (mut desk, mut room) = (MailboxServer::default(), [0; ROOM]);
    desk.open(page);
    if leaving == Leaving::WhenAnswered {
        thread::yield_now();
    }
    if let ServerPoll::Request(length) = desk.take(page, &mut room) {
        assert_eq!(&room[..length], REQUEST);
        assert!(desk.answer(page, ANSWER));
    }
    match desk.close(page, &mut room) {
        CloseOutcome::Request(length) => {
            assert_eq!(&room[..length], REQUEST);
            End::Socket
        }
        CloseOutcome::Answer(length) => {
            assert_eq!(&room[..length], ANSWER);
            End::Socket
        }
        CloseOutcome::Nothing => End::Nothing,
    }
}

fn client(page: &Page) -> End {
    let (mailbox, mut room) = (Mailbox::new(page), [0; ROOM]);
    if !mailbox.ask(REQUEST) {
        return End::Nothing;
    }
    loop {
        match mailbox.collect() {
            ClientPoll::Answer => {
                let length = mailbox.read_answer(&mut room);
                assert_eq!(&room[..length], ANSWER);
                return End::Page;
            }
            ClientPoll::Closed => return End::Socket,
            ClientPoll::Nothing => thread::yield_now(),
        }
    }
}

/// The gateway is there for a moment.
fn talk(leaving: Leaving) {
    let page = page();
    let other = Arc::clone(&page);
    let gateway = thread::spawn(move || gateway(&other, leaving));
    let (client, gateway) = (client(&page), gateway.join().unwrap());
    // Who waits at the socket is answered there, and nobody else.
    assert_eq!(client == End::Socket, gateway == End::Socket, "{client:?} {gateway:?}");
}

/// The gateway takes an answer back that is not collected.
fn asleep() {
    let page = page();
    let other = Arc::clone(&page);
    let (mailbox, mut desk, mut room) = (Mailbox::new(&page), MailboxServer::default(), [0; ROOM]);
    desk.open(&page);
    assert!(mailbox.ask(REQUEST));
    assert_eq!(desk.take(&page, &mut room), ServerPoll::Request(REQUEST.len()));
    let gateway = thread::spawn(move || {
        assert!(desk.answer(&other, ANSWER));
        let mut room = [0; ROOM];
        let taken = desk.take_back(&other, &mut room);
        assert!(taken.is_none_or(|length| &room[..length] == ANSWER));
        taken.is_some()
    });
    let found = mailbox.collect();
    if found == ClientPoll::Answer {
        let length = mailbox.read_answer(&mut room);
        assert_eq!(&room[..length], ANSWER);
    }
    let was_taken = gateway.join().unwrap();
    let found = if found == ClientPoll::Nothing { mailbox.collect() } else { found };
    assert_eq!(found == ClientPoll::Answer, !was_taken, "{found:?}");
}

/// The client has something that goes by the socket; a request of before is not lost.
fn aside() {
    let page = page();
    let other = Arc::clone(&page);
    let gateway = thread::spawn(move || gateway(&other, Leaving::Early));
    let mailbox = Mailbox::new(&page);
    mailbox.redirect_to_socket();
    let asked = mailbox.ask(REQUEST);
    let left = gateway.join().unwrap();
    let collected = asked && mailbox.collect() == ClientPoll::Answer;
    assert_eq!(asked && !collected, left == End::Socket);
}
