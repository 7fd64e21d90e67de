//! Policies that packets met, by their slots, and what is to be charged to them.
//!
//! In pages, of which there are only those that were met: four flows beside a million policies take four of them.

use std::sync::Arc;

use crate::PolicyEntry;

/// A policy and what is to be charged to it.
#[derive(Debug, Default)]
pub(crate) struct PolicyCounters {
    /// None: nobody has met it, or not for long.
    pub(crate) entry: Option<Arc<PolicyEntry>>,
    pub(crate) packets: u32,
    pub(crate) bytes: u64,
}

/// By slots.
#[derive(Debug, Default)]
pub(crate) struct CounterPages {
    pages: Vec<Option<Box<Page>>>,
    /// How many of them there are.
    allocated: usize,
    /// That at which letting go was left off.
    next: usize,
}

type Page = [PolicyCounters; SLOTS];

/// Slots of a page.
const SLOTS: usize = 32;
/// So many policies are in the first-level cache, or nearly.
const NEAR: usize = 1024;

impl CounterPages {
    #[inline]
    pub(crate) fn find(&self, slot: u32) -> Option<&PolicyCounters> {
        let (page, at) = place(slot);
        Some(&self.pages.get(page)?.as_ref()?[at])
    }

    #[inline]
    pub(crate) fn find_mut(&mut self, slot: u32) -> Option<&mut PolicyCounters> {
        let (page, at) = place(slot);
        Some(&mut self.pages.get_mut(page)?.as_mut()?[at])
    }

    /// Whether all pages are near.
    #[inline]
    pub(crate) const fn fit_near_cache(&self) -> bool {
        self.allocated * SLOTS <= NEAR
    }

    /// Puts a policy in its slot.
    pub(crate) fn put(&mut self, slot: u32, entry: &Arc<PolicyEntry>) {
        let (page, at) = place(slot);
        if self.pages.len() <= page {
            self.pages.resize_with(page + 1, || None);
        }
        let page = &mut self.pages[page];
        self.allocated += usize::from(page.is_none());
        page.get_or_insert_default()[at].entry = Some(Arc::clone(entry));
    }

    /// Goes through so many slots, beginning where it left off, and lets go of policies that need not be kept; nothing may be left to be charged.
    pub(crate) fn release_stale(&mut self, slots: usize, keep: impl Fn(u32) -> bool) {
        for _ in 0..self.pages.len().min(slots / SLOTS) {
            self.next = (self.next + 1) % self.pages.len();
            let first = u32::try_from(self.next * SLOTS).unwrap_or(u32::MAX);
            let page = &mut self.pages[self.next];
            let gone = page.take_if(|page| !release_page(page, first, &keep));
            self.allocated -= usize::from(gone.is_some());
        }
    }

    pub(crate) fn memory(&self) -> usize {
        self.allocated * size_of::<Page>() + self.pages.capacity() * size_of::<Option<Box<Page>>>()
    }
}

/// Page, place in it.
#[inline]
const fn place(slot: u32) -> (usize, usize) {
    (slot as usize / SLOTS, slot as usize % SLOTS)
}

/// Whether any policy of a page that begins at a slot is kept.
fn release_page(page: &mut Page, first: u32, keep: &impl Fn(u32) -> bool) -> bool {
    for (slot, counters) in (first..).zip(page.iter_mut()) {
        if counters.entry.is_some() && !keep(slot) {
            counters.entry = None;
        }
    }
    page.iter().any(|counters| counters.entry.is_some())
}
