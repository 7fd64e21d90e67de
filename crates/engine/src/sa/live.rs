//! What an SA has from its first packet on, shared by its generations.

use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock};

use once_cell::race::OnceBox;
use uxfrm_crypto::SaKey;

use super::Sa;
use super::aevent::AeventState;
use super::config::SaFlags;
use super::heir::Heir;
use super::iv::IvPrefixes;
use super::lazy_keys::LazyKeys;
use super::replay::{ReplayWindow, SeqWidth};
use super::sequence::Sequence;
use super::shared_config::{SaNames, SharedSaConfig};
use super::usage::{Lifecycle, SaUsage};

/// Allocated for the first packet.
#[derive(Debug)]
pub(super) enum Active {
    Live(Live),
    /// An updated generation: numbers, counters and keys are those of the first one.
    Of(Arc<Sa>),
}

/// The fields that every batch uses come first.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Live {
    pub(super) usage: SaUsage,
    pub(super) key: OnceLock<Arc<SaKey>>,
    // The second cache line begins here.
    pub(super) replay: ReplayWindow,
    /// For sequence numbers above the first 2^32.
    pub(super) ivs: IvPrefixes,
    pub(super) aevents: AeventState,
    /// The SA that continues in its place and takes late counts.
    pub(super) heir: OnceBox<Heir>,
}

impl Sa {
    /// The next generation: this SA with another configuration.
    pub(crate) fn renewed(self: &Arc<Self>, words: Arc<SharedSaConfig>) -> Arc<Self> {
        let first = match self.active.get() {
            Some(Active::Of(first)) => first,
            Some(Active::Live(_)) | None => self,
        };
        let mut new = Arc::new(Self {
            name: SaNames::new(self.id(), self.source()),
            insertion_seq: self.insertion_seq().into(),
            active: OnceBox::with_value(Box::new(Active::Of(Arc::clone(first)))),
            sequence: Sequence::new(0, 0),
            shared: words,
            keys: LazyKeys::none(),
            added: AtomicU64::new(0),
            reqid: self.reqid,
            acquire_seq: self.acquire_seq,
            iv_prefix: AtomicU32::new(0),
            attachment: self.attachment,
        });
        if let Some(sa) = Arc::get_mut(&mut new) {
            let (encryption, authentication) = self.keys.expose();
            sa.keys.copy(encryption, authentication);
        }
        new
    }

    /// The generation that has numbers, counters and expanded keys.
    #[inline]
    pub(super) fn first(&self) -> &Self {
        match self.active.get() {
            Some(Active::Of(first)) => first,
            Some(Active::Live(_)) | None => self,
        }
    }

    #[inline]
    pub(super) fn live(&self) -> &Live {
        match self.active.get() {
            Some(Active::Live(live)) => live,
            Some(Active::Of(first)) => first.live(),
            None => self.begin(0, 0),
        }
    }

    #[inline]
    pub(super) fn live_if_used(&self) -> Option<&Live> {
        match self.active.get()? {
            Active::Live(live) => Some(live),
            Active::Of(first) => first.live_if_used(),
        }
    }

    /// Starts behind numbers that were sent and received already.
    #[cold]
    pub(super) fn begin(&self, sent: u64, received: u64) -> &Live {
        let words = &*self.shared;
        let live = || {
            Box::new(Active::Live(Live {
                usage: SaUsage::new(Lifecycle::Valid),
                key: OnceLock::new(),
                replay: ReplayWindow::new(words.window, numbers(words), received)
                    .with_keeper(&words.keeper, words.keeper.claim(self)),
                ivs: IvPrefixes::default(),
                aevents: AeventState::new(sent, received, self.added()),
                heir: OnceBox::new(),
            }))
        };
        match self.active.get_or_init(live) {
            Active::Live(live) => live,
            Active::Of(first) => first.live(),
        }
    }

    /// Its keys, expanded on the first call.
    #[must_use]
    #[inline]
    pub fn key(&self) -> &SaKey {
        self.shared_key()
    }

    /// Like [`Sa::key`], for callers that keep them.
    #[inline]
    pub(crate) fn shared_key(&self) -> &Arc<SaKey> {
        self.live().key.get_or_init(|| Arc::new(self.expand()))
    }

    /// Allocates what the first packet needs.
    pub fn activate(&self) {
        let _ = self.key();
    }

    #[cold]
    fn expand(&self) -> SaKey {
        let (encryption, authentication) = self.keys.material();
        let words = &*self.shared;
        // Cannot fail: `SaKey::verify` accepted these keys when the SA was added.
        SaKey::new(&words.transform, &encryption, &authentication, words.backend)
            .expect("keys that were verified")
    }
}

fn numbers(words: &SharedSaConfig) -> SeqWidth {
    if words.flags.contains(SaFlags::ESN) { SeqWidth::Esn } else { SeqWidth::Bits32 }
}
