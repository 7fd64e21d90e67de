//! `uxfrm bench fou`: what UDP around a tunnel costs, in TCP_STREAM and TCP_RR, as the table of "net: foo-over-udp (fou)" has it.
//!
//! ```text
//!   TCP ─► TUN ─► uxfrm ─► veth ────── veth ─► uxfrm ─► TUN ─► TCP          two namespaces, one tunnel for each case
//! ```
//!
//! One gateway at each end has all tunnels at once, each between addresses of its own, so that the rounds of all cases take turns, and each
//! round begins with another case. A round's figure is that of one test; a row has the median of its rounds, and beside it what the series
//! published, on other machines.

pub(crate) mod bars;
mod gateways;
mod plan;
mod published;
mod traffic;

use std::time::Duration;

use anyhow::Context;

use crate::Options;
use crate::clock::TscClock;
use crate::report::{Machine, Report, Row, Sample};
use gateways::{CpuTime, Gateways};
use plan::{Encap, Test, Trial};

/// What the rounds of a trial found.
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

/// Measures what the options leave.
///
/// # Errors
/// What making namespaces, gateways and connections has: it needs root, and `/dev/net/tun`. A stream that is stuck.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let (rounds, seconds) = if options.quick { (1, 0.1) } else { (15, 0.3) };
    let clock = TscClock::calibrate();
    let mut found: Vec<Found> = plan::trials(&options.only).into_iter().map(Found::new).collect();
    if !found.is_empty() {
        let gateways = Gateways::start(&plan::tunnels(&options.only))?;
        for round in 0..rounds {
            let first = round % found.len();
            let (before, from) = found.split_at_mut(first);
            for found in from.iter_mut().chain(before) {
                let trial = found.trial;
                found.round(&gateways, Duration::from_secs_f64(seconds)).with_context(|| {
                    format!("{} through {}", trial.test.name(), trial.tunnel.name())
                })?;
            }
        }
    }
    let rows = found.iter().map(|one| one.row(bare(one, &found))).collect();
    Ok(Report { bench: "fou", machine: Machine::here(clock.hz()), rows })
}

/// The same test through the same tunnel without UDP.
fn bare<'a>(of: &Found, among: &'a [Found]) -> Option<&'a Found> {
    among.iter().find(|other| {
        let (one, other) = (of.trial, other.trial);
        other.test == one.test
            && other.tunnel.kind == one.tunnel.kind
            && other.tunnel.encap == Encap::None
    })
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

    fn round(&mut self, gateways: &Gateways, time: Duration) -> anyhow::Result<()> {
        let ends = gateways.ends(self.trial.tunnel);
        let (count, seconds, cpu) = match self.trial.test {
            Test::Stream => traffic::stream(ends, time, || gateways.cpu_time())?,
            Test::Requests => {
                traffic::requests(ends, time, || gateways.cpu_time(), &mut self.latencies)?
            }
        };
        let per_second = count / seconds;
        self.rates.push(match self.trial.test {
            Test::Stream => per_second * 8.0 / 1e9,
            Test::Requests => per_second,
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
            Test::Requests => ("tps", 0),
        };
        row.figure(rate, self.rates.median(), places);
        row.figure("min", lowest, places);
        row.figure("max", highest, places);
        if self.trial.test == Test::Requests {
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
            Test::Requests => {
                row.figure(
                    "cpu_us_per_transaction",
                    self.gateways.as_secs_f64() / self.count * 1e6,
                    2,
                );
            }
        }
        if let Some(bare) = bare {
            row.figure("time_against_none", self.against(bare), 3);
        }
        row.figures.insert("rounds".to_owned(), self.times.len().into());
        published::add(&mut row, self.trial);
        row
    }

    /// How much time it takes, of that which the other one takes: the median of what each round says.
    fn against(&self, other: &Self) -> f64 {
        let mut sample = Sample::default();
        self.times.iter().zip(&other.times).for_each(|(one, other)| sample.push(one / other));
        sample.median()
    }
}
