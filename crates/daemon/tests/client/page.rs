//! A page that a client shares, with a client that writes into it what it likes.

use std::sync::atomic::{AtomicU64, Ordering};

use uxfrm_control::mailbox::{
    ClientPoll, CloseOutcome, Mailbox, MailboxServer, Page, ROOM, ServerPoll, WORDS,
};

/// Bytes as steps of both ends, three each: which, and a number for it. Lengths stay within the
/// room that the other end has, and while nobody writes over anything, a request and an answer
/// arrive as they were sent.
pub(super) fn page(bytes: &[u8]) {
    let mut ends = Ends::new();
    for step in bytes.chunks_exact(3).take(512) {
        ends.step(step[0], u16::from_le_bytes([step[1], step[2]]));
    }
}

struct Ends {
    page: Box<Page>,
    desk: MailboxServer,
    /// What was sent last, while nobody has written over it.
    asked: Option<Vec<u8>>,
    answered: Option<Vec<u8>>,
    honest: bool,
}

impl Ends {
    fn new() -> Self {
        let page = Box::new([const { AtomicU64::new(0) }; WORDS]);
        Self { page, desk: MailboxServer::default(), asked: None, answered: None, honest: true }
    }

    fn step(&mut self, which: u8, number: u16) {
        let mut room = [0; ROOM];
        match which % 12 {
            0 => self.desk.open(&self.page),
            1 => self.ask(number),
            2 => match self.desk.take(&self.page, &mut room) {
                ServerPoll::Request(length) => self.check(&room, length, self.asked.as_ref()),
                ServerPoll::Nothing | ServerPoll::Closed => {}
            },
            3 => self.answer(number),
            4 => self.collect(),
            5 => drop(self.desk.take_back(&self.page, &mut room).map(|length| {
                self.check(&room, length, self.answered.as_ref());
            })),
            6 => self.close(&mut room),
            7 => self.desk.decline(&self.page),
            8 => Mailbox::new(&self.page).redirect_to_socket(),
            9 => assert!(Mailbox::new(&self.page).read_answer(&mut room) <= ROOM),
            10 => self.write_over(usize::from(number) % WORDS, u64::from(number >> 9)),
            _ => self.write_over(usize::from(number) % WORDS, u64::MAX - u64::from(number >> 9)),
        }
    }

    fn ask(&mut self, number: u16) {
        let request = vec![1; usize::from(number) % (ROOM + 2)];
        if Mailbox::new(&self.page).ask(&request) {
            assert!(request.len() <= ROOM);
            self.asked = Some(request);
        }
    }

    fn answer(&mut self, number: u16) {
        let answer = vec![2; usize::from(number) % (ROOM + 2)];
        if self.desk.answer(&self.page, &answer) {
            assert!(answer.len() <= ROOM);
            self.answered = Some(answer);
        }
    }

    fn collect(&self) {
        let (mailbox, mut room) = (Mailbox::new(&self.page), [0; ROOM]);
        if mailbox.collect() == ClientPoll::Answer {
            let length = mailbox.read_answer(&mut room);
            self.check(&room, length, self.answered.as_ref());
        }
    }

    fn close(&mut self, room: &mut [u8; ROOM]) {
        match self.desk.close(&self.page, room) {
            CloseOutcome::Request(length) => self.check(room, length, self.asked.as_ref()),
            CloseOutcome::Answer(length) => self.check(room, length, self.answered.as_ref()),
            CloseOutcome::Nothing => {}
        }
        assert!(!Mailbox::new(&self.page).is_open());
    }

    fn write_over(&mut self, place: usize, word: u64) {
        self.page[place].store(word, Ordering::Relaxed);
        self.honest = false;
    }

    fn check(&self, room: &[u8; ROOM], length: usize, sent: Option<&Vec<u8>>) {
        assert!(length <= ROOM);
        if self.honest {
            assert_eq!(sent.map(Vec::as_slice), Some(&room[..length]));
        }
    }
}
