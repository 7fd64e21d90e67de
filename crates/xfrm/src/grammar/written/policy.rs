//! `xfrm policy add …`.

use uxfrm_engine::{Action, Policy, PolicyFlags, PolicyKind, Template, TemplateLevel};

use super::{LineWriter, UnwritableError};
use crate::grammar::{
    keyword::{ACTIONS, LEVELS, MODES, OFFLOADS, POLICY_DIRECTIONS, POLICY_FLAGS, POLICY_KINDS},
    protocol,
};

impl LineWriter<'_> {
    pub(super) fn put_policy(&mut self, policy: &Policy) -> Result<(), UnwritableError> {
        let Policy {
            direction,
            kind,
            index,
            selector,
            priority,
            action,
            templates,
            mark,
            if_id,
            flags,
            limits,
            offload,
        } = policy;
        if flags.contains(PolicyFlags::HELD) {
            return Err(UnwritableError("that a policy is held since the last run"));
        }
        self.raw("xfrm policy add");
        self.selector(selector)?;
        self.choice("dir", &POLICY_DIRECTIONS, direction, "its direction")?;
        if *kind != PolicyKind::Main {
            self.choice("ptype", &POLICY_KINDS, kind, "its type")?;
        }
        self.number("index", index.0);
        self.mark(*mark)?;
        if *action != Action::Allow {
            self.choice("action", &ACTIONS, action, "its action")?;
        }
        self.number("priority", priority.0);
        self.flags("flag", &POLICY_FLAGS, *flags);
        self.number("if_id", if_id.0);
        self.limits(limits);
        if let Some(offload) = offload {
            self.choice("offload", &OFFLOADS, &offload.kind, "its offload")?;
            self.numbered_device(&offload.device);
        }
        templates.iter().try_for_each(|template| self.template(template))
    }

    /// With both addresses, so that it has a family.
    fn template(&mut self, template: &Template) -> Result<(), UnwritableError> {
        let Template { source, destination, protocol, spi, mode, reqid, level } = template;
        let protocol = protocol::ipsec_name(*protocol);
        self.put(format_args!(" tmpl src {source} dst {destination} proto {protocol}"));
        if spi.0 != 0 {
            self.put(format_args!(" spi {:#010x}", spi.0));
        }
        self.choice("mode", &MODES, mode, "a template's mode")?;
        self.number("reqid", reqid.0);
        if *level != TemplateLevel::Required {
            self.choice("level", &LEVELS, level, "a template's level")?;
        }
        Ok(())
    }
}
