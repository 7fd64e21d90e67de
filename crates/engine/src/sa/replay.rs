//! The inbound anti-replay window (RFC 4303 §3.4.3, appendix A2), without a lock.
//!
//! # How it works
//! Numbers are grouped in blocks of 32. A ring of 64-bit words holds the bits of the newest blocks
//! (the shape of RFC 6479); a word says itself whose bits it holds:
//! `low 32 bits of the block number << 32 | bitmap`. So recycling a word for a newer block and
//! setting its first bit are *one* compare-and-swap, and nothing needs to be cleared.
//!
//! # Why no number is accepted twice
//! The first acceptance leaves a word with the number's tag and its bit. A word's tag only ever
//! moves forward, and a bit is only ever set. So a second attempt finds the same tag with the bit
//! set ([`DropReason::InReplay`]) or a newer tag ([`DropReason::InTooOld`]). The window's head
//! plays no part in this: it may lag behind without harm.
//!
//! # Why tags of 32 bits suffice
//! "Newer" is decided by the sign of the tags' difference, right while the blocks are less than
//! 2^31 apart (2^36 numbers). A number that is tried is at most 2^32 above the head that
//! [`ReplayWindow::check`] saw, and above `head - window` as [`ReplayWindow::accept`] sees it.
//! `accept` loads the word *before* the head: the acquiring load of a word written by another
//! thread makes that thread's own reading of the head visible, so the head is no more than 2^32
//! below the tag's block, and a tag newer than the number's block is less than 2^28 blocks newer. A
//! *stale* tag may be further behind (a word that was not touched for 2^36 numbers): it is then
//! mistaken for a newer or equal one and the packet is refused, never wrongly accepted. The head
//! can jump that far only in `mark_received`, for numbers received elsewhere, as by a device. All
//! packets would then be refused for good, so `move_on` advances every word first.

use uxfrm_packet::prefetch_far;

use super::replay_store::{ReplayKeeper, SharedHead};
use crate::DropReason;
use crate::sync::{AtomicU64, Ordering};

/// The numbers already received on one SA.
///
/// ```
/// use uxfrm_engine::{DropReason, ReplayWindow, sa::replay::SeqWidth};
///
/// let window = ReplayWindow::new(64, SeqWidth::Bits32, 0);
/// let candidate = window.check(7)?; // before the packet is authenticated
/// window.accept(candidate)?; // after it
/// assert_eq!(window.check(7), Err(DropReason::InReplay));
/// assert_eq!(window.highest(), 7);
/// # Ok::<(), DropReason>(())
/// ```
#[derive(Debug)]
#[repr(C)]
pub struct ReplayWindow {
    /// The highest number accepted; only rises.
    head: AtomicU64,
    /// Numbers above it take the slow path: they come near `edge`.
    near_edge: AtomicU64,
    window: u32,
    numbers: SeqWidth,
    /// A power of two of words, more than the blocks that a window can touch; empty without a
    /// replay check.
    ring: Box<[AtomicU64]>,
    /// Where the highest number outlives the process.
    shared_head: Option<&'static AtomicU64>,
    stored: Option<Box<PersistentWindow>>,
}

/// Extension of a window whose numbers are kept across restarts.
#[derive(Debug)]
struct PersistentWindow {
    /// Reserved edge: no number above it is accepted, as a crash would forget it.
    edge: AtomicU64,
    /// The highest authentic number refused for being above the edge.
    wanted: AtomicU64,
    /// Numbers up to this may have been received before a restart.
    restart: AtomicU64,
    keeper: ReplayKeeper,
    /// Releases it when the window is dropped.
    _shared_head: Option<SharedHead>,
}

/// Numbers that a new SA may receive before its owner has reserved any. A peer may begin at full
/// rate, and 400,000 packets a second use them up in 40 ms, in which the owner wakes and a disk
/// writes.
pub const FIRST_RESERVED: u64 = 1 << 14;

/// The number from which the owner is to reserve more, given the `edge` and the `head`: half of
/// what is left; an eighth if that is little, as it may be used up before the owner wakes by
/// itself.
const fn near_edge(head: u64, edge: u64) -> u64 {
    let left = edge.saturating_sub(head);
    let share = if left <= FIRST_RESERVED { 8 } else { 2 };
    head.saturating_add(left / share)
}

/// Width of sequence numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeqWidth {
    /// 32 bits, all in the packet.
    Bits32,
    /// 64 bits, the lower half in the packet (RFC 4303 §2.2.1).
    Esn,
}

/// A number that passed the replay check: use it to authenticate the packet, then for
/// [`ReplayWindow::accept`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UncheckedSeq(u64);

/// The largest window (`XFRMA_REPLAY_ESN_MAX` words of 32 bits).
pub const MAX_WINDOW: u32 = 4096;

impl UncheckedSeq {
    /// The number, all 64 bits; the upper half 0 without ESN.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

impl ReplayWindow {
    /// Bytes at its beginning that every packet reads.
    #[cfg(test)]
    pub(super) const READ: usize = std::mem::offset_of!(Self, stored);

    /// A window of `window` packets (at most [`MAX_WINDOW`]; 0 switches the check off) in which all
    /// numbers up to `received` count as received.
    #[must_use]
    pub fn new(window: u32, numbers: SeqWidth, received: u64) -> Self {
        let window = window.min(MAX_WINDOW);
        Self {
            head: AtomicU64::new(received),
            near_edge: AtomicU64::new(u64::MAX),
            window,
            numbers,
            ring: ring(window, received),
            shared_head: None,
            stored: None,
        }
    }

    /// The same for an SA whose received numbers are kept across restarts: it accepts
    /// [`FIRST_RESERVED`] more before some are [reserved](ReplayWindow::reserve). Without a replay
    /// check there is nothing to keep.
    pub(super) fn with_keeper(mut self, keeper: &ReplayKeeper, head: Option<SharedHead>) -> Self {
        if self.window == 0 || !keeper.is_some() {
            return self;
        }
        self.shared_head = head.as_ref().map(SharedHead::number);
        self.stored = Some(Box::new(PersistentWindow {
            edge: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            restart: AtomicU64::new(0),
            keeper: keeper.clone(),
            _shared_head: head,
        }));
        let received = self.highest();
        self.note(received);
        self.reserve(received.saturating_add(FIRST_RESERVED));
        self
    }

    /// Sets the reserved edge: no number above `edge` is accepted. The owner stores it first. When
    /// enough of what is left is used (`near_edge`), the owner is woken
    /// ([`ReplayStore::wake`](super::replay_store::ReplayStore::wake)).
    pub fn reserve(&self, edge: u64) {
        let Some(stored) = &self.stored else { return };
        let head = self.highest();
        stored.edge.store(edge, Ordering::Relaxed);
        self.near_edge.store(near_edge(head, edge), Ordering::Relaxed);
    }

    /// The owner was woken but cannot reserve more yet: wake it again when half of what is left is
    /// used.
    pub fn raise_edge(&self) {
        let Some(stored) = &self.stored else { return };
        let (head, edge) = (self.highest(), stored.edge.load(Ordering::Relaxed));
        if head < edge && self.near_edge.load(Ordering::Relaxed) >= edge {
            self.near_edge.store(head + (edge - head) / 2, Ordering::Relaxed);
        }
    }

    /// The highest number accepted, or refused only for being above the edge: the next reservation
    /// begins there.
    #[must_use]
    pub fn wanted(&self) -> u64 {
        let wanted = self.stored.as_ref().map_or(0, |stored| stored.wanted.load(Ordering::Relaxed));
        self.highest().max(wanted)
    }

    /// The reserved edge; `u64::MAX` without a [`ReplayStore`](super::replay_store::ReplayStore).
    #[must_use]
    pub fn reserved(&self) -> u64 {
        self.stored.as_ref().map_or(u64::MAX, |stored| stored.edge.load(Ordering::Relaxed))
    }

    /// Where the highest number outlives the process.
    #[must_use]
    pub const fn shared_head(&self) -> Option<&'static AtomicU64> {
        self.shared_head
    }

    /// Highest number that may have been received before a restart; 0 without one.
    #[must_use]
    pub fn restarted_at(&self) -> u64 {
        self.stored.as_ref().map_or(0, |stored| stored.restart.load(Ordering::Relaxed))
    }

    /// For a window on a device, which refused this number for being above the edge. Wakes the
    /// owner if this number or the received ones are near the edge.
    pub(super) fn request_edge(&self, number: u64) {
        let Some(stored) = &self.stored else { return };
        let is_news = stored.wanted.fetch_max(number, Ordering::Relaxed) < number;
        let edge = stored.edge.load(Ordering::Relaxed);
        let is_near = self.highest() > self.near_edge.load(Ordering::Relaxed)
            && self.near_edge.swap(edge, Ordering::Relaxed) < edge;
        // Once per number, so that a disk that takes no writes keeps nobody busy.
        if is_near || is_news && number > edge {
            stored.keeper.wake();
        }
    }

    /// Begins after a restart: numbers up to `received` may have been accepted before it, and have
    /// their own drop reason.
    pub(super) fn restart_at(&self, received: u64) {
        let oldest = received.saturating_sub(u64::from(self.window)) + 1;
        if received > self.highest() {
            self.mark_received(received, oldest..=received);
        }
        self.note(received);
        if let Some(stored) = &self.stored {
            stored.restart.fetch_max(received, Ordering::Relaxed);
        }
    }

    /// A number near the reserved edge, or beyond.
    #[cold]
    fn approach(&self, number: u64) -> Result<(), DropReason> {
        let Some(stored) = &self.stored else { return Ok(()) };
        let edge = stored.edge.load(Ordering::Relaxed);
        // Once: until the owner has moved the edge, numbers up to it take the fast path.
        if self.near_edge.swap(edge, Ordering::Relaxed) < edge {
            stored.keeper.wake();
        }
        if number <= edge {
            return Ok(());
        }
        // The peer continued far above, as after its own crash: the owner reserves from there.
        stored.wanted.fetch_max(number, Ordering::Relaxed);
        stored.keeper.wake();
        Err(DropReason::InReplayReserve)
    }

    /// The drop reason of a refused number that may have been received before a restart.
    #[cold]
    #[must_use]
    pub fn explain(&self, low: u32, reason: DropReason) -> DropReason {
        if is_before_restart(low, self.restarted_at()) {
            return DropReason::InBeforeRestart;
        }
        reason
    }

    #[inline]
    fn note(&self, number: u64) {
        self.head.fetch_max(number, Ordering::AcqRel);
        if let Some(shared_head) = self.shared_head {
            // The packet has not been delivered yet: a crash before this loses it, one after this
            // refuses it.
            shared_head.fetch_max(number, Ordering::Relaxed);
        }
    }

    /// Infers the upper half (RFC 4303 §A2.2) and checks whether the number may be new. This is the
    /// cheap check before authentication; it does not know of packets with the same number in
    /// flight elsewhere.
    ///
    /// # Errors
    /// [`DropReason::InTooOld`] below the window, [`DropReason::InReplay`] when already received,
    /// [`DropReason::InNoNumber`] for number 0.
    #[inline]
    pub fn check(&self, low: u32) -> Result<UncheckedSeq, DropReason> {
        // Relaxed: a stale head can only make this check milder, or the inferred half wrong, which
        // the ICV detects.
        let head = self.head.load(Ordering::Relaxed);
        let number = match self.numbers {
            SeqWidth::Bits32 => u64::from(low),
            SeqWidth::Esn => infer(low, head, self.window).ok_or(DropReason::InTooOld)?,
        };
        // No number above the head was received; `accept` checks again.
        if number > head || self.window == 0 {
            return Ok(UncheckedSeq(number));
        }
        let spot = WindowSlot::of(number, self.ring.len());
        // Acquire: the writer of the tag had read a head at most 2^32 below; see the module docs.
        let word = self.ring[spot.slot].load(Ordering::Acquire);
        self.refuse_old(number)?;
        spot.mark(word).map(|_| UncheckedSeq(number))
    }

    /// Prefetches what [`ReplayWindow::check`] and [`ReplayWindow::accept`] read for a number. The
    /// slot depends on its lower half only.
    #[inline]
    pub(crate) fn prefetch(&self, low: u32) {
        if self.window != 0 {
            prefetch_far(&self.ring[WindowSlot::of(low.into(), self.ring.len()).slot]);
        }
    }

    /// Accepts the number of an authenticated packet, at most once whatever other threads do, and
    /// advances the window.
    ///
    /// # Errors
    /// [`DropReason::InTooOld`], [`DropReason::InReplay`] as for [`ReplayWindow::check`].
    #[inline]
    pub fn accept(&self, UncheckedSeq(number): UncheckedSeq) -> Result<(), DropReason> {
        if number > self.near_edge.load(Ordering::Relaxed) {
            self.approach(number)?;
        }
        self.take(number)
    }

    #[inline(always)]
    fn take(&self, number: u64) -> Result<(), DropReason> {
        if self.window != 0 {
            let spot = WindowSlot::of(number, self.ring.len());
            let word = &self.ring[spot.slot];
            let mut seen = word.load(Ordering::Acquire);
            loop {
                self.refuse_old(number)?;
                let marked = spot.mark(seen)?;
                // AcqRel: release our reading of the head with the new tag; acquire the other's on
                // failure.
                match word.compare_exchange_weak(seen, marked, Ordering::AcqRel, Ordering::Acquire)
                {
                    Ok(_) => break,
                    Err(now) => seen = now,
                }
            }
        }
        self.note(number);
        Ok(())
    }

    /// Accepts as many of the first `numbers` as one atomic operation can: consecutive new ones in
    /// a block. Returns how many; the next one may still be [accepted](Self::accept) by itself.
    #[inline]
    pub(crate) fn accept_some(&self, numbers: impl IntoIterator<Item = UncheckedSeq>) -> usize {
        let mut numbers = numbers.into_iter();
        let Some(first) = numbers.next() else { return 0 };
        if self.window == 0 {
            let most = |(highest, count), number: UncheckedSeq| (number.0.max(highest), count + 1);
            let (highest, count) = numbers.fold((first.0, 1), most);
            self.head.fetch_max(highest, Ordering::AcqRel);
            return count;
        }
        let mut spot = WindowSlot::of(first.0, self.ring.len());
        let (block, mut count) = (first.0 / BLOCK_BITS, 1);
        // Consecutive numbers within the block, as nearly all are: none is too old for another.
        let (mut next, mut next_bit) = (first.0, spot.bit);
        for UncheckedSeq(number) in numbers {
            (next, next_bit) = (next.wrapping_add(1), next_bit << 1);
            if number != next || next_bit == 0 {
                let bit = 1 << (number % BLOCK_BITS);
                // None of them may be too old for another.
                let apart =
                    u64::from(self.window) < BLOCK_BITS && span(spot.bit | bit) > self.window;
                if number / BLOCK_BITS != block || spot.bit & bit != 0 || apart {
                    break;
                }
                spot.bit |= bit;
                next_bit = 0;
            }
            spot.bit |= next_bit;
            count += 1;
        }
        let lowest = block * BLOCK_BITS + u64::from(spot.bit.trailing_zeros());
        let highest = block * BLOCK_BITS + u64::from(spot.bit.ilog2());
        if highest > self.near_edge.load(Ordering::Relaxed) && self.approach(highest).is_err() {
            return 0;
        }
        let word = &self.ring[spot.slot];
        let mut seen = word.load(Ordering::Acquire);
        loop {
            if self.refuse_old(lowest).is_err() {
                return 0;
            }
            let Some(marked) = spot.mark_all(seen) else { return 0 };
            // As in `accept`.
            match word.compare_exchange_weak(seen, marked, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        self.note(highest);
        count
    }

    /// Whether a number in the window was received: one bit of a dump.
    #[must_use]
    pub fn has(&self, number: u64) -> bool {
        if self.window == 0 || number > self.highest() || self.refuse_old(number).is_err() {
            return false;
        }
        let spot = WindowSlot::of(number, self.ring.len());
        let word = self.ring[spot.slot].load(Ordering::Acquire);
        spot.mark(word) == Err(DropReason::InReplay)
    }

    /// Marks numbers that another has received, up to `received`. The window only advances, and
    /// received numbers stay so.
    pub(crate) fn mark_received(&self, received: u64, numbers: impl IntoIterator<Item = u64>) {
        self.move_on(received);
        for number in numbers {
            // Known already, or below the window.
            let _ = self.take(number);
        }
        self.note(received);
    }

    /// Closes the window, so that another can continue. Returns the highest number received and
    /// those that it still knows. A thread about to mark one more finds its word changed.
    pub(crate) fn end(&self) -> (u64, Vec<u64>) {
        let near = self.highest() / BLOCK_BITS;
        // Newer than all blocks in use, and empty.
        let closed = join(low_half(near + (1 << 30)), 0);
        let words = self.ring.iter().map(|word| word.swap(closed, Ordering::AcqRel));
        let received: Vec<_> = words.flat_map(|word| received_in(word, near)).collect();
        // The thread that accepted the last number may not have moved the head yet.
        let highest = received.iter().copied().fold(self.highest(), u64::max);
        (highest, received)
    }

    /// Advances all words to blocks up to that of `received`. It may be so far ahead that old tags
    /// would pass for newer ones, and all numbers for too old, for good.
    fn move_on(&self, received: u64) {
        let newest = received / BLOCK_BITS;
        let words = self.ring.len() as u64;
        for (slot, word) in (0..words).zip(&self.ring) {
            // The newest block of this slot; before block 0 there is none.
            let Some(block) = newest.checked_sub(newest.wrapping_sub(slot) & (words - 1)) else {
                continue;
            };
            let empty = join(low_half(block), 0);
            let mut seen = word.load(Ordering::Acquire);
            while self.is_behind(seen, empty, received)
                && let Err(now) =
                    word.compare_exchange_weak(seen, empty, Ordering::AcqRel, Ordering::Acquire)
            {
                seen = now;
            }
        }
    }

    /// Whether a word, read just now, belongs to an older block than another one that may have
    /// numbers up to `received`.
    fn is_behind(&self, word: u64, other: u64, received: u64) -> bool {
        // No word has a number more than 2^32 above the head, which is read after it (see the
        // module docs), and a ring is far shorter than the rest.
        let far = received.saturating_sub(self.head.load(Ordering::Acquire)) > 1 << 33;
        let ahead = low_half(other >> 32).wrapping_sub(low_half(word >> 32));
        far || ahead != 0 && ahead >> 31 == 0
    }

    /// The highest number accepted, all 64 bits (`seq` and `seq_hi` of a dump).
    #[must_use]
    pub fn highest(&self) -> u64 {
        self.head.load(Ordering::Relaxed)
    }

    /// Window size in bits; 0 without a replay check.
    #[must_use]
    pub const fn window(&self) -> u32 {
        self.window
    }

    #[inline]
    fn refuse_old(&self, number: u64) -> Result<(), DropReason> {
        if number == 0 {
            return Err(DropReason::InNoNumber);
        }
        let head = self.head.load(Ordering::Acquire);
        if head.saturating_sub(number) >= u64::from(self.window) {
            return Err(DropReason::InTooOld);
        }
        Ok(())
    }
}

/// Whether a refused number, of which a packet has the lower half, may have been received before a
/// restart, up to `restart` (0 for none).
#[must_use]
pub fn is_before_restart(low: u32, restart: u64) -> bool {
    // The nearest number below: with ESN a packet has the lower half only.
    let before = u64::from(low_half(restart).wrapping_sub(low));
    restart != 0 && before <= restart && before < 1 << 31
}

/// Position of a number's bit, or of several bits in one block.
#[derive(Clone, Copy)]
struct WindowSlot {
    slot: usize,
    tag: u32,
    bit: u32,
}

impl WindowSlot {
    #[inline]
    fn of(number: u64, words: usize) -> Self {
        let block = number / BLOCK_BITS;
        let tag = low_half(block);
        // A ring has at most 256 words, so the low half of the block number is enough to find the
        // slot.
        Self { slot: tag as usize & (words - 1), tag, bit: 1 << (number % BLOCK_BITS) }
    }

    /// The word with this number's bit set.
    #[inline]
    fn mark(self, word: u64) -> Result<u64, DropReason> {
        let (tag, bitmap) = (low_half(word >> 32), low_half(word));
        if tag == self.tag {
            let marked = bitmap | self.bit;
            return if marked == bitmap {
                Err(DropReason::InReplay)
            } else {
                Ok(join(tag, marked))
            };
        }
        // The top bit of the difference is its sign.
        if tag.wrapping_sub(self.tag) >> 31 == 0 {
            return Err(DropReason::InTooOld);
        }
        Ok(join(self.tag, self.bit))
    }

    /// The word with all these bits set; `None` if one is set already, or the block is too old.
    #[inline]
    fn mark_all(self, word: u64) -> Option<u64> {
        let (tag, bitmap) = (low_half(word >> 32), low_half(word));
        if tag == self.tag {
            return (bitmap & self.bit == 0).then(|| join(tag, bitmap | self.bit));
        }
        self.mark(word).ok()
    }
}

const BLOCK_BITS: u64 = 32;

/// The numbers whose bits a word has, in the block with its tag nearest to block `near`; none
/// before block 0.
fn received_in(word: u64, near: u64) -> impl Iterator<Item = u64> {
    let (tag, bitmap) = (low_half(word >> 32), low_half(word));
    let ahead = tag.wrapping_sub(low_half(near)).cast_signed();
    let block = near.checked_add_signed(ahead.into()).into_iter();
    block.flat_map(move |block| {
        let set = (0..BLOCK_BITS).filter(move |bit| bitmap >> bit & 1 == 1);
        set.map(move |bit| block * BLOCK_BITS + bit)
    })
}

/// Distance from the lowest bit to the highest.
#[inline]
const fn span(bits: u32) -> u32 {
    u32::BITS - bits.leading_zeros() - bits.trailing_zeros()
}

/// The full number of a packet with lower half `low` (RFC 4303 §A2.2). `None` before 0 or after
/// 2^64 - 1.
#[inline]
fn infer(low: u32, head: u64, window: u32) -> Option<u64> {
    let (head_high, head_low) = (head >> 32, low_half(head));
    let reach = window.saturating_sub(1);
    let bottom = head_low.wrapping_sub(reach);
    let high = match (head_low >= reach, low >= bottom) {
        (true, true) | (false, false) => Some(head_high),
        (true, false) => head_high.checked_add(1).filter(|high| *high <= u64::from(u32::MAX)),
        (false, true) => head_high.checked_sub(1),
    };
    high.map(|high| high << 32 | u64::from(low))
}

/// One word more than the blocks that a window can touch, so that the newest block never replaces
/// one still in it.
fn ring(window: u32, received: u64) -> Box<[AtomicU64]> {
    if window == 0 {
        return Box::new([]);
    }
    let words = ((window as usize - 1) / 32 + 2).next_power_of_two();
    let newest = received / BLOCK_BITS;
    let place = |slot: usize| {
        // The newest block at or below `received` of this slot; before block 0 it is one that never
        // comes.
        let behind = newest.wrapping_sub(slot as u64) & (words as u64 - 1);
        let block = newest.wrapping_sub(behind);
        let bitmap = if behind == 0 { up_to(received % BLOCK_BITS) } else { u32::MAX };
        AtomicU64::new(join(low_half(block), bitmap))
    };
    (0..words).map(place).collect()
}

/// Bits 0 to `last`.
const fn up_to(last: u64) -> u32 {
    u32::MAX >> (BLOCK_BITS - 1 - last)
}

const fn join(tag: u32, bitmap: u32) -> u64 {
    (tag as u64) << 32 | bitmap as u64
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is what is asked for")]
const fn low_half(value: u64) -> u32 {
    value as u32
}

#[cfg(test)]
mod tests;
