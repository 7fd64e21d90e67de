//! The first of each name.

use std::{collections::HashSet, hash::Hash};

/// Those items whose key did not come before: a page that had a series twice would be refused as a
/// whole.
pub(crate) fn distinct<T, K: Eq + Hash>(
    items: impl Iterator<Item = T>,
    key: impl Fn(&T) -> K,
) -> impl Iterator<Item = T> {
    let mut seen = HashSet::new();
    items.filter(move |item| seen.insert(key(item)))
}
