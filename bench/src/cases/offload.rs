//! `uxfrm bench offload`: what a packet costs the *host*, in the clear, with ESP in software, and with a device that does part of it or all.
//!
//! Two hosts in memory send to each other in transport mode with AES-GCM-128, each through a worker and a ring to the thread of the network, where the
//! devices are too: those of `uxfrm dev`, profile `unlimited`. A host's cycles are counted by its own thread between its own port and the ring, both ways:
//! `host_cycles_per_packet` is what sending costs the one and receiving the other, together. The devices' cycles are their thread's, and shown apart.
//! In the clear the ring is the same. All paths play on one stage, the same buffers and rings on the same processors, and take turns in short rounds:
//! which memory a path has got would weigh more than the differences that are looked for. `to_clear` and `to_software` are medians over the rounds' ratios, `…_from` and
//! `…_to` the bounds of the true ones with 95 % confidence. A super-packet counts as its segments; in the clear, and without a device that cuts, the host cuts it.
//!
//! The lock manager's messages are a request of 112 bytes and a reply of 512 KiB, in super-packets, one after the other: `host_us` is the time that both
//! hosts have work with one, which is its latency on a network and a device that cost none, and `messages_per_s` is how many of them there are in a second.

mod association;
mod goal;
mod host;
mod network;
mod plan;
mod scene;
mod site;
mod traffic;
mod wire;

use uxfrm_engine::Moment;

use crate::Options;
use crate::clock::TscClock;
use crate::report::{Machine, Report, Row, Sample, published};
use plan::{Path, Variant};
use scene::{Cycles, Scene, Stage};

/// Packets that a ring takes, as a gateway's does.
const RING: usize = 1024;
/// Super-packets that a pool has.
const SUPERS: usize = 64;
/// Packets of a turn.
const ROOM: usize = RING;
/// The lock manager's.
const REQUEST: usize = 112;
const REPLY: usize = 512 << 10;
/// The whole time that the bench runs.
const NOW: Moment = Moment::from_secs(1);

/// Turns of each round that are not counted: what the path before has left in the processors' caches is gone then.
const SETTLING: usize = 1;
/// Rounds that are not counted: flow caches know all flows then, and pools have their buffers.
const WARM: usize = 2;

/// Measures what the options leave.
///
/// # Errors
/// What making states and devices has, or a packet that did not come through, which no figure would excuse.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let (rounds, turns) = if options.quick { (2, 2) } else { (75, 3) };
    let clock = TscClock::calibrate();
    let mut trials = trials(options)?;
    options.ensure_all_values_select()?;
    let mut stage = Stage::new(plan::most_workers())?;
    for round in 0..WARM + rounds {
        for trial in to_and_fro(round, &mut trials) {
            trial.round(&mut stage, turns)?;
            if round < WARM {
                trial.forget();
            }
        }
    }
    let rows = trials.iter().map(|trial| trial.row(&trials, clock.hz())).collect();
    Ok(Report { bench: "offload", machine: Machine::here(clock.hz()), rows })
}

/// There in one round and back in the next, so that what grows or wears off with time favours nobody.
fn to_and_fro<T>(round: usize, all: &mut [T]) -> Vec<&mut T> {
    let mut order: Vec<_> = all.iter_mut().collect();
    if !round.is_multiple_of(2) {
        order.reverse();
    }
    order
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Test {
    Forward(Variant),
    Messages(Path),
}

/// One row in the making.
#[derive(Debug)]
struct Trial {
    test: Test,
    scene: Scene,
    host: Sample,
    sending: Sample,
    receiving: Sample,
    device: Sample,
}

fn trials(options: &Options) -> anyhow::Result<Vec<Trial>> {
    let forward = plan::variants(options).into_iter().map(Test::Forward);
    let paths = Path::ALL.into_iter().filter(|path| options.only.admits(&plan::messages(*path)));
    forward.chain(paths.map(Test::Messages)).map(Trial::new).collect()
}

impl Test {
    fn path(self) -> Path {
        match self {
            Self::Forward(variant) => variant.path,
            Self::Messages(path) => path,
        }
    }

    /// The same on another path.
    fn on(self, path: Path) -> Self {
        match self {
            Self::Forward(variant) => Self::Forward(Variant { path, ..variant }),
            Self::Messages(_) => Self::Messages(path),
        }
    }
}

impl Trial {
    fn new(test: Test) -> anyhow::Result<Self> {
        let workers = match test {
            Test::Forward(variant) => variant.workers,
            Test::Messages(_) => 1,
        };
        Ok(Self {
            test,
            scene: Scene::new(test.path(), workers)?,
            host: Sample::default(),
            sending: Sample::default(),
            receiving: Sample::default(),
            device: Sample::default(),
        })
    }

    fn round(&mut self, stage: &mut Stage, turns: usize) -> anyhow::Result<()> {
        let Cycles { sending, receiving, device } = match self.test {
            Test::Forward(variant) => self.scene.forward(stage, variant.size, turns)?,
            Test::Messages(_) => self.scene.messages(stage, turns)?,
        };
        self.host.push(sending + receiving);
        self.sending.push(sending);
        self.receiving.push(receiving);
        self.device.push(device);
        Ok(())
    }

    fn forget(&mut self) {
        for sample in [&mut self.host, &mut self.sending, &mut self.receiving, &mut self.device] {
            *sample = Sample::default();
        }
    }

    /// The row, and how it stands to those of the other paths.
    fn row(&self, all: &[Self], hz: f64) -> Row {
        let mut row = match self.test {
            Test::Forward(variant) => self.forwarding(variant, hz),
            Test::Messages(path) => self.messaging(path, hz),
        };
        for other in [Path::Clear, Path::Software] {
            let found = all.iter().find(|trial| trial.test == self.test.on(other));
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

    fn forwarding(&self, variant: Variant, hz: f64) -> Row {
        let mut row = Row { case: variant.case(), figures: serde_json::Map::new() };
        let median = self.host.median();
        row.figure("host_cycles_per_packet", median, 1);
        row.figure("sending", self.sending.median(), 1);
        row.figure("receiving", self.receiving.median(), 1);
        row.figure("min", self.host.min(), 1);
        row.figure("max", self.host.max(), 1);
        row.figures.insert("rounds".to_owned(), self.host.rounds().into());
        // Each of both hosts has half of it.
        let gbps = hz / (median / 2.0) * f64::from(variant.size.bytes()) * 8.0 / 1e9;
        row.figure("host_gbps_per_core", gbps, 2);
        row.figure("device_cycles_per_packet", self.device.median(), 1);
        row
    }

    fn messaging(&self, path: Path, hz: f64) -> Row {
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
        run(&Options { only, quick: true, ..Options::default() }).unwrap().rows
    }

    #[test]
    fn every_path_carries_packets_of_all_sizes() {
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
    fn workers_share_the_states() {
        assert_eq!(rows("test=forward,workers=2,bytes=64").len(), 4);
    }

    #[test]
    fn messages_come_back_and_stand_beside_what_was_published() {
        let rows = rows("test=lock-manager");
        assert_eq!(rows.len(), 4);
        let published =
            |row: &Row| row.figures.get("published_messages_per_s").and_then(|f| f.as_f64());
        let all: Vec<_> = rows.iter().map(published).collect();
        assert_eq!(all, [Some(1272.0), Some(597.0), Some(1246.0), None]);
        let report = Report { bench: "offload", machine: Machine::here(2e9), rows };
        assert_eq!(report.html().matches("<figure>").count(), 2);
    }

    #[test]
    fn a_goal_is_met_or_missed() {
        let verdict = |path: Path, ratio: f64| {
            let variant = Variant { path, size: plan::Size::Bytes(1400), workers: 1 };
            let mut row = Row { case: variant.case(), figures: serde_json::Map::new() };
            row.figure("to_clear", ratio, 2);
            row.figure("to_software", ratio, 2);
            goal::verdict(&row)
        };
        assert_eq!(verdict(Path::Packet, 1.05).as_deref(), Some("met: to_clear ≤ 1.05"));
        assert_eq!(verdict(Path::Packet, 1.06).as_deref(), Some("MISSED: to_clear ≤ 1.05"));
        assert_eq!(verdict(Path::Crypto, 0.5).as_deref(), Some("met: to_software ≤ 0.5"));
        assert_eq!(verdict(Path::Clear, 1.0), None);
    }
}
