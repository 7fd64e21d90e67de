//! Batch files: read by unmodified `ip -batch` under `uxfrm exec`, by the same with the machine's
//! own kernel, and by `uxfrm xfrm -batch`.
//!
//! ```text
//!   namespace:  ip -batch FILE                      the kernel's databases
//!   namespace:  uxfrm exec -- ip -batch FILE        a gateway's
//!               uxfrm xfrm -batch FILE
//! ```
//!
//! All take turns in each round, with empty databases. The policies are those of the kernel's
//! selftest `xfrm_policy_add_speed.sh`. The number of policies or states afterwards shows that the
//! file was read to its end.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use uxfrm_io::{Namespace, rtnetlink::Rtnetlink};

use crate::BenchOptions;
use crate::pair::{GatewayProcess, Interrupt, find_tun, gain_privileges, private_directory};
use crate::report::{Case, Row, Samples};

const COUNT: u32 = 100_000;
/// Lines of a file with `--quick`.
const QUICK_COUNT: u32 = 2000;
/// Default rounds.
const ROUNDS: u32 = 11;

/// Goal: policies take no longer than with the kernel.
const GOAL_OF_KERNEL: f64 = 1.0;
/// Goal: seconds for 100,000 states.
const GOAL_SECONDS: f64 = 2.0;

const CONFIGURATION: &str = "[host]\ntun = \"uxfrm0\"\n\n[wire]\nencapsulation = \"esp\"\n\n[xfrm]\nsequences = \"sequences\"\n";

/// The program that reads the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BatchReader {
    /// `ip -batch` with the kernel.
    Kernel,
    /// `ip -batch` under `uxfrm exec`.
    Exec,
    /// `uxfrm xfrm -batch`.
    Own,
}

/// The objects that the lines add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BatchObject {
    Policies,
    States,
}

/// The turns of a round, in order.
const SCHEDULE: [(BatchReader, BatchObject); 4] = [
    (BatchReader::Kernel, BatchObject::Policies),
    (BatchReader::Exec, BatchObject::Policies),
    (BatchReader::Own, BatchObject::Policies),
    (BatchReader::Own, BatchObject::States),
];

impl BatchReader {
    const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "ip -batch",
            Self::Exec => "uxfrm exec -- ip -batch",
            Self::Own => "uxfrm xfrm -batch",
        }
    }

    /// The command that runs `ip` with these words.
    fn command(self, uxfrm: &Path, words: &[&str]) -> Command {
        let mut command = Command::new(if self == Self::Kernel { Path::new("ip") } else { uxfrm });
        match self {
            Self::Kernel => {}
            Self::Exec => drop(command.args(["exec", "--", "ip"])),
            Self::Own => drop(command.arg("xfrm")),
        }
        // `uxfrm xfrm` already stands for `ip xfrm`.
        let words = words.iter().skip_while(|word| self == Self::Own && **word == "xfrm");
        command.args(words).stdin(Stdio::null());
        command
    }
}

impl BatchObject {
    const fn object(self) -> &'static str {
        match self {
            Self::Policies => "policy",
            Self::States => "state",
        }
    }

    fn text(self, count: u32) -> String {
        match self {
            Self::Policies => policies(count),
            Self::States => states(count),
        }
    }
}

/// The files and readers that the options leave.
pub(super) fn wanted(options: &BenchOptions) -> Vec<(BatchReader, BatchObject)> {
    let count = count(options);
    SCHEDULE.into_iter().filter(|turn| options.only.admits(&case(*turn, count))).collect()
}

const fn count(options: &BenchOptions) -> u32 {
    if options.quick { QUICK_COUNT } else { COUNT }
}

fn case((reader, lines): (BatchReader, BatchObject), count: u32) -> Case {
    let case = Case::new().with("count", count).with("request", lines.object());
    case.with("by", reader.name())
}

/// Has each file read by each reader, in turns.
///
/// # Errors
/// Without root and user namespaces, `/dev/net/tun` or `ip`, and any failure of a reader.
pub(super) fn run(
    wanted: &[(BatchReader, BatchObject)],
    options: &BenchOptions,
) -> anyhow::Result<Vec<Row>> {
    let count = count(options);
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    if let Err(reason) = gain_privileges().and_then(|()| find_tun()) {
        // If the filter names them, it is an error.
        return if options.only.names("by") { Err(reason) } else { Ok(vec![absent(&reason)]) };
    }
    let test_bed = BatchTestBed::build(count)?;
    let interrupt = Interrupt::listen()?;
    let gateway =
        GatewayProcess::start("uxfrm", &test_bed.ours, &test_bed.configuration(), &interrupt)?;
    let mut samples = SCHEDULE.map(|turn| (turn, Samples::default()));
    let mut ratios = Samples::default();
    for _ in 0..options.rounds.unwrap_or(if options.quick { 1 } else { ROUNDS }) {
        let mut kernel = None;
        for (turn, sample) in samples.iter_mut().filter(|(turn, _)| wanted.contains(turn)) {
            interrupt.check()?;
            let seconds = test_bed.take(*turn)?;
            sample.push(seconds);
            match turn.0 {
                BatchReader::Kernel => kernel = Some(seconds),
                BatchReader::Exec => kernel.iter().for_each(|kernel| ratios.push(seconds / kernel)),
                BatchReader::Own => {}
            }
        }
    }
    gateway.stop()?;
    let measured = samples.into_iter().filter(|(turn, _)| wanted.contains(turn));
    Ok(measured
        .map(|(turn, sample)| row(case(turn, count), turn, &sample, &ratios, count))
        .collect())
}

/// The row that says why nothing can be measured here.
fn absent(reason: &anyhow::Error) -> Row {
    let case = Case::new().with("by", BatchReader::Exec.name());
    let mut row = Row { case, figures: serde_json::Map::new() };
    row.figures.insert("note".to_owned(), format!("not measured: {reason:#}").into());
    row
}

fn row(
    case: Case,
    turn: (BatchReader, BatchObject),
    sample: &Samples,
    ratios: &Samples,
    count: u32,
) -> Row {
    let mut row = Row { case, figures: serde_json::Map::new() };
    row.figure("us_per_request", sample.median() * 1e6 / f64::from(count), 3);
    row.figure("seconds", sample.median(), 4);
    row.figure("min", sample.min() * 1e6 / f64::from(count), 3);
    row.figure("max", sample.max() * 1e6 / f64::from(count), 3);
    row.figures.insert("rounds".to_owned(), sample.rounds().into());
    let (figure, value, most) = match turn {
        (BatchReader::Exec, BatchObject::Policies) if ratios.rounds() > 0 => {
            row.figure("of_kernel", ratios.median(), 3);
            row.figure("of_kernel_min", ratios.min(), 3);
            row.figure("of_kernel_max", ratios.max(), 3);
            ("of_kernel", ratios.median(), GOAL_OF_KERNEL)
        }
        (BatchReader::Own, BatchObject::States) => ("seconds", sample.median(), GOAL_SECONDS),
        (BatchReader::Kernel | BatchReader::Exec | BatchReader::Own, _) => return row,
    };
    let verdict = if value <= most { "met" } else { "MISSED" };
    row.figures.insert("goal".to_owned(), format!("{verdict}: {figure} ≤ {most}").into());
    row
}

/// Two namespaces, for the kernel and for uxfrm, and the files.
struct BatchTestBed {
    kernels: Namespace,
    ours: Namespace,
    directory: tempfile::TempDir,
    uxfrm: PathBuf,
    count: u32,
}

impl BatchTestBed {
    fn build(count: u32) -> anyhow::Result<Self> {
        let (kernels, ours) = (Namespace::new()?, Namespace::new()?);
        for namespace in [&kernels, &ours] {
            namespace.enter(|| -> anyhow::Result<()> {
                let mut kernel = Rtnetlink::open()?;
                let loopback = kernel.link("lo")?;
                Ok(kernel.set_up(loopback.index)?)
            })??;
        }
        let directory = private_directory("bench")?;
        let uxfrm = std::env::current_exe()?;
        let test_bed = Self { kernels, ours, directory, uxfrm, count };
        fs::write(test_bed.configuration(), CONFIGURATION)?;
        for lines in [BatchObject::Policies, BatchObject::States] {
            fs::write(test_bed.file(lines), lines.text(count))?;
        }
        Ok(test_bed)
    }

    fn configuration(&self) -> PathBuf {
        self.directory.path().join("uxfrm.toml")
    }

    fn file(&self, lines: BatchObject) -> PathBuf {
        self.directory.path().join(lines.object())
    }

    /// Has a file read, then deletes what it added; returns the seconds that reading took.
    fn take(&self, (reader, lines): (BatchReader, BatchObject)) -> anyhow::Result<f64> {
        let file = self.file(lines);
        let from = Instant::now();
        self.run(reader, &["-batch", &file.to_string_lossy()])?;
        let seconds = from.elapsed().as_secs_f64();
        let counted = self.run(reader, &["xfrm", lines.object(), "count"])?;
        ensure!(
            numbers(&String::from_utf8_lossy(&counted.stdout)).contains(&self.count),
            "not all of {} {} are there: {counted:?}",
            self.count,
            lines.object(),
        );
        self.run(reader, &["xfrm", lines.object(), "flush"])?;
        Ok(seconds)
    }

    fn run(&self, reader: BatchReader, words: &[&str]) -> anyhow::Result<Output> {
        let namespace = if reader == BatchReader::Kernel { &self.kernels } else { &self.ours };
        let mut command = reader.command(&self.uxfrm, words);
        let output = namespace.enter(|| command.output())?;
        let output = output.with_context(|| format!("cannot run {}", reader.name()))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            bail!("{} {words:?} failed: {}", reader.name(), said.trim());
        }
        Ok(output)
    }
}

/// The numbers in a text like `SPD IN 0 OUT 100000 FWD 0` or `SAD count 100000`.
fn numbers(text: &str) -> Vec<u32> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
}

/// Lines that add policies; half of them share one destination in thirty-two.
fn policies(count: u32) -> String {
    let mut lines = String::new();
    for nth in 0..count {
        let (j, near, a) = (nth / 64 % 255 + 1, nth / 32 % 2 == 0, nth % 32 * 8 + 1);
        let i = nth / 64 / 255 + 1;
        let (source, destination) = if near { (0, a) } else { (a, 0) };
        let _ = writeln!(
            lines, // writing to a string cannot fail
            "xfrm policy add src 10.{i}.{j}.{source}/30 dst 10.{}.{j}.{destination}/30 dir out action block",
            i + 100,
        );
    }
    lines
}

/// Lines that add states: peers with 256 each, as in a large gateway.
fn states(count: u32) -> String {
    let mut lines = String::new();
    for nth in 0..count {
        let _ = writeln!(
            lines, // writing to a string cannot fail
            "xfrm state add src 192.0.2.1 dst 10.{}.{}.1 proto esp spi {:#x} reqid 1 mode tunnel \
             aead rfc4106(gcm(aes)) 0x{:040x} 128",
            nth / 256 / 256,
            nth / 256 % 256,
            0x1000 + nth,
            nth + 1,
        );
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn lines_are_distinct() {
        for lines in [BatchObject::Policies, BatchObject::States] {
            let text = lines.text(COUNT);
            let all: BTreeSet<&str> = text.lines().collect();
            assert_eq!(all.len(), COUNT as usize);
        }
    }

    #[test]
    fn numbers_are_parsed_from_count_output() {
        assert!(numbers("\t SPD IN  0 OUT 100000 FWD 0\n").contains(&100_000));
        assert!(!numbers("SAD count 10000\n").contains(&100_000));
    }

    #[test]
    fn row_says_whether_its_goal_is_met() {
        let mut ratios = Samples::default();
        ratios.push(1.1);
        let turn = (BatchReader::Exec, BatchObject::Policies);
        let row = row(Case::new(), turn, &ratios, &ratios, 100);
        assert_eq!(row.figures["goal"], "MISSED: of_kernel ≤ 1");
    }
}
