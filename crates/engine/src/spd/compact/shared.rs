//! What many policies say alike, kept once: templates, limits, marks, and which bits of ports count.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use super::inline::ROOM;
use super::layout::{Form, Traffic};
use crate::spd::classifier::{Shape, Shapes};
use crate::{
    DeviceId, IfId, Limits, Mark, Offload, OffloadKind, Policy, PolicyFlags, PolicyKind, Template,
};

/// All that a policy says but its action, its priority, and what its form leaves to itself.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) form: Form,
    /// What it says of its traffic and is not its own.
    pub(crate) traffic: Traffic,
    /// What it asks of packets, as far as its form says that policies ask it alike; of some few shapes only.
    pub(crate) shape: Option<Arc<Shape>>,
    /// The upper half of its age.
    pub(crate) epoch: u32,
    pub(crate) kind: PolicyKind,
    /// The first without what the policy has for itself.
    templates: Box<[Template]>,
    limits: Option<Box<Limits>>,
    offload: Option<Box<Placed>>,
    pub(crate) mark: Mark,
    pub(crate) if_id: IfId,
    pub(crate) ifindex: u32,
    pub(crate) user: u32,
    /// Of source and destination.
    pub(crate) port_masks: [u16; 2],
    pub(crate) flags: PolicyFlags,
}

/// What a policy says of its device, and which that is.
#[derive(Debug, PartialEq)]
struct Placed {
    offload: Offload,
    device: Option<DeviceId>,
}

/// The terms of all policies, each once.
#[derive(Debug, Default)]
pub(crate) struct AllTerms {
    table: HashTable<Used>,
    of_forms: HashMap<Form, usize, RandomState>,
    shapes: Shapes,
    policies: usize,
    hasher: RandomState,
}

/// So many terms of a form there may be where others would do that leave more to the policies; and one more for so many policies. What policies have
/// in common is kept once only where many have it in common. Each form has its own, so that one which no two policies fill alike takes none from
/// another.
const FREE: usize = 64;
const SHARERS: usize = 128;
/// Shapes are kept when there are so many policies. With fewer, all that they ask of packets stays in the processor's caches where they stand.
const MANY: usize = 4096;

/// Terms, and how many policies have them.
#[derive(Debug)]
struct Used {
    terms: Arc<Terms>,
    policies: u32,
}

/// The shape follows from the other words, or is not kept.
impl PartialEq for Terms {
    fn eq(&self, other: &Self) -> bool {
        let Self { form, traffic, epoch, kind, templates, limits, offload, .. } = self;
        let Self { mark, if_id, ifindex, user, port_masks, flags, .. } = self;
        (form, traffic, epoch, kind) == (&other.form, &other.traffic, &other.epoch, &other.kind)
            && (templates, limits, offload) == (&other.templates, &other.limits, &other.offload)
            && (mark, if_id, ifindex) == (&other.mark, &other.if_id, &other.ifindex)
            && (user, port_masks, flags) == (&other.user, &other.port_masks, &other.flags)
    }
}

impl Terms {
    fn of(policy: &Policy, device: Option<DeviceId>, age: u64, form: Form) -> Self {
        let placed = |offload| Box::new(Placed { offload, device });
        let mut templates: Box<[Template]> = policy.templates.as_slice().into();
        if let Some(first) = templates.first_mut() {
            *first = form.rest(first);
        }
        Self {
            form,
            traffic: form.left(&policy.selector),
            shape: None,
            epoch: epoch(age),
            kind: policy.kind,
            templates,
            limits: (policy.limits != Limits::default()).then(|| Box::new(policy.limits)),
            offload: policy.offload.clone().map(placed),
            mark: policy.mark,
            if_id: policy.if_id,
            ifindex: policy.selector.ifindex,
            user: policy.selector.user,
            port_masks: [policy.selector.source_port.mask, policy.selector.destination_port.mask],
            flags: policy.flags,
        }
    }

    /// The templates of the policy of these words.
    pub(crate) fn templates(
        &self,
        words: &[u8],
    ) -> impl ExactSizeIterator<Item = Template> + DoubleEndedIterator {
        let templates = self.templates.iter().enumerate();
        templates.map(|(at, said)| match at {
            0 => self.form.template(words, &self.traffic, said),
            _ => *said,
        })
    }

    /// Whether no device has all of it.
    pub(crate) fn is_software(&self) -> bool {
        self.offload().is_none_or(|offload| offload.kind != OffloadKind::Packet)
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits.as_deref().copied().unwrap_or_default()
    }

    pub(crate) fn offload(&self) -> Option<&Offload> {
        self.offload.as_deref().map(|placed| &placed.offload)
    }

    pub(crate) fn device(&self) -> Option<DeviceId> {
        self.offload.as_deref()?.device
    }

    /// By all that may be a policy's alone: a word left out would give as many terms one hash as there are policies.
    fn hash(&self, hasher: &RandomState) -> u64 {
        let traffic = (self.traffic, self.port_masks, self.ifindex, self.user);
        let name = (self.mark, self.if_id, self.form);
        hasher.hash_one((traffic, name, &self.templates, &self.limits))
    }
}

impl AllTerms {
    /// Those of one more policy, which is so old.
    pub(crate) fn share(
        &mut self,
        policy: &Policy,
        device: Option<DeviceId>,
        age: u64,
    ) -> Arc<Terms> {
        self.policies += 1;
        let of = |form| Terms::of(policy, device, age, form);
        let shared = Form::sharing(policy, ROOM).into_iter().find_map(|form| {
            let terms = of(form);
            self.find(&terms).or_else(|| self.affords_more(form).then(|| self.keep(terms, policy)))
        });
        shared.unwrap_or_else(|| {
            let terms = of(Form::least(policy));
            self.find(&terms).unwrap_or_else(|| self.keep(terms, policy))
        })
    }

    /// Those that are like these, for one more policy: with their shape, if that is kept or may be.
    fn find(&mut self, terms: &Terms) -> Option<Arc<Terms>> {
        let hash = terms.hash(&self.hasher);
        let Self { table, shapes, policies, .. } = self;
        let mut like = |has_shape: fn(&Terms) -> bool| {
            let used =
                table.find_mut(hash, |used| has_shape(&used.terms) && *used.terms == *terms)?;
            used.policies += 1;
            Some(Arc::clone(&used.terms))
        };
        if !terms.form.is_lean() || *policies < MANY {
            return like(|_| true);
        }
        let shaped = like(|terms| terms.shape.is_some());
        shaped.or_else(|| if shapes.have_room() { None } else { like(|_| true) })
    }

    /// Whether there may be more terms of a form, though few policies have them.
    fn affords_more(&self, form: Form) -> bool {
        self.of_forms.get(&form).copied().unwrap_or(0) < FREE + self.policies / SHARERS
    }

    /// New ones, of one policy.
    fn keep(&mut self, mut terms: Terms, policy: &Policy) -> Arc<Terms> {
        let Self { table, of_forms, shapes, hasher, policies } = self;
        if terms.form.is_lean() && *policies >= MANY {
            terms.shape = shapes.share(Shape::of(&policy.selector, policy.direction));
        }
        *of_forms.entry(terms.form).or_default() += 1;
        let hash = terms.hash(hasher);
        let terms = Arc::new(terms);
        let used = Used { terms: Arc::clone(&terms), policies: 1 };
        table.insert_unique(hash, used, |used| used.terms.hash(hasher));
        terms
    }

    /// A policy with these terms is gone.
    pub(crate) fn release(&mut self, terms: &Arc<Terms>) {
        self.policies -= 1;
        let hash = terms.hash(&self.hasher);
        if let Ok(mut used) = self.table.find_entry(hash, |used| Arc::ptr_eq(&used.terms, terms)) {
            used.get_mut().policies -= 1;
            if used.get().policies == 0 {
                used.remove();
                self.of_forms.entry(terms.form).and_modify(|count| *count -= 1);
                terms.shape.iter().for_each(|shape| self.shapes.release(shape));
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    #[cfg(test)]
    pub(crate) fn shapes(&self) -> usize {
        self.shapes.len()
    }
}

/// The upper half of an age. Most policies have the same.
pub(crate) fn epoch(age: u64) -> u32 {
    u32::try_from(age >> u32::BITS).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
