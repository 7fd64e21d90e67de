//! A pool in one process: agents, an etcd, gateways and peers by models, and whatever fails.
//!
//! All that is random comes from a seed, so each run can be had again.

mod faults;
mod gateway;
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};

use zeroize::Zeroizing;

use self::gateway::GatewayModel;
use crate::{
    agent::{
        Agent, AgentConfig, AgentInput, AgentOutput, GatewayOrder, GatewayReport, RequestId,
        StoreAnswer, StoreRequest, Timings,
    },
    desired::{Bucket, DesiredFile, PoolIndex, PoolState, plan},
    edges::StateDigest,
    keyspace::Keyspace,
    members::{Duty, Member, Members},
    names::{ChildId, FleetName, GatewayName, PoolName},
    numbers::KeyFingerprint,
    seal::{FleetKey, Keyring, SealNonce, Serial},
    store::{LeaseId, MemoryStore, Stay, StoreOperation, StoreRevision, StoreTransaction},
};

/// Between two looks at the time by an agent.
const TICK: u64 = 10;
/// Between two keepalives.
const KEEPALIVE: u64 = 700;
/// Between two reports of a gateway.
const REPORT: u64 = 50;

/// How long a gateway holds back what it may accept soon.
const HELD: u64 = 300;

/// Random numbers of a seed (splitmix64).
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }
}

/// Something that is to happen at a site.
#[derive(Debug)]
enum Happening {
    AtStore(RequestId, StoreRequest),
    Answer(RequestId, StoreAnswer),
    /// The watch brings what there is up to a revision.
    Watch(StoreRevision),
    Loaded,
    Datagram(Vec<u8>),
    Order(GatewayOrder),
    Report(GatewayReport),
    Tick,
    Keepalive,
    KeepaliveAnswered {
        asked_at: u64,
        is_new: bool,
    },
    ReportDue,
    /// A process that was stopped goes on.
    Resume,
    Start,
}

/// One gateway with its agent.
#[derive(Debug)]
struct Site {
    name: GatewayName,
    /// None where it crashed.
    agent: Option<Agent>,
    gateway: GatewayModel,
    /// Which start this is: what belongs to an earlier one does not arrive.
    incarnation: u64,
    lease: Option<LeaseId>,
    /// Up to where changes are on their way to it, and where it knows them.
    watched: StoreRevision,
    seen: StoreRevision,
    has_store: bool,
    is_loaded: bool,
    /// What came while it was stopped.
    stopped: Option<Vec<Happening>>,
}

/// The whole pool.
#[derive(Debug)]
struct World {
    now: u64,
    random: Random,
    queue: BTreeMap<(u64, u64), (usize, u64, Happening)>,
    scheduled: u64,
    store: MemoryStore,
    store_is_up: bool,
    sites: Vec<Site>,
    /// Between which sites nothing passes.
    cuts: HashSet<(usize, usize)>,
    /// Of a thousand datagrams between gateways, how many are lost.
    lossy: u64,
    keyring: Keyring,
    children: Vec<ChildId>,
    next_lease: u64,
    peers: Peers,
    timings: Timings,
    generation: u64,
    /// Whether what happens is printed.
    is_told: bool,
}

/// The other ends of all tunnels: what they sent, and what must never come twice.
#[derive(Debug, Default)]
struct Peers {
    sent: BTreeMap<StateDigest, u64>,
    accepted: HashSet<(StateDigest, u64)>,
    ivs: HashSet<(KeyFingerprint, u64)>,
    /// The numbers that the fleet sent, by key.
    came: HashMap<KeyFingerprint, u64>,
    /// What gateways hold back that may accept it soon, and until when.
    held: Vec<(u64, StateDigest, u64)>,
    /// Numbers that nobody accepted.
    lost: u64,
}

fn fleet() -> FleetName {
    "example".parse().unwrap()
}

fn pool() -> PoolName {
    "default".parse().unwrap()
}

fn config(site: usize, timings: Timings) -> AgentConfig {
    let address = format!("192.0.2.{}:4600", site + 1).parse().unwrap();
    let member = Member { weight: 1, capacity: 1_000, duty: Duty::Active, address };
    let name = format!("gw-{site}").parse().unwrap();
    AgentConfig { fleet: fleet(), pool: pool(), name, member, timings }
}

impl World {
    fn new(sites: usize, tunnels: usize, seed: u64) -> Self {
        let key = FleetKey::new(Zeroizing::new([7; 32]));
        let mut world = Self {
            now: 1_000,
            random: Random(seed),
            queue: BTreeMap::new(),
            scheduled: 0,
            store: MemoryStore::default(),
            store_is_up: true,
            sites: Vec::new(),
            cuts: HashSet::new(),
            lossy: 0,
            keyring: Keyring::new(key, []),
            children: Vec::new(),
            next_lease: 0,
            peers: Peers::default(),
            timings: Timings::default(),
            generation: 0,
            is_told: false,
        };
        for site in 0..sites {
            world.sites.push(Site {
                name: config(site, world.timings).name,
                agent: None,
                gateway: GatewayModel::default(),
                incarnation: 0,
                lease: None,
                watched: StoreRevision(0),
                seen: StoreRevision(0),
                has_store: true,
                is_loaded: false,
                stopped: None,
            });
            world.after(0, site, Happening::Start);
        }
        world.apply(tunnels);
        world
    }

    /// Writes a desired state of so many tunnels.
    fn apply(&mut self, tunnels: usize) {
        let text = |number| format!("[tunnels.t{number}]\nlines = \"{number}\"\n");
        let file: String = (0..tunnels).map(text).collect();
        let file = DesiredFile::parse(&file).unwrap();
        self.generation += 1;
        let desired = self.desired();
        let plan = plan(&Keyspace::of(&fleet()), &desired, &file, Serial(self.generation));
        let mut operations = Vec::new();
        for write in plan.parts.iter().chain(&plan.indices) {
            let mut nonce = [0; 24];
            nonce[..8].copy_from_slice(&self.random.next().to_le_bytes());
            let (key, nonce) = (write.path.clone(), SealNonce(nonce));
            let value = self.keyring.seal(&key, write.serial, &write.text, nonce);
            operations.push(StoreOperation::Put { key, value, stay: Stay::Forever });
        }
        let obsolete = plan.obsolete.into_iter().map(|key| StoreOperation::Delete { key });
        operations.extend(obsolete);
        assert!(self.store.commit(&StoreTransaction { conditions: Vec::new(), operations }, None));
        let tunnel = |number| format!("t{number}").parse().unwrap();
        self.children =
            (0..tunnels).map(|number| ChildId { tunnel: tunnel(number), index: 0 }).collect();
        self.tell_watches();
    }

    /// The desired state, as etcd has it.
    fn desired(&self) -> BTreeMap<PoolName, PoolState> {
        let keys = Keyspace::of(&fleet()).pool(&pool());
        let Some((serial, index)) = self.record::<PoolIndex>(&keys.desired()) else {
            return BTreeMap::new();
        };
        let buckets = index.buckets.iter().enumerate();
        let buckets = buckets.map(|(number, serial)| {
            (*serial, self.record::<Bucket>(&keys.bucket(number, *serial)).unwrap().1)
        });
        let state = PoolState { serial, lines: index.lines, buckets: buckets.collect() };
        BTreeMap::from([(pool(), state)])
    }

    fn record<T: serde::de::DeserializeOwned>(&self, key: &str) -> Option<(Serial, T)> {
        let opened = self.keyring.open(key, &self.store.read(key)?.value).unwrap();
        Some((opened.serial, serde_json::from_slice(&opened.text).unwrap()))
    }

    fn after(&mut self, delay: u64, site: usize, happening: Happening) {
        self.scheduled += 1;
        let incarnation = self.sites[site].incarnation;
        let at = (self.now + delay, self.scheduled);
        self.queue.insert(at, (site, incarnation, happening));
    }

    /// Lets time pass, and traffic with it.
    fn run(&mut self, millis: u64) {
        let end = self.now + millis;
        while let Some(entry) = self.queue.first_entry()
            && entry.key().0 <= end
        {
            let ((at, _), (site, incarnation, happening)) = entry.remove_entry();
            self.now = at;
            self.store.expire(at);
            if self.store_is_up {
                self.tell_watches();
            }
            if self.sites[site].incarnation != incarnation {
                continue;
            }
            match &mut self.sites[site].stopped {
                Some(stopped) if !matches!(happening, Happening::Resume) => stopped.push(happening),
                Some(_) | None => self.happen(site, happening),
            }
        }
        self.now = end;
    }

    fn happen(&mut self, site: usize, happening: Happening) {
        match happening {
            Happening::Start => self.start(site),
            Happening::AtStore(id, request) => self.at_store(site, id, &request),
            Happening::Answer(id, answer) => self.step(site, AgentInput::Answered(id, answer)),
            Happening::Watch(revision) => self.watch(site, revision),
            Happening::Loaded => self.loaded(site),
            Happening::Datagram(datagram) => self.step(site, AgentInput::Heard(datagram)),
            Happening::Order(order) => self.ordered(site, order),
            Happening::Report(report) => self.step(site, AgentInput::Reported(report)),
            Happening::Tick => {
                self.step(site, AgentInput::Tick);
                self.after(TICK, site, Happening::Tick);
            }
            Happening::Keepalive => self.keepalive(site),
            Happening::KeepaliveAnswered { asked_at, is_new } => {
                if is_new {
                    self.step(site, AgentInput::LeaseGone);
                }
                self.step(site, AgentInput::LeaseHeld { asked_at });
            }
            Happening::ReportDue => {
                let uses = self.sites[site].gateway.uses();
                self.after(1, site, Happening::Report(GatewayReport::Used(uses)));
                self.after(REPORT, site, Happening::ReportDue);
            }
            Happening::Resume => {
                let stopped = self.sites[site].stopped.take();
                for happening in stopped.into_iter().flatten() {
                    self.happen(site, happening);
                }
            }
        }
    }

    fn start(&mut self, site: usize) {
        let own = &mut self.sites[site];
        own.incarnation += 1;
        own.agent = Some(Agent::new(config(site, self.timings), self.keyring.clone()));
        own.gateway = GatewayModel::default();
        own.lease = None;
        own.is_loaded = false;
        own.stopped = None;
        for happening in [Happening::Tick, Happening::Keepalive, Happening::ReportDue] {
            self.after(0, site, happening);
        }
    }

    fn step(&mut self, site: usize, input: AgentInput) {
        let Some(agent) = &mut self.sites[site].agent else { return };
        let random = &mut self.random;
        let outputs = agent.step(input, self.now, &mut || random.next());
        for output in outputs {
            self.output(site, output);
        }
    }

    fn output(&mut self, site: usize, output: AgentOutput) {
        match output {
            AgentOutput::Ask(id, request) => {
                let delay = self.random.between(1, 4);
                self.after(delay, site, Happening::AtStore(id, request));
            }
            AgentOutput::Send(address, datagram) => {
                let to = (0..self.sites.len())
                    .find(|to| config(*to, self.timings).member.address == address)
                    .unwrap();
                let is_cut = self.cuts.contains(&(site, to)) || self.cuts.contains(&(to, site));
                if !is_cut && self.random.below(1_000) >= self.lossy {
                    let delay = self.random.between(1, 2);
                    self.after(delay, to, Happening::Datagram(datagram));
                }
            }
            AgentOutput::Order(order) => self.after(1, site, Happening::Order(order)),
        }
    }

    fn ordered(&mut self, site: usize, order: GatewayOrder) {
        self.tell(|| format!("gw-{site} {order:?}"));
        if let Some(report) = self.sites[site].gateway.order(order) {
            self.after(1, site, Happening::Report(report));
        }
    }

    fn tell(&self, what: impl FnOnce() -> String) {
        if self.is_told {
            eprintln!("{} {}", self.now, what());
        }
    }

    fn reaches_store(&self, site: usize) -> bool {
        self.store_is_up && self.sites[site].has_store
    }

    fn at_store(&mut self, site: usize, id: RequestId, request: &StoreRequest) {
        if !self.reaches_store(site) {
            self.after(500, site, Happening::Answer(id, StoreAnswer::Unknown));
            return;
        }
        let owned = |(key, stored): (&str, &crate::store::Stored)| (key.to_owned(), stored.clone());
        let answer = match request {
            StoreRequest::Read(key) => {
                let records = self.store.read(key).map(|stored| (key.clone(), stored.clone()));
                StoreAnswer::Records(self.store.revision(), records.into_iter().collect())
            }
            StoreRequest::ReadAll(prefix) => {
                let records = self.store.read_all(prefix).map(owned).collect();
                StoreAnswer::Records(self.store.revision(), records)
            }
            StoreRequest::Commit(transaction) => {
                if self.store.commit(transaction, self.sites[site].lease) {
                    StoreAnswer::Committed(self.store.revision())
                } else {
                    StoreAnswer::Refused
                }
            }
        };
        self.tell_watches();
        // The answer may be lost on its way.
        let is_lost = self.random.below(1_000) < self.lossy / 2;
        let answer = if is_lost { StoreAnswer::Unknown } else { answer };
        let delay = self.random.between(1, 4);
        self.after(delay, site, Happening::Answer(id, answer));
    }

    fn tell_watches(&mut self) {
        let revision = self.store.revision();
        for site in 0..self.sites.len() {
            let own = &self.sites[site];
            if own.is_loaded && own.watched < revision && self.reaches_store(site) {
                self.sites[site].watched = revision;
                // In order: by a delay that never falls.
                self.after(3, site, Happening::Watch(revision));
            }
        }
    }

    fn watch(&mut self, site: usize, upto: StoreRevision) {
        let keys = Keyspace::of(&fleet()).pool(&pool());
        let from = self.sites[site].seen;
        let changes = self.store.changes_after(from, keys.prefix());
        let changes: Vec<_> =
            changes.filter(|(at, _)| *at <= upto).map(|(_, change)| change.clone()).collect();
        self.sites[site].seen = upto.max(from);
        for change in changes {
            self.step(site, AgentInput::Changed(change));
        }
    }

    fn loaded(&mut self, site: usize) {
        if !self.reaches_store(site) {
            return;
        }
        let keys = Keyspace::of(&fleet()).pool(&pool());
        let records = self.store.read_all(keys.prefix());
        let records = records.map(|(key, stored)| (key.to_owned(), stored.clone())).collect();
        let revision = self.store.revision();
        (self.sites[site].watched, self.sites[site].seen) = (revision, revision);
        self.sites[site].is_loaded = true;
        self.step(site, AgentInput::Loaded(revision, records));
    }

    fn keepalive(&mut self, site: usize) {
        self.after(KEEPALIVE, site, Happening::Keepalive);
        if !self.reaches_store(site) {
            self.sites[site].is_loaded = false;
            return;
        }
        let asked_at = self.now;
        let until = self.now + 2 + self.timings.lease;
        let lease = self.sites[site].lease;
        let lives = lease.is_some_and(|lease| self.store.keep_alive(lease, until));
        if !lives {
            self.next_lease += 1;
            let lease = LeaseId(self.next_lease);
            self.store.grant(lease, until);
            self.sites[site].lease = Some(lease);
        }
        self.after(4, site, Happening::KeepaliveAnswered { asked_at, is_new: !lives });
        if !self.sites[site].is_loaded {
            self.after(4, site, Happening::Loaded);
        }
    }

    /// The members, as etcd has them.
    fn members(&self) -> Members {
        self.record(&Keyspace::of(&fleet()).pool(&pool()).members()).unwrap().1
    }

    /// Each child's traffic, one packet each way: to whoever has the child, or thinks so.
    fn traffic(&mut self) {
        let mut arriving = std::mem::take(&mut self.peers.held);
        for child in &self.children {
            let inbound = gateway::inbound(child);
            let number = self.peers.sent.entry(inbound).or_default();
            *number += 1;
            arriving.push((self.now + HELD, inbound, *number));
        }
        for (until, inbound, number) in arriving {
            if self.arrives(inbound, number) {
                continue;
            }
            let is_held = self.up().any(|site| site.gateway.holds(inbound, number));
            if is_held && self.now < until {
                self.peers.held.push((until, inbound, number));
            } else {
                self.peers.lost += 1;
            }
        }
        self.send_all();
    }

    fn up(&self) -> impl Iterator<Item = &Site> {
        self.sites.iter().filter(|site| site.agent.is_some() && site.stopped.is_none())
    }

    /// A packet comes to all gateways that may have its state; whether one accepts it.
    fn arrives(&mut self, inbound: StateDigest, number: u64) -> bool {
        let mut is_accepted = false;
        for site in &mut self.sites {
            let is_up = site.agent.is_some() && site.stopped.is_none();
            if is_up && site.gateway.accept(inbound, number, self.now) {
                let is_first = self.peers.accepted.insert((inbound, number));
                if self.is_told {
                    eprintln!("{} {} accepts {inbound} {number}", self.now, site.name);
                }
                assert!(is_first, "{inbound}: {number} accepted twice, at {}", site.name);
                is_accepted = true;
            }
        }
        is_accepted
    }

    fn send_all(&mut self) {
        for child in &self.children {
            for site in &mut self.sites {
                let is_up = site.agent.is_some() && site.stopped.is_none();
                let sent = if is_up { site.gateway.send(child, self.now) } else { None };
                if let Some((number, iv)) = sent {
                    let key = gateway::outbound_key(child);
                    assert!(self.peers.ivs.insert((key, iv)), "{child}: IV {iv:#x} twice");
                    let highest = self.peers.came.entry(key).or_default();
                    *highest = number.max(*highest);
                }
            }
        }
    }

    /// Somebody sends packets again that peers sent before.
    fn replay(&mut self) {
        let sent: Vec<_> = self.peers.sent.iter().map(|(state, sent)| (*state, *sent)).collect();
        for (inbound, sent) in sent {
            for _ in 0..4 {
                let number = 1 + self.random.below(sent);
                self.arrives(inbound, number);
            }
        }
    }

    /// Lets time pass, with a packet of each child each `every` milliseconds.
    fn run_with_traffic(&mut self, millis: u64, every: u64) {
        for _ in 0..millis / every {
            self.run(every);
            self.traffic();
            self.replay();
        }
    }
}
