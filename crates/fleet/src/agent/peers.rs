//! The other gateways of the pool, by their heartbeats.

use std::collections::{BTreeMap, BTreeSet};

use crate::{edges::Reach, heartbeat::PeerHeartbeat, names::GatewayName, seal::Serial};

/// How old what a heartbeat heard may be, in milliseconds, for it to prove life.
const ECHO: u64 = 2_000;

/// What is known of another gateway.
#[derive(Clone, Debug, Default)]
pub(super) struct Peer {
    /// When it was heard last, with proof of life; none since the start.
    heard_at: Option<u64>,
    /// The sender's time of its last message, for the next echo.
    last_sent_at: u64,
    /// The highest own time that it heard.
    echoed: u64,
    /// Whether it goes up to its far edges, as it said last under an epoch that has this gateway.
    is_far: Option<bool>,
    /// Of whom it knows that they do, as it said last.
    knows_far: BTreeSet<GatewayName>,
    /// The epoch that it knew when it said that.
    said_epoch: Serial,
    /// The epoch that it knew when it said last whether it goes far.
    epoch: Serial,
    /// A vote against it stands, or is on its way: what it says of itself is not acknowledged.
    is_promised: bool,
    /// Such a vote may be in etcd.
    may_have_vote: bool,
    /// When it became known.
    known_at: u64,
}

/// The others.
#[derive(Debug, Default)]
pub(super) struct Peers {
    peers: BTreeMap<GatewayName, Peer>,
}

/// How long a gateway that was never heard has to say something, in milliseconds.
const FIRST_WORD: u64 = 5_000;

impl Peers {
    /// Whether a gateway that is not heard should be.
    pub(super) fn is_expected(&mut self, name: &GatewayName, now: u64) -> bool {
        let peer = self.peers.entry(name.clone()).or_insert_with(|| Peer::known_at(now));
        peer.heard_at.is_some() || peer.known_at + FIRST_WORD <= now
    }

    /// Nothing that it says of itself is acknowledged.
    pub(super) fn promise(&mut self, name: &GatewayName) {
        if let Some(peer) = self.peers.get_mut(name) {
            peer.is_promised = true;
        }
    }

    /// A vote against it is on its way.
    pub(super) fn vote_may_stand(&mut self, name: &GatewayName) {
        if let Some(peer) = self.peers.get_mut(name) {
            peer.may_have_vote = true;
        }
    }

    /// A vote against it is in etcd no more.
    pub(super) fn vote_stands_no_more(&mut self, name: &GatewayName) {
        if let Some(peer) = self.peers.get_mut(name) {
            peer.may_have_vote = false;
        }
    }

    /// Whether a vote against it may be in etcd.
    pub(super) fn may_have_vote(&self, name: &GatewayName) -> bool {
        self.peers.get(name).is_some_and(|peer| peer.may_have_vote)
    }

    /// No vote stands against it.
    pub(super) fn release(&mut self, name: &GatewayName) {
        if let Some(peer) = self.peers.get_mut(name) {
            peer.is_promised = false;
        }
    }

    /// The epoch that it knew when it was heard last.
    pub(super) fn heard_epoch(&self, name: &GatewayName) -> Serial {
        self.peers.get(name).map_or(Serial(0), |peer| peer.epoch)
    }

    /// Whether a gateway said, having heard of it since then and in the same epoch, that it knows
    /// another to go far. In a later epoch it may know that the other is down: then it says so too,
    /// and nothing hangs on it any more.
    pub(super) fn knows_far_since(
        &self,
        name: &GatewayName,
        other: &GatewayName,
        (since, epoch): (u64, Serial),
    ) -> bool {
        let knows = |peer: &Peer| {
            peer.echoed >= since && peer.said_epoch == epoch && peer.knows_far.contains(other)
        };
        self.peers.get(name).is_some_and(knows)
    }

    /// A heartbeat came; whether it counts. `joined` is the epoch under which this gateway joined.
    pub(super) fn hear(&mut self, heartbeat: &PeerHeartbeat, joined: Serial, now: u64) -> bool {
        let from = heartbeat.from.clone();
        let peer = self.peers.entry(from).or_insert_with(|| Peer::known_at(now));
        if heartbeat.heard < peer.echoed {
            return false;
        }
        // Without proof it is only answered: its next one may have one.
        peer.last_sent_at = heartbeat.sent_at;
        if heartbeat.heard + ECHO < now || heartbeat.heard == 0 {
            return false;
        }
        peer.echoed = heartbeat.heard;
        peer.heard_at = Some(now);
        if heartbeat.epoch >= joined && !peer.is_promised {
            peer.is_far = Some(heartbeat.is_far);
            peer.epoch = heartbeat.epoch;
        }
        peer.said_epoch = heartbeat.epoch;
        peer.knows_far.clone_from(&heartbeat.far);
        true
    }

    /// What the next heartbeat to a gateway says that it heard.
    pub(super) fn echo_for(&self, name: &GatewayName) -> u64 {
        self.peers.get(name).map_or(0, |peer| peer.last_sent_at)
    }

    /// Whether a gateway was heard in the last `silence` milliseconds.
    pub(super) fn is_heard(&self, name: &GatewayName, silence: u64, now: u64) -> bool {
        let heard = self.peers.get(name).and_then(|peer| peer.heard_at);
        heard.is_some_and(|heard| now < heard + silence)
    }

    /// Up to where this gateway knows another to have accepted packets: far where it does not know.
    pub(super) fn reach(&self, name: &GatewayName) -> Reach {
        match self.peers.get(name).and_then(|peer| peer.is_far) {
            Some(false) => Reach::Near,
            Some(true) | None => Reach::Far,
        }
    }

    /// Those of whom it is known, or not known otherwise, that they go up to their far edges.
    pub(super) fn far<'a>(
        &self,
        all: impl Iterator<Item = &'a GatewayName>,
    ) -> BTreeSet<GatewayName> {
        all.filter(|name| self.reach(name) == Reach::Far).cloned().collect()
    }
}

impl Peer {
    fn known_at(now: u64) -> Self {
        Self { known_at: now, ..Self::default() }
    }
}
