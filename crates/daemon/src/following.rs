//! What has to be done about each change of the databases before workers see it, and before whoever asked for it is told: sequence
//! numbers written down, routes and guard made to follow the policies.
//!
//! ```text
//!   request ─► databases ─► attend: routes, guard ─► … ─► commit: journal to the disk, numbers, workers ─► answers ─► catch up
//!                              │ fails                       once for all requests of a round
//!                              └─► undone, refused
//! ```
//!
//! So a policy is in force when its answer is out, a new state never meets an IV of an earlier life of its key, and a state is seen by
//! workers only with numbers to send with. A program's request that the kernel does not take (too many routes, no memory) is refused
//! in its words and ends nothing.

use std::{collections::BTreeSet, io, net::IpAddr, time::Duration};

use uxfrm_engine::{
    Change, Changes, Database, DropCounts, Error, Moment, PolicyChange, SaId, SaProtocol, Sad, Spd,
    Spi,
};
use uxfrm_io::{
    path_errors::{PathErrors, TooBig},
    rtnetlink::{Monitor, News},
};
use uxfrm_netlink::Refusal;

use crate::{
    express::Express, gateway::now, guard::Guard, host::HostRoutes, inline::KeepOut,
    reservation::Reservations,
};

/// How often states are looked at for numbers that run short, what could not be done is tried again, and workers are told of narrow paths: they find out
/// again then for all flows how they leave.
const REVIEW: Duration = Duration::from_millis(200);

/// Paths that are asked about in one go.
const MOST_AT_ONCE: usize = 256;

/// The kernel hands an ICMP error out before it has heeded it itself.
const BELIEVED: Duration = Duration::from_millis(10);

/// How often it is looked whether narrow paths are so still.
const MEASURE: Duration = Duration::from_secs(10);

/// Everything that follows the databases.
#[derive(Debug)]
pub(crate) struct Following {
    reservations: Reservations,
    guard: Option<Guard>,
    keep_out: Option<KeepOut>,
    express: Option<Express>,
    routes: HostRoutes,
    /// Whether routes and guard may be others than the policies want.
    is_behind: bool,
    /// Why numbers can't be written down, if they can't.
    fault: Option<io::Error>,
    review: Moment,
    measure: Moment,
    /// Where packets were too long and since when, as far as nobody was asked about it.
    narrow: BTreeSet<IpAddr>,
    narrow_since: Moment,
    /// Whether states came that packets may be waiting for.
    news: bool,
}

/// Why the kernel does not take what a policy needs.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error(transparent)]
    Route(#[from] uxfrm_io::rtnetlink::Error),
    #[error(transparent)]
    Guard(#[from] uxfrm_io::nftables::Error),
}

impl Fault {
    fn errno(&self) -> i32 {
        match self {
            Self::Route(error) => error.errno(),
            Self::Guard(error) => error.errno(),
        }
    }
}

impl Following {
    /// Routes and guard stand as the databases want it, and nothing is waiting to be attended to.
    pub(crate) fn new(
        reservations: Reservations,
        guard: Option<Guard>,
        keep_out: Option<KeepOut>,
        express: Option<Express>,
        routes: HostRoutes,
    ) -> Self {
        Self {
            reservations,
            guard,
            keep_out,
            express,
            routes,
            is_behind: false,
            fault: None,
            review: now(),
            measure: now(),
            narrow: BTreeSet::new(),
            narrow_since: now(),
            news: false,
        }
    }

    /// Does what the changes since the last time need; states and workers wait for [`Following::commit`].
    ///
    /// # Errors
    /// The kernel's, or the disk's, about something that was added; all changes are undone then.
    pub(crate) fn attend(&mut self, database: &mut Database) -> Result<(), Refusal> {
        let changes = database.take_changes();
        if changes.is_empty() {
            return Ok(());
        }
        changes.removed.iter().for_each(|sa| self.reservations.dismiss(sa, now()));
        changes.added.iter().for_each(|sa| self.reservations.admit(sa));
        self.news |= !changes.added.is_empty();
        let result = self.check_journal(&changes).and_then(|()| self.follow(&changes, database));
        if result.is_err() {
            self.undo(changes, database);
        }
        result
    }

    /// Follows links and addresses, if they have changed.
    pub(crate) fn look_around(&mut self, network: &Monitor, database: &mut Database) {
        let news = network.take_news(self.routes.tun());
        if news == News::Nothing {
            return;
        }
        if let Err(error) = self.routes.look_around(news, &database.snapshot().spd) {
            tracing::warn!(%error, "routes don't follow the host's addresses");
            self.is_behind = true;
        }
        if let Some(keep_out) = &mut self.keep_out
            && let Err(error) = keep_out.follow(self.routes.own())
        {
            tracing::error!(%error, "the host's stack is kept from packets to its new addresses");
        }
        if let Some(express) = &mut self.express
            && let Err(error) = express.follow(self.routes.own())
        {
            tracing::warn!(%error, "AF_XDP does not follow the host's addresses");
        }
        self.tell_of_host(database);
    }

    /// Whether [`Following::commit`] will write something down.
    pub(crate) fn waits_for_disk(&self) -> bool {
        self.reservations.has_news()
    }

    /// Brings sequence numbers to the disk, hands them out, and lets workers see the databases.
    pub(crate) fn commit(&mut self, database: &mut Database) {
        let result = self.reservations.commit();
        self.note(result);
        // Before packets find the state: its device sends no number that it does not know to be reserved.
        database.share_numbers();
        database.publish();
    }

    /// Does what could wait until the answers were out.
    pub(crate) fn catch_up(&mut self) {
        if let Err(error) = self.routes.catch_up() {
            tracing::error!(%error, "routes don't follow the policies");
            self.is_behind = true;
        }
    }

    /// Whether states were added since the last time.
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    /// A packet to there was longer than the network takes: workers are told soon.
    pub(crate) fn note_narrow_path(&mut self, to: IpAddr) {
        if self.narrow.is_empty() {
            self.narrow_since = now();
        }
        if self.narrow.len() < MOST_AT_ONCE {
            self.narrow.insert(to);
        }
    }

    /// Routers say what paths take. Anybody can say so of anybody: it is worth asking only of tunnels' ends and of where a state leads whose packet is
    /// quoted, as templates of transport mode name no end.
    pub(crate) fn hear_of_paths(&mut self, paths: &PathErrors, database: &Database) {
        let sad = &database.current().sad;
        paths.take(|packet| {
            if self.routes.is_peer(packet.to) || is_sent_by_state(sad, packet) {
                self.note_narrow_path(packet.to);
            }
        });
    }

    /// Tells workers of paths that have become narrow, and now and then of those that are so no more.
    fn measure_paths(&mut self, database: &mut Database) {
        if now().since(self.narrow_since) >= BELIEVED {
            let narrow = std::mem::take(&mut self.narrow);
            narrow.into_iter().for_each(|peer| self.routes.meet_narrow_path(peer));
        }
        if now() >= self.measure {
            self.measure = now().plus(MEASURE);
            self.routes.measure_again();
        }
        self.tell_of_host(database);
    }

    /// Reserves what runs short, tries again what failed, and looks at paths, now and then.
    pub(crate) fn review(&mut self, database: &mut Database) {
        if now() < self.review {
            return;
        }
        let snapshot = database.snapshot();
        self.reservations.settle_due(now());
        let result = self.reservations.renew();
        self.note(result);
        self.measure_paths(database);
        if self.is_behind {
            match self.follow_anew(&snapshot.spd) {
                Ok(()) => self.is_behind = false,
                Err(error) => tracing::error!(%error, "routes or guard don't follow the policies"),
            }
        }
        self.review = now().plus(REVIEW);
    }

    /// Adds what the guard dropped.
    pub(crate) fn add_to(&mut self, counts: &mut DropCounts) {
        if let Some(guard) = &mut self.guard {
            guard.add_to(counts);
        }
    }

    /// Removes the routes: nothing is brought to the gateway any more.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn close_routes(
        self,
    ) -> anyhow::Result<(Option<Guard>, Option<KeepOut>, Reservations)> {
        self.routes.close()?;
        Ok((self.guard, self.keep_out, self.reservations))
    }

    /// Adding a state whose numbers can't be kept is refused.
    fn check_journal(&self, changes: &Changes) -> Result<(), Refusal> {
        match &self.fault {
            Some(error) if !changes.added.is_empty() => Err(Refusal {
                errno: error.raw_os_error().unwrap_or(nix::libc::EIO),
                text: Some(format!("Sequence numbers can't be written down: {error}").into()),
                offset: None,
            }),
            _ => Ok(()),
        }
    }

    fn follow(&mut self, changes: &Changes, database: &mut Database) -> Result<(), Refusal> {
        let adds = changes.policies.iter().any(|change| matches!(change, PolicyChange::Added(_)));
        let result = self.follow_changes(changes, database);
        let Err(error) = result else { return Ok(()) };
        self.is_behind = true;
        if !adds && !changes.defaults {
            // What is left too many keeps packets from leaving plain or coming in plain.
            tracing::error!(%error, "routes or guard don't follow the policies");
            return Ok(());
        }
        let text = format!("The kernel does not take what the policy needs: {error}");
        Err(Refusal { errno: error.errno(), text: Some(text.into()), offset: None })
    }

    fn follow_changes(&mut self, changes: &Changes, database: &mut Database) -> Result<(), Fault> {
        if !changes.policies.is_empty() {
            self.routes.change(&changes.policies)?;
            self.tell_of_host(database);
        }
        let Some(guard) = &mut self.guard else { return Ok(()) };
        // No snapshot: the next change would have to copy what it touches, within a round too.
        let spd = &database.current().spd;
        if changes.defaults {
            guard.follow(spd)?;
        } else {
            guard.change(&changes.policies, spd)?;
        }
        Ok(())
    }

    fn tell_of_host(&mut self, database: &mut Database) {
        if let Some(host) = self.routes.take_news() {
            database.set_host(host);
        }
    }

    fn follow_anew(&mut self, spd: &Spd) -> Result<(), Fault> {
        let guarded = self.guard.as_mut().map_or(Ok(()), |guard| guard.follow(spd));
        self.routes.follow(spd)?;
        Ok(guarded?)
    }

    /// Puts the databases back, the latest change first. Defaults stay: packets without a policy meet them in the
    /// engine.
    fn undo(&mut self, changes: Changes, database: &mut Database) {
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
        });
        let undone = database.take_changes();
        undone.removed.iter().for_each(|sa| self.reservations.settle(sa));
        self.is_behind |= !undone.policies.is_empty();
    }

    /// Says once when numbers can't be written down, and once when they can again.
    fn note(&mut self, result: io::Result<()>) {
        match (result, &self.fault) {
            (Ok(()), Some(_)) => {
                tracing::info!("sequence numbers are written down again");
                self.fault = None;
            }
            (Err(error), None) => {
                tracing::error!(%error, "can't reserve sequence numbers: states will stop when theirs end");
                self.fault = Some(error);
            }
            (Ok(()), None) | (Err(_), Some(_)) => {}
        }
    }
}

fn is_sent_by_state(sad: &Sad, TooBig { to, spi }: TooBig) -> bool {
    let id = |spi| SaId { destination: to, spi: Spi(spi), protocol: SaProtocol::Esp };
    spi.is_some_and(|spi| sad.with_id(id(spi)).next().is_some())
}

fn put_back(change: &mut Change<'_>, policy: &PolicyChange) -> Result<(), Error> {
    match policy {
        PolicyChange::Added(entry) => change.delete_policy(&entry.key()).map(drop),
        PolicyChange::Removed(entry) => change.restore_policy(entry).map(drop),
    }
}
