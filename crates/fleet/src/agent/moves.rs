//! How children come to this gateway, and go.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Agent, GatewayOrder, Purpose, StateDirection, StateInfo, StateUse, StoreAnswer, StoreRequest,
    claims::StatePlace,
    session::is_down,
    tenure::{Leaving, Phase, StateRate, StateTenure, Tenure, TenureId},
};
use crate::{
    desired::{DesiredTunnel, Lines},
    edges::{Edge, StateDigest},
    heartbeat::{PeerHeartbeat, Release},
    names::{ChildId, GatewayName},
    seal::Serial,
};

/// Most children that one heartbeat asks for, or releases: it goes in one datagram.
const MOST_IN_MAIL: usize = 100;

/// The children of this gateway.
#[derive(Debug, Default)]
pub(super) struct Moves {
    /// Which change of the view was followed.
    followed: Option<u64>,
    base: Option<Lines>,
    pub(super) tenures: BTreeMap<ChildId, Tenure>,
    leaving: BTreeMap<ChildId, Leaving>,
    last_tenure: TenureId,
    /// The children that went, with their states.
    released: BTreeMap<ChildId, Vec<StateDigest>>,
    /// Up to where states accepted packets, or began and accepted none, when they went.
    received: BTreeMap<StateDigest, u64>,
    asks: BTreeMap<GatewayName, BTreeSet<ChildId>>,
    /// What is to be told whom, with the next heartbeat.
    answers: BTreeMap<GatewayName, BTreeSet<ChildId>>,
    is_mail_new: bool,
}

impl Moves {
    pub(super) fn is_empty(&self) -> bool {
        self.tenures.is_empty() && self.leaving.is_empty()
    }

    /// How many children go.
    pub(super) fn leaving(&self) -> usize {
        self.leaving.len()
    }

    pub(super) const fn has_mail(&self) -> bool {
        self.is_mail_new
    }

    pub(super) fn asks_for(&self, to: &GatewayName) -> Vec<ChildId> {
        let asks = self.asks.get(to).into_iter().flatten();
        asks.take(MOST_IN_MAIL).cloned().collect()
    }

    /// What a gateway is to be told, under the epoch that this one knows.
    pub(super) fn releases_for(&self, to: &GatewayName, epoch: Serial) -> Vec<Release> {
        let owed = self.answers.get(to).into_iter().flatten();
        let release = |child: &ChildId| {
            let states = self.released.get(child)?.iter();
            let received = states.filter_map(|state| Some((*state, *self.received.get(state)?)));
            let received = received.collect();
            Some(Release { child: child.clone(), epoch, received })
        };
        owed.filter_map(release).take(MOST_IN_MAIL).collect()
    }

    pub(super) fn mail_went(&mut self) {
        self.answers.clear();
        self.is_mail_new = false;
    }

    /// Asks a gateway for a child, until it answers.
    pub(super) fn ask_for(&mut self, child: &ChildId, holder: &GatewayName) {
        let asks = self.asks.entry(holder.clone()).or_default();
        self.is_mail_new |= asks.insert(child.clone());
    }

    /// Up to where this gateway accepted packets of a state that it gave up.
    pub(super) fn received(&self, state: StateDigest) -> Option<u64> {
        self.received.get(&state).copied()
    }

    /// A state, where it is still that tenure.
    pub(super) fn state(&mut self, place: &StatePlace) -> Option<&mut StateTenure> {
        let tenure = self.tenures.get_mut(&place.child);
        let tenure = tenure.filter(|tenure| tenure.id == place.tenure)?;
        tenure.states.get_mut(&place.state)
    }

    /// What a gateway said that it accepted for a state.
    pub(super) fn released_by(&self, holder: &GatewayName, place: &StatePlace) -> Option<u64> {
        let tenure = self.tenures.get(&place.child)?;
        tenure.released.get(&(holder.clone(), place.state)).copied()
    }

    /// The states of one direction that the gateway has.
    pub(super) fn installed_states(
        &self,
        direction: StateDirection,
    ) -> impl Iterator<Item = (StatePlace, &StateTenure)> + '_ {
        let installed = self.tenures.iter();
        let installed = installed.filter(|(_, tenure)| tenure.phase == Phase::Installed);
        let states = installed.flat_map(|(child, tenure)| {
            let place = |state| StatePlace { child: child.clone(), tenure: tenure.id, state };
            tenure.states.iter().map(move |(name, state)| (place(*name), state))
        });
        states.filter(move |(_, state)| state.info.direction == direction)
    }

    /// The states that accept packets.
    pub(super) fn edges(&self) -> impl Iterator<Item = (StateDigest, Edge, &StateRate)> + '_ {
        let states = self.tenures.values().flat_map(|tenure| &tenure.states);
        states.filter_map(|(name, state)| Some((*name, state.edge?, &state.rate)))
    }

    /// Nobody is asked for a child any more.
    pub(super) fn ask_no_more(&mut self, child: &ChildId) {
        for asks in self.asks.values_mut() {
            asks.remove(child);
        }
        self.asks.retain(|_, asks| !asks.is_empty());
    }
}

impl Agent {
    /// Begins and ends children as members and tunnels say.
    pub(super) fn follow_placement(&mut self) {
        self.leave_at_last();
        if self.moves.followed == Some(self.view.changes) {
            return;
        }
        let Some((lines, own)) = self.placed_here() else { return };
        self.moves.followed = Some(self.view.changes);
        if self.moves.base.as_ref() != Some(&lines) {
            self.moves.base = Some(lines.clone());
            self.order(GatewayOrder::Base(lines));
        }
        let lost = self.moves.tenures.keys().filter(|child| !own.contains_key(child));
        let lost: Vec<_> = lost.cloned().collect();
        lost.into_iter().for_each(|child| self.lose(child));
        for (child, serial) in own {
            self.have(child, serial);
        }
        self.read_tunnels();
    }

    /// What all gateways have, and the children of this one with their tunnels' numbers.
    fn placed_here(&self) -> Option<(Lines, BTreeMap<ChildId, Serial>)> {
        let (desired, members) = (self.view.desired()?, self.view.members.as_ref()?);
        let children: Vec<_> = desired.children().collect();
        let owners = members.record.owners(&children);
        let own = children.iter().zip(owners);
        let own = own.filter(|(_, owner)| *owner == Some(&self.config.name));
        let serial = |child: &ChildId| desired.tunnel(&child.tunnel).map(|entry| entry.serial);
        let own = own.filter_map(|(child, _)| Some((child.clone(), serial(child)?))).collect();
        Some((desired.lines, own))
    }

    fn have(&mut self, child: ChildId, serial: Serial) {
        if self.moves.leaving.contains_key(&child) {
            return;
        }
        let (now, last) = (self.now, &mut self.moves.last_tenure);
        let tenure = self.moves.tenures.entry(child).or_insert_with(|| Tenure {
            id: {
                last.0 += 1;
                *last
            },
            serial,
            phase: Phase::Wanted,
            states: BTreeMap::new(),
            released: BTreeMap::new(),
            since: now,
        });
        if tenure.serial != serial {
            tenure.serial = serial;
            tenure.phase = Phase::Wanted;
        }
    }

    fn lose(&mut self, child: ChildId) {
        let Some(tenure) = self.moves.tenures.remove(&child) else { return };
        self.moves.ask_no_more(&child);
        let is_there = match tenure.phase {
            Phase::Wanted | Phase::Reading => !tenure.states.is_empty(),
            Phase::Installing | Phase::Installed | Phase::Refused => true,
        };
        if is_there {
            let (since, states) = (self.now, tenure.states);
            let leaving = Leaving { states, since, asker: None, is_freezing: false };
            self.moves.leaving.insert(child, leaving);
        }
    }

    /// Children that nobody asks for go all the same; at once where others have them for sure.
    fn leave_at_last(&mut self) {
        let is_down = self.duty().is_some_and(is_down);
        let patience = self.config.timings.patience;
        let due = self.moves.leaving.iter_mut().filter(|(_, leaving)| {
            !leaving.is_freezing && (is_down || self.now >= leaving.since + patience)
        });
        let mut freezing = Vec::new();
        for (child, leaving) in due {
            leaving.is_freezing = true;
            freezing.push(child.clone());
        }
        freezing.into_iter().for_each(|child| self.order(GatewayOrder::Freeze(child)));
    }

    fn read_tunnels(&mut self) {
        let wanted = self.moves.tenures.iter_mut();
        let wanted = wanted.filter(|(_, tenure)| tenure.phase == Phase::Wanted);
        let mut reads = Vec::new();
        for (child, tenure) in wanted {
            tenure.phase = Phase::Reading;
            reads.push((child.clone(), self.keys.tunnel(&child.tunnel, tenure.serial)));
        }
        for (child, key) in reads {
            self.ask(StoreRequest::Read(key), Purpose::Tunnel(child));
        }
    }

    pub(super) fn tunnel_came(&mut self, child: &ChildId, answer: StoreAnswer) {
        let Some(tenure) = self.moves.tenures.get_mut(child) else { return };
        if tenure.phase != Phase::Reading {
            return;
        }
        let key = self.keys.tunnel(&child.tunnel, tenure.serial);
        let lines = match answer {
            StoreAnswer::Records(_, records) => {
                let record = records.iter().find(|(at, _)| *at == key);
                let opened =
                    record.and_then(|(_, stored)| self.keyring.open(&key, &stored.value).ok());
                let tunnel = opened.and_then(|opened| serde_json::from_slice(&opened.text).ok());
                tunnel.and_then(|tunnel: DesiredTunnel| lines_of(tunnel, child.index))
            }
            StoreAnswer::Committed(_) | StoreAnswer::Refused | StoreAnswer::Unknown => None,
        };
        match lines {
            Some(lines) => {
                tenure.phase = Phase::Installing;
                self.order(GatewayOrder::Install(child.clone(), lines));
            }
            // It was replaced meanwhile, or etcd did not answer: it is read again.
            None => {
                tenure.phase = Phase::Wanted;
                self.moves.followed = None;
            }
        }
    }

    pub(super) fn installed(&mut self, child: &ChildId, infos: &[StateInfo]) {
        let Some(tenure) = self.moves.tenures.get_mut(child) else { return };
        if tenure.phase == Phase::Installing {
            tenure.phase = Phase::Installed;
        }
        let names: BTreeSet<_> = infos.iter().map(|info| info.state).collect();
        tenure.states.retain(|state, _| names.contains(state));
        for info in infos {
            tenure.states.entry(info.state).or_insert_with(|| StateTenure {
                info: *info,
                start: None,
                edge: None,
                lease: None,
                rate: StateRate::default(),
            });
        }
    }

    pub(super) fn refused(&mut self, child: &ChildId, why: &str) {
        if let Some(tenure) = self.moves.tenures.get_mut(child) {
            tenure.phase = Phase::Refused;
            self.view.refused.push(format!("{child}: {why}"));
        }
    }

    pub(super) fn used(&mut self, uses: &[StateUse]) {
        let uses: BTreeMap<_, _> = uses.iter().map(|used| (used.state, used)).collect();
        for tenure in self.moves.tenures.values_mut() {
            for (name, state) in &mut tenure.states {
                if let Some(used) = uses.get(name) {
                    state.rate.at(used, self.now);
                }
            }
        }
    }

    pub(super) fn frozen(&mut self, child: &ChildId, uses: &[StateUse]) {
        let Some(leaving) = self.moves.leaving.remove(child) else { return };
        let uses: BTreeMap<_, _> = uses.iter().map(|used| (used.state, used.number)).collect();
        for (name, state) in &leaving.states {
            // One that was never opened accepted nothing.
            let used = state.edge.and_then(|_| uses.get(name).copied());
            if let Some(start) = state.start {
                self.moves.received.insert(*name, used.map_or(start, |used| used.max(start)));
            }
        }
        let states = leaving.states.into_keys().collect();
        self.moves.released.insert(child.clone(), states);
        self.order(GatewayOrder::Remove(child.clone()));
        if let Some(asker) = leaving.asker {
            self.answer(asker, child.clone());
        }
        // It may be this gateway's again.
        self.moves.followed = None;
    }

    fn answer(&mut self, asker: GatewayName, child: ChildId) {
        self.moves.answers.entry(asker).or_default().insert(child);
        self.moves.is_mail_new = true;
    }

    /// What another gateway asks for, and what it releases.
    pub(super) fn mail_came(&mut self, heartbeat: &PeerHeartbeat) {
        for child in &heartbeat.asks {
            self.asked_for(child, &heartbeat.from);
        }
        for release in &heartbeat.releases {
            if release.epoch == self.view.epoch()
                && let Some(tenure) = self.moves.tenures.get_mut(&release.child)
            {
                let from = |state| (heartbeat.from.clone(), state);
                let received = release.received.iter();
                tenure.released.extend(received.map(|(state, number)| (from(*state), *number)));
                self.moves.ask_no_more(&release.child);
            }
        }
    }

    fn asked_for(&mut self, child: &ChildId, asker: &GatewayName) {
        if let Some(leaving) = self.moves.leaving.get_mut(child) {
            leaving.asker = Some(asker.clone());
            if !leaving.is_freezing {
                leaving.is_freezing = true;
                self.order(GatewayOrder::Freeze(child.clone()));
            }
        } else if !self.moves.tenures.contains_key(child) && self.moves.released.contains_key(child)
        {
            self.answer(asker.clone(), child.clone());
        }
    }

    /// Whether who had a child was asked for it long enough.
    pub(super) fn patience_ended(&self, place: &StatePlace) -> bool {
        let since = self.moves.tenures.get(&place.child).map_or(0, |tenure| tenure.since);
        self.now >= since + self.config.timings.patience
    }
}

fn lines_of(mut tunnel: DesiredTunnel, index: u16) -> Option<Vec<Lines>> {
    let index = usize::from(index);
    (index < tunnel.children.len()).then(|| vec![tunnel.lines, tunnel.children.swap_remove(index)])
}
