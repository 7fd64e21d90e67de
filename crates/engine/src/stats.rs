//! Drop counters: per worker, without a lock, readable by any thread.

use std::{
    fmt::Write,
    sync::atomic::{AtomicU64, Ordering},
};

use crossbeam_utils::CachePadded;

use crate::{DropReason, XfrmCounter};

/// A value for each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByDirection<T> {
    /// Encapsulation.
    pub outbound: T,
    /// Decapsulation.
    pub inbound: T,
}

/// A value for each address family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByFamily<T> {
    /// IPv4.
    pub v4: T,
    /// IPv6.
    pub v6: T,
}

/// One worker's drops by reason. One thread writes, any may read.
#[derive(Debug)]
pub struct Drops(CachePadded<[AtomicU64; DropReason::ALL.len()]>);

/// Drops by reason at one instant.
///
/// ```
/// use uxfrm_engine::{DropCounts, DropReason, Drops, XfrmCounter};
///
/// let workers = [Drops::default(), Drops::default()];
/// workers[0].count(DropReason::InNoState);
/// workers[1].count(DropReason::InNoState);
/// let counts = DropCounts::sum(&workers);
/// assert_eq!(counts.of(DropReason::InNoState), 2);
/// assert_eq!(counts.line(XfrmCounter::InNoStates), 2);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropCounts([u64; DropReason::ALL.len()]);

impl Drops {
    /// Counts one packet. Only for the owning worker: two writers would lose counts.
    #[inline]
    pub fn count(&self, reason: DropReason) {
        self.add(reason, 1);
    }

    /// Counts several packets, like [`Drops::count`].
    #[inline]
    pub fn add(&self, reason: DropReason, packets: u64) {
        // Relaxed load and store, no read-modify-write: there is one writer, and readers only want
        // a recent value.
        let counter = &self.0[reason as usize];
        counter.store(counter.load(Ordering::Relaxed) + packets, Ordering::Relaxed);
    }

    /// The count so far.
    #[must_use]
    pub fn of(&self, reason: DropReason) -> u64 {
        self.0[reason as usize].load(Ordering::Relaxed)
    }
}

impl Default for Drops {
    fn default() -> Self {
        Self(CachePadded::new([const { AtomicU64::new(0) }; DropReason::ALL.len()]))
    }
}

impl Default for DropCounts {
    fn default() -> Self {
        Self([0; DropReason::ALL.len()])
    }
}

impl DropCounts {
    /// The sum over all workers.
    #[must_use]
    pub fn sum<'a>(workers: impl IntoIterator<Item = &'a Drops>) -> Self {
        let mut counts = Self::default();
        for drops in workers {
            for reason in DropReason::ALL {
                counts.0[*reason as usize] += drops.of(*reason);
            }
        }
        counts
    }

    /// Adds packets that the kernel's packet filter dropped on the guard's behalf.
    pub fn add(&mut self, reason: DropReason, packets: u64) {
        self.0[reason as usize] += packets;
    }

    /// The count of one reason.
    #[must_use]
    pub fn of(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// The count of one line of `/proc/net/xfrm_stat`.
    #[must_use]
    pub fn line(&self, counter: XfrmCounter) -> u64 {
        let counted = DropReason::ALL.iter().filter(|reason| reason.counter() == Some(counter));
        counted.map(|reason| self.of(*reason)).sum()
    }

    /// A line per reason, in the form of [`xfrm_stat`](Self::xfrm_stat), including reasons without
    /// a kernel line; those that share one are separate.
    #[must_use]
    pub fn reasons(&self) -> String {
        DropReason::ALL.iter().fold(String::new(), |mut text, reason| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{:<24}\t{}", reason.as_str(), self.of(*reason));
            text
        })
    }

    /// The text of `/proc/net/xfrm_stat`, byte for byte
    /// (`net/xfrm/xfrm_proc.c: xfrm_statistics_seq_show`).
    #[must_use]
    pub fn xfrm_stat(&self) -> String {
        XfrmCounter::ALL.iter().fold(String::new(), |mut text, counter| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{:<24}\t{}", format!("Xfrm{counter:?}"), self.line(*counter));
            text
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xfrm_stat_text_equals_kernel() {
        let (one, two) = (Drops::default(), Drops::default());
        one.count(DropReason::InNoState);
        two.add(DropReason::InNoState, 2);
        two.count(DropReason::InDummy);
        let mut counts = DropCounts::sum([&one, &two]);
        counts.add(DropReason::InUnprotected, 5);
        let reasons = counts.reasons();
        assert!(reasons.contains("in_no_state             \t3\n"), "{reasons}");
        assert!(reasons.contains("in_dummy                \t1\n"), "{reasons}");
        let text = counts.xfrm_stat();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 32);
        assert_eq!(lines[0], "XfrmInError             \t0");
        assert_eq!(lines[3], "XfrmInNoStates          \t3");
        assert_eq!(lines[10], "XfrmInTmplMismatch      \t5");
        assert_eq!(lines[15], "XfrmOutBundleGenError   \t0");
        assert_eq!(lines[31], "XfrmOutNoQueueSpace     \t0");
        assert!(text.ends_with('\n'));
    }
}
