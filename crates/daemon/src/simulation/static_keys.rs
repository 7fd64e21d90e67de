//! States with keys that never change: by batch files, and by a script that makes them anew.

use std::net::IpAddr;

use uxfrm_engine::OffloadKind;
use uxfrm_testkit::Rng;

use super::{
    client::{self, Purpose, SCRIPT},
    names::{NETS, Name, Net, PolicySide, outer, site_of},
    site::{Nic, pick},
    world::World,
};

/// The network of static keys, and the reqid of its policies.
pub(super) const STATIC: u8 = NETS - 1;
const STATIC_REQID: u32 = 900;
const STATIC_WORDS: &str = "reqid 900 replay-window 64";

impl World {
    /// A script deletes a static state and adds it again.
    pub(super) fn static_anew(&mut self, site: usize) {
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

    /// Adds all static states that a gateway lacks.
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
}

/// States with keys that never change, between the first two gateways and the next two; keys may be
/// used by several.
pub(super) fn statics(rng: &mut Rng, sites: usize) -> Vec<(Name, usize, [u8; 20])> {
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
pub(super) fn batch(
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
        let direction = if side == PolicySide::Out { "out" } else { "in" };
        let device = match offload {
            None => String::new(),
            Some(OffloadKind::Crypto) => format!(" offload dev {} dir {direction}", Nic::NAME),
            Some(OffloadKind::Packet) => {
                format!(" offload packet dev {} dir {direction}", Nic::NAME)
            }
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
