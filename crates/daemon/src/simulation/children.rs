//! IKE daemons: pairs of states that they negotiate, rekey and delete, as charon does, and what
//! they do with answers.

use std::net::IpAddr;

use uxfrm_netlink::{AttributeType, NetlinkMessages, client::ReplyStatus};
use uxfrm_xfrm::answer::{AnswerMessage, Change};

use super::{
    child::{Child, Phase},
    client::{self, IKE, Purpose},
    names::{Name, PolicySide, site_of},
    world::World,
};

const ESRCH: i32 = 3;
const ENOENT: i32 = 2;

impl World {
    /// Begins a negotiation.
    pub(super) fn negotiate(&mut self, from: usize, to: usize) {
        if [from, to].iter().any(|site| self.sites[*site].run.is_none()) {
            return;
        }
        let ends = [from, to];
        let is_busy = |child: &Child| {
            let concerned = child.ends == ends || child.ends == [to, from];
            concerned && matches!(child.phase, Phase::Spi(_) | Phase::Install(..))
        };
        if self.children.iter().any(is_busy) {
            return;
        }
        let (here, there) = self.ends(from, to);
        let mut keys = [[0; 20]; 2];
        keys.iter_mut().for_each(|key| self.rng.fill(key));
        let reqid = self.reqid(from, to);
        let words = match self.rng.below(4) {
            0 => format!("reqid {reqid} replay-window 32"),
            1 => format!("reqid {reqid} replay-window 128 flag esn"),
            2 => {
                format!("reqid {reqid} replay-window 64 limit packet-soft 20 limit packet-hard 40")
            }
            _ => format!("reqid {reqid} replay-window 64 limit time-soft 20 limit time-hard 90"),
        };
        let number = self.children.len();
        self.note(|| format!("child {number} of {from} and {to}: {words}"));
        let addresses = [here, there];
        let phase = Phase::Spi(0);
        self.children.push(Child { ends, addresses, spis: [0; 2], keys, words, phase });
        self.ask_spi(number, 0);
    }

    fn ask_spi(&mut self, number: usize, end: usize) {
        let child = &self.children[number];
        let (from, to) = (child.addresses[1 - end], child.addresses[end]);
        let reqid = self.reqid(child.ends[0], child.ends[1]);
        let line = format!(
            "state allocspi src {from} dst {to} proto esp mode tunnel reqid {reqid} min 0x10000 max 0xfffffff0"
        );
        let site = child.ends[end];
        self.clients[site].ask(IKE, &line, Purpose::Spi { child: number, end });
    }

    /// The next step, once all requests of this one are answered.
    fn advance(&mut self, number: usize) {
        let child = &mut self.children[number];
        match child.phase {
            Phase::Spi(0) => {
                child.phase = Phase::Spi(1);
                self.ask_spi(number, 1);
            }
            Phase::Spi(_) => self.install(number, 1),
            Phase::Install(end, due) if due > 1 => child.phase = Phase::Install(end, due - 1),
            Phase::Install(1, _) => self.install(number, 0),
            Phase::Install(..) => {
                child.phase = Phase::Up;
                let ends = child.ends;
                let is_older = |(other, child): &(usize, &Child)| {
                    *other != number
                        && child.phase == Phase::Up
                        && ends.iter().all(|end| child.ends.contains(end))
                };
                let older = self.children.iter().enumerate().filter(is_older);
                let older: Vec<_> = older.map(|(other, _)| other).collect();
                older.into_iter().for_each(|other| self.fail(other));
            }
            Phase::Up | Phase::Dead => {}
        }
    }

    /// Installs both states at one end.
    fn install(&mut self, number: usize, end: usize) {
        let child = self.children[number].clone();
        self.children[number].phase = Phase::Install(end, 2);
        for (place, verb) in [(end, "update"), (1 - end, "add")] {
            let (name, source) = (child.name(place), child.addresses[1 - place]);
            let line = client::state(verb, source, name, &child.keys[place], &child.words);
            self.clients[child.ends[end]].ask(IKE, &line, Purpose::Install { child: number, name });
        }
    }

    /// Deletes what a pair has: it was replaced, or its negotiation failed.
    pub(super) fn fail(&mut self, number: usize) {
        let child = &mut self.children[number];
        if child.phase == Phase::Dead {
            return;
        }
        child.phase = Phase::Dead;
        let (ends, names) = (child.ends, [child.name(0), child.name(1)]);
        for site in ends {
            for name in names {
                if self.clients[site].states.contains(&name) {
                    self.delete(site, name);
                }
            }
        }
    }

    /// Moves one end of a pair to another address.
    pub(super) fn rename_end(&mut self, site: usize, peer: usize) {
        let pair = (site.min(peer), site.max(peer));
        let of_pair = |child: &&Child| child.ends.contains(&site) && child.ends.contains(&peer);
        let living: Vec<_> = (0..self.children.len())
            .filter(|number| of_pair(&&self.children[*number]))
            .filter(|number| self.children[*number].phase != Phase::Dead)
            .collect();
        let [number] = living[..] else { return };
        let at_rest = [site, peer].iter().all(|end| {
            let churned = |policy: &(PolicySide, (usize, u8), (usize, u8))| {
                policy.1.1 != 0
                    && [policy.1.0, policy.2.0].contains(&site)
                    && [policy.1.0, policy.2.0].contains(&peer)
            };
            self.sites[*end].run.is_some()
                && self.clients[*end].is_idle()
                && !self.clients[*end].policies.iter().any(churned)
                && self.clients[*end].policies.contains(&(
                    PolicySide::Out,
                    (*end, 0),
                    (site + peer - *end, 0),
                ))
        });
        let child = self.children[number].clone();
        if child.phase != Phase::Up || !at_rest {
            return;
        }
        let names = [child.name(0), child.name(1)];
        if child
            .ends
            .iter()
            .any(|end| names.iter().any(|name| !self.clients[*end].states.contains(name)))
        {
            return;
        }
        let places = self.places.entry(pair).or_insert([0; 2]);
        let which = usize::from(site == pair.1);
        places[which] = 1 - places[which];
        let (one, other) = self.ends(child.ends[0], child.ends[1]);
        let addresses = [one, other];
        self.children[number].addresses = addresses;
        self.note(|| format!("{site} moves: child {number} is at {addresses:?} now"));
        for (place, end) in child.ends.into_iter().enumerate() {
            let far = child.ends[1 - place];
            for (side, to) in [(PolicySide::Out, 1 - place), (PolicySide::In, place)] {
                let policy = match side {
                    PolicySide::Out => (side, (end, 0), (far, 0)),
                    PolicySide::In => (side, (far, 0), (end, 0)),
                };
                let old = (child.addresses[1 - to], child.addresses[to]);
                let new = (addresses[1 - to], addresses[to]);
                let (old_name, new_name) = (child.name(to), self.children[number].name(to));
                self.traffic.rename(old_name, new_name);
                let purpose = Purpose::Migrate { child: number, old: old_name, new: new_name };
                let reqid = self.reqid(site, peer);
                self.clients[end].migrate(policy, reqid, [old, new], purpose);
            }
        }
    }

    /// The IKE daemon updates a state.
    pub(super) fn change_words(&mut self, site: usize) {
        let is_up = |child: &&Child| child.phase == Phase::Up && child.ends.contains(&site);
        let Some(child) = self.children.iter().rfind(is_up).cloned() else { return };
        let end = usize::from(child.ends[1] == site);
        let (name, source) = (child.name(end), child.addresses[1 - end]);
        if self.clients[site].states.contains(&name) {
            let line = client::state("update", source, name, &child.keys[end], &child.words);
            self.clients[site].ask(IKE, &line, Purpose::Change { name });
        }
    }

    /// Delivers answers and events to clients.
    pub(super) fn hear(&mut self, site: usize, datagrams: Vec<(u32, Vec<u8>)>) {
        for (_, datagram) in datagrams {
            for message in NetlinkMessages::of(&datagram) {
                let seq = message.header.seq;
                let Some(purpose) = self.clients[site].purpose(seq) else {
                    self.event(site, &AnswerMessage::of(&message));
                    continue;
                };
                match ReplyStatus::of(&message) {
                    ReplyStatus::Content => {
                        self.content(site, purpose, &AnswerMessage::of(&message))
                    }
                    ReplyStatus::Done { .. } => {
                        self.clients[site].answered(seq);
                        self.done(site, purpose);
                    }
                    ReplyStatus::Refused(refusal) => {
                        self.clients[site].answered(seq);
                        self.note(|| format!("{site} refuses {purpose:?}: {refusal:?}"));
                        self.refused(site, purpose, refusal.errno);
                    }
                    ReplyStatus::Broken => panic!("a broken answer to {purpose:?}"),
                }
            }
        }
    }

    fn content(&mut self, site: usize, purpose: Purpose, answer: &AnswerMessage<'_>) {
        let AnswerMessage::State(state) = answer else { panic!("{answer:?} to {purpose:?}") };
        let address = <[u8; 4]>::try_from(&state.info.id.destination[..4]).unwrap();
        let name = (IpAddr::from(address), state.info.id.spi.get());
        match purpose {
            Purpose::Spi { child, end } => {
                self.children[child].spis[end] = name.1;
                let key = self.children[child].keys[end];
                self.traffic.learn_key(name, key);
            }
            // Of larval states, which have no key, clients need not know when they go.
            Purpose::Dump => {
                if state.found.value(AttributeType::AlgAead).is_some() {
                    self.clients[site].shown.insert(name);
                }
            }
            Purpose::Install { .. }
            | Purpose::Change { .. }
            | Purpose::Delete { .. }
            | Purpose::AddStatic { .. }
            | Purpose::Policy(_)
            | Purpose::DeletePolicy(_)
            | Purpose::Migrate { .. }
            | Purpose::Flush => panic!("{purpose:?} is answered with a state"),
        }
    }

    fn done(&mut self, site: usize, purpose: Purpose) {
        let clients = &mut self.clients[site];
        match purpose {
            Purpose::Spi { child, .. } => self.advance(child),
            Purpose::Install { child, name } => {
                clients.states.insert(name);
                self.check_new(site, name);
                if self.children[child].phase == Phase::Dead {
                    self.delete(site, name);
                } else {
                    self.advance(child);
                }
            }
            Purpose::Change { .. } => {}
            Purpose::Delete { name } => {
                clients.states.remove(&name);
            }
            Purpose::AddStatic { name } => {
                clients.states.insert(name);
                self.check_new(site, name);
            }
            Purpose::Policy(name) => {
                clients.policies.insert(name);
                self.traffic.promise(site, name);
            }
            Purpose::DeletePolicy(name) => {
                clients.policies.remove(&name);
            }
            Purpose::Migrate { child, old, new } => {
                assert!(clients.states.remove(&old), "a state that moves is there");
                clients.states.insert(new);
                self.check_new(site, new);
                if self.children[child].phase == Phase::Dead {
                    self.delete(site, new);
                }
            }
            Purpose::Flush => {
                clients.states.clear();
                self.missing_statics(site);
                for number in 0..self.children.len() {
                    if self.children[number].ends.contains(&site) {
                        self.fail(number);
                    }
                }
            }
            Purpose::Dump => {
                let shown = &clients.shown;
                let missing = clients.states.difference(shown).next();
                assert!(missing.is_none(), "a dump of {site} does not show {missing:?}");
                let more = shown.difference(&clients.states).next();
                assert!(more.is_none(), "a dump of {site} shows {more:?}");
            }
        }
    }

    /// A state that was acknowledged can send.
    fn check_new(&self, site: usize, name: Name) {
        let Some(run) = &self.sites[site].run else { return };
        let Some(sa) = run.state(name) else { return };
        let numbers = sa.sequence();
        assert!(
            numbers.reserved() > numbers.last() || numbers.is_closed(),
            "{site} said that {name:?} is there, and it has no numbers to send with"
        );
    }

    fn refused(&mut self, site: usize, purpose: Purpose, errno: i32) {
        if let Some(run) = &self.sites[site].run
            && run.nic.as_ref().is_some_and(|nic| nic.refuses)
        {
            // What a device does not take any more does not come back (docs/simulation.md,
            // "Known").
            let there = run.names();
            self.clients[site].states.retain(|name| there.contains(name));
        }
        match purpose {
            Purpose::Spi { child, .. } | Purpose::Install { child, .. } => self.fail(child),
            Purpose::Change { .. } | Purpose::Flush | Purpose::AddStatic { .. } => {}
            Purpose::Delete { name } if errno == ESRCH => {
                self.clients[site].states.remove(&name);
            }
            Purpose::Delete { name } => self.delete(site, name),
            Purpose::Policy(name) => self.ask_policy(name),
            Purpose::DeletePolicy(name) if errno == ENOENT => {
                self.clients[site].policies.remove(&name);
            }
            // It stays, and is made sure of.
            Purpose::DeletePolicy(name) => self.ask_policy(name),
            Purpose::Migrate { child, old, .. } => {
                // The other end may have moved: they begin anew where the pair is now.
                let ends = self.children[child].ends;
                self.fail(child);
                if self.clients[site].states.contains(&old) {
                    self.delete(site, old);
                }
                for (one, other) in [(ends[0], ends[1]), (ends[1], ends[0])] {
                    for policy in [
                        (PolicySide::Out, (one, 0), (other, 0)),
                        (PolicySide::In, (other, 0), (one, 0)),
                    ] {
                        self.ask_policy(policy);
                    }
                }
            }
            Purpose::Dump => panic!("a dump is refused: {errno}"),
        }
    }

    fn event(&mut self, site: usize, event: &AnswerMessage<'_>) {
        let name = |raw: &[u8; 16], spi: u32| (IpAddr::from([raw[0], raw[1], raw[2], raw[3]]), spi);
        if let AnswerMessage::Acquire(acquire, _) = event {
            let peer = site_of(name(&acquire.id.destination, 0).0);
            self.note(|| format!("{site} wants a state towards {peer:?}"));
            if let Some(peer) = peer.filter(|peer| *peer < self.sites.len() && *peer != site) {
                self.negotiate(site, peer);
            }
        } else if let AnswerMessage::State(state) = event
            && let Change::Expired { hard } = state.change
        {
            let name = name(&state.info.id.destination, state.info.id.spi.get());
            self.expired(site, name, hard != 0);
        }
    }

    fn expired(&mut self, site: usize, name: Name, is_hard: bool) {
        self.note(|| format!("{site} tells that {:x} expires, hard: {is_hard}", name.1));
        let of = |child: &Child| child.name(0) == name || child.name(1) == name;
        let child = self.children.iter().position(of);
        if is_hard {
            self.clients[site].states.remove(&name);
            child.into_iter().for_each(|child| self.fail(child));
        } else if let Some(child) = child {
            let [one, other] = self.children[child].ends;
            self.negotiate(one, other);
        }
    }

    /// Begins a negotiation for all pairs without states.
    pub(super) fn reconnect(&mut self) {
        for from in 0..self.sites.len() {
            for to in from + 1..self.sites.len() {
                let is_up = |child: &Child| {
                    child.phase == Phase::Up
                        && child.ends.contains(&from)
                        && child.ends.contains(&to)
                };
                if !self.children.iter().any(is_up) {
                    self.negotiate(from, to);
                }
            }
        }
    }
}
