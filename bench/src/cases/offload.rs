//! `uxfrm bench offload`: what a packet costs the *host* in the clear, with ESP in software, and
//! with a device that encrypts or does all of ESP.
//!
//! Two hosts in memory send to each other in transport mode with AES-GCM-128, each through a worker
//! and a ring to the device thread, which runs the model NICs of `uxfrm dev`, profile `unlimited`.
//! A host's cycles are counted on its own thread between its port and the ring, in both directions:
//! `host_cycles_per_packet` is the sum of what sending costs one host and receiving the other. The
//! device thread's cycles are shown apart. In the clear the ring is the same.
//!
//! All paths use the same buffers and rings on the same processors and take turns in short rounds,
//! because a path's memory placement would weigh more than the differences. `to_clear` and
//! `to_software` are medians over the rounds' ratios, `…_from` and `…_to` the bounds of the true
//! median with 95 % confidence. A super-packet counts as its segments; in the clear, and without a
//! device that segments, the host segments it.
//!
//! The lock manager's messages are a request of 112 bytes and a reply of 512 KiB in super-packets,
//! one after the other. `host_us` is the time that both hosts work on one: its latency if network
//! and device cost nothing. `messages_per_s` is the rate that follows.

mod association;
mod device_thread;
mod goal;
mod host;
mod host_config;
mod host_pair;
mod plan;
mod rings;
mod traffic;

use uxfrm_engine::Moment;

use crate::BenchOptions;
use crate::clock::TscClock;
use crate::report::{BenchReport, Machine, Row, Samples, published};
use host_pair::{Cycles, HostPair, SharedMemory};
use plan::{ForwardCase, ProtectionPath};

/// Packets that a ring holds, as in a gateway.
const RING: usize = 1024;
/// Super-packets in a pool.
const SUPERS: usize = 64;
/// Packets of a turn.
const TURN_PACKETS: usize = RING;
/// Bytes of the lock manager's messages.
const REQUEST: usize = 112;
const REPLY: usize = 512 << 10;
/// The clock stands still while the bench runs.
const NOW: Moment = Moment::from_secs(1);

/// Turns of each round that are not counted: they evict what the path before left in the caches.
const UNCOUNTED_TURNS: usize = 1;
/// Rounds that are not counted: they fill flow caches and pools.
const WARM_UP_ROUNDS: usize = 2;

/// Measures what the options leave.
///
/// # Errors
/// SAs or devices that can't be made, or a packet that did not come through.
pub fn run(options: &BenchOptions) -> anyhow::Result<BenchReport> {
    let (rounds, turns) = if options.quick { (2, 2) } else { (75, 3) };
    let clock = TscClock::calibrate();
    let mut measurements = measurements(options)?;
    options.ensure_all_values_select()?;
    let mut shared = SharedMemory::new(plan::most_workers())?;
    for round in 0..WARM_UP_ROUNDS + rounds {
        for measurement in alternating(round, &mut measurements) {
            measurement.round(&mut shared, turns)?;
            if round < WARM_UP_ROUNDS {
                measurement.forget();
            }
        }
    }
    let rows =
        measurements.iter().map(|measurement| measurement.row(&measurements, clock.hz())).collect();
    Ok(BenchReport { bench: "offload", machine: Machine::here(clock.hz()), rows })
}

/// Reverses the order every other round, so that a steady drift favours none.
fn alternating<T>(round: usize, all: &mut [T]) -> Vec<&mut T> {
    let mut order: Vec<_> = all.iter_mut().collect();
    if !round.is_multiple_of(2) {
        order.reverse();
    }
    order
}

/// The test of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OffloadTest {
    Forward(ForwardCase),
    Messages(ProtectionPath),
}

/// The measurement of one row.
#[derive(Debug)]
struct Measurement {
    test: OffloadTest,
    hosts: HostPair,
    host: Samples,
    sending: Samples,
    receiving: Samples,
    device: Samples,
}

fn measurements(options: &BenchOptions) -> anyhow::Result<Vec<Measurement>> {
    let forward = plan::forward_cases(options).into_iter().map(OffloadTest::Forward);
    let paths =
        ProtectionPath::ALL.into_iter().filter(|path| options.only.admits(&plan::messages(*path)));
    forward.chain(paths.map(OffloadTest::Messages)).map(Measurement::new).collect()
}

impl OffloadTest {
    fn path(self) -> ProtectionPath {
        match self {
            Self::Forward(case) => case.path,
            Self::Messages(path) => path,
        }
    }

    /// The same test on another path.
    fn on(self, path: ProtectionPath) -> Self {
        match self {
            Self::Forward(case) => Self::Forward(ForwardCase { path, ..case }),
            Self::Messages(_) => Self::Messages(path),
        }
    }
}

impl Measurement {
    fn new(test: OffloadTest) -> anyhow::Result<Self> {
        let workers = match test {
            OffloadTest::Forward(case) => case.workers,
            OffloadTest::Messages(_) => 1,
        };
        Ok(Self {
            test,
            hosts: HostPair::new(test.path(), workers)?,
            host: Samples::default(),
            sending: Samples::default(),
            receiving: Samples::default(),
            device: Samples::default(),
        })
    }

    fn round(&mut self, shared: &mut SharedMemory, turns: usize) -> anyhow::Result<()> {
        let Cycles { sending, receiving, device } = match self.test {
            OffloadTest::Forward(case) => self.hosts.forward(shared, case.size, turns)?,
            OffloadTest::Messages(_) => self.hosts.messages(shared, turns)?,
        };
        self.host.push(sending + receiving);
        self.sending.push(sending);
        self.receiving.push(receiving);
        self.device.push(device);
        Ok(())
    }

    fn forget(&mut self) {
        for sample in [&mut self.host, &mut self.sending, &mut self.receiving, &mut self.device] {
            *sample = Samples::default();
        }
    }

    /// The row, with its ratios to other paths.
    fn row(&self, all: &[Self], hz: f64) -> Row {
        let mut row = match self.test {
            OffloadTest::Forward(case) => self.forwarding(case, hz),
            OffloadTest::Messages(path) => self.messaging(path, hz),
        };
        for other in [ProtectionPath::Clear, ProtectionPath::Software] {
            let found = all.iter().find(|measurement| measurement.test == self.test.on(other));
            if let Some(found) = found.filter(|found| found.test != self.test) {
                let ratio = self.host.over(&found.host);
                row.figure(&format!("to_{}", other.name()), ratio.median(), 3);
                let [low, high] = ratio.confidence();
                row.figure(&format!("to_{}_from", other.name()), low, 3);
                row.figure(&format!("to_{}_to", other.name()), high, 3);
            }
        }
        if let Some(verdict) = goal::verdict(&row) {
            row.figures.insert("goal".to_owned(), verdict.into());
        }
        published::offload::add(&mut row);
        row
    }

    fn forwarding(&self, case: ForwardCase, hz: f64) -> Row {
        let mut row = Row { case: case.case(), figures: serde_json::Map::new() };
        let median = self.host.median();
        row.figure("host_cycles_per_packet", median, 1);
        row.figure("sending", self.sending.median(), 1);
        row.figure("receiving", self.receiving.median(), 1);
        row.figure("min", self.host.min(), 1);
        row.figure("max", self.host.max(), 1);
        row.figures.insert("rounds".to_owned(), self.host.rounds().into());
        // Each of the two hosts does half of the work.
        let gbps = hz / (median / 2.0) * f64::from(case.size.bytes()) * 8.0 / 1e9;
        row.figure("host_gbps_per_core", gbps, 2);
        row.figure("device_cycles_per_packet", self.device.median(), 1);
        row
    }

    fn messaging(&self, path: ProtectionPath, hz: f64) -> Row {
        let mut row = Row { case: plan::messages(path), figures: serde_json::Map::new() };
        let micros = 1e6 / hz;
        let host = self.host.median() * micros;
        row.figure("messages_per_s", 1e6 / host, 0);
        row.figure("host_us", host, 1);
        row.figure("min", self.host.min() * micros, 1);
        row.figure("max", self.host.max() * micros, 1);
        row.figures.insert("rounds".to_owned(), self.host.rounds().into());
        row.figure("device_us", self.device.median() * micros, 1);
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(only: &str) -> Vec<Row> {
        let only = only.parse().unwrap();
        run(&BenchOptions { only, quick: true, ..BenchOptions::default() }).unwrap().rows
    }

    #[test]
    fn every_path_passes_packets_of_all_sizes() {
        let rows = rows("test=forward,workers=1");
        assert_eq!(rows.len(), 16);
        for row in &rows {
            assert!(row.figures["host_cycles_per_packet"].as_f64().unwrap() > 0.0);
            let idle = matches!(row.case.value("path").as_deref(), Some("clear" | "software"));
            assert_eq!(row.figures["device_cycles_per_packet"].as_f64().unwrap() == 0.0, idle);
            assert_eq!(
                row.figures.contains_key("to_clear"),
                row.case.value("path").as_deref() != Some("clear")
            );
        }
        assert_eq!(rows.iter().filter(|row| row.figures.contains_key("goal")).count(), 5);
    }

    #[test]
    fn two_workers_share_the_sas() {
        assert_eq!(rows("test=forward,workers=2,bytes=64").len(), 4);
    }

    #[test]
    fn lock_manager_rows_have_published_figures() {
        let rows = rows("test=lock-manager");
        assert_eq!(rows.len(), 4);
        let published =
            |row: &Row| row.figures.get("published_messages_per_s").and_then(|f| f.as_f64());
        let all: Vec<_> = rows.iter().map(published).collect();
        assert_eq!(all, [Some(1272.0), Some(597.0), Some(1246.0), None]);
        let report = BenchReport { bench: "offload", machine: Machine::here(2e9), rows };
        assert_eq!(report.html().matches("<figure>").count(), 2);
    }

    #[test]
    fn verdict_says_met_or_missed() {
        let verdict = |path: ProtectionPath, ratio: f64| {
            let case = ForwardCase { path, size: plan::PacketSize::Bytes(1400), workers: 1 };
            let mut row = Row { case: case.case(), figures: serde_json::Map::new() };
            row.figure("to_clear", ratio, 2);
            row.figure("to_software", ratio, 2);
            goal::verdict(&row)
        };
        assert_eq!(verdict(ProtectionPath::Packet, 1.05).as_deref(), Some("met: to_clear ≤ 1.05"));
        assert_eq!(
            verdict(ProtectionPath::Packet, 1.06).as_deref(),
            Some("MISSED: to_clear ≤ 1.05")
        );
        assert_eq!(verdict(ProtectionPath::Crypto, 0.5).as_deref(), Some("met: to_software ≤ 0.5"));
        assert_eq!(verdict(ProtectionPath::Clear, 1.0), None);
    }
}
