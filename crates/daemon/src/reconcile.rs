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

mod audit;
pub(crate) mod databases;
pub(crate) mod esp_errors;
pub(crate) mod fail_closed;
pub(crate) mod kernel_tables;
mod path_mtu;
pub(crate) mod rebuild;
mod refusal;
pub(crate) mod retry;
pub(crate) mod sequences;
pub(crate) mod tun_mtu;
mod undo;

use std::{io, net::IpAddr, sync::Arc, time::Duration};

use uxfrm_engine::{ChangeSet, Database, DefaultActions, Moment, PolicyChange, Spd};
use uxfrm_io::icmp_errors::IcmpErrors;
use uxfrm_netlink::NetlinkError;

use self::{
    audit::AuditLog,
    esp_errors::EspErrors,
    kernel_tables::{AnyFilter, KernelTables, Routes},
    path_mtu::PathMtuReports,
    refusal::{USED_UP, is_exhausted, no_disk},
    retry::Retry,
    sequences::SequenceStore,
    tun_mtu::TunMtu,
};
use crate::{
    clock::now, config::Mtu, firewall::host_bypass::HostBypass, ports::af_xdp::AfXdpDevice,
    routes::LastingMtus,
};

/// How often states are looked at for numbers that run short, what could not be done is tried
/// again, and workers are told of narrow paths: they find out again then for all flows how they
/// leave.
const REVIEW: Duration = Duration::from_millis(200);

/// So often it is looked whether the store is still in its place.
const LOOK_AT_STORE: Duration = Duration::from_secs(1);

/// The journal and the kernel tables, which follow the databases.
#[derive(Debug)]
pub(crate) struct Reconciler {
    store: SequenceStore,
    pub(crate) tables: KernelTables,
    /// Why numbers can't be written down, if they can't.
    fault: Option<io::Error>,
    review: Moment,
    look_at_store: Moment,
    /// What was asked for since the last commit.
    uncommitted: ChangeSet,
    /// What happened to packets that no policy is for at the last commit.
    committed_defaults: DefaultActions,
    pub(crate) path_mtus: PathMtuReports,
    /// What the network says of ESP that it does not deliver.
    pub(crate) esp_errors: EspErrors,
    pub(crate) tun_mtu: TunMtu,
    /// Whether states came that packets may be waiting for.
    news: bool,
    /// Policies of the last run for which none has come yet.
    held: usize,
    audit: AuditLog,
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
        let tables = KernelTables {
            routes,
            guard,
            host_bypass,
            af_xdp,
            defaults,
            are_routes_behind: false,
            retry: Retry::default(),
        };
        Self {
            store,
            tables,
            fault: None,
            review: now(),
            look_at_store: now(),
            uncommitted: ChangeSet::default(),
            committed_defaults: defaults,
            path_mtus: PathMtuReports::new(),
            esp_errors: EspErrors::default(),
            tun_mtu: TunMtu::new(Mtu::default()),
            news: false,
            held,
            audit: AuditLog::new(now()),
        }
    }

    /// The same with another setting of the TUN's MTU.
    pub(crate) fn with_tun_mtu(self, mtu: Mtu) -> Self {
        Self { tun_mtu: TunMtu::new(mtu), ..self }
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
        match self.tables.follow_changes(&changes, database) {
            Ok(()) => {
                if !changes.policies.is_empty() {
                    self.tables.retry.hurry(now());
                }
                let warning = changes.added.iter().any(|sa| is_exhausted(sa)).then_some(USED_UP);
                self.audit.tell(&changes, now());
                self.uncommitted.extend(changes);
                Ok(warning)
            }
            Err(fault) => {
                let refusal = fault.refusal(&changes);
                let undone = self.undo_whole(changes, database);
                self.tables.repair_tables(&fault, &undone, database);
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
        self.committed_defaults = self.tables.defaults;
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
        self.tables.finish_deferred();
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
        self.audit.tell(&changes, now());
        self.tables.follow_or_retry(&changes, database);
    }

    /// Restores held policies that a key manager deletes, unless another of the same name has come.
    /// Also deletes held policies that allow packets where the default is to block by now.
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
        if !changes.is_empty() {
            self.tun_mtu.outdate();
        }
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
                self.committed_defaults = self.tables.defaults;
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

    /// Whether states were added since the last time.
    pub(crate) fn take_new_states(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    /// Routers and peers say what paths take, and what does not arrive.
    pub(crate) fn read_icmp_errors(&mut self, errors: &IcmpErrors, database: &Database) {
        let Self { path_mtus, esp_errors, tables, .. } = self;
        let sad = &database.current().sad;
        errors.take(|error| match error.is_too_big() {
            true => path_mtus.note_told(&error, tables, sad),
            false => esp_errors.note(sad, &error, now()),
        });
    }

    /// Reserves what runs short, tries again what failed, and looks at paths, now and then.
    pub(crate) fn review(&mut self, database: &mut Database) {
        if now() < self.review {
            self.renew_now(database);
            return;
        }
        let snapshot = database.snapshot();
        self.audit.summarise(now());
        self.store.settle_due(now());
        self.maintain_store();
        self.renew(database);
        self.path_mtus.remeasure(&mut *self.tables.routes);
        self.tables.publish_host(database);
        self.follow_tun_mtu(database);
        self.tables.review(&snapshot.spd);
        self.review = now().plus(REVIEW);
    }

    /// The host's own addresses.
    pub(crate) fn own(&self) -> &[IpAddr] {
        self.tables.routes.own()
    }

    /// What the network takes towards peers, as far as that lasts.
    pub(crate) fn lasting_mtus(&self) -> LastingMtus {
        self.tables.routes.lasting_mtus()
    }

    /// What states receive runs short before the time of a review.
    fn renew_now(&mut self, database: &mut Database) {
        if self.store.is_urgent() && self.fault.is_none() {
            self.renew(database);
        }
    }

    /// Has the TUN's MTU follow states and paths.
    pub(crate) fn follow_tun_mtu(&mut self, database: &Database) {
        self.tun_mtu.follow(database.current(), &mut *self.tables.routes, now());
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
