//! The condition in which a start finds the store of sequence numbers, and its consequences.

use std::{fmt, io, path::Path};

/// How the store of sequence numbers was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// All that was written is there.
    Intact,
    /// There is none, and nothing tells that there was one.
    New,
    /// There was one in this boot, and now there is none, or an empty one.
    Lost,
    /// It is an old copy: the generation that it has, and the one that it had in this boot.
    RolledBack {
        /// In the store.
        found: u64,
        /// As `/run` remembers it.
        expected: u64,
    },
    /// It is another gateway's, or a copy of another one.
    Foreign,
    /// So many groups of lines, or its beginning, are not what was written.
    Damaged {
        /// Groups of lines.
        groups: usize,
    },
}

impl Condition {
    /// Whether numbers may be missing that were used.
    #[must_use]
    pub(crate) const fn is_incomplete(self) -> bool {
        match self {
            Self::Intact | Self::New => false,
            Self::Lost | Self::RolledBack { .. } | Self::Foreign | Self::Damaged { .. } => true,
        }
    }

    /// In what state the store in a directory is, what that means, and the remedy.
    pub(super) fn told(self, directory: &Path) -> String {
        format!("the store of sequence numbers in {} is {self}: {MEANING}", directory.display())
    }
}

/// What it means where numbers may be missing, and the remedy.
const MEANING: &str = "peers drop what static keys send until their replay windows are passed, packets that were received before may be \
     accepted again, and an IV repeats with a chance of 1 in 2^32 for each start with the same key; give static states new keys (IKE daemons do so \
     by themselves)";

/// The store in a directory was removed or replaced while in use.
pub(super) fn replaced(directory: &Path) -> String {
    format!(
        "the store of sequence numbers in {} was removed or replaced while in use: it is written anew. Had uxfrm been killed before, {MEANING}",
        directory.display()
    )
}

/// Nothing can be written to the store in a directory.
pub(super) fn unwritten(fault: &io::Error, directory: &Path) -> String {
    format!(
        "sequence numbers can't be written down in {} ({fault}): states that come are refused, and those that are there stop when what is reserved \
         for them ends (out_sequence_reserve, in_replay_reserve); make room there, or the file system writable again",
        directory.display()
    )
}

impl fmt::Display for Condition {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Intact => write!(out, "intact"),
            Self::New => write!(out, "new"),
            Self::Lost => write!(out, "lost: it is missing or empty, and was there in this boot"),
            Self::RolledBack { found, expected } => write!(
                out,
                "rolled back: an old copy of generation {found}, where generation {expected} was reached in this boot"
            ),
            Self::Foreign => write!(out, "foreign: not the one that was here in this boot"),
            Self::Damaged { groups: 0 } => write!(out, "damaged: its beginning can't be read"),
            Self::Damaged { groups } => {
                write!(out, "damaged: {groups} groups of lines can't be read")
            }
        }
    }
}
