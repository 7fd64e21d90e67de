//! A tree of cuts: policies that some bits of the packet tell apart go their own ways, and those that are indifferent to these bits another.
//!
//! Each policy is in one place only, so that adding and removing touch one way down. Where cutting does not pay, policies are compared:
//! a few one by one, many at once. What has doubled or shrunk since it was planned is planned anew, unless it is so large that
//! its parts may as well do that on their own.

use std::sync::Arc;

use arrayvec::ArrayVec;

use super::matrix::Matrix;
use super::plan::{FEW, Plan, plan};
use super::rule::{Best, Rank, Rule, fits_more};
use super::ternary::{Key, Words};
use super::window::Window;
use super::{Found, TOGETHER};
use crate::PolicyEntry;

/// Some policies.
#[derive(Clone, Debug, Default)]
pub(crate) enum Node<W: Words> {
    #[default]
    Empty,
    /// One by one, in their order.
    Few(Arc<[Rule<W>]>),
    /// All at once.
    Many(Arc<Matrix<W>>),
    /// In parts. `rest` says that some policies are in none.
    Narrow {
        window: Window,
        rest: bool,
        cut: Arc<Cut<W, 8>>,
    },
    Wide {
        window: Window,
        rest: bool,
        cut: Arc<Cut<W, 64>>,
    },
}

/// Policies by what stands in a window of a packet.
#[derive(Clone, Debug)]
pub(crate) struct Cut<W: Words, const N: usize> {
    parts: [Node<W>; N],
    /// Policies to which not all bits of the window matter.
    rest: Node<W>,
    /// None of them is before this.
    rest_best: Rank,
    len: usize,
    planned: usize,
}

/// A packet on its way down.
#[derive(Debug)]
struct Walk<'a, W: Words> {
    node: &'a Node<W>,
    rests: Rests<'a, W>,
}

type Rests<'a, W> = ArrayVec<(&'a Node<W>, &'a Rank), DEEP>;

/// Ways left aside that are noted on the way down; further ones are followed at once.
const DEEP: usize = 10;
/// Larger sets are not planned anew as a whole.
const REPLANNED: usize = 4096;
/// From so many policies on it pays to fetch ahead.
const COLD: usize = 2000;

impl<W: Words> Node<W> {
    /// The first policy that fits.
    #[inline]
    pub(crate) fn first(&self, key: &Key<W>) -> Option<&Arc<PolicyEntry>> {
        let mut best = Best::NONE;
        self.find(key, &mut best);
        best.entry
    }

    /// As [`Node::first`] of each key, of which there are [`TOGETHER`] at the most.
    pub(crate) fn first_of_each<'a>(&'a self, keys: &[Key<W>], found: &mut Found<'a>) {
        if self.len() < COLD {
            return found.extend(keys.iter().map(|key| self.first(key)));
        }
        let start = |_| Walk { node: self, rests: ArrayVec::new() };
        let mut walks: ArrayVec<Walk<'_, W>, TOGETHER> =
            keys.iter().take(TOGETHER).map(start).collect();
        let mut under_way = true;
        while under_way {
            under_way = false;
            for (walk, key) in walks.iter_mut().zip(keys) {
                under_way |= walk.step(key);
            }
        }
        for (walk, key) in walks.iter().zip(keys) {
            let mut best = Best::NONE;
            walk.node.find(key, &mut best);
            find_in_rests(&walk.rests, key, &mut best);
            if let Some(entry) = best.entry {
                uxfrm_packet::prefetch(&**entry);
            }
            found.push(best.entry);
        }
    }

    fn find<'a>(&'a self, key: &Key<W>, best: &mut Best<'a>) {
        let mut walk = Walk { node: self, rests: ArrayVec::new() };
        loop {
            match walk.node {
                Self::Empty => break,
                Self::Few(rules) => break one_by_one(rules, key, best),
                Self::Many(matrix) => break matrix.find(key, best),
                Self::Narrow { window, rest, cut } => {
                    walk.pass(*rest, cut, window.part(&key.words), key, best);
                }
                Self::Wide { window, rest, cut } => {
                    walk.pass(*rest, cut, window.part(&key.words), key, best);
                }
            }
        }
        find_in_rests(&walk.rests, key, best);
    }

    pub(crate) fn insert(&mut self, rule: Rule<W>) {
        match self {
            Self::Empty => *self = Self::Few([rule].into()),
            Self::Few(rules) => {
                let mut rules = rules.to_vec();
                let place = rule.entry.place();
                rules.insert(rules.partition_point(|other| other.entry.place() < place), rule);
                *self = Self::of(rules);
            }
            Self::Many(matrix) if matrix.len() < 2 * matrix.planned => {
                Arc::make_mut(matrix).insert(&rule);
            }
            Self::Narrow { window, rest, cut } if !cut.outgrown() => {
                Arc::make_mut(cut).insert(*window, rest, rule);
            }
            Self::Wide { window, rest, cut } if !cut.outgrown() => {
                Arc::make_mut(cut).insert(*window, rest, rule);
            }
            Self::Many(_) | Self::Narrow { .. } | Self::Wide { .. } => {
                let mut rules = self.rules();
                rules.push(rule);
                *self = Self::of(rules);
            }
        }
    }

    /// Takes a policy out that is in.
    pub(crate) fn remove(&mut self, rule: &Rule<W>) {
        let replan = match self {
            Self::Empty => false,
            Self::Few(rules) => {
                let place = rule.entry.place();
                let left = rules.iter().filter(|other| other.entry.place() != place);
                let left: Arc<[Rule<W>]> = left.cloned().collect();
                *self = if left.is_empty() { Self::Empty } else { Self::Few(left) };
                false
            }
            Self::Many(matrix) => {
                let matrix = Arc::make_mut(matrix);
                matrix.remove(rule);
                shrunk(matrix.len(), matrix.planned)
            }
            Self::Narrow { window, rest, cut } => Arc::make_mut(cut).remove(*window, rest, rule),
            Self::Wide { window, rest, cut } => Arc::make_mut(cut).remove(*window, rest, rule),
        };
        if replan {
            *self = Self::of(self.rules());
        }
    }

    /// Whether its policies are compared one by one.
    #[inline]
    pub(crate) const fn is_small(&self) -> bool {
        matches!(self, Self::Empty | Self::Few(_))
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::Few(rules) => rules.len(),
            Self::Many(matrix) => matrix.len(),
            Self::Narrow { cut, .. } => cut.len,
            Self::Wide { cut, .. } => cut.len,
        }
    }

    /// Shows each policy, in no order.
    pub(crate) fn each<'a>(&'a self, visit: &mut impl FnMut(&'a Arc<PolicyEntry>)) {
        match self {
            Self::Empty => {}
            Self::Few(rules) => rules.iter().for_each(|rule| visit(&rule.entry)),
            Self::Many(matrix) => matrix.each(visit),
            Self::Narrow { cut, .. } => cut.nodes().for_each(|node| node.each(visit)),
            Self::Wide { cut, .. } => cut.nodes().for_each(|node| node.each(visit)),
        }
    }

    /// Bytes on the heap, policies apart.
    pub(crate) fn memory(&self) -> usize {
        /// The counts of an `Arc`.
        const COUNTS: usize = 16;
        match self {
            Self::Empty => 0,
            Self::Few(rules) => COUNTS + size_of_val(&**rules),
            Self::Many(matrix) => COUNTS + matrix.memory(),
            Self::Narrow { cut, .. } => COUNTS + cut.memory(),
            Self::Wide { cut, .. } => COUNTS + cut.memory(),
        }
    }

    /// Cuts on the longest way down.
    pub(crate) fn depth(&self) -> u32 {
        match self {
            Self::Empty | Self::Few(_) | Self::Many(_) => 0,
            Self::Narrow { cut, .. } => 1 + cut.depth(),
            Self::Wide { cut, .. } => 1 + cut.depth(),
        }
    }

    /// The best node for rules, which may be in any order.
    fn of(mut rules: Vec<Rule<W>>) -> Self {
        if rules.is_empty() {
            return Self::Empty;
        }
        match plan(&rules) {
            Plan::Few => {
                rules.sort_by_key(|rule| rule.entry.place());
                Self::Few(rules.into())
            }
            Plan::Many => {
                rules.sort_by_key(|rule| rule.entry.place());
                Self::Many(Arc::new(Matrix::of(&rules)))
            }
            Plan::Cut(window) if window.parts() == 8 => {
                let cut = Arc::new(Cut::of(window, rules));
                Self::Narrow { window, rest: !matches!(cut.rest, Self::Empty), cut }
            }
            Plan::Cut(window) => {
                let cut = Arc::new(Cut::of(window, rules));
                Self::Wide { window, rest: !matches!(cut.rest, Self::Empty), cut }
            }
        }
    }

    fn rules(&self) -> Vec<Rule<W>> {
        let mut rules = Vec::with_capacity(self.len() + 1);
        self.each(&mut |entry| rules.push(Rule::of(entry)));
        rules
    }
}

/// Whether a set that was planned for more is to be planned anew.
const fn shrunk(len: usize, planned: usize) -> bool {
    len <= FEW || len * 4 < planned && len <= REPLANNED
}

#[inline]
fn one_by_one<'a, W: Words>(rules: &'a [Rule<W>], key: &Key<W>, best: &mut Best<'a>) {
    let mut fits = 0_u32;
    for (at, rule) in rules.iter().enumerate() {
        fits |= u32::from(rule.fits(&key.words)) << at;
    }
    while let Some(rule) = rules.get(fits.trailing_zeros() as usize) {
        if !rule.asks_more() || fits_more(&rule.entry, key) {
            return best.consider(rule.rank, &rule.entry);
        }
        fits &= fits - 1;
    }
}

#[inline]
fn find_in_rests<'a, W: Words>(rests: &Rests<'a, W>, key: &Key<W>, best: &mut Best<'a>) {
    for (rest, rank) in rests {
        if **rank <= best.rank {
            rest.find(key, best);
        }
    }
}

impl<'a, W: Words> Walk<'a, W> {
    /// Past one cut, whose part is fetched; false at the end, which is fetched as well.
    #[inline]
    fn step(&mut self, key: &Key<W>) -> bool {
        match self.node {
            Node::Empty => return false,
            Node::Few(rules) => {
                rules.iter().for_each(uxfrm_packet::prefetch);
                return false;
            }
            Node::Many(matrix) => {
                uxfrm_packet::prefetch(&**matrix);
                return false;
            }
            Node::Narrow { window, rest, cut } => {
                if *rest && self.note(cut).is_err() {
                    return false;
                }
                self.node = &cut.parts[window.part(&key.words) % 8];
            }
            Node::Wide { window, rest, cut } => {
                if *rest && self.note(cut).is_err() {
                    return false;
                }
                self.node = &cut.parts[window.part(&key.words) % 64];
            }
        }
        uxfrm_packet::prefetch(self.node);
        true
    }

    /// Past one cut.
    #[inline]
    fn pass<const N: usize>(
        &mut self,
        rest: bool,
        cut: &'a Cut<W, N>,
        part: usize,
        key: &Key<W>,
        best: &mut Best<'a>,
    ) {
        if rest && self.note(cut).is_err() {
            cut.rest.find(key, best);
        }
        self.node = &cut.parts[part % N];
    }

    /// Leaves the rest of a cut for later.
    #[inline]
    fn note<const N: usize>(&mut self, cut: &'a Cut<W, N>) -> Result<(), impl Sized> {
        uxfrm_packet::prefetch(&cut.rest);
        self.rests.try_push((&cut.rest, &cut.rest_best))
    }
}

impl<W: Words, const N: usize> Cut<W, N> {
    fn of(window: Window, rules: Vec<Rule<W>>) -> Self {
        let len = rules.len();
        let mut parts: [Vec<Rule<W>>; N] = std::array::from_fn(|_| Vec::new());
        let mut rest = Vec::new();
        for rule in rules {
            match window.part_of(&rule.value, &rule.mask) {
                Some(part) => parts[part % N].push(rule),
                None => rest.push(rule),
            }
        }
        let rest_best = rest.iter().map(|rule| rule.rank).min().unwrap_or(Rank::LAST);
        Self { parts: parts.map(Node::of), rest: Node::of(rest), rest_best, len, planned: len }
    }

    const fn outgrown(&self) -> bool {
        self.len >= 2 * self.planned && self.len <= REPLANNED
    }

    fn insert(&mut self, window: Window, rest: &mut bool, rule: Rule<W>) {
        self.len += 1;
        match window.part_of(&rule.value, &rule.mask) {
            Some(part) => self.parts[part % N].insert(rule),
            None => {
                *rest = true;
                self.rest_best = self.rest_best.min(rule.rank);
                self.rest.insert(rule);
            }
        }
    }

    /// True when it is to be planned anew.
    fn remove(&mut self, window: Window, rest: &mut bool, rule: &Rule<W>) -> bool {
        self.len -= 1;
        match window.part_of(&rule.value, &rule.mask) {
            Some(part) => self.parts[part % N].remove(rule),
            None => {
                self.rest.remove(rule);
                if matches!(self.rest, Node::Empty) {
                    *rest = false;
                    self.rest_best = Rank::LAST;
                }
            }
        }
        shrunk(self.len, self.planned)
    }

    fn nodes(&self) -> impl Iterator<Item = &Node<W>> {
        self.parts.iter().chain([&self.rest])
    }

    fn memory(&self) -> usize {
        size_of::<Self>() + self.nodes().map(Node::memory).sum::<usize>()
    }

    fn depth(&self) -> u32 {
        self.nodes().map(Node::depth).max().unwrap_or(0)
    }
}
