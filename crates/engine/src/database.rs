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
use change_set::Attendance;
use devices::Offloads;
use double_buffer::Spare;
use order::Ages;
use rebuild::{QUIET, Revising};
use timers::Timers;
use uxfrm_crypto::Backend;

use crate::sa::iv::PrefixSource;
use crate::sa::replay_store::Keeper;
use crate::sa::shared_config::Lexicon;
use crate::spd::store::{Ledger, PolicyCursor};
use crate::{
    Acquires, Host, Keepalive, Moment, PolicyEntry, Published, Revised, Revision, Sa, Sad,
    Snapshot, Spd,
};

pub use change::Change;
pub use change_set::{Changes, PolicyChange, UpdatedSa};
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
    attendance: Attendance,
    ledger: Ledger,
    spare_policies: Spare<Spd>,
    spare_states: Spare<Sad>,
    /// Policies that are to be put in together.
    coming: Vec<Arc<PolicyEntry>>,
    revising: Revising,
    ages: Ages,
    leaving_states: Leaving,
    leaving_policies: Leaving,
    /// Old copies were given up, and their memory with them.
    freed: bool,
    timers: Timers,
    keepalives: Vec<Keepalive>,
    offloads: Offloads,
    lexicon: Lexicon,
    senses: Senses,
    backend: Backend,
    iv_prefixes: PrefixSource,
    keeper: Keeper,
}

/// Whether copies of older databases still have what is gone: states and their keys, or more policies than will ever be made up for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    Nothing,
    Something,
    /// And a timer will see to it.
    Soon,
}

impl Leaving {
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
            *self = Self::Soon;
        }
        is_new
    }
}

/// So long what is gone may stay for the sake of quick changes: as long as idle workers keep it.
const LINGER: Duration = Duration::from_secs(1);
/// Room for so many policies that come together is kept for the next ones.
const BURST: usize = 1024;

impl Database {
    /// Empty databases whose states will use `backend`. `seed` is random, another one each time: states get their [IV prefixes](crate::IvPrefix)
    /// from it, unless an owner [draws](Sa::set_iv_prefix) better ones.
    #[must_use]
    pub fn new(backend: Backend, seed: u64) -> Self {
        Self {
            published: Arc::new(ArcSwap::default()),
            newest: OnceLock::new(),
            next: Snapshot::default(),
            attendance: Attendance::None,
            ledger: Ledger::default(),
            spare_policies: Spare::default(),
            spare_states: Spare::default(),
            coming: Vec::new(),
            revising: Revising::default(),
            ages: Ages::default(),
            leaving_states: Leaving::Nothing,
            leaving_policies: Leaving::Nothing,
            freed: false,
            timers: Timers::default(),
            keepalives: Vec::new(),
            offloads: Offloads::default(),
            lexicon: Lexicon::default(),
            senses: Senses::default(),
            backend,
            iv_prefixes: PrefixSource::new(seed),
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
        self.ages.from(cursor)
    }

    /// The policies that a cursor has not passed, the youngest first, each with the cursor that has just passed it; otherwise as
    /// [`Database::states_from`]. One that took another's place came when it did so.
    pub fn policies_from(
        &self,
        cursor: PolicyCursor,
    ) -> impl Iterator<Item = (PolicyCursor, &Arc<PolicyEntry>)> {
        self.ledger.from(cursor)
    }

    /// From now on workers see a change only after [`Database::publish`], and what has changed is kept until it is taken. For an owner
    /// who has to do something about each change first: whoever keeps sequence numbers across a restart writes them down.
    pub fn attend(&mut self) {
        if matches!(self.attendance, Attendance::None) {
            self.attendance = Attendance::Owner(Changes::default());
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
        match &mut self.attendance {
            Attendance::None => Changes::default(),
            Attendance::Owner(changes) => std::mem::take(changes),
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
            self.settle_policies();
            self.advance();
            self.let_go_soon(now);
            self.revise_soon(now);
        }
        result
    }

    /// Policies that came and went one by one, once no more do, to be planned anew by whoever has the time: until
    /// [`Database::adopt`] nothing waits for them. Each is given out once.
    #[must_use]
    pub fn take_revision(&mut self) -> Option<Revision> {
        self.revising.take().then(|| self.next.spd.revision())
    }

    /// Has all policies planned anew without waiting until no more come, also if nothing would be gained: [`Database::take_revision`] gives it out.
    /// Of no use while somebody plans.
    pub fn demand_revision(&mut self) {
        self.revising.demand();
    }

    /// Takes in policies that were planned anew, with all that came and went meanwhile: look-ups find the same, sooner. `None` when planning failed; that
    /// and what is no longer of use is left, to be planned again.
    pub fn adopt(&mut self, revised: Option<Revised>, now: Moment) {
        let moved = self.revising.end();
        if let (Some(revised), Some(moved)) = (revised, moved) {
            self.spare_policies.part(&mut self.next.spd).adopt(revised, &moved);
            // What was published before has the old plan, and is no help with the new one.
            self.spare_policies.let_go();
            self.renew();
        }
        self.revise_soon(now);
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
            self.renew();
        }
    }

    /// Tells workers what has become of the host.
    pub fn set_host(&mut self, host: Host) {
        if self.next.host.as_deref() != Some(&host) {
            self.next.host = Some(Arc::new(host));
            self.renew();
        }
    }

    fn insert_sa(&mut self, sa: &Arc<Sa>) {
        if sa.next_iv_prefix().bits().is_none() {
            self.iv_prefixes.give(sa);
        }
        self.attendance.add_sa(sa);
        if self.attendance.is_owner() {
            self.hold_numbers(sa);
        }
        self.share_iv_prefixes(sa);
        self.spare_states.part(&mut self.next.sad).insert(sa);
        self.spare_states.note(sa);
        self.ages.push(sa);
        self.next.note_state(sa.id().spi);
        self.open_soon(sa);
    }

    fn replace_sa(&mut self, old: &Arc<Sa>, new: &Arc<Sa>) {
        let held = self.spare_states.part(&mut self.next.sad).replace(old, new);
        held.iter().chain([new]).for_each(|sa| self.spare_states.note(sa));
        self.leaving_states.begin();
        self.ages.replace(new);
        self.next.note_state(new.id().spi);
    }

    fn remove_sa(&mut self, sa: &Arc<Sa>) {
        self.leave_device(sa);
        self.let_go_of_sa(sa);
    }

    /// A state that is on no device any more goes.
    fn let_go_of_sa(&mut self, sa: &Arc<Sa>) {
        let held = self.spare_states.part(&mut self.next.sad).remove(sa);
        held.iter().for_each(|held| self.spare_states.note(held));
        self.leaving_states.begin();
        self.ages.remove(sa);
        self.next.note_state(sa.id().spi);
        self.attendance.remove_sa(sa);
    }

    fn let_go_soon(&mut self, now: Moment) {
        let leaving = [&mut self.leaving_states, &mut self.leaving_policies];
        if leaving.map(Leaving::claim_timer).contains(&true) {
            self.timers.wake_gone(now.plus(LINGER));
        }
    }

    /// Lets go of states that are gone, and of copies that have too many policies that are; of those that a worker has still, next time.
    fn let_go(&mut self, now: Moment) {
        self.let_go_of_states();
        self.let_go_of_policies(now);
        self.timers.let_go(self.next.sad.len() + self.next.spd.len());
    }

    fn let_go_of_policies(&mut self, now: Moment) {
        if self.leaving_policies == Leaving::Nothing {
            return;
        }
        self.leaving_policies = Leaving::Nothing;
        let given_up = self.spare_policies.give_up();
        self.freed |= given_up.freed;
        if given_up.is_read {
            self.leaving_policies = Leaving::Something;
            self.let_go_soon(now);
        }
    }

    fn let_go_of_states(&mut self) {
        self.leaving_states = Leaving::Nothing;
        self.spare_states.let_go();
    }

    fn remove_policy(&mut self, entry: &Arc<PolicyEntry>) {
        self.ledger.remove(entry);
        self.unseat(entry);
        self.take_out(entry);
    }

    /// Lets no look-up find a policy that the ledger no longer has.
    fn take_out(&mut self, entry: &Arc<PolicyEntry>) {
        self.settle_policies();
        self.spare_policies.part(&mut self.next.spd).remove(entry);
        self.spare_policies.note(entry);
        self.leaving_policies.begin();
        self.revising.went(entry);
        self.attendance.remove_policy(entry);
    }

    fn put_in(&mut self, entry: &Arc<PolicyEntry>) {
        self.coming.push(Arc::clone(entry));
        self.attendance.add_policy(entry);
    }

    /// Lets look-ups find the policies that came.
    fn settle_policies(&mut self) {
        if self.coming.is_empty() {
            return;
        }
        let spd = self.spare_policies.part(&mut self.next.spd);
        match &self.coming[..] {
            [alone] => {
                spd.insert_one(alone);
                self.spare_policies.came(alone);
            }
            all => spd.insert_all(all),
        }
        for entry in self.coming.drain(..) {
            self.spare_policies.note(&entry);
            self.revising.came(&entry);
        }
        self.coming.shrink_to(BURST);
    }

    fn revise_soon(&mut self, now: Moment) {
        if self.next.spd.is_outgrown() && self.revising.wish() {
            self.timers.wake_revision(now.plus(QUIET));
        }
    }

    /// Makes the next generation from what has changed.
    fn advance(&mut self) {
        self.next.generation += 1;
        self.renew();
    }

    /// Lets the next snapshot have what has changed.
    fn renew(&mut self) {
        self.newest.take();
        if matches!(self.attendance, Attendance::None) {
            self.publish();
        }
    }
}

#[cfg(test)]
mod tests;
