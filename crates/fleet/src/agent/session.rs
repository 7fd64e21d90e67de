//! The agent's lease in etcd, its place among the members, and being without etcd.
//!
//! Whoever loses etcd may accept packets only up to its near edges. A gateway that goes on without
//! etcd tells the others, and once most of them know, it accepts up to its far edges: a vote
//! against it says so, and who takes over begins above those. If it is alone as well, it stops when
//! its lease ends.

use crate::{
    members::{Duty, Members},
    names::GatewayName,
    seal::Serial,
    store::{Stay, StoreCondition, StoreOperation, StoreTransaction},
};

use super::{Agent, GatewayOrder, Millis, Purpose, StoreRequest};

/// The agent's standing with etcd.
#[derive(Debug, Default)]
pub(super) struct Session {
    /// Until when the lease lives at least.
    held_until: Option<Millis>,
    /// When etcd answered last.
    contact_at: Option<Millis>,
    range: Range,
    /// The epoch under which this gateway joined, or was found among the members.
    joined: Option<Serial>,
    /// Since when it hears the others, while it is down.
    settled_since: Option<Millis>,
    /// The deadline that the gateway was told last.
    told: Option<Option<Millis>>,
}

/// Up to which edges the gateway accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Range {
    #[default]
    Near,
    /// It asks the others to know that it goes on, since then.
    Asking(Millis),
    Far,
    /// It has etcd again; its near edges are not yet there where it may have been.
    Returning,
}

impl Session {
    pub(super) fn contact(&mut self, now: Millis) {
        self.contact_at = Some(now);
    }

    pub(super) fn held(&mut self, until: Millis, now: Millis) {
        self.held_until = self.held_until.max(Some(until));
        self.contact(now);
    }

    pub(super) fn lost(&mut self) {
        self.held_until = None;
    }

    pub(super) fn is_held(&self, now: Millis) -> bool {
        self.held_until.is_some_and(|until| now < until)
    }

    /// What heartbeats say.
    pub(super) fn is_far(&self) -> bool {
        self.range != Range::Near
    }

    pub(super) const fn range(&self) -> Range {
        self.range
    }

    /// The near edges are above all that was accepted.
    pub(super) fn returned(&mut self) {
        self.range = Range::Near;
    }

    /// No epoch is that of joining before it joined.
    pub(super) fn joined(&self) -> Serial {
        self.joined.unwrap_or(Serial(u64::MAX))
    }

    /// Whether etcd can be asked.
    pub(super) fn has_store(&self, without: Millis, now: Millis) -> bool {
        self.is_held(now) && self.contact_at.is_some_and(|at| now < at + without)
    }
}

impl Agent {
    pub(super) fn keep_session(&mut self, random: &mut dyn FnMut() -> u64) {
        self.keep_range();
        self.tell_deadline();
        if !self.has_store() || self.view.revision.0 == 0 {
            return;
        }
        self.be_present(random);
        self.be_member(random);
    }

    pub(super) fn has_store(&self) -> bool {
        self.session.has_store(self.config.timings.without, self.now)
    }

    /// The own duty, as etcd said last.
    pub(super) fn duty(&self) -> Option<Duty> {
        let members = self.view.members.as_ref()?;
        Some(members.record.gateways.get(&self.config.name)?.duty)
    }

    fn keep_range(&mut self) {
        let has_contact =
            self.session.contact_at.is_some_and(|at| self.now < at + self.config.timings.without);
        match self.session.range {
            Range::Near if !has_contact && self.duty().is_some_and(has_children) => {
                self.session.range = Range::Asking(self.now);
            }
            Range::Asking(_) if has_contact => self.session.range = Range::Near,
            Range::Asking(since) if self.most_know(since) => {
                self.session.range = Range::Far;
                self.limit_far();
            }
            Range::Far if has_contact => {
                self.session.range = Range::Returning;
                self.limit_near();
            }
            // Nothing is left that went far.
            Range::Returning if self.moves.is_empty() => self.session.range = Range::Near,
            Range::Near | Range::Asking(_) | Range::Far | Range::Returning => {}
        }
    }

    /// Whether most of the gateways that are not down know that this one goes far.
    fn most_know(&self, since: Millis) -> bool {
        let Some(members) = &self.view.members else { return false };
        let up = members.record.gateways.iter();
        let up: Vec<_> = up.filter(|(_, member)| !is_down(member.duty)).collect();
        let knows = |name: &GatewayName| {
            *name == self.config.name
                || self.peers.knows_far_since(name, &self.config.name, (since, self.view.epoch()))
        };
        let knowing = up.iter().filter(|(name, _)| knows(name)).count();
        knowing > up.len() / 2
    }

    fn tell_deadline(&mut self) {
        let deadline = match self.session.range {
            Range::Near | Range::Asking(_) => Some(self.session.held_until.unwrap_or(0)),
            Range::Far | Range::Returning => None,
        };
        if self.session.told != Some(deadline) {
            self.session.told = Some(deadline);
            self.order(GatewayOrder::Deadline(deadline));
        }
    }

    fn be_present(&mut self, random: &mut dyn FnMut() -> u64) {
        let key = self.keys.gateway(&self.config.name);
        let is_asked = self.is_asked(|purpose| matches!(purpose, Purpose::Presence));
        if is_asked || self.view.live.contains(&self.config.name) {
            return;
        }
        let value = self.seal(&key, Serial(0), &self.config.member, random);
        self.put_leased(key, value, Purpose::Presence);
    }

    /// Writes something under the lease.
    pub(super) fn put_leased(&mut self, key: String, value: Vec<u8>, purpose: Purpose) {
        let put = StoreOperation::Put { key, value, stay: Stay::Leased };
        let transaction = StoreTransaction { conditions: Vec::new(), operations: vec![put] };
        self.ask(StoreRequest::Commit(transaction), purpose);
    }

    /// Joins, or comes back.
    fn be_member(&mut self, random: &mut dyn FnMut() -> u64) {
        match self.duty() {
            None => self.join(random),
            Some(Duty::Active | Duty::Draining) => {
                self.session.joined.get_or_insert_with(|| self.view.epoch());
                self.session.settled_since = None;
            }
            Some(Duty::Down(_)) => {
                self.session.joined.get_or_insert_with(|| self.view.epoch());
                self.come_back(random);
            }
        }
    }

    fn join(&mut self, random: &mut dyn FnMut() -> u64) {
        let mut members = match &self.view.members {
            Some(members) => members.record.clone(),
            None => Members::default(),
        };
        members.gateways.insert(self.config.name.clone(), self.config.member.clone());
        self.write_members(&members, Vec::new(), random);
    }

    fn come_back(&mut self, random: &mut dyn FnMut() -> u64) {
        let now = self.now;
        if !self.hears_most() || !self.moves.is_empty() {
            self.session.settled_since = None;
            return;
        }
        let since = *self.session.settled_since.get_or_insert(now);
        if now < since + self.config.timings.settle {
            return;
        }
        let members = self.view.members.as_ref();
        let back = members.and_then(|members| {
            members.record.with_duty(&self.config.name, self.config.member.duty)
        });
        if let Some(back) = back {
            self.write_members(&back, Vec::new(), random);
        }
    }

    /// Whether it hears more than half of the others that are not down.
    fn hears_most(&self) -> bool {
        let Some(members) = &self.view.members else { return false };
        let others = members.record.gateways.iter();
        let others =
            others.filter(|(name, member)| **name != self.config.name && !is_down(member.duty));
        let others: Vec<_> = others.map(|(name, _)| name).collect();
        let silence = self.config.timings.silence;
        let heard = others.iter().filter(|name| self.peers.is_heard(name, silence, self.now));
        heard.count() * 2 >= others.len()
    }

    /// Writes the members as the next epoch, if they are as they were and `conditions` hold.
    pub(super) fn write_members(
        &mut self,
        members: &Members,
        mut conditions: Vec<StoreCondition>,
        random: &mut dyn FnMut() -> u64,
    ) {
        if self.is_asked(|purpose| matches!(purpose, Purpose::Members)) {
            return;
        }
        let key = self.keys.members();
        let now = self.view.members.as_ref();
        let (epoch, written) = (self.view.epoch(), now.map(|members| members.revision));
        conditions.push(StoreCondition { key: key.clone(), written });
        let value = self.seal(&key, Serial(epoch.0 + 1), members, random);
        let put = StoreOperation::Put { key, value, stay: Stay::Forever };
        let transaction = StoreTransaction { conditions, operations: vec![put] };
        self.ask(StoreRequest::Commit(transaction), Purpose::Members);
    }
}

pub(super) const fn is_down(duty: Duty) -> bool {
    match duty {
        Duty::Active | Duty::Draining => false,
        Duty::Down(_) => true,
    }
}

const fn has_children(duty: Duty) -> bool {
    !is_down(duty)
}
