//! The one writer of states and policies: it checks what is added, in the kernel's words, and publishes snapshots.

mod error;

use std::sync::Arc;

use arc_swap::ArcSwap;
use uxfrm_crypto::Backend;

pub use error::Error;

use crate::{
    Direction, Event, IfId, Mark, Moment, Policy, PolicyEntry, PolicyIndex, PolicyKind, Published,
    Sa, SaConfig, SaId, Selector, Snapshot, spd::table::Defaults,
};

/// The databases of states and policies. Sans-IO and single-threaded; workers read what it publishes.
#[derive(Debug)]
pub struct Database {
    published: Published,
    next: Snapshot,
    backend: Backend,
}

/// A change under way: whatever is done through it, workers see all of it at once when [`Database::apply`] returns.
#[derive(Debug)]
pub struct Change<'a> {
    database: &'a mut Database,
    now: Moment,
}

/// Which policy is meant.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyKey {
    /// Its direction.
    pub direction: Direction,
    /// Main or sub.
    pub kind: PolicyKind,
    /// Its mark, value and mask.
    pub mark: Mark,
    /// Its XFRM interface id.
    pub if_id: IfId,
    /// By what it is named.
    pub name: PolicyName,
}

/// A policy has two names.
#[derive(Clone, Debug, PartialEq)]
pub enum PolicyName {
    /// Its index.
    Index(PolicyIndex),
    /// Its selector, as it was given.
    Selector(Selector),
}

impl Database {
    /// Empty databases whose states will use `backend`.
    #[must_use]
    pub fn new(backend: Backend) -> Self {
        let next = Snapshot::default();
        Self { published: Arc::new(ArcSwap::from_pointee(next.clone())), next, backend }
    }

    /// Where workers find the newest snapshot.
    #[must_use]
    pub fn published(&self) -> Published {
        Arc::clone(&self.published)
    }

    /// The newest snapshot.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.published.load_full()
    }

    /// Makes any number of changes and publishes once. What an operation that failed did not do is not undone for the others.
    pub fn apply<R>(&mut self, now: Moment, changes: impl FnOnce(&mut Change<'_>) -> R) -> R {
        let result = changes(&mut Change { database: self, now });
        self.publish();
        result
    }

    /// When [`Database::handle_timeout`] must be called at the latest, and what for.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Moment, &'static str)> {
        todo!()
    }

    /// Lets time limits take effect.
    pub fn handle_timeout(&mut self, now: Moment, events: &mut Vec<Event>) {
        todo!()
    }

    /// To be called with every event of a worker, before it is passed on: a state past its hard limit is taken out.
    pub fn observe(&mut self, event: &Event) {
        todo!()
    }

    fn publish(&mut self) {
        self.next.generation += 1;
        self.published.store(Arc::new(self.next.clone()));
    }
}

impl Change<'_> {
    /// `ip xfrm state add` (`XFRM_MSG_NEWSA`).
    ///
    /// # Errors
    /// What [`Error`] says of states; `EEXIST` when destination, SPI, protocol and mark find one.
    pub fn add_sa(&mut self, config: SaConfig) -> Result<Arc<Sa>, Error> {
        todo!()
    }

    /// `ip xfrm state update` (`XFRM_MSG_UPDSA`).
    ///
    /// # Errors
    /// `ESRCH` without such a state or with another direction, `EINVAL` for what can't change.
    pub fn update_sa(&mut self, config: SaConfig) -> Result<Arc<Sa>, Error> {
        todo!()
    }

    /// `ip xfrm state delete` (`XFRM_MSG_DELSA`).
    ///
    /// # Errors
    /// `ESRCH`.
    pub fn delete_sa(&mut self, id: SaId, mark: Mark) -> Result<Arc<Sa>, Error> {
        todo!()
    }

    /// `ip xfrm state flush` (`XFRM_MSG_FLUSHSA`), of one protocol or [`SaProtocol::Any`](crate::SaProtocol::Any). Says how many went.
    pub fn flush_sas(&mut self, protocol: crate::SaProtocol) -> usize {
        todo!()
    }

    /// `ip xfrm policy add` (`XFRM_MSG_NEWPOLICY`).
    ///
    /// # Errors
    /// `EEXIST` when direction, kind, selector, mark and if_id are those of another, `EINVAL` as [`Error`] says.
    pub fn add_policy(&mut self, policy: Policy) -> Result<Arc<PolicyEntry>, Error> {
        todo!()
    }

    /// `ip xfrm policy update` (`XFRM_MSG_UPDPOLICY`): adds, or takes the place of the one with the same key.
    ///
    /// # Errors
    /// `EINVAL` as [`Error`] says.
    pub fn update_policy(&mut self, policy: Policy) -> Result<Arc<PolicyEntry>, Error> {
        todo!()
    }

    /// `ip xfrm policy delete` (`XFRM_MSG_DELPOLICY`).
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn delete_policy(&mut self, key: &PolicyKey) -> Result<Arc<PolicyEntry>, Error> {
        todo!()
    }

    /// `ip xfrm policy flush` (`XFRM_MSG_FLUSHPOLICY`). Says how many went.
    pub fn flush_policies(&mut self, kind: PolicyKind) -> usize {
        todo!()
    }

    /// `ip xfrm policy setdefault` (`XFRM_MSG_SETDEFAULT`).
    pub fn set_defaults(&mut self, defaults: Defaults) {
        self.database.next.spd.set_defaults(defaults);
    }
}
