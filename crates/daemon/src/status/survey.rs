//! Policies and states of a snapshot, grouped into tunnels.
//!
//! Outbound templates make the tunnels; those of `in` and `fwd` policies join the tunnel between
//! the same ends, as the other direction, or make one of their own. Then each state goes to the
//! tunnel that it fits. A look-up each, so 100,000 of them take a moment and no more.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
};

use foldhash::fast::RandomState;
use uxfrm_engine::{
    Action, Direction, DropReason, DropSubject, DropTallies, DropTally, IfId, Mode, Moment,
    PolicyEntry, PolicyIndex, Prefix, Reqid, Sa, SaId, SaProtocol, SaRequest, Selector, Snapshot,
    Template, TemplateLevel,
};
use uxfrm_status::{
    gateway::{PeerFilter, PlainPolicies, StatusTotals},
    health::{KeyManagement, Requirement},
    protocol::RequestRefusal,
    tunnel::{PolicyTally, ProtectedNets, StateStatus, TunnelStatus},
};

use super::{
    board::Posted,
    state::{self, MODES, PROTOCOLS, mode_word, protocol_word},
    tunnel::Summary,
};

/// Nets that a tunnel names.
const NETS: usize = 16;
/// States without a policy that are told.
const UNMATCHED: usize = 50;

/// When it is, and what the control thread has posted by then.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadAt<'a> {
    pub(super) now: Moment,
    pub(super) posted: &'a Posted,
}

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

/// A tunnel's policies and states.
#[derive(Debug)]
pub(super) struct Group<'a> {
    pub(super) key: TunnelKey,
    pub(super) nets: Vec<ProtectedNets>,
    pub(super) nets_total: u64,
    pub(super) policies: PolicyTally,
    pub(super) requirement: Requirement,
    pub(super) key_management: KeyManagement,
    /// States by which packets leave.
    pub(super) outbound: Vec<&'a Sa>,
    /// States by which packets come in.
    pub(super) inbound: Vec<&'a Sa>,
    /// Packets that were dropped for its states and policies.
    pub(super) drops: BTreeMap<DropReason, u64>,
    /// Whether it is asked for.
    is_wanted: bool,
}

/// All tunnels at an instant.
#[derive(Debug)]
pub(super) struct Survey<'a> {
    read: ReadAt<'a>,
    filter: Option<&'a PeerFilter>,
    groups: Vec<Group<'a>>,
    by_key: HashMap<TunnelKey, usize, RandomState>,
    /// A group that takes inbound states of any reqid, by its key with reqid 0.
    any_reqid: HashMap<TunnelKey, usize, RandomState>,
    /// The first group between two ends, by its key with reqid 0.
    by_ends: HashMap<TunnelKey, usize, RandomState>,
    /// A group by its key without ends, for inbound templates that name none.
    any_ends: HashMap<TunnelKey, usize, RandomState>,
    /// Groups of states and policies that have drop counts; `None` for those that were not met yet.
    dropped: Dropped,
    plain: PlainPolicies,
    /// States that fit no policy.
    unmatched: Vec<&'a Sa>,
    /// What is known of each wanted tunnel.
    summaries: Vec<(usize, Summary)>,
}

/// States and policies for which packets were dropped, with the group that they belong to once that
/// is known.
#[derive(Debug, Default)]
struct Dropped {
    states: HashMap<SaId, Option<usize>, RandomState>,
    policies: HashMap<PolicyIndex, Option<usize>, RandomState>,
}

impl Dropped {
    fn of(tallies: &DropTallies) -> Self {
        let subjects = || tallies.tallies().iter().map(|tally| tally.subject);
        let states = subjects().filter_map(|subject| Some((subject.sa?.id, None)));
        let policies = subjects().filter_map(|subject| Some((subject.policy?, None)));
        Self { states: states.collect(), policies: policies.collect() }
    }

    fn note_state(&mut self, id: SaId, at: usize) {
        if let Some(group) = self.states.get_mut(&id) {
            *group = Some(at);
        }
    }

    fn note_policy(&mut self, index: PolicyIndex, at: usize) {
        if let Some(group) = self.policies.get_mut(&index) {
            *group = Some(at);
        }
    }

    fn group_of(&self, subject: &DropSubject) -> Option<usize> {
        let by_state = subject.sa.and_then(|sa| self.states.get(&sa.id).copied().flatten());
        let by_policy = || self.policies.get(&subject.policy?).copied().flatten();
        by_state.or_else(by_policy)
    }
}

/// Tunnels of one answer.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) tunnels: Vec<TunnelStatus>,
    pub(super) next: Option<String>,
}

/// Where a listing by name goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cursor {
    Begin,
    Behind(TunnelKey),
}

impl<'a> Survey<'a> {
    /// The tunnels of a snapshot that are asked for.
    pub(super) fn of(
        snapshot: &'a Snapshot,
        filter: Option<&'a PeerFilter>,
        tallies: &DropTallies,
        read: ReadAt<'a>,
    ) -> Self {
        let mut survey = Self {
            read,
            filter,
            groups: Vec::new(),
            by_key: HashMap::default(),
            any_reqid: HashMap::default(),
            by_ends: HashMap::default(),
            any_ends: HashMap::default(),
            dropped: Dropped::of(tallies),
            plain: PlainPolicies::default(),
            unmatched: Vec::new(),
            summaries: Vec::new(),
        };
        // Outbound policies first: the others join them.
        snapshot.spd.iter().for_each(|entry| survey.take_outbound(entry));
        snapshot.spd.iter().for_each(|entry| survey.take_inbound(entry));
        snapshot.sad.iter().for_each(|sa| survey.take_state(sa));
        survey.take_acquires(snapshot);
        survey.take_drops(tallies);
        survey.sum_up();
        survey
    }

    /// Counts of the tunnels that are asked for, and what they carried.
    pub(super) fn totals(&self) -> StatusTotals {
        let mut totals = StatusTotals::default();
        for (_, summary) in &self.summaries {
            totals.count(summary.health);
            totals.sent = totals.sent.plus(summary.sent);
            totals.received = totals.received.plus(summary.received);
        }
        totals
    }

    /// Policies without templates.
    pub(super) const fn plain(&self) -> PlainPolicies {
        self.plain
    }

    /// States that fit no policy.
    pub(super) fn unmatched_states(&self) -> Vec<StateStatus> {
        let some = self.unmatched.iter().take(UNMATCHED);
        some.map(|sa| state::status(sa, sa.config().direction, &self.read)).collect()
    }

    /// How many states fit no policy.
    pub(super) fn unmatched_states_total(&self) -> u64 {
        self.unmatched.len() as u64
    }

    /// Up to `limit` tunnels: the worst, or by name behind a cursor.
    pub(super) fn page(&self, after: Option<Cursor>, limit: usize) -> Page {
        let mut order: Vec<_> = self.summaries.iter().collect();
        let key = |at: usize| self.groups[at].key;
        match after {
            None => order.sort_unstable_by_key(|(at, summary)| (summary.health, key(*at))),
            Some(Cursor::Begin) => order.sort_unstable_by_key(|(at, _)| key(*at)),
            Some(Cursor::Behind(last)) => {
                order.retain(|(at, _)| key(*at) > last);
                order.sort_unstable_by_key(|(at, _)| key(*at));
            }
        }
        let is_last = after.is_none() || order.len() <= limit;
        order.truncate(limit);
        let last = order.last().filter(|_| !is_last);
        let next = last.map(|(at, _)| cursor(&key(*at)));
        let tell =
            |(at, summary): &&(usize, Summary)| summary.status(&self.groups[*at], &self.read);
        Page { tunnels: order.iter().map(tell).collect(), next }
    }

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
            self.groups[at].note(entry, &template);
            self.dropped.note_policy(entry.index(), at);
            let nets = nets(&selector, (selector.source, selector.destination));
            self.groups[at].protect(nets, self.filter, selector.destination);
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
            self.groups[at].note(entry, &template);
            self.dropped.note_policy(entry.index(), at);
            if template.reqid == Reqid(0) {
                self.any_reqid.entry(key).or_insert(at);
            }
            if self.groups[at].policies.outbound == 0 {
                let nets = nets(&selector, (selector.destination, selector.source));
                self.groups[at].protect(nets, self.filter, selector.source);
            }
        }
    }

    /// Counts a policy without templates, once.
    fn is_plain(&mut self, entry: &PolicyEntry) -> bool {
        if entry.templates().len() > 0 {
            return false;
        }
        *match (entry.action(), entry.is_held()) {
            (Action::Block, true) => &mut self.plain.held,
            (Action::Block, false) => &mut self.plain.block,
            (Action::Allow, _) => &mut self.plain.bypass,
        } += 1;
        true
    }

    /// The group with a key, which is made if it is not there.
    fn group(&mut self, key: TunnelKey) -> usize {
        let next = self.groups.len();
        let at = *self.by_key.entry(key).or_insert(next);
        if at == next {
            self.by_ends.entry(TunnelKey { reqid: Reqid(0), ..key }).or_insert(at);
            self.any_ends.entry(without_ends(key)).or_insert(at);
            let is_wanted = self.filter.is_none_or(|filter| filter.contains(key.remote));
            self.groups.push(Group::new(key, is_wanted));
        }
        at
    }

    /// The group that an inbound template belongs to: one with its key, else one that is for any
    /// as far as the template is.
    fn inbound_group(&mut self, key: TunnelKey) -> usize {
        let known = self.by_key.get(&key).copied();
        // No other key has reqid 0.
        let any_reqid = || self.by_ends.get(&key).copied();
        let any_ends = || {
            let is_any = key.remote.is_unspecified() || key.local.is_unspecified();
            let known = self.any_ends.get(&without_ends(key)).copied();
            known.filter(|at| is_any && fits_ends(&key, &self.groups[*at].key))
        };
        known.or_else(any_reqid).or_else(any_ends).unwrap_or_else(|| self.group(key))
    }

    fn take_state(&mut self, sa: &'a Sa) {
        let place = self.place(sa);
        place.iter().for_each(|(at, _)| self.dropped.note_state(sa.id(), *at));
        match place {
            Some((at, Direction::Out)) => self.groups[at].outbound.push(sa),
            Some((at, Direction::In | Direction::Forward)) => self.groups[at].inbound.push(sa),
            None => {
                let ends = [sa.source(), sa.id().destination];
                let is_wanted =
                    |filter: &PeerFilter| ends.into_iter().any(|end| filter.contains(end));
                if self.filter.is_none_or(is_wanted) {
                    self.unmatched.push(sa);
                }
            }
        }
    }

    /// The group that a state fits, and the way it carries packets there.
    fn place(&self, sa: &Sa) -> Option<(usize, Direction)> {
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
        let between_any = || {
            let at = into((any, any))?;
            // Neither end tells: whoever has sent by it sends.
            let sends = sa.sequence().last() > 0 || sa.highest_received() == 0;
            let likely = if sends { Direction::Out } else { Direction::In };
            Some((at, sa.config().direction.unwrap_or(likely)))
        };
        let outbound = outbound.map(|at| (at, Direction::Out));
        let inbound = || inbound().map(|at| (at, Direction::In));
        outbound.or_else(inbound).or_else(between_any)
    }

    /// Whose states key managers are asked for.
    fn take_acquires(&mut self, snapshot: &Snapshot) {
        let acquires = &snapshot.acquires;
        if acquires.key_managers == uxfrm_engine::KeyManagers::Absent {
            return;
        }
        for group in &mut self.groups {
            group.key_management = KeyManagement::Listening;
        }
        for wanted in acquires.pending.keys() {
            if let Some(at) = self.asks_for(wanted) {
                self.groups[at].key_management = KeyManagement::Asked;
            }
        }
    }

    fn asks_for(&self, wanted: &SaRequest) -> Option<usize> {
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

    /// Gives drop counts to the tunnel of their state, or else of their policy.
    fn take_drops(&mut self, tallies: &DropTallies) {
        for DropTally { reason, subject, packets } in tallies.tallies() {
            if let Some(at) = self.dropped.group_of(subject) {
                *self.groups[at].drops.entry(*reason).or_default() += packets;
            }
        }
    }

    fn sum_up(&mut self) {
        let wanted = self.groups.iter().enumerate().filter(|(_, group)| group.is_wanted);
        self.summaries = wanted.map(|(at, group)| (at, Summary::of(group, &self.read))).collect();
    }
}

impl Group<'_> {
    const fn new(key: TunnelKey, is_wanted: bool) -> Self {
        Self {
            key,
            nets: Vec::new(),
            nets_total: 0,
            policies: PolicyTally { outbound: 0, inbound: 0, forward: 0 },
            requirement: Requirement::Optional,
            key_management: KeyManagement::Absent,
            outbound: Vec::new(),
            inbound: Vec::new(),
            drops: BTreeMap::new(),
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

/// A tunnel's name, for the next request.
fn cursor(key: &TunnelKey) -> String {
    let TunnelKey { remote, local, reqid, mode, protocol, if_id } = key;
    let (mode, protocol) = (mode_word(*mode), protocol_word(*protocol));
    format!("{remote} {local} {} {mode} {protocol} {}", reqid.0, if_id.0)
}

/// What [`cursor`] has written; an empty one begins.
pub(super) fn parse_cursor(text: &str) -> Result<Cursor, RequestRefusal> {
    if text.is_empty() {
        return Ok(Cursor::Begin);
    }
    let words: Vec<_> = text.split(' ').collect();
    let parsed = || -> Option<TunnelKey> {
        let [remote, local, reqid, mode, protocol, if_id] = words[..] else { return None };
        Some(TunnelKey {
            remote: remote.parse().ok()?,
            local: local.parse().ok()?,
            reqid: Reqid(reqid.parse().ok()?),
            mode: MODES.iter().find(|(_, word)| *word == mode)?.0,
            protocol: PROTOCOLS.iter().find(|(_, word)| *word == protocol)?.0,
            if_id: IfId(if_id.parse().ok()?),
        })
    };
    let wrong = || RequestRefusal::new(format!("after {text:?} is no `next` of an answer"));
    parsed().map(Cursor::Behind).ok_or_else(wrong)
}

#[cfg(test)]
mod tests;
