//! The body of the fuzz target `status`: lines of a client of the status socket, whose abstract
//! name any user of the host may connect to.

#[cfg(not(fuzzing))]
mod seeds;

#[cfg(not(fuzzing))]
pub(crate) use seeds::seeds;
use uxfrm_status::protocol::{REQUESTS, StatusAnswer, StatusRequest};

/// Bytes of a refusal beside what it repeats of the request.
const REFUSAL: usize = 4096;

/// Lines as requests, and the same as answers.
///
/// # Panics
/// When a decoder does, a request is another once written and read again, or a refusal is no answer
/// or much longer than what it refuses.
pub(crate) fn status(bytes: &[u8]) {
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        request(line);
        if let Ok(answer) = StatusAnswer::from_line(line) {
            assert!(StatusAnswer::from_line(&answer.to_line()).is_ok());
        }
    }
}

fn request(line: &[u8]) {
    match StatusRequest::from_line(line) {
        Ok(request) => {
            let written = request.to_line();
            assert_eq!(StatusRequest::from_line(&written), Ok(request));
            assert_eq!(written.iter().position(|byte| *byte == b'\n'), Some(written.len() - 1));
        }
        Err(refusal) => {
            assert!(!refusal.message.is_empty() && refusal.requests == REQUESTS);
            let written = StatusAnswer::Refusal(refusal.clone()).to_line();
            assert_eq!(written.iter().position(|byte| *byte == b'\n'), Some(written.len() - 1));
            assert!(written.len() <= 4 * line.len() + REFUSAL, "{} bytes", written.len());
            let read = StatusAnswer::from_line(&written).expect("it was written");
            assert_eq!(read, StatusAnswer::Refusal(refusal));
        }
    }
}
