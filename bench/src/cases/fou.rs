//! `uxfrm bench fou`: what UDP around a tunnel costs, in TCP_STREAM and TCP_RR, as the table of "net: foo-over-udp (fou)" has it.
//!
//! ```text
//!   TCP ─► TUN ─► uxfrm ─► veth ────── veth ─► uxfrm ─► TUN ─► TCP          two namespaces, one tunnel for each case
//! ```
//!
//! One gateway at each end has all tunnels at once, each between addresses of its own. Of one kind of tunnel and one test, all encapsulations
//! follow each other there and back (A B C C B A), so that a round tells how they stand to each other whatever the machine does from round to
//! round. A row has the median of its visits, how it stands to the tunnel without UDP, and beside it what the series published, on other
//! machines.

mod against;
mod gateways;
mod plan;
mod traffic;

use std::time::Duration;

use anyhow::Context;

use crate::Options;
use crate::clock::TscClock;
use crate::report::{Machine, Report, Row, Sample, published};
use against::Against;
use gateways::{CpuTime, Gateways};
use plan::{Encap, Test, Trial};

/// What the visits to a trial found: two each round.
#[derive(Debug)]
struct Found {
    trial: Trial,
    /// Gbit/s of payload, or transactions a second.
    rates: Sample,
    /// Nanoseconds for each byte, or for each transaction.
    times: Vec<f64>,
    /// Seconds that the tests took.
    seconds: f64,
    /// Bytes or transactions.
    count: f64,
    /// What both gateways used meanwhile.
    gateways: CpuTime,
    /// Microseconds of the transactions.
    latencies: Vec<f64>,
}

/// Rounds where none are said.
const ROUNDS: u32 = 15;

/// Seconds of each visit.
const SECONDS: f64 = 0.15;

/// Measures what the options leave.
///
/// # Errors
/// What making namespaces, gateways and connections has: it needs root, and `/dev/net/tun`. A stream that is stuck.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let (usual, seconds) = if options.quick { (1, 0.1) } else { (ROUNDS, SECONDS) };
    let time = Duration::from_secs_f64(seconds);
    let clock = TscClock::calibrate();
    let mut found: Vec<Found> = plan::trials(&options.only).into_iter().map(Found::new).collect();
    options.ensure_all_values_select()?;
    if !found.is_empty() {
        let gateways = Gateways::start(&plan::tunnels(&options.only))?;
        for _ in 0..options.rounds.unwrap_or(usual) {
            for compared in found.chunk_by_mut(|one, other| one.trial.is_beside(other.trial)) {
                there_and_back(compared, &gateways, time)?;
            }
        }
    }
    let rows = found.iter().map(|one| one.row(bare(one, &found))).collect();
    Ok(Report { bench: "fou", machine: Machine::here(clock.hz()), rows })
}

/// One round of trials that are compared: each is visited twice, and what changes evenly meanwhile hits all alike.
fn there_and_back(
    compared: &mut [Found],
    gateways: &Gateways,
    time: Duration,
) -> anyhow::Result<()> {
    for place in (0..compared.len()).chain((0..compared.len()).rev()) {
        let one = &mut compared[place];
        let (test, tunnel) = (one.trial.test.name(), one.trial.tunnel.name());
        one.visit(gateways, time).with_context(|| format!("{test} through {tunnel}"))?;
    }
    Ok(())
}

/// The same test through the same tunnel without UDP.
fn bare<'a>(of: &Found, among: &'a [Found]) -> Option<&'a Found> {
    among
        .iter()
        .find(|other| other.trial.is_beside(of.trial) && other.trial.tunnel.encap == Encap::None)
}

impl Found {
    fn new(trial: Trial) -> Self {
        Self {
            trial,
            rates: Sample::default(),
            times: Vec::new(),
            seconds: 0.0,
            count: 0.0,
            gateways: CpuTime::default(),
            latencies: Vec::new(),
        }
    }

    fn visit(&mut self, gateways: &Gateways, time: Duration) -> anyhow::Result<()> {
        let ends = gateways.ends(self.trial.tunnel);
        let (count, seconds, cpu) = match self.trial.test {
            Test::Stream => traffic::stream(ends, time, || gateways.cpu_time())?,
            Test::Requests(connections) => traffic::requests(
                ends,
                connections,
                time,
                || gateways.cpu_time(),
                &mut self.latencies,
            )?,
        };
        let per_second = count / seconds;
        self.rates.push(match self.trial.test {
            Test::Stream => per_second * 8.0 / 1e9,
            Test::Requests(_) => per_second,
        });
        self.times.push(1e9 / per_second);
        self.seconds += seconds;
        self.count += count;
        self.gateways += cpu;
        Ok(())
    }

    fn row(&self, bare: Option<&Self>) -> Row {
        let mut row = Row { case: self.trial.case(), figures: serde_json::Map::new() };
        let [lowest, highest] = [0.0, 1.0].map(|share| self.rates.quantile(share));
        let (rate, places) = match self.trial.test {
            Test::Stream => ("gbps", 3),
            Test::Requests(_) => ("tps", 0),
        };
        row.figure(rate, self.rates.median(), places);
        row.figure("min", lowest, places);
        row.figure("max", highest, places);
        if self.trial.test != Test::Stream {
            let mut latencies = Sample::default();
            self.latencies.iter().for_each(|one| latencies.push(*one));
            for percent in [90, 95, 99] {
                let value = latencies.quantile(f64::from(percent) / 100.0);
                row.figure(&format!("p{percent}_us"), value, 0);
            }
        }
        row.figure("cpu_s", self.gateways.as_secs_f64(), 2);
        row.figure("cpu_percent", self.gateways.as_secs_f64() / self.seconds * 100.0, 0);
        match self.trial.test {
            Test::Stream => {
                row.figure("cpu_s_per_gb", self.gateways.as_secs_f64() / self.count * 1e9, 3);
            }
            Test::Requests(_) => {
                row.figure(
                    "cpu_us_per_transaction",
                    self.gateways.as_secs_f64() / self.count * 1e6,
                    2,
                );
            }
        }
        if let Some(bare) = bare {
            Against::of(&self.times, &bare.times).add(&mut row, self.trial.tunnel.encap);
        }
        row.figures.insert("rounds".to_owned(), (self.times.len() / 2).into());
        published::fou::add(&mut row);
        row
    }
}
