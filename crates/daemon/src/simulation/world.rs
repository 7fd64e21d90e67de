//! Gateways, their programs, and a wire between them; a seed decides each step.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::Path,
    time::Duration,
};

use uxfrm_engine::OffloadKind;
use uxfrm_testkit::Rng;

use super::{
    child::Child,
    client::{self, Clients, IKE, Purpose, SCRIPT},
    machine,
    names::{Name, PolicyName, PolicySide, outer},
    site::{End, Site},
    static_keys::{STATIC, batch, statics},
    trace::Trace,
    traffic_record::TrafficRecord,
    wire::Wire,
};
use crate::protocol::Outbox;

/// Networks whose policies come and go.
pub(super) const CHURN: std::ops::Range<u8> = 1..STATIC;

/// What the test knows of a machine.
#[derive(Debug, Default)]
pub(super) struct MachineFacts {
    /// Whether it is powered on.
    pub(super) is_on: bool,
    /// Whether its store is not what its last run wrote.
    pub(super) is_spoiled: bool,
    /// What states had received at the end of the last run, where the next one has to know it
    /// exactly.
    pub(super) highest_received: BTreeMap<Name, u64>,
    /// What the gateway had promised when it last wrote its policies down.
    pub(super) written: BTreeSet<PolicyName>,
}

/// Gateways, their programs, and the wire.
pub(super) struct World {
    pub(super) rng: Rng,
    /// Decides when texts are read, and what is in them.
    pub(super) syncs: Rng,
    pub(super) sites: Vec<Site>,
    pub(super) clients: Vec<Clients>,
    pub(super) children: Vec<Child>,
    /// The addresses of each pair's tunnel, by index.
    pub(super) places: BTreeMap<(usize, usize), [u8; 2]>,
    pub(super) known: Vec<MachineFacts>,
    pub(super) traffic: TrafficRecord,
    pub(super) wire: Wire,
    pub(super) trace: Trace,
    outbox: Outbox,
    pub(super) statics: Vec<(Name, usize, [u8; 20])>,
    /// Whether a policy blocks all traffic that no other policy matches.
    pub(super) blocks: bool,
    pub(super) copies: Vec<Vec<u8>>,
    /// Whether all faults have ended.
    pub(super) is_calm: bool,
}

impl World {
    pub(super) fn new(seed: u64, scratch: &Path, trace: Trace) -> Self {
        machine::begin(seed);
        let mut rng = Rng::new(seed);
        let count = 2 + rng.below(3);
        let blocks = rng.below(2) == 0;
        let statics = statics(&mut rng, count);
        let sites = (0..count).map(|site| {
            let path = scratch.join(format!("{seed}-{site}.batch"));
            let offload = match rng.below(4) {
                0 => Some(OffloadKind::Crypto),
                1 => Some(OffloadKind::Packet),
                _ => None,
            };
            std::fs::write(&path, batch(site, &statics, blocks, offload)).unwrap();
            let workers = 1 + u32::try_from(rng.below(2)).unwrap();
            Site::new(site, path, workers, offload)
        });
        let sites: Vec<_> = sites.collect();
        let mut traffic = TrafficRecord::default();
        statics.iter().for_each(|(name, _, key)| traffic.learn_key(*name, *key));
        let mut world = Self {
            rng,
            syncs: Rng::new(!seed),
            sites,
            clients: (0..count).map(|_| Clients::default()).collect(),
            children: Vec::new(),
            places: BTreeMap::new(),
            known: (0..count).map(|_| MachineFacts::default()).collect(),
            traffic,
            wire: Wire::default(),
            trace,
            outbox: Outbox::default(),
            statics,
            blocks,
            copies: Vec::new(),
            is_calm: false,
        };
        world.note(|| {
            let offload: Vec<_> = world.sites.iter().map(|site| site.offload).collect();
            format!("{count} gateways, all else blocked: {blocks}, devices {offload:?}")
        });
        (0..count).for_each(|site| world.start(site));
        world
    }

    pub(super) fn note(&self, text: impl FnOnce() -> String) {
        self.trace.note(text);
    }

    pub(super) fn some_site(&mut self) -> usize {
        self.rng.below(self.sites.len())
    }

    pub(super) fn another_site(&mut self, than: usize) -> usize {
        (than + 1 + self.rng.below(self.sites.len() - 1)) % self.sites.len()
    }

    /// One random step.
    pub(super) fn step(&mut self) {
        match self.rng.below(100) {
            0..26 => self.host_sends(),
            26..48 => {
                let count = 1 + self.rng.below(8);
                self.wire_brings(count);
            }
            48..64 => self.some_requests(),
            64..73 => {
                let site = self.some_site();
                self.run_housekeeping(site);
            }
            73..78 => self.time_passes(),
            78..87 => self.somebody_wants_something(),
            87..91 => self.attack(),
            91..94 => self.break_something(),
            94 => self.touch_store(),
            95 => {
                let site = self.some_site();
                self.upgrade(site);
            }
            96 | 97 => {
                let site = self.some_site();
                self.stop(site);
            }
            _ => {
                let site = self.some_site();
                self.start(site);
            }
        }
        self.perhaps_sync();
        for site in 0..self.sites.len() {
            if let Some(run) = &self.sites[site].run {
                run.check_accounts();
            }
        }
    }

    /// Queues a policy of the IKE daemon.
    pub(super) fn ask_policy(&mut self, name: PolicyName) {
        let (side, from, to) = name;
        let site = if side == PolicySide::Out { from.0 } else { to.0 };
        let ends = self.ends(from.0, to.0);
        let line = client::policy("update", name, ends, self.reqid(from.0, to.0));
        self.clients[site].ask(IKE, &line, Purpose::Policy(name));
    }

    /// The addresses between which a pair has its tunnel.
    pub(super) fn ends(&self, from: usize, to: usize) -> (IpAddr, IpAddr) {
        let [low, high] = self.places.get(&(from.min(to), from.max(to))).copied().unwrap_or([0; 2]);
        let (here, there) = if from < to { (low, high) } else { (high, low) };
        (outer(from, here).into(), outer(to, there).into())
    }

    pub(super) fn reqid(&self, one: usize, other: usize) -> u32 {
        u32::try_from(1 + one.min(other) * 10 + one.max(other)).unwrap()
    }

    /// A round of requests at a random gateway.
    fn some_requests(&mut self) {
        let (site, most) = (self.some_site(), 1 + self.rng.below(6));
        self.requests(site, most);
    }

    pub(super) fn requests(&mut self, site: usize, most: usize) {
        let Some(run) = &mut self.sites[site].run else { return };
        let taken = self.clients[site].take(most);
        if taken.is_empty() {
            return;
        }
        for (from, purpose, _) in &taken {
            match purpose {
                // What an IKE daemon deletes stays held.
                Purpose::DeletePolicy(name)
                    if *from != IKE && (!self.blocks || name.0 == PolicySide::In) =>
                {
                    self.traffic.promised.entry(site).or_default().remove(name);
                }
                Purpose::Flush | Purpose::AddStatic { .. } => self.traffic.forget_static(site),
                Purpose::Delete { name } if self.statics.iter().any(|known| known.0 == *name) => {
                    self.traffic.forget_static(site);
                }
                Purpose::Dump => self.clients[site].shown.clear(),
                Purpose::DeletePolicy(_)
                | Purpose::Delete { .. }
                | Purpose::Spi { .. }
                | Purpose::Install { .. }
                | Purpose::Change { .. }
                | Purpose::Policy(_)
                | Purpose::Migrate { .. } => {}
            }
        }
        self.trace.note(|| {
            let purposes: Vec<_> = taken.iter().map(|(_, purpose, _)| purpose).collect();
            format!("{site} is asked {purposes:?}")
        });
        let requests: Vec<_> =
            taken.into_iter().map(|(client, _, bytes)| (client, bytes)).collect();
        if !self.is_calm && self.rng.below(40) == 0 {
            run.handle_only(&requests, &mut self.outbox);
            self.outbox = Outbox::default();
            self.end(site, End::Killed);
            // Requests that were under way begin where the journal has them, without an answer.
            return self.known[site].highest_received.clear();
        }
        let answers = run.round(&requests, &mut self.outbox);
        self.hear(site, answers);
        let all = self.clients[site].are_all_answered();
        assert!(all, "{site} leaves requests unanswered: {:?}", self.clients[site]);
        self.audit(site);
        self.release(site);
    }

    /// The control thread's turn.
    pub(super) fn run_housekeeping(&mut self, site: usize) {
        let Some(run) = &mut self.sites[site].run else { return };
        let news = run.run_housekeeping(&mut self.outbox);
        if self.rng.below(2) == 0 {
            self.write_policies_down(site);
        }
        self.hear(site, news);
        self.audit(site);
        self.release(site);
    }

    pub(super) fn release(&mut self, site: usize) {
        let Some(run) = &mut self.sites[site].run else { return };
        let sent = run.release();
        self.send(site, sent);
    }

    /// Asserts that a gateway has what it acknowledged.
    pub(super) fn audit(&self, site: usize) {
        let Some(run) = &self.sites[site].run else { return };
        let names: BTreeSet<_> = run.names().into_iter().collect();
        let said = &self.clients[site].states;
        assert_eq!(&names, said, "states of {site}: there, and as it said");
        let policies = run.policies();
        let missing = self.clients[site].policies.iter().find(|name| !policies.contains(*name));
        assert!(missing.is_none(), "{site} said that it has the policy {missing:?}");
        let Some(file) = self.sites[site].disk.file_in_place() else { return };
        run.check_reservations(&file);
    }

    fn time_passes(&mut self) {
        let milliseconds = match self.rng.below(10) {
            0..6 => self.rng.below(300),
            6..9 => 300 + self.rng.below(3000),
            _ => 60_000,
        };
        if self.rng.below(20) == 0 {
            machine::step_wall(if self.rng.below(2) == 0 {
                -3_600_000_000_000
            } else {
                86_400_000_000_000
            });
        }
        self.note(|| format!("{milliseconds} ms pass"));
        machine::pass(Duration::from_millis(milliseconds as u64));
    }

    /// A random client asks for something.
    fn somebody_wants_something(&mut self) {
        let site = self.some_site();
        let peer = self.another_site(site);
        match self.rng.below(16) {
            0..5 => self.negotiate(site, peer),
            5 => self.rename_end(site, peer),
            6..9 => self.churn(site, peer),
            9 => self.clients[site].ask(SCRIPT, "state flush proto esp", Purpose::Flush),
            10 | 11 => self.static_anew(site),
            12 => self.change_words(site),
            _ => self.clients[site].ask(SCRIPT, "state list", Purpose::Dump),
        }
    }

    /// Adds or deletes a policy.
    fn churn(&mut self, site: usize, peer: usize) {
        let net = CHURN.start + u8::try_from(self.rng.below(CHURN.len())).unwrap();
        let (here, there) = ((site, net), (peer, net));
        let name = match self.rng.below(2) {
            0 => (PolicySide::Out, here, there),
            _ => (PolicySide::In, there, here),
        };
        if self.clients[site].policies.contains(&name) {
            self.delete_policy(SCRIPT, site, name);
        } else {
            self.ask_policy(name);
        }
    }

    pub(super) fn delete_policy(&mut self, client: u32, site: usize, name: PolicyName) {
        let (side, from, to) = name;
        let side = if side == PolicySide::Out { "out" } else { "in" };
        let (from, to) = (client::words(from), client::words(to));
        let line = format!("policy delete dir {side} src {from} dst {to}");
        self.clients[site].ask(client, &line, Purpose::DeletePolicy(name));
    }

    pub(super) fn delete(&mut self, site: usize, name: Name) {
        let line = format!("state delete dst {} proto esp spi {:#x}", name.0, name.1);
        self.clients[site].ask(IKE, &line, Purpose::Delete { name });
    }
}
