//! Puts pieces together again, in the order in which they come: a parcel of which one is lost or late is given up, and the next one
//! begins with its own first piece.

use uxfrm_packet::{Batch, PacketBuf, Pool, Segments, SizeClass};

use super::chunks::{self, ChunkTag};

/// The parcel that comes in.
#[derive(Debug)]
pub(super) struct Reassembler {
    /// Bytes of a piece that is not the last.
    stride: u16,
    open: Option<PartialPacket>,
    given_up: u64,
}

/// One that lacks pieces.
#[derive(Debug)]
struct PartialPacket {
    pieces: PacketBuf,
    /// The tag of the next.
    next: ChunkTag,
}

impl Reassembler {
    pub(super) fn new(stride: u16) -> Self {
        Self { stride, open: None, given_up: 0 }
    }

    /// Parcels that began to come in and never did as a whole.
    pub(super) fn given_up(&self) -> u64 {
        self.given_up
    }

    /// Takes a piece, or a train of them, and puts what is whole then behind the others in `into`.
    pub(super) fn take(&mut self, message: PacketBuf, pool: &mut Pool, into: &mut Batch) {
        match self.start(&message) {
            // Nothing is copied: the rest is to come behind it, and there is room for that.
            Some(tag) if tag.next().is_none() || is_super(&message) => {
                self.give_up(pool);
                self.advance(tag, message, pool, into);
            }
            Some(_) | None => {
                for piece in message.bytes().chunks(step(&message)) {
                    self.add(piece, pool, into);
                }
                pool.give(message);
            }
        }
    }

    /// The tag of the last piece in a message, if that holds the first pieces of one parcel and nothing else.
    fn start(&self, message: &PacketBuf) -> Option<ChunkTag> {
        let step = step(message);
        if step < message.len() && step != usize::from(self.stride) {
            return None;
        }
        let mut tags = message.bytes().chunks(step).map(ChunkTag::of);
        let first = tags.next()?.filter(|tag| tag.piece == 0)?;
        let last = tags.try_fold(first, |before, tag| tag.filter(|_| tag == before.next()))?;
        (last.next().is_none() || message.len().is_multiple_of(self.stride.into())).then_some(last)
    }

    fn add(&mut self, piece: &[u8], pool: &mut Pool, into: &mut Batch) {
        let Some(tag) = ChunkTag::of(piece) else { return self.give_up(pool) };
        let is_whole = tag.next().is_none() || piece.len() == usize::from(self.stride);
        let mut pieces = match self.open.take_if(|open| open.next == tag && is_whole) {
            Some(open) => open.pieces,
            None => {
                self.give_up(pool);
                if tag.piece > 0 || !is_whole {
                    return;
                }
                pool.take(if tag.last == 0 { SizeClass::Packet } else { SizeClass::Super })
            }
        };
        match pieces.append(piece.len()) {
            Some(room) => {
                room.copy_from_slice(piece);
                self.advance(tag, pieces, pool, into);
            }
            None => self.refuse(pieces, pool),
        }
    }

    /// The pieces up to that of `tag` are there.
    fn advance(&mut self, tag: ChunkTag, mut pieces: PacketBuf, pool: &mut Pool, into: &mut Batch) {
        match tag.next() {
            Some(next) => self.open = Some(PartialPacket { pieces, next }),
            None if chunks::join(&mut pieces, self.stride).is_some() => into.push(pieces),
            None => self.refuse(pieces, pool),
        }
    }

    fn give_up(&mut self, pool: &mut Pool) {
        if let Some(open) = self.open.take() {
            self.refuse(open.pieces, pool);
        }
    }

    fn refuse(&mut self, pieces: PacketBuf, pool: &mut Pool) {
        self.given_up += 1;
        pool.give(pieces);
    }
}

fn is_super(message: &PacketBuf) -> bool {
    message.capacity() == SizeClass::Super.capacity()
}

/// Bytes from one piece of a message to the next.
fn step(message: &PacketBuf) -> usize {
    match message.segments {
        Segments::Train { stride } => usize::from(stride.max(1)),
        Segments::One | Segments::Tcp { .. } | Segments::Udp { .. } => message.len().max(1),
    }
}
