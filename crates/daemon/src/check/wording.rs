//! Policies, templates and states in the words of `ip xfrm`.

use uxfrm_engine::explain::states::{NearState, StateMisfit};
use uxfrm_engine::{Lifecycle, PolicyEntry, Reqid, Sa, Template};

/// `policy src 10.1.0.0/16 dst 10.2.0.0/16 dir out`
pub(super) fn policy(entry: &PolicyEntry) -> String {
    format!("policy {} dir {}", entry.selector(), entry.direction())
}

/// `tmpl src 10.9.0.1 dst 10.9.0.2 reqid 1 mode tunnel`
pub(super) fn template(template: &Template) -> String {
    let Template { source, destination, spi, mode, reqid, .. } = template;
    let spi = if spi.0 == 0 { String::new() } else { format!(" spi {spi}") };
    format!("tmpl src {source} dst {destination}{spi} reqid {} mode {mode}", reqid.0)
}

/// `state src 10.9.0.1 dst 10.9.0.2 spi 0x00001001`
pub(super) fn state(sa: &Sa) -> String {
    format!("state src {} dst {} spi {}", sa.source(), sa.id().destination, sa.id().spi)
}

/// In what a state differs from a template: `it has reqid 1, the template reqid 2`.
pub(super) fn difference(near: &NearState, template: &Template) -> String {
    let parts: Vec<_> =
        near.misfits.iter().map(|misfit| misfit_words(*misfit, &near.sa, template)).collect();
    parts.join(", and ")
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
            Some(selector) => format!("its selector is {selector}"),
            None => "its selector is another".to_owned(),
        },
        StateMisfit::Direction => match config.direction {
            Some(direction) => format!("it has dir {direction}"),
            None => "it is for the other direction".to_owned(),
        },
        StateMisfit::Lifecycle(Lifecycle::Acquire) => "it is larval: it has no keys yet".to_owned(),
        StateMisfit::Lifecycle(Lifecycle::Expired) => "it has expired".to_owned(),
        StateMisfit::Lifecycle(_) => "it is not usable".to_owned(),
        StateMisfit::Device => "it is on another device than the policy".to_owned(),
    }
}
