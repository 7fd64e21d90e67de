//! Starts, ends and upgrades of gateways.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    child::Child,
    client::{GROUPS, IKE, SCRIPT},
    names::{NETS, PolicySide, site_of},
    site::{Drained, End},
    static_keys::STATIC,
    world::World,
};
use crate::reconcile::sequences::condition::Condition;

impl World {
    /// Starts a gateway, if it does not run.
    pub(super) fn start(&mut self, site: usize) {
        if self.sites[site].run.is_some() {
            return;
        }
        self.sites[site].kernel.refuse(0);
        if let Err(error) = self.sites[site].start() {
            self.note(|| format!("{site} can't start: {error:#}"));
            assert!(!self.sites[site].disk.is_good(), "a good start fails: {error:#}");
            return;
        }
        let run = self.sites[site].run.as_mut().unwrap();
        run.join(IKE, GROUPS);
        run.join(SCRIPT, 0);
        let (condition, names) = (run.condition, run.names());
        self.note(|| format!("{site} starts, its store is {condition:?}"));
        let known = &mut self.known[site];
        if known.is_spoiled || !matches!(condition, Condition::Intact | Condition::New) {
            known.highest_received.clear();
            self.traffic.forget_static(site);
        }
        (known.is_on, known.is_spoiled) = (true, false);
        self.clients[site].forget();
        self.clients[site].states.extend(names);
        self.promise_from_start(site);
        self.clean_up(site);
        for peer in (0..self.sites.len()).filter(|peer| *peer != site) {
            for name in
                [(PolicySide::Out, (site, 0), (peer, 0)), (PolicySide::In, (peer, 0), (site, 0))]
            {
                self.ask_policy(name);
            }
        }
        self.audit(site);
    }

    fn promise_from_start(&mut self, site: usize) {
        let mut promised = BTreeSet::new();
        for (name, from, _) in &self.statics {
            let to = site_of(name.0).unwrap();
            if *from == site {
                promised.insert((PolicySide::Out, (site, STATIC), (to, STATIC)));
            } else if to == site {
                promised.insert((PolicySide::In, (*from, STATIC), (site, STATIC)));
            }
        }
        if self.blocks {
            for to in 0..self.sites.len() {
                for nets in 0..NETS * NETS {
                    promised.insert((PolicySide::Out, (site, nets / NETS), (to, nets % NETS)));
                }
            }
        }
        // Policies of programs are held until they come again.
        promised.extend(&self.known[site].written);
        self.traffic.promised.insert(site, promised);
    }

    /// The IKE daemon deletes some policies of states that it has lost, before it asks for them
    /// again.
    fn clean_up(&mut self, site: usize) {
        for name in self.known[site].written.clone() {
            if name.1.1 != STATIC && self.rng.below(2) == 0 {
                self.delete_policy(IKE, site, name);
            }
        }
    }

    pub(super) fn write_policies_down(&mut self, site: usize) {
        if self.sites[site].run.is_some() {
            self.sites[site].write_policies_down();
            let promised = self.traffic.promised.get(&site).cloned();
            self.known[site].written = promised.unwrap_or_default();
        }
    }

    /// Ends a gateway or its machine in a random way.
    pub(super) fn stop(&mut self, site: usize) {
        let end = [End::Orderly, End::Fault, End::Killed, End::PowerLoss][self.rng.below(4)];
        self.end(site, end);
    }

    pub(super) fn end(&mut self, site: usize, end: End) {
        if end == End::Orderly {
            self.write_policies_down(site);
        }
        let Some(left) = self.sites[site].end(end) else { return };
        self.note(|| format!("{site} ends: {end:?}, exact {}", left.is_exact));
        let known = &mut self.known[site];
        known.highest_received = if left.is_exact {
            left.highest_received.into_iter().collect()
        } else {
            BTreeMap::new()
        };
        known.is_spoiled &= !self.sites[site].disk.is_in_place();
        if end == End::PowerLoss {
            known.is_on = false;
            self.traffic.promised.remove(&site);
        }
        self.clients[site].forget();
        let concerned = |child: &Child| child.ends.contains(&site);
        let children: Vec<_> = self.children.iter().map(concerned).collect();
        for (number, _) in children.iter().enumerate().filter(|(_, concerned)| **concerned) {
            self.fail(number);
        }
    }

    /// Upgrades a gateway while packets pass; some upgrades fail.
    pub(super) fn upgrade(&mut self, site: usize) {
        self.run_housekeeping(site);
        if self.sites[site].run.is_none() {
            return;
        }
        let building = match self.sites[site].begin_upgrade() {
            Ok(building) => building,
            Err(error) => panic!("{site} can't be upgraded: {error:#}"),
        };
        for _ in 0..self.rng.below(6) {
            self.host_sends();
            let count = 1 + self.rng.below(4);
            self.wire_brings(count);
        }
        if self.rng.below(4) == 0 {
            self.note(|| format!("{site} is not upgraded"));
            drop(building);
            self.sites[site].call_off();
            return self.audit(site);
        }
        self.note(|| format!("{site} is upgraded"));
        // As at a start: a gateway that is refused its routes then ends.
        self.sites[site].kernel.refuse(0);
        let drained = self.sites[site].take_over(building);
        let Drained { wire, delivered, left } = drained.unwrap_or_else(|error| panic!("{error:#}"));
        for packet in &delivered {
            self.traffic.received(site, packet);
        }
        self.send(site, wire);
        self.known[site].highest_received = left.highest_received.into_iter().collect();
        self.audit(site);
        self.release(site);
    }
}
