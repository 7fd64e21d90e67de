//! Answers for clients that may not use the gateway: `EPERM` to each request, as from the kernel.

use nix::libc;

/// `struct nlmsghdr`: length, type, flags, sequence, port.
const HEADER: usize = 16;
const ALIGN: usize = 4;

/// The answers to a datagram's requests, each an `NLMSG_ERROR`.
///
/// `net/netlink/af_netlink.c: netlink_rcv_skb`: what is no message ends the datagram; replies,
/// which are no requests, and control messages are passed over.
pub(super) fn refuse(datagram: &[u8], errno: i32, port: u32) -> impl Iterator<Item = Vec<u8>> {
    requests(datagram).map(move |header| error(header, -errno, port))
}

/// The headers of a datagram's requests.
fn requests(datagram: &[u8]) -> impl Iterator<Item = &[u8; HEADER]> {
    let mut rest = datagram;
    let messages = std::iter::from_fn(move || {
        let header: &[u8; HEADER] = rest.first_chunk()?;
        let length = usize::try_from(word(header, 0)).ok()?;
        if length < HEADER || length > rest.len() {
            return None;
        }
        rest = rest.get(length.next_multiple_of(ALIGN)..).unwrap_or_default();
        Some(header)
    });
    messages.filter(|header| {
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let flags = u16::from_ne_bytes([header[6], header[7]]);
        i32::from(flags) & libc::NLM_F_REQUEST != 0 && i32::from(kind) >= libc::NLMSG_MIN_TYPE
    })
}

/// A `struct nlmsgerr` about a request, of which it repeats the header.
fn error(request: &[u8; HEADER], errno: i32, port: u32) -> Vec<u8> {
    const LENGTH: u32 = 36;
    const NLMSG_ERROR: u16 = 2;
    /// `NLM_F_CAPPED`: only the header is repeated.
    const CAPPED: u16 = 0x100;
    let mut message = Vec::with_capacity(LENGTH as usize);
    message.extend_from_slice(&LENGTH.to_ne_bytes());
    message.extend_from_slice(&NLMSG_ERROR.to_ne_bytes());
    message.extend_from_slice(&CAPPED.to_ne_bytes());
    message.extend_from_slice(&request[8..12]);
    message.extend_from_slice(&port.to_ne_bytes());
    message.extend_from_slice(&errno.to_ne_bytes());
    message.extend_from_slice(request);
    message
}

fn word(header: &[u8; HEADER], at: usize) -> u32 {
    u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(kind: u16, flags: u16, sequence: u32) -> Vec<u8> {
        let mut bytes = 20_u32.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0; 8]);
        bytes
    }

    #[test]
    fn refusal_answers_each_request_by_sequence() {
        let datagram =
            [request(0x10, 1, 7), request(0x10, 0, 8), request(3, 1, 9), request(0x1f, 5, 10)]
                .concat();
        let answers: Vec<_> = refuse(&datagram, libc::EPERM, 99).collect();
        assert_eq!(answers.len(), 2);
        for (answer, sequence) in answers.iter().zip([7_u32, 10]) {
            assert_eq!(answer.len(), 36);
            assert_eq!(answer[8..12], sequence.to_ne_bytes());
            assert_eq!(answer[12..16], 99_u32.to_ne_bytes());
            assert_eq!(answer[16..20], (-1_i32).to_ne_bytes());
            assert_eq!(answer[28..32], sequence.to_ne_bytes());
        }
    }

    proptest! {
        #[test]
        fn refusal_of_any_bytes_terminates(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(refuse(&bytes, libc::EPERM, 1).count() <= bytes.len() / HEADER);
        }
    }
}
