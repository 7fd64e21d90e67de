//! The SA that continues in another's place: after a move, or on a device and back.

use std::sync::Arc;

use super::Sa;
use super::live::Live;
use super::shared_config::SharedSaConfig;
use super::usage::{ChargeOutcome, LateCount};
use crate::{Attachment, SaConfig};

/// The SA that continues in another's place, and where that one ended.
#[derive(Debug)]
pub(super) struct Heir {
    sa: Arc<Sa>,
    ended: EndedAt,
}

/// Where a state's numbers ended, in whose place another went on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedAt {
    /// The last number that it sent.
    pub sent: u64,
    /// The last number that was reserved for it.
    pub reserved: u64,
}

impl Live {
    #[cold]
    pub(super) fn charge_heir(&self, late: LateCount) -> ChargeOutcome {
        let Some(Heir { sa: heir, .. }) = self.heir.get() else { return ChargeOutcome::Expired };
        let live = heir.live();
        let charged = live.usage.charge_late(&heir.shared.limits, late);
        charged.unwrap_or_else(|late| live.charge_heir(late))
    }
}

impl Sa {
    /// An SA that continues where `old` ends, with another configuration and the same key, perhaps
    /// offloaded: `old` sends and accepts nothing more.
    pub(crate) fn continuing(
        old: &Self,
        config: SaConfig,
        words: Arc<SharedSaConfig>,
        place: Option<Attachment>,
    ) -> Arc<Self> {
        let (new, sent) = Self::ending(old, config, words, place);
        new.keep_iv_prefixes(old, sent);
        new
    }

    /// The same without `old`'s IV prefixes, for an owner who draws new ones, as other machines may
    /// use the old ones.
    pub(crate) fn begun_anew(
        old: &Self,
        config: SaConfig,
        words: Arc<SharedSaConfig>,
        place: Option<Attachment>,
    ) -> Arc<Self> {
        let (new, _sent) = Self::ending(old, config, words, place);
        new.live().usage.set_history(old.usage().failures(), old.usage().last_used());
        new
    }

    /// An SA that continues where `old` ends, without IV prefixes yet, and the last number that
    /// `old` sent.
    fn ending(
        old: &Self,
        config: SaConfig,
        words: Arc<SharedSaConfig>,
        place: Option<Attachment>,
    ) -> (Arc<Self>, u64) {
        let reserved = old.sequence().reserved();
        let ended = EndedAt { sent: old.sequence().end(), reserved };
        (Self::taking_over(old, ended, config, words, place), ended.sent)
    }

    /// Restores `old` after an SA that continued in its place and sent nothing: its configuration
    /// and numbers, and the other's counters. `None` if nothing continued in its place.
    pub(crate) fn returning(old: &Self, place: Option<Attachment>) -> Option<Arc<Self>> {
        let ended = old.ended_at()?;
        let last = old.last_heir();
        let _none = last.sequence().end();
        let (config, words) = (old.to_config(), old.shared_words());
        let back = Self::taking_over(last, ended, config, words, place);
        back.keep_iv_prefixes(old, ended.sent);
        back.live().usage.set_history(old.usage().failures(), old.usage().last_used());
        back.sequence().reserve(ended.reserved);
        if old.reserved_to_receive() != u64::MAX {
            back.replay().reserve(old.reserved_to_receive());
        }
        Some(back)
    }

    /// An SA with the window and counters of `old`, which accepts and counts nothing more.
    fn taking_over(
        old: &Self,
        ended: EndedAt,
        mut config: SaConfig,
        words: Arc<SharedSaConfig>,
        place: Option<Attachment>,
    ) -> Arc<Self> {
        config.replay.sent = config.replay.sent.max(ended.sent);
        let new = Self::new(&config, words, old.added()).on(place);
        // An unused SA too: a worker may be about to use it.
        let Live { usage, replay, aevents: theirs, heir, .. } = old.live();
        let (highest, received) = replay.end();
        let Live { usage: counts, replay: window, aevents, .. } = new.live();
        window.mark_received(highest, received);
        // Set before the counters are closed: late counts must find it.
        let _first = heir.set(Box::new(Heir { sa: Arc::clone(&new), ended }));
        let (bytes, packets) = usage.end();
        counts.go_on(bytes, packets, usage.first_used());
        counts.advance(usage.lifecycle());
        aevents.set_thresholds(theirs.thresholds());
        new
    }

    fn heir(&self) -> Option<&Heir> {
        self.live_if_used()?.heir.get()
    }

    /// The last SA in the chain of continuations, itself if there is none.
    fn last_heir(&self) -> &Self {
        self.heir().map_or(self, |heir| heir.sa.last_heir())
    }

    /// The last number sent and the last one reserved, if another SA continues in its place.
    #[must_use]
    pub fn ended_at(&self) -> Option<EndedAt> {
        self.heir().map(|heir| heir.ended)
    }
}
