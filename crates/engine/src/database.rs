//! The one writer of states and policies: it checks what is added, in the kernel's words, and publishes snapshots.

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
use crate::sa::replay_store::Keeper;
use crate::sa::shared_config::ConfigInterner;
use crate::spd::store::{Ledger, PolicyCursor};
use crate::{
    Acquires, Host, Keepalive, Moment, PolicyEntry, Published, Revised, Revision, Sa, Sad,
    Snapshot, Spd,
};

pub use change::Change;
pub use change_set::{Changes, PolicyChange};
pub use devices::LinkDown;
pub use metadata_support::Senses;
pub use order::StateCursor;

/// The databases of states and policies. Sans-IO and single-threaded; workers read what it publishes.
#[derive(Debug)]
pub struct Database {
    published: Published,
    /// Made when somebody asks for it: until then a change copies nothing that no snapshot holds.
    newest: OnceLock<Arc<Snapshot>>,
    next: Snapshot,
    tracking: ChangeTracking,
    policy_store: Ledger,
    spare_policies: DoubleBuffer<Spd>,
    spare_states: DoubleBuffer<Sad>,
    /// Policies that are to be put in together.
    new_policies: Vec<Arc<PolicyEntry>>,
    rebuild_state: RebuildState,
    sa_order: SaOrder,
    stale_sas: PendingRelease,
    stale_policies: PendingRelease,
    /// Old copies were given up, and their memory with them.
    freed: bool,
    timers: Timers,
    keepalives: Vec<Keepalive>,
    offloads: DeviceOffloads,
    interner: ConfigInterner,
    senses: Senses,
    backend: Backend,
    iv_prefixes: IvPrefixSource,
    keeper: Keeper,
}

/// Whether copies of older databases still have what is gone: states and their keys, or more policies than will ever be made up for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PendingRelease {
    Nothing,
    Something,
    /// And a timer will see to it.
    Scheduled,
}

impl PendingRelease {
    /// There is something that is gone.
    const fn begin(&mut self) {
        if matches!(self, Self::Nothing) {
            *self = Self::Something;
        }
    }

    /// Whether something is gone that no timer sees to yet; from now on one does.
    fn claim_timer(&mut self) -> bool {
        let is_new = *self == Self::Something;
        if is_new {
            *self = Self::Scheduled;
        }
        is_new
    }
}

/// So long what is gone may stay for the sake of quick changes: as long as idle workers keep it.
const RELEASE_DELAY: Duration = Duration::from_secs(1);
/// Room for so many policies that come together is kept for the next ones.
const NEW_POLICIES_KEPT: usize = 1024;

impl Database {
    /// Empty databases whose states will use `backend`. `seed` is random, another one each time: states get their [IV prefixes](crate::IvPrefix)
    /// from it, unless an owner [draws](Sa::set_iv_prefix) better ones.
    #[must_use]
    pub fn new(backend: Backend, seed: u64) -> Self {
        Self {
            published: Arc::new(ArcSwap::default()),
            newest: OnceLock::new(),
            next: Snapshot::default(),
            tracking: ChangeTracking::None,
            policy_store: Ledger::default(),
            spare_policies: DoubleBuffer::default(),
            spare_states: DoubleBuffer::default(),
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
            senses: Senses::default(),
            backend,
            iv_prefixes: IvPrefixSource::new(seed),
            keeper: Keeper::default(),
        }
    }

    /// Says what the ports of workers can do, before anything is added: what needs more is refused from now on.
    pub fn set_senses(&mut self, senses: Senses) {
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

    /// The databases as they are now, changes included that workers do not see yet: cheaper than a snapshot, for a look.
    #[must_use]
    pub const fn current(&self) -> &Snapshot {
        &self.next
    }

    /// The states that a cursor has not passed, the youngest first; changes included that workers do not see yet. What comes and goes
    /// between two looks neither shifts the cursor nor is held up by it: a dump costs what it shows, and keeps nothing meanwhile.
    pub fn states_from(&self, cursor: StateCursor) -> impl Iterator<Item = &Arc<Sa>> {
        self.sa_order.from(cursor)
    }

    /// The policies that a cursor has not passed, the youngest first, each with the cursor that has just passed it; otherwise as
    /// [`Database::states_from`]. One that took another's place came when it did so.
    pub fn policies_from(
        &self,
        cursor: PolicyCursor,
    ) -> impl Iterator<Item = (PolicyCursor, &Arc<PolicyEntry>)> {
        self.policy_store.from(cursor)
    }

    /// From now on workers see a change only after [`Database::publish`], and what has changed is kept until it is taken. For an owner
    /// who has to do something about each change first: whoever keeps sequence numbers across a restart writes them down.
    pub fn attend(&mut self) {
        if matches!(self.tracking, ChangeTracking::None) {
            self.tracking = ChangeTracking::Owner(Changes::default());
        }
    }

    /// The same, for an owner who keeps received numbers across restarts, too: before anything is added.
    pub fn attend_with(&mut self, keeper: Keeper) {
        self.keeper = keeper;
        self.attend();
    }

    /// What has changed since the last time; nothing unless [attended](Database::attend) to.
    #[must_use]
    pub fn take_changes(&mut self) -> Changes {
        match &mut self.tracking {
            ChangeTracking::None => Changes::default(),
            ChangeTracking::Owner(changes) => std::mem::take(changes),
        }
    }

    /// Lets workers see the newest snapshot.
    pub fn publish(&self) {
        let newest = self.snapshot();
        if !Arc::ptr_eq(&self.published.load(), &newest) {
            self.published.store(newest);
        }
    }

    /// Makes ready for a change that is expected at once, so that it takes less time when it comes.
    pub fn prepare(&mut self) {
        self.spare_policies.part(&mut self.next.spd);
        self.spare_states.part(&mut self.next.sad);
    }

    /// Makes any number of changes and publishes once, if there was one. Each change that fails leaves all as it was; those before it stand.
    pub fn apply<R>(&mut self, now: Moment, changes: impl FnOnce(&mut Change<'_>) -> R) -> R {
        let mut change = Change { database: self, now, changed: false };
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

    /// Policies that came and went one by one, once no more do, to be planned anew by whoever has the time: until
    /// [`Database::adopt`] nothing waits for them. Each is given out once.
    #[must_use]
    pub fn take_revision(&mut self) -> Option<Revision> {
        self.rebuild_state.take().then(|| self.next.spd.revision())
    }

    /// Has all policies planned anew without waiting until no more come, also if nothing would be gained: [`Database::take_revision`] gives it out.
    /// Of no use while somebody plans.
    pub fn demand_revision(&mut self) {
        self.rebuild_state.request_now();
    }

    /// Takes in policies that were planned anew, with all that came and went meanwhile: look-ups find the same, sooner. `None` when planning failed; that
    /// and what is no longer of use is left, to be planned again.
    pub fn adopt(&mut self, revised: Option<Revised>, now: Moment) {
        let moved = self.rebuild_state.end();
        if let (Some(revised), Some(moved)) = (revised, moved) {
            self.spare_policies.part(&mut self.next.spd).adopt(revised, &moved);
            // What was published before has the old plan, and is no help with the new one.
            self.spare_policies.release_old();
            self.invalidate_newest();
        }
        self.schedule_rebuild(now);
    }

    /// Whether much memory was freed since the last time, of policies that went some time ago: an owner of the process may give it back to the system.
    #[must_use]
    pub const fn take_freed(&mut self) -> bool {
        std::mem::replace(&mut self.freed, false)
    }

    /// Tells workers who listens for acquires, and what is pending. States and policies stay as they are.
    pub fn set_acquires(&mut self, acquires: Acquires) {
        if *self.next.acquires != acquires {
            self.next.acquires = Arc::new(acquires);
            self.invalidate_newest();
        }
    }

    /// Tells workers what has become of the host.
    pub fn set_host(&mut self, host: Host) {
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
        self.spare_states.part(&mut self.next.sad).insert(sa);
        self.spare_states.note(sa);
        self.sa_order.push(sa);
        self.next.note_state(sa.id().spi);
        self.open_soon(sa);
    }

    fn replace_sa(&mut self, old: &Arc<Sa>, new: &Arc<Sa>) {
        let held = self.spare_states.part(&mut self.next.sad).replace(old, new);
        held.iter().chain([new]).for_each(|sa| self.spare_states.note(sa));
        self.stale_sas.begin();
        self.sa_order.replace(new);
        self.next.note_state(new.id().spi);
    }

    fn remove_sa(&mut self, sa: &Arc<Sa>) {
        self.leave_device(sa);
        self.drop_sa(sa);
    }

    /// A state that is on no device any more goes.
    fn drop_sa(&mut self, sa: &Arc<Sa>) {
        let held = self.spare_states.part(&mut self.next.sad).remove(sa);
        held.iter().for_each(|held| self.spare_states.note(held));
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

    /// Lets go of states that are gone, and of copies that have too many policies that are; of those that a worker has still, next time.
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
        let released = self.spare_policies.release_outdated();
        self.freed |= released.freed;
        if released.is_read {
            self.stale_policies = PendingRelease::Something;
            self.schedule_release(now);
        }
    }

    fn release_sas(&mut self) {
        self.stale_sas = PendingRelease::Nothing;
        self.spare_states.release_old();
    }

    fn remove_policy(&mut self, entry: &Arc<PolicyEntry>) {
        self.policy_store.remove(entry);
        self.unseat(entry);
        self.unlink_policy(entry);
    }

    /// Lets no look-up find a policy that the ledger no longer has.
    fn unlink_policy(&mut self, entry: &Arc<PolicyEntry>) {
        self.insert_new_policies();
        self.spare_policies.part(&mut self.next.spd).remove(entry);
        self.spare_policies.note(entry);
        self.stale_policies.begin();
        self.rebuild_state.went(entry);
        self.tracking.remove_policy(entry);
    }

    fn link_policy(&mut self, entry: &Arc<PolicyEntry>) {
        self.new_policies.push(Arc::clone(entry));
        self.tracking.add_policy(entry);
    }

    /// Lets look-ups find the policies that came.
    fn insert_new_policies(&mut self) {
        if self.new_policies.is_empty() {
            return;
        }
        let spd = self.spare_policies.part(&mut self.next.spd);
        match &self.new_policies[..] {
            [alone] => {
                spd.insert_one(alone);
                self.spare_policies.record_insert(alone);
            }
            all => spd.insert_all(all),
        }
        for entry in self.new_policies.drain(..) {
            self.spare_policies.note(&entry);
            self.rebuild_state.record_insert(&entry);
        }
        self.new_policies.shrink_to(NEW_POLICIES_KEPT);
    }

    fn schedule_rebuild(&mut self, now: Moment) {
        if self.next.spd.is_outgrown() && self.rebuild_state.request() {
            self.timers.wake_rebuild(now.plus(QUIET));
        }
    }

    /// Makes the next generation from what has changed.
    fn advance(&mut self) {
        self.next.generation += 1;
        self.invalidate_newest();
    }

    /// Lets the next snapshot have what has changed.
    fn invalidate_newest(&mut self) {
        self.newest.take();
        if matches!(self.tracking, ChangeTracking::None) {
            self.publish();
        }
    }
}

#[cfg(test)]
mod tests;
