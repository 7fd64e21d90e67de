//! Who does not hear whom, and what follows: a gateway that most do not hear is down.
//!
//! A vote is a promise too: as long as it stands, the voter acknowledges nothing that the suspect
//! says of itself. So what votes say of the suspect's reach stays true until they are withdrawn,
//! and the transaction that takes the suspect's children hangs on the votes that were read.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    edges::Reach,
    members::{Duty, Members},
    names::GatewayName,
    seal::Serial,
    store::{StoreCondition, StoreOperation, StoreTransaction},
};

use super::{
    Agent, Purpose, StoreAnswer, StoreRequest,
    session::is_down,
    view::{Versioned, Vote},
};

/// What becomes of an own vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VoteChange {
    Cast,
    Withdrawn,
}

impl Agent {
    pub(super) fn judge_peers(&mut self, random: &mut dyn FnMut() -> u64) {
        let Some(members) = &self.view.members else { return };
        let others = members.record.gateways.iter();
        let others = others.filter(|(name, _)| **name != self.config.name);
        let others: Vec<_> =
            others.map(|(name, member)| (name.clone(), is_down(member.duty))).collect();
        for (name, is_down) in others {
            self.judge(&name, is_down, random);
        }
    }

    fn judge(&mut self, name: &GatewayName, is_down: bool, random: &mut dyn FnMut() -> u64) {
        let silence = self.config.timings.silence;
        let is_heard = self.peers.is_heard(name, silence, self.now);
        let is_suspect = !is_down && !is_heard && self.peers.is_expected(name, self.now);
        if is_suspect {
            self.peers.promise(name);
        }
        let is_asked = |purpose: &Purpose| matches!(purpose, Purpose::Vote(of, _) if of == name);
        if !self.has_store() || self.is_asked(is_asked) {
            return;
        }
        let own = self.view.vote(name, &self.config.name).map(|vote| vote.record.epoch);
        if is_suspect && own == Some(self.view.epoch()) {
            self.take_over(name, random);
        } else if is_suspect {
            self.cast(name, random);
        } else if own.is_some() || self.peers.may_have_vote(name) {
            self.withdraw(name);
        } else {
            self.peers.release(name);
        }
    }

    fn cast(&mut self, name: &GatewayName, random: &mut dyn FnMut() -> u64) {
        let key = self.keys.vote(name, &self.config.name);
        let vote = Vote {
            epoch: self.view.epoch(),
            reach: self.peers.reach(name),
            heard_epoch: self.peers.heard_epoch(name),
        };
        let value = self.seal(&key, Serial(self.now), &vote, random);
        self.peers.vote_may_stand(name);
        self.put_leased(key, value, Purpose::Vote(name.clone(), VoteChange::Cast));
    }

    fn withdraw(&mut self, name: &GatewayName) {
        let key = self.keys.vote(name, &self.config.name);
        let operations = vec![StoreOperation::Delete { key }];
        let transaction = StoreTransaction { conditions: Vec::new(), operations };
        let purpose = Purpose::Vote(name.clone(), VoteChange::Withdrawn);
        self.ask(StoreRequest::Commit(transaction), purpose);
    }

    /// A vote of which nobody knows whether it was written stands until it is withdrawn.
    pub(super) fn vote_changed(
        &mut self,
        name: &GatewayName,
        change: VoteChange,
        answer: &StoreAnswer,
    ) {
        match (change, answer) {
            (VoteChange::Withdrawn, StoreAnswer::Committed(_)) => {
                self.peers.vote_stands_no_more(name);
            }
            (VoteChange::Withdrawn | VoteChange::Cast, _) => {}
        }
    }

    /// Of whom this gateway acknowledges that they go to their far edges.
    pub(super) fn far_known(&self) -> BTreeSet<GatewayName> {
        let members = self.view.members.iter().flat_map(|members| members.record.gateways.keys());
        self.peers.far(members.filter(|name| **name != self.config.name))
    }

    /// Takes a suspect's children from it, where votes or the end of its lease allow it.
    fn take_over(&mut self, suspect: &GatewayName, random: &mut dyn FnMut() -> u64) {
        let Some(members) = &self.view.members else { return };
        let members = &members.record;
        let votes: BTreeMap<_, _> = self
            .view
            .votes_against(suspect)
            .filter(|(voter, _)| is_up(members, voter) && *voter != suspect)
            .collect();
        let Some(grounds) = self.grounds(members, suspect, votes.len()) else { return };
        if !self.is_turn(&votes) {
            return;
        }
        let reach = self.reach_by_votes(members, &votes);
        let Some(changed) = members.with_duty(suspect, Duty::Down(reach)) else { return };
        let mut conditions: Vec<_> = votes
            .iter()
            .map(|(voter, vote)| StoreCondition {
                key: self.keys.vote(suspect, voter),
                written: Some(vote.revision),
            })
            .collect();
        conditions.extend(grounds);
        self.write_members(&changed, conditions, random);
    }

    /// What allows it beside the votes, if anything does.
    fn grounds(
        &self,
        members: &Members,
        suspect: &GatewayName,
        votes: usize,
    ) -> Option<Vec<StoreCondition>> {
        let live = members
            .gateways
            .iter()
            .filter(|(name, member)| !is_down(member.duty) && self.view.live.contains(*name));
        let is_voted = Members::votes_needed(live.count()).is_some_and(|needed| votes >= needed);
        if is_voted {
            return Some(Vec::new());
        }
        let is_gone = !self.view.live.contains(suspect);
        is_gone.then(|| vec![StoreCondition { key: self.keys.gateway(suspect), written: None }])
    }

    /// The voters go by turns, a heartbeat apart, so that not all write at once.
    fn is_turn(&self, votes: &BTreeMap<&GatewayName, &Versioned<Vote>>) -> bool {
        let rank = votes.keys().position(|voter| **voter == self.config.name);
        let last = votes.values().map(|vote| vote.serial.0).max().unwrap_or(0);
        let waited = self.now.saturating_sub(last.min(self.now));
        rank.is_some_and(|rank| waited >= self.config.timings.heartbeat * rank as u64)
    }

    /// Near only where enough say so: the suspect goes far once more than half know it, so of all
    /// but the others, one would.
    fn reach_by_votes(
        &self,
        members: &Members,
        votes: &BTreeMap<&GatewayName, &Versioned<Vote>>,
    ) -> Reach {
        let knew_all = votes.values().all(|vote| vote.record.heard_epoch == self.view.epoch());
        let all = members.gateways.values();
        let asked = all.filter(|member| !knew_all || !is_down(member.duty)).count();
        let near = votes.values().filter(|vote| vote.record.reach == Reach::Near).count();
        if near == votes.len() && near >= asked.div_ceil(2) { Reach::Near } else { Reach::Far }
    }
}

fn is_up(members: &Members, name: &GatewayName) -> bool {
    members.gateways.get(name).is_some_and(|member| !is_down(member.duty))
}
