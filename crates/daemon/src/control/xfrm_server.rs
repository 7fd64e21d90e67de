//! The netlink server behind the control socket, which carries requests out on the databases, and
//! its clients.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU32,
    ops::Range,
    time::Duration,
};

use uxfrm_engine::{ChangeSet, Database, Event, Mark, Moment, SaId, Snapshot};
use uxfrm_io::random;
use uxfrm_netlink as netlink;
use zeroize::Zeroizing;

use super::Dialect;
use crate::{
    clock::{epoch, now},
    protocol::{ClientId, DumpProgress, Identity, Outbox},
    reconcile::{DurableChanges, Reconciler, Requester},
};

/// So long after a start who comes is told of states that went with the last run. Who comes later
/// may never have known them.
const MISSED: Duration = Duration::from_secs(60);

/// States that ended with the last run, and the key managers that were told.
#[derive(Debug, Default)]
struct LostStates {
    states: Vec<(SaId, Mark)>,
    until: Moment,
    told: BTreeSet<ClientId>,
}

/// The netlink server and its clients.
#[derive(Debug)]
pub(crate) struct XfrmServer {
    server: netlink::Server,
    clients: BTreeMap<ClientId, Identity>,
    answers: netlink::Outbox,
    lost: LostStates,
    round: UncommittedRound,
}

/// Requests that wait for the disk, with their answers in the outbox.
#[derive(Debug, Default)]
struct UncommittedRound {
    requests: Vec<(ClientId, Zeroizing<Vec<u8>>)>,
    /// Where their answers and events are in the outbox.
    told: Vec<Range<usize>>,
}

impl XfrmServer {
    /// A server without clients, whose larval states live for so many seconds.
    ///
    /// # Errors
    /// The kernel's, when it has no random numbers.
    pub(crate) fn new(acquire_expires: u32) -> std::io::Result<Self> {
        let mut seed = [0; 8];
        random::fill(&mut seed)?;
        Ok(Self::seeded(u64::from_ne_bytes(seed), acquire_expires, cpus()))
    }

    /// The same with random SPIs from a seed, for so many processors.
    pub(crate) fn seeded(seed: u64, acquire_expires: u32, cpus: u32) -> Self {
        let settings = netlink::ServerSettings { epoch: epoch(), seed, acquire_expires, cpus };
        let server = netlink::Server::new(settings);
        let answers = netlink::Outbox::default();
        let (clients, lost) = (BTreeMap::new(), LostStates::default());
        Self { server, clients, answers, lost, round: UncommittedRound::default() }
    }

    /// States that were there when the last run ended: key managers that come back hear that they
    /// have expired, and negotiate new ones.
    pub(crate) fn miss(&mut self, lost: Vec<(SaId, Mark)>) {
        self.lost = LostStates { states: lost, until: now().plus(MISSED), told: BTreeSet::new() };
    }

    /// Once for each client that listens for expiries.
    fn report_lost_states(&mut self, client: ClientId, groups: netlink::Groups) {
        if now() >= self.lost.until {
            self.lost = LostStates::default();
        }
        let is_meant = !self.lost.states.is_empty() && groups.contains(netlink::Groups::EXPIRE);
        if is_meant && self.lost.told.insert(client) {
            let name = self.name(client);
            tracing::info!(
                states = self.lost.states.len(),
                "a key manager is told of states that went with the last run"
            );
            self.server.notify_lost(name, &self.lost.states, &mut self.answers);
        }
    }

    /// The server, to portray what it has.
    pub(crate) fn server(&self) -> &netlink::Server {
        &self.server
    }

    /// Puts in what another process told of a state or policy.
    ///
    /// # Errors
    /// What this release does not take.
    pub(crate) fn restore(
        &mut self,
        message: &[u8],
        database: &mut Database,
    ) -> Result<netlink::RestoredItem, netlink::NetlinkError> {
        self.server.restore(message, database, now())
    }

    /// What a program wrote to `net.core.xfrm_acq_expires`: seconds. The kernel would have larval
    /// states for ever with 0, and refuses what is no number.
    pub(crate) fn take_acquire_expires(&mut self, text: &[u8]) {
        match acquire_expires(text) {
            Some(seconds) => {
                tracing::info!(seconds, "a program says how long acquires and reserved SPIs wait");
                self.server.set_acquire_expires(seconds.get());
            }
            None => tracing::warn!("a program wrote no number of seconds to xfrm_acq_expires"),
        }
    }

    /// A client is there, or has changed its groups or options.
    pub(crate) fn join(&mut self, client: ClientId, identity: Identity) {
        if let Some(before) = self.clients.get(&client)
            && before.port != identity.port
        {
            let name = self.name(client);
            self.server.leave(name);
        }
        self.clients.insert(client, identity);
        if identity.dialect != Dialect::Xfrm {
            return; // groups are those of states and policies
        }
        let name = self.name(client);
        let groups = netlink::Groups::from_bits_truncate(identity.groups);
        let options = netlink::SocketOptions::from_bits_truncate(identity.options);
        self.server.join(name, groups, options);
        self.report_lost_states(client, groups);
    }

    /// A client that joined is gone.
    pub(crate) fn leave(&mut self, client: ClientId) {
        let name = self.name(client);
        self.server.leave(name);
        self.clients.remove(&client);
        self.lost.told.remove(&client);
    }

    /// What a client said about itself.
    pub(crate) fn identity(&self, client: ClientId) -> Option<Identity> {
        self.clients.get(&client).copied()
    }

    /// Carries out what a client asks of states and policies.
    pub(crate) fn handle(
        &mut self,
        client: ClientId,
        datagram: &[u8],
        database: &mut Database,
        reconciler: &mut Reconciler,
        outbox: &mut Outbox,
    ) {
        let name = self.name(client);
        let requester =
            if reconciler.holds() { self.requester(client) } else { Requester::Operator };
        if reconciler.let_stand() == DurableChanges::All {
            self.server.commit();
        }
        let mut track_changes = |database: &mut Database| reconciler.attend(database, requester);
        let answers = &mut self.answers;
        self.server.set_epoch(epoch());
        self.server.handle_with_hook(name, datagram, database, now(), &mut track_changes, answers);
        let told = outbox.len();
        self.post(outbox);
        if reconciler.waits_for_disk() {
            self.round.requests.push((client, Zeroizing::new(datagram.to_vec())));
            self.round.told.push(told..outbox.len());
        }
    }

    /// Makes what the requests of a round did lasting; else undoes it, and answers them otherwise.
    pub(crate) fn commit(
        &mut self,
        database: &mut Database,
        reconciler: &mut Reconciler,
        outbox: &mut Outbox,
    ) {
        let round = std::mem::take(&mut self.round);
        match reconciler.commit(database) {
            Ok(()) => self.server.commit(),
            Err(refusal) => {
                self.server.roll_back();
                self.refuse(round, &refusal, outbox);
            }
        }
    }

    /// The next part of a client's dump.
    pub(crate) fn carry_on(
        &mut self,
        client: ClientId,
        database: &Database,
        outbox: &mut Outbox,
    ) -> DumpProgress {
        let name = self.name(client);
        if !self.server.is_dumping(name) {
            return DumpProgress::Done;
        }
        self.server.resume(name, database, &mut self.answers);
        self.post(outbox);
        DumpProgress::More
    }

    /// Tells listeners what a reload changed.
    pub(crate) fn tell_changes(&mut self, changes: &ChangeSet, outbox: &mut Outbox) {
        self.server.set_epoch(epoch());
        self.server.notify_changes(changes, &mut self.answers);
        self.post(outbox);
    }

    /// How many seconds acquires wait from now on.
    pub(crate) fn set_acquire_expires(&mut self, seconds: u32) {
        self.server.set_acquire_expires(seconds);
    }

    /// Tells listeners what the data path and time did; `before` is the snapshot from before that.
    pub(crate) fn announce(
        &mut self,
        events: &[Event],
        before: &Snapshot,
        database: &mut Database,
        outbox: &mut Outbox,
    ) {
        let now = now();
        self.server.set_epoch(epoch());
        for event in events {
            self.server.announce(event, before, database, now, &mut self.answers);
        }
        self.server.handle_timeout(now, &mut self.answers);
        self.post(outbox);
    }

    /// Tells listeners of aevents which states' counters have run ahead, devices' as well.
    pub(crate) fn tell_counters(&mut self, database: &mut Database, outbox: &mut Outbox) {
        if self.server.poll_counters().is_some_and(|at| at <= now()) {
            database.update_all_counts();
        }
        self.server.notify_counters(&database.snapshot(), now(), &mut self.answers);
        self.post(outbox);
    }

    /// Tells workers what became of acquires and who listens for them. To be called when all else
    /// is published.
    pub(crate) fn settle(&mut self, database: &mut Database) {
        self.server.publish_acquires(database);
        database.publish();
    }

    /// When [`XfrmServer::announce`] and [`XfrmServer::tell_counters`] must be called at the
    /// latest, with or without events.
    pub(crate) fn poll_timeout(&self) -> Option<Moment> {
        self.server.poll_timeout().into_iter().chain(self.server.poll_counters()).min()
    }

    /// Whether some connection of a client's process listens for acquires or expiries, as those of
    /// IKE daemons do.
    fn requester(&self, client: ClientId) -> Requester {
        let Some(asks) = self.clients.get(&client) else { return Requester::Operator };
        let told = netlink::Groups::ACQUIRE | netlink::Groups::EXPIRE;
        let listens = |other: &Identity| {
            other.dialect == Dialect::Xfrm
                && other.process == asks.process
                && netlink::Groups::from_bits_truncate(other.groups).contains(told)
        };
        if self.clients.values().any(listens) { Requester::KeyManager } else { Requester::Operator }
    }

    /// The server's name for a client.
    fn name(&self, client: ClientId) -> netlink::ClientId {
        let port = self.clients.get(&client).map_or(0, |identity| identity.port);
        netlink::ClientId { connection: client.0, port }
    }

    /// Nothing of a round became lasting: says so in place of all that was to be said.
    fn refuse(
        &mut self,
        round: UncommittedRound,
        refusal: &netlink::NetlinkError,
        outbox: &mut Outbox,
    ) {
        round.told.into_iter().rev().for_each(|told| outbox.take_back(told));
        for (client, datagram) in &round.requests {
            let name = self.name(*client);
            self.server.refuse(name, datagram, refusal, &mut self.answers);
        }
        self.post(outbox);
    }

    fn post(&mut self, outbox: &mut Outbox) {
        for delivery in self.answers.drain() {
            outbox.share(ClientId(delivery.to.connection), delivery.datagram);
        }
    }
}

/// The seconds that a text says.
fn acquire_expires(text: &[u8]) -> Option<NonZeroU32> {
    std::str::from_utf8(text).ok()?.trim_ascii().trim_end_matches('\0').parse().ok()
}

/// How many processors the machine may have, as the kernel's `num_possible_cpus`; as many as there
/// are for us when that can't be known.
fn cpus() -> u32 {
    let possible = std::fs::read_to_string("/sys/devices/system/cpu/possible");
    possible.ok().and_then(|list| last_of(&list)?.checked_add(1)).unwrap_or_else(|| {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        u32::try_from(cpus).unwrap_or(u32::MAX)
    })
}

/// The last number of a list like `0-3,8`.
fn last_of(list: &str) -> Option<u32> {
    list.trim_end().rsplit([',', '-']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acquire_expires_text_is_parsed_as_seconds() {
        let seconds = |text: &[u8]| acquire_expires(text).map(NonZeroU32::get);
        assert_eq!(
            [&b"165"[..], b"165\n", b" 30\0"].map(seconds),
            [Some(165), Some(165), Some(30)]
        );
        assert_eq!([&b""[..], b"0", b"-1", b"165s", b"\xff"].map(seconds), [None; 5]);
    }

    #[test]
    fn cpu_list_yields_last_number() {
        assert_eq!(last_of("0\n"), Some(0));
        assert_eq!(last_of("0-3\n"), Some(3));
        assert_eq!(last_of("0-3,8,12-15\n"), Some(15));
        assert_eq!(last_of("\n"), None);
        assert!(cpus() >= 1);
    }
}
