//! Policies, templates and states in the words of `ip xfrm`.

use std::net::IpAddr;

use uxfrm_engine::explain::states::{NearState, StateMisfit};
use uxfrm_engine::{
    Action, Family, Lifecycle, PolicyEntry, Prefix, Reqid, Sa, SaId, Selector, Template,
};

/// `policy src 10.1.0.0/16 dst 10.2.0.0/16 dir out`
pub(crate) fn policy(entry: &PolicyEntry) -> String {
    format!("policy {} dir {}", entry.selector(), entry.direction())
}

/// The policy that lets packets between two nets pass plain, before one that takes them.
pub(crate) fn plain_between(source: Prefix, destination: Prefix) -> String {
    let both =
        if source == destination { ", and the same with `dir in` and `dir fwd`" } else { "" };
    format!(
        "add, before it or with a lower `priority`: policy add src {source} dst {destination} dir \
         out{both}"
    )
}

/// What fits into a tunnel, of a packet that gains so many bytes and may leave in fragments.
pub(crate) fn size(path_mtu: u16, (inner_mtu, limit): (usize, usize), towards: IpAddr) -> String {
    let overhead = usize::from(path_mtu).saturating_sub(inner_mtu);
    let fits = format!("{path_mtu} towards {towards}, less {overhead} for ESP");
    match limit > inner_mtu {
        true => format!(
            "up to {limit} bytes pass, the least of IPv6: {fits}, so those above {inner_mtu} leave \
             in fragments"
        ),
        false => format!("up to {inner_mtu} bytes fit: {fits}"),
    }
}

/// `tmpl src 10.9.0.1 dst 10.9.0.2 reqid 1 mode tunnel`
pub(crate) fn template(template: &Template) -> String {
    let Template { source, destination, spi, mode, reqid, .. } = template;
    let spi = if spi.0 == 0 { String::new() } else { format!(" spi {spi}") };
    format!("tmpl src {source} dst {destination}{spi} reqid {} mode {mode}", reqid.0)
}

/// `state src 10.9.0.1 dst 10.9.0.2 spi 0x00001001`
pub(crate) fn state(sa: &Sa) -> String {
    format!("state src {} dst {} spi {}", sa.source(), sa.id().destination, sa.id().spi)
}

/// `allow` or `block`
pub(crate) const fn action(action: Action) -> &'static str {
    match action {
        Action::Allow => "allow",
        Action::Block => "block",
    }
}

/// In what a state that nearly fits differs from a template, as `it has reqid 1, the template reqid
/// 2`.
pub(crate) fn difference(near: &NearState, template: &Template) -> String {
    differences(&near.misfits, &near.sa, template)
}

/// In what a state differs from a template.
pub(crate) fn differences(misfits: &[StateMisfit], sa: &Sa, template: &Template) -> String {
    let parts: Vec<_> = misfits.iter().map(|one| misfit_words(*one, sa, template)).collect();
    parts.join(", and ")
}

/// In what a state differs from what a packet asks for.
pub(crate) fn inbound_differences(near: &NearState, wanted: SaId) -> String {
    let id = near.sa.id();
    let words = |misfit: &StateMisfit| match misfit {
        StateMisfit::Destination => {
            format!("it has dst {}, the packet {}", id.destination, wanted.destination)
        }
        StateMisfit::Source => format!("it has src {}, the packet another", near.sa.source()),
        StateMisfit::Spi => format!("it has spi {}, the packet {}", id.spi, wanted.spi),
        StateMisfit::Direction => "it has dir out".to_owned(),
        StateMisfit::Lifecycle(lifecycle) => lifecycle_words(*lifecycle).to_owned(),
        StateMisfit::Mark => "it is for packets with another mark".to_owned(),
        StateMisfit::Protocol
        | StateMisfit::Mode
        | StateMisfit::Reqid
        | StateMisfit::IfId
        | StateMisfit::Cpu
        | StateMisfit::Selector
        | StateMisfit::Device => "it is for other packets".to_owned(),
    };
    near.misfits.iter().map(words).collect::<Vec<_>>().join(", and ")
}

const fn lifecycle_words(lifecycle: Lifecycle) -> &'static str {
    match lifecycle {
        Lifecycle::Acquire => "it is larval: it has no keys yet",
        Lifecycle::Valid | Lifecycle::Dying => "it is usable",
        Lifecycle::Error => "it could not be made",
        Lifecycle::Expired => "it has expired",
    }
}

fn misfit_words(misfit: StateMisfit, sa: &Sa, template: &Template) -> String {
    let config = sa.config();
    let Reqid(reqid) = sa.reqid();
    match misfit {
        StateMisfit::Destination => {
            format!("it has dst {}, the template dst {}", sa.id().destination, template.destination)
        }
        StateMisfit::Source => {
            format!("it has src {}, the template src {}", sa.source(), template.source)
        }
        StateMisfit::Protocol => "it is of another IPsec protocol".to_owned(),
        StateMisfit::Spi => {
            format!("it has spi {}, the template spi {}", sa.id().spi, template.spi)
        }
        StateMisfit::Mode => {
            format!("it has mode {}, the template mode {}", config.mode, template.mode)
        }
        StateMisfit::Reqid => {
            format!("it has reqid {reqid}, the template reqid {}", template.reqid.0)
        }
        StateMisfit::IfId => format!("it has if_id {:#x}, the policy another", config.if_id.0),
        StateMisfit::Mark => {
            let mark = config.mark;
            format!(
                "it has mark {:#x}/{:#x}, which the policy's does not fit",
                mark.value, mark.mask
            )
        }
        StateMisfit::Cpu => "it is for another worker (pcpu-num)".to_owned(),
        StateMisfit::Selector => match &config.selector {
            // Of the packet's family it would fit.
            Some(own) if *own == Selector::any(own.family()) => {
                let family = match own.family() {
                    Family::V4 => "IPv4",
                    Family::V6 => "IPv6",
                };
                format!("it is for {family} packets alone: `flag af-unspec` is for both families")
            }
            Some(selector) => format!("its selector is {selector}"),
            None => "its selector is another".to_owned(),
        },
        StateMisfit::Direction => match config.direction {
            Some(direction) => format!("it has dir {direction}"),
            None => "it is for the other direction".to_owned(),
        },
        StateMisfit::Lifecycle(lifecycle) => lifecycle_words(lifecycle).to_owned(),
        StateMisfit::Device => "it is on another device than the policy".to_owned(),
    }
}
