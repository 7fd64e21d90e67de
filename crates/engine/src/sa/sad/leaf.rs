//! A handful of states whose hashes begin alike.

use std::sync::Arc;

use uxfrm_packet::prefetch;

use super::tree::Tree;
use crate::Sa;

/// States with their hashes, in two cache lines. Many with *one* hash, as all that go to one peer have in the outbound index, stand
/// in a tree of their own, so no change costs more because others are like it.
#[derive(Debug, Default)]
pub(super) struct Leaf {
    hashes: [u32; WIDTH],
    /// The first ones are taken.
    states: [Option<Arc<Sa>>; WIDTH],
    #[expect(clippy::box_collection, reason = "a word in every leaf for what few have")]
    crowds: Option<Box<Vec<Crowd>>>,
}

/// More than [`ALIKE`] states with one hash, by their turn.
#[derive(Clone, Debug)]
struct Crowd {
    hash: u32,
    len: usize,
    level: Level,
    tree: Tree,
}

/// By what a tree finds states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// By a hash of a key.
    Key,
    /// By the lower half of their turn.
    Turn,
    /// By the upper half of their turn: no two are the same in both.
    Era,
}

const WIDTH: usize = 8;
/// So many states with one hash still stand in a leaf.
const ALIKE: usize = 4;

impl Leaf {
    /// How many items two leaves have when they join.
    pub(super) const FEW: usize = WIDTH / 2;

    /// Whether one more state makes it split.
    pub(super) const fn is_full(&self) -> bool {
        self.states[WIDTH - 1].is_some()
    }

    /// How many items there are; a crowd counts as one.
    pub(super) fn len(&self) -> usize {
        self.taken() + self.crowds.as_ref().map_or(0, |crowds| crowds.len())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its states, crowds aside.
    pub(super) const fn states(&self) -> &[Option<Arc<Sa>>] {
        &self.states
    }

    /// Its crowds.
    pub(super) fn crowds(&self) -> impl Iterator<Item = &Tree> {
        self.crowds.iter().flat_map(|crowds| crowds.iter()).map(|crowd| &crowd.tree)
    }

    /// Shows each state with a hash.
    #[inline]
    pub(super) fn each<'a>(&'a self, hash: u32, visit: &mut impl FnMut(&'a Arc<Sa>)) {
        for (other, sa) in self.hashes.iter().zip(&self.states) {
            if *other == hash
                && let Some(sa) = sa
            {
                visit(sa);
            }
        }
        if let Some(crowds) = &self.crowds {
            let same = crowds.iter().filter(|crowd| crowd.hash == hash);
            same.flat_map(|crowd| crowd.tree.states()).for_each(visit);
        }
    }

    /// Asks for the states with a hash.
    #[inline]
    pub(super) fn fetch(&self, hash: u32) {
        for (other, sa) in self.hashes.iter().zip(&self.states) {
            if *other == hash
                && let Some(sa) = sa
            {
                prefetch(&**sa);
            }
        }
    }

    /// Puts in a state; there is room, or all others have this hash.
    pub(super) fn add(&mut self, hash: u32, sa: &Arc<Sa>, level: Level) {
        let crowds = self.crowds.iter_mut().flat_map(|crowds| crowds.iter_mut());
        if let Some(crowd) = crowds.into_iter().find(|crowd| crowd.hash == hash) {
            return crowd.add(sa);
        }
        if self.alike(hash).count() < ALIKE || level == Level::Era {
            return self.push(hash, Arc::clone(sa));
        }
        let mut crowd = Crowd { hash, len: 0, level: level.next(), tree: Tree::default() };
        // From behind: what moves into a gap has been looked at.
        for at in (0..self.taken()).rev() {
            if self.hashes[at] == hash {
                self.take(at).iter().for_each(|sa| crowd.add(sa));
            }
        }
        crowd.add(sa);
        self.crowds.get_or_insert_default().push(crowd);
    }

    /// Takes out the state with a hash and a turn, if it is here.
    pub(super) fn remove(&mut self, hash: u32, turn: u64) {
        if let Some(at) = self.find(hash, turn) {
            self.take(at);
            return;
        }
        let Some(crowds) = &mut self.crowds else { return };
        let Some(at) = crowds.iter().position(|crowd| crowd.hash == hash) else { return };
        crowds[at].remove(turn);
        // Half of what makes a crowd, so that changes at the border stay cheap.
        let left = crowds[at].len;
        if left > ALIKE / 2 || taken(&self.states) + left > WIDTH {
            return;
        }
        let crowd = crowds.swap_remove(at);
        if crowds.is_empty() {
            self.crowds = None;
        }
        crowd.tree.states().for_each(|sa| self.push(hash, Arc::clone(sa)));
    }

    /// Puts another generation in the place of the state with a hash and its turn.
    pub(super) fn replace(&mut self, hash: u32, new: &Arc<Sa>) {
        if let Some(at) = self.find(hash, new.turn()) {
            self.states[at] = Some(Arc::clone(new));
            return;
        }
        let crowds = self.crowds.iter_mut().flat_map(|crowds| crowds.iter_mut());
        for crowd in crowds.filter(|crowd| crowd.hash == hash) {
            let hash = crowd.level.hash(new.turn());
            crowd.tree.change(hash, &mut |leaf| leaf.replace(hash, new));
        }
    }

    /// Takes out what has this bit in its hash.
    pub(super) fn split(&mut self, bit: u32) -> Self {
        let mut high = Self::default();
        let mut at = 0;
        while at < self.taken() {
            if is_high(self.hashes[at], bit) {
                let hash = self.hashes[at];
                self.take(at).into_iter().for_each(|sa| high.push(hash, sa));
            } else {
                at += 1;
            }
        }
        let crowds = self.crowds.take().map(|crowds| *crowds).unwrap_or_default();
        let (upper, lower) = crowds.into_iter().partition(|crowd| is_high(crowd.hash, bit));
        (self.crowds, high.crowds) = (boxed(lower), boxed(upper));
        high
    }

    /// Takes over all that another has.
    pub(super) fn join(&mut self, other: &Self) {
        for (hash, sa) in other.hashes.iter().zip(other.states.iter().flatten()) {
            self.push(*hash, Arc::clone(sa));
        }
        if let Some(crowds) = &other.crowds {
            self.crowds.get_or_insert_default().extend(crowds.iter().cloned());
        }
    }

    fn taken(&self) -> usize {
        taken(&self.states)
    }

    fn alike(&self, hash: u32) -> impl Iterator<Item = usize> {
        let all = self.hashes.iter().zip(&self.states).enumerate();
        all.filter(move |(_, (other, sa))| **other == hash && sa.is_some()).map(|(at, _)| at)
    }

    fn find(&self, hash: u32, turn: u64) -> Option<usize> {
        let is = |at: &usize| self.states[*at].as_ref().is_some_and(|sa| sa.turn() == turn);
        self.alike(hash).find(is)
    }

    fn push(&mut self, hash: u32, sa: Arc<Sa>) {
        let at = self.taken();
        debug_assert!(at < WIDTH, "a leaf is split before it overflows");
        if let Some(place) = self.states.get_mut(at) {
            (self.hashes[at], *place) = (hash, Some(sa));
        }
    }

    /// Takes out what is at a place; the last one moves there.
    fn take(&mut self, at: usize) -> Option<Arc<Sa>> {
        let last = self.taken().checked_sub(1)?;
        self.hashes.swap(at, last);
        self.states.swap(at, last);
        self.states[last].take()
    }
}

/// Counting a reference writes to the state, which may be anywhere: all are fetched before the first is counted.
impl Clone for Leaf {
    fn clone(&self) -> Self {
        self.states.iter().flatten().for_each(|sa| prefetch(&**sa));
        Self { hashes: self.hashes, states: self.states.clone(), crowds: self.crowds.clone() }
    }
}

impl Crowd {
    fn add(&mut self, sa: &Arc<Sa>) {
        self.tree.add(self.level.hash(sa.turn()), sa, self.level);
        self.len += 1;
    }

    /// Takes out the state with that turn, which is here.
    fn remove(&mut self, turn: u64) {
        let hash = self.level.hash(turn);
        self.tree.change(hash, &mut |leaf| leaf.remove(hash, turn));
        self.len -= 1;
    }
}

impl Level {
    const fn next(self) -> Self {
        match self {
            Self::Key => Self::Turn,
            Self::Turn | Self::Era => Self::Era,
        }
    }

    /// Turns are counted, so their own bits spread them over a tree.
    #[expect(clippy::cast_possible_truncation, reason = "half a turn at a time")]
    const fn hash(self, turn: u64) -> u32 {
        match self {
            Self::Key | Self::Turn => turn as u32,
            Self::Era => (turn >> 32) as u32,
        }
    }
}

fn taken(states: &[Option<Arc<Sa>>]) -> usize {
    states.iter().take_while(|sa| sa.is_some()).count()
}

fn is_high(hash: u32, bit: u32) -> bool {
    hash >> bit & 1 == 1
}

#[expect(clippy::box_collection, reason = "as in a leaf")]
fn boxed(crowds: Vec<Crowd>) -> Option<Box<Vec<Crowd>>> {
    (!crowds.is_empty()).then(|| Box::new(crowds))
}
