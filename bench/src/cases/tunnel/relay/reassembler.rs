//! Reassembles packets from chunks in their order of arrival. A packet with a lost or late chunk is
//! dropped; the next one begins with its own first chunk.

use uxfrm_packet::{Batch, PacketBuf, Pool, Segments, SizeClass};

use super::chunks::{self, ChunkTag};

/// Reassembles one packet at a time.
#[derive(Debug)]
pub(super) struct Reassembler {
    /// Bytes of every chunk but the last.
    stride: u16,
    open: Option<PartialPacket>,
    incomplete: u64,
}

/// A packet that still lacks chunks.
#[derive(Debug)]
struct PartialPacket {
    chunks: PacketBuf,
    /// The tag of the next chunk.
    next: ChunkTag,
}

impl Reassembler {
    pub(super) fn new(stride: u16) -> Self {
        Self { stride, open: None, incomplete: 0 }
    }

    /// Packets that were dropped because chunks were missing or malformed.
    pub(super) fn incomplete(&self) -> u64 {
        self.incomplete
    }

    /// Takes a chunk or a segment burst of them, and appends packets that are complete to `into`.
    pub(super) fn take(&mut self, message: PacketBuf, pool: &mut Pool, into: &mut Batch) {
        match self.start(&message) {
            // Not copied: the rest of the packet fits behind it.
            Some(tag) if tag.next().is_none() || is_super(&message) => {
                self.drop_partial(pool);
                self.advance(tag, message, pool, into);
            }
            Some(_) | None => {
                for chunk in message.bytes().chunks(step(&message)) {
                    self.add(chunk, pool, into);
                }
                pool.give(message);
            }
        }
    }

    /// The last chunk's tag of a message that holds only the first chunks of one packet.
    fn start(&self, message: &PacketBuf) -> Option<ChunkTag> {
        let step = step(message);
        if step < message.len() && step != usize::from(self.stride) {
            return None;
        }
        let mut tags = message.bytes().chunks(step).map(ChunkTag::of);
        let first = tags.next()?.filter(|tag| tag.chunk == 0)?;
        let last = tags.try_fold(first, |before, tag| tag.filter(|_| tag == before.next()))?;
        (last.next().is_none() || message.len().is_multiple_of(self.stride.into())).then_some(last)
    }

    fn add(&mut self, chunk: &[u8], pool: &mut Pool, into: &mut Batch) {
        let Some(tag) = ChunkTag::of(chunk) else { return self.drop_partial(pool) };
        let is_whole = tag.next().is_none() || chunk.len() == usize::from(self.stride);
        let mut chunks = match self.open.take_if(|open| open.next == tag && is_whole) {
            Some(open) => open.chunks,
            None => {
                self.drop_partial(pool);
                if tag.chunk > 0 || !is_whole {
                    return;
                }
                pool.take(if tag.last == 0 { SizeClass::Packet } else { SizeClass::Super })
            }
        };
        match chunks.append(chunk.len()) {
            Some(room) => {
                room.copy_from_slice(chunk);
                self.advance(tag, chunks, pool, into);
            }
            None => self.discard(chunks, pool),
        }
    }

    /// Continues after the chunk of `tag` was added.
    fn advance(&mut self, tag: ChunkTag, mut chunks: PacketBuf, pool: &mut Pool, into: &mut Batch) {
        match tag.next() {
            Some(next) => self.open = Some(PartialPacket { chunks, next }),
            None if chunks::join(&mut chunks, self.stride).is_some() => into.push(chunks),
            None => self.discard(chunks, pool),
        }
    }

    fn drop_partial(&mut self, pool: &mut Pool) {
        if let Some(open) = self.open.take() {
            self.discard(open.chunks, pool);
        }
    }

    fn discard(&mut self, chunks: PacketBuf, pool: &mut Pool) {
        self.incomplete += 1;
        pool.give(chunks);
    }
}

fn is_super(message: &PacketBuf) -> bool {
    message.capacity() == SizeClass::Super.capacity()
}

/// The stride of a message's chunks.
fn step(message: &PacketBuf) -> usize {
    match message.segments {
        Segments::Burst { stride } => usize::from(stride.max(1)),
        Segments::One | Segments::Tcp { .. } | Segments::Udp { .. } => message.len().max(1),
    }
}
