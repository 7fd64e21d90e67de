//! Ordered ternary match: the first of many rules that a key matches, for batches of keys.
//!
//! A key is a flow's [`FiveTuple`] in two words ([`V4`]) or five ([`V6`]). A rule is made of an
//! [`Entry`], which says what it matches ([`Ternary`]), its order ([`Rank`], then
//! [`Entry::precedence`]) and a tag that a match gives back without reading the entry. Only its
//! user knows what an entry is. An [`Index`] holds the entries, and a look-up gives the [`Best`].
//!
//! An index is a decision tree whose leaves compare a few rules one by one or many at once; or bit
//! vectors, where rules overlap in many ways; or a tuple space, where a large set has few masks. A
//! cost model chooses.
//!
//! ```
//! use uxfrm_classify::{AddressEnd, Best, Entry, FiveTuple, Index, Key, LOOKUP_BATCH};
//! use uxfrm_classify::{MaskTemplate, Rank, ReplanTiming, Ternary, V4};
//!
//! /// A service by its port; the lower number is asked first.
//! #[derive(Clone, Debug)]
//! struct Service(u16, u32);
//!
//! impl Entry for Service {
//!     type Precedence = u32;
//!     const NO_TAG: u32 = 0;
//!     fn precedence(&self) -> u32 {
//!         self.1
//!     }
//!     fn rank(&self) -> Rank {
//!         Rank::new(self.1)
//!     }
//!     fn tag(&self) -> u32 {
//!         self.1
//!     }
//!     fn ternary(&self) -> Ternary {
//!         let value = FiveTuple { ports: [0, self.0], ..FiveTuple::default() };
//!         Ternary { value, mask: FiveTuple { ports: [0, u16::MAX], ..FiveTuple::default() } }
//!     }
//!     fn far_end(&self) -> AddressEnd {
//!         AddressEnd::Destination
//!     }
//!     fn mask_template(&self) -> Option<&std::sync::Arc<MaskTemplate>> {
//!         None
//!     }
//! }
//!
//! let mut index = Index::<V4, Service>::default();
//! for entry in [Service(53, 3), Service(80, 2), Service(53, 1)] {
//!     index.insert(&entry, ReplanTiming::Now);
//! }
//! let key = |port| Key::of(&FiveTuple { ports: [5000, port], ..FiveTuple::default() });
//! assert_eq!(index.lookup(&key(80)).tag(), 2);
//! let mut bests = [Best::NONE; LOOKUP_BATCH];
//! index.lookup_batch(&[key(53), key(443)], &mut bests);
//! assert_eq!(bests[..2].iter().map(Best::tag).collect::<Vec<_>>(), [1, Service::NO_TAG]);
//! ```
//!
//! No clock, descriptor or thread here; `unsafe` calls the AVX forms of comparisons, which load and
//! store through pointers and check once what each key relies on.

#![deny(unsafe_code)]

mod batch;
mod bitvector;
mod byte_bitvector;
mod compact_rule;
mod cost_model;
mod entry;
mod field_bitvector;
mod index;
mod key;
mod linear_leaf;
mod node;
mod plan;
mod prefilter_table;
mod replanning;
mod root_cuts;
mod rule;
mod simd_leaf;
mod simd_ternary;
mod ternary_block;
#[cfg(test)]
mod test_rules;
mod tuple_space;
mod window;

pub use compact_rule::{AddressEnd, MaskTemplate};
pub use entry::{Entry, Ternary};
pub use index::Index;
pub use key::{FiveTuple, Key, V4, V6, mix};
pub use replanning::{PlanScope, ReplanTiming};
pub use rule::{Best, Rank};

/// Keys looked up together, so that their cache misses overlap.
pub const LOOKUP_BATCH: usize = 32;
