//! `uxfrm bench fou`: the cost of UDP around a tunnel, in TCP_STREAM and TCP_RR as in the table of
//! "net: foo-over-udp (fou)".
//!
//! ```text
//!   TCP ─► TUN ─► uxfrm ─► veth ────── veth ─► uxfrm ─► TUN ─► TCP
//!   └───────── a namespace ─────┘      └───────── a namespace ──┘
//! ```
//!
//! One gateway at each end has all tunnels at once, each between its own addresses. A round runs
//! each test over each type of tunnel with all encapsulations in the order A B C C B A, so that
//! their ratios hold although the machine's speed drifts. A row has the median of its visits, its
//! ratio to the tunnel without UDP, and the series' published figures, which are of other machines.

mod gateways;
mod plan;
mod relative_time;
mod traffic;

use std::time::Duration;

use anyhow::Context;

use crate::BenchOptions;
use crate::clock::TscClock;
use crate::report::{BenchReport, Machine, Row, Samples, published};
use gateways::{CpuTime, GatewayPair};
use plan::{FouCase, FouEncap, NetperfTest};
use relative_time::RelativeTime;

/// The results of a case, which each round visits twice.
#[derive(Debug)]
struct Measurement {
    fou_case: FouCase,
    /// Gbit/s of payload, or transactions a second.
    rates: Samples,
    /// Nanoseconds for each byte, or for each transaction.
    times: Vec<f64>,
    /// Seconds that the tests took.
    seconds: f64,
    /// Bytes or transactions.
    count: f64,
    /// CPU time that both gateways used meanwhile.
    gateways: CpuTime,
    /// Microseconds of the transactions.
    latencies: Vec<f64>,
}

/// Default rounds.
const ROUNDS: u32 = 15;

/// Seconds of each visit.
const SECONDS: f64 = 0.15;

/// Measures what the options leave.
///
/// # Errors
/// Namespaces, gateways or connections that can't be made (it needs root and `/dev/net/tun`), and a
/// stream that is stuck.
pub fn run(options: &BenchOptions) -> anyhow::Result<BenchReport> {
    let (usual, seconds) = if options.quick { (1, 0.1) } else { (ROUNDS, SECONDS) };
    let time = Duration::from_secs_f64(seconds);
    let clock = TscClock::calibrate();
    let mut measurements: Vec<Measurement> =
        plan::cases(&options.only).into_iter().map(Measurement::new).collect();
    options.ensure_all_values_select()?;
    if !measurements.is_empty() {
        let gateways = GatewayPair::start(&plan::tunnels(&options.only))?;
        for _ in 0..options.rounds.unwrap_or(usual) {
            for compared in measurements
                .chunk_by_mut(|one, other| one.fou_case.is_compared_with(other.fou_case))
            {
                there_and_back(compared, &gateways, time)?;
            }
        }
    }
    let rows = measurements.iter().map(|one| one.row(bare(one, &measurements))).collect();
    Ok(BenchReport { bench: "fou", machine: Machine::here(clock.hz()), rows })
}

/// One round of cases that are compared: each is visited twice, so that a steady drift hits all
/// alike.
fn there_and_back(
    compared: &mut [Measurement],
    gateways: &GatewayPair,
    time: Duration,
) -> anyhow::Result<()> {
    for place in (0..compared.len()).chain((0..compared.len()).rev()) {
        let one = &mut compared[place];
        let (test, tunnel) = (one.fou_case.test.name(), one.fou_case.tunnel.name());
        one.visit(gateways, time).with_context(|| format!("{test} through {tunnel}"))?;
    }
    Ok(())
}

/// The same test through the same type of tunnel without UDP.
fn bare<'a>(of: &Measurement, among: &'a [Measurement]) -> Option<&'a Measurement> {
    among.iter().find(|other| {
        other.fou_case.is_compared_with(of.fou_case)
            && other.fou_case.tunnel.encap == FouEncap::None
    })
}

impl Measurement {
    fn new(fou_case: FouCase) -> Self {
        Self {
            fou_case,
            rates: Samples::default(),
            times: Vec::new(),
            seconds: 0.0,
            count: 0.0,
            gateways: CpuTime::default(),
            latencies: Vec::new(),
        }
    }

    fn visit(&mut self, gateways: &GatewayPair, time: Duration) -> anyhow::Result<()> {
        let ends = gateways.ends(self.fou_case.tunnel);
        let (count, seconds, cpu) = match self.fou_case.test {
            NetperfTest::Stream => traffic::stream(ends, time, || gateways.cpu_time())?,
            NetperfTest::Requests(connections) => traffic::requests(
                ends,
                connections,
                time,
                || gateways.cpu_time(),
                &mut self.latencies,
            )?,
        };
        let per_second = count / seconds;
        self.rates.push(match self.fou_case.test {
            NetperfTest::Stream => per_second * 8.0 / 1e9,
            NetperfTest::Requests(_) => per_second,
        });
        self.times.push(1e9 / per_second);
        self.seconds += seconds;
        self.count += count;
        self.gateways += cpu;
        Ok(())
    }

    fn row(&self, bare: Option<&Self>) -> Row {
        let mut row = Row { case: self.fou_case.case(), figures: serde_json::Map::new() };
        let [lowest, highest] = [0.0, 1.0].map(|share| self.rates.quantile(share));
        let (rate, places) = match self.fou_case.test {
            NetperfTest::Stream => ("gbps", 3),
            NetperfTest::Requests(_) => ("tps", 0),
        };
        row.figure(rate, self.rates.median(), places);
        row.figure("min", lowest, places);
        row.figure("max", highest, places);
        if self.fou_case.test != NetperfTest::Stream {
            let mut latencies = Samples::default();
            self.latencies.iter().for_each(|one| latencies.push(*one));
            for percent in [90, 95, 99] {
                let value = latencies.quantile(f64::from(percent) / 100.0);
                row.figure(&format!("p{percent}_us"), value, 0);
            }
        }
        row.figure("cpu_s", self.gateways.as_secs_f64(), 2);
        row.figure("cpu_percent", self.gateways.as_secs_f64() / self.seconds * 100.0, 0);
        match self.fou_case.test {
            NetperfTest::Stream => {
                row.figure("cpu_s_per_gb", self.gateways.as_secs_f64() / self.count * 1e9, 3);
            }
            NetperfTest::Requests(_) => {
                row.figure(
                    "cpu_us_per_transaction",
                    self.gateways.as_secs_f64() / self.count * 1e6,
                    2,
                );
            }
        }
        if let Some(bare) = bare {
            RelativeTime::of(&self.times, &bare.times).add(&mut row, self.fou_case.tunnel.encap);
        }
        row.figures.insert("rounds".to_owned(), (self.times.len() / 2).into());
        published::fou::add(&mut row);
        row
    }
}
