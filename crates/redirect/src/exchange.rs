//! Requests and their answers, as far as a socket has to know them: whether something is still to come on it.

/// Bytes of a request that are looked at: its `nlmsghdr`.
pub(crate) const REQUEST: usize = 16;
/// Bytes of an answer that are looked at.
pub(crate) const ANSWER: usize = 16;
/// Bytes of an error: its header, the errno, the request's header.
pub(crate) const ERROR: usize = ERROR_LENGTH as usize;

const ERROR_LENGTH: u32 = 36;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_MULTI: u16 = 2;
const NLM_F_ACK: u16 = 4;
/// Of the request an error carries the header alone.
const NLM_F_CAPPED: u16 = 0x100;
/// The requester is told what others are told, before its answer.
const NLM_F_ECHO: u16 = 8;

/// Requests that are answered by an acknowledgement or an error and nothing else: NEWSA, DELSA, NEWPOLICY, DELPOLICY, UPDPOLICY, UPDSA,
/// FLUSHSA, FLUSHPOLICY.
const PLAIN: [u16; 8] = [0x10, 0x11, 0x13, 0x14, 0x19, 0x1a, 0x1c, 0x1d];

/// Those of them that have keys.
const SECRET: [u16; 2] = [0x10, 0x1a];

/// Whether a request has no keys.
pub(crate) fn is_public(header: [u8; REQUEST]) -> bool {
    !SECRET.contains(&half(&header, 4))
}

/// The number of a request that one datagram answers, the one that [`answers`] knows; `None` when more may come, or nothing. `length`
/// is the datagram's.
pub(crate) fn request(header: [u8; REQUEST], length: usize) -> Option<u32> {
    let flags = half(&header, 6);
    let is_whole = usize::try_from(word(&header, 0)).is_ok_and(|own| own == length);
    let is_answered = flags & (NLM_F_REQUEST | NLM_F_ACK | NLM_F_ECHO) == NLM_F_REQUEST | NLM_F_ACK;
    (is_whole && is_answered && PLAIN.contains(&half(&header, 4))).then(|| word(&header, 8))
}

/// The number of the request that an acknowledgement or an error answers.
pub(crate) fn answers(header: [u8; ANSWER]) -> Option<u32> {
    (half(&header, 4) == NLMSG_ERROR).then(|| word(&header, 8))
}

/// Whether something is to come after a request.
pub(crate) fn is_answered(header: [u8; REQUEST]) -> bool {
    let flags = half(&header, 6);
    let is_acknowledged = flags & NLM_F_ACK != 0 || !PLAIN.contains(&half(&header, 4));
    flags & NLM_F_REQUEST != 0 && is_acknowledged
}

/// Whether a datagram that begins so is the last of what a request is answered with.
pub(crate) fn ends(answer: [u8; ANSWER], request: [u8; REQUEST]) -> bool {
    let is_last = match half(&answer, 4) {
        NLMSG_ERROR | NLMSG_DONE => true,
        _ => half(&answer, 6) & NLM_F_MULTI == 0 && half(&request, 6) & NLM_F_ACK == 0,
    };
    is_last && word(&answer, 8) == word(&request, 8)
}

/// The error that says why a request of a socket of this port is not answered.
pub(crate) fn error(request: [u8; REQUEST], errno: i32, port: u32) -> [u8; ERROR] {
    let mut error = [0; ERROR];
    error[..4].copy_from_slice(&ERROR_LENGTH.to_ne_bytes());
    error[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
    error[6..8].copy_from_slice(&NLM_F_CAPPED.to_ne_bytes());
    error[8..12].copy_from_slice(&request[8..12]);
    error[12..16].copy_from_slice(&port.to_ne_bytes());
    error[16..20].copy_from_slice(&(-errno).to_ne_bytes());
    error[20..].copy_from_slice(&request);
    error
}

fn half(header: &[u8; 16], at: usize) -> u16 {
    u16::from_ne_bytes([header[at], header[at + 1]])
}

fn word(header: &[u8; 16], at: usize) -> u32 {
    u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(length: u32, kind: u16, flags: u16) -> [u8; 16] {
        let mut header = [0; 16];
        header[..4].copy_from_slice(&length.to_ne_bytes());
        header[4..6].copy_from_slice(&kind.to_ne_bytes());
        header[6..8].copy_from_slice(&flags.to_ne_bytes());
        header[8..12].copy_from_slice(&77_u32.to_ne_bytes());
        header
    }

    #[test]
    fn only_what_has_one_answer_is_expected_to_have_one() {
        assert_eq!(request(header(40, 0x13, 0x605), 40), Some(77));
        for (length, kind, flags, sent) in [
            (40, 0x13, 0x605, 80), // two messages
            (40, 0x13, 0x605, 39), // cut off
            (40, 0x13, 1, 40),     // not acknowledged
            (40, 0x13, 4, 40),     // no request
            (40, 0x13, 0xd, 40),   // echoed
            (40, 0x15, 5, 40),     // answered by a policy as well
            (40, 0x16, 5, 40),     // by a state
        ] {
            assert_eq!(request(header(length, kind, flags), sent), None, "{length} {kind} {flags}");
        }
        assert_eq!(answers(header(36, 2, 0x100)), Some(77));
        assert_eq!(answers(header(36, 0x13, 0)), None, "an event");
    }

    #[test]
    fn a_request_ends_with_an_error_the_end_of_a_dump_or_its_only_answer() {
        let (add, get, dump) = (header(40, 0x13, 5), header(40, 0x12, 1), header(16, 0x12, 0x301));
        for (request, kind, flags, is_last) in [
            (add, 2, 0x100, true),
            (add, 0x13, 0, false), // what an echo tells
            (get, 0x10, 0, true),
            (get, 2, 0, true),
            (dump, 0x10, 2, false),
            (dump, 3, 2, true),
        ] {
            assert_eq!(ends(header(36, kind, flags), request), is_last, "{kind} {flags}");
        }
        let another = header(40, 0x13, 5).map(|byte| byte.wrapping_add(1));
        assert!(!ends(header(36, 2, 0), another), "another's number");
        assert!([add, get, dump].into_iter().all(is_answered));
        assert!(!is_answered(header(40, 0x13, 1)) && !is_answered(header(40, 0x12, 0)));
    }

    #[test]
    fn an_error_names_the_request() {
        let request = header(40, 0x13, 5);
        let error = error(request, 104, 9);
        assert_eq!(answers(*error.first_chunk().unwrap()), Some(77));
        assert_eq!((word(&request, 0), half(&request, 4)), (40, 0x13));
        assert_eq!(error[12..20], [9_i32.to_ne_bytes(), (-104_i32).to_ne_bytes()].concat());
        assert_eq!(error[20..], request);
    }
}
