//! Fuzzer entry: foreign bytes into the code that reads them in a program's process. For tests and
//! fuzzers only.

use uxfrm_control::greeting::Greeting;

use crate::calls::bytes;
use crate::ends::{Ends, LENGTH};
use crate::exchange;
use crate::pending_answer::PendingAnswer;

/// The first byte chooses the reader: a netlink request and answer, a datagram with its addresses,
/// a generic netlink request, calls on a program's socket.
///
/// # Panics
/// When something does that may not in a program that is not ours, or believes what cannot be.
pub fn decode(input: &[u8]) {
    match input.split_first() {
        Some((0, rest)) => netlink(rest),
        Some((1, rest)) => datagram(rest),
        Some((2, rest)) => bytes::generic(rest),
        Some((_, rest)) => bytes::options(rest),
        None => {}
    }
}

/// A request's header, and answers of 16 bytes behind it.
fn netlink(input: &[u8]) {
    let Some((request, answers)) = input.split_first_chunk() else { return };
    let awaited = PendingAnswer::nothing();
    awaited.begin(*request);
    let number = exchange::request(*request, input.len());
    assert!(number.is_none() || exchange::is_answered(*request));
    for answer in answers.as_chunks().0 {
        awaited.hear(*answer);
        let _ = exchange::answers(*answer);
    }
    let owed = awaited.fail();
    assert_eq!(awaited.failed(), owed.then_some(*request));
    let error = exchange::error(*request, 104, 9);
    let (head, _) = error.split_first_chunk().expect("it is longer");
    assert!(exchange::ends(*head, *request), "the error is the last answer");
    if let Some(greeting) = Greeting::parse(input) {
        assert_eq!(greeting.to_bytes(), input);
    }
}

/// What the gateway hands over: ends and a payload, into buffers of the program's.
fn datagram(input: &[u8]) {
    let Some((header, rest)) = input.split_first_chunk::<LENGTH>() else { return };
    let Some(ends) = Ends::parse(header) else { return };
    assert_eq!(Ends::parse(&ends.to_bytes()), Some(ends));
    bytes::told(&ends, rest);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ends::{AddressFamily, End};

    #[test]
    fn corpus_does_not_panic() {
        uxfrm_testkit::fuzz::replay("redirect", decode);
    }

    /// What the corpus began with.
    #[test]
    #[ignore = "writes fuzz/corpus/redirect: for `make fuzz-seeds`"]
    fn seeds() {
        let corpus = uxfrm_testkit::fuzz::Corpus::of("redirect");
        let add = |kind: u8, name: &str, bytes: &[u8]| {
            corpus.add(&format!("seed-{name}"), &[&[kind][..], bytes].concat());
        };
        let header = |kind: u8, flags: u8| [16, 0, 0, 0, kind, 0, flags, 0, 7, 0, 0, 0, 0, 0, 0, 0];
        add(0, "acknowledged", &[header(0x13, 5), header(2, 0)].concat());
        add(0, "dump", &[header(0x12, 1), header(0x10, 2), header(3, 2)].concat());
        for family in [AddressFamily::V4, AddressFamily::V6] {
            let end = End { address: [1; 16], port: 4500 };
            let ends = Ends { family, tos: 4, scope: 3, local: end, remote: end };
            add(
                1,
                &format!("ends-{}", family as u8),
                &[&ends.to_bytes()[..], &[28, 64, 3]].concat(),
            );
        }
        let fou = [24, 0, 0, 0, 16, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 1, 0, 0];
        add(2, "family", &[&fou[..], &[8, 0, 2, 0], b"fou\0"].concat());
        add(3, "policy", &[0; 168]);
        add(3, "policy-of-key", &[2, 0, 18, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        add(3, "features", &[&[0; 32][..], b"esp-hw-offload", &[0; 18]].concat());
    }
}
