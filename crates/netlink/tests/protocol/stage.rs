//! A server with databases and a clock, and its decoded answers. Each test crate uses a part of it.

use uxfrm_crypto::Backend;
use uxfrm_engine::{Database, Moment};
use uxfrm_netlink::{
    ClientId, Groups, NetlinkMessages, Outbox, RawAttributes, Server, ServerSettings, SocketOptions,
};

/// The port id of the client that asks.
pub(crate) const CLIENT: ClientId = ClientId { connection: 1, port: 4711 };
/// One that asks while the other's dump goes on.
const OTHER: ClientId = ClientId { connection: 3, port: 4713 };
/// One that only listens.
pub(crate) const LISTENER: ClientId = ClientId { connection: 2, port: 4712 };
/// A Friday in 2026, in seconds.
pub(crate) const EPOCH: u64 = 1_795_000_000;

/// Server and databases.
pub(crate) struct Stage {
    pub(crate) server: Server,
    pub(crate) database: Database,
    pub(crate) now: Moment,
    /// What the listener got since it was looked at last.
    pub(crate) heard: Vec<Vec<u8>>,
}

/// One message of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) seq: u32,
    pub(crate) pid: u32,
    pub(crate) body: Vec<u8>,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
        let cpus = u32::try_from(cpus).unwrap();
        let settings =
            ServerSettings { cpus, epoch: EPOCH * 1_000_000_000, seed: 1, acquire_expires: 30 };
        let mut server = Server::new(settings);
        server.join(LISTENER, Groups::all(), SocketOptions::empty());
        server.join(CLIENT, Groups::empty(), SocketOptions::EXT_ACK);
        server.join(OTHER, Groups::empty(), SocketOptions::EXT_ACK);
        let database = Database::new(Backend::Portable, 1);
        Self { server, database, now: Moment::from_secs(1), heard: Vec::new() }
    }

    /// Sends a datagram, reads a dump to its end.
    pub(crate) fn ask(&mut self, request: &[u8]) -> Vec<Answer> {
        let mut out = Outbox::default();
        self.now = Moment(self.now.0 + 1000);
        self.server.handle(CLIENT, request, &mut self.database, self.now, &mut out);
        while self.server.is_dumping(CLIENT) {
            self.server.resume(CLIENT, &self.database, &mut out);
        }
        self.sort(&mut out)
    }

    /// As another client, that has no dump under way.
    pub(crate) fn ask_beside(&mut self, request: &[u8]) -> Vec<Answer> {
        let mut out = Outbox::default();
        self.server.handle(OTHER, request, &mut self.database, self.now, &mut out);
        let answers = out.drain().filter(|delivery| delivery.to == OTHER);
        answers.flat_map(|delivery| take_apart(delivery.datagram.bytes())).collect()
    }

    /// The client's part; the listener's is kept.
    pub(crate) fn sort(&mut self, out: &mut Outbox) -> Vec<Answer> {
        let mut answers = Vec::new();
        for delivery in out.drain() {
            let bytes = delivery.datagram.bytes();
            if delivery.to == LISTENER {
                self.heard.push(bytes.to_vec());
            } else {
                assert_eq!((delivery.to, delivery.group), (CLIENT, None));
                answers.extend(take_apart(bytes));
            }
        }
        answers
    }

    /// Types of what the listener heard.
    pub(crate) fn heard(&mut self) -> Vec<u16> {
        let heard = std::mem::take(&mut self.heard);
        heard.iter().flat_map(|bytes| take_apart(bytes)).map(|answer| answer.kind).collect()
    }
}

/// The messages of a datagram.
pub(crate) fn take_apart(bytes: &[u8]) -> Vec<Answer> {
    NetlinkMessages::of(bytes)
        .map(|message| Answer {
            kind: message.header.kind,
            flags: message.header.flags,
            seq: message.header.seq,
            pid: message.header.pid,
            body: message.body().to_vec(),
        })
        .collect()
}

impl Answer {
    /// Errno (0 for well) and extended-ACK text of an `NLMSG_ERROR`.
    pub(crate) fn verdict(&self) -> Option<(i32, String)> {
        (self.kind == 2).then(|| {
            let errno = -i32::from_ne_bytes(self.body[..4].try_into().unwrap());
            let capped = self.flags & 0x100 != 0;
            let request = u32::from_ne_bytes(self.body[4..8].try_into().unwrap()) as usize;
            let start = 4 + if capped { 16 } else { request.next_multiple_of(4) };
            let words = (self.flags & 0x200 != 0).then(|| &self.body[start..]);
            let text = words
                .and_then(|words| RawAttributes::of(words).find(|attribute| attribute.kind == 1));
            let text = text
                .map(|text| String::from_utf8_lossy(text.value).trim_end_matches('\0').to_owned());
            (errno, text.unwrap_or_default())
        })
    }
}

/// Commands and what iproute2 sends for each.
pub(crate) fn golden() -> Vec<(String, Vec<u8>)> {
    include_str!("iproute2.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (command, bytes) = line.split_once('\t').unwrap();
            (command.to_owned(), unhex(bytes))
        })
        .collect()
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2)
        .map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
        .collect()
}

/// A message.
pub(crate) fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(16 + body.len()).unwrap().to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(7_u32.to_ne_bytes());
    bytes.extend(0_u32.to_ne_bytes());
    bytes.extend(body);
    bytes
}

/// An attribute, padded.
pub(crate) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = u16::try_from(4 + value.len()).unwrap().to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}
