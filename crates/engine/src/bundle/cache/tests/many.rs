//! More tunnels and flows than the cache holds.

use std::collections::HashMap;

use super::*;
use crate::PolicyKey;

/// A database with an SA in transport mode for each of many hosts, and a worker's bundle
/// references.
struct Crowd {
    stage: Stage,
    known: HashMap<u32, u32>,
    tunnels: u32,
}

/// Packets of one batch.
const BATCH: usize = 64;

impl Crowd {
    fn of(tunnels: u32) -> Self {
        let mut stage = Stage::new();
        stage.database.apply(Moment(0), |change| {
            let plain = tunnel(10);
            let mode = Mode::Transport;
            let templates = vec![Template { mode, ..plain.templates[0] }];
            change.update_policy(Policy { templates, ..plain }).unwrap();
            for host in 0..tunnels {
                let state = sample(&destination(host), host + 256);
                change.add_sa(SaConfig { mode, ..state }).unwrap();
            }
        });
        Self { stage, known: HashMap::new(), tunnels }
    }

    /// Sends a packet to each host; returns how many bundles were built.
    fn send(&mut self, hosts: &[u32]) -> u64 {
        let before = self.stage.cache.created;
        for batch in hosts.chunks(BATCH) {
            if self.stage.begin() {
                self.known.clear();
            }
            batch.iter().for_each(|host| self.send_one(*host));
        }
        self.stage.cache.created - before
    }

    fn send_one(&mut self, host: u32) {
        let flow =
            FlowKey::between("10.0.0.1".parse().unwrap(), destination(host).parse().unwrap());
        let place = match self.known.get(&host) {
            Some(place) if self.stage.cache.works(*place, Moment(1)) => *place,
            Some(_) | None => self.stage.place(&flow),
        };
        self.known.insert(host, place);
        let sa = &self.stage.cache.bundle(place).layers[0].sa;
        assert_eq!(sa.id().spi, Spi(host + 256), "nobody leaves by another's");
    }

    fn in_turn(&self) -> Vec<u32> {
        (0..self.tunnels).collect()
    }

    fn at_random(&self) -> Vec<u32> {
        let next = |n: &u32| Some(n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
        let numbers = std::iter::successors(Some(7), next).map(|n| (n >> 8) % self.tunnels);
        numbers.take(self.tunnels as usize).collect()
    }
}

fn destination(host: u32) -> String {
    let [_, a, b, c] = host.to_be_bytes();
    format!("10.{}.{b}.{c}", a + 1)
}

#[test]
fn cache_holds_twenty_thousand_tunnels() {
    let mut crowd = Crowd::of(20_000);
    let (turn, random) = (crowd.in_turn(), crowd.at_random());
    assert_eq!(crowd.send(&turn), 20_000);
    assert_eq!(crowd.send(&turn) + crowd.send(&random), 0);
}

#[test]
fn cache_overflow_keeps_most_bundles() {
    let mut crowd = Crowd::of(70_000);
    let (turn, random) = (crowd.in_turn(), crowd.at_random());
    assert_eq!(crowd.send(&turn), 70_000);
    for hosts in [&turn, &random, &turn, &turn] {
        let created = crowd.send(hosts);
        assert!(created < 70_000 / 5, "a fifth would be more than {created}");
    }
    let cache = &crowd.stage.cache;
    assert!(cache.bundles.len() <= MOST + MAX_VACATED + BATCH * 2, "{}", cache.bundles.len());
    assert!(cache.by_states.len() <= MOST + BATCH && cache.tallies.len() <= MOST + BATCH * 2);
}

#[test]
fn flow_eviction_keeps_bundles() {
    let mut stage = Stage::new();
    stage.begin();
    let first = stage.layers(&to(10, 0));
    for host in 0..=u16::MAX {
        stage.place(&to(10, host));
    }
    assert!(!stage.begin());
    assert_eq!((stage.layers(&to(10, 9)), stage.cache.flows.len()), (first, flows::MOST));
}

#[test]
fn removed_policy_is_released() {
    let mut stage = Stage::new();
    stage.begin();
    for host in 0..100 {
        stage.place(&to(10, host));
    }
    stage.place(&to(11, 1));
    let (held, key) = {
        let snapshot = stage.database.snapshot();
        let PolicyLookup::Policy(entry) = snapshot.spd.lookup(Direction::Out, &to(10, 1)) else {
            panic!("it was added")
        };
        (Arc::downgrade(entry), entry.key())
    };
    remove(&mut stage, &key);
    assert_eq!(held.strong_count(), 0, "by no flow");
    let snapshot = stage.database.snapshot();
    stage.cache.release_stale(&snapshot);
    assert_eq!(stage.cache.flows.len(), 1);
}

/// Removes a policy, and the copy that the database keeps for the next change.
fn remove(stage: &mut Stage, key: &PolicyKey) {
    stage.database.apply(Moment(0), |change| drop(change.delete_policy(key).unwrap()));
    for net in [12, 13] {
        stage.database.apply(Moment(0), |change| drop(change.add_policy(tunnel(net)).unwrap()));
        stage.database.handle_timeout(Moment::from_secs(net.into()), &mut Vec::new());
    }
}

#[test]
fn flows_without_bundle_are_swept() {
    let mut stage = Stage::new();
    stage.begin();
    stage.place(&to(10, 1));
    let id = sample(PEER, 1).id;
    stage.database.apply(Moment(0), |change| change.delete_sa(id, Mark::default())).unwrap();
    stage.begin();
    let snapshot = stage.database.snapshot();
    stage.cache.release_stale(&snapshot);
    assert_eq!(stage.cache.flows.len(), 0);
}

#[test]
fn repeated_acquires_take_no_more_memory() {
    let mut stage = Stage::new();
    stage.database.apply(Moment(0), |change| {
        let plain = tunnel(10);
        let (level, mode) = (TemplateLevel::Use, Mode::Transport);
        let optional = Template { level, mode, ..plain.templates[0] };
        change.update_policy(Policy { templates: vec![optional], ..plain }).unwrap();
    });
    for second in 0..10 {
        stage.begin();
        stage.now = Moment::from_secs(2 * second);
        assert!(matches!(stage.resolve(&to(10, 1)), Resolution::Asking(_)));
        assert!(
            stage.cache.by_states.len() <= 2,
            "the new one, and the one before until the next batch"
        );
    }
}
