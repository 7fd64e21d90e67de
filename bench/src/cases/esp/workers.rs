//! `uxfrm bench workers`: what a packet costs each of several workers at once, if they share one SA
//! and if each has its own; and what each shared cache line costs.
//!
//! `test=path` is the data path in memory of [`bench esp`](super), batches of 256. Workers begin
//! each batch together, each on its own processor; `scaling` is the throughput of all of them
//! divided by that of one worker in the same rounds. Workers on one SA draw sequence numbers from
//! one counter, mark them in one replay window and charge one SA and one policy. With `states=own`
//! they share none of these, so the difference of the two rows is the price of sharing.
//!
//! `test=line` repeats one such operation without packets: `sequence` (reserve a block of numbers,
//! once a batch), `counts` (charge an SA, once a batch out, once every 64 packets in), `policy`
//! (charge a policy, once a batch) and `window` (accept up to 32 consecutive numbers). With
//! `states=own` each must cost what it costs one worker, or two lines share a cache line.

mod group;
mod line;

use anyhow::Context;
use uxfrm_crypto::Transform;
use uxfrm_io::affinity;

use super::plan::{EspCase, EspMode, EspSetup};
use crate::BenchOptions;
use crate::clock::TscClock;
use crate::direction::TestDirection;
use crate::report::{BenchReport, Case, Machine, Row};
use group::WorkerGroup;
use line::SharedLine;

/// The replay window has room for what so many workers have in flight.
const MOST: usize = 8;
const WINDOW: u32 = 4096;
const BATCH: usize = crate::ring::ROOM;
const MODE: EspMode = EspMode::Tunnel4;
const SIZES: [u32; 2] = [64, 1400];

/// Whether workers share an SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SaSharing {
    /// All use one.
    Shared,
    /// Each has its own.
    Separate,
}

/// Numbers of workers, and whether they share an SA.
type WorkerCounts = Vec<(usize, SaSharing)>;

/// Measures what the options leave, with 1, 2, 4 … workers as long as there is a processor for
/// each.
///
/// # Errors
/// SAs that can't be made, or a packet that did not come through.
pub fn run(options: &BenchOptions) -> anyhow::Result<BenchReport> {
    let clock = TscClock::calibrate();
    let cpus = affinity::allowed().context("which processors there are")?;
    let paths = wanted_paths(options, &cpus)?;
    let lines = wanted_lines(options, &cpus);
    options.ensure_all_values_select()?;
    let mut rows = Vec::new();
    for (path, worker_counts) in paths {
        rows.extend(measure_path(&path, &worker_counts, options, &cpus, clock.hz())?);
    }
    for (line, workers, states, case) in lines {
        let cycles = line::measure(line, states, &cpus[..workers], options)?;
        rows.push(Row::of_operations(case, &cycles));
    }
    Ok(BenchReport { bench: "workers", machine: Machine::here(clock.hz()), rows })
}

/// The numbers of workers that are measured, with shared and with separate SAs.
fn worker_counts(cpus: &[usize]) -> WorkerCounts {
    let counts = (1..).map(|doublings| 1 << doublings);
    let several = counts.take_while(|count| *count <= cpus.len().min(MOST));
    let worker_counts =
        several.flat_map(|count| [(count, SaSharing::Shared), (count, SaSharing::Separate)]);
    [(1, SaSharing::Separate)].into_iter().chain(worker_counts).collect()
}

fn case(test: &str, workers: usize, states: SaSharing) -> Case {
    let states = match states {
        SaSharing::Shared => "one",
        SaSharing::Separate => "own",
    };
    Case::new().with("test", test).with("workers", workers).with("states", states)
}

/// The paths that the options leave, each with its numbers of workers.
fn wanted_paths(
    options: &BenchOptions,
    cpus: &[usize],
) -> anyhow::Result<Vec<(WorkerPath, WorkerCounts)>> {
    let paths = WorkerPath::all()?.into_iter().map(|path| {
        let mut worker_counts = worker_counts(cpus);
        worker_counts
            .retain(|(workers, states)| options.only.admits(&path.case(*workers, *states)));
        (path, worker_counts)
    });
    Ok(paths.collect())
}

fn measure_path(
    path: &WorkerPath,
    worker_counts: &[(usize, SaSharing)],
    options: &BenchOptions,
    cpus: &[usize],
    hz: f64,
) -> anyhow::Result<Vec<Row>> {
    let groups = worker_counts
        .iter()
        .map(|(workers, states)| WorkerGroup::new(path, *states, &cpus[..*workers]));
    let mut groups = groups.collect::<anyhow::Result<Vec<_>>>()?;
    group::measure(&mut groups, options)?;
    let alone = groups.iter().find(|group| group.workers() == 1).map(WorkerGroup::figure);
    Ok(groups.into_iter().map(|group| group.row(path, alone, hz)).collect())
}

/// The data path that all workers run.
struct WorkerPath {
    name: &'static str,
    transform: Transform,
    direction: TestDirection,
    bytes: u32,
}

impl WorkerPath {
    fn all() -> anyhow::Result<Vec<Self>> {
        let shown = |(name, _): &(&str, Transform)| matches!(*name, "gcm128" | "null");
        let transforms = Transform::COMMON.iter().copied().filter(shown);
        let directions = transforms.flat_map(|(name, transform)| {
            TestDirection::BOTH.map(|direction| (name, transform, direction))
        });
        let paths = directions.flat_map(|(name, transform, direction)| {
            SIZES.map(|bytes| Self { name, transform, direction, bytes })
        });
        Ok(paths.collect())
    }

    fn case(&self, workers: usize, states: SaSharing) -> Case {
        let case = case("path", workers, states).with("direction", self.direction.name());
        case.with("transform", self.name).with("bytes", self.bytes)
    }

    fn esp_case(&self) -> EspCase {
        let Self { transform, direction, bytes, .. } = *self;
        EspCase { case: Case::new(), direction, bytes, batch: BATCH, mode: MODE, transform }
    }

    fn setup(&self, sas: usize) -> EspSetup {
        EspSetup { name: self.name, transform: self.transform, mode: MODE, sas, window: WINDOW }
    }
}

/// The operations that the options leave, each with its workers and its case.
fn wanted_lines(
    options: &BenchOptions,
    cpus: &[usize],
) -> Vec<(SharedLine, usize, SaSharing, Case)> {
    let all = SharedLine::ALL.into_iter().flat_map(|line| {
        worker_counts(cpus).into_iter().map(move |(workers, states)| {
            (line, workers, states, case("line", workers, states).with("line", line.name()))
        })
    });
    all.filter(|(.., case)| options.only.admits(case)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_counts_double_up_to_the_processors() {
        let counts = |cpus: usize| {
            let cpus: Vec<usize> = (0..cpus).collect();
            worker_counts(&cpus).iter().map(|(workers, _)| *workers).collect::<Vec<_>>()
        };
        assert_eq!(counts(1), [1]);
        assert_eq!(counts(3), [1, 2, 2]);
        assert_eq!(counts(64), [1, 2, 2, 4, 4, 8, 8]);
    }

    #[test]
    fn every_path_and_line_has_a_row_for_each_worker_count() {
        let only = "bytes=64,transform=null".parse().unwrap();
        let report = run(&BenchOptions { only, quick: true, ..BenchOptions::default() }).unwrap();
        let worker_counts = worker_counts(&affinity::allowed().unwrap()).len();
        // Lines have no bytes and no transform, which the filter names.
        assert_eq!(report.rows.len(), 2 * worker_counts);
        let lines = run(&BenchOptions {
            only: "test=line".parse().unwrap(),
            quick: true,
            ..BenchOptions::default()
        });
        assert_eq!(lines.unwrap().rows.len(), SharedLine::ALL.len() * worker_counts);
        for row in &report.rows {
            assert!(row.figures["cycles_per_packet"].as_f64().unwrap() > 0.0);
            assert!(row.figures["scaling"].as_f64().unwrap() > 0.0);
        }
    }
}
