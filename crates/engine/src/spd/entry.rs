//! A policy in the database: its fields, its precedence, its counters.

use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

use uxfrm_classify::MaskTemplate;

use super::compact::inline::InlineFields;
use super::compact::shared::SharedFields;
use crate::{
    Action, DeviceId, Direction, Family, FlowKey, IfId, LifetimeLimits, Mark, Mode, Moment,
    OffloadKind, Policy, PolicyFlags, PolicyIndex, PolicyKey, PolicyKind, PolicyName, Priority,
    Selector, Template, VerdictId,
};

/// A policy in the database. Fields that every packet touches come first, next to the reference
/// count; fields that many policies have in common are shared. Times are whole seconds, as in the
/// kernel.
#[derive(Debug)]
#[repr(C)]
pub struct PolicyEntry {
    priority: Priority,
    answer: VerdictId,
    index: PolicyIndex,
    last_used: AtomicU32,
    bytes: AtomicU64,
    packets: AtomicU64,
    shared: Arc<SharedFields>,
    added: u32,
    /// Lower half of the insertion number; the shared fields have the upper one.
    insertion_seq: u32,
    inline: InlineFields,
}

/// Entries are compared by identity: another policy may get the same name and index.
impl PartialEq for PolicyEntry {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for PolicyEntry {}

/// Match order within direction and kind: offloaded policies first, then by priority, then the
/// older.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyPrecedence {
    software: bool,
    priority: Priority,
    insertion_seq: u64,
}

/// What the store assigns to a new policy.
#[derive(Debug)]
pub(crate) struct NewEntry {
    pub(crate) index: PolicyIndex,
    pub(crate) slot: u32,
    pub(crate) insertion_seq: u64,
    pub(crate) added: Moment,
    pub(crate) shared: Arc<SharedFields>,
}

impl PolicyPrecedence {
    /// Whether no device has the policy.
    #[must_use]
    #[inline]
    pub const fn is_software(self) -> bool {
        self.software
    }

    /// Its priority.
    #[must_use]
    pub const fn priority(self) -> Priority {
        self.priority
    }

    /// Whether `policy` would have the same precedence, insertion order apart.
    pub(crate) fn is_equal_rank(self, policy: &Policy) -> bool {
        (self.software, self.priority) == (is_software(policy), policy.priority)
    }

    /// Rises with each policy added. A policy that replaces another with equal priority takes over
    /// its number.
    #[must_use]
    pub const fn insertion_seq(self) -> u64 {
        self.insertion_seq
    }
}

/// Whether the policy is not offloaded to a device.
fn is_software(policy: &Policy) -> bool {
    policy.offload.as_ref().is_none_or(|offload| offload.kind != OffloadKind::Packet)
}

/// Whole seconds; 32 bits last a century.
fn seconds(moment: Moment) -> u32 {
    u32::try_from(moment.as_secs()).unwrap_or(NEVER - 1)
}

const NEVER: u32 = u32::MAX;

#[expect(clippy::cast_possible_truncation, reason = "the shared have the upper half")]
const fn lower_half(insertion_seq: u64) -> u32 {
    insertion_seq as u32
}

impl PolicyEntry {
    /// A policy with its shared fields.
    pub(crate) fn new(policy: &Policy, admission: NewEntry) -> Self {
        let NewEntry { index, slot, insertion_seq, added, shared } = admission;
        Self {
            priority: policy.priority,
            answer: VerdictId::of(slot, policy.action, &policy.templates),
            index,
            last_used: AtomicU32::new(NEVER),
            bytes: AtomicU64::new(0),
            packets: AtomicU64::new(0),
            added: seconds(added),
            insertion_seq: lower_half(insertion_seq),
            inline: InlineFields::of(&shared.layout.bytes(policy)),
            shared,
        }
    }

    /// The policy as configured, with the index that it was given.
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

    /// Its key by index, which is unique.
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

    /// Allow or block.
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

    /// Traffic that it matches.
    #[must_use]
    pub fn selector(&self) -> Selector {
        let SharedFields { layout, port_masks, ref traffic, ifindex, user, .. } = *self.shared;
        let said = layout.selector(self.inline.bytes(), traffic, port_masks);
        Selector { ifindex, user, ..said }
    }

    /// Whether it needs whole datagrams (RFC 4303 §3.1.1): only the first fragment has ports and,
    /// in IPv6 with destination options, the protocol; and transport mode protects whole datagrams.
    pub(crate) fn needs_whole_datagram(&self) -> bool {
        self.shared.port_masks != [0, 0]
            || (self.family() == Family::V6 && self.selector().protocol != 0)
            || self.templates().any(|template| template.mode == Mode::Transport)
    }

    /// Address family of that traffic.
    #[must_use]
    #[inline]
    pub fn family(&self) -> Family {
        self.shared.layout.family
    }

    /// Templates, innermost first.
    #[must_use]
    #[inline]
    pub fn templates(&self) -> impl ExactSizeIterator<Item = Template> + DoubleEndedIterator {
        self.shared.templates(self.inline.bytes())
    }

    /// Mark and mask that packets must match.
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

    /// Whether it is a placeholder for a policy of the previous run ([`PolicyFlags::HELD`]).
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.shared.flags.contains(PolicyFlags::HELD)
    }

    /// Lifetime limits.
    #[must_use]
    pub fn limits(&self) -> LifetimeLimits {
        self.shared.limits()
    }

    /// Device that has it, or had it until the device went down.
    #[must_use]
    pub fn device(&self) -> Option<DeviceId> {
        self.shared.device()
    }

    /// Its index; the lowest three bits are the direction.
    #[must_use]
    pub const fn index(&self) -> PolicyIndex {
        self.index
    }

    /// Slot number, unique among policies in the database.
    #[inline]
    pub(crate) const fn slot(&self) -> u32 {
        self.answer.slot()
    }

    /// The verdict where this policy decides alone.
    #[inline]
    pub(crate) const fn verdict(&self) -> VerdictId {
        self.answer
    }

    /// Mask template that it shares with others, if any.
    pub(crate) fn mask_template(&self) -> Option<&Arc<MaskTemplate>> {
        self.shared.mask_template.as_ref()
    }

    /// Fields shared with others.
    pub(crate) const fn shared(&self) -> &Arc<SharedFields> {
        &self.shared
    }

    /// Its precedence; lower is matched first.
    #[must_use]
    #[inline]
    pub fn precedence(&self) -> PolicyPrecedence {
        let (software, priority) = (self.shared.is_software(), self.priority);
        let [low, high] = [self.insertion_seq, self.shared.epoch].map(u64::from);
        PolicyPrecedence { software, priority, insertion_seq: high << u32::BITS | low }
    }

    /// When it was added, in whole seconds.
    #[must_use]
    pub const fn added(&self) -> Moment {
        Moment::from_secs(self.added as u64)
    }

    /// Whether it matches a packet: `net/xfrm/xfrm_policy.c: xfrm_policy_match`.
    #[must_use]
    pub fn matches(&self, flow: &FlowKey) -> bool {
        self.mark().fits(flow.mark) && self.if_id().0 == flow.if_id && self.selector().matches(flow)
    }

    /// Counts packets that matched. In the kernel policies have time limits only.
    #[inline]
    pub fn record_use(&self, packets: u32, bytes: u64, now: Moment) {
        self.packets.fetch_add(u64::from(packets), Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.last_used.store(seconds(now), Ordering::Relaxed);
    }

    /// Restores the counters of a previous process.
    pub fn set_counts(&self, packets: u64, bytes: u64, last_used: Option<Moment>) {
        self.packets.store(packets, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        self.last_used.store(last_used.map_or(NEVER, seconds), Ordering::Relaxed);
    }

    /// Prefetches what [`PolicyEntry::record_use`] writes.
    #[inline]
    pub(crate) fn prefetch_counts(&self) {
        uxfrm_packet::prefetch_far(&self.bytes);
        uxfrm_packet::prefetch_far(&self.last_used);
    }

    /// Bytes that matched.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Packets that matched.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.packets.load(Ordering::Relaxed)
    }

    /// Time of the latest match, in whole seconds.
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
    fn policy_entry_is_at_most_72_bytes() {
        assert!(size_of::<PolicyEntry>() <= 72, "{}", size_of::<PolicyEntry>());
    }
}
