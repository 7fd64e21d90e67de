//! Where the control thread posts what it alone knows, when the status thread asks for it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use arc_swap::ArcSwap;
use uxfrm_engine::{DeviceId, DropCounts, Drops, Moment, SaId, SharedCacheStats};
use uxfrm_io::poll::Waker;
use uxfrm_offload::Nics;
use uxfrm_runtime::SharedWorkerFigures;

use crate::{clock::now, config::Mtu, reconcile::esp_errors::NotedError};

/// What the control thread knows at an instant, and the counters of other threads, which stay up to
/// date by themselves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Post {
    /// What workers and ports drop.
    pub(crate) drops: Vec<Arc<Drops>>,
    /// What the kernel and devices dropped.
    pub(crate) others: DropCounts,
    /// Of it, what the guard dropped; `None` where there is no guard.
    pub(crate) guard: Option<DropCounts>,
    /// What workers' flow caches do.
    pub(crate) caches: Vec<Arc<SharedCacheStats>>,
    /// What workers do.
    pub(crate) figures: Vec<Arc<SharedWorkerFigures>>,
    /// Counts of tunnels and receive ports.
    pub(crate) tunnels: Vec<(String, u64)>,
    /// `[host] mtu`.
    pub(crate) mtu: Mtu,
    /// What is wrong, a line each.
    pub(crate) notices: String,
    /// Offload devices, which count the packets of their states.
    pub(crate) nics: Nics,
    /// Their names.
    pub(crate) devices: Vec<(DeviceId, String)>,
    /// States that passed their hard limit lately, the latest last.
    pub(crate) expired: Vec<ExpiredState>,
    /// ICMP errors about ESP of the last minutes, by peer.
    pub(crate) esp_errors: Vec<NotedError>,
}

/// A state that passed its hard limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpiredState {
    /// The state.
    pub(crate) id: SaId,
    /// When.
    pub(crate) at: Moment,
}

/// A request to the control thread; a post with this number or a higher one answers it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

/// A post, when it was made, and for whom.
#[derive(Debug, Default)]
pub(super) struct Posted {
    pub(super) post: Post,
    pub(super) at: Moment,
    ticket: u64,
}

/// The place where both threads meet.
#[derive(Debug)]
pub(crate) struct Board {
    /// The latest ticket that was given out.
    asked: AtomicU64,
    posted: ArcSwap<Posted>,
    control: Waker,
}

impl Board {
    /// An empty one; `control` wakes who posts.
    pub(super) fn new(control: Waker) -> Self {
        Self { asked: AtomicU64::new(0), posted: ArcSwap::default(), control }
    }

    /// Asks for a post that is made from now on.
    pub(super) fn ask(&self) -> Ticket {
        // The control thread sees it at the latest when it is woken.
        let ticket = Ticket(self.asked.fetch_add(1, Ordering::AcqRel) + 1);
        self.control.wake();
        ticket
    }

    /// Whether a ticket has no post yet.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire) > self.posted.load().ticket
    }

    /// Posts what `read` says from now on.
    pub(crate) fn post(&self, read: impl FnOnce() -> Post) {
        // Before it is read: whoever asks meanwhile may want later counts.
        let ticket = self.asked.load(Ordering::Acquire);
        let post = read();
        self.posted.store(Arc::new(Posted { post, at: now(), ticket }));
    }

    /// The latest post.
    pub(super) fn posted(&self) -> Arc<Posted> {
        self.posted.load_full()
    }
}

impl Posted {
    /// Whether it was made after this ticket was given out.
    pub(super) const fn answers(&self, Ticket(ticket): Ticket) -> bool {
        self.ticket >= ticket
    }
}

/// States that passed their hard limit lately: so many are remembered.
const REMEMBERED: usize = 256;

/// States that passed their hard limit.
#[derive(Debug, Default)]
pub(crate) struct ExpiredStates(std::collections::VecDeque<ExpiredState>);

impl ExpiredStates {
    /// Remembers one.
    pub(crate) fn note(&mut self, id: SaId, at: Moment) {
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(ExpiredState { id, at });
    }

    /// All that are remembered, the latest last.
    pub(crate) fn all(&self) -> Vec<ExpiredState> {
        self.0.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use uxfrm_engine::{SaProtocol, Spi};
    use uxfrm_io::poll::Poller;

    use super::*;

    #[test]
    fn ticket_is_answered_by_a_later_post_only() {
        let board = Board::new(Poller::new().unwrap().waker());
        assert!(!board.is_asked());
        let (first, mut second) = (board.ask(), None);
        assert!(board.is_asked() && !board.posted().answers(first));
        board.post(|| {
            second = Some(board.ask());
            Post { notices: "one".to_owned(), ..Post::default() }
        });
        let (posted, second) = (board.posted(), second.unwrap());
        assert!(posted.answers(first) && !posted.answers(second), "it came while it was read");
        assert!(board.is_asked() && posted.post.notices == "one");
        board.post(Post::default);
        assert!(!board.is_asked() && board.posted().answers(second));
    }

    #[test]
    fn latest_expired_states_are_remembered() {
        let mut expired = ExpiredStates::default();
        for spi in 0..300 {
            let destination = [192, 0, 2, 1].into();
            let id = SaId { destination, spi: Spi(spi), protocol: SaProtocol::Esp };
            expired.note(id, Moment(spi.into()));
        }
        let all = expired.all();
        assert_eq!((all.len(), all[0].id.spi, all[255].at), (256, Spi(44), Moment(299)));
    }
}
