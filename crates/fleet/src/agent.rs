//! One gateway's agent: from what etcd, the other gateways and the own gateway say to what is asked
//! of them.
//!
//! It keeps these promises, whatever is late, lost or comes twice:
//!
//! - **No number is sent twice under a key.** The gateway sends with leased numbers alone
//!   ([`numbers`](crate::numbers)).
//! - **No packet is accepted twice.** The gateway accepts a number only below an edge that it wrote
//!   under an epoch in which the state was its own, and begins above the edge of who had the state
//!   before ([`edges`](crate::edges)). As edges are written under the condition that the epoch is
//!   the current one, and read after the epoch changed, none is written that is not read.
//! - **A child that moves loses nothing** where both gateways live: the new one prepares it, asks
//!   for it, and begins where the old one says that it ended.
//!
//! | file | has |
//! | --- | --- |
//! | `view.rs` | what stands in etcd |
//! | `peers.rs`, `votes.rs` | heartbeats; who does not hear whom, and what follows |
//! | `session.rs` | the lease, and being without etcd |
//! | `tenure.rs`, `moves.rs` | a child at this gateway; how it comes and goes |
//! | `claims.rs` | numbers and edges, by transactions |
//! | `summary.rs` | what people are told |

mod claims;
mod moves;
mod peers;
mod session;
mod summary;
mod tenure;
mod view;
mod votes;

use std::{collections::BTreeMap, net::SocketAddr};

use claims::Claims;
use moves::Moves;
use peers::Peers;
use serde::{Deserialize, Serialize};
use session::Session;
pub use summary::{AgentSummary, StoreContact};
use view::PoolView;
use votes::VoteChange;

use crate::{
    desired::Lines,
    edges::StateDigest,
    heartbeat::PeerHeartbeat,
    keyspace::{Keyspace, PoolKeyspace},
    members::Member,
    names::{ChildId, FleetName, GatewayName, PoolName},
    numbers::{KeyFingerprint, NumberLease},
    seal::{Keyring, SealNonce, Serial},
    store::{KeyChange, StoreRevision, StoreTransaction, Stored},
};

/// Milliseconds of CLOCK_BOOTTIME.
pub type Millis = u64;

/// Who an agent is.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Its fleet.
    pub fleet: FleetName,
    /// Its pool.
    pub pool: PoolName,
    /// Its gateway.
    pub name: GatewayName,
    /// How it joins.
    pub member: Member,
    /// How long it waits for what.
    pub timings: Timings,
}

/// How long an agent waits for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timings {
    /// Between heartbeats.
    pub heartbeat: Millis,
    /// Without a heartbeat, until a gateway is suspected.
    pub silence: Millis,
    /// The lease's time to live.
    pub lease: Millis,
    /// Without an answer of etcd, until the gateway counts as without.
    pub without: Millis,
    /// For the gateway that has a child, until it is taken from it.
    pub patience: Millis,
    /// Heard by the others, until a gateway that was down takes children again.
    pub settle: Millis,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            heartbeat: 40,
            silence: 160,
            lease: 3_000,
            without: 1_000,
            patience: 3_000,
            settle: 3_000,
        }
    }
}

/// Names something that the agent asked of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// What is asked of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreRequest {
    /// One key.
    Read(String),
    /// All keys that begin so.
    ReadAll(String),
    /// A transaction; what is leased is so under the agent's lease.
    Commit(StoreTransaction),
}

/// What the store answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreAnswer {
    /// What was read, at a revision.
    Records(StoreRevision, Vec<(String, Stored)>),
    /// The transaction was done, at a revision.
    Committed(StoreRevision),
    /// A condition did not hold.
    Refused,
    /// Nobody knows whether it was done.
    Unknown,
}

/// What an agent is told.
#[derive(Debug)]
pub enum AgentInput {
    /// What stands in etcd for the pool, at a revision; changes after it follow.
    Loaded(StoreRevision, Vec<(String, Stored)>),
    /// A change of it.
    Changed(KeyChange),
    /// The lease lives: what was asked at this time was answered.
    LeaseHeld {
        /// When it was asked.
        asked_at: Millis,
    },
    /// The lease is gone; another is to be had.
    LeaseGone,
    /// The answer to a request.
    Answered(RequestId, StoreAnswer),
    /// A datagram of another gateway.
    Heard(Vec<u8>),
    /// A word of the own gateway.
    Reported(GatewayReport),
    /// Time went on.
    Tick,
}

/// What an agent wants done.
#[derive(Debug, PartialEq, Eq)]
pub enum AgentOutput {
    /// Something of the store.
    Ask(RequestId, StoreRequest),
    /// A datagram to another gateway.
    Send(SocketAddr, Vec<u8>),
    /// Something of the own gateway.
    Order(GatewayOrder),
}

/// What the own gateway is to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GatewayOrder {
    /// To have these lines, whatever children it has.
    Base(Lines),
    /// To have a child's policies and states: states send nothing and accept nothing yet, but those
    /// that were there with the same words, which go on.
    Install(ChildId, Vec<Lines>),
    /// To let a state accept packets, above one number and up to another.
    Open {
        /// Which.
        state: StateDigest,
        /// It accepts none up to there.
        above: u64,
        /// It accepts none above.
        limit: u64,
    },
    /// To move that limit. It stays where packets above were accepted before the word came.
    Limit(StateDigest, u64),
    /// To let a state send with these numbers, once the ones it has end.
    Numbers(StateDigest, NumberLease),
    /// To accept and send nothing more for a child, and to say what it accepted.
    Freeze(ChildId),
    /// To have a child no more.
    Remove(ChildId),
    /// To accept and send nothing after this time, unless another word comes.
    Deadline(Option<Millis>),
}

/// What the own gateway says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GatewayReport {
    /// A child is there, with these states.
    Installed(ChildId, Vec<StateInfo>),
    /// A child can't be, and why.
    Refused(ChildId, String),
    /// A child accepts and sends nothing more.
    Frozen(ChildId, Vec<StateUse>),
    /// How far states are.
    Used(Vec<StateUse>),
}

/// A state, as the gateway has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateInfo {
    /// Its name.
    pub state: StateDigest,
    /// Its key.
    pub key: KeyFingerprint,
    /// What it is for.
    pub direction: StateDirection,
    /// The last number that it may send.
    pub last_number: u64,
}

/// What a state is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StateDirection {
    /// It accepts packets.
    In,
    /// It sends packets.
    Out,
}

/// How far a state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateUse {
    /// Which.
    pub state: StateDigest,
    /// The highest number that it sent or accepted.
    pub number: u64,
    /// The highest number of an authentic packet that waits, as it is above the limit; 0 for none.
    pub waiting: u64,
    /// How many packets it sent or accepted. A peer that was started anew leaves out numbers, which
    /// is no rate.
    pub packets: u64,
    /// Up to where it may accept.
    pub limit: u64,
}

/// One gateway's agent.
#[derive(Debug)]
pub struct Agent {
    config: AgentConfig,
    keyring: Keyring,
    keys: PoolKeyspace,
    view: PoolView,
    peers: Peers,
    session: Session,
    moves: Moves,
    claims: Claims,
    /// When heartbeats went last.
    beat_at: Option<Millis>,
    last_request: u64,
    requests: BTreeMap<RequestId, Purpose>,
    outbox: Vec<AgentOutput>,
    now: Millis,
}

/// What a request is for.
#[derive(Clone, Debug)]
enum Purpose {
    /// A tunnel's text, for a child.
    Tunnel(ChildId),
    /// All gateways' edges.
    Edges,
    /// Numbers and edges.
    Claim,
    /// Members, without a gateway or with this one.
    Members,
    /// The own presence.
    Presence,
    /// A vote, or its end.
    Vote(GatewayName, VoteChange),
}

impl Agent {
    /// One that knows nothing yet.
    #[must_use]
    pub fn new(config: AgentConfig, keyring: Keyring) -> Self {
        let keys = Keyspace::of(&config.fleet).pool(&config.pool);
        Self {
            view: PoolView::new(keys.clone()),
            config,
            keyring,
            keys,
            peers: Peers::default(),
            session: Session::default(),
            moves: Moves::default(),
            claims: Claims::default(),
            beat_at: None,
            last_request: 0,
            requests: BTreeMap::new(),
            outbox: Vec::new(),
            now: 0,
        }
    }

    /// Other keys open and seal from now on.
    pub fn set_keyring(&mut self, keyring: Keyring) {
        self.keyring = keyring;
    }

    /// What follows from something that it is told, at a time. Random bits come from `random`.
    pub fn step(
        &mut self,
        input: AgentInput,
        now: Millis,
        random: &mut dyn FnMut() -> u64,
    ) -> Vec<AgentOutput> {
        self.now = self.now.max(now);
        match input {
            AgentInput::Loaded(revision, records) => {
                self.session.contact(self.now);
                self.view.load(&self.keyring, revision, records);
            }
            AgentInput::Changed(change) => self.view.change(&self.keyring, change),
            AgentInput::LeaseHeld { asked_at } => {
                self.session.held(asked_at + self.config.timings.lease, self.now);
            }
            AgentInput::LeaseGone => self.session.lost(),
            AgentInput::Answered(request, answer) => self.answered(request, answer),
            AgentInput::Heard(datagram) => self.heard(&datagram),
            AgentInput::Reported(report) => self.reported(report),
            AgentInput::Tick => {}
        }
        self.work(random);
        std::mem::take(&mut self.outbox)
    }

    fn work(&mut self, random: &mut dyn FnMut() -> u64) {
        self.keep_session(random);
        self.judge_peers(random);
        self.follow_placement();
        self.claim(random);
        self.beat(random);
    }

    fn answered(&mut self, request: RequestId, answer: StoreAnswer) {
        let Some(purpose) = self.requests.remove(&request) else { return };
        if answer != StoreAnswer::Unknown {
            self.session.contact(self.now);
        }
        match purpose {
            Purpose::Tunnel(child) => self.tunnel_came(&child, answer),
            Purpose::Edges => self.edges_came(answer),
            Purpose::Claim => self.claim_ended(&answer),
            Purpose::Vote(suspect, change) => self.vote_changed(&suspect, change, &answer),
            Purpose::Members | Purpose::Presence => {}
        }
    }

    fn reported(&mut self, report: GatewayReport) {
        match report {
            GatewayReport::Installed(child, states) => self.installed(&child, &states),
            GatewayReport::Refused(child, why) => self.refused(&child, &why),
            GatewayReport::Frozen(child, states) => self.frozen(&child, &states),
            GatewayReport::Used(states) => self.used(&states),
        }
    }

    fn ask(&mut self, request: StoreRequest, purpose: Purpose) {
        self.last_request += 1;
        let id = RequestId(self.last_request);
        self.requests.insert(id, purpose);
        self.outbox.push(AgentOutput::Ask(id, request));
    }

    fn order(&mut self, order: GatewayOrder) {
        self.outbox.push(AgentOutput::Order(order));
    }

    fn is_asked(&self, is_it: impl Fn(&Purpose) -> bool) -> bool {
        self.requests.values().any(is_it)
    }

    fn seal(
        &self,
        path: &str,
        serial: Serial,
        record: &impl Serialize,
        random: &mut dyn FnMut() -> u64,
    ) -> Vec<u8> {
        // Names, numbers and lists: JSON has a form for all of them.
        let text = serde_json::to_vec(record).unwrap_or_default();
        self.keyring.seal(path, serial, &text, nonce(random))
    }

    /// Sends heartbeats where it is time.
    fn beat(&mut self, random: &mut dyn FnMut() -> u64) {
        let is_due = self.beat_at.is_none_or(|at| self.now >= at + self.config.timings.heartbeat);
        if !is_due && !self.moves.has_mail() {
            return;
        }
        self.beat_at = Some(self.now);
        let Some(members) = &self.view.members else { return };
        let others = members.record.gateways.iter().filter(|(name, _)| **name != self.config.name);
        let others: Vec<_> = others.map(|(name, member)| (name.clone(), member.address)).collect();
        for (name, address) in others {
            let heartbeat = self.heartbeat_for(&name);
            let pool = &self.config.pool;
            let datagram = heartbeat.seal(&self.keyring, pool, &name, nonce(random));
            self.outbox.push(AgentOutput::Send(address, datagram));
        }
        self.moves.mail_went();
    }

    fn heartbeat_for(&self, to: &GatewayName) -> PeerHeartbeat {
        PeerHeartbeat {
            from: self.config.name.clone(),
            sent_at: self.now,
            heard: self.peers.echo_for(to),
            epoch: self.view.epoch(),
            is_far: self.session.is_far(),
            far: self.far_known(),
            asks: self.moves.asks_for(to),
            releases: self.moves.releases_for(to, self.view.epoch()),
        }
    }

    fn heard(&mut self, datagram: &[u8]) {
        let (pool, name) = (&self.config.pool, &self.config.name);
        let Ok(heartbeat) = PeerHeartbeat::open(&self.keyring, pool, name, datagram) else {
            return;
        };
        let joined = self.session.joined();
        if self.peers.hear(&heartbeat, joined, self.now) {
            self.mail_came(&heartbeat);
        }
    }
}

fn nonce(random: &mut dyn FnMut() -> u64) -> SealNonce {
    let mut bytes = [0; 24];
    for part in bytes.chunks_exact_mut(8) {
        part.copy_from_slice(&random().to_le_bytes());
    }
    SealNonce(bytes)
}
