//! `uxfrm bench`: figures from the user's own machine.

use std::io;

use crate::arguments::BenchOptions;

/// Runs a bench and prints its report.
pub(crate) fn execute(options: &BenchOptions) -> anyhow::Result<()> {
    let measured = uxfrm_bench::BenchOptions {
        only: options.only.clone(),
        quick: options.quick,
        json: options.json.clone(),
        html: options.html.clone(),
        rules: options.rules.clone(),
        trace: options.trace.clone(),
        rounds: options.rounds,
        seconds: options.seconds,
        stages: options.stages,
    };
    uxfrm_bench::run(&options.name, &measured, &mut io::stdout())
}
