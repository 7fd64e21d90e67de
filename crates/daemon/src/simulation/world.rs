//! Gateways, their programs, and a wire between them; what happens there step by step, as a seed's
//! dice fall.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::Path,
    time::Duration,
};

use uxfrm_engine::{DropReason, OffloadKind};
use uxfrm_packet::PacketBuf;
use uxfrm_testkit::{Rng, packets};

use super::{
    children::Child,
    client::{self, Clients, GROUPS, IKE, Purpose, SCRIPT},
    kernel::SendPath,
    ledger::{Esp, Net, PolicyName, PolicySide, TrafficRecord},
    machine,
    site::{Drained, End, NETS, Name, Nic, Site, inner, outer, pick},
    trace::Trace,
    wire::Wire,
};
use crate::{protocol::Outbox, reconcile::sequences::condition::Condition};

/// The network of static keys, and the reqid of its policies.
pub(super) const STATIC: u8 = NETS - 1;
const STATIC_REQID: u32 = 900;
/// Networks whose policies come and go.
const CHURN: std::ops::Range<u8> = 1..STATIC;

/// What is known of a machine that is not its own.
#[derive(Debug, Default)]
pub(super) struct MachineFacts {
    /// Whether it runs at all.
    is_on: bool,
    /// Whether its store is not what its last run wrote.
    pub(super) is_spoiled: bool,
    /// What states had received at the end of the last run, where the next one has to know it
    /// exactly.
    heads: BTreeMap<Name, u64>,
    /// What the gateway had promised when it last wrote its policies down.
    written: BTreeSet<PolicyName>,
}

/// All there is.
pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) sites: Vec<Site>,
    pub(super) clients: Vec<Clients>,
    pub(super) children: Vec<Child>,
    /// Where each pair has its ends.
    pub(super) places: BTreeMap<(usize, usize), [u8; 2]>,
    pub(super) known: Vec<MachineFacts>,
    pub(super) ledger: TrafficRecord,
    pub(super) wire: Wire,
    pub(super) trace: Trace,
    outbox: Outbox,
    statics: Vec<(Name, usize, [u8; 20])>,
    /// Whether all that no other policy is for is blocked.
    blocks: bool,
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
        let mut ledger = TrafficRecord::default();
        statics.iter().for_each(|(name, _, key)| ledger.learn_key(*name, *key));
        let mut world = Self {
            rng,
            sites,
            clients: (0..count).map(|_| Clients::default()).collect(),
            children: Vec::new(),
            places: BTreeMap::new(),
            known: (0..count).map(|_| MachineFacts::default()).collect(),
            ledger,
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

    /// One step.
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
        for site in 0..self.sites.len() {
            if let Some(run) = &self.sites[site].run {
                run.check_accounts();
            }
        }
    }

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
            known.heads.clear();
            self.ledger.forget_static(site);
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
        // What others had put in is held until it comes again.
        promised.extend(&self.known[site].written);
        self.ledger.promised.insert(site, promised);
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

    fn write_policies_down(&mut self, site: usize) {
        if self.sites[site].run.is_some() {
            self.sites[site].write_policies_down();
            let promised = self.ledger.promised.get(&site).cloned();
            self.known[site].written = promised.unwrap_or_default();
        }
    }

    /// Asks for a policy of the IKE daemon.
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

    /// A gateway or its machine ends, in one way or another.
    fn stop(&mut self, site: usize) {
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
        known.heads =
            if left.is_exact { left.heads.into_iter().collect() } else { BTreeMap::new() };
        known.is_spoiled &= !self.sites[site].disk.is_in_place();
        if end == End::PowerLoss {
            known.is_on = false;
            self.ledger.promised.remove(&site);
        }
        self.clients[site].forget();
        let concerned = |child: &Child| child.ends.contains(&site);
        let children: Vec<_> = self.children.iter().map(concerned).collect();
        for (number, _) in children.iter().enumerate().filter(|(_, concerned)| **concerned) {
            self.fail(number);
        }
    }

    /// Another process takes a gateway's place while packets come and go, or fails to.
    fn upgrade(&mut self, site: usize) {
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
            self.ledger.received(site, packet);
        }
        self.send(site, wire);
        self.known[site].heads = left.heads.into_iter().collect();
        self.audit(site);
        self.release(site);
    }

    /// A round of requests at some gateway.
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
                // The IKE daemon deletes what it has lost: that is held still.
                Purpose::DeletePolicy(name)
                    if *from != IKE && (!self.blocks || name.0 == PolicySide::In) =>
                {
                    self.ledger.promised.entry(site).or_default().remove(name);
                }
                Purpose::Flush | Purpose::AddStatic { .. } => self.ledger.forget_static(site),
                Purpose::Delete { name } if self.statics.iter().any(|known| known.0 == *name) => {
                    self.ledger.forget_static(site);
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
            // What was being changed begins where the journal has it, which nobody was told.
            return self.known[site].heads.clear();
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

    fn release(&mut self, site: usize) {
        let Some(run) = &mut self.sites[site].run else { return };
        let sent = run.release();
        self.send(site, sent);
    }

    /// What a gateway has is what it said that it has.
    fn audit(&self, site: usize) {
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

    /// A host sends some packets to another's.
    fn host_sends(&mut self) {
        let from = self.some_site();
        let to = self.another_site(from);
        let net = match self.rng.below(10) {
            0..4 => 0,
            4..8 => STATIC,
            _ => CHURN.start + u8::try_from(self.rng.below(CHURN.len())).unwrap(),
        };
        for _ in 0..=self.rng.below(4) {
            self.send_one((from, net), (to, net));
        }
    }

    pub(super) fn send_one(&mut self, from: Net, to: Net) {
        let site = from.0;
        if !self.known[site].is_on {
            return;
        }
        let payload = self.ledger.payload(from, to);
        let packet = plain(from, to, &payload);
        match self.sites[site].kernel.way(packet.bytes()) {
            SendPath::Tun => {
                let worker = self.rng.below(2);
                let Some(run) = &mut self.sites[site].run else { return };
                let sent = run.outbound(vec![packet], worker);
                self.send(site, sent);
            }
            SendPath::Device => self.send(site, vec![packet]),
            SendPath::Nowhere => {}
        }
    }

    /// Packets leave a gateway.
    fn send(&mut self, site: usize, packets: Vec<PacketBuf>) {
        for packet in packets {
            self.ledger.sent(site, packet.bytes());
            let Self { wire, rng, .. } = self;
            wire.take(packet.bytes(), rng);
        }
    }

    pub(super) fn wire_brings(&mut self, count: usize) {
        for _ in 0..count {
            let Some(packet) = self.wire.bring(&mut self.rng) else { return };
            self.arrive(&packet);
        }
    }

    /// A packet comes to whom it is for.
    pub(super) fn arrive(&mut self, packet: &[u8]) {
        let to = IpAddr::from([packet[16], packet[17], packet[18], packet[19]]);
        let Some(site) = site_of(to).filter(|site| *site < self.sites.len()) else { return };
        let Some(esp) = Esp::read(packet) else {
            if self.known[site].is_on && self.sites[site].kernel.lets_in(packet) {
                self.ledger.let_in(site, packet);
            }
            return;
        };
        let worker = self.rng.below(2);
        let Some(run) = &mut self.sites[site].run else { return };
        let arrival = run.inbound(PacketBuf::from_slice(packet), worker);
        for packet in &arrival.delivered {
            self.ledger.received(site, packet);
        }
        for (reason, _) in &arrival.drops {
            // A device may have put another packet before this one.
            if *reason == DropReason::InBeforeRestart
                && self.sites[site].offload.is_none()
                && let Some(head) = self.known[site].heads.get(&esp.name)
            {
                let was_new = u64::from(esp.number) > *head;
                assert!(!was_new, "{site} refuses {esp:?} as if it had come before, up to {head}");
            }
        }
        self.note(|| {
            format!("{site} gets {} of {:x}: {:?}", esp.number, esp.name.1, arrival.drops)
        });
    }

    /// Clients ask for something new.
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

    /// A policy comes or goes.
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

    fn delete_policy(&mut self, client: u32, site: usize, name: PolicyName) {
        let (side, from, to) = name;
        let side = if side == PolicySide::Out { "out" } else { "in" };
        let (from, to) = (client::words(from), client::words(to));
        let line = format!("policy delete dir {side} src {from} dst {to}");
        self.clients[site].ask(client, &line, Purpose::DeletePolicy(name));
    }

    /// A script deletes a static state and adds it again.
    fn static_anew(&mut self, site: usize) {
        let concerns = |(name, from, _): &&(Name, usize, [u8; 20])| {
            *from == site || site_of(name.0) == Some(site)
        };
        let mine: Vec<_> = self.statics.iter().filter(concerns).copied().collect();
        let Some((name, from, key)) = pick(&mut self.rng, &mine).copied() else { return };
        if self.clients[site].states.contains(&name) {
            self.delete(site, name);
        }
        self.add_static(site, (name, from, key));
    }

    pub(super) fn add_static(&mut self, site: usize, (name, from, key): (Name, usize, [u8; 20])) {
        let line = client::state("add", outer(from, 0).into(), name, &key, STATIC_WORDS);
        let nic = self.sites[site].run.as_ref().and_then(|run| run.nic.as_ref());
        let device = nic.map(|nic| nic.index).zip(self.sites[site].offload);
        let device = device.map(|(index, kind)| client::offload(index, kind, from != site));
        self.clients[site].ask_with(SCRIPT, &line, device, Purpose::AddStatic { name });
    }

    /// All static states of a gateway that are not there.
    pub(super) fn missing_statics(&mut self, site: usize) {
        for known in self.statics.clone() {
            let concerns = known.1 == site || site_of(known.0.0) == Some(site);
            if concerns && !self.clients[site].states.contains(&known.0) {
                self.add_static(site, known);
            }
        }
    }

    pub(super) fn static_flows(&self) -> Vec<(Name, Net, Net)> {
        let flow = |(name, from, _): &(Name, usize, [u8; 20])| {
            (*name, (*from, STATIC), (site_of(name.0).unwrap(), STATIC))
        };
        self.statics.iter().map(flow).collect()
    }

    pub(super) fn delete(&mut self, site: usize, name: Name) {
        let line = format!("state delete dst {} proto esp spi {:#x}", name.0, name.1);
        self.clients[site].ask(IKE, &line, Purpose::Delete { name });
    }
}

const STATIC_WORDS: &str = "reqid 900 replay-window 64";

/// The gateway that has an address.
pub(super) fn site_of(address: IpAddr) -> Option<usize> {
    let IpAddr::V4(v4) = address else { return None };
    match v4.octets() {
        [10, site, ..] | [192, 0, _, site] => usize::from(site).checked_sub(1),
        _ => None,
    }
}

/// A packet from one host to another, as it is sent.
pub(super) fn plain((site, net): Net, (peer, far): Net, payload: &[u8]) -> PacketBuf {
    let [from, to] = [inner(site, net), inner(peer, far)].map(|address| format!("{address}:7"));
    packets::udp(&from, &to, payload)
}

/// States with keys that never change, between the first two gateways and the next two; keys may be
/// used by several.
fn statics(rng: &mut Rng, sites: usize) -> Vec<(Name, usize, [u8; 20])> {
    let shared = rng.below(3) == 0;
    let mut key = [0; 20];
    rng.fill(&mut key);
    let mut all = Vec::new();
    for (number, (from, to)) in [(0, 1), (1, 0), (2, 3), (3, 2)].into_iter().enumerate() {
        if from.max(to) >= sites {
            continue;
        }
        let name = (IpAddr::from(outer(to, 0)), 0x2000 + u32::try_from(number).unwrap());
        all.push((name, from, key));
        if !shared {
            rng.fill(&mut key);
        }
    }
    all
}

/// The batch file of a gateway.
fn batch(
    site: usize,
    statics: &[(Name, usize, [u8; 20])],
    blocks: bool,
    offload: Option<OffloadKind>,
) -> String {
    let mut lines = Vec::new();
    for (name, from, key) in statics {
        let to = site_of(name.0).unwrap();
        let side = match (*from == site, to == site) {
            (true, _) => PolicySide::Out,
            (_, true) => PolicySide::In,
            (false, false) => continue,
        };
        let ends = (outer(*from, 0).into(), name.0);
        let way = if side == PolicySide::Out { "out" } else { "in" };
        let device = match offload {
            None => String::new(),
            Some(OffloadKind::Crypto) => format!(" offload dev {} dir {way}", Nic::NAME),
            Some(OffloadKind::Packet) => format!(" offload packet dev {} dir {way}", Nic::NAME),
        };
        lines.push(client::state("add", ends.0, *name, key, STATIC_WORDS) + &device);
        let policy = (side, (*from, STATIC), (to, STATIC));
        let mut line = client::policy("add", policy, ends, STATIC_REQID);
        if offload == Some(OffloadKind::Packet) {
            line = line.replace(" tmpl", &format!(" offload packet dev {} tmpl", Nic::NAME));
        }
        lines.push(line);
    }
    if blocks {
        lines.push(
            "policy add dir out src 10.0.0.0/8 dst 10.0.0.0/8 action block priority 5000"
                .to_owned(),
        );
    }
    lines.into_iter().map(|line| format!("xfrm {line}\n")).collect()
}
