//! Turns a policy of a batch file into one that the databases take.

use uxfrm_engine::{Family, Offload, OffloadKind, Policy, PolicyFlags, Template};
use uxfrm_xfrm::grammar::{PolicyArgs, TemplateArgs};

/// What the kernel makes of what `ip` sends for it. A security context is taken and not kept, as by
/// a kernel without a security module.
pub(super) fn policy(words: PolicyArgs) -> Box<Policy> {
    let direction = words.direction;
    let family = words.selector.family();
    Box::new(Policy {
        direction,
        kind: words.kind.unwrap_or_default(),
        index: words.index,
        selector: words.selector,
        priority: words.priority,
        action: words.action,
        templates: words.templates.into_iter().map(|words| template(words, family)).collect(),
        mark: words.mark,
        if_id: words.if_id.unwrap_or_default(),
        flags: words.flags.difference(PolicyFlags::HELD), // the gateway's own
        limits: words.limits,
        offload: words.offload_device.map(|device| Offload {
            kind: OffloadKind::Packet,
            device,
            direction,
        }),
    })
}

/// Without addresses it has the policy's family (`net/xfrm/xfrm_user.c: validate_tmpl`).
fn template(words: TemplateArgs, policy: Family) -> Template {
    let family = words.family.unwrap_or(policy);
    Template {
        source: words.source.unwrap_or_else(|| family.unspecified()),
        destination: words.destination.unwrap_or_else(|| family.unspecified()),
        protocol: words.protocol,
        spi: words.spi,
        mode: words.mode,
        reqid: words.reqid,
        level: words.level,
    }
}
