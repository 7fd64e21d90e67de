//! Random SAs, policies and packets in up to three layers, in batches, while SAs and policies
//! change: packets pass or are dropped, with the same reason, as by a slow transcription of
//! `__xfrm_policy_check`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use uxfrm_engine::{
    Action, DefaultActions, Direction, DropReason, Family, HostPort, Mark, Mode, Policy,
    PolicyIndex, PolicyKey, PolicyKind, PolicyName, PortMask, Prefix, Priority, Reqid, SaConfig,
    SaId, SaProtocol, Selector, Settings, Spi, Template, TemplateLevel, UdpSuper,
};
use uxfrm_packet::{PacketBuf, Protocol};
use uxfrm_testkit::{IpsecSetup, PairDirection, Rng, TestGateway, packets};

use super::{esp, open, tunnelled};

const OWN: [&str; 2] = ["192.0.2.2", "192.0.2.4"];
const PEERS: [&str; 2] = ["192.0.2.1", "192.0.2.3"];
const SOURCES: [&str; 4] = ["10.1.0.1", "10.3.0.1", "192.0.2.1", "192.0.2.3"];
const TARGETS: [&str; 4] = ["10.2.0.1", "10.4.0.1", "192.0.2.2", "192.0.2.4"];
const MARKER: &[u8] = b"a number";
const SPIS: [u32; 3] = [0x1000, 0x1001, 0x1100];

fn at(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn any_of<T: Copy>(choices: &[T], rng: &mut Rng) -> T {
    choices[rng.below(choices.len())]
}

fn number(below: usize, rng: &mut Rng) -> u32 {
    u32::try_from(rng.below(below)).unwrap()
}

#[derive(Clone, Copy, Debug)]
struct State {
    spi: u32,
    source: IpAddr,
    destination: IpAddr,
    mode: Mode,
    reqid: u32,
    selector: Option<Selector>,
}

impl State {
    fn id(&self) -> SaId {
        SaId { destination: self.destination, spi: Spi(self.spi), protocol: SaProtocol::Esp }
    }

    fn config(&self) -> SaConfig {
        let mut config = IpsecSetup::tunnel4().sa(PairDirection::LeftToRight, self.spi);
        config.id = self.id();
        (config.source, config.mode, config.reqid) = (self.source, self.mode, Reqid(self.reqid));
        config.selector = self.selector;
        config.transform = open();
        config.replay.window = 0;
        config
    }
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    port: u16,
}

/// The test's model of the database.
#[derive(Debug, Default)]
struct World {
    states: Vec<State>,
    policies: Vec<Policy>,
    defaults: DefaultActions,
    /// Few, so that they come by several paths.
    flows: Vec<Flow>,
}

fn prefix(ends: &[&str], rng: &mut Rng) -> Prefix {
    let address = at(any_of(ends, rng));
    match rng.below(3) {
        0 => Prefix::any(Family::V4),
        1 => Prefix::new(address, 32).unwrap(),
        _ => Prefix::new(address, 15).unwrap(),
    }
}

fn selector(rng: &mut Rng) -> Selector {
    let mut selector = Selector {
        source: prefix(&SOURCES, rng),
        destination: prefix(&TARGETS, rng),
        ..Selector::any(Family::V4)
    };
    if rng.permille(250) {
        selector.protocol = 17;
        selector.destination_port = PortMask::exactly(any_of(&[9, 10], rng));
    }
    selector
}

fn state(spi: u32, destination: IpAddr, rng: &mut Rng) -> State {
    State {
        spi,
        source: at(any_of(&PEERS, rng)),
        destination,
        mode: if rng.permille(650) { Mode::Tunnel } else { Mode::Transport },
        reqid: number(3, rng),
        selector: match rng.below(4) {
            0 => None,
            1 => Some(selector(rng)),
            _ => Some(Selector::any(Family::V4)),
        },
    }
}

fn template(states: &[State], rng: &mut Rng) -> Template {
    let like = any_of(states, rng);
    Template {
        source: if rng.permille(400) { like.source } else { at("0.0.0.0") },
        destination: like.destination,
        protocol: SaProtocol::Esp,
        spi: Spi(if rng.permille(300) { like.spi } else { 0 }),
        mode: like.mode,
        reqid: Reqid(if rng.permille(700) { like.reqid } else { 0 }),
        level: if rng.permille(250) { TemplateLevel::Use } else { TemplateLevel::Required },
    }
}

impl World {
    fn random(rng: &mut Rng) -> Self {
        let mut world = Self::default();
        for spi in SPIS {
            for own in OWN {
                if rng.permille(850) {
                    world.states.push(state(spi, at(own), rng));
                }
            }
        }
        if world.states.is_empty() {
            world.states.push(state(SPIS[0], at(OWN[0]), rng));
        }
        for _ in 0..1 + rng.below(4) {
            let port = any_of(&[9, 10], rng);
            let (source, destination) = (at(any_of(&SOURCES, rng)), at(any_of(&TARGETS, rng)));
            world.flows.push(Flow { source, destination, protocol: 17, port });
        }
        (0..2 + rng.below(12)).for_each(|_| world.add_policy(rng));
        for side in [&mut world.defaults.inbound, &mut world.defaults.forward] {
            *side = if rng.permille(300) { Action::Block } else { Action::Allow };
        }
        world
    }

    fn add_policy(&mut self, rng: &mut Rng) {
        let base = IpsecSetup::tunnel4().policy(Direction::In, PairDirection::LeftToRight);
        let mut taken = self.policies.iter().map(|policy| policy.priority.0);
        let priority = (0..).map(|_| number(1000, rng)).find(|new| taken.all(|old| old != *new));
        let policy = Policy {
            direction: any_of(&[Direction::In, Direction::Forward], rng),
            selector: selector(rng),
            index: PolicyIndex(0),
            priority: Priority(priority.unwrap()),
            action: if rng.permille(120) { Action::Block } else { Action::Allow },
            templates: match rng.below(8) {
                0 => Vec::new(),
                1 | 2 => (0..2).map(|_| template(&self.states, rng)).collect(),
                _ => vec![template(&self.states, rng)],
            },
            ..base
        };
        let same = |old: &Policy| {
            (old.direction, old.selector) == (policy.direction, policy.selector)
                || old.priority == policy.priority
        };
        if !self.policies.iter().any(same) {
            self.policies.push(policy);
        }
    }

    fn gateway(&self, rng: &mut Rng) -> TestGateway {
        let addresses = OWN.map(at).into_iter().collect();
        let super_packets = HostPort::SuperPackets { udp: UdpSuper::Refused };
        let host = any_of(&[HostPort::Packets, HostPort::Packets, super_packets], rng);
        let mut gateway = TestGateway::new(Settings { addresses, host, ..Settings::default() });
        gateway.database.apply(gateway.now, |change| change.set_defaults(self.defaults));
        self.states.iter().for_each(|state| gateway.add_sa(state.config()));
        self.policies.iter().for_each(|policy| gateway.add_policy(policy.clone()));
        gateway
    }

    /// Changes the model and the database.
    fn change(&mut self, gateway: &mut TestGateway, rng: &mut Rng) {
        match rng.below(5) {
            0 | 1 => {
                let at = rng.below(self.states.len());
                let gone = self.states[at];
                let delete = |change: &mut uxfrm_engine::Transaction<'_>| {
                    change.delete_sa(gone.id(), Mark::default()).unwrap();
                };
                gateway.database.apply(gateway.now, delete);
                if self.states.len() == 1 || rng.permille(600) {
                    self.states[at] = state(gone.spi, gone.destination, rng);
                    gateway.add_sa(self.states[at].config());
                } else {
                    self.states.remove(at);
                }
            }
            2 => {
                let before = self.policies.len();
                self.add_policy(rng);
                self.policies[before..].iter().for_each(|new| gateway.add_policy(new.clone()));
            }
            3 if !self.policies.is_empty() => {
                let gone = self.policies.remove(rng.below(self.policies.len()));
                let key = PolicyKey {
                    direction: gone.direction,
                    kind: PolicyKind::Main,
                    mark: gone.mark,
                    if_id: gone.if_id,
                    name: PolicyName::Selector(gone.selector),
                };
                gateway.database.apply(gateway.now, |change| change.delete_policy(&key)).unwrap();
            }
            _ if !self.policies.is_empty() => {
                let at = rng.below(self.policies.len());
                self.policies[at].templates = vec![template(&self.states, rng)];
                let new = self.policies[at].clone();
                gateway.database.apply(gateway.now, |change| change.update_policy(new)).unwrap();
            }
            _ => {}
        }
    }

    fn find(&self, spi: u32, destination: IpAddr) -> Option<&State> {
        self.states.iter().find(|state| (state.spi, state.destination) == (spi, destination))
    }

    /// `xfrm_input` and `__xfrm_policy_check` for a packet with these layers, the outermost first.
    fn judge(&self, layers: &[Layer], plain: &Flow) -> Result<(), DropReason> {
        let mut flow = *plain;
        let mut path = Vec::new();
        for layer in layers {
            let state = self.find(layer.spi, layer.destination).ok_or(DropReason::InNoState)?;
            path.push(state);
            match (state.mode, layer.mode) {
                (Mode::Tunnel, Mode::Transport) => return Err(DropReason::InModeMismatch),
                // IPIP is a payload like any other.
                (Mode::Transport, Mode::Tunnel) => {
                    let (source, destination) = (layer.source, layer.destination);
                    flow = Flow { source, destination, protocol: 4, port: 0 };
                    break;
                }
                _ => {}
            }
        }
        let fits = |selector: &Selector| {
            selector.source.contains(flow.source)
                && selector.destination.contains(flow.destination)
                && (selector.protocol == 0 || selector.protocol == flow.protocol)
                && (selector.destination_port.mask == 0
                    || selector.destination_port == PortMask::exactly(flow.port))
        };
        if !path.iter().all(|state| state.selector.as_ref().is_none_or(fits)) {
            return Err(DropReason::InSelectorMismatch);
        }
        let is_own = OWN.map(at).contains(&flow.destination);
        let direction = if is_own { Direction::In } else { Direction::Forward };
        let matching = self
            .policies
            .iter()
            .filter(|policy| policy.direction == direction && fits(&policy.selector));
        let has_tunnel = |path: &[&State]| path.iter().any(|state| state.mode == Mode::Tunnel);
        let Some(policy) = matching.min_by_key(|policy| policy.priority.0) else {
            let default = if is_own { self.defaults.inbound } else { self.defaults.forward };
            return match has_tunnel(&path) {
                true => Err(DropReason::InNoPolicy),
                false if default == Action::Block => Err(DropReason::InDefaultBlock),
                false => Ok(()),
            };
        };
        if policy.action == Action::Block {
            return Err(DropReason::InPolicyBlock);
        }
        // From the outermost inward: the last template is the outermost.
        let mut next = 0;
        for template in policy.templates.iter().rev() {
            let optional = template.level == TemplateLevel::Use;
            if optional && template.mode == Mode::Transport {
                continue;
            }
            let mut found = None;
            for (place, state) in path.iter().enumerate().skip(next) {
                let serves = (template.spi.0 == 0 || template.spi.0 == state.spi)
                    && (template.reqid.0 == 0 || template.reqid.0 == state.reqid)
                    && template.mode == state.mode
                    && (state.mode == Mode::Transport
                        || template.source.is_unspecified()
                        || template.source == state.source);
                if serves {
                    found = Some(place + 1);
                    break;
                }
                if state.mode == Mode::Tunnel {
                    break;
                }
            }
            match found {
                Some(after) => next = after,
                None if optional => {}
                None if path.is_empty() => return Err(DropReason::InUnprotected),
                None => return Err(DropReason::InOtherState),
            }
        }
        if has_tunnel(&path[next..]) { Err(DropReason::InOtherState) } else { Ok(()) }
    }
}

/// One ESP layer, as the sender meant it.
#[derive(Clone, Copy, Debug)]
struct Layer {
    spi: u32,
    source: IpAddr,
    destination: IpAddr,
    mode: Mode,
}

/// The layers of one kind of packet, the outermost first, and the plain one.
fn route(world: &World, rng: &mut Rng) -> (Vec<Layer>, Flow) {
    let mut layers = Vec::new();
    let wanted = any_of(&[0, 1, 1, 1, 1, 2, 2, 3], rng);
    for _ in 0..wanted {
        let state = any_of(&world.states, rng);
        // An SA found by another destination's SPI may not exist.
        let own = if rng.permille(100) { at(any_of(&OWN, rng)) } else { state.destination };
        let mode = world.find(state.spi, own).map_or(state.mode, |state| state.mode);
        // Some come from another source than the SA's, which is not checked.
        let source = if rng.permille(800) { state.source } else { at(any_of(&PEERS, rng)) };
        layers.push(Layer { spi: state.spi, source, destination: own, mode });
    }
    // A packet in transport mode has the addresses inside.
    for at in (1..layers.len()).rev() {
        if layers[at - 1].mode == Mode::Transport
            && layers[at - 1].destination != layers[at].destination
        {
            layers.remove(at - 1);
        }
    }
    for at in (1..layers.len()).rev() {
        if layers[at - 1].mode == Mode::Transport {
            layers[at - 1].source = layers[at].source;
        }
    }
    let port = any_of(&[9, 10], rng);
    let flow = match layers.last() {
        Some(Layer { mode: Mode::Transport, source, destination, .. }) => {
            Flow { source: *source, destination: *destination, protocol: 17, port }
        }
        _ => any_of(&world.flows, rng),
    };
    (layers, flow)
}

fn wrapped(layers: &[Layer], flow: &Flow, number: u32) -> PacketBuf {
    let end = |address, port| format!("{address}:{port}");
    let payload = [MARKER, &number.to_be_bytes()].concat();
    let mut packet =
        packets::udp_bytes(&end(flow.source, 7), &end(flow.destination, flow.port), &payload);
    for Layer { spi, source, destination, mode } in layers.iter().rev() {
        packet = if *mode == Mode::Tunnel {
            tunnelled((*source, *destination), *spi, number + 1, &packet)
        } else {
            let text = esp(*spi, number + 1, &packet[20..], Protocol(packet[9]));
            packets::ip(*source, *destination, Protocol::ESP, &text)
        };
    }
    PacketBuf::from_slice(&packet)
}

fn number_in(packet: &PacketBuf) -> u32 {
    // There may be more layers around it.
    let bytes = packet.bytes();
    let at = bytes.windows(MARKER.len()).position(|bytes| bytes == MARKER).unwrap();
    u32::from_be_bytes(*bytes[at + MARKER.len()..].first_chunk().unwrap())
}

#[test]
fn fast_paths_agree_with_slow_check() {
    let mut reached: BTreeMap<_, u64> = BTreeMap::new();
    let mut passed = 0;
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mut world = World::random(&mut rng);
        let mut gateway = world.gateway(&mut rng);
        let mut number = 0;
        let mut routes: Vec<_> = (0..12).map(|_| route(&world, &mut rng)).collect();
        for step in 0..60 {
            if rng.permille(400) {
                world.change(&mut gateway, &mut rng);
            }
            for _ in 0..rng.below(5) {
                let at = rng.below(routes.len());
                routes[at] = route(&world, &mut rng);
            }
            let size = any_of(&[1, 1, 1, 2, 20, 64, 130], &mut rng);
            let most = any_of(&[1, 1, 3, 12], &mut rng);
            let first = rng.below(routes.len());
            let (mut batch, mut wanted, mut reasons) = (Vec::new(), Vec::new(), BTreeMap::new());
            for _ in 0..size {
                let (layers, flow) = &routes[(first + rng.below(most)) % routes.len()];
                batch.push(wrapped(layers, flow, number));
                match world.judge(layers, flow) {
                    Ok(()) => wanted.push(number),
                    Err(reason) => *reasons.entry(reason).or_insert(0_u64) += 1,
                }
                number += 1;
            }
            let before: BTreeMap<_, _> = gateway.reasons().into_iter().collect();
            let mut arrived: Vec<_> = gateway.inbound(batch).iter().map(number_in).collect();
            arrived.sort_unstable();
            passed += arrived.len();
            gateway.assert_packets_accounted();
            let mut told: BTreeMap<_, _> = gateway.reasons().into_iter().collect();
            told.retain(|reason, count| {
                *count -= before.get(reason).copied().unwrap_or(0);
                *count > 0
            });
            assert_eq!(
                arrived, wanted,
                "seed {seed} step {step} {reasons:?} {told:?} {world:#?} {routes:#?}"
            );
            assert_eq!(told, reasons, "seed {seed} step {step} {world:#?} {routes:#?}");
            told.into_iter()
                .for_each(|(reason, count)| *reached.entry(reason).or_default() += count);
        }
    }
    assert!(reached.len() == 8 && passed > 50_000, "{passed} {reached:?}");
}
