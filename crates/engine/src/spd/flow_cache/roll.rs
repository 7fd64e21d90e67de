//! Which policies have been met since they last changed, by their slots: a bit each, so that a million of them stay near the processor.

/// Slots with a mark; all marks are taken back at once.
#[derive(Debug, Default)]
pub(super) struct Roll {
    lines: Vec<Line>,
    turn: u64,
}

/// A cache line of marks, which count while its turn is the roll's.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Line {
    turn: u64,
    marks: [u64; WORDS],
}

const WORDS: usize = 7;
/// Slots of a line.
const SLOTS: usize = WORDS * 64;

impl Roll {
    /// Takes all marks back.
    pub(super) fn begin_anew(&mut self) {
        self.turn += 1;
    }

    /// Whether a slot is marked.
    #[inline]
    pub(super) fn has(&self, slot: u32) -> bool {
        let (line, word, bit) = place(slot);
        let marked = |line: &Line| line.turn == self.turn && line.marks[word] >> bit & 1 != 0;
        self.lines.get(line).is_some_and(marked)
    }

    /// Marks a slot.
    pub(super) fn mark(&mut self, slot: u32) {
        let (at, word, bit) = place(slot);
        if self.lines.len() <= at {
            self.lines.resize(at + 1, Line::default());
        }
        let line = &mut self.lines[at];
        if line.turn != self.turn {
            *line = Line { turn: self.turn, marks: [0; WORDS] };
        }
        line.marks[word] |= 1 << bit;
    }

    pub(super) fn memory(&self) -> usize {
        self.lines.capacity() * size_of::<Line>()
    }
}

/// Line, word of it, bit of that.
#[inline]
fn place(slot: u32) -> (usize, usize, usize) {
    let slot = slot as usize;
    (slot / SLOTS, slot % SLOTS / 64, slot % 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_hold_until_the_next_turn() {
        let mut roll = Roll::default();
        for turn in 0..3 {
            let slots: Vec<u32> = (0..2000).filter(|slot| (slot * 7 + turn) % 3 == 0).collect();
            assert!((0..3000).all(|slot| !roll.has(slot)));
            slots.iter().for_each(|slot| roll.mark(*slot));
            assert!((0..3000).all(|slot| roll.has(slot) == slots.contains(&slot)));
            roll.begin_anew();
        }
    }
}
