//! Rebuilds bins whose policies were inserted one by one, as if they had come together.
//!
//! Single insertions go into the existing plan, as the caller waits; such a tree becomes slower
//! than one planned as a whole. A full plan takes up to some tenths of a second, so it is made from
//! a copy, in another thread, and changes made meanwhile are replayed when it is installed.

use std::sync::Arc;

use uxfrm_classify::{Index, ReplanTiming, V4, V6};

use super::{Bins, Classifier, PolicyRule};
use crate::{Direction, Family, PolicyEntry, PolicyKind};

/// Bins to be rebuilt.
#[derive(Debug)]
pub struct Rebuild(Vec<BinTree>);

/// Rebuilt bins.
#[derive(Debug)]
pub struct RebuiltIndex(Vec<BinTree>);

/// A policy inserted or removed during a rebuild.
#[derive(Clone, Debug)]
pub(crate) enum PendingDelta {
    Inserted(Arc<PolicyEntry>),
    Removed(Arc<PolicyEntry>),
}

/// All policies of one bin.
#[derive(Debug)]
struct BinTree {
    bin: Bin,
    tree: Tree,
}

/// A bin without interface id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bin {
    direction: Direction,
    kind: PolicyKind,
    family: Family,
}

#[derive(Debug)]
enum Tree {
    V4(Index<V4, PolicyRule>),
    V6(Index<V6, PolicyRule>),
}

/// Smaller bins do not gain; larger ones take too long to plan and gain nothing.
const SIZES: std::ops::RangeInclusive<usize> = 64..=1 << 17;
/// Rebuilt when one in this many policies came or went.
const SHARE: usize = 8;

impl Rebuild {
    /// Plans the bins: some milliseconds for a thousand policies, some tenths of a second for a
    /// hundred thousand.
    #[must_use]
    pub fn build(self) -> RebuiltIndex {
        RebuiltIndex(self.0.into_iter().map(BinTree::planned).collect())
    }
}

impl Classifier {
    /// Whether enough policies came and went since the last full plan that another may be better.
    pub(crate) fn is_outgrown(&self) -> bool {
        self.needs_replan().next().is_some()
    }

    /// Copies of the bins that have outgrown their plan.
    pub(crate) fn revision(&self) -> Rebuild {
        let part = |bin: Bin| BinTree { bin, tree: self.bins_of(bin).tree(bin.family) };
        Rebuild(self.needs_replan().map(part).collect())
    }

    /// Installs rebuilt bins, and replays the changes made since they were copied.
    pub(crate) fn adopt(&mut self, replanned: RebuiltIndex, moved: &[PendingDelta]) {
        for BinTree { bin, tree } in replanned.0 {
            let moved = moved.iter().filter(|moved| Bin::of(moved.entry()) == Some(bin));
            self.plain[bin.direction as usize][bin.kind as usize].adopt(tree, moved);
        }
    }

    fn needs_replan(&self) -> impl Iterator<Item = Bin> {
        Bin::all().filter(|bin| self.bins_of(*bin).has_outgrown(bin.family))
    }

    fn bins_of(&self, bin: Bin) -> &Bins {
        &self.plain[bin.direction as usize][bin.kind as usize]
    }
}

impl Bin {
    /// Bin of a policy without interface id.
    fn of(entry: &PolicyEntry) -> Option<Self> {
        let (direction, kind, family) = (entry.direction(), entry.kind(), entry.family());
        (entry.if_id().0 == 0).then_some(Self { direction, kind, family })
    }

    fn all() -> impl Iterator<Item = Self> {
        let directions = [Direction::In, Direction::Out, Direction::Forward];
        let kinds = [PolicyKind::Main, PolicyKind::Sub];
        directions.into_iter().flat_map(move |direction| {
            kinds.into_iter().flat_map(move |kind| {
                [Family::V4, Family::V6].map(|family| Self { direction, kind, family })
            })
        })
    }
}

impl Bins {
    fn has_outgrown(&self, family: Family) -> bool {
        let len = match family {
            Family::V4 => self.v4.len(),
            Family::V6 => self.v6.len(),
        };
        SIZES.contains(&len) && self.changed[family as usize] * SHARE >= len
    }

    fn tree(&self, family: Family) -> Tree {
        match family {
            Family::V4 => Tree::V4(self.v4.clone()),
            Family::V6 => Tree::V6(self.v6.clone()),
        }
    }

    /// Replaces a tree by its rebuilt copy.
    fn adopt<'a>(&mut self, tree: Tree, moved: impl Iterator<Item = &'a PendingDelta>) {
        match tree {
            Tree::V4(tree) => (self.v4, self.changed[Family::V4 as usize]) = (tree, 0),
            Tree::V6(tree) => (self.v6, self.changed[Family::V6 as usize]) = (tree, 0),
        }
        for moved in moved {
            match moved {
                PendingDelta::Inserted(entry) => self.insert(entry, ReplanTiming::Now),
                PendingDelta::Removed(entry) => self.remove(entry),
            }
        }
    }
}

impl BinTree {
    fn planned(self) -> Self {
        Self { tree: self.tree.planned(), ..self }
    }
}

impl Tree {
    fn planned(self) -> Self {
        match self {
            Self::V4(tree) => Self::V4(tree.replanned()),
            Self::V6(tree) => Self::V6(tree.replanned()),
        }
    }
}

impl PendingDelta {
    fn entry(&self) -> &PolicyEntry {
        match self {
            Self::Inserted(entry) | Self::Removed(entry) => entry,
        }
    }
}
