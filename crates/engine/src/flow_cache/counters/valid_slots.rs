//! Which policies have been met since they last changed, by their slots: a bit each, so that a million of them stay near the processor.

/// Slots with a mark; all marks are taken back at once.
#[derive(Debug, Default)]
pub(crate) struct Roll {
    lines: Vec<Line>,
    /// Of each line the turn that its marks are of: they count while it is the roll's.
    turns: Vec<u64>,
    turn: u64,
}

/// A cache line of marks.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Line([u64; WORDS]);

const WORDS: usize = 8;
/// Slots of a line.
const SLOTS: usize = WORDS * 64;

impl Roll {
    /// Takes all marks back.
    pub(crate) fn begin_anew(&mut self) {
        self.turn += 1;
    }

    /// Whether a slot is marked.
    #[inline]
    pub(crate) fn has(&self, slot: u32) -> bool {
        let (at, word, bit) = place(slot);
        match (self.lines.get(at), self.turns.get(at)) {
            (Some(Line(marks)), Some(turn)) => (*turn == self.turn) & (marks[word] >> bit & 1 != 0),
            (Some(_) | None, _) => false,
        }
    }

    /// Marks a slot.
    pub(crate) fn mark(&mut self, slot: u32) {
        let (at, word, bit) = place(slot);
        if self.lines.len() <= at {
            self.lines.resize(at + 1, Line::default());
            self.turns.resize(at + 1, self.turn);
        }
        let Line(marks) = &mut self.lines[at];
        if std::mem::replace(&mut self.turns[at], self.turn) != self.turn {
            *marks = [0; WORDS];
        }
        marks[word] |= 1 << bit;
    }

    pub(crate) fn memory(&self) -> usize {
        self.lines.capacity() * size_of::<Line>() + self.turns.capacity() * size_of::<u64>()
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
