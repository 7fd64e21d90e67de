//! Which changes rebuild a bundle.

mod choice;
mod many;

use std::net::Ipv4Addr;

use uxfrm_crypto::Backend;

use super::*;
use crate::{
    Database, Direction, HostAddresses, LifetimeLimits, Mark, Mode, Policy, PolicyLookup, PortMask,
    Prefix, Reqid, SaConfig, SaProtocol, Selector, SoftHardLimit, Spi, Template, TemplateLevel,
    sa::sample, spd::table::tests::policy,
};

const PEER: &str = "192.0.2.2";

/// A database with policies for 10.0.0.0/8 and 11.0.0.0/8 and one SA that serves both.
struct Stage {
    database: Database,
    cache: BundleCache,
    settings: Settings,
    now: Moment,
}

fn tunnel(net: u8) -> Policy {
    let mut policy = policy(Direction::Out, 1);
    policy.selector.destination = Prefix::new(Ipv4Addr::new(net, 0, 0, 0).into(), 8).unwrap();
    policy.templates = vec![Template {
        source: "10.0.0.1".parse().unwrap(),
        destination: PEER.parse().unwrap(),
        protocol: SaProtocol::Esp,
        spi: Spi(0),
        mode: Mode::Tunnel,
        reqid: Reqid(1),
        level: TemplateLevel::Required,
    }];
    policy
}

fn to(net: u8, host: u16) -> FlowKey {
    let [high, low] = host.to_be_bytes();
    FlowKey::between(Ipv4Addr::new(10, 0, 0, 1).into(), Ipv4Addr::new(net, 0, high, low).into())
}

impl Stage {
    fn new() -> Self {
        let mut database = Database::new(Backend::Portable, 1);
        database.apply(Moment(0), |change| {
            change.add_policy(tunnel(10)).unwrap();
            change.add_policy(tunnel(11)).unwrap();
        });
        let mut stage = Self {
            database,
            cache: BundleCache::default(),
            settings: Settings::default(),
            now: Moment(1),
        };
        stage.add_state(sample(PEER, 1), 0);
        stage
    }

    fn add_state(&mut self, config: SaConfig, seconds: u64) {
        self.database
            .apply(Moment::from_secs(seconds), |change| change.add_sa(config).map(drop))
            .unwrap();
    }

    fn begin(&mut self) -> bool {
        self.cache.begin(&self.database.snapshot())
    }

    fn resolve(&mut self, flow: &FlowKey) -> Resolution {
        let snapshot = self.database.snapshot();
        let PolicyLookup::Policy(entry) = snapshot.spd.lookup(Direction::Out, flow) else {
            panic!("{flow:?} has a policy")
        };
        let deciding: Deciding<'_> = [entry].into_iter().collect();
        self.cache.resolve(&snapshot, &deciding, flow, &self.settings, self.now)
    }

    fn place(&mut self, flow: &FlowKey) -> u32 {
        let resolution = self.resolve(flow);
        let Resolution::Bundle(place) = resolution else { panic!("{resolution:?}") };
        place
    }

    /// Address of the bundle's layers; changes if it is rebuilt.
    fn layers(&mut self, flow: &FlowKey) -> *const EncapLayer {
        let place = self.place(flow);
        self.cache.bundle(place).layers.as_ptr()
    }

    fn spi(&mut self, flow: &FlowKey) -> Spi {
        let place = self.place(flow);
        self.cache.bundle(place).layers[0].sa.id().spi
    }
}

#[test]
fn flows_and_policies_share_bundle_of_same_sas() {
    let mut stage = Stage::new();
    stage.begin();
    let first = stage.layers(&to(10, 1));
    assert_eq!(stage.layers(&to(10, 2)), first);
    assert_eq!(stage.layers(&to(11, 1)), first);
    assert_eq!(stage.cache.bundles.len(), 1);
}

#[test]
fn policy_change_keeps_bundles() {
    let mut stage = Stage::new();
    stage.begin();
    let first = stage.layers(&to(10, 1));
    stage.database.apply(Moment(0), |change| change.add_policy(tunnel(12)).map(drop)).unwrap();
    assert!(!stage.begin(), "flows need not ask again");
    assert_eq!(stage.layers(&to(10, 1)), first);
    // The policy is another one: its SAs are looked up again.
    let other = Template { reqid: Reqid(9), ..tunnel(10).templates[0] };
    let policy = Policy { templates: vec![other], ..tunnel(10) };
    stage.database.apply(Moment(0), |change| change.update_policy(policy).map(drop)).unwrap();
    stage.begin();
    assert_eq!(stage.resolve(&to(10, 1)), Resolution::Missing);
    assert_eq!(stage.layers(&to(11, 1)), first);
}

#[test]
fn sa_change_rebuilds_only_affected_bundles() {
    let mut stage = Stage::new();
    stage.begin();
    let first = stage.layers(&to(10, 1));
    let elsewhere = SaConfig { reqid: Reqid(7), ..sample("192.0.2.7", 7) };
    stage.add_state(elsewhere, 1);
    assert!(stage.begin(), "flows ask again");
    assert_eq!(stage.layers(&to(10, 1)), first);
    stage.add_state(sample(PEER, 2), 2);
    stage.begin();
    assert_eq!((stage.spi(&to(10, 1)), stage.spi(&to(11, 1))), (Spi(2), Spi(2)), "the younger");
}

#[test]
fn updated_sa_gets_new_bundle() {
    let mut stage = Stage::new();
    stage.begin();
    stage.place(&to(10, 1));
    let limits = LifetimeLimits {
        packets: SoftHardLimit { soft: 9, hard: 99 },
        ..LifetimeLimits::default()
    };
    let words = SaConfig { limits, ..sample(PEER, 1) };
    stage.database.apply(Moment(0), |change| change.update_sa(words).map(drop)).unwrap();
    stage.begin();
    let place = stage.place(&to(10, 1));
    assert_eq!(stage.cache.bundle(place).layers[0].sa.config().limits, limits);
    assert_eq!((stage.cache.bundles.len(), stage.cache.tallies.len()), (1, 1), "in its place");
}

#[test]
fn removed_sas_are_released_with_next_batch() {
    let mut stage = Stage::new();
    stage.begin();
    let place = stage.place(&to(10, 1));
    let held = Arc::downgrade(&stage.cache.bundle(place).layers[0].sa);
    let id = sample(PEER, 1).id;
    stage.database.apply(Moment(0), |change| change.delete_sa(id, Mark::default())).unwrap();
    assert!(held.upgrade().is_some());
    stage.begin();
    stage.database.handle_timeout(Moment::from_secs(1), &mut Vec::new());
    assert!(held.upgrade().is_none());
    assert_eq!(stage.database.poll_timeout(), None);
    assert!(!stage.cache.works(place, Moment(1)));
    assert_eq!(stage.resolve(&to(10, 1)), Resolution::Missing);
    assert!(stage.cache.tally_by_sa.is_empty() && stage.cache.by_states.is_empty());
}

#[test]
fn host_change_rebuilds_all_bundles() {
    let mut stage = Stage::new();
    stage.begin();
    let place = stage.place(&to(10, 1));
    let before = stage.cache.bundle(place).inner_mtu;
    let host = HostView {
        addresses: HostAddresses::default(),
        mtu: 1000,
        path_mtus: crate::PathMtus::new(),
    };
    stage.database.set_host(host);
    stage.settings.mtu = 1000;
    assert!(stage.begin());
    let place = stage.place(&to(10, 1));
    assert_eq!(stage.cache.bundle(place).inner_mtu, before - 500);
}

#[test]
fn narrow_selectors_are_cached_per_flow() {
    let mut stage = Stage::new();
    let ports = |port| Selector {
        protocol: 17,
        destination_port: PortMask::exactly(port),
        ..Selector::any(crate::Family::V4)
    };
    let state = |spi, port| SaConfig { selector: Some(ports(port)), ..sample(PEER, spi) };
    stage.add_state(state(2, 53), 2);
    stage.add_state(state(3, 443), 2);
    stage.begin();
    let udp = |port| FlowKey { protocol: 17, destination_port: port, ..to(10, 1) };
    for _ in 0..2 {
        let found = [53, 443].map(|port| stage.spi(&udp(port)));
        assert_eq!(found, [Spi(2), Spi(3)]);
    }
}

#[test]
fn bundle_size_is_bounded() {
    let sizes = [
        size_of::<Bundle>(),
        size_of::<EncapLayer>(),
        size_of::<SaTally>(),
        size_of::<BundleSlot>(),
    ];
    assert_eq!(sizes, [192, 128, 64, 16]);
}
