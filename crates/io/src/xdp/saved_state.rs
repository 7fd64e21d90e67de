//! State that a queue's process saves for its successor, in front of the frames: the layout, and
//! the frames that are neither in the kernel nor in a ring.
//!
//! All other frames are the kernel's or in rings, whose positions are in shared memory. Nothing is
//! written here while packets pass.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use super::mapping::Mapping;
use super::umem;
use crate::memfd;

/// Bytes in front of the frames; whole pages of any size.
pub(super) const LENGTH: usize = 64 << 10;
/// Its words.
const WORDS: usize = LENGTH / size_of::<AtomicU32>();
/// Version of the format. Others must be refused.
const VERSION: u32 = 0x7578_0001;

/// Number and size of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UmemLayout {
    /// Receive frames, and ring size: a power of two, as all of these.
    pub(super) received: u32,
    /// Transmit frames, behind them.
    pub(super) sent: u32,
    /// Bytes.
    pub(super) frame: u32,
}

impl UmemLayout {
    /// Frames of both kinds.
    pub(super) const fn frames(&self) -> u32 {
        self.received + self.sent
    }

    /// Bytes of all of them.
    pub(super) const fn bytes(&self) -> usize {
        self.frames() as usize * self.frame as usize
    }

    /// Whether the values are plausible.
    fn is_sound(&self) -> bool {
        let fits = |count: u32| count.is_power_of_two() && count as usize <= WORDS / 4;
        fits(self.received) && fits(self.sent) && umem::SIZES.contains(&self.frame)
    }
}

/// State of the rings that only the process knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RingState {
    /// Entries of the transmit ring that are not published.
    pub(super) unseen: u32,
    /// Lost frames at the last query.
    pub(super) lost: u64,
    /// Numbers of free transmit frames.
    pub(super) free: Vec<u32>,
    /// Numbers of frames without a place in the fill ring.
    pub(super) waiting: Vec<u32>,
}

/// The words before the frames.
#[derive(Debug)]
pub(super) struct SavedState {
    _mapping: Mapping,
    words: NonNull<[AtomicU32; WORDS]>,
    layout: UmemLayout,
}

// SAFETY: what it points to is its own mapping, which belongs to no thread, and all that is read or
// written there is atomic.
unsafe impl Send for SavedState {}

impl SavedState {
    /// Initialises new memory.
    pub(super) fn begin(memory: &OwnedFd, layout: UmemLayout) -> io::Result<Self> {
        let saved_state = Self { layout, ..Self::map(memory)? };
        let UmemLayout { received, sent, frame } = layout;
        saved_state.write(0, [VERSION, received, sent, frame]);
        Ok(saved_state)
    }

    /// Opens memory that a predecessor initialised.
    ///
    /// # Errors
    /// `InvalidData` for anything else, `EPERM` for memory that the other process could shrink.
    pub(super) fn of(memory: &OwnedFd) -> io::Result<Self> {
        let length = memfd::length(memory)?;
        if length < LENGTH {
            return Err(INVALID.into());
        }
        let mut saved_state = Self::map(memory)?;
        let [version, received, sent, frame] = [0, 1, 2, 3].map(|place| saved_state.word(place));
        saved_state.layout = UmemLayout { received, sent, frame };
        let is_whole =
            saved_state.layout.is_sound() && length == LENGTH + saved_state.layout.bytes();
        if version == VERSION && is_whole { Ok(saved_state) } else { Err(INVALID.into()) }
    }

    fn map(memory: &OwnedFd) -> io::Result<Self> {
        let mapping = Mapping::shared(memory.as_fd(), 0, LENGTH)?;
        let words = mapping.place(0, 1).ok_or(INVALID)?;
        Ok(Self { _mapping: mapping, words, layout: UmemLayout { received: 0, sent: 0, frame: 0 } })
    }

    pub(super) const fn layout(&self) -> UmemLayout {
        self.layout
    }

    /// Saves the state.
    pub(super) fn save(&self, rest: &RingState) {
        let [a, b] = [rest.lost >> 32, rest.lost & u64::from(u32::MAX)];
        let [high, low] = [a, b].map(|half| u32::try_from(half).unwrap_or(0));
        let counts = [&rest.free, &rest.waiting].map(|frames| u32::try_from(frames.len()));
        let [free, waiting] = counts.map(|count| count.unwrap_or(u32::MAX));
        let head = [rest.unseen, high, low, free, waiting];
        self.write(4, head.iter().chain(&rest.free).chain(&rest.waiting).copied());
    }

    /// Reads the saved state.
    ///
    /// # Errors
    /// `InvalidData` for frames that do not exist or are named twice.
    pub(super) fn restore(&self) -> io::Result<RingState> {
        let [unseen, high, low, free, waiting] = [4, 5, 6, 7, 8].map(|place| self.word(place));
        let UmemLayout { received, sent, .. } = self.layout;
        if unseen.saturating_add(free) > sent || waiting > received {
            return Err(INVALID.into());
        }
        let mut words = (9..).map(|place| self.word(place));
        let lost = u64::from(high) << 32 | u64::from(low);
        let free: Vec<_> = words.by_ref().take(free as usize).collect();
        let waiting: Vec<_> = words.take(waiting as usize).collect();
        let are_right =
            are_different(&free, received..received + sent) && are_different(&waiting, 0..received);
        if are_right { Ok(RingState { unseen, lost, free, waiting }) } else { Err(INVALID.into()) }
    }

    fn words(&self) -> &[AtomicU32; WORDS] {
        // SAFETY: in the mapping and aligned, as `place` said; the memory cannot shrink, and any
        // bytes are valid words.
        unsafe { self.words.as_ref() }
    }

    fn word(&self, place: usize) -> u32 {
        self.words().get(place).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    fn write(&self, from: usize, words: impl IntoIterator<Item = u32>) {
        let places = self.words().iter().skip(from);
        places.zip(words).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
    }
}

const INVALID: io::ErrorKind = io::ErrorKind::InvalidData;

/// Whether all are in range and different.
fn are_different(frames: &[u32], among: std::ops::Range<u32>) -> bool {
    let mut sorted = frames.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    sorted.len() == frames.len() && sorted.iter().all(|frame| among.contains(frame))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: UmemLayout = UmemLayout { received: 8, sent: 4, frame: 2048 };

    fn memory() -> OwnedFd {
        memfd::sealed(c"frames", LENGTH + SHAPE.bytes()).unwrap()
    }

    #[test]
    fn saved_state_round_trips() {
        let memory = memory();
        let ours = SavedState::begin(&memory, SHAPE).unwrap();
        let theirs = SavedState::of(&memory).unwrap();
        assert_eq!((theirs.layout(), theirs.restore().unwrap()), (SHAPE, RingState::default()));
        let rest =
            RingState { unseen: 1, lost: 7 << 32 | 9, free: vec![11, 8], waiting: vec![0, 7] };
        ours.save(&rest);
        assert_eq!(theirs.restore().unwrap(), rest);
    }

    #[test]
    fn implausible_saved_state_is_refused() {
        let memory = memory();
        let saved_state = SavedState::begin(&memory, SHAPE).unwrap();
        let rest = |unseen, free: &[u32], waiting: &[u32]| {
            let (free, waiting) = (free.to_vec(), waiting.to_vec());
            saved_state.save(&RingState { unseen, lost: 0, free, waiting });
            saved_state.restore().map(drop).map_err(|error| error.kind())
        };
        assert_eq!(rest(2, &[8, 9], &[1]), Ok(()));
        for (unseen, free, waiting) in [
            (3, &[8, 9][..], &[][..]),
            (0, &[8, 8], &[]),
            (0, &[7], &[]),
            (0, &[12], &[]),
            (0, &[], &[8]),
            (0, &[], &[1, 1]),
        ] {
            assert_eq!(rest(unseen, free, waiting), Err(INVALID), "{unseen} {free:?} {waiting:?}");
        }
        for (place, word) in [(0, VERSION + 1), (1, 7), (1, 16), (2, 0), (3, 1024)] {
            let memory = self::memory();
            SavedState::begin(&memory, SHAPE).unwrap().write(place, [word]);
            assert_eq!(SavedState::of(&memory).unwrap_err().kind(), INVALID, "{place}: {word}");
        }
        assert!(SavedState::of(&memfd::sealed(c"short", 4096).unwrap()).is_err());
    }
}
