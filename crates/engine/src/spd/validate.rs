//! Validation of new policies, in the order of `net/xfrm/xfrm_user.c: verify_newpolicy_info` and
//! `validate_tmpl`.

use crate::{
    Direction, Error, Family, Mode, OffloadKind, Policy, PolicyIndex, Template, TemplateLevel,
    spd::policy::MAX_TEMPLATES,
};

pub(crate) fn verify(policy: &Policy) -> Result<(), Error> {
    let selector = &policy.selector;
    if selector.source.family() != selector.destination.family() {
        return Err(Error::PolicySelectorFamily);
    }
    if policy.index.0 != 0 && policy.index.0 & DIRECTION_BITS != bits(policy.direction) {
        return Err(Error::IndexDirection);
    }
    if policy.templates.len() > MAX_TEMPLATES {
        return Err(Error::TooManyTemplates);
    }
    let family = selector.family();
    policy
        .templates
        .iter()
        .try_fold(family, |family, template| inner_to_outer(policy, template, family))?;
    match policy.offload.as_ref().map(|offload| offload.kind) {
        None | Some(OffloadKind::Packet) => Ok(()),
        Some(OffloadKind::Crypto) => Err(Error::PolicyOffloadFlags),
    }
}

/// The index with serial number `serial` of a direction (`xfrm_gen_index`); never 0.
pub(crate) fn index(serial: u32, direction: Direction) -> PolicyIndex {
    match serial << 3 | bits(direction) {
        0 => PolicyIndex(8),
        index => PolicyIndex(index),
    }
}

const DIRECTION_BITS: u32 = 7;

/// `XFRM_POLICY_IN`, `_OUT`, `_FWD`.
const fn bits(direction: Direction) -> u32 {
    match direction {
        Direction::In => 0,
        Direction::Out => 1,
        Direction::Forward => 2,
    }
}

/// Checks one template for packets of `family`; returns the outer family.
fn inner_to_outer(policy: &Policy, template: &Template, family: Family) -> Result<Family, Error> {
    let outer = Family::of(template.destination);
    if Family::of(template.source) != outer {
        return Err(Error::TemplateFamily);
    }
    match template.mode {
        Mode::Tunnel | Mode::Beet | Mode::Iptfs => {
            if template.level == TemplateLevel::Use && policy.direction == Direction::Out {
                return Err(Error::OptionalTunnel);
            }
        }
        Mode::Transport | Mode::RouteOptimization | Mode::InTrigger => {
            if outer != family {
                return Err(Error::TemplateFamilyChange);
            }
        }
    }
    Ok(outer)
}
