//! The rings between an `AF_XDP` socket and the kernel: one producer, one consumer, no waiting.
//!
//! Positions increase and wrap; their lower bits are an index. Each side publishes its own
//! position, and reads the other's only when it runs out of what it knows (`net/xdp/xsk_queue.h`).

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use super::mapping::Mapping;

/// Common part of both kinds.
#[derive(Debug)]
struct Ring<T> {
    _mapping: Mapping,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    size: u32,
}

/// A ring that we produce.
#[derive(Debug)]
pub(super) struct Producer<T> {
    ring: Ring<T>,
    /// Our position, and the published one.
    written: u32,
    published: u32,
    /// The kernel's position when last read.
    read: u32,
}

/// A ring that we consume.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    ring: Ring<T>,
    read: u32,
    /// The kernel's position when last read.
    written: u32,
}

// SAFETY: what it points to is its own mapping, which belongs to no thread.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// A ring of `size` entries, a power of two, where the kernel says.
    fn new(mapping: Mapping, offsets: &libc::xdp_ring_offset, size: u32) -> io::Result<Self> {
        let word = |at| mapping.place::<AtomicU32>(narrow(at), 1).ok_or(OUTSIDE);
        let entries = mapping.place(narrow(offsets.desc), size as usize).ok_or(OUTSIDE)?;
        let (producer, consumer) = (word(offsets.producer)?, word(offsets.consumer)?);
        let flags = word(offsets.flags)?;
        Ok(Self { _mapping: mapping, producer, consumer, flags, entries, size })
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: in the mapping and aligned, as `place` said; both sides use it atomically.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.consumer.as_ref() }
    }

    fn entry(&self, position: u32) -> NonNull<T> {
        // SAFETY: below `size`, for which there is room.
        unsafe { self.entries.add((position & (self.size - 1)) as usize) }
    }
}

const OUTSIDE: io::ErrorKind = io::ErrorKind::InvalidData;

impl<T: Copy> Producer<T> {
    pub(super) fn new(
        mapping: Mapping,
        offsets: &libc::xdp_ring_offset,
        size: u32,
    ) -> io::Result<Self> {
        let ring = Ring::new(mapping, offsets, size)?;
        let written = ring.producer().load(Ordering::Relaxed);
        let read = ring.consumer().load(Ordering::Acquire);
        Ok(Self { ring, written, published: written, read })
    }

    /// Continues with a predecessor's ring that has `unseen` unpublished entries.
    pub(super) fn resume(&mut self, unseen: u32) {
        self.published = self.ring.producer().load(Ordering::Relaxed);
        self.written = self.published.wrapping_add(unseen);
        self.read = self.ring.consumer().load(Ordering::Acquire);
    }

    /// Number of unpublished entries.
    pub(super) fn unseen(&self) -> u32 {
        self.written.wrapping_sub(self.published)
    }

    /// Adds an entry, unpublished; gives it back if there is no room.
    #[inline]
    pub(super) fn push(&mut self, entry: T) -> Result<(), T> {
        if self.is_full() {
            return Err(entry);
        }
        // SAFETY: the kernel has read what was there, and reads it again only when it is published.
        unsafe { self.ring.entry(self.written).write(entry) };
        self.written = self.written.wrapping_add(1);
        Ok(())
    }

    #[inline]
    pub(super) fn is_full(&mut self) -> bool {
        if self.written.wrapping_sub(self.read) == self.ring.size {
            self.read = self.ring.consumer().load(Ordering::Acquire);
        }
        self.written.wrapping_sub(self.read) == self.ring.size
    }

    /// Publishes all entries.
    #[inline]
    pub(super) fn publish(&mut self) {
        self.publish_up_to(self.written);
    }

    /// Publishes entries until the kernel has `most` unread ones.
    pub(super) fn publish_some(&mut self, most: u32) {
        let unseen = self.waiting().saturating_sub(most);
        let position = self.written.wrapping_sub(unseen);
        if position.wrapping_sub(self.published).cast_signed() > 0 {
            self.publish_up_to(position);
        }
    }

    /// Published entries that the kernel has not read.
    pub(super) fn unread(&mut self) -> u32 {
        self.read = self.ring.consumer().load(Ordering::Acquire);
        self.published.wrapping_sub(self.read)
    }

    /// All entries that the kernel has not read.
    pub(super) fn waiting(&mut self) -> u32 {
        self.read = self.ring.consumer().load(Ordering::Acquire);
        self.written.wrapping_sub(self.read)
    }

    #[inline]
    fn publish_up_to(&mut self, position: u32) {
        if self.published != position {
            self.published = position;
            self.ring.producer().store(position, Ordering::Release);
        }
    }

    /// Whether the kernel must be woken (`XDP_RING_NEED_WAKEUP`).
    #[inline]
    pub(super) fn needs_call(&self) -> bool {
        // SAFETY: as for the positions.
        let flags = unsafe { self.ring.flags.as_ref() };
        flags.load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

impl<T: Copy> Consumer<T> {
    pub(super) fn new(
        mapping: Mapping,
        offsets: &libc::xdp_ring_offset,
        size: u32,
    ) -> io::Result<Self> {
        let ring = Ring::new(mapping, offsets, size)?;
        let read = ring.consumer().load(Ordering::Relaxed);
        Ok(Self { ring, read, written: read })
    }

    /// Continues with a predecessor's ring.
    pub(super) fn resume(&mut self) {
        self.read = self.ring.consumer().load(Ordering::Relaxed);
        self.written = self.read;
    }

    /// Positions of our next read and of the kernel's last write.
    pub(super) fn positions(&mut self) -> (u32, u32) {
        self.written = self.ring.producer().load(Ordering::Acquire);
        (self.read, self.written)
    }

    /// The next entry; its place is the kernel's after [`release`](Self::release).
    #[inline]
    pub(super) fn next(&mut self) -> Option<T> {
        if self.read == self.written {
            self.written = self.ring.producer().load(Ordering::Acquire);
            if self.read == self.written {
                return None;
            }
        }
        // SAFETY: the kernel has written it, and leaves it alone until it is released.
        let entry = unsafe { self.ring.entry(self.read).read() };
        self.read = self.read.wrapping_add(1);
        Some(entry)
    }

    /// Releases the places of all entries read.
    #[inline]
    pub(super) fn release(&self) {
        self.ring.consumer().store(self.read, Ordering::Release);
    }
}

/// An offset within a mapping; an invalid one lies outside.
fn narrow(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    pub(in crate::xdp) const SIZE: u32 = 8;
    const OFFSETS: libc::xdp_ring_offset =
        libc::xdp_ring_offset { producer: 0, consumer: 64, desc: 128, flags: 192 };

    /// Both ends of a ring, just before positions wrap.
    pub(in crate::xdp) fn ends() -> (Producer<u64>, Consumer<u64>) {
        let ours = Mapping::anonymous(4096).unwrap();
        let start = u32::MAX - 2;
        for at in [0, 64] {
            // SAFETY: within the mapping, aligned, and nobody else's yet.
            unsafe { ours.place::<u32>(at, 1).unwrap().write(start) };
        }
        let producer = Producer::new(ours, &OFFSETS, SIZE).unwrap();
        let ring = &producer.ring;
        // It borrows the other's pages, which outlive it.
        let theirs = Ring {
            _mapping: Mapping::anonymous(4096).unwrap(),
            producer: ring.producer,
            consumer: ring.consumer,
            flags: ring.flags,
            entries: ring.entries,
            size: SIZE,
        };
        (producer, Consumer { ring: theirs, read: start, written: start })
    }

    proptest! {
        #[test]
        fn ring_entries_keep_order(steps in prop::collection::vec(0..5_u8, 0..400)) {
            let (mut producer, mut consumer) = ends();
            let (mut model, mut unseen) = (VecDeque::new(), VecDeque::<u64>::new());
            let mut unreleased = 0;
            for (step, number) in steps.into_iter().zip(0_u64..) {
                match step {
                    0 => {
                        let has_room = model.len() + unseen.len() + unreleased < SIZE as usize;
                        prop_assert_eq!(producer.push(number).is_ok(), has_room);
                        if has_room {
                            unseen.push_back(number);
                        }
                    }
                    1 => {
                        producer.publish();
                        model.append(&mut unseen);
                        prop_assert_eq!(producer.unread() as usize, model.len() + unreleased);
                    }
                    4 => {
                        // Three unread ones, including those to be read again.
                        producer.publish_some(3);
                        let more = 3_usize.saturating_sub(model.len() + unreleased);
                        model.extend(unseen.drain(..more.min(unseen.len())));
                        let (seen, all) = (producer.unread() as usize, producer.waiting() as usize);
                        prop_assert_eq!(seen, model.len() + unreleased);
                        prop_assert_eq!(all, seen + unseen.len());
                    }
                    2 => {
                        let expected = model.pop_front();
                        unreleased += usize::from(expected.is_some());
                        prop_assert_eq!(consumer.next(), expected);
                    }
                    _ => {
                        consumer.release();
                        unreleased = 0;
                    }
                }
            }
        }
    }

    #[test]
    fn a_ring_beyond_its_mapping_is_refused() {
        let mapping = Mapping::anonymous(4096).unwrap();
        assert!(Producer::<u64>::new(mapping, &OFFSETS, 1024).is_err());
    }
}
