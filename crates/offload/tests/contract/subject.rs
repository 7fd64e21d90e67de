//! A gateway that does a state's work itself or has a device do it.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use uxfrm_engine::{
    ChangeSet, Counters, Database, DeviceId, Direction, DropReason, Error, Family, HostAddresses,
    LifetimeLimits, Mark, Mode, Offload, OffloadKind, Prefix, Sa, SaConfig, SaMove, SaProtocol,
    Settings, Transaction,
};
use uxfrm_offload::{FunctionId, ModelNic, NicQueues, NicSetup, Nics, Profile};
use uxfrm_packet::{Batch, PacketBuf, Pool};
use uxfrm_testkit::{FIRST_SPI, IpsecSetup, PairDirection, TestGateway, packets, split_burst};

use crate::peer::{Peer, whole};
use crate::step::{Sealed, Seen, State, Step};

const NIC: DeviceId = DeviceId(7);

/// Who does the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Software,
    Crypto,
    Packet,
}

impl Engine {
    pub(crate) const ALL: [Self; 3] = [Self::Software, Self::Crypto, Self::Packet];

    const fn kind(self) -> Option<OffloadKind> {
        match self {
            Self::Software => None,
            Self::Crypto => Some(OffloadKind::Crypto),
            Self::Packet => Some(OffloadKind::Packet),
        }
    }
}

/// Whether somebody writes numbers down before they are used, as a gateway does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeping {
    Nobody,
    Owner,
}

/// So many are reserved at a time.
const AHEAD: u64 = 1 << 16;

/// The gateway under test.
pub(crate) struct Subject {
    engine: Engine,
    pub(crate) gateway: TestGateway,
    nics: Nics,
    nic: Arc<Mutex<ModelNic>>,
    pool: Pool,
    queues: NicQueues,
    wrapping: IpsecSetup,
    /// One for each generation of states.
    peers: Vec<Peer>,
    generation: u32,
    /// Where the peer is, once it has moved.
    moved: Option<IpAddr>,
}

impl Subject {
    pub(crate) fn new(engine: Engine, wrapping: &IpsecSetup, keeping: Keeping) -> Self {
        let addresses: HostAddresses = [
            wrapping.gateways(PairDirection::LeftToRight).0,
            wrapping.hosts(PairDirection::LeftToRight).0,
        ]
        .into_iter()
        .collect();
        let mut gateway = TestGateway::new(Settings { addresses, ..wrapping.settings.clone() });
        let profile = Profile::by_name("unlimited").unwrap();
        let nic = ModelNic::new(NicSetup::new(profile, NIC)).unwrap();
        let (queues, nic, nics) = (nic.queues(), Arc::new(Mutex::new(nic)), Nics::default());
        assert!(nics.add_function("nic0", &nic, FunctionId::PHYSICAL));
        gateway.database.set_devices(Box::new(nics.clone()));
        if keeping == Keeping::Owner {
            gateway.database.track_changes();
        }
        let mut subject = Self {
            engine,
            gateway,
            nics,
            nic,
            pool: Pool::new(),
            queues,
            wrapping: wrapping.clone(),
            peers: vec![Peer::new(wrapping, FIRST_SPI)],
            generation: 0,
            moved: None,
        };
        subject.put_policies(None);
        subject
    }

    pub(crate) fn nic(&self) -> MutexGuard<'_, ModelNic> {
        self.nic.lock().unwrap()
    }

    fn offload(&self, direction: Direction) -> Option<Offload> {
        let kind = self.engine.kind()?;
        Some(Offload { kind, device: "nic0".into(), direction })
    }

    /// Policies, with the peer's address.
    fn put_policies(&mut self, peer: Option<IpAddr>) {
        for (direction, way) in [
            (Direction::Out, PairDirection::LeftToRight),
            (Direction::In, PairDirection::RightToLeft),
            (Direction::Forward, PairDirection::RightToLeft),
        ] {
            let mut policy = self.wrapping.policy(direction, way);
            if let Some(peer) = peer {
                let (template, selector) = (&mut policy.templates[0], &mut policy.selector);
                let (outer, inner) = match way {
                    PairDirection::LeftToRight => {
                        (&mut template.destination, &mut selector.destination)
                    }
                    PairDirection::RightToLeft => (&mut template.source, &mut selector.source),
                };
                *outer = peer;
                if self.wrapping.mode == Mode::Transport {
                    *inner = Prefix::host(peer);
                }
            }
            if self.engine == Engine::Packet && direction != Direction::Forward {
                policy.offload = self.offload(direction);
            }
            let now = self.gateway.now;
            self.gateway.database.apply(now, |change| change.update_policy(policy)).unwrap();
        }
    }

    fn spi(&self) -> u32 {
        FIRST_SPI + 2 * self.generation
    }

    /// A state of a generation: what sends, or what receives.
    fn config(&self, way: PairDirection, spi: u32) -> SaConfig {
        let (spi, direction) = match way {
            PairDirection::LeftToRight => (spi, Direction::Out),
            PairDirection::RightToLeft => (spi + 1, Direction::In),
        };
        SaConfig { offload: self.offload(direction), ..self.wrapping.sa(way, spi) }
    }

    fn states(&self, spi: u32) -> Vec<Arc<Sa>> {
        let snapshot = self.gateway.database.current();
        let mut all: Vec<_> = snapshot.sad.iter().cloned().collect();
        all.retain(|sa| [spi, spi + 1].contains(&sa.id().spi.0));
        all.sort_by_key(|sa| (sa.id().spi.0, sa.id().destination));
        all
    }

    /// Does what a step says, and what a gateway's control thread does afterwards.
    pub(crate) fn take(&mut self, step: &Step) -> Seen {
        let mut seen = Seen::default();
        match step {
            Step::Add { sent, received, window } => {
                seen.refused = self.add(&counters(*sent, *received, window));
            }
            Step::Send(count) => self.send(*count, &mut seen),
            Step::Receive(numbers) => self.receive(numbers, |_| (), &mut seen),
            Step::ReceiveForged(numbers) => {
                self.receive(numbers, |esp| *esp.last_mut().unwrap() ^= 1, &mut seen);
            }
            Step::Update(limits) => seen.refused = self.update_states(*limits),
            Step::Move(address) => seen.refused = self.move_states(*address),
            Step::SetCounters { sent, received } => {
                seen.refused = self.set_counters(*sent, *received);
            }
            Step::AddNext => {
                self.generation += 1;
                self.peers.push(Peer::new(&self.wrapping, self.spi()));
                seen.refused = self.add(&Counters::default());
            }
            Step::DeletePrevious => seen.refused = self.delete_states(self.spi().saturating_sub(2)),
            Step::Flush => {
                let now = self.gateway.now;
                self.gateway.database.apply(now, |change| change.flush_sas(SaProtocol::Any));
            }
            Step::Wait(seconds) => {
                self.gateway.now = self.gateway.now.plus(Duration::from_secs(*seconds));
            }
        }
        self.look(&mut seen);
        seen
    }

    /// As the netlink server does.
    fn add(&mut self, counters: &Counters) -> Option<String> {
        let spi = self.spi();
        let both = [PairDirection::LeftToRight, PairDirection::RightToLeft].map(|way| {
            let config = self.config(way, spi);
            let (id, mark, counters) = (config.id, config.mark, counters.clone());
            let added = self.gateway.database.apply(self.gateway.now, |change| {
                change.add_sa(config)?;
                change.set_counters(id, mark, counters)
            });
            refusal(added)
        });
        first(both)
    }

    fn update_states(&mut self, limits: LifetimeLimits) -> Option<String> {
        self.wrapping.limits = limits;
        let (spi, now) = (self.spi(), self.gateway.now);
        first([PairDirection::LeftToRight, PairDirection::RightToLeft].map(|way| {
            let config = self.config(way, spi);
            refusal(self.gateway.database.apply(now, |change| change.update_sa(config)))
        }))
    }

    fn set_counters(&mut self, sent: u64, received: u64) -> Option<String> {
        let now = self.gateway.now;
        let all = self.states(self.spi()).into_iter().map(|sa| {
            let counters = counters(sent, received, &[received]);
            let set = |change: &mut Transaction<'_>| {
                change.set_counters(sa.id(), Mark::default(), counters)
            };
            refusal(self.gateway.database.apply(now, set))
        });
        first(all)
    }

    fn delete_states(&mut self, spi: u32) -> Option<String> {
        let now = self.gateway.now;
        first(self.states(spi).into_iter().map(|sa| {
            let gone = |change: &mut Transaction<'_>| change.delete_sa(sa.id(), Mark::default());
            refusal(self.gateway.database.apply(now, gone))
        }))
    }

    pub(crate) fn move_states(&mut self, address: u8) -> Option<String> {
        let peer = self.moved_to(address);
        let moves = self.states(self.spi()).into_iter().map(|sa| {
            let to = SaMove::of(&sa);
            let to = if sa.id().spi.0 == self.spi() {
                SaMove { destination: peer, ..to }
            } else {
                SaMove { source: peer, ..to }
            };
            (sa, to)
        });
        let moves: Vec<_> = moves.collect();
        let now = self.gateway.now;
        let moved = self.gateway.database.apply(now, |change| change.move_sas(moves));
        let refused = refusal(moved);
        if refused.is_none() {
            self.put_policies(Some(peer));
            self.peers[self.generation as usize].move_to(peer);
            self.moved = Some(peer);
        }
        refused
    }

    fn moved_to(&self, address: u8) -> IpAddr {
        match self.wrapping.outer {
            Family::V4 => [192, 0, 2, address].into(),
            Family::V6 => [0x2001, 0xdb8, 0, 0, 0, 0, 0, address.into()].into(),
        }
    }

    /// From the host to the wire, as a lane and the device's thread do.
    fn send(&mut self, count: usize, seen: &mut Seen) {
        let plain = || whole(self.datagram(b"from the host"));
        let plain = (0..count).map(|_| plain()).collect();
        let wire = self.outbound(plain);
        for packet in wire.iter().flat_map(split_burst) {
            let sealed = self.sealed(packet.bytes());
            seen.wire.push(sealed);
        }
    }

    pub(crate) fn outbound(&mut self, plain: Vec<PacketBuf>) -> Vec<PacketBuf> {
        let (through, _) = self.gateway.outbound(plain);
        self.leave(through)
    }

    /// What the engine handed over, and what it sent itself, through the device.
    pub(crate) fn leave(&mut self, through: Vec<PacketBuf>) -> Vec<PacketBuf> {
        let mut nic = self.nic.lock().unwrap();
        let (mut wire, now) = (Batch::new(), self.gateway.now);
        nic.transmit(&mut self.gateway.handed, now, &mut self.pool, &mut wire);
        let mut through: Batch = through.into_iter().collect();
        nic.forward(&mut through, now, &mut self.pool, &mut wire);
        wire.drain().collect()
    }

    /// What of a frame must be the same: all but the IV, and what hangs on it. The peer finds the
    /// number's upper half.
    fn sealed(&self, frame: &[u8]) -> Sealed {
        let ip = if self.wrapping.outer == Family::V4 { 20 } else { 40 };
        let esp = ip + if self.wrapping.encap.is_some() { 8 } else { 0 };
        let word = |at: usize| u32::from_be_bytes(*frame[at..].first_chunk().unwrap());
        let (spi, low) = (word(esp), u64::from(word(esp + 4)));
        let peer = &self.peers[(spi - FIRST_SPI) as usize / 2];
        let open = |high: u64| Some((high << 32 | low, peer.open(frame, high << 32 | low)?));
        let opened = (0..4).find_map(open);
        Sealed { outer: frame[..esp].to_vec(), spi, low, len: frame.len(), opened }
    }

    fn receive(&mut self, numbers: &[u64], change: fn(&mut Vec<u8>), seen: &mut Seen) {
        let peer = &mut self.peers[self.generation as usize];
        let wire = numbers.iter().map(|number| {
            let mut esp = peer.esp(*number);
            change(&mut esp);
            PacketBuf::from_slice(&esp)
        });
        let wire = wire.collect();
        let delivered = self.inbound(wire);
        seen.delivered = delivered.iter().map(|packet| packet.bytes().to_vec()).collect();
    }

    pub(crate) fn inbound(&mut self, wire: Vec<PacketBuf>) -> Vec<PacketBuf> {
        let mut batch: Batch = wire.into_iter().collect();
        let now = self.gateway.now;
        if self.engine == Engine::Software {
            return self.gateway.inbound(batch.drain().collect());
        }
        self.nic.lock().unwrap().receive(&mut batch, now, &mut self.pool, &mut self.queues);
        self.take_received()
    }

    /// What the device has for the engine.
    pub(crate) fn take_received(&mut self) -> Vec<PacketBuf> {
        let received = self.queues.drain().collect();
        self.gateway.inbound_from_device(received)
    }

    /// ESP of the peer's, as far as the device's queues.
    pub(crate) fn arrive(&mut self, number: u64) {
        let esp = PacketBuf::from_slice(&self.peers[0].esp(number));
        let (mut batch, now) = (std::iter::once(esp).collect::<Batch>(), self.gateway.now);
        self.nic.lock().unwrap().receive(&mut batch, now, &mut self.pool, &mut self.queues);
    }

    /// ESP of the peer's.
    pub(crate) fn esp(&mut self, number: u64) -> Vec<u8> {
        self.peers[0].esp(number)
    }

    /// A datagram of the host's.
    pub(crate) fn datagram(&self, payload: &[u8]) -> PacketBuf {
        let (source, mut destination) = self.wrapping.hosts(PairDirection::LeftToRight);
        if let (Mode::Transport, Some(moved)) = (self.wrapping.mode, self.moved) {
            destination = moved;
        }
        let end = |address, port| std::net::SocketAddr::new(address, port).to_string();
        packets::udp(&end(source, 5), &end(destination, 9), payload)
    }

    /// What the control thread does, and a dump.
    pub(crate) fn look(&mut self, seen: &mut Seen) {
        let (mut said, mut events) = (Vec::new(), std::mem::take(&mut self.gateway.events));
        self.nics.take_events(&mut said);
        let database = &mut self.gateway.database;
        for (device, event) in said {
            if let Some(event) = event.to_hear() {
                database.hear(device, event, self.gateway.now, &mut events);
            }
        }
        database.advance_numbers();
        database.handle_timeout(self.gateway.now, &mut events);
        commit(database);
        database.update_all_counts();
        seen.events = events;
        let current = self.gateway.database.current();
        let mut states: Vec<_> = current.sad.iter().collect();
        states.sort_by_key(|sa| (sa.id().spi.0, sa.id().destination));
        seen.states = states.into_iter().map(|sa| shown(sa)).collect();
        seen.drops = self.drops();
    }

    /// The engine's and the device's, as `uxfrm stat` has them.
    fn drops(&self) -> Vec<(&'static str, u64)> {
        let nic = self.nic();
        let count = |reason: DropReason| {
            let its = nic.drops().iter().filter(|(drop, _)| drop.reason() == reason);
            self.gateway.drops(reason) + its.map(|(_, count)| count).sum::<u64>()
        };
        let all = DropReason::ALL.iter().map(|reason| (reason.as_str(), count(*reason)));
        all.filter(|(_, count)| *count > 0).collect()
    }
}

/// What whoever keeps numbers across restarts does with states that came.
fn commit(database: &mut Database) {
    let ChangeSet { added, .. } = database.take_changes();
    for sa in &added {
        sa.sequence().reserve(sa.sequence().last() + AHEAD);
    }
    if !added.is_empty() {
        database.push_sequence_limits();
    }
    database.publish();
}

fn shown(sa: &Sa) -> State {
    let usage = sa.usage();
    State {
        spi: sa.id().spi.0,
        packets: usage.packets(),
        bytes: usage.bytes(),
        sent: sa.sequence().last(),
        received: sa.highest_received(),
        window: sa.received_in_window(),
        failures: usage.failures(),
        lifecycle: usage.lifecycle(),
        first_used: usage.first_used(),
    }
}

fn counters(sent: u64, received: u64, window: &[u64]) -> Counters {
    Counters {
        sent: Some(sent),
        received: Some(received),
        window: window.to_vec(),
        ..Counters::default()
    }
}

/// The first refusal of all that was done.
fn first(all: impl IntoIterator<Item = Option<String>>) -> Option<String> {
    // All of it is done, whatever comes first.
    all.into_iter().collect::<Vec<_>>().into_iter().flatten().next()
}

fn refusal<T>(outcome: Result<T, Error>) -> Option<String> {
    outcome.err().map(|error| error.to_string())
}
