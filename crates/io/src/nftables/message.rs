//! Netlink messages of `nf_tables`, byte by byte: headers, attributes, and batches of them.
//!
//! Numbers in attributes are big-endian, headers are the host's (`include/uapi/linux/netfilter/nfnetlink.h`,
//! `nf_tables.h`). Total: everything that can be said to it has an encoding.

use super::model::Part;

/// `NFNL_SUBSYS_NFTABLES`
const SUBSYSTEM: u8 = 10;
/// `NFPROTO_INET`: both families.
const INET: u8 = 1;
/// `NLA_F_NESTED`
const NESTED: u16 = 0x8000;

const HEADER: usize = 16;
const GENERIC: usize = 4;

/// `NFT_MSG_*`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    NewTable = 0,
    GetTable = 1,
    DeleteTable = 2,
    NewChain = 3,
    NewRule = 6,
    GetRule = 7,
    DeleteRule = 8,
    GetGeneration = 16,
    NewObject = 18,
    GetObject = 19,
}

/// `NLM_F_*` of requests.
pub(super) mod flag {
    pub(in super::super) const REQUEST: u16 = 1;
    pub(in super::super) const ACK: u16 = 4;
    /// What was made is told, with its handle.
    pub(in super::super) const ECHO: u16 = 8;
    pub(in super::super) const DUMP: u16 = 0x300;
    pub(in super::super) const CREATE: u16 = 0x400;
    /// The rule goes behind the others.
    pub(in super::super) const APPEND: u16 = 0x800;
}

/// The attributes of one message, or nested in another attribute.
#[derive(Debug)]
pub(super) struct Attributes<'a>(&'a mut Vec<u8>);

impl Attributes<'_> {
    pub(super) fn bytes(&mut self, kind: u16, payload: &[u8]) {
        self.put(kind, |bytes| bytes.extend(payload));
    }

    pub(super) fn number(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    pub(super) fn long(&mut self, kind: u16, value: u64) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// A text and the zero behind it.
    pub(super) fn text(&mut self, kind: u16, text: &str) {
        self.put(kind, |bytes| {
            bytes.extend(text.as_bytes());
            bytes.push(0);
        });
    }

    pub(super) fn nest(&mut self, kind: u16, inside: impl FnOnce(&mut Attributes<'_>)) {
        self.put(kind | NESTED, |bytes| inside(&mut Attributes(bytes)));
    }

    fn put(&mut self, kind: u16, payload: impl FnOnce(&mut Vec<u8>)) {
        let start = self.0.len();
        self.0.extend([0; 2]);
        self.0.extend(kind.to_ne_bytes());
        payload(self.0);
        // The kernel refuses a rule of more than 128 expressions, long before the length could overflow.
        let length = u16::try_from(self.0.len() - start).unwrap_or(u16::MAX);
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }
}

/// A request outside any transaction: a question.
pub(super) fn question(
    kind: Kind,
    flags: u16,
    sequence: u32,
    attributes: impl FnOnce(&mut Attributes<'_>),
) -> Vec<u8> {
    let mut bytes = Vec::new();
    append(&mut bytes, typed(kind), flag::REQUEST | flags, sequence, [INET, 0, 0, 0], attributes);
    bytes
}

/// A transaction: all of it comes true at once, or nothing (`NFNL_MSG_BATCH_BEGIN`, `NFNL_MSG_BATCH_END`).
#[derive(Debug)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    begin: u32,
    /// What each message between begin and end is about; the first has the sequence number behind `begin`.
    parts: Vec<Part>,
    /// Where the last message starts.
    last: usize,
}

impl Batch {
    const BEGIN: u16 = 16;
    const END: u16 = 17;
    /// A generic header whose resource is the subsystem.
    const FOR_NFTABLES: [u8; GENERIC] = [0, 0, 0, SUBSYSTEM];

    /// Its messages are numbered from `begin`.
    pub(super) fn new(begin: u32) -> Self {
        let mut bytes = Vec::new();
        append(&mut bytes, Self::BEGIN, flag::REQUEST, begin, Self::FOR_NFTABLES, |_| {});
        Self { bytes, begin, parts: Vec::new(), last: 0 }
    }

    pub(super) fn push(
        &mut self,
        part: Part,
        kind: Kind,
        flags: u16,
        attributes: impl FnOnce(&mut Attributes<'_>),
    ) {
        self.last = self.bytes.len();
        self.parts.push(part);
        let sequence = self.last_sequence();
        let flags = flag::REQUEST | flags;
        append(&mut self.bytes, typed(kind), flags, sequence, [INET, 0, 0, 0], attributes);
    }

    /// The number of the last message before the end: the kernel is asked to confirm this one.
    pub(super) fn last_sequence(&self) -> u32 {
        let parts = u32::try_from(self.parts.len()).unwrap_or(u32::MAX);
        self.begin.wrapping_add(parts)
    }

    /// Whether it changes nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Whether a message's number is that of the batch's begin: errors of the whole have it.
    pub(super) fn begins_with(&self, sequence: u32) -> bool {
        self.begin == sequence
    }

    /// What the message of a number is about.
    pub(super) fn part(&self, sequence: u32) -> Option<Part> {
        let place = sequence.wrapping_sub(self.begin).checked_sub(1)?;
        self.parts.get(usize::try_from(place).ok()?).copied()
    }

    /// The bytes to send, with a confirmation asked for.
    pub(super) fn finish(&mut self) -> &[u8] {
        let flags = self.last + 6;
        if self.last > 0 {
            let asked = u16::from_ne_bytes([self.bytes[flags], self.bytes[flags + 1]]) | flag::ACK;
            self.bytes[flags..flags + 2].copy_from_slice(&asked.to_ne_bytes());
        }
        let sequence = self.last_sequence().wrapping_add(1);
        let for_nftables = Self::FOR_NFTABLES;
        append(&mut self.bytes, Self::END, flag::REQUEST, sequence, for_nftables, |_| {});
        &self.bytes
    }
}

fn typed(kind: Kind) -> u16 {
    u16::from_be_bytes([SUBSYSTEM, kind as u8])
}

fn append(
    bytes: &mut Vec<u8>,
    kind: u16,
    flags: u16,
    sequence: u32,
    generic: [u8; GENERIC],
    attributes: impl FnOnce(&mut Attributes<'_>),
) {
    let start = bytes.len();
    bytes.extend([0; 4]);
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(generic);
    attributes(&mut Attributes(bytes));
    let length = u32::try_from(bytes.len() - start).unwrap_or(u32::MAX);
    bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
}

/// One message of an answer.
#[derive(Debug)]
pub(super) struct Answer<'a> {
    pub(super) sequence: u32,
    pub(super) payload: Payload<'a>,
}

/// What an answer says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Payload<'a> {
    /// `NLMSG_ERROR`: 0 is success, else a positive errno.
    Result(i32),
    /// `NLMSG_DONE`
    Done,
    /// Of nf_tables: attributes.
    Attributes(&'a [u8]),
    /// Of no meaning here.
    Other,
}

/// The messages of a datagram, up to the first that is cut short.
pub(super) fn answers(datagram: &[u8]) -> impl Iterator<Item = Answer<'_>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let length = usize::try_from(u32::from_ne_bytes(*rest.first_chunk()?)).ok()?;
        let message = rest.get(..length).filter(|message| message.len() >= HEADER)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(answer(message))
    })
}

/// `message` holds a header.
fn answer(message: &[u8]) -> Answer<'_> {
    const ERROR: u16 = 2;
    const DONE: u16 = 3;
    let kind = u16::from_ne_bytes([message[4], message[5]]);
    let sequence = u32::from_ne_bytes([message[8], message[9], message[10], message[11]]);
    let body = &message[HEADER..];
    let payload = match (kind, body.first_chunk()) {
        (ERROR, Some(code)) => Payload::Result(i32::from_ne_bytes(*code).saturating_neg()),
        (DONE, _) => Payload::Done,
        (kind, _) if kind.to_be_bytes()[0] == SUBSYSTEM => {
            Payload::Attributes(body.get(GENERIC..).unwrap_or_default())
        }
        (_other, _) => Payload::Other,
    };
    Answer { sequence, payload }
}

/// The attributes in `bytes`, by kind, up to the first that is cut short.
pub(super) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let [a, b, c, d] = *rest.first_chunk()?;
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let payload = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([c, d]) & !NESTED, payload))
    })
}

/// The first attribute of a kind.
pub(super) fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, payload)| payload)
}
