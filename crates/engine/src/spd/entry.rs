//! A policy in the database: its words, its place, its counts.

use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

use super::classifier::MaskTemplate;
use super::compact::inline::InlineFields;
use super::compact::shared::SharedFields;
use crate::{
    Action, AnswerId, DeviceId, Direction, Family, FlowKey, IfId, Limits, Mark, Mode, Moment,
    OffloadKind, Policy, PolicyFlags, PolicyIndex, PolicyKey, PolicyKind, PolicyName, Priority,
    Selector, Template,
};

/// A policy as it stands in the database. What every packet touches comes first, next to the reference count; what policies say alike is kept
/// once for all of them. Its times are whole seconds, as in the kernel.
#[derive(Debug)]
#[repr(C)]
pub struct PolicyEntry {
    priority: Priority,
    answer: AnswerId,
    index: PolicyIndex,
    last_used: AtomicU32,
    bytes: AtomicU64,
    packets: AtomicU64,
    shared: Arc<SharedFields>,
    added: u32,
    /// The lower half; the terms have the upper one.
    age: u32,
    inline: InlineFields,
}

/// An entry is the same as itself only: another policy may get its name and its index.
impl PartialEq for PolicyEntry {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for PolicyEntry {}

/// Where a policy stands among those of its direction and kind: offloaded ones first, then by priority, then the older.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    software: bool,
    priority: Priority,
    age: u64,
}

/// Which number, age and terms a new policy gets.
#[derive(Debug)]
pub(crate) struct NewEntry {
    pub(crate) index: PolicyIndex,
    pub(crate) slot: u32,
    pub(crate) age: u64,
    pub(crate) added: Moment,
    pub(crate) shared: Arc<SharedFields>,
}

impl Place {
    /// Whether it stands behind all that devices have.
    #[must_use]
    #[inline]
    pub const fn is_software(self) -> bool {
        self.software
    }

    /// The priority in it.
    #[must_use]
    pub const fn priority(self) -> Priority {
        self.priority
    }

    /// Whether a policy that takes the place of the one here stands there too.
    pub(crate) fn is_equal_rank(self, policy: &Policy) -> bool {
        (self.software, self.priority) == (is_software(policy), policy.priority)
    }

    /// Rises with every policy added: the youngest has the highest. One that takes another's place has its age.
    #[must_use]
    pub const fn age(self) -> u64 {
        self.age
    }
}

/// Whether no device has all of it.
fn is_software(policy: &Policy) -> bool {
    policy.offload.as_ref().is_none_or(|offload| offload.kind != OffloadKind::Packet)
}

/// In whole seconds, of which there are enough for a century.
fn seconds(moment: Moment) -> u32 {
    u32::try_from(moment.as_secs()).unwrap_or(NEVER - 1)
}

const NEVER: u32 = u32::MAX;

#[expect(clippy::cast_possible_truncation, reason = "the shared have the upper half")]
const fn lower_half(age: u64) -> u32 {
    age as u32
}

impl PolicyEntry {
    /// A policy with its own terms.
    pub(crate) fn new(policy: &Policy, admission: NewEntry) -> Self {
        let NewEntry { index, slot, age, added, shared } = admission;
        Self {
            priority: policy.priority,
            answer: AnswerId::of(slot, policy.action, &policy.templates),
            index,
            last_used: AtomicU32::new(NEVER),
            bytes: AtomicU64::new(0),
            packets: AtomicU64::new(0),
            added: seconds(added),
            age: lower_half(age),
            inline: InlineFields::of(&shared.layout.bytes(policy)),
            shared,
        }
    }

    /// What it says, put together again; its index is the one that it was given.
    #[must_use]
    pub fn policy(&self) -> Policy {
        Policy {
            direction: self.direction(),
            kind: self.kind(),
            index: self.index,
            selector: self.selector(),
            priority: self.priority,
            action: self.action(),
            templates: self.templates().collect(),
            mark: self.shared.mark,
            if_id: self.shared.if_id,
            flags: self.shared.flags,
            limits: self.shared.limits(),
            offload: self.shared.offload().cloned(),
        }
    }

    /// Its name by index, which finds it and no other.
    #[must_use]
    pub fn key(&self) -> PolicyKey {
        PolicyKey {
            direction: self.direction(),
            kind: self.kind(),
            mark: self.mark(),
            if_id: self.if_id(),
            name: PolicyName::Index(self.index),
        }
    }

    /// Whether it lets packets pass.
    #[must_use]
    #[inline]
    pub const fn action(&self) -> Action {
        self.answer.action()
    }

    /// Main or sub.
    #[must_use]
    #[inline]
    pub fn kind(&self) -> PolicyKind {
        self.shared.kind
    }

    /// In, out or forward.
    #[must_use]
    #[inline]
    pub fn direction(&self) -> Direction {
        self.shared.layout.direction
    }

    /// The traffic it is for.
    #[must_use]
    pub fn selector(&self) -> Selector {
        let SharedFields { layout, port_masks, ref traffic, ifindex, user, .. } = *self.shared;
        let said = layout.selector(self.inline.bytes(), traffic, port_masks);
        Selector { ifindex, user, ..said }
    }

    /// Whether fragments cannot tell if it is for them, or cannot be protected as it says (RFC 4303 §3.1.1): ports are in the first one only, so is the
    /// protocol of an IPv6 datagram with destination options, and transport mode is for whole datagrams.
    pub(crate) fn asks_for_whole(&self) -> bool {
        self.shared.port_masks != [0, 0]
            || (self.family() == Family::V6 && self.selector().protocol != 0)
            || self.templates().any(|template| template.mode == Mode::Transport)
    }

    /// The family of that traffic.
    #[must_use]
    #[inline]
    pub fn family(&self) -> Family {
        self.shared.layout.family
    }

    /// What is to be done, innermost first.
    #[must_use]
    #[inline]
    pub fn templates(&self) -> impl ExactSizeIterator<Item = Template> + DoubleEndedIterator {
        self.shared.templates(self.inline.bytes())
    }

    /// Packets whose mark fits match.
    #[must_use]
    #[inline]
    pub fn mark(&self) -> Mark {
        self.shared.mark
    }

    /// XFRM interface id.
    #[must_use]
    #[inline]
    pub fn if_id(&self) -> IfId {
        self.shared.if_id
    }

    /// Flags.
    #[must_use]
    pub fn flags(&self) -> PolicyFlags {
        self.shared.flags
    }

    /// Whether it only stands for a policy of the last run ([`PolicyFlags::HELD`]).
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.shared.flags.contains(PolicyFlags::HELD)
    }

    /// Limits.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.shared.limits()
    }

    /// The device that has it, or had it until it went down.
    #[must_use]
    pub fn device(&self) -> Option<DeviceId> {
        self.shared.device()
    }

    /// The index it was given; the lowest three bits are the direction.
    #[must_use]
    pub const fn index(&self) -> PolicyIndex {
        self.index
    }

    /// A small number that no other policy has while this one is in the database.
    #[inline]
    pub(crate) const fn slot(&self) -> u32 {
        self.answer.slot()
    }

    /// What it comes to where it decides alone.
    #[inline]
    pub(crate) const fn answer(&self) -> AnswerId {
        self.answer
    }

    /// What it asks of packets beside the bits of the other side's address, where that is kept for many.
    pub(crate) fn mask_template(&self) -> Option<&Arc<MaskTemplate>> {
        self.shared.mask_template.as_ref()
    }

    /// What it shares with others.
    pub(crate) const fn shared(&self) -> &Arc<SharedFields> {
        &self.shared
    }

    /// Its place among the others; smaller is found first.
    #[must_use]
    #[inline]
    pub fn place(&self) -> Place {
        let age = u64::from(self.shared.epoch) << u32::BITS | u64::from(self.age);
        Place { software: self.shared.is_software(), priority: self.priority, age }
    }

    /// When it was added, in whole seconds.
    #[must_use]
    pub const fn added(&self) -> Moment {
        Moment::from_secs(self.added as u64)
    }

    /// Whether a packet is what it is for: `net/xfrm/xfrm_policy.c: xfrm_policy_match`.
    #[must_use]
    pub fn matches(&self, flow: &FlowKey) -> bool {
        self.mark().fits(flow.mark) && self.if_id().0 == flow.if_id && self.selector().matches(flow)
    }

    /// Counts packets that met it. Policies have no limits by count in the kernel, only by time.
    #[inline]
    pub fn charge(&self, packets: u32, bytes: u64, now: Moment) {
        self.packets.fetch_add(u64::from(packets), Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.last_used.store(seconds(now), Ordering::Relaxed);
    }

    /// Goes on from the counts of another process, which has had it until now.
    pub fn set_counts(&self, packets: u64, bytes: u64, last_used: Option<Moment>) {
        self.packets.store(packets, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        self.last_used.store(last_used.map_or(NEVER, seconds), Ordering::Relaxed);
    }

    /// Asks for what [`PolicyEntry::charge`] writes.
    #[inline]
    pub(crate) fn prefetch_counts(&self) {
        uxfrm_packet::prefetch_far(&self.bytes);
        uxfrm_packet::prefetch_far(&self.last_used);
    }

    /// Bytes that met it.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Packets that met it.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.packets.load(Ordering::Relaxed)
    }

    /// When the latest packet met it, in whole seconds.
    #[must_use]
    pub fn last_used(&self) -> Option<Moment> {
        match self.last_used.load(Ordering::Relaxed) {
            NEVER => None,
            seconds => Some(Moment::from_secs(seconds.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_of_them_fit() {
        assert!(size_of::<PolicyEntry>() <= 72, "{}", size_of::<PolicyEntry>());
    }
}
