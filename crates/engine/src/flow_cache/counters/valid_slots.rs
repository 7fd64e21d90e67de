//! Slots whose policy was matched since policies last changed: one bit each, so that a million fit
//! the CPU cache.

/// Marked slots; all marks can be cleared at once.
#[derive(Debug, Default)]
pub(crate) struct ValidSlots {
    lines: Vec<Line>,
    /// Epoch of each line's marks: they count while it is the current one.
    epochs: Vec<u64>,
    epoch: u64,
}

/// A cache line of marks.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Line([u64; WORDS]);

const WORDS: usize = 8;
/// Slots per line.
const SLOTS: usize = WORDS * 64;

impl ValidSlots {
    /// Clears all marks.
    pub(crate) fn invalidate(&mut self) {
        self.epoch += 1;
    }

    /// Whether a slot is marked.
    #[inline]
    pub(crate) fn has(&self, slot: u32) -> bool {
        let (at, word, bit) = place(slot);
        match (self.lines.get(at), self.epochs.get(at)) {
            (Some(Line(marks)), Some(epoch)) => {
                (*epoch == self.epoch) & (marks[word] >> bit & 1 != 0)
            }
            (Some(_) | None, _) => false,
        }
    }

    /// Marks a slot.
    pub(crate) fn mark(&mut self, slot: u32) {
        let (at, word, bit) = place(slot);
        if self.lines.len() <= at {
            self.lines.resize(at + 1, Line::default());
            self.epochs.resize(at + 1, self.epoch);
        }
        let Line(marks) = &mut self.lines[at];
        if std::mem::replace(&mut self.epochs[at], self.epoch) != self.epoch {
            *marks = [0; WORDS];
        }
        marks[word] |= 1 << bit;
    }

    pub(crate) fn memory(&self) -> usize {
        self.lines.capacity() * size_of::<Line>() + self.epochs.capacity() * size_of::<u64>()
    }
}

/// Line, word, bit.
#[inline]
fn place(slot: u32) -> (usize, usize, usize) {
    let slot = slot as usize;
    (slot / SLOTS, slot % SLOTS / 64, slot % 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_slots_marks_hold_until_invalidated() {
        let mut valid = ValidSlots::default();
        for epoch in 0..3 {
            let slots: Vec<u32> = (0..2000).filter(|slot| (slot * 7 + epoch) % 3 == 0).collect();
            assert!((0..3000).all(|slot| !valid.has(slot)));
            slots.iter().for_each(|slot| valid.mark(*slot));
            assert!((0..3000).all(|slot| valid.has(slot) == slots.contains(&slot)));
            valid.invalidate();
        }
    }
}
