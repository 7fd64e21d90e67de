//! A flow always leaves by the SAs that look-ups choose now.

use proptest::prelude::*;

use super::*;
use crate::{Cpu, Family, OutboundQuery, SaId, sa::usage::Lifecycle};

/// Events, with few values each.
#[derive(Clone, Copy, Debug)]
enum Step {
    Add(Words),
    /// Removes the SA of an SPI, if it exists.
    Delete(u32),
    /// Passes its soft limit.
    Wane(u32),
    /// Passes its hard limit.
    Expire(u32),
    Send(Packet),
}

/// What decides which flows an SA is for.
#[derive(Clone, Copy, Debug)]
struct Words {
    spi: u32,
    reqid: u32,
    mark: u32,
    pcpu: Option<u32>,
    is_for: Option<TrafficCounters>,
}

#[derive(Clone, Copy, Debug)]
struct TrafficCounters {
    host: Option<u8>,
    protocol: u8,
    source_port: Option<u16>,
    port: Option<u16>,
    ifindex: u32,
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    net: u8,
    host: u8,
    protocol: u8,
    source_port: u16,
    port: u16,
    mark: u32,
    ifindex: u32,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => words().prop_map(Step::Add),
        1 => SPIS.prop_map(Step::Delete),
        1 => SPIS.prop_map(Step::Wane),
        1 => SPIS.prop_map(Step::Expire),
        12 => packet().prop_map(Step::Send),
    ];
    prop::collection::vec(step, 1..120)
}

const SPIS: std::ops::Range<u32> = 1..9;

fn words() -> impl Strategy<Value = Words> {
    let pcpu = prop::option::weighted(0.2, 0_u32..2);
    let own = (SPIS, 1_u32..4, 0_u32..2, pcpu, prop::option::of(traffic()));
    own.prop_map(|(spi, reqid, mark, pcpu, is_for)| Words { spi, reqid, mark, pcpu, is_for })
}

fn traffic() -> impl Strategy<Value = TrafficCounters> {
    let host = prop::option::weighted(0.3, 0_u8..2);
    let ports = (prop::option::weighted(0.2, 7_u16..9), prop::option::weighted(0.5, 9_u16..11));
    let protocol = prop::sample::select(vec![0_u8, 6, 17]);
    let ifindex = prop::sample::select(vec![0_u32, 0, 0, 1]);
    (host, protocol, ports, ifindex).prop_map(|(host, protocol, (source_port, port), ifindex)| {
        TrafficCounters { host, protocol, source_port, port, ifindex }
    })
}

fn packet() -> impl Strategy<Value = Packet> {
    let ends = (10_u8..13, 0_u8..2, prop::sample::select(vec![6_u8, 17]));
    let more = (7_u16..9, 9_u16..11, 0_u32..2, 0_u32..2);
    (ends, more).prop_map(|((net, host, protocol), (source_port, port, mark, ifindex))| Packet {
        net,
        host,
        protocol,
        source_port,
        port,
        mark,
        ifindex,
    })
}

impl Words {
    fn config(self) -> SaConfig {
        SaConfig {
            reqid: Reqid(self.reqid),
            mark: Mark { value: self.mark, mask: self.mark },
            pcpu: self.pcpu.map(Cpu),
            selector: self.is_for.map(TrafficCounters::selector),
            ..sample(PEER, self.spi)
        }
    }
}

impl TrafficCounters {
    fn selector(self) -> Selector {
        let any = Selector::any(Family::V4);
        let exactly = |port: Option<u16>| port.map_or(any.source_port, PortMask::exactly);
        Selector {
            destination: self.host.map_or(any.destination, |host| {
                Prefix::new(Ipv4Addr::new(10, 0, 0, host).into(), 32).unwrap()
            }),
            protocol: self.protocol,
            source_port: exactly(self.source_port),
            destination_port: exactly(self.port),
            ifindex: self.ifindex,
            ..any
        }
    }
}

impl Packet {
    fn flow(self) -> FlowKey {
        let Self { net, host, protocol, source_port, port, mark, ifindex } = self;
        let ends = to(net, host.into());
        FlowKey { protocol, source_port, destination_port: port, mark, ifindex, ..ends }
    }
}

/// A database without SAs, with policies for request ids 1, 2, and 3 within 1.
fn stage() -> Stage {
    let mut stage = Stage::new();
    stage.database.apply(Moment(0), |change| {
        change.delete_sa(sample(PEER, 1).id, Mark::default()).unwrap();
        for (net, reqids) in [(11, &[2][..]), (12, &[3, 1])] {
            let plain = tunnel(net);
            let one = |reqid: &u32| Template { reqid: Reqid(*reqid), ..plain.templates[0] };
            let templates = reqids.iter().map(one).collect();
            change.update_policy(Policy { templates, ..plain }).unwrap();
        }
    });
    stage
}

/// `xfrm_tmpl_resolve` for tunnels: the SA that each template finds.
fn looked_up(snapshot: &Snapshot, flow: &FlowKey, settings: &Settings) -> Option<Vec<SaId>> {
    let PolicyLookup::Policy(entry) = snapshot.spd.lookup(Direction::Out, flow) else {
        return None;
    };
    let id = |template: Template| {
        let Template { source, destination, protocol, spi, mode, reqid, .. } = template;
        let (if_id, mark, cpu) = (entry.if_id(), entry.mark().value, settings.cpu);
        snapshot.sad.outbound(&OutboundQuery {
            source,
            destination,
            protocol,
            spi,
            mode,
            reqid,
            if_id,
            mark,
            cpu,
            flow,
        })
    };
    entry.templates().map(|template| Some(id(template).ok()?.id())).collect()
}

impl Stage {
    /// The SAs by which a flow leaves, from the worker's cache.
    fn leaves_by(&mut self, flow: &FlowKey) -> Option<Vec<SaId>> {
        match self.resolve(flow) {
            Resolution::Bundle(place) => {
                let layers = &self.cache.bundle(place).layers;
                Some(layers.iter().map(|layer| layer.sa.id()).collect())
            }
            Resolution::Missing | Resolution::Refused(_) => None,
            Resolution::Asking(_) => panic!("no template is optional"),
        }
    }

    fn take(&mut self, step: Step, second: u64) {
        let id = |spi| sample(PEER, spi).id;
        match step {
            Step::Add(words) => {
                // An existing SA stays as it is.
                let _ = self
                    .database
                    .apply(Moment::from_secs(second), |change| change.add_sa(words.config()));
            }
            Step::Delete(spi) => {
                let all: Vec<_> = self.states(id(spi));
                self.database.apply(Moment(0), |change| {
                    all.iter()
                        .for_each(|sa| drop(change.delete_sa(sa.id(), sa.config().mark).unwrap()));
                });
            }
            Step::Wane(spi) => self.states(id(spi)).iter().for_each(|sa| {
                sa.advance(Lifecycle::Dying);
            }),
            Step::Expire(spi) => self.states(id(spi)).iter().for_each(|sa| {
                sa.advance(Lifecycle::Expired);
            }),
            Step::Send(packet) => {
                let (snapshot, flow) = (self.database.snapshot(), packet.flow());
                let wanted = looked_up(&snapshot, &flow, &self.settings);
                assert_eq!(self.leaves_by(&flow), wanted, "{packet:?}");
            }
        }
    }

    fn states(&self, id: SaId) -> Vec<Arc<Sa>> {
        self.database.snapshot().sad.with_id(id).cloned().collect()
    }
}

proptest! {
    /// Against look-ups, with SAs that come, go, age and expire, most with narrow selectors.
    #[test]
    fn flow_leaves_by_sas_that_look_ups_choose(steps in steps()) {
        let mut stage = stage();
        for (step, second) in steps.into_iter().zip(1..) {
            stage.begin();
            stage.take(step, second);
        }
    }
}

#[test]
fn wide_selector_sa_leaves_flows_of_narrow_sas_alone() {
    let mut stage = stage();
    let wide = Words { spi: 1, reqid: 1, mark: 0, pcpu: None, is_for: None };
    let traffic =
        TrafficCounters { host: None, protocol: 17, source_port: None, port: Some(9), ifindex: 0 };
    stage.take(Step::Add(wide), 1);
    stage.take(Step::Add(Words { spi: 2, is_for: Some(traffic), ..wide }), 2);
    stage.begin();
    let flow = |(source_port, destination_port)| FlowKey {
        protocol: 17,
        source_port,
        destination_port,
        ..to(10, 1)
    };
    let spis = [(7, 9), (7, 10), (8, 9), (7, 9)].map(|ports| stage.spi(&flow(ports)));
    assert_eq!(spis, [2, 1, 2, 2].map(Spi));
}

#[test]
fn flows_move_from_dying_sa_to_valid_one() {
    let mut stage = stage();
    let plain = Words { spi: 1, reqid: 1, mark: 0, pcpu: None, is_for: None };
    stage.take(Step::Add(plain), 1);
    stage.take(Step::Add(Words { spi: 2, ..plain }), 2);
    stage.begin();
    let flow = to(10, 1);
    let place = stage.place(&flow);
    assert_eq!(stage.spi(&flow), Spi(2));
    stage.take(Step::Wane(2), 3);
    assert!(!stage.cache.works(place, Moment(1)), "who knows it by its place asks again");
    assert_eq!(stage.spi(&flow), Spi(1));
    stage.take(Step::Wane(1), 4);
    let place = stage.place(&flow);
    assert_eq!((stage.spi(&flow), stage.place(&flow)), (Spi(2), place), "it is asked for once");
}
