//! The database: the one writer of states and policies. It checks changes with the kernel's errors,
//! and publishes snapshots.

mod change;
mod change_set;
mod devices;
mod double_buffer;
mod expiry;
mod metadata_support;
mod order;
mod rebuild;
mod timers;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use change_set::ChangeTracking;
use devices::DeviceOffloads;
use double_buffer::DoubleBuffer;
use order::SaOrder;
use rebuild::{QUIET, RebuildState};
use timers::Timers;
use uxfrm_crypto::Backend;

use crate::sa::iv::IvPrefixSource;
use crate::sa::replay_store::ReplayKeeper;
use crate::sa::shared_config::ConfigInterner;
use crate::spd::store::{PolicyCursor, PolicyStore};
use crate::{
    AcquireView, HostView, Keepalive, Moment, PolicyEntry, Published, Rebuild, RebuiltIndex, Sa,
    Sad, Snapshot, Spd,
};

pub use change::Transaction;
pub use change_set::{ChangeSet, PolicyChange, UpdatedSa};
pub use devices::LinkDown;
pub use metadata_support::MetadataSupport;
pub use order::StateCursor;
pub use timers::Timeout;

/// The databases of states and policies. Sans-IO and single-threaded; workers read what it
/// publishes.
///
/// ```
/// use uxfrm_crypto::Backend;
/// use uxfrm_engine::{Database, Direction, Error, Family, Moment, Policy, Prefix};
///
/// let mut database = Database::new(Backend::Auto, 1);
/// let any = Prefix::any(Family::V4);
/// let policy = Policy::block(Direction::Out, any, any);
/// database.apply(Moment(0), |change| change.add_policy(policy.clone()))?;
/// assert_eq!(database.snapshot().spd.len(), 1);
///
/// let again = database.apply(Moment(0), |change| change.add_policy(policy));
/// assert_eq!(again.unwrap_err().errno(), 17, "EEXIST");
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct Database {
    published: Published,
    /// Made on demand: until then a change copies nothing that no snapshot holds.
    newest: OnceLock<Arc<Snapshot>>,
    next: Snapshot,
    tracking: ChangeTracking,
    policy_store: PolicyStore,
    policy_buffer: DoubleBuffer<Spd>,
    sa_buffer: DoubleBuffer<Sad>,
    /// Policies to be inserted together.
    new_policies: Vec<Arc<PolicyEntry>>,
    rebuild_state: RebuildState,
    sa_order: SaOrder,
    stale_sas: PendingRelease,
    stale_policies: PendingRelease,
    /// Old copies were released, and their memory with them.
    freed: bool,
    timers: Timers,
    keepalives: Vec<Keepalive>,
    offloads: DeviceOffloads,
    interner: ConfigInterner,
    senses: MetadataSupport,
    backend: Backend,
    iv_prefixes: IvPrefixSource,
    keeper: ReplayKeeper,
}

/// Whether copies of older databases still hold removed entries: states and their keys, or many
/// policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PendingRelease {
    Nothing,
    Something,
    /// A timer is set.
    Scheduled,
}

impl PendingRelease {
    /// Something was removed.
    const fn begin(&mut self) {
        if matches!(self, Self::Nothing) {
            *self = Self::Something;
        }
    }

    /// Whether a removal has no timer yet; the caller sets one.
    fn claim_timer(&mut self) -> bool {
        let is_new = *self == Self::Something;
        if is_new {
            *self = Self::Scheduled;
        }
        is_new
    }
}

/// How long removed entries may stay for the sake of quick changes: as long as idle workers keep
/// them.
const RELEASE_DELAY: Duration = Duration::from_secs(1);
/// Capacity kept for policies that are inserted together.
const NEW_POLICIES_KEPT: usize = 1024;

impl Database {
    /// Empty databases whose states use `backend`. `seed` is random and differs each time: states
    /// get their [IV prefixes](crate::IvPrefix) from it, unless an owner [draws](Sa::set_iv_prefix)
    /// better ones.
    #[must_use]
    pub fn new(backend: Backend, seed: u64) -> Self {
        Self {
            published: Arc::new(ArcSwap::default()),
            newest: OnceLock::new(),
            next: Snapshot::default(),
            tracking: ChangeTracking::None,
            policy_store: PolicyStore::default(),
            policy_buffer: DoubleBuffer::default(),
            sa_buffer: DoubleBuffer::default(),
            new_policies: Vec::new(),
            rebuild_state: RebuildState::default(),
            sa_order: SaOrder::default(),
            stale_sas: PendingRelease::Nothing,
            stale_policies: PendingRelease::Nothing,
            freed: false,
            timers: Timers::default(),
            keepalives: Vec::new(),
            offloads: DeviceOffloads::default(),
            interner: ConfigInterner::default(),
            senses: MetadataSupport::default(),
            backend,
            iv_prefixes: IvPrefixSource::new(seed),
            keeper: ReplayKeeper::default(),
        }
    }

    /// Sets which metadata the ports supply, before anything is added: what needs more is refused
    /// from now on.
    pub fn set_metadata_support(&mut self, senses: MetadataSupport) {
        self.senses = senses;
    }

    /// Where workers find the newest snapshot.
    #[must_use]
    pub fn published(&self) -> Published {
        Arc::clone(&self.published)
    }

    /// The newest snapshot.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(self.newest.get_or_init(|| Arc::new(self.next.clone())))
    }

    /// The databases with changes that workers do not see yet; cheaper than a snapshot.
    #[must_use]
    pub const fn current(&self) -> &Snapshot {
        &self.next
    }

    /// The states behind a cursor, the youngest first, with changes that workers do not see yet.
    /// Additions and removals neither shift the cursor nor wait for it: a dump costs what it shows,
    /// and holds nothing between two calls.
    pub fn states_from(&self, cursor: StateCursor) -> impl Iterator<Item = &Arc<Sa>> {
        self.sa_order.from(cursor)
    }

    /// The policies behind a cursor, the youngest first, each with the cursor that has just passed
    /// it; otherwise like [`Database::states_from`]. A policy that replaced another counts as new.
    pub fn policies_from(
        &self,
        cursor: PolicyCursor,
    ) -> impl Iterator<Item = (PolicyCursor, &Arc<PolicyEntry>)> {
        self.policy_store.from(cursor)
    }

    /// Tracks changes: workers see them only after [`Database::publish`], and they are kept until
    /// taken. For an owner who must act on each change first, such as storing sequence numbers that
    /// survive a restart.
    ///
    /// ```
    /// use uxfrm_crypto::{Backend, KeyMaterial};
    /// use uxfrm_engine::{Database, Moment, SaConfig, SaTransform, Spi};
    ///
    /// let mut database = Database::new(Backend::Auto, 1);
    /// database.track_changes();
    /// let keys = SaTransform::aes_gcm(KeyMaterial::new(&[7; 20]))?;
    /// let (from, to) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
    /// let config = SaConfig::esp_tunnel(from, to, Spi(0x1001), keys);
    /// database.apply(Moment(0), |change| change.add_sa(config))?;
    ///
    /// for sa in database.take_changes().added {
    ///     assert!(sa.sequence().take(1).is_err());
    ///     sa.sequence().reserve(1 << 20); // once that is on the disk
    ///     assert!(sa.sequence().take(1).is_ok());
    /// }
    /// assert!(database.published().load().sad.is_empty());
    /// database.publish();
    /// assert_eq!(database.published().load().sad.len(), 1);
    /// # Ok::<(), uxfrm_engine::Error>(())
    /// ```
    pub fn track_changes(&mut self) {
        if matches!(self.tracking, ChangeTracking::None) {
            self.tracking = ChangeTracking::Owner(ChangeSet::default());
        }
    }

    /// The same for an owner who also keeps received numbers across restarts. To be called before
    /// anything is added.
    pub fn track_changes_with(&mut self, keeper: ReplayKeeper) {
        self.keeper = keeper;
        self.track_changes();
    }

    /// Changes since the last call; empty unless [tracked](Database::track_changes).
    #[must_use]
    pub fn take_changes(&mut self) -> ChangeSet {
        match &mut self.tracking {
            ChangeTracking::None => ChangeSet::default(),
            ChangeTracking::Owner(changes) => std::mem::take(changes),
        }
    }

    /// Publishes the newest snapshot to workers.
    pub fn publish(&self) {
        let newest = self.snapshot();
        if !Arc::ptr_eq(&self.published.load(), &newest) {
            self.published.store(newest);
        }
    }

    /// Prepares for a change that is expected soon, so that it takes less time.
    pub fn prepare(&mut self) {
        self.policy_buffer.part(&mut self.next.spd);
        self.sa_buffer.part(&mut self.next.sad);
    }

    /// Makes any number of changes and publishes once, if there was one. A change that fails leaves
    /// everything as it was; those before it stand.
    pub fn apply<R>(&mut self, now: Moment, changes: impl FnOnce(&mut Transaction<'_>) -> R) -> R {
        let mut change = Transaction { database: self, now, changed: false };
        let result = changes(&mut change);
        let changed = change.changed;
        self.open_states();
        if changed {
            self.insert_new_policies();
            self.advance();
            self.schedule_release(now);
            self.schedule_rebuild(now);
        }
        result
    }

    /// Policies that were inserted or removed one by one, once no more are, to be planned anew by a
    /// caller with time: until [`Database::install_rebuilt`] nothing waits for them. Each is
    /// returned once.
    #[must_use]
    pub fn take_rebuild(&mut self) -> Option<Rebuild> {
        self.rebuild_state.take().then(|| self.next.spd.start_rebuild())
    }

    /// Requests a rebuild of all policies at once, also if nothing would be gained:
    /// [`Database::take_rebuild`] returns it. No effect while one is under way.
    pub fn request_rebuild(&mut self) {
        self.rebuild_state.request_now();
    }

    /// Installs rebuilt policies, with all changes made meanwhile: look-ups find the same, faster.
    /// `None` if the rebuild failed; that, and an outdated result, is rebuilt later.
    pub fn install_rebuilt(&mut self, revised: Option<RebuiltIndex>, now: Moment) {
        let moved = self.rebuild_state.end();
        if let (Some(revised), Some(moved)) = (revised, moved) {
            self.policy_buffer.part(&mut self.next.spd).install(revised, &moved);
            // Older copies have the old plan, and are no help with the new one.
            self.policy_buffer.release_old();
            self.invalidate_newest();
        }
        self.schedule_rebuild(now);
    }

    /// Whether much memory was freed since the last call, of policies removed some time ago: the
    /// owner of the process may return it to the system.
    #[must_use]
    pub const fn take_freed(&mut self) -> bool {
        std::mem::replace(&mut self.freed, false)
    }

    /// Publishes key managers and pending acquires to workers. States and policies do not change.
    pub fn set_acquires(&mut self, acquires: AcquireView) {
        if *self.next.acquires != acquires {
            self.next.acquires = Arc::new(acquires);
            self.invalidate_newest();
        }
    }

    /// Publishes the host's current addresses and MTUs to workers.
    pub fn set_host(&mut self, host: HostView) {
        if self.next.host.as_deref() != Some(&host) {
            self.next.host = Some(Arc::new(host));
            self.invalidate_newest();
        }
    }

    fn insert_sa(&mut self, sa: &Arc<Sa>) {
        if sa.next_iv_prefix().bits().is_none() {
            self.iv_prefixes.give(sa);
        }
        self.tracking.add_sa(sa);
        if self.tracking.is_owner() {
            self.hold_numbers(sa);
        }
        self.share_iv_prefixes(sa);
        self.sa_buffer.part(&mut self.next.sad).insert(sa);
        self.sa_buffer.record_change(sa);
        self.sa_order.push(sa);
        self.next.note_state(sa.id().spi);
        self.open_soon(sa);
    }

    fn replace_sa(&mut self, old: &Arc<Sa>, new: &Arc<Sa>) {
        let held = self.sa_buffer.part(&mut self.next.sad).replace(old, new);
        held.iter().chain([new]).for_each(|sa| self.sa_buffer.record_change(sa));
        self.stale_sas.begin();
        self.sa_order.replace(new);
        self.next.note_state(new.id().spi);
    }

    fn remove_sa(&mut self, sa: &Arc<Sa>) {
        self.leave_device(sa);
        self.drop_sa(sa);
    }

    /// Removes a state that is on no device any more.
    fn drop_sa(&mut self, sa: &Arc<Sa>) {
        let held = self.sa_buffer.part(&mut self.next.sad).remove(sa);
        held.iter().for_each(|held| self.sa_buffer.record_change(held));
        self.stale_sas.begin();
        self.sa_order.remove(sa);
        self.next.note_state(sa.id().spi);
        self.tracking.remove_sa(sa);
    }

    fn schedule_release(&mut self, now: Moment) {
        let leaving = [&mut self.stale_sas, &mut self.stale_policies];
        if leaving.map(PendingRelease::claim_timer).contains(&true) {
            self.timers.wake_release(now.plus(RELEASE_DELAY));
        }
    }

    /// Releases removed states, and copies with too many removed policies; those that a worker
    /// still holds, next time.
    fn release_old(&mut self, now: Moment) {
        self.release_sas();
        self.release_policies(now);
        self.timers.release_old(self.next.sad.len() + self.next.spd.len());
    }

    fn release_policies(&mut self, now: Moment) {
        if self.stale_policies == PendingRelease::Nothing {
            return;
        }
        self.stale_policies = PendingRelease::Nothing;
        let released = self.policy_buffer.release_outdated();
        self.freed |= released.freed;
        if released.is_read {
            self.stale_policies = PendingRelease::Something;
            self.schedule_release(now);
        }
    }

    fn release_sas(&mut self) {
        self.stale_sas = PendingRelease::Nothing;
        self.sa_buffer.release_old();
    }

    fn remove_policy(&mut self, entry: &Arc<PolicyEntry>) {
        self.policy_store.remove(entry);
        self.unseat(entry);
        self.unlink_policy(entry);
    }

    /// Removes a policy from look-ups that is no longer in the policy store.
    fn unlink_policy(&mut self, entry: &Arc<PolicyEntry>) {
        self.insert_new_policies();
        self.policy_buffer.part(&mut self.next.spd).remove(entry);
        self.policy_buffer.record_change(entry);
        self.stale_policies.begin();
        self.rebuild_state.removed(entry);
        self.tracking.remove_policy(entry);
    }

    fn link_policy(&mut self, entry: &Arc<PolicyEntry>) {
        self.new_policies.push(Arc::clone(entry));
        self.tracking.add_policy(entry);
    }

    /// Inserts new policies into look-ups.
    fn insert_new_policies(&mut self) {
        if self.new_policies.is_empty() {
            return;
        }
        let spd = self.policy_buffer.part(&mut self.next.spd);
        match &self.new_policies[..] {
            [alone] => {
                spd.insert_deferred(alone);
                self.policy_buffer.record_insert(alone);
            }
            all => spd.insert_all(all),
        }
        for entry in self.new_policies.drain(..) {
            self.policy_buffer.record_change(&entry);
            self.rebuild_state.inserted(&entry);
        }
        self.new_policies.shrink_to(NEW_POLICIES_KEPT);
    }

    fn schedule_rebuild(&mut self, now: Moment) {
        if self.next.spd.needs_rebuild() && self.rebuild_state.request() {
            self.timers.wake_rebuild(now.plus(QUIET));
        }
    }

    /// Starts the next generation.
    fn advance(&mut self) {
        self.next.generation += 1;
        self.invalidate_newest();
    }

    /// Invalidates the newest snapshot, and publishes if changes are not tracked.
    fn invalidate_newest(&mut self) {
        self.newest.take();
        if matches!(self.tracking, ChangeTracking::None) {
            self.publish();
        }
    }
}

#[cfg(test)]
mod tests;
