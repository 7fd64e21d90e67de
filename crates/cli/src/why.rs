//! `uxfrm why`: what a packet would meet, and why. The gateway tells what its policies and states
//! do; this process looks at what the kernel does before and after: routes, forwarding, filters.
//!
//! Exit code: 0 the packet leaves in ESP or comes in, 1 it is dropped, waits or leaves plain, 2
//! nobody could be asked.

mod dropped;
mod host;
pub(crate) mod query;
mod text;

use std::io::{self, Write as _};
use std::process::ExitCode;

use uxfrm_control_client::stat;
use uxfrm_status::explanation::{FlowExplanation, FlowOutcome, FlowQuery, StepResult};

use crate::arguments::WhyOptions;
use dropped::DroppedPacket;

/// The packet does not get through, or not protected.
const STOPPED: u8 = 1;
/// Nobody could be asked, or the words are wrong.
const UNKNOWN: u8 = 2;

/// Explains one packet.
pub(crate) fn execute(options: &WhyOptions) -> anyhow::Result<ExitCode> {
    match explain(options) {
        Ok(explanation) => {
            print(&explanation, options)?;
            Ok(code(&explanation))
        }
        Err(error) => {
            // An error on stderr itself cannot be reported.
            let _closed = writeln!(io::stderr(), "uxfrm: {error:#}");
            Ok(ExitCode::from(UNKNOWN))
        }
    }
}

fn explain(options: &WhyOptions) -> anyhow::Result<FlowExplanation> {
    let dropped = options.drop.map(DroppedPacket::read).transpose()?;
    let query: FlowQuery = match &dropped {
        Some(dropped) => dropped.query()?,
        None => query::parse(&options.words)?,
    };
    let mut explanation = stat::explain_flow(&query)?;
    host::Host::read(&query, &explanation).add_to(&query, &mut explanation);
    match dropped {
        Some(dropped) => dropped.tell(&mut explanation),
        None => tell_what_stops_it(&mut explanation),
    }
    Ok(explanation)
}

/// A packet that the kernel does not bring here, or not on, gets nowhere, whatever policies say.
fn tell_what_stops_it(explanation: &mut FlowExplanation) {
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

fn print(explanation: &FlowExplanation, options: &WhyOptions) -> anyhow::Result<()> {
    let text = match options.json {
        true => serde_json::to_string(explanation)? + "\n",
        false => text::render(explanation, crate::status::colour()),
    };
    Ok(io::stdout().lock().write_all(text.as_bytes())?)
}

fn code(explanation: &FlowExplanation) -> ExitCode {
    let fails = explanation.steps.iter().any(|step| step.result == StepResult::Fails);
    match explanation.outcome {
        FlowOutcome::LeavesProtected | FlowOutcome::ComesIn if !fails => ExitCode::SUCCESS,
        FlowOutcome::LeavesProtected
        | FlowOutcome::ComesIn
        | FlowOutcome::LeavesPlain
        | FlowOutcome::Waits
        | FlowOutcome::Dropped => ExitCode::from(STOPPED),
    }
}
