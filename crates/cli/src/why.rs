//! `uxfrm why`: what a packet would meet, and why. The gateway tells what its policies and states
//! do; this process looks at what the kernel does before and after: routes, forwarding, filters.
//!
//! Exit code: 0 the packet leaves in ESP or comes in, 1 it is dropped, waits or leaves plain, 2
//! there is no answer: none of the gateway, or wrong words.

pub(crate) mod query;
mod text;

use std::io::{self, Write as _};
use std::process::ExitCode;

use uxfrm_control_client::stat;
use uxfrm_status::dropped::DroppedPacket;
use uxfrm_status::explanation::{FlowExplanation, FlowOutcome, FlowQuery, StepResult};

use crate::{
    arguments::WhyOptions,
    environment,
    exit_code::{UNASKED, UNWELL},
    left_guard,
};

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
            Ok(ExitCode::from(UNASKED))
        }
    }
}

fn explain(options: &WhyOptions) -> anyhow::Result<FlowExplanation> {
    environment::enter_namespace(options.namespace.netns.as_deref())?;
    let dropped = options.drop.map(read_dropped).transpose()?;
    let query: FlowQuery = match &dropped {
        Some(dropped) => dropped.query()?,
        None => query::parse(&options.words)?,
    };
    let mut explanation = stat::explain_flow(&query).map_err(left_guard::told)?;
    uxfrm_host_facts::complete(&query, &mut explanation);
    match dropped {
        Some(dropped) => dropped.tell(&mut explanation),
        None => uxfrm_host_facts::tell_what_stops_it(&mut explanation),
    }
    Ok(explanation)
}

fn read_dropped(number: u64) -> anyhow::Result<DroppedPacket> {
    let report = stat::read_drops(&DroppedPacket::request(number))?;
    Ok(DroppedPacket::find(&report, number)?)
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
        | FlowOutcome::Dropped => ExitCode::from(UNWELL),
    }
}
