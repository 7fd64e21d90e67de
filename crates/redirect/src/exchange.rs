//! Requests and their answers, as far as needed to know whether an answer is outstanding.

use uxfrm_netlink_wire::{NLMSG_DONE, NLMSG_ERROR, NetlinkFlags, NetlinkHeader};

/// Bytes of a request that are looked at: its `nlmsghdr`.
pub(crate) const REQUEST: usize = NetlinkHeader::LEN;
/// Bytes of an answer that are looked at.
pub(crate) const ANSWER: usize = NetlinkHeader::LEN;
/// Bytes of an error: its header, the errno, the request's header.
pub(crate) const ERROR: usize = ERROR_LENGTH as usize;

const ERROR_LENGTH: u32 = 36;

/// Requests answered by an acknowledgement or an error only: NEWSA, DELSA, NEWPOLICY, DELPOLICY,
/// UPDPOLICY, UPDSA, FLUSHSA, FLUSHPOLICY.
const PLAIN: [u16; 8] = [0x10, 0x11, 0x13, 0x14, 0x19, 0x1a, 0x1c, 0x1d];

/// Those of them that have keys.
const SECRET: [u16; 2] = [0x10, 0x1a];

/// Whether a request has no keys.
pub(crate) fn is_public(header: [u8; REQUEST]) -> bool {
    !SECRET.contains(&NetlinkHeader::from_bytes(header).kind)
}

/// The sequence number of a request that exactly one datagram answers, one that [`answers`] knows;
/// `None` where more or nothing may come. `length` is the datagram's.
pub(crate) fn request(header: [u8; REQUEST], length: usize) -> Option<u32> {
    let header = NetlinkHeader::from_bytes(header);
    let is_whole = usize::try_from(header.len).is_ok_and(|own| own == length);
    let asked = NetlinkFlags::REQUEST | NetlinkFlags::ACK;
    let is_answered = flags(header) & (asked | NetlinkFlags::ECHO) == asked;
    (is_whole && is_answered && PLAIN.contains(&header.kind)).then_some(header.seq)
}

/// The sequence number of the request that an acknowledgement or an error answers.
pub(crate) fn answers(header: [u8; ANSWER]) -> Option<u32> {
    let header = NetlinkHeader::from_bytes(header);
    (header.kind == NLMSG_ERROR).then_some(header.seq)
}

/// Whether something is to come after a request.
pub(crate) fn is_answered(header: [u8; REQUEST]) -> bool {
    let header = NetlinkHeader::from_bytes(header);
    let is_acknowledged =
        flags(header).contains(NetlinkFlags::ACK) || !PLAIN.contains(&header.kind);
    flags(header).contains(NetlinkFlags::REQUEST) && is_acknowledged
}

/// Whether a datagram that begins so is the last answer to a request.
pub(crate) fn ends(answer: [u8; ANSWER], request: [u8; REQUEST]) -> bool {
    let [answer, request] = [answer, request].map(NetlinkHeader::from_bytes);
    let is_last = match answer.kind {
        NLMSG_ERROR | NLMSG_DONE => true,
        _ => {
            !flags(answer).contains(NetlinkFlags::MULTI)
                && !flags(request).contains(NetlinkFlags::ACK)
        }
    };
    is_last && answer.seq == request.seq
}

/// The error that tells a socket of this port why its request is not answered.
pub(crate) fn error(request: [u8; REQUEST], errno: i32, port: u32) -> [u8; ERROR] {
    let header = NetlinkHeader {
        len: ERROR_LENGTH,
        kind: NLMSG_ERROR,
        flags: NetlinkFlags::CAPPED.bits(),
        seq: NetlinkHeader::from_bytes(request).seq,
        pid: port,
    };
    let mut error = [0; ERROR];
    error[..16].copy_from_slice(&header.to_bytes());
    error[16..20].copy_from_slice(&(-errno).to_ne_bytes());
    error[20..].copy_from_slice(&request);
    error
}

const fn flags(header: NetlinkHeader) -> NetlinkFlags {
    NetlinkFlags::from_bits_retain(header.flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(length: u32, kind: u16, flags: u16) -> [u8; 16] {
        NetlinkHeader { len: length, kind, flags, seq: 77, pid: 0 }.to_bytes()
    }

    #[test]
    fn request_with_one_answer_is_recognized() {
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
    fn last_answer_of_a_request_is_recognized() {
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
    fn error_carries_the_requests_header() {
        let request = header(40, 0x13, 5);
        let error = error(request, 104, 9);
        assert_eq!(answers(*error.first_chunk().unwrap()), Some(77));
        assert_eq!(NetlinkHeader::from_bytes(*error.first_chunk().unwrap()).len, 36);
        assert_eq!(error[12..20], [9_i32.to_ne_bytes(), (-104_i32).to_ne_bytes()].concat());
        assert_eq!(error[20..], request);
    }
}
