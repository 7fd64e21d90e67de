//! What the kernel does with a packet before the gateway has it and after: routes, forwarding, the
//! check of ways back. The gateway explains its own part; [`complete`] adds the host's. And which
//! users of the host are one.
//!
//! It reads `/proc/sys/net` and asks rtnetlink and the packet filter, in the calling thread's
//! network namespace. No privilege is needed; what can't be read is said in a step.
//!
//! | module | content |
//! | --- | --- |
//! | [`packet_filter`] | chains of this host's packet filter that drop by their policy |
//! | `host` | what is read, and the steps that come of it |
//! | `own_filter` | the steps that come of it |
//! | `route` | the kernel's route of one packet |
//! | [`subordinate_users`] | user numbers that count as another's |
//! | `sender_told` | whether the sender of a packet hears that it is too large, and by whom |
#![forbid(unsafe_code)]

mod host;
mod own_filter;
pub mod packet_filter;
mod route;
mod sender_told;
pub mod subordinate_users;

use uxfrm_status::explanation::{FlowExplanation, FlowOutcome, FlowQuery, FlowStep, StepResult};

use host::Host;

/// Adds the host's steps to the gateway's.
pub fn complete(query: &FlowQuery, explanation: &mut FlowExplanation) {
    match Host::read(query, explanation) {
        Ok(host) => host.add_to(query, explanation),
        Err(error) => explanation.steps.push(
            FlowStep::new("route", format!("the kernel can't be asked for routes: {error}"))
                .with_result(StepResult::Doubtful)
                .with_notes(vec![format!("ip route get {}", query.destination)]),
        ),
    }
}

/// Has the verdict say what stops the packet: one that the kernel does not bring here, or not on,
/// gets nowhere, whatever policies say.
pub fn tell_what_stops_it(explanation: &mut FlowExplanation) {
    let stopped = explanation.steps.iter().find(|step| step.result == StepResult::Fails);
    match (explanation.outcome, stopped) {
        (FlowOutcome::LeavesProtected | FlowOutcome::LeavesPlain, Some(step)) => {
            explanation.verdict =
                format!("does not get through ({}): else it {}", step.stage, explanation.verdict);
        }
        (FlowOutcome::ComesIn, Some(step)) => {
            explanation.verdict =
                format!("does not arrive ({}): else it {}", step.stage, explanation.verdict);
        }
        (_, None) | (FlowOutcome::Waits | FlowOutcome::Dropped, Some(_)) => {}
    }
}
