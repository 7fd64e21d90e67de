//! The answer a netlink socket still owes its last request, so that nobody waits for a gone
//! gateway.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::exchange::{self, ANSWER, REQUEST};

/// Nothing.
const NOTHING: u32 = 0;
/// An answer, from the gateway.
const ANSWERED: u32 = 1;
/// An error, from the library: the gateway has gone.
const FAILED: u32 = 2;

/// The last request's header, and whether its answer is outstanding.
#[derive(Debug)]
pub(crate) struct PendingAnswer {
    what: AtomicU32,
    header: [AtomicU32; 4],
}

impl PendingAnswer {
    pub(crate) const fn nothing() -> Self {
        Self { what: AtomicU32::new(NOTHING), header: [const { AtomicU32::new(0) }; 4] }
    }

    /// A request that begins so is about to be sent.
    pub(crate) fn begin(&self, header: [u8; REQUEST]) {
        self.end();
        for (word, bytes) in self.header.iter().zip(header.as_chunks().0) {
            word.store(u32::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        if exchange::is_answered(header) {
            self.what.store(ANSWERED, Ordering::Release);
        }
    }

    /// A datagram that begins so was received.
    pub(crate) fn hear(&self, answer: [u8; ANSWER]) {
        if self.what.load(Ordering::Acquire) == ANSWERED && exchange::ends(answer, self.header()) {
            self.end();
        }
    }

    /// Nothing more is to come.
    pub(crate) fn end(&self) {
        self.what.store(NOTHING, Ordering::Release);
    }

    /// The gateway has gone. Whether it owed an answer.
    pub(crate) fn fail(&self) -> bool {
        let (order, failed) = (Ordering::AcqRel, Ordering::Acquire);
        self.what.compare_exchange(ANSWERED, FAILED, order, failed).is_ok()
    }

    /// The header of the request that nobody answers any more.
    pub(crate) fn failed(&self) -> Option<[u8; REQUEST]> {
        (self.what.load(Ordering::Acquire) == FAILED).then(|| self.header())
    }

    fn header(&self) -> [u8; REQUEST] {
        let mut header = [0; REQUEST];
        for (bytes, word) in header.as_chunks_mut().0.iter_mut().zip(&self.header) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        header
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header with a kind, flags and a number.
    fn header(kind: u8, flags: u8, number: u8) -> [u8; REQUEST] {
        [20, 0, 0, 0, kind, 0, flags, 0, number, 0, 0, 0, 0, 0, 0, 0]
    }

    #[test]
    fn pending_answer_lasts_until_the_last_datagram() {
        let (awaited, add) = (PendingAnswer::nothing(), header(0x13, 5, 7));
        assert!(!awaited.fail() && awaited.failed().is_none());
        awaited.begin(add);
        awaited.hear(header(2, 0, 6));
        assert!(awaited.failed().is_none() && awaited.fail());
        awaited.hear(header(2, 0, 7));
        assert_eq!(awaited.failed(), Some(add));
        awaited.end();
        assert!(awaited.failed().is_none() && !awaited.fail());
        awaited.begin(add);
        awaited.hear(header(2, 0, 7));
        assert!(!awaited.fail(), "answered");
        awaited.begin(header(0x13, 1, 8));
        assert!(!awaited.fail(), "not acknowledged");
    }
}
