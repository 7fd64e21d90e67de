//! A report's data: the machine, and a row of figures for each case.

use serde::Serialize;
use serde_json::{Map, Value};

use super::sample::Samples;

/// One bench's result. Its serialization is the JSON object of `--json`.
#[derive(Debug, Serialize)]
pub struct BenchReport {
    /// The bench's name.
    pub bench: &'static str,
    /// The machine that it ran on.
    pub machine: Machine,
    /// One row for each case.
    pub rows: Vec<Row>,
}

/// The machine that a report is from.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// Model name.
    pub cpu: String,
    /// Processors this process may use.
    pub cores: usize,
    /// Rate of the time-stamp counter, which `cycles` count.
    pub tsc_hz: f64,
    /// Kernel release.
    pub kernel: String,
}

/// One case and its figures.
#[derive(Debug, Serialize)]
pub struct Row {
    /// The parameters that were measured.
    pub case: Case,
    /// Figures by name.
    #[serde(flatten)]
    pub figures: Map<String, Value>,
}

/// The keys and values that identify a row.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Case(Map<String, Value>);

impl Case {
    /// A case without keys.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a key.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0.insert(key.to_owned(), value.into());
        self
    }

    /// Its keys.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub(super) fn raw(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    /// A key's value as `--only` writes it.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<String> {
        self.0.get(key).map(shown)
    }
}

impl Row {
    /// Figures of packets of `bytes` bytes: median, least and most cycles per packet, and the rates
    /// that follow from the median.
    #[must_use]
    pub fn of_packets(case: Case, sample: &Samples, bytes: u32, tsc_hz: f64) -> Self {
        let sorted = sample.sorted();
        let median = sample.median();
        let packets_per_second = tsc_hz / median;
        let mut row = Self { case, figures: Map::new() };
        row.figure("cycles_per_packet", median, 1);
        row.figure("mpps", packets_per_second / 1e6, 3);
        row.figure("gbps", packets_per_second * f64::from(bytes) * 8.0 / 1e9, 2);
        row.figure("min", sorted.first().copied().unwrap_or(f64::NAN), 1);
        row.figure("max", sorted.last().copied().unwrap_or(f64::NAN), 1);
        row.figures.insert("rounds".to_owned(), sorted.len().into());
        row
    }

    /// Figures of `count` requests in sequence: median, least and most microseconds of one, and the
    /// median's seconds for all.
    #[must_use]
    pub fn of_requests(case: Case, sample: &Samples, count: u32, tsc_hz: f64) -> Self {
        let micros = 1e6 / tsc_hz;
        let sorted = sample.sorted();
        let mut row = Self { case, figures: Map::new() };
        row.figure("us_per_request", sample.median() * micros, 3);
        row.figure("seconds", sample.median() / tsc_hz * f64::from(count), 4);
        row.figure("min", sorted.first().copied().unwrap_or(f64::NAN) * micros, 3);
        row.figure("max", sorted.last().copied().unwrap_or(f64::NAN) * micros, 3);
        row.figures.insert("rounds".to_owned(), sorted.len().into());
        row
    }

    /// Median, least and most cycles of an operation.
    #[must_use]
    pub fn of_operations(case: Case, sample: &Samples) -> Self {
        let mut row = Self { case, figures: Map::new() };
        row.figure("cycles_per_operation", sample.median(), 1);
        row.figure("min", sample.min(), 1);
        row.figure("max", sample.max(), 1);
        row
    }

    /// Cycles of each stage that was measured.
    pub fn stages(&self) -> impl Iterator<Item = (&str, f64)> {
        let stages = self.figures.iter().filter(|(name, _)| name.starts_with("stage_"));
        stages.filter_map(|(name, cycles)| Some((name.as_str(), cycles.as_f64()?)))
    }

    /// Adds a figure, rounded to `places` decimals.
    pub fn figure(&mut self, name: &str, value: f64, places: i32) {
        let scale = 10f64.powi(places);
        self.figures.insert(name.to_owned(), ((value * scale).round() / scale).into());
    }
}

impl Machine {
    /// This machine.
    #[must_use]
    pub fn here(tsc_hz: f64) -> Self {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model =
            cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            cpu: model
                .map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            tsc_hz: tsc_hz.round(),
            kernel: kernel.trim().to_owned(),
        }
    }
}

pub(super) fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
