//! The protocol: requests go to the netlink server, which carries them out on the databases; those about tunnels and devices go to these.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU32,
    ops::Range,
    sync::Arc,
    time::Duration,
};

use uxfrm_engine::{Database, Event, Mark, Moment, SaId, Snapshot};
use uxfrm_io::{poll::Poller, random};
use uxfrm_netlink as netlink;
use zeroize::Zeroizing;

use super::{ClientId, Dialect, Identity, Outbox, Protocol, Rest};
use crate::{
    config::AtExit,
    devices::Devices,
    following::{Asker, Following, Standing},
    reload::{self, Outcome, Reload},
    time::{epoch, now},
    tunnels::Carrying,
    upgrade::{Obstacle, Upgrade},
};

/// So long after a start who comes is told of states that went with the last run. Who comes later may never have known them.
const MISSED: Duration = Duration::from_secs(60);

/// States that went with the last run.
#[derive(Debug, Default)]
struct Lost {
    states: Vec<(SaId, Mark)>,
    until: Moment,
    told: BTreeSet<ClientId>,
}

/// The netlink server, and who its clients are.
#[derive(Debug)]
pub(crate) struct Xfrm {
    server: netlink::Server,
    clients: BTreeMap<ClientId, Identity>,
    answers: netlink::Outbox,
    lost: Lost,
    round: Round,
}

/// Requests that wait for the disk, with what is to be said of them.
#[derive(Debug, Default)]
struct Round {
    requests: Vec<(ClientId, Zeroizing<Vec<u8>>)>,
    /// Where their answers and events are in the outbox.
    told: Vec<Range<usize>>,
}

/// The server with the databases that it works on.
#[derive(Debug)]
pub(crate) struct Serving<'a> {
    pub(crate) xfrm: &'a mut Xfrm,
    pub(crate) database: &'a mut Database,
    pub(crate) following: &'a mut Following,
    pub(crate) tunnels: &'a mut Carrying,
    pub(crate) devices: &'a mut Devices,
    /// What key managers are to hear of what was done to devices.
    pub(crate) happened: &'a mut Vec<Event>,
    pub(crate) reload: &'a mut Reload,
    pub(crate) at_exit: &'a mut AtExit,
    pub(crate) upgrade: &'a mut Upgrade,
    /// What else the gateway waits for, and how long at the most.
    pub(crate) poller: &'a Poller,
    pub(crate) until: Moment,
}

impl Xfrm {
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
        let settings = netlink::Settings { epoch: epoch(), seed, acquire_expires, cpus };
        let server = netlink::Server::new(settings);
        let answers = netlink::Outbox::default();
        let (clients, lost) = (BTreeMap::new(), Lost::default());
        Self { server, clients, answers, lost, round: Round::default() }
    }

    /// States that were there when the last run ended: key managers that come back hear that they have expired, and negotiate new ones.
    pub(crate) fn miss(&mut self, lost: Vec<(SaId, Mark)>) {
        self.lost = Lost { states: lost, until: now().plus(MISSED), told: BTreeSet::new() };
    }

    /// Once for each client that listens for expiries.
    fn tell_of_lost(&mut self, client: ClientId, groups: netlink::Groups) {
        if now() >= self.lost.until {
            self.lost = Lost::default();
        }
        let is_meant = !self.lost.states.is_empty() && groups.contains(netlink::Groups::EXPIRE);
        if is_meant && self.lost.told.insert(client) {
            let name = self.name(client);
            tracing::info!(
                states = self.lost.states.len(),
                "a key manager is told of states that went with the last run"
            );
            self.server.tell_lost(name, &self.lost.states, &mut self.answers);
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
    ) -> Result<netlink::Restored, netlink::Refusal> {
        self.server.restore(message, database, now())
    }

    /// What a program wrote to `net.core.xfrm_acq_expires`: seconds. The kernel would have larval states for ever with 0, and refuses what is no number.
    fn set_acquire_expires(&mut self, text: &[u8]) {
        match acquire_expires(text) {
            Some(seconds) => {
                tracing::info!(seconds, "a program says how long acquires and reserved SPIs wait");
                self.server.set_acquire_expires(seconds.get());
            }
            None => tracing::warn!("a program wrote no number of seconds to xfrm_acq_expires"),
        }
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
        self.server.tell_counters(&database.snapshot(), now(), &mut self.answers);
        self.post(outbox);
    }

    /// Tells workers what became of acquires and who listens for them. To be called when all else is published.
    pub(crate) fn settle(&mut self, database: &mut Database) {
        self.server.settle(database);
        database.publish();
    }

    /// When [`Xfrm::announce`] and [`Xfrm::tell_counters`] must be called at the latest, with or without events.
    pub(crate) fn poll_timeout(&self) -> Option<Moment> {
        self.server.poll_timeout().into_iter().chain(self.server.poll_counters()).min()
    }

    /// Whether some connection of a client's process listens for acquires or expiries, as those of IKE daemons do.
    fn asker(&self, client: ClientId) -> Asker {
        let Some(asks) = self.clients.get(&client) else { return Asker::Operator };
        let told = netlink::Groups::ACQUIRE | netlink::Groups::EXPIRE;
        let listens = |other: &Identity| {
            other.dialect == Dialect::Xfrm
                && other.process == asks.process
                && netlink::Groups::from_bits_truncate(other.groups).contains(told)
        };
        if self.clients.values().any(listens) { Asker::KeyManager } else { Asker::Operator }
    }

    /// The server's name for a client.
    fn name(&self, client: ClientId) -> netlink::ClientId {
        let port = self.clients.get(&client).map_or(0, |identity| identity.port);
        netlink::ClientId { connection: client.0, port }
    }

    /// Nothing of a round became lasting: says so in place of all that was to be said.
    fn refuse(&mut self, round: Round, refusal: &netlink::Refusal, outbox: &mut Outbox) {
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

impl Protocol for Serving<'_> {
    fn join(&mut self, client: ClientId, identity: Identity) {
        if let Some(before) = self.xfrm.clients.get(&client)
            && before.port != identity.port
        {
            let name = self.xfrm.name(client);
            self.xfrm.server.leave(name);
        }
        self.xfrm.clients.insert(client, identity);
        if identity.dialect != Dialect::Xfrm {
            return; // groups are those of states and policies
        }
        let name = self.xfrm.name(client);
        let groups = netlink::Groups::from_bits_truncate(identity.groups);
        let options = netlink::Options::from_bits_truncate(identity.options);
        self.xfrm.server.join(name, groups, options);
        self.xfrm.tell_of_lost(client, groups);
    }

    fn leave(&mut self, client: ClientId) {
        let name = self.xfrm.name(client);
        self.xfrm.server.leave(name);
        self.xfrm.clients.remove(&client);
        self.xfrm.lost.told.remove(&client);
        self.devices.forget(client);
    }

    fn handle(&mut self, client: ClientId, datagram: &[u8], outbox: &mut Outbox) {
        let identity = self.xfrm.clients.get(&client).copied();
        let dialect = identity.map_or(Dialect::Xfrm, |identity| identity.dialect);
        match (dialect, identity) {
            (Dialect::Xfrm, _) | (_, None) => self.act(client, datagram, outbox),
            (Dialect::Devices, Some(_)) => {
                let Self { devices, database, happened, .. } = self;
                devices.answer(client, datagram, database, happened, outbox);
            }
            (Dialect::AcquireExpires, Some(_)) => self.xfrm.set_acquire_expires(datagram),
            (Dialect::Reload, Some(_)) => self.answer_reload(client, datagram, outbox),
            (Dialect::Upgrade, Some(_)) => {
                let obstacles = self.obstacles();
                if let Some(answer) = self.upgrade.ask(client, datagram, obstacles) {
                    // It has no maps, the only thing that may not be had as JSON.
                    outbox.send(client, serde_json::to_vec(&answer).unwrap_or_default());
                }
            }
            (Dialect::Generic | Dialect::Route, Some(identity)) => {
                for answer in self.tunnels.answer(client.0, identity, datagram) {
                    outbox.share(client, Arc::new(answer));
                }
            }
        }
    }

    fn waits_for_disk(&self) -> bool {
        self.following.waits_for_disk()
    }

    fn commit(&mut self, outbox: &mut Outbox) {
        let round = std::mem::take(&mut self.xfrm.round);
        match self.following.commit(self.database) {
            Ok(()) => self.xfrm.server.let_stand(),
            Err(refusal) => {
                self.xfrm.server.undo();
                self.xfrm.refuse(round, &refusal, outbox);
            }
        }
    }

    fn catch_up(&mut self) {
        self.following.catch_up();
    }

    fn is_wanted(&self) -> bool {
        now() >= self.until || self.poller.is_ready().unwrap_or(true)
    }

    fn prepare(&mut self) {
        self.database.prepare();
    }

    fn carry_on(&mut self, client: ClientId, outbox: &mut Outbox) -> Rest {
        let devices = self.devices.carry_on(client, outbox);
        let name = self.xfrm.name(client);
        if !self.xfrm.server.is_dumping(name) {
            return devices;
        }
        self.xfrm.server.resume(name, self.database, &mut self.xfrm.answers);
        self.xfrm.post(outbox);
        Rest::More
    }
}

impl Serving<'_> {
    /// What does not pass to another process.
    fn obstacles(&self) -> Vec<Obstacle> {
        let all = [(self.database.has_stand_ins(), Obstacle::StandIn)];
        all.into_iter().filter_map(|(is_there, obstacle)| is_there.then_some(obstacle)).collect()
    }

    /// Reads files again, and tells listeners what that changed.
    pub(crate) fn reload(&mut self, request: reload::Request, outbox: &mut Outbox) -> Outcome {
        // What others asked for in this round is theirs, whatever comes of this.
        self.commit(outbox);
        let Self { database, following, tunnels, at_exit, .. } = self;
        let targets = reload::Targets { database, following, tunnels, at_exit };
        let outcome = self.reload.answer(request, targets);
        if let Some(seconds) = outcome.acquire_expires {
            self.xfrm.server.set_acquire_expires(seconds);
        }
        self.xfrm.server.set_epoch(epoch());
        self.xfrm.server.tell_changes(&outcome.changes, &mut self.xfrm.answers);
        self.xfrm.post(outbox);
        outcome
    }

    fn answer_reload(&mut self, client: ClientId, datagram: &[u8], outbox: &mut Outbox) {
        let answers: Vec<_> = match serde_json::from_slice(datagram) {
            Ok(request) => self.reload(request, outbox).answers().collect(),
            Err(error) => vec![reload::Answer::Failed(format!("that is no request: {error}"))],
        };
        for answer in answers {
            // It has no maps, the only thing that may not be had as JSON.
            outbox.send(client, serde_json::to_vec(&answer).unwrap_or_default());
        }
    }

    /// Carries out what a client asks of states and policies.
    fn act(&mut self, client: ClientId, datagram: &[u8], outbox: &mut Outbox) {
        let name = self.xfrm.name(client);
        let holds = self.following.holds();
        let asker = if holds { self.xfrm.asker(client) } else { Asker::Operator };
        let xfrm = &mut *self.xfrm;
        let following = &mut *self.following;
        if following.let_stand() == Standing::All {
            xfrm.server.let_stand();
        }
        let mut attend = |database: &mut Database| following.attend(database, asker);
        let answers = &mut xfrm.answers;
        xfrm.server.set_epoch(epoch());
        xfrm.server.handle_attended(name, datagram, self.database, now(), &mut attend, answers);
        let told = outbox.len();
        xfrm.post(outbox);
        if following.waits_for_disk() {
            xfrm.round.requests.push((client, Zeroizing::new(datagram.to_vec())));
            xfrm.round.told.push(told..outbox.len());
        }
    }
}

/// The seconds that a text says.
fn acquire_expires(text: &[u8]) -> Option<NonZeroU32> {
    std::str::from_utf8(text).ok()?.trim_ascii().trim_end_matches('\0').parse().ok()
}

/// How many processors the machine may have, as the kernel's `num_possible_cpus`; as many as there are for us when that can't be known.
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
    fn programs_say_seconds_as_they_write_them() {
        let seconds = |text: &[u8]| acquire_expires(text).map(NonZeroU32::get);
        assert_eq!(
            [&b"165"[..], b"165\n", b" 30\0"].map(seconds),
            [Some(165), Some(165), Some(30)]
        );
        assert_eq!([&b""[..], b"0", b"-1", b"165s", b"\xff"].map(seconds), [None; 5]);
    }

    #[test]
    fn lists_of_processors_end_with_the_last() {
        assert_eq!(last_of("0\n"), Some(0));
        assert_eq!(last_of("0-3\n"), Some(3));
        assert_eq!(last_of("0-3,8,12-15\n"), Some(15));
        assert_eq!(last_of("\n"), None);
        assert!(cpus() >= 1);
    }
}
