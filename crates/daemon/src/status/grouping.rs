//! Policies and states of a snapshot, grouped into tunnels.
//!
//! Outbound templates make the tunnels; those of `in` and `fwd` policies join the tunnel between
//! the same ends, as the other direction, or make one of their own. Then each state goes to the
//! tunnel that it fits. A look-up each; what comes of it holds until policies or states change, so
//! a gateway that is asked each second does it once. Where only states have changed, as by a rekey,
//! the tunnels stay, and states are looked up anew.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use foldhash::fast::RandomState;
use uxfrm_engine::{
    Action, Direction, DropSubject, IfId, Mode, PolicyEntry, PolicyIndex, Prefix, Reqid, Sa,
    SaProtocol, SaRequest, Selector, Snapshot, Template, TemplateLevel,
};
use uxfrm_status::{
    gateway::{PeerFilter, PlainPolicies},
    health::Requirement,
    tunnel::{PolicyTally, ProtectedNets},
};

/// Nets that a tunnel names.
const NETS: usize = 16;

/// What makes a tunnel one: the ends and what template and state must have in common. Unspecified
/// ends stand for any. The order is that of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct TunnelKey {
    pub(super) remote: IpAddr,
    pub(super) local: IpAddr,
    pub(super) reqid: Reqid,
    pub(super) mode: Mode,
    pub(super) protocol: SaProtocol,
    pub(super) if_id: IfId,
}

/// A tunnel's policies.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) key: TunnelKey,
    pub(super) nets: Vec<ProtectedNets>,
    pub(super) nets_total: u64,
    pub(super) policies: PolicyTally,
    pub(super) requirement: Requirement,
    /// Whether it is asked for.
    pub(super) is_wanted: bool,
}

/// The group that a state fits, and the way it carries packets there, if anything but use tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    group: u32,
    direction: Option<Direction>,
}

/// The tunnels of a snapshot, and which states are whose. It has no part of the snapshot, which
/// would keep deleted states and their keys.
#[derive(Debug, Default)]
pub(super) struct Grouping {
    snapshot: SnapshotName,
    pub(super) groups: Vec<Group>,
    by_key: HashMap<TunnelKey, usize, RandomState>,
    /// Of each state, in the order of the snapshot; `None` for one that fits no policy.
    pub(super) places: Vec<Option<Place>>,
    /// A group that takes inbound states of any reqid, by its key with reqid 0.
    any_reqid: HashMap<TunnelKey, usize, RandomState>,
    /// The group of each policy with templates, in the order of their indices.
    policies: Vec<(PolicyIndex, u32)>,
    pub(super) plain: PlainPolicies,
}

/// Which snapshot it was, as far as policies and states are concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SnapshotName {
    generation: u64,
    states: usize,
    /// Where the states are; never followed.
    sad: usize,
    policies: PoliciesName,
}

/// Which policies they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PoliciesName {
    generation: u64,
    count: usize,
    /// Where they are; never followed.
    spd: usize,
}

/// A grouping as it is made.
#[derive(Debug, Default)]
struct Builder<'a> {
    filter: Option<&'a PeerFilter>,
    made: Grouping,
    /// The first group between two ends, by its key with reqid 0.
    by_ends: HashMap<TunnelKey, usize, RandomState>,
    /// A group by its key without ends, for inbound templates that name none.
    any_ends: HashMap<TunnelKey, usize, RandomState>,
}

impl Place {
    /// The group's number.
    pub(super) const fn group(self) -> usize {
        self.group as usize
    }

    /// Which way `sa`, whose place it is, carries packets: out or in.
    pub(super) fn direction(self, sa: &Sa) -> Direction {
        match self.direction {
            Some(Direction::Out) => Direction::Out,
            Some(Direction::In | Direction::Forward) => Direction::In,
            // Neither end tells: whoever has sent by it sends.
            None if sa.sequence().last() > 0 || sa.highest_received() == 0 => Direction::Out,
            None => Direction::In,
        }
    }
}

impl SnapshotName {
    fn of(snapshot: &Snapshot) -> Self {
        let sad = Arc::as_ptr(&snapshot.sad).addr();
        let (generation, count) = (snapshot.spd.generation(), snapshot.spd.len());
        let spd = Arc::as_ptr(&snapshot.spd).addr();
        let policies = PoliciesName { generation, count, spd };
        Self { generation: snapshot.generation, states: snapshot.sad.len(), sad, policies }
    }
}

impl Grouping {
    /// The tunnels of a snapshot; those that a filter leaves out are not wanted.
    pub(super) fn of(snapshot: &Snapshot, filter: Option<&PeerFilter>) -> Self {
        let mut builder = Builder { filter, ..Builder::default() };
        // Outbound policies first: the others join them.
        snapshot.spd.iter().for_each(|entry| builder.take_outbound(entry));
        snapshot.spd.iter().for_each(|entry| builder.take_inbound(entry));
        builder.made.policies.sort_by_key(|(index, _)| *index);
        builder.made.with_states_of(snapshot)
    }

    /// The tunnels of a snapshot from those of an earlier one: as they are where nothing has
    /// changed, with states looked up anew where only these have.
    pub(super) fn renewed(self, snapshot: &Snapshot) -> Self {
        if self.is_of(snapshot) {
            self
        } else if self.has_policies_of(snapshot) {
            self.with_states_of(snapshot)
        } else {
            Self::of(snapshot, None)
        }
    }

    /// Whether a snapshot has the same policies and states.
    pub(super) fn is_of(&self, snapshot: &Snapshot) -> bool {
        self.snapshot == SnapshotName::of(snapshot)
    }

    /// Whether a snapshot has the same policies.
    pub(super) fn has_policies_of(&self, snapshot: &Snapshot) -> bool {
        self.snapshot.policies == SnapshotName::of(snapshot).policies
    }

    fn with_states_of(self, snapshot: &Snapshot) -> Self {
        let places = snapshot.sad.iter().map(|sa| self.place(sa)).collect();
        Self { snapshot: SnapshotName::of(snapshot), places, ..self }
    }

    /// The first group of a policy for which packets were dropped.
    pub(super) fn of_policy(&self, subject: &DropSubject) -> Option<usize> {
        let index = subject.policy?;
        let at = self.policies.partition_point(|(known, _)| *known < index);
        let (known, group) = self.policies.get(at)?;
        (*known == index).then_some(*group as usize)
    }

    /// The group whose states a key manager was asked for.
    pub(super) fn of_request(&self, wanted: &SaRequest) -> Option<usize> {
        let SaRequest { source, destination, protocol, mode, reqid, if_id, .. } = *wanted;
        let any = uxfrm_engine::Family::of(destination).unspecified();
        let ends = [(source, destination), (any, destination), (source, any), (any, any)];
        let mut keys = ends.into_iter().map(|(local, remote)| TunnelKey {
            remote,
            local,
            reqid,
            mode,
            protocol,
            if_id,
        });
        keys.find_map(|key| self.by_key.get(&key).copied())
    }

    /// The group that a state fits, and the way it carries packets there.
    fn place(&self, sa: &Sa) -> Option<Place> {
        let (source, destination) = (sa.source(), sa.id().destination);
        let any = uxfrm_engine::Family::of(destination).unspecified();
        let key = |local, remote| TunnelKey {
            remote,
            local,
            reqid: sa.reqid(),
            mode: sa.config().mode,
            protocol: sa.id().protocol,
            if_id: sa.config().if_id,
        };
        // Either end of a template may be any.
        let ends = |local, remote| [(local, remote), (any, remote), (local, any)];
        let out = |(local, remote)| self.by_key.get(&key(local, remote)).copied();
        let into = |ends: (IpAddr, IpAddr)| {
            let any_reqid = TunnelKey { reqid: Reqid(0), ..key(ends.0, ends.1) };
            out(ends).or_else(|| self.any_reqid.get(&any_reqid).copied())
        };
        let outbound = ends(source, destination).into_iter().find_map(out);
        let inbound = || ends(destination, source).into_iter().find_map(into);
        let between_any = || Some((into((any, any))?, sa.config().direction));
        let outbound = outbound.map(|at| (at, Some(Direction::Out)));
        let inbound = || inbound().map(|at| (at, Some(Direction::In)));
        let (at, direction) = outbound.or_else(inbound).or_else(between_any)?;
        Some(Place { group: u32::try_from(at).unwrap_or(u32::MAX), direction })
    }
}

impl Builder<'_> {
    fn take_outbound(&mut self, entry: &PolicyEntry) {
        if entry.direction() != Direction::Out || self.is_plain(entry) {
            return;
        }
        let selector = entry.selector();
        for template in entry.templates() {
            let ends = ends(&template, (selector.source, selector.destination));
            let (local, remote) = ends;
            let key = key_of(&template, entry, local, remote);
            let at = self.group(key);
            self.note(entry, &template, at);
            let nets = nets(&selector, (selector.source, selector.destination));
            self.made.groups[at].protect(nets, self.filter, selector.destination);
        }
    }

    fn take_inbound(&mut self, entry: &PolicyEntry) {
        if entry.direction() == Direction::Out || self.is_plain(entry) {
            return;
        }
        let selector = entry.selector();
        for template in entry.templates() {
            let (remote, local) = ends(&template, (selector.source, selector.destination));
            let key = key_of(&template, entry, local, remote);
            let at = self.inbound_group(key);
            self.note(entry, &template, at);
            if template.reqid == Reqid(0) {
                self.made.any_reqid.entry(key).or_insert(at);
            }
            if self.made.groups[at].policies.outbound == 0 {
                let nets = nets(&selector, (selector.destination, selector.source));
                self.made.groups[at].protect(nets, self.filter, selector.source);
            }
        }
    }

    /// A template of a policy belongs to a group.
    fn note(&mut self, entry: &PolicyEntry, template: &Template, at: usize) {
        self.made.groups[at].note(entry, template);
        // So many policies do not fit in memory.
        let group = u32::try_from(at).unwrap_or(u32::MAX);
        self.made.policies.push((entry.index(), group));
    }

    /// Counts a policy without templates, once.
    fn is_plain(&mut self, entry: &PolicyEntry) -> bool {
        if entry.templates().len() > 0 {
            return false;
        }
        *match (entry.action(), entry.is_held()) {
            (Action::Block, true) => &mut self.made.plain.held,
            (Action::Block, false) => &mut self.made.plain.block,
            (Action::Allow, _) => &mut self.made.plain.bypass,
        } += 1;
        true
    }

    /// The group with a key, which is made if it is not there.
    fn group(&mut self, key: TunnelKey) -> usize {
        let next = self.made.groups.len();
        let at = *self.made.by_key.entry(key).or_insert(next);
        if at == next {
            self.by_ends.entry(TunnelKey { reqid: Reqid(0), ..key }).or_insert(at);
            self.any_ends.entry(without_ends(key)).or_insert(at);
            let is_wanted = self.filter.is_none_or(|filter| filter.contains(key.remote));
            self.made.groups.push(Group::new(key, is_wanted));
        }
        at
    }

    /// The group that an inbound template belongs to: one with its key, else one that is for any
    /// as far as the template is.
    fn inbound_group(&mut self, key: TunnelKey) -> usize {
        let known = self.made.by_key.get(&key).copied();
        // No other key has reqid 0.
        let any_reqid = || self.by_ends.get(&key).copied();
        let any_ends = || {
            let is_any = key.remote.is_unspecified() || key.local.is_unspecified();
            let known = self.any_ends.get(&without_ends(key)).copied();
            known.filter(|at| is_any && fits_ends(&key, &self.made.groups[*at].key))
        };
        known.or_else(any_reqid).or_else(any_ends).unwrap_or_else(|| self.group(key))
    }
}

impl Group {
    const fn new(key: TunnelKey, is_wanted: bool) -> Self {
        Self {
            key,
            nets: Vec::new(),
            nets_total: 0,
            policies: PolicyTally { outbound: 0, inbound: 0, forward: 0 },
            requirement: Requirement::Optional,
            is_wanted,
        }
    }

    /// A template of a policy belongs to it.
    fn note(&mut self, entry: &PolicyEntry, template: &Template) {
        *match entry.direction() {
            Direction::Out => &mut self.policies.outbound,
            Direction::In => &mut self.policies.inbound,
            Direction::Forward => &mut self.policies.forward,
        } += 1;
        if template.level == TemplateLevel::Required {
            self.requirement = Requirement::Required;
        }
    }

    /// It protects these nets, of which `remote` is the other side's.
    fn protect(&mut self, nets: ProtectedNets, filter: Option<&PeerFilter>, remote: Prefix) {
        self.is_wanted |= filter.is_some_and(|filter| remote.contains(filter.prefix().0));
        if self.nets.contains(&nets) {
            return;
        }
        self.nets_total += 1;
        if self.nets.len() < NETS {
            self.nets.push(nets);
        }
    }
}

/// The ends of a template's outer header, source first; in transport mode those of the packets,
/// where the selector has but one address of each.
fn ends(template: &Template, (source, destination): (Prefix, Prefix)) -> (IpAddr, IpAddr) {
    let end = |named: IpAddr, of_packets: Prefix| {
        let is_host = of_packets.prefix_len() == of_packets.family().bits();
        let is_open = named.is_unspecified() && template.mode == Mode::Transport;
        if is_open && is_host { of_packets.address() } else { named }
    };
    (end(template.source, source), end(template.destination, destination))
}

fn key_of(template: &Template, entry: &PolicyEntry, local: IpAddr, remote: IpAddr) -> TunnelKey {
    let Template { reqid, mode, protocol, .. } = *template;
    TunnelKey { remote, local, reqid, mode, protocol, if_id: entry.if_id() }
}

const fn without_ends(key: TunnelKey) -> TunnelKey {
    let none = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
    TunnelKey { remote: none, local: none, ..key }
}

/// Whether a template's ends, of which some are any, are those of a tunnel.
fn fits_ends(template: &TunnelKey, tunnel: &TunnelKey) -> bool {
    let fits = |any: IpAddr, end: IpAddr| any.is_unspecified() || any == end;
    fits(template.remote, tunnel.remote) && fits(template.local, tunnel.local)
}

fn nets(selector: &Selector, (local, remote): (Prefix, Prefix)) -> ProtectedNets {
    ProtectedNets {
        local: local.network().to_string(),
        remote: remote.network().to_string(),
        traffic: traffic(selector),
    }
}

/// Protocol and ports, in the words of `ip xfrm`.
fn traffic(selector: &Selector) -> Option<String> {
    let mut text = (selector.protocol != 0).then(|| selector.protocol.to_string())?;
    for (word, port) in [("sport", selector.source_port), ("dport", selector.destination_port)] {
        match port.mask {
            0 => {}
            u16::MAX => text += &format!(" {word} {}", port.value),
            mask => text += &format!(" {word} {:#x}/{mask:#x}", port.value),
        }
    }
    Some(text)
}
