//! Answers for protocols other than `NETLINK_XFRM` whose server is elsewhere: acknowledgements,
//! refusals and dumps (`net/netlink/af_netlink.c: netlink_rcv_skb`).

use uxfrm_netlink_wire::{
    NLMSG_DONE, NLMSG_MIN_TYPE, NetlinkFlags, NetlinkMessage, NetlinkMessages,
};

use super::{
    client::{ClientId, SocketOptions},
    reply,
};
use crate::{NetlinkDatagram, NetlinkError, datagram::DUMP_LEN};

/// Answers to one client, in order.
#[derive(Debug)]
pub struct AnswerWriter {
    client: ClientId,
    options: SocketOptions,
    datagrams: Vec<NetlinkDatagram>,
}

/// Result of a request that was not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// It was carried out, and is acknowledged if it asked for that.
    Done,
    /// It was a dump, which has its own end.
    Dumped,
}

impl AnswerWriter {
    /// The answers to a client's datagram: `act` is called for each request in it.
    pub fn to(
        datagram: &[u8],
        client: ClientId,
        options: SocketOptions,
        mut act: impl FnMut(&NetlinkMessage<'_>, &mut Self) -> Result<RequestOutcome, NetlinkError>,
    ) -> impl Iterator<Item = NetlinkDatagram> {
        let mut answers = Self { client, options, datagrams: Vec::new() };
        for message in NetlinkMessages::of(datagram) {
            let is_request = message.flags().contains(NetlinkFlags::REQUEST)
                && message.header.kind >= NLMSG_MIN_TYPE;
            let settled =
                if is_request { act(&message, &mut answers) } else { Ok(RequestOutcome::Done) };
            answers.settle(message, &settled);
        }
        answers.datagrams.into_iter()
    }

    /// Puts one message of content.
    pub fn content(&mut self, request: &NetlinkMessage<'_>, kind: u16, body: &[u8]) {
        let mut datagram = NetlinkDatagram::new(kind, 0, request.header.seq, self.client.port);
        datagram.put_bytes(body);
        self.datagrams.push(datagram);
    }

    /// Puts all messages of a dump, and its end.
    pub fn dump(
        &mut self,
        request: &NetlinkMessage<'_>,
        kind: u16,
        bodies: impl Iterator<Item = Vec<u8>>,
    ) -> RequestOutcome {
        self.datagrams.push(NetlinkDatagram::for_dump());
        for body in bodies {
            self.more(request, kind).put_bytes(&body);
        }
        self.more(request, NLMSG_DONE).put(&0_i32);
        RequestOutcome::Dumped
    }

    fn settle(
        &mut self,
        message: NetlinkMessage<'_>,
        settled: &Result<RequestOutcome, NetlinkError>,
    ) {
        let (client, options) = (self.client, self.options);
        match settled {
            Err(refusal) => {
                self.datagrams.push(reply::refuse(client, options, message, refusal));
            }
            Ok(RequestOutcome::Done) if message.flags().contains(NetlinkFlags::ACK) => {
                self.datagrams.push(reply::acknowledge(client, options, message, None));
            }
            Ok(RequestOutcome::Done | RequestOutcome::Dumped) => {}
        }
    }

    /// Begins a message of a dump, in the last datagram if there is room.
    fn more(&mut self, request: &NetlinkMessage<'_>, kind: u16) -> &mut NetlinkDatagram {
        if self.datagrams.last().is_none_or(|last| last.len() + ROOM > DUMP_LEN) {
            self.datagrams.push(NetlinkDatagram::for_dump());
        }
        let end = self.datagrams.len() - 1;
        let (seq, pid) = (request.header.seq, self.client.port);
        self.datagrams[end].begin(kind, NetlinkFlags::MULTI.bits(), seq, pid)
    }
}

/// Room kept for a dump's next message; a longer one makes its datagram longer.
const ROOM: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{client::ReplyStatus, refusal::number};

    fn request(kind: u16, flags: u16, seq: u32) -> Vec<u8> {
        let mut bytes = 16_u32.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(seq.to_ne_bytes());
        bytes.extend(0_u32.to_ne_bytes());
        bytes
    }

    fn answered(datagram: &[u8]) -> Vec<Vec<u8>> {
        let client = ClientId { connection: 1, port: 77 };
        let answers =
            AnswerWriter::to(datagram, client, SocketOptions::EXT_ACK, |message, answers| {
                match message.header.kind {
                    0x20 => Ok(RequestOutcome::Done),
                    0x21 => {
                        answers.content(message, 0x55, b"one");
                        Ok(RequestOutcome::Done)
                    }
                    0x22 => Ok(answers.dump(message, 0x55, (0..9).map(|at| vec![at; 600]))),
                    _ => Err(NetlinkError::new(number::EINVAL, "no such thing")),
                }
            });
        answers.map(|datagram| datagram.bytes().to_vec()).collect()
    }

    #[test]
    fn answers_acknowledge_refuse_and_dump_requests() {
        let all = [
            request(0x20, 1, 1),
            request(0x20, 5, 2),
            request(3, 5, 3),
            request(0x20, 4, 4),
            request(0x99, 1, 5),
            request(0x21, 1, 6),
        ];
        let answers = answered(&all.concat());
        let messages: Vec<_> =
            answers.iter().map(|bytes| NetlinkMessages::of(bytes).next().unwrap()).collect();
        let seen: Vec<_> = messages.iter().map(|m| (m.header.seq, m.header.kind)).collect();
        assert_eq!(seen, [(2, 2), (3, 2), (4, 2), (5, 2), (6, 0x55)]);
        assert!(messages.iter().all(|message| message.header.pid == 77));
        assert_eq!(ReplyStatus::of(&messages[0]), ReplyStatus::Done { warning: None });
        let ReplyStatus::Refused(refusal) = ReplyStatus::of(&messages[3]) else {
            panic!("not refused")
        };
        assert_eq!((refusal.errno, refusal.text.as_deref()), (22, Some("no such thing")));
    }

    #[test]
    fn dump_is_split_into_datagrams_and_ended() {
        let parts = answered(&request(0x22, 0x301, 9));
        assert!(parts.len() > 1 && parts.iter().all(|part| part.len() <= DUMP_LEN));
        let kinds: Vec<_> = parts
            .iter()
            .flat_map(|part| NetlinkMessages::of(part))
            .map(|message| (message.header.kind, message.header.flags))
            .collect();
        assert_eq!(kinds, [vec![(0x55, 2); 9], vec![(NLMSG_DONE, 2)]].concat());
    }
}
