//! The model NIC: a device with the capabilities of its profile that really encrypts, verifies,
//! segments, counts and steers.
//!
//! It stands between the engine and a port. The engine hands over packets of offloaded SAs
//! ([`ModelNic::transmit`]) and passes all others ([`ModelNic::forward`]); packets from the wire go
//! through [`ModelNic::receive`] to the engine, by queues. Control uses a [`FunctionPort`], one for
//! the device itself and one for each virtual function.
//!
//! Promises: packets handed over leave encrypted or not at all, whatever happens to the link, the
//! SA or the device. Every packet comes out, is still in flight, or was dropped under exactly one
//! [`NicDrop`]. The order of a flow is kept unless a [`Fault`] says otherwise. No clock, thread or
//! random source: time is an argument, the seed is in the [`NicSetup`].

use std::collections::VecDeque;
use std::time::Duration;

use uxfrm_crypto::{Backend, Crypter};
use uxfrm_engine::{DeviceId, Handle, Moment, TrafficCounters};
use uxfrm_packet::{Batch, PacketBuf, Pool};

use crate::steering::{grammar::RuleCommand, rule::SteeringRuleId};
use crate::{FlowRule, NicEvent, Profile, Registry, RssKey, RuleError, Steering};
use completions::Completions;
use policies::PolicyTable;
use receive::{Delivery, RxPacket};
use table::StateTable;
use transmit::TxPacket;

pub use control::FunctionPort;
pub use counters::NicCounters;
pub use drops::{NicDrop, NicDrops};
pub use fault::{Fault, FaultError};
pub use function::{FunctionId, Trust, VirtualFunction};
pub use held_state::HeldState;
pub use queues::NicQueues;

mod association;
mod completions;
mod control;
mod counters;
mod debug_text;
mod drops;
mod esp_location;
mod fault;
mod flex;
mod function;
mod held_state;
mod policies;
mod queues;
mod receive;
mod receive_limit;
mod segment;
mod table;
mod transmit;

/// Start of packets from the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// An IP header. Flow rules count the flex field's offset as if 14 bytes of Ethernet preceded
    /// it.
    #[default]
    Ip,
    /// An Ethernet header, perhaps with a VLAN tag; the device removes both.
    Ethernet,
}

/// State of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkState {
    /// It carries packets.
    #[default]
    Up,
    /// It carries none: all packets are dropped.
    Down,
}

/// Set-up of a device.
#[derive(Clone, Debug)]
pub struct NicSetup {
    /// Its capabilities.
    pub profile: Profile,
    /// Its interface.
    pub device: DeviceId,
    /// Its virtual functions, the first one `FunctionId(1)`.
    pub functions: Vec<VirtualFunction>,
    /// Framing of packets from the wire.
    pub framing: Framing,
    /// Key of receive side scaling.
    pub rss_key: RssKey,
    /// Its crypto backend.
    pub backend: Backend,
    /// Seed of outer IPv4 ids.
    pub seed: u16,
}

/// A device in memory.
#[derive(Debug)]
pub struct ModelNic {
    registry: Registry,
    device: DeviceId,
    functions: Vec<VirtualFunction>,
    framing: Framing,
    backend: Backend,
    link: LinkState,
    /// Whether an SA came near its receive reservation since the last query.
    runs_short: bool,
    /// Links of the functions, the device's first.
    own_links: Vec<LinkState>,
    states: StateTable,
    policies: PolicyTable,
    steering: Option<Steering>,
    crypter: Crypter,
    events: VecDeque<(FunctionId, NicEvent)>,
    lost_events: u32,
    wrong_decryptions: u32,
    drops: NicDrops,
    sent: TrafficCounters,
    received: TrafficCounters,
    /// Packets encrypted.
    encrypted: u64,
    /// Packets per receive queue.
    queued: Vec<u64>,
    ident: u16,
    departures: Vec<TxPacket>,
    arrivals: Vec<RxPacket>,
    to_wire: Completions<(FunctionId, PacketBuf)>,
    to_host: Completions<Delivery>,
}

impl NicSetup {
    /// A set-up without virtual functions.
    #[must_use]
    pub fn new(profile: Profile, device: DeviceId) -> Self {
        Self {
            profile,
            device,
            functions: Vec::new(),
            framing: Framing::default(),
            rss_key: RssKey::default(),
            backend: Backend::Auto,
            seed: 0,
        }
    }
}

impl ModelNic {
    /// An empty device with its link up.
    ///
    /// # Errors
    /// When the crypto library has no memory.
    pub fn new(setup: NicSetup) -> Result<Self, uxfrm_crypto::Error> {
        let NicSetup { profile, device, functions, framing, rss_key, backend, seed } = setup;
        let queues = profile.steering.map_or(1, |limits| limits.queues);
        Ok(Self {
            queued: vec![0; queues.into()],
            steering: profile.steering.map(|limits| Steering::new(limits, rss_key)),
            registry: Registry::new(profile),
            device,
            runs_short: false,
            own_links: vec![LinkState::Up; functions.len() + 1],
            functions,
            framing,
            backend,
            link: LinkState::Up,
            states: StateTable::default(),
            policies: PolicyTable::default(),
            crypter: Crypter::new()?,
            events: VecDeque::new(),
            lost_events: 0,
            wrong_decryptions: 0,
            drops: NicDrops::default(),
            sent: TrafficCounters::default(),
            received: TrafficCounters::default(),
            encrypted: 0,
            ident: seed,
            departures: Vec::new(),
            arrivals: Vec::new(),
            to_wire: Completions::default(),
            to_host: Completions::default(),
        })
    }

    /// Its capabilities.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        self.registry.profile()
    }

    /// The control half, for one function; `None` when the device has no such function.
    #[must_use]
    pub fn function(&mut self, function: FunctionId) -> Option<FunctionPort<'_>> {
        self.device_of(function)?;
        Some(FunctionPort::new(self, function))
    }

    /// The function of an interface.
    #[must_use]
    pub fn function_of(&self, device: DeviceId) -> Option<FunctionId> {
        let count = u16::try_from(self.functions.len()).unwrap_or(u16::MAX);
        (0..=count).map(FunctionId).find(|function| self.device_of(*function) == Some(device))
    }

    /// Whether an SA came near its [receive reservation](crate::Device::reserve_received) since the
    /// last call: its owner should check its [counts](crate::Device::update_stats).
    pub const fn take_near_limit(&mut self) -> bool {
        std::mem::replace(&mut self.runs_short, false)
    }

    /// Sets a virtual function's trust (`ip link set DEV vf N trust on|off`). Its SAs stay.
    pub fn set_trust(&mut self, function: FunctionId, trust: Trust) {
        let place = usize::from(function.0).checked_sub(1);
        if let Some(found) = place.and_then(|place| self.functions.get_mut(place)) {
            found.trust = trust;
        }
    }

    /// Empty receive queues of the right number for [`ModelNic::receive`].
    #[must_use]
    pub fn queues(&self) -> NicQueues {
        let physical = self.profile().steering.map_or(1, |limits| limits.queues);
        NicQueues::new(physical, self.functions.len())
    }

    /// Sets the link, and informs all functions that are up. SAs and policies stay until the stack
    /// removes them; packets not on the wire yet are dropped. Does nothing without a change.
    pub fn set_link(&mut self, link: LinkState, pool: &mut Pool) {
        let before = self.links();
        self.link = link;
        self.settle_links(&before, pool);
    }

    /// As [`ModelNic::set_link`], for one function: its interface is up or down, whatever the
    /// device's link is.
    pub fn set_function_link(&mut self, function: FunctionId, link: LinkState, pool: &mut Pool) {
        let before = self.links();
        if let Some(own) = self.own_links.get_mut(usize::from(function.0)) {
            *own = link;
        }
        self.settle_links(&before, pool);
    }

    /// Whether a function carries packets.
    #[must_use]
    pub fn link_of(&self, function: FunctionId) -> LinkState {
        match (self.link, self.own_links.get(usize::from(function.0))) {
            (LinkState::Up, Some(LinkState::Up)) => LinkState::Up,
            (LinkState::Up | LinkState::Down, _) => LinkState::Down,
        }
    }

    fn links(&self) -> Vec<(FunctionId, LinkState)> {
        let count = u16::try_from(self.functions.len()).unwrap_or(u16::MAX);
        let all = (0..=count).map(FunctionId);
        all.map(|function| (function, self.link_of(function))).collect()
    }

    fn settle_links(&mut self, before: &[(FunctionId, LinkState)], pool: &mut Pool) {
        for (function, before) in before {
            match (before, self.link_of(*function)) {
                (LinkState::Down, LinkState::Up) => self.tell(*function, NicEvent::LinkUp),
                (LinkState::Up, LinkState::Down) => {
                    self.tell(*function, NicEvent::LinkDown);
                    for (_, packet) in self.to_wire.take_if(|(whose, _)| whose == function) {
                        self.refuse_sending(packet, NicDrop::TxLinkDown, pool);
                    }
                }
                (LinkState::Up, LinkState::Up) | (LinkState::Down, LinkState::Down) => {}
            }
        }
    }

    /// Whether the device carries packets.
    #[must_use]
    pub const fn link(&self) -> LinkState {
        self.link
    }

    /// Injects a fault.
    pub fn inject(&mut self, fault: Fault) {
        match fault {
            Fault::LostEvents(events) => self.lost_events = events,
            Fault::FullTables(additions) => self.registry.pretended_full = additions,
            Fault::Busy(additions) => self.registry.pretended_busy = additions,
            Fault::Delay(delay) => self.set_delay(delay),
            Fault::WrongDecryptions(packets) => self.wrong_decryptions = packets,
            Fault::Reorder(packets) => {
                self.to_wire.reorder(packets);
                self.to_host.reorder(packets);
            }
        }
    }

    /// Adds or deletes a flow director rule (`ethtool -U`).
    ///
    /// # Errors
    /// A [`RuleError`], with nothing changed.
    pub fn change_rule(&mut self, command: RuleCommand) -> Result<SteeringRuleId, RuleError> {
        self.steering.as_mut().ok_or(RuleError::NoFlowDirector)?.change(command)
    }

    /// Rules by location (`ethtool -u`).
    pub fn rules(&self) -> impl Iterator<Item = (SteeringRuleId, &FlowRule)> {
        self.steering.iter().flat_map(Steering::rules)
    }

    /// Drops by reason.
    #[must_use]
    pub const fn drops(&self) -> &NicDrops {
        &self.drops
    }

    /// Traffic to the wire. `received == sent + dropped + held`; a super-packet counts as its
    /// segments.
    #[must_use]
    pub fn outward(&self) -> TrafficCounters {
        let held = self.to_wire.iter().map(|(_, packet)| segment::count(packet)).sum();
        TrafficCounters { held, ..self.sent }
    }

    /// Traffic from the wire; as [`ModelNic::outward`].
    #[must_use]
    pub fn inward(&self) -> TrafficCounters {
        let held = u64::try_from(self.to_host.iter().count()).unwrap_or(u64::MAX);
        TrafficCounters { held, ..self.received }
    }

    /// Number of receiving and sending SAs, without larval ones.
    #[must_use]
    pub fn states(&self) -> (usize, usize) {
        self.registry.states()
    }

    /// The same for one function.
    #[must_use]
    pub fn states_of(&self, function: FunctionId) -> (usize, usize) {
        self.registry.states_of(function)
    }

    /// Number of different destinations of receiving SAs.
    #[must_use]
    pub fn addresses(&self) -> usize {
        self.registry.addresses()
    }

    /// Packets per receive queue so far.
    #[must_use]
    pub fn queue_packets(&self) -> &[u64] {
        &self.queued
    }

    /// A virtual function; `None` if there is none of this number.
    #[must_use]
    pub fn virtual_function(&self, function: FunctionId) -> Option<&VirtualFunction> {
        let place = usize::from(function.0).checked_sub(1)?;
        self.functions.get(place)
    }

    /// Active SAs in table order.
    pub fn held(&self) -> impl Iterator<Item = HeldState> {
        self.states.in_order().into_iter().map(HeldState::of)
    }

    /// Number of policies.
    #[must_use]
    pub fn policies(&self) -> usize {
        self.registry.policies()
    }

    /// When the next delayed packet is due: call [`ModelNic::complete`] then.
    #[must_use]
    pub fn next_due(&self) -> Option<Moment> {
        [self.to_wire.next_due(), self.to_host.next_due()].into_iter().flatten().min()
    }

    /// Releases delayed packets that are due `now`. Every call of [`ModelNic::transmit`],
    /// [`ModelNic::forward`] and [`ModelNic::receive`] does so for its own direction.
    pub fn complete(&mut self, now: Moment, wire: &mut Batch, queues: &mut NicQueues) {
        self.complete_sending(now, wire);
        self.complete_receiving(now, queues);
    }

    fn set_delay(&mut self, delay: Duration) {
        self.to_wire.set_delay(delay);
        self.to_host.set_delay(delay);
    }

    pub(crate) fn device_of(&self, function: FunctionId) -> Option<DeviceId> {
        match usize::from(function.0).checked_sub(1) {
            None => Some(self.device),
            Some(place) => self.functions.get(place).map(|found| found.device),
        }
    }

    fn tell(&mut self, function: FunctionId, event: NicEvent) {
        if self.lost_events > 0 {
            self.lost_events -= 1;
            return;
        }
        self.events.push_back((function, event));
    }

    /// Queues an event about an SA.
    fn tell_of(&mut self, handle: Handle, event: impl FnOnce(uxfrm_engine::SaId) -> NicEvent) {
        if let Some(association) = self.states.of(handle) {
            let (function, id) = (association.function, association.id());
            self.tell(function, event(id));
        }
    }
}

impl Default for RssKey {
    /// The key of Microsoft's vectors, default of many drivers.
    fn default() -> Self {
        Self([
            0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3,
            0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3,
            0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
        ])
    }
}

#[cfg(test)]
mod tests;
