//! Netlink messages that begin with a generic header, byte by byte: headers, attributes, and answers.
//!
//! Headers are the host's (`include/uapi/linux/netlink.h`); how numbers in attributes are written is for each family to say.

/// `NLA_F_NESTED`
const NESTED: u16 = 0x8000;

const HEADER: usize = 16;
/// Bytes of the header behind the first: of generic netlink, or of netfilter.
pub(crate) const GENERIC: usize = 4;
/// Kinds below are netlink's own (`NLMSG_MIN_TYPE`).
const FIRST_KIND: u16 = 16;

/// `NLM_F_*` of requests.
pub(crate) mod flag {
    pub(crate) const REQUEST: u16 = 1;
    pub(crate) const ACK: u16 = 4;
    /// What was made is told, with its handle.
    pub(crate) const ECHO: u16 = 8;
    pub(crate) const DUMP: u16 = 0x300;
    pub(crate) const CREATE: u16 = 0x400;
    /// The rule goes behind the others.
    pub(crate) const APPEND: u16 = 0x800;
}

/// The attributes of one message, or nested in another attribute.
#[derive(Debug)]
pub(crate) struct Attributes<'a>(&'a mut Vec<u8>);

impl Attributes<'_> {
    pub(crate) fn bytes(&mut self, kind: u16, payload: &[u8]) {
        self.put(kind, |bytes| bytes.extend(payload));
    }

    pub(crate) fn number(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    pub(crate) fn long(&mut self, kind: u16, value: u64) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// A text and the zero behind it.
    pub(crate) fn text(&mut self, kind: u16, text: &str) {
        self.put(kind, |bytes| {
            bytes.extend(text.as_bytes());
            bytes.push(0);
        });
    }

    pub(crate) fn nest(&mut self, kind: u16, inside: impl FnOnce(&mut Attributes<'_>)) {
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

/// Appends a message.
pub(crate) fn append(
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
pub(crate) struct Answer<'a> {
    pub(crate) sequence: u32,
    pub(crate) payload: Payload<'a>,
}

/// What an answer says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Payload<'a> {
    /// `NLMSG_ERROR`: 0 is success, else a positive errno.
    Result(i32),
    /// `NLMSG_DONE`
    Done,
    /// Of the family that was asked: attributes.
    Attributes(&'a [u8]),
    /// Of no meaning here.
    Other,
}

/// The messages of a datagram, up to the first that is cut short.
pub(crate) fn answers(datagram: &[u8]) -> impl Iterator<Item = Answer<'_>> {
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
        (FIRST_KIND.., _) => Payload::Attributes(body.get(GENERIC..).unwrap_or_default()),
        (_other, _) => Payload::Other,
    };
    Answer { sequence, payload }
}

/// The attributes in `bytes`, by kind, up to the first that is cut short.
pub(crate) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
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
pub(crate) fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, payload)| payload)
}
