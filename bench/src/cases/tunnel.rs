//! `uxfrm bench tunnel`: end to end between two network namespaces, with iperf3 and ping.
//!
//! The paths are two uxfrm gateways, other user-space VPNs as far as they are installed, a bare
//! relay at each end (the floor under all of these), and the bare wire.
//!
//! The paths take turns: each round builds each path, runs all tests and takes it down, so that a
//! busy moment of the machine hits all alike. On a small machine both ends of the traffic and both
//! gateways share its cores, in the clear as in the tunnel. A row that misses one of the project's
//! goals says so.

mod goal;
mod path;
mod peer;
mod relay;
mod results;
mod route;
mod runner;

use crate::BenchOptions;
use crate::clock::TscClock;
use crate::pair::{Interrupt, find_tun, gain_privileges, iperf};
use crate::report::{BenchReport, Machine};
use path::TestPath;
use results::CaseResults;
use runner::PathRunner;

/// Default rounds.
const ROUNDS: u32 = 5;

/// Default seconds of one run of iperf3.
const SECONDS: u32 = 3;

/// Measures what the options leave. A peer that fails has a row that says why, and is left out of
/// later rounds.
///
/// # Errors
/// Without root and user namespaces, `/dev/net/tun` or iperf3, and when a path other than a peer
/// fails.
pub fn run(options: &BenchOptions) -> anyhow::Result<BenchReport> {
    let only = &options.only;
    let (possible, impossible): (Vec<_>, Vec<_>) =
        TestPath::all().into_iter().partition(TestPath::is_possible);
    let paths: Vec<_> = possible.into_iter().filter(|path| runner::tests_any(path, only)).collect();
    let absent = peer::absent(only);
    let refused = path::refused(&impossible, only);
    options.ensure_all_values_select()?;
    let mut results = CaseResults::default();
    if !paths.is_empty() {
        gain_privileges()?;
        find_tun()?;
        iperf::find()?;
        let interrupt = Interrupt::listen()?;
        let usual = if options.quick { (1, 1) } else { (ROUNDS, SECONDS) };
        let rounds = options.rounds.unwrap_or(usual.0);
        let seconds = options.seconds.unwrap_or(usual.1);
        let runner = PathRunner::build(seconds, only, interrupt)?;
        for _ in 0..rounds {
            for path in &paths {
                runner.run(path, &mut results)?;
            }
        }
    }
    let mut rows = results.into_rows();
    rows.extend(absent);
    rows.extend(refused);
    Ok(BenchReport { bench: "tunnel", machine: Machine::here(TscClock::calibrate().hz()), rows })
}
