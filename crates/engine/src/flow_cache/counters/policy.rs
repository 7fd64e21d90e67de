//! Pending counters of matched policies, by slot.
//!
//! In pages, allocated on demand: four flows among a million policies take four.

use std::sync::Arc;

use crate::PolicyEntry;

/// A policy and its pending counters.
#[derive(Debug, Default)]
pub(crate) struct PolicyCounters {
    /// `None` if it was not matched recently.
    pub(crate) entry: Option<Arc<PolicyEntry>>,
    pub(crate) packets: u32,
    pub(crate) bytes: u64,
}

/// By slot.
#[derive(Debug, Default)]
pub(crate) struct CounterPages {
    pages: Vec<Option<Box<Page>>>,
    /// Number of allocated pages.
    allocated: usize,
    /// Page at which the release stopped.
    next: usize,
}

type Page = [PolicyCounters; SLOTS];

/// Slots per page.
const SLOTS: usize = 32;
/// This many policies nearly fit the first-level cache.
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

    /// Whether all pages fit the CPU cache.
    #[inline]
    pub(crate) const fn fit_near_cache(&self) -> bool {
        self.allocated * SLOTS <= NEAR
    }

    /// Stores a policy in its slot.
    pub(crate) fn put(&mut self, slot: u32, entry: &Arc<PolicyEntry>) {
        let (page, at) = place(slot);
        if self.pages.len() <= page {
            self.pages.resize_with(page + 1, || None);
        }
        let page = &mut self.pages[page];
        self.allocated += usize::from(page.is_none());
        page.get_or_insert_default()[at].entry = Some(Arc::clone(entry));
    }

    /// Scans some slots, continuing where it stopped, and releases policies that are not kept. No
    /// counters may be pending.
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

/// Page, and index in it.
#[inline]
const fn place(slot: u32) -> (usize, usize) {
    (slot as usize / SLOTS, slot as usize % SLOTS)
}

/// Releases policies of a page; whether any is kept.
fn release_page(page: &mut Page, first: u32, keep: &impl Fn(u32) -> bool) -> bool {
    for (slot, counters) in (first..).zip(page.iter_mut()) {
        if counters.entry.is_some() && !keep(slot) {
            counters.entry = None;
        }
    }
    page.iter().any(|counters| counters.entry.is_some())
}
