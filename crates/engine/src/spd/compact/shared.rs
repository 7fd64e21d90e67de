//! Fields that many policies have in common, interned: templates, limits, marks, port masks.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use uxfrm_classify::MaskTemplate;

use super::inline::INLINE_BYTES;
use super::layout::{FieldLayout, SharedTraffic};
use super::mask_templates::MaskTemplates;
use crate::spd::rules::{far_end, ternary};
use crate::{
    DeviceId, IfId, LifetimeLimits, Mark, Offload, OffloadKind, Policy, PolicyFlags, PolicyKind,
    Template,
};

/// All fields of a policy but action, priority, and what its layout stores inline.
#[derive(Debug)]
pub(crate) struct SharedFields {
    pub(crate) layout: FieldLayout,
    /// Shared traffic fields.
    pub(crate) traffic: SharedTraffic,
    /// Mask template, if its layout has compact rules; limited in number.
    pub(crate) mask_template: Option<Arc<MaskTemplate>>,
    /// Upper half of the insertion number.
    pub(crate) epoch: u32,
    pub(crate) kind: PolicyKind,
    /// Templates; the first without the fields stored inline.
    templates: Box<[Template]>,
    limits: Option<Box<LifetimeLimits>>,
    offload: Option<Box<OffloadTarget>>,
    pub(crate) mark: Mark,
    pub(crate) if_id: IfId,
    pub(crate) ifindex: u32,
    pub(crate) user: u32,
    /// Masks of source and destination port.
    pub(crate) port_masks: [u16; 2],
    pub(crate) flags: PolicyFlags,
}

/// Requested offload, and the device that took it.
#[derive(Debug, PartialEq)]
struct OffloadTarget {
    offload: Offload,
    device: Option<DeviceId>,
}

/// Interner of shared fields.
#[derive(Debug, Default)]
pub(crate) struct SharedFieldsTable {
    table: HashTable<Interned>,
    per_layout: HashMap<FieldLayout, usize, RandomState>,
    mask_templates: MaskTemplates,
    policies: usize,
    hasher: RandomState,
}

/// Limits of shared entries per layout, beyond which policies store more inline: a fixed number,
/// and one per so many policies. Fields are shared only where many policies share them. Each layout
/// has its own limit, so that one whose entries are all distinct does not crowd out others.
const FREE_PER_LAYOUT: usize = 64;
const POLICIES_PER_ENTRY: usize = 128;
/// Number of policies from which on mask templates are kept. With fewer, full rules stay in the CPU
/// caches.
const MIN_TEMPLATED: usize = 4096;

/// Shared fields, and the number of policies that use them.
#[derive(Debug)]
struct Interned {
    fields: Arc<SharedFields>,
    policies: u32,
}

/// The mask template follows from the other fields, or is absent.
impl PartialEq for SharedFields {
    fn eq(&self, other: &Self) -> bool {
        let Self { layout, traffic, epoch, kind, templates, limits, offload, .. } = self;
        let Self { mark, if_id, ifindex, user, port_masks, flags, .. } = self;
        (layout, traffic, epoch, kind) == (&other.layout, &other.traffic, &other.epoch, &other.kind)
            && (templates, limits, offload) == (&other.templates, &other.limits, &other.offload)
            && (mark, if_id, ifindex) == (&other.mark, &other.if_id, &other.ifindex)
            && (user, port_masks, flags) == (&other.user, &other.port_masks, &other.flags)
    }
}

impl SharedFields {
    fn of(policy: &Policy, device: Option<DeviceId>, seq: u64, layout: FieldLayout) -> Self {
        let target = |offload| Box::new(OffloadTarget { offload, device });
        let mut templates: Box<[Template]> = policy.templates.as_slice().into();
        if let Some(first) = templates.first_mut() {
            *first = layout.rest(first);
        }
        Self {
            layout,
            traffic: layout.shared_traffic(&policy.selector),
            mask_template: None,
            epoch: epoch(seq),
            kind: policy.kind,
            templates,
            limits: (policy.limits != LifetimeLimits::default()).then(|| Box::new(policy.limits)),
            offload: policy.offload.clone().map(target),
            mark: policy.mark,
            if_id: policy.if_id,
            ifindex: policy.selector.ifindex,
            user: policy.selector.user,
            port_masks: [policy.selector.source_port.mask, policy.selector.destination_port.mask],
            flags: policy.flags,
        }
    }

    /// Templates of a policy with these inline fields.
    pub(crate) fn templates(
        &self,
        words: &[u8],
    ) -> impl ExactSizeIterator<Item = Template> + DoubleEndedIterator {
        let templates = self.templates.iter().enumerate();
        templates.map(|(at, said)| match at {
            0 => self.layout.template(words, &self.traffic, said),
            _ => *said,
        })
    }

    /// Whether the policy is not offloaded to a device.
    pub(crate) fn is_software(&self) -> bool {
        self.offload().is_none_or(|offload| offload.kind != OffloadKind::Packet)
    }

    pub(crate) fn limits(&self) -> LifetimeLimits {
        self.limits.as_deref().copied().unwrap_or_default()
    }

    pub(crate) fn offload(&self) -> Option<&Offload> {
        self.offload.as_deref().map(|target| &target.offload)
    }

    pub(crate) fn device(&self) -> Option<DeviceId> {
        self.offload.as_deref()?.device
    }

    /// Covers all fields that may be unique to a policy: leaving one out would give as many entries
    /// one hash.
    fn hash(&self, hasher: &RandomState) -> u64 {
        let traffic = (self.traffic, self.port_masks, self.ifindex, self.user);
        let name = (self.mark, self.if_id, self.layout);
        hasher.hash_one((traffic, name, &self.templates, &self.limits))
    }
}

impl SharedFieldsTable {
    /// Shared fields for one more policy with this insertion number.
    pub(crate) fn share(
        &mut self,
        policy: &Policy,
        device: Option<DeviceId>,
        seq: u64,
    ) -> Arc<SharedFields> {
        self.policies += 1;
        let of = |layout| SharedFields::of(policy, device, seq, layout);
        let shared = FieldLayout::sharing(policy, INLINE_BYTES).into_iter().find_map(|layout| {
            let fields = of(layout);
            self.find(&fields).or_else(|| self.may_add(layout).then(|| self.insert(fields, policy)))
        });
        shared.unwrap_or_else(|| {
            let fields = of(FieldLayout::most_own(policy));
            self.find(&fields).unwrap_or_else(|| self.insert(fields, policy))
        })
    }

    /// Equal entry for one more policy, preferably with a mask template.
    fn find(&mut self, fields: &SharedFields) -> Option<Arc<SharedFields>> {
        let hash = fields.hash(&self.hasher);
        let Self { table, mask_templates, policies, .. } = self;
        let mut like = |has_shape: fn(&SharedFields) -> bool| {
            let interned = table.find_mut(hash, |interned| {
                has_shape(&interned.fields) && *interned.fields == *fields
            })?;
            interned.policies += 1;
            Some(Arc::clone(&interned.fields))
        };
        if !fields.layout.is_compact() || *policies < MIN_TEMPLATED {
            return like(|_| true);
        }
        let shaped = like(|fields| fields.mask_template.is_some());
        shaped.or_else(|| if mask_templates.have_room() { None } else { like(|_| true) })
    }

    /// Whether a layout may have another entry with few users.
    fn may_add(&self, layout: FieldLayout) -> bool {
        self.per_layout.get(&layout).copied().unwrap_or(0)
            < FREE_PER_LAYOUT + self.policies / POLICIES_PER_ENTRY
    }

    /// Adds an entry with one user.
    fn insert(&mut self, mut fields: SharedFields, policy: &Policy) -> Arc<SharedFields> {
        let Self { table, per_layout, mask_templates, hasher, policies } = self;
        if fields.layout.is_compact() && *policies >= MIN_TEMPLATED {
            let (ternary, far) =
                (ternary(&policy.selector, policy.mark), far_end(policy.direction));
            fields.mask_template = mask_templates.share(MaskTemplate::of(&ternary, far));
        }
        *per_layout.entry(fields.layout).or_default() += 1;
        let hash = fields.hash(hasher);
        let fields = Arc::new(fields);
        let interned = Interned { fields: Arc::clone(&fields), policies: 1 };
        table.insert_unique(hash, interned, |interned| interned.fields.hash(hasher));
        fields
    }

    /// Drops a user.
    pub(crate) fn release(&mut self, fields: &Arc<SharedFields>) {
        self.policies -= 1;
        let hash = fields.hash(&self.hasher);
        if let Ok(mut interned) =
            self.table.find_entry(hash, |interned| Arc::ptr_eq(&interned.fields, fields))
        {
            interned.get_mut().policies -= 1;
            if interned.get().policies == 0 {
                interned.remove();
                self.per_layout.entry(fields.layout).and_modify(|count| *count -= 1);
                fields
                    .mask_template
                    .iter()
                    .for_each(|mask_template| self.mask_templates.release(mask_template));
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    #[cfg(test)]
    pub(crate) fn mask_templates(&self) -> usize {
        self.mask_templates.len()
    }
}

/// Upper half of an insertion number. Most policies have the same.
pub(crate) fn epoch(seq: u64) -> u32 {
    u32::try_from(seq >> u32::BITS).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
