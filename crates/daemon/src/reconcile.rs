//! What has to be done about each change of the databases before workers see it, and before whoever
//! asked for it is told: sequence numbers written down, routes and guard made to follow the
//! policies.
//!
//! ```text
//!   request ─► databases ─► attend: routes, guard ─► … ─► commit ─► answers ─► finish_deferred
//!                              │ fails                      once for all requests of a round:
//!                              └─► undone, refused          journal to the disk, numbers, workers
//! ```
//!
//! So a policy is in force when its answer is out, a new state never meets an IV of an earlier life
//! of its key, and a state is seen by workers only with numbers to send with. A program's request
//! that the kernel does not take (too many routes, no memory) is refused in its words and ends
//! nothing, also where something is to go: what stays in the kernel stays in the databases. What
//! nobody asked for, as policies that go by their limits, is not undone, and tried again until the
//! kernel follows.

pub(crate) mod databases;
pub(crate) mod fail_closed;
mod kernel_tables;
pub(crate) mod rebuild;
pub(crate) mod retry;
pub(crate) mod sequences;

use std::{collections::BTreeSet, io, net::IpAddr, sync::Arc, time::Duration};

use uxfrm_engine::{
    ChangeSet, Database, DefaultActions, Direction, DropCounts, Error, HostView, Moment,
    PolicyChange, Sa, SaId, SaProtocol, Sad, Spd, Spi, Transaction, UpdatedSa,
};
use uxfrm_io::{
    icmp_errors::{PacketTooBig, PathMtuErrors},
    rtnetlink::{MonitorResult, RtnlMonitor},
};
use uxfrm_netlink::NetlinkError;

use self::{retry::Retry, sequences::SequenceStore};
use crate::{
    clock::now, firewall::host_bypass::HostBypass, ports::af_xdp::AfXdpDevice, routes::DivertMode,
};
#[cfg(test)]
pub(crate) use kernel_tables::FirewallTable;
pub(crate) use kernel_tables::{AnyFilter, Routes};

/// How often states are looked at for numbers that run short, what could not be done is tried
/// again, and workers are told of narrow paths: they find out again then for all flows how they
/// leave.
const REVIEW: Duration = Duration::from_millis(200);

/// So often it is looked whether the store is still in its place.
const LOOK_AT_STORE: Duration = Duration::from_secs(1);

/// Paths that are asked about in one go.
const MOST_AT_ONCE: usize = 256;

/// The kernel hands an ICMP error out before it has heeded it itself.
const BELIEVED: Duration = Duration::from_millis(10);

/// How often it is looked whether narrow paths are so still.
const MEASURE: Duration = Duration::from_secs(10);

/// The journal and the kernel tables, which follow the databases.
#[derive(Debug)]
pub(crate) struct Reconciler {
    store: SequenceStore,
    guard: Option<AnyFilter>,
    host_bypass: Option<HostBypass>,
    af_xdp: Option<AfXdpDevice>,
    routes: Box<dyn Routes>,
    /// What happened to packets that no policy is for when the guard last followed.
    defaults: DefaultActions,
    /// Whether routes may be others than the policies want.
    are_routes_behind: bool,
    /// When routes and guard are made to follow anew.
    retry: Retry,
    /// Why numbers can't be written down, if they can't.
    fault: Option<io::Error>,
    review: Moment,
    measure: Moment,
    look_at_store: Moment,
    /// What was asked for since the last commit.
    uncommitted: ChangeSet,
    /// What happened to packets that no policy is for at the last commit.
    committed_defaults: DefaultActions,
    /// Where packets were too long and since when, as far as nobody was asked about it.
    narrow: BTreeSet<IpAddr>,
    narrow_since: Moment,
    /// Whether states came that packets may be waiting for.
    news: bool,
    /// Policies of the last run for which none has come yet.
    held: usize,
}

/// The kind of client that asks for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requester {
    /// Whoever runs the gateway, by a program or a file.
    Operator,
    /// An IKE daemon: it has been told that its states are gone, and deletes what it takes to be
    /// there still.
    KeyManager,
}

/// Which changes are kept if the next write to the disk fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DurableChanges {
    /// All of it.
    All,
    /// What was done before something that waits for the disk.
    Some,
}

/// The kernel refused what a policy needs.
#[derive(Debug, thiserror::Error)]
enum KernelRefusal {
    #[error(transparent)]
    Route(#[from] uxfrm_io::rtnetlink::Error),
    #[error(transparent)]
    Guard(#[from] uxfrm_io::nftables::Error),
    #[error("the host's stack is kept from packets to its new addresses: {0:#}")]
    HostBypass(anyhow::Error),
    #[error("AF_XDP does not follow the host's addresses: {0}")]
    AfXdpDevice(io::Error),
}

impl KernelRefusal {
    fn errno(&self) -> i32 {
        match self {
            Self::Route(error) => error.errno(),
            Self::Guard(error) => error.errno(),
            Self::HostBypass(_) => nix::libc::EIO,
            Self::AfXdpDevice(error) => error.raw_os_error().unwrap_or(nix::libc::EIO),
        }
    }

    /// What a client hears whose changes these were.
    fn refusal(&self, changes: &ChangeSet) -> NetlinkError {
        let is_new = |change: &PolicyChange| matches!(change, PolicyChange::Added(_));
        let what = if changes.defaults || changes.policies.iter().any(is_new) {
            "does not take what the policy needs"
        } else {
            "does not let go of what the policy needed"
        };
        let text = format!("The kernel {what}: {self}");
        NetlinkError { errno: self.errno(), text: Some(text.into()), offset: None }
    }
}

impl Reconciler {
    /// Routes and guard stand as the databases want it, and nothing is waiting to be attended to.
    pub(crate) fn new(
        store: SequenceStore,
        guard: Option<AnyFilter>,
        host_bypass: Option<HostBypass>,
        af_xdp: Option<AfXdpDevice>,
        routes: Box<dyn Routes>,
        spd: &Spd,
    ) -> Self {
        let defaults = spd.defaults();
        let held = spd.iter().filter(|entry| entry.is_held()).count();
        Self {
            store,
            guard,
            host_bypass,
            af_xdp,
            routes,
            defaults,
            are_routes_behind: false,
            retry: Retry::default(),
            fault: None,
            review: now(),
            measure: now(),
            look_at_store: now(),
            uncommitted: ChangeSet::default(),
            committed_defaults: defaults,
            narrow: BTreeSet::new(),
            narrow_since: now(),
            news: false,
            held,
        }
    }

    /// Does what the changes since the last time need, which somebody asked for; states and workers
    /// wait for [`Reconciler::commit`].
    ///
    /// # Errors
    /// The kernel's, or the disk's, about something that was added; all changes are undone then.
    pub(crate) fn attend(
        &mut self,
        database: &mut Database,
        requester: Requester,
    ) -> Result<Option<&'static str>, NetlinkError> {
        let mut changes = self.take_changes(database);
        if self.held > 0 || requester == Requester::KeyManager {
            self.retain_policies(&mut changes, database, requester);
        }
        if changes.is_empty() {
            return Ok(None);
        }
        if let Err(refusal) = self.check_journal(&changes) {
            self.undo_whole(changes, database);
            return Err(refusal);
        }
        match self.follow_changes(&changes, database) {
            Ok(()) => {
                if !changes.policies.is_empty() {
                    self.retry.hurry(now());
                }
                let warning = changes.added.iter().any(|sa| is_exhausted(sa)).then_some(USED_UP);
                self.uncommitted.extend(changes);
                Ok(warning)
            }
            Err(fault) => {
                let refusal = fault.refusal(&changes);
                let undone = self.undo_whole(changes, database);
                self.repair_tables(&fault, &undone, database);
                Err(refusal)
            }
        }
    }

    /// What was done before anything waits for the disk stands: its client is not told otherwise
    /// when the disk fails. To be called before each of a client's datagrams, whose requests stand
    /// or fall together.
    pub(crate) fn let_stand(&mut self) -> DurableChanges {
        if self.waits_for_disk() {
            return DurableChanges::Some;
        }
        self.uncommitted = ChangeSet::default();
        self.committed_defaults = self.defaults;
        DurableChanges::All
    }

    /// Makes all changes since the last commit lasting and seen, as one. What they were.
    ///
    /// # Errors
    /// The kernel's or the disk's: all is undone then.
    pub(crate) fn make_together(
        &mut self,
        database: &mut Database,
    ) -> Result<ChangeSet, NetlinkError> {
        self.let_stand();
        self.attend(database, Requester::Operator)?;
        let changes = self.uncommitted.clone();
        self.commit(database)?;
        self.finish_deferred();
        Ok(changes)
    }

    /// Undoes changes that nobody has attended to yet.
    pub(crate) fn take_back(&mut self, database: &mut Database) {
        let changes = self.take_changes(database);
        self.undo_whole(changes, database);
    }

    /// The same for what happened by itself: nothing is undone, and what the kernel does not take
    /// is tried again.
    pub(crate) fn apply_pending(&mut self, database: &mut Database) {
        let changes = self.take_changes(database);
        let routed = self.routes_follow(&changes, database);
        self.are_routes_behind |= routed.is_err();
        let guarded = self.guard_follows(&changes, database);
        if let (Err(_), Some(guard)) = (&guarded, &mut self.guard) {
            guard.mark_out_of_sync();
        }
        if routed.is_err() || guarded.is_err() {
            self.retry.owe(now());
        }
    }

    /// What a key manager deletes is held still where nothing has come for it; what passed is not,
    /// where all else is refused by now.
    fn retain_policies(
        &mut self,
        changes: &mut ChangeSet,
        database: &mut Database,
        requester: Requester,
    ) {
        let let_go = |change: &PolicyChange| match change {
            PolicyChange::Removed(entry) if entry.is_held() => Some(Arc::clone(entry)),
            PolicyChange::Removed(_) | PolicyChange::Added(_) => None,
        };
        let kept: Vec<_> = match requester {
            Requester::KeyManager => changes.policies.iter().filter_map(let_go).collect(),
            Requester::Operator => Vec::new(),
        };
        let spd = &database.current().spd;
        let pointless: Vec<_> = if changes.defaults {
            let all = spd.iter().filter(|entry| fail_closed::is_pointless(entry, spd.defaults()));
            all.map(|entry| entry.key()).collect()
        } else {
            Vec::new()
        };
        if kept.is_empty() && pointless.is_empty() {
            return;
        }
        database.apply(now(), |change| {
            for entry in &kept {
                // Where another of its name has come it is not to come back.
                let _replaced = change.restore_policy(entry);
            }
            for key in &pointless {
                let _is_there = change.delete_policy(key);
            }
        });
        changes.extend(self.take_changes(database));
    }

    fn take_changes(&mut self, database: &mut Database) -> ChangeSet {
        let changes = database.take_changes();
        self.count_held(&changes.policies);
        changes.removed.iter().for_each(|sa| self.store.dismiss(sa, now()));
        changes.added.iter().for_each(|sa| self.store.admit(sa, now()));
        self.news |= !changes.added.is_empty();
        changes
    }

    fn count_held(&mut self, changes: &[PolicyChange]) {
        for change in changes {
            match change {
                PolicyChange::Added(entry) => self.held += usize::from(entry.is_held()),
                PolicyChange::Removed(entry) => {
                    self.held = self.held.saturating_sub(usize::from(entry.is_held()));
                }
            }
        }
    }

    /// Follows links and addresses, if they have changed.
    pub(crate) fn refresh_host(&mut self, network: &RtnlMonitor, database: &mut Database) {
        let news = network.take_news(self.routes.tun());
        if news == MonitorResult::Nothing {
            return;
        }
        if let Err(error) = self.routes.refresh_host(news, &database.snapshot().spd) {
            tracing::warn!(%error, "routes don't follow the host's addresses");
            self.schedule_route_retry();
        }
        if self.addresses_follow().is_err() {
            self.retry.owe(now());
        }
        self.publish_host(database);
    }

    /// Tells the host's addresses to who is to leave alone what is to them.
    fn addresses_follow(&mut self) -> Result<(), KernelRefusal> {
        let own = self.routes.own();
        if let Some(host_bypass) = &mut self.host_bypass {
            host_bypass.follow(own).map_err(KernelRefusal::HostBypass)?;
        }
        if let Some(af_xdp) = &self.af_xdp {
            af_xdp.follow(own).map_err(KernelRefusal::AfXdpDevice)?;
        }
        Ok(())
    }

    /// Whether [`Reconciler::commit`] will write something down.
    pub(crate) fn waits_for_disk(&self) -> bool {
        self.store.has_news()
    }

    /// Brings sequence numbers to the disk, hands them out, and lets workers see the databases.
    ///
    /// # Errors
    /// The disk's, where states came since the last time: all that was asked for since then is
    /// undone.
    pub(crate) fn commit(&mut self, database: &mut Database) -> Result<(), NetlinkError> {
        let changes = std::mem::take(&mut self.uncommitted);
        let committed = self.store.commit();
        let refusal = match (&committed, changes.added.first()) {
            (Err(error), Some(first)) => Some(no_disk(error, first)),
            (Err(_), None) | (Ok(()), _) => None,
        };
        self.note(committed);
        match refusal {
            Some(refusal) => {
                self.undo_all(changes, database);
                Self::publish(database);
                Err(refusal)
            }
            None => {
                self.committed_defaults = self.defaults;
                Self::publish(database);
                Ok(())
            }
        }
    }

    fn publish(database: &mut Database) {
        // Before packets find the state: its device sends no number that it does not know to be
        // reserved.
        database.push_sequence_limits();
        database.publish();
    }

    /// Undoes what several requests did, which routes and guard had followed.
    fn undo_all(&mut self, changes: ChangeSet, database: &mut Database) {
        self.defaults = self.committed_defaults;
        let undone = self.undo_whole(changes, database);
        if self.follow_changes(&undone, database).is_err() {
            self.schedule_route_retry();
        }
    }

    /// Puts the databases back, states that went or were updated included; some changes came to
    /// nothing in between. What that changed.
    fn undo_whole(&mut self, mut changes: ChangeSet, database: &mut Database) -> ChangeSet {
        let has = |states: &[Arc<Sa>], sa: &Sa| states.iter().any(|other| other.is_same(sa));
        let gone = std::mem::take(&mut changes.removed);
        let came = std::mem::take(&mut changes.added);
        let updated = std::mem::take(&mut changes.updated);
        // As they were before they were updated.
        let as_before = |sa: &Arc<Sa>| {
            let first = updated.iter().find(|updated| updated.before.is_same(sa));
            Arc::clone(first.map_or(sa, |updated| &updated.before))
        };
        let returns = gone.iter().filter(|sa| !has(&came, sa)).map(as_before);
        let returns: Vec<_> = returns.collect();
        changes.added = came.into_iter().filter(|sa| !has(&gone, sa)).collect();
        let mut undone = self.undo(changes, database);
        returns.iter().for_each(|sa| self.store.recall(sa));
        database.apply(now(), |change| {
            for UpdatedSa { before, .. } in updated.iter().rev() {
                // One that went as well comes back as it was then.
                let _gone = change.restore_words(before);
            }
            for sa in returns.iter().rev() {
                match change.restore_sa(sa) {
                    Ok(back) if back.is_same(sa) => {}
                    Ok(back) => self.store.watch(&back, now()),
                    Err(error) => {
                        let (destination, spi) = (sa.id().destination, sa.id().spi);
                        tracing::error!(%error, %destination, %spi, "a state can't be put back");
                    }
                }
            }
        });
        let restored = database.take_changes();
        self.count_held(&restored.policies);
        undone.extend(restored);
        undone
    }

    /// Does what could wait until the answers were out.
    pub(crate) fn finish_deferred(&mut self) {
        if self.routes.finish_deferred().is_err() {
            self.schedule_route_retry();
        }
    }

    /// Whether states were added since the last time.
    pub(crate) fn take_route_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    /// A packet to there was longer than the network takes: workers are told soon.
    pub(crate) fn note_path_mtu(&mut self, to: IpAddr) {
        if self.narrow.is_empty() {
            self.narrow_since = now();
        }
        if self.narrow.len() < MOST_AT_ONCE {
            self.narrow.insert(to);
        }
    }

    /// Routers say what paths take. Anybody can say so of anybody: it is worth asking only of
    /// tunnels' ends and of where a state leads whose packet is quoted, as templates of transport
    /// mode name no end.
    pub(crate) fn read_path_errors(&mut self, paths: &PathMtuErrors, database: &Database) {
        let sad = &database.current().sad;
        paths.take(|packet| {
            if self.routes.is_peer(packet.to) || is_sent_by_state(sad, packet) {
                self.note_path_mtu(packet.to);
            }
        });
    }

    /// Tells workers of paths that have become narrow, and now and then of those that are so no
    /// more.
    fn remeasure_path_mtus(&mut self, database: &mut Database) {
        if now().since(self.narrow_since) >= BELIEVED {
            let narrow = std::mem::take(&mut self.narrow);
            narrow.into_iter().for_each(|peer| self.routes.note_path_mtu(peer));
        }
        if now() >= self.measure {
            self.measure = now().plus(MEASURE);
            self.routes.remeasure_path_mtu();
        }
        self.publish_host(database);
    }

    /// Reserves what runs short, tries again what failed, and looks at paths, now and then.
    pub(crate) fn review(&mut self, database: &mut Database) {
        if now() < self.review {
            self.renew_now(database);
            return;
        }
        let snapshot = database.snapshot();
        self.store.settle_due(now());
        self.maintain_store();
        self.renew(database);
        self.remeasure_path_mtus(database);
        if self.retry.is_due(now()) {
            self.rebuild_tables(&snapshot.spd);
        }
        if self.routes.review_plan(&snapshot.spd).is_err() {
            self.schedule_route_retry();
        }
        self.routes.check_rp_filters();
        self.review = now().plus(REVIEW);
    }

    /// What states receive runs short before the time of a review.
    fn renew_now(&mut self, database: &mut Database) {
        if self.store.is_urgent() && self.fault.is_none() {
            self.renew(database);
        }
    }

    fn renew(&mut self, database: &mut Database) {
        let result = self.store.renew(now());
        self.note(result);
        // Devices wait for what was reserved, and stop at what was drawn back before the journal
        // says so.
        database.push_sequence_limits();
    }

    /// Notices now and then that the store was removed.
    fn maintain_store(&mut self) {
        if now() >= self.look_at_store {
            self.look_at_store = now().plus(LOOK_AT_STORE);
            let result = self.store.check_place();
            self.note(result);
        }
    }

    /// Reserves so many numbers that none run short while another process takes over.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn reserve_for_long(&mut self) -> io::Result<()> {
        self.store.reserve_for_long()
    }

    /// Another process was the gateway until now: what its states received is this one's to
    /// remember.
    pub(crate) fn replace_witness(&mut self) {
        self.store.replace_witness();
    }

    #[cfg(test)]
    pub(crate) const fn has_witness(&self) -> bool {
        self.store.has_witness()
    }

    /// The highest rate at which a state receives, in numbers a second.
    pub(crate) const fn fastest(&self) -> u64 {
        self.store.fastest()
    }

    /// Somebody has taken tables of the packet filter away. Where the guard was among them it is
    /// back when this returns, and what packets are led by.
    pub(crate) fn restore_firewall(&mut self, spd: &Spd) {
        let Some(guard) = &mut self.guard else { return };
        if guard.is_there().unwrap_or(true) {
            return;
        }
        tracing::warn!(
            "somebody has taken the guard away, as `nft flush ruleset` does before Linux 6.9: it is put up again"
        );
        guard.mark_out_of_sync();
        self.retry.owe(now());
        self.rebuild_tables(spd);
    }

    /// Another process may have changed routes and guard: both are made anew soon.
    pub(crate) fn mark_unverified(&mut self) {
        if let Some(guard) = &mut self.guard {
            guard.mark_out_of_sync();
        }
        self.host_bypass.iter_mut().for_each(HostBypass::mark_unverified);
        self.schedule_route_retry();
    }

    /// The machine goes on from a snapshot, perhaps as one of several that have the same keys,
    /// numbers and IV prefixes. No number that was reserved is used any more; all states go on with
    /// prefixes of their own, once these are on the disk.
    pub(crate) fn resume_from_vm_snapshot(&mut self, database: &mut Database) {
        let lost = database.apply(now(), |change| change.begin_sas_anew());
        let ChangeSet { added, removed, .. } = database.take_changes();
        self.store.begin_anew(&removed, &added, now());
        let committed = self.store.commit();
        self.note(committed);
        self.news |= !added.is_empty();
        Self::publish(database);
        let states = added.len();
        tracing::warn!(
            states,
            lost,
            "the machine goes on from a snapshot (vmgenid): all states have new IV prefixes; what was received after it may be accepted again; give static states new keys"
        );
    }

    /// What whoever runs the gateway is to know of the store of sequence numbers and of what is
    /// held, a line each.
    pub(crate) fn notices(&self, database: &Database) -> String {
        let mut notices = self.store.notices(self.fault.as_ref());
        if self.held > 0 {
            notices += &fail_closed::notice(database);
        }
        notices
    }

    /// Whether anything of the last run waits for somebody who decides anew.
    pub(crate) const fn holds(&self) -> bool {
        self.held > 0
    }

    /// Adds what the guard dropped.
    pub(crate) fn add_to(&mut self, counts: &mut DropCounts) {
        if let Some(guard) = &mut self.guard {
            guard.add_to(counts);
        }
    }

    /// A guard that stands as the databases want it.
    pub(crate) fn set_guard(&mut self, guard: Option<AnyFilter>) {
        self.guard = guard;
    }

    /// Brings the packets of these policies to the gateway. What workers are to know of the host.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn bring_up_routes(&mut self, spd: &Spd) -> anyhow::Result<HostView> {
        let by = self.divert_mode();
        self.routes.bring_up(by, spd)
    }

    /// Removes the routes: nothing is brought to the gateway any more.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn close_routes(&mut self) -> anyhow::Result<()> {
        self.routes.close()
    }

    /// Takes the guard down.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn close_guard(&mut self) -> anyhow::Result<()> {
        self.guard.take().map_or(Ok(()), |guard| guard.close())
    }

    /// Lets the host's stack have the packets of inline mode.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn take_down_host_bypass(&mut self) -> anyhow::Result<()> {
        self.host_bypass.take().map_or(Ok(()), HostBypass::take_down)
    }

    /// Writes down the very numbers that were used, by devices as well, now that all are at rest.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn close_store(&mut self, database: &mut Database) -> io::Result<()> {
        database.update_all_counts();
        self.store.close(&database.snapshot().sad)
    }

    /// Adding a state whose numbers can't be kept is refused.
    fn check_journal(&self, changes: &ChangeSet) -> Result<(), NetlinkError> {
        match &self.fault {
            Some(error) if !changes.added.is_empty() => Err(NetlinkError {
                errno: error.raw_os_error().unwrap_or(nix::libc::EIO),
                text: Some(format!("Sequence numbers can't be written down: {error}").into()),
                offset: None,
            }),
            _ => Ok(()),
        }
    }

    fn follow_changes(
        &mut self,
        changes: &ChangeSet,
        database: &mut Database,
    ) -> Result<(), KernelRefusal> {
        self.routes_follow(changes, database)?;
        self.guard_follows(changes, database)
    }

    fn routes_follow(
        &mut self,
        changes: &ChangeSet,
        database: &mut Database,
    ) -> Result<(), KernelRefusal> {
        if !changes.policies.is_empty() {
            self.routes.change(&changes.policies)?;
            self.publish_host(database);
        }
        Ok(())
    }

    fn guard_follows(
        &mut self,
        changes: &ChangeSet,
        database: &Database,
    ) -> Result<(), KernelRefusal> {
        // No snapshot: the next change would have to copy what it touches, within a round too.
        let spd = &database.current().spd;
        if self.guard.as_ref().is_some_and(|guard| guard.may_skip_outgoing(&changes.policies)) {
            self.routes.turn(DivertMode::Destinations)?;
        }
        let guarded = match &mut self.guard {
            None => Ok(()),
            Some(guard) if changes.defaults => guard.follow(spd),
            Some(guard) => guard.change(&changes.policies, spd),
        };
        let turned = self.routes.turn(self.divert_mode());
        guarded?;
        turned?;
        self.routes.plan_now(spd)?;
        self.defaults = spd.defaults();
        Ok(())
    }

    /// By what packets find their way into the TUN.
    pub(crate) fn divert_mode(&self) -> DivertMode {
        self.guard.as_ref().map_or(DivertMode::Destinations, |guard| guard.divert_mode())
    }

    fn publish_host(&mut self, database: &mut Database) {
        if let Some(host) = self.routes.take_route_news() {
            database.set_host(host);
        }
    }

    fn schedule_route_retry(&mut self) {
        self.are_routes_behind = true;
        self.retry.owe(now());
    }

    /// Makes routes and guard anew where they are not sure to be right. That they can't be is said
    /// once, and once when they are.
    fn rebuild_tables(&mut self, spd: &Spd) {
        let guard = self.guard.as_mut().filter(|guard| guard.is_out_of_sync());
        let guarded = guard.map_or(Ok(()), |guard| guard.follow(spd));
        let turned = self.routes.turn(self.divert_mode());
        let routed = if self.are_routes_behind { self.routes.follow(spd) } else { Ok(()) };
        let routed = routed.and(turned);
        self.are_routes_behind = routed.is_err();
        let told = self.addresses_follow();
        let faults = [
            guarded.err().map(KernelRefusal::from),
            routed.err().map(KernelRefusal::from),
            told.err(),
        ];
        match faults.into_iter().flatten().next() {
            None => {
                if self.retry.succeed() {
                    tracing::info!("routes and guard follow the policies again");
                }
            }
            Some(fault) => {
                if self.retry.fail(fault.errno(), now()) {
                    tracing::error!(error = %fault, "routes or guard don't follow the policies");
                }
            }
        }
    }

    /// Puts the databases back, the latest change first; what that changed.
    fn undo(&mut self, changes: ChangeSet, database: &mut Database) -> ChangeSet {
        database.apply(now(), |change| {
            for policy in changes.policies.iter().rev() {
                if let Err(error) = put_back(change, policy) {
                    tracing::error!(%error, "a policy can't be put back");
                }
            }
            for sa in &changes.added {
                if let Err(error) = change.delete_sa(sa.id(), sa.config().mark) {
                    tracing::error!(%error, "a state can't be taken back");
                }
            }
            change.set_defaults(self.defaults);
        });
        let undone = database.take_changes();
        self.count_held(&undone.policies);
        undone.removed.iter().for_each(|sa| self.store.withdraw(sa));
        if undone.policies.len() != changes.policies.len()
            && let Some(guard) = &mut self.guard
        {
            guard.mark_out_of_sync();
        }
        undone
    }

    /// Has routes and guard follow what was undone, as far as they had followed what was done.
    fn repair_tables(
        &mut self,
        fault: &KernelRefusal,
        undone: &ChangeSet,
        database: &mut Database,
    ) {
        match fault {
            KernelRefusal::Route(_) => self.are_routes_behind = true,
            KernelRefusal::Guard(_)
            | KernelRefusal::HostBypass(_)
            | KernelRefusal::AfXdpDevice(_) => {
                let routed = self.routes_follow(undone, database);
                self.are_routes_behind |= routed.is_err();
            }
        }
        if self.are_routes_behind || self.guard.as_ref().is_some_and(|guard| guard.is_out_of_sync())
        {
            self.retry.owe(now());
        }
    }

    /// Says once when numbers can't be written down, and once when they can again.
    fn note(&mut self, result: io::Result<()>) {
        match (result, &self.fault) {
            (Ok(()), Some(_)) => {
                tracing::info!("sequence numbers are written down again");
                self.fault = None;
            }
            (Err(error), None) => {
                tracing::error!("{}", self.store.unwritten(&error));
                self.fault = Some(error);
            }
            (Ok(()), None) | (Err(_), Some(_)) => {}
        }
    }
}

/// What a client hears whose state can send nothing.
const USED_UP: &str =
    "This key has used all its sequence numbers: the state sends nothing. Give it a new key";

fn is_exhausted(sa: &Sa) -> bool {
    sa.config().direction != Some(Direction::In)
        && sa.sequence().last() >= sa.config().last_number()
}

/// What clients hear whose states can't be kept; of all requests that waited for the same write.
fn no_disk(error: &io::Error, first: &Sa) -> NetlinkError {
    let text = format!(
        "Sequence numbers can't be written down ({error}): nothing was done from the state with spi {:#x} on",
        first.id().spi.0
    );
    let errno = error.raw_os_error().unwrap_or(nix::libc::EIO);
    NetlinkError { errno, text: Some(text.into()), offset: None }
}

fn is_sent_by_state(sad: &Sad, PacketTooBig { to, spi }: PacketTooBig) -> bool {
    let id = |spi| SaId { destination: to, spi: Spi(spi), protocol: SaProtocol::Esp };
    spi.is_some_and(|spi| sad.with_id(id(spi)).next().is_some())
}

fn put_back(change: &mut Transaction<'_>, policy: &PolicyChange) -> Result<(), Error> {
    match policy {
        PolicyChange::Added(entry) => change.delete_policy(&entry.key()).map(drop),
        PolicyChange::Removed(entry) => change.restore_policy(entry).map(drop),
    }
}
