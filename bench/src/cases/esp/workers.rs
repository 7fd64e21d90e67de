//! `uxfrm bench workers`: what a packet costs each of several workers at once, where they share one state and where each has one of its own; and
//! what each of the cache lines costs that they share.
//!
//! `test=path` is the data path in memory of [`bench esp`](super), batches of 256. Workers begin each batch together, each on a processor of its own;
//! `scaling` is how many packets all of them carry together for each that one worker alone carries in the same rounds. On one state all draw numbers
//! from one counter, mark them in one window and are charged to one state and one policy: `states=own` has none of that in common, so what both rows
//! differ in is the price of sharing.
//!
//! `test=line` is one such operation after the other, which no packet comes near: `sequence` (a block of numbers, once for a batch), `counts` (charging a
//! state, once for a batch out, once for 64 packets in), `policy` (charging a policy, once for a batch) and `window` (up to 32 neighbouring numbers, as one).
//! With `states=own` it must cost what it costs one worker, or two lines that should lie apart do not.

mod line;
mod team;

use anyhow::Context;
use uxfrm_crypto::Transform;
use uxfrm_io::affinity;

use super::plan::{Scene, Shape, Variant, Way};
use crate::Options;
use crate::clock::TscClock;
use crate::report::{Case, Machine, Report, Row};
use line::Line;
use team::Team;

/// More are not asked for: the window has room for what so many have under way.
const MOST: usize = 8;
const WINDOW: u32 = 4096;
const BATCH: usize = crate::ring::ROOM;
const SHAPE: Shape = Shape::Tunnel4;
const SIZES: [u32; 2] = [64, 1400];

/// Whose states workers use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum States {
    /// All the same.
    One,
    /// Each has one.
    Own,
}

/// Measures what the options leave, with one worker and with twice as many, as long as there is a processor for each.
///
/// # Errors
/// What making states has, or a packet that did not come through, which no figure would excuse.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let clock = TscClock::calibrate();
    let cpus = affinity::allowed().context("which processors there are")?;
    let paths = wanted_paths(options, &cpus)?;
    let lines = wanted_lines(options, &cpus);
    options.ensure_all_values_select()?;
    let mut rows = Vec::new();
    for (path, parties) in paths {
        rows.extend(measure_path(&path, &parties, options, &cpus, clock.hz())?);
    }
    for (line, workers, states, case) in lines {
        let cycles = line::measure(line, states, &cpus[..workers], options)?;
        rows.push(Row::of_operations(case, &cycles));
    }
    Ok(Report { bench: "workers", machine: Machine::here(clock.hz()), rows })
}

/// How many workers there are in turn, and whose states they use. One alone has its own.
fn parties(cpus: &[usize]) -> Vec<(usize, States)> {
    let counts = (1..).map(|doublings| 1 << doublings);
    let several = counts.take_while(|count| *count <= cpus.len().min(MOST));
    let parties = several.flat_map(|count| [(count, States::One), (count, States::Own)]);
    [(1, States::Own)].into_iter().chain(parties).collect()
}

fn case(test: &str, workers: usize, states: States) -> Case {
    let states = match states {
        States::One => "one",
        States::Own => "own",
    };
    Case::new().with("test", test).with("workers", workers).with("states", states)
}

/// The paths that the options leave, and with how many workers and whose states each.
fn wanted_paths(
    options: &Options,
    cpus: &[usize],
) -> anyhow::Result<Vec<(Path, Vec<(usize, States)>)>> {
    let paths = Path::all()?.into_iter().map(|path| {
        let mut parties = parties(cpus);
        parties.retain(|(workers, states)| options.only.admits(&path.case(*workers, *states)));
        (path, parties)
    });
    Ok(paths.collect())
}

fn measure_path(
    path: &Path,
    parties: &[(usize, States)],
    options: &Options,
    cpus: &[usize],
    hz: f64,
) -> anyhow::Result<Vec<Row>> {
    let teams = parties.iter().map(|(workers, states)| Team::new(path, *states, &cpus[..*workers]));
    let mut teams = teams.collect::<anyhow::Result<Vec<_>>>()?;
    team::measure(&mut teams, options)?;
    let alone = teams.iter().find(|team| team.workers() == 1).map(Team::figure);
    Ok(teams.into_iter().map(|team| team.row(path, alone, hz)).collect())
}

/// What all workers do.
struct Path {
    name: &'static str,
    transform: Transform,
    way: Way,
    bytes: u32,
}

impl Path {
    fn all() -> anyhow::Result<Vec<Self>> {
        let shown = |(name, _): &(&str, Transform)| matches!(*name, "gcm128" | "null");
        let transforms: Vec<_> =
            crate::cases::crypto::transforms()?.into_iter().filter(shown).collect();
        let ways = transforms
            .into_iter()
            .flat_map(|(name, transform)| [Way::Out, Way::In].map(|way| (name, transform, way)));
        let paths = ways.flat_map(|(name, transform, way)| {
            SIZES.map(|bytes| Self { name, transform, way, bytes })
        });
        Ok(paths.collect())
    }

    fn case(&self, workers: usize, states: States) -> Case {
        let direction = match self.way {
            Way::Out => "out",
            Way::In => "in",
        };
        let case = case("path", workers, states).with("direction", direction);
        case.with("transform", self.name).with("bytes", self.bytes)
    }

    fn variant(&self) -> Variant {
        let Self { transform, way, bytes, .. } = *self;
        Variant { case: Case::new(), way, bytes, batch: BATCH, shape: SHAPE, transform }
    }

    fn scene(&self, sas: usize) -> Scene {
        Scene { name: self.name, transform: self.transform, shape: SHAPE, sas, window: WINDOW }
    }
}

/// The operations that the options leave, each with its workers and its case.
fn wanted_lines(options: &Options, cpus: &[usize]) -> Vec<(Line, usize, States, Case)> {
    let all = Line::ALL.into_iter().flat_map(|line| {
        parties(cpus).into_iter().map(move |(workers, states)| {
            (line, workers, states, case("line", workers, states).with("line", line.name()))
        })
    });
    all.filter(|(.., case)| options.only.admits(case)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_more_workers_than_processors_and_one_alone_is_among_them() {
        let counts = |cpus: usize| {
            let cpus: Vec<usize> = (0..cpus).collect();
            parties(&cpus).iter().map(|(workers, _)| *workers).collect::<Vec<_>>()
        };
        assert_eq!(counts(1), [1]);
        assert_eq!(counts(3), [1, 2, 2]);
        assert_eq!(counts(64), [1, 2, 2, 4, 4, 8, 8]);
    }

    #[test]
    fn all_ways_and_lines_have_rows_of_one_worker_and_of_two() {
        let only = "bytes=64,transform=null".parse().unwrap();
        let report = run(&Options { only, quick: true, ..Options::default() }).unwrap();
        let parties = parties(&affinity::allowed().unwrap()).len();
        // Lines have neither bytes nor a transform, which the filter asks for.
        assert_eq!(report.rows.len(), 2 * parties);
        let lines =
            run(&Options { only: "test=line".parse().unwrap(), quick: true, ..Options::default() });
        assert_eq!(lines.unwrap().rows.len(), Line::ALL.len() * parties);
        for row in &report.rows {
            assert!(row.figures["cycles_per_packet"].as_f64().unwrap() > 0.0);
            assert!(row.figures["scaling"].as_f64().unwrap() > 0.0);
        }
    }
}
