//! Traces on their way from workers to one reader.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use super::trace::PacketTrace;
use super::{PacketHeaders, PacketTap, PacketWay, TapFilter};
use crate::Moment;

/// Traces that wait for a reader at the most; packets that come meanwhile are passed over.
pub const TRACES_WAITING: usize = 256;
/// Packets a second that are tried at the most: of a filter for inner packets it is only known
/// behind ESP whether they fit.
pub const TRIED_A_SECOND: u64 = 1000;

/// The workers' end of a trace.
#[derive(Debug)]
pub(crate) struct TraceFeed {
    filter: TapFilter,
    sender: SyncSender<Box<PacketTrace>>,
    /// Packets that are still to be traced.
    left: AtomicU32,
    /// Those whose trace is not sent yet.
    unsent: AtomicU32,
    second: AtomicU64,
    tried: AtomicU64,
    passed_over: AtomicU64,
}

/// The reader's end of a trace: the next packets that a filter selects. It ends with its reader.
#[derive(Debug)]
pub struct TraceReader {
    feed: Arc<TraceFeed>,
    receiver: Receiver<Box<PacketTrace>>,
    taps: Vec<Arc<PacketTap>>,
}

impl TraceReader {
    /// Has these workers trace the next `packets` packets.
    #[must_use]
    pub fn new(taps: &[Arc<PacketTap>], filter: TapFilter, packets: u32) -> Self {
        let (sender, receiver) = sync_channel(TRACES_WAITING);
        let feed = Arc::new(TraceFeed {
            filter,
            sender,
            left: AtomicU32::new(packets),
            unsent: AtomicU32::new(packets),
            second: AtomicU64::new(0),
            tried: AtomicU64::new(0),
            passed_over: AtomicU64::new(0),
        });
        for tap in taps {
            tap.change(|watchers| watchers.traces.push(Arc::clone(&feed)));
        }
        Self { feed, receiver, taps: taps.to_vec() }
    }

    /// The next trace.
    #[must_use]
    pub fn take(&self) -> Option<Box<PacketTrace>> {
        self.receiver.try_recv().ok()
    }

    /// Packets whose traces are still to come. With none left, all are there to be taken.
    #[must_use]
    pub fn left(&self) -> u32 {
        self.feed.unsent.load(Ordering::Acquire)
    }

    /// Packets that were not traced so far, as too many a second came or traces were not taken.
    #[must_use]
    pub fn passed_over(&self) -> u64 {
        self.feed.passed_over.load(Ordering::Relaxed)
    }
}

impl Drop for TraceReader {
    fn drop(&mut self) {
        for tap in &self.taps {
            tap.change(|watchers| watchers.traces.retain(|feed| !Arc::ptr_eq(feed, &self.feed)));
        }
    }
}

impl TraceFeed {
    /// Whether a packet that arrives is to be traced, as far as its headers tell.
    pub(crate) fn wants(&self, way: PacketWay, headers: &PacketHeaders, now: Moment) -> bool {
        if self.left.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let is_wanted = match (way, headers.esp) {
            // By which state it leaves is known behind the look-up.
            (PacketWay::Out, _) => self.filter.selects_flow(headers.flow.as_ref()),
            // What is inside is known once it is opened.
            (PacketWay::In, Some(esp)) => headers.flow.is_none_or(|outer| {
                self.filter.selects_esp(outer.source, outer.destination, esp.spi)
            }),
            (PacketWay::In, None) => {
                !self.filter.names_esp() && self.filter.selects_flow(headers.flow.as_ref())
            }
        };
        is_wanted && self.may_try(now)
    }

    /// Takes a trace, if its packet is one that was asked for.
    pub(crate) fn offer(&self, trace: &PacketTrace) {
        if !trace.is_selected(&self.filter) {
            return;
        }
        let take_one = |left: u32| left.checked_sub(1);
        if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take_one).is_ok() {
            match self.sender.try_send(Box::new(trace.clone())) {
                Ok(()) => self.unsent.fetch_sub(1, Ordering::Release),
                // Another packet takes its place, once there is room.
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                    self.passed_over.fetch_add(1, Ordering::Relaxed);
                    self.left.fetch_add(1, Ordering::Relaxed)
                }
            };
        }
    }

    fn may_try(&self, now: Moment) -> bool {
        let second = now.0 / 1_000_000_000;
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.tried.store(0, Ordering::Relaxed);
        }
        let may = self.tried.fetch_add(1, Ordering::Relaxed) < TRIED_A_SECOND;
        if !may {
            self.passed_over.fetch_add(1, Ordering::Relaxed);
        }
        may
    }
}
