//! `uxfrm bench tunnel`: end to end between two network namespaces: iperf3 and ping through two gateways, through other programs of the
//! kind as far as they are installed, through a bare relay at each end, which is the floor under all of these, and through the bare wire.
//!
//! The ways to the other side take turns: in each round each of them is built anew, goes through all tests and is taken down, so that
//! a busy moment of the machine hits all alike. On a small machine both ends of the traffic and both gateways share its cores, in the
//! clear as in the tunnel. Goals are those that the project set itself; a row that misses one says so.

mod course;
mod findings;
mod goal;
mod lead;
mod peer;
mod relay;
mod way;

use crate::clock::TscClock;
use crate::pair::{Interrupt, find_tun, gain_privileges, iperf};
use crate::report::{Machine, Report};
use crate::{Filter, Options};
use course::Course;
use findings::Findings;
use way::Way;

/// Rounds where none are said.
const ROUNDS: u32 = 5;

/// Seconds of one run of iperf3 where none are said.
const SECONDS: u32 = 3;

/// Measures what the options leave.
///
/// # Errors
/// Without root and user namespaces, `/dev/net/tun` or iperf3, and what goes wrong on the way.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let ways = ways(&options.only);
    let mut findings = Findings::default();
    if !ways.is_empty() {
        gain_privileges()?;
        find_tun()?;
        iperf::find()?;
        let interrupt = Interrupt::listen()?;
        let usual = if options.quick { (1, 1) } else { (ROUNDS, SECONDS) };
        let rounds = options.rounds.unwrap_or(usual.0);
        let seconds = options.seconds.unwrap_or(usual.1);
        let course = Course::build(seconds, &options.only, interrupt)?;
        for _ in 0..rounds {
            for way in &ways {
                course.go(way, &mut findings)?;
            }
        }
    }
    let mut rows = findings.into_rows();
    rows.extend(peer::absent(&options.only));
    rows.extend(Way::refused(&options.only));
    Ok(Report { bench: "tunnel", machine: Machine::here(TscClock::calibrate().hz()), rows })
}

/// The ways that the filter leaves.
fn ways(only: &Filter) -> Vec<Way> {
    let possible = Way::all().into_iter().filter(|way| way.is_possible());
    possible.filter(|way| only.may_admit(&way.case())).collect()
}
