//! What a bench found: rows of a case and its figures, as a table, JSON or a page.

use std::fmt::Write as _;
use std::io::Write;

use serde::Serialize;
use serde_json::{Map, Value};

/// One bench's result (DESIGN.md, "Measuring").
#[derive(Debug, Serialize)]
pub struct Report {
    /// The bench's name.
    pub bench: &'static str,
    /// Where it ran.
    pub machine: Machine,
    /// What it found.
    pub rows: Vec<Row>,
}

/// The machine a report is from.
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
    /// What was measured.
    pub case: Case,
    /// Figures by name.
    #[serde(flatten)]
    pub figures: Map<String, Value>,
}

/// The keys that tell a row from the others.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Case(Map<String, Value>);

/// One figure of each round: cycles per packet, most often.
#[derive(Debug, Clone, Default)]
pub struct Sample(Vec<f64>);

impl Case {
    /// No keys yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One key more.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0.insert(key.to_owned(), value.into());
        self
    }

    /// Its keys.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// A key's value as the command line writes it.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<String> {
        self.0.get(key).map(shown)
    }
}

impl Sample {
    /// One round more.
    pub fn push(&mut self, cycles_per_packet: f64) {
        self.0.push(cycles_per_packet);
    }

    /// The middle one; not a number without any.
    #[must_use]
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The one that a share of all, from 0 to 1, is below; not a number without any.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a place among few"
    )]
    pub fn quantile(&self, share: f64) -> f64 {
        let sorted = self.sorted();
        let at = (sorted.len() as f64 * share.clamp(0.0, 1.0)) as usize;
        sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
    }

    /// The mean of all but the dearest one of a hundred, which other things on the machine make; not a number without any.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a mean")]
    pub fn mean(&self) -> f64 {
        let sorted = self.sorted();
        let most = &sorted[..sorted.len() - sorted.len() / 100];
        most.iter().sum::<f64>() / most.len() as f64
    }

    /// Between which ones the true median lies with 95 % confidence, whatever the distribution: those about √n places from the
    /// middle (the binomial distribution of how many are below it, as a normal one).
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a few rounds")]
    pub fn confidence(&self) -> [f64; 2] {
        let count = self.rounds() as f64;
        let away = (0.98 * count.sqrt() + 0.5) / count;
        [self.quantile(0.5 - away), self.quantile(0.5 + away)]
    }

    /// The largest one; not a number without any.
    #[must_use]
    pub fn max(&self) -> f64 {
        self.sorted().last().copied().unwrap_or(f64::NAN)
    }

    /// The smallest one; not a number without any.
    #[must_use]
    pub fn min(&self) -> f64 {
        self.sorted().first().copied().unwrap_or(f64::NAN)
    }

    /// Each round's figure by that of the same round of another.
    #[must_use]
    pub fn over(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(one, other)| one / other).collect())
    }

    /// How many there are.
    #[must_use]
    pub fn rounds(&self) -> usize {
        self.0.len()
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }
}

impl Row {
    /// The usual figures of packets of `bytes` each: median and best cycles per packet, and what the median comes to.
    #[must_use]
    pub fn of_packets(case: Case, sample: &Sample, bytes: u32, tsc_hz: f64) -> Self {
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

    /// The figures of `count` requests in a row: median, best and worst microseconds of one, and what all take by the median.
    #[must_use]
    pub fn of_requests(case: Case, sample: &Sample, count: u32, tsc_hz: f64) -> Self {
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

    /// Median, best and worst cycles of an operation.
    #[must_use]
    pub fn of_operations(case: Case, sample: &Sample) -> Self {
        let mut row = Self { case, figures: Map::new() };
        row.figure("cycles_per_operation", sample.median(), 1);
        row.figure("min", sample.min(), 1);
        row.figure("max", sample.max(), 1);
        row
    }

    /// Cycles of each stage that was measured by itself.
    pub fn stages(&self) -> impl Iterator<Item = (&str, f64)> {
        let stages = self.figures.iter().filter(|(name, _)| name.starts_with("stage_"));
        stages.filter_map(|(name, cycles)| Some((name.as_str(), cycles.as_f64()?)))
    }

    /// One figure more, rounded to `places`.
    pub fn figure(&mut self, name: &str, value: f64, places: i32) {
        let scale = 10f64.powi(places);
        self.figures.insert(name.to_owned(), ((value * scale).round() / scale).into());
    }
}

impl Machine {
    /// This one.
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

impl Report {
    /// The JSON object.
    ///
    /// # Errors
    /// None that is known: every key is a string.
    pub fn json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self)?)
    }

    /// A text table, one line a row.
    ///
    /// # Errors
    /// What `out` has.
    pub fn table(&self, out: &mut impl Write) -> std::io::Result<()> {
        writeln!(out, "{}", self.heading())?;
        let (names, lines) = self.cells();
        let width = |column: usize| {
            let cells = lines.iter().map(|line| line[column].len());
            cells.chain([names[column].len()]).max().unwrap_or(0)
        };
        for line in std::iter::once(&names).chain(&lines) {
            let padded: Vec<String> = line
                .iter()
                .enumerate()
                .map(|(column, cell)| format!("{cell:>width$}", width = width(column)))
                .collect();
            writeln!(out, "{}", padded.join("  ").trim_end())?;
        }
        if self.bench == "lookup" {
            write!(out, "{}", crate::lookup::published::text(self))?;
        }
        Ok(())
    }

    /// A page with the table, to be opened from a file.
    #[must_use]
    pub fn html(&self) -> String {
        let mut page = format!(
            "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>uxfrm bench {0}</title>\n<style>{STYLE}</style>\n\
             <h1>uxfrm bench {0}</h1>\n<p>{1}</p>\n",
            self.bench,
            escaped(&self.heading()),
        );
        if self.bench == "lookup" {
            page.push_str(LOOKUP);
            page.extend(crate::lookup::curves::figures(self));
            page.push_str(&crate::lookup::published::html(self));
            let _ = write!(page, "<details><summary>All {} rows</summary>", self.rows.len());
            page.push_str(&self.html_table());
            page.push_str("</details>\n");
        } else {
            match self.bench {
                "fou" => page.extend(crate::fou::bars::figures(self)),
                "tunnel" => page.push_str(&crate::tunnel::bars::html(self)),
                "offload" => page.push_str(&crate::offload::html(self)),
                _ => {}
            }
            page.push_str(&self.html_table());
        }
        page
    }

    /// The curves alone, as one picture.
    ///
    /// # Errors
    /// When this bench draws none, or there are too few rows for a curve.
    pub fn svg(&self) -> anyhow::Result<String> {
        if self.bench != "lookup" || crate::lookup::curves::figures(self).is_empty() {
            anyhow::bail!("bench {} has no curves of these rows: name an .html file", self.bench);
        }
        Ok(crate::lookup::curves::file(self))
    }

    fn html_table(&self) -> String {
        let (names, lines) = self.cells();
        let row = |tag: &str, cells: &[String]| {
            let cells: String =
                cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect();
            format!("<tr>{cells}</tr>\n")
        };
        let mut table = String::from("<table>\n");
        table.push_str(&row(
            "th",
            &names.iter().map(|name| name.replace('_', " ")).collect::<Vec<_>>(),
        ));
        for line in &lines {
            table.push_str(&row("td", line));
        }
        table.push_str("</table>\n");
        table
    }

    fn heading(&self) -> String {
        let Machine { cpu, cores, tsc_hz, kernel } = &self.machine;
        let mut line = format!("{cpu}, {cores} cores, TSC {:.0} MHz, Linux {kernel}", tsc_hz / 1e6);
        if cfg!(debug_assertions) {
            let _ = write!(line, "; a debug build: no figures"); // writing to a string cannot fail
        }
        line
    }

    /// Column names and cells; what a row does not have stays empty.
    fn cells(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let mut names: Vec<String> = Vec::new();
        for row in &self.rows {
            for name in row.case.0.keys().chain(row.figures.keys()) {
                if !names.contains(name) {
                    names.push(name.clone());
                }
            }
        }
        let cell = |row: &Row, name: &String| {
            row.case.0.get(name).or_else(|| row.figures.get(name)).map_or_else(String::new, shown)
        };
        let lines = self
            .rows
            .iter()
            .map(|row| names.iter().map(|name| cell(row, name)).collect())
            .collect();
        (names, lines)
    }
}

const STYLE: &str = "body{font:15px system-ui,sans-serif;margin:2em;color:#1f2328}svg{max-width:100%;height:auto;display:block;margin:1em 0}\
                     table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{padding:.2em .7em;text-align:right;white-space:nowrap}\
                     th{font-weight:600}tr:nth-child(even){background:#f6f8fa}summary{cursor:pointer;margin:1.5em 0 .5em}details{overflow-x:auto}p{max-width:60em}";

const LOOKUP: &str = "<p>Cycles of the time-stamp counter for each packet: parsing, finding the policies, reading the verdict. Each figure is \
                      the median of its rounds; the rounds of all caches take turns.</p>\n";

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_of_many_is_known_better() {
        let confidence = |count: u32| {
            let mut sample = Sample::default();
            (0..count).for_each(|value| sample.push(f64::from(value)));
            sample.confidence()
        };
        // The binomial distribution has ranks 40 and 61 of 100, and 2 and 9 of 10.
        assert_eq!(confidence(100), [39.0, 60.0]);
        assert_eq!(confidence(10), [1.0, 8.0]);
        assert_eq!(confidence(1), [0.0, 0.0]);
    }

    fn report() -> Report {
        let mut sample = Sample::default();
        for cycles in [300.0, 200.0, 250.0] {
            sample.push(cycles);
        }
        let case = Case::new().with("op", "seal").with("bytes", 1000);
        let machine =
            Machine { cpu: "a<b".to_owned(), cores: 2, tsc_hz: 2e9, kernel: "6.1".to_owned() };
        Report { bench: "crypto", machine, rows: vec![Row::of_packets(case, &sample, 1000, 2e9)] }
    }

    #[test]
    fn json_has_the_published_shape() {
        let json: Value = serde_json::from_str(&report().json().unwrap()).unwrap();
        let row = &json["rows"][0];
        assert_eq!(json["bench"], "crypto");
        assert_eq!(json["machine"]["tsc_hz"], 2e9);
        assert_eq!((&row["case"]["op"], &row["case"]["bytes"]), (&"seal".into(), &1000.into()));
        assert_eq!(
            (&row["cycles_per_packet"], &row["min"], &row["max"]),
            (&250.0.into(), &200.0.into(), &300.0.into())
        );
        assert_eq!(
            (&row["mpps"], &row["gbps"], &row["rounds"]),
            (&8.0.into(), &64.0.into(), &3.into())
        );
    }

    #[test]
    fn table_and_page_show_every_cell() {
        let mut table = Vec::new();
        report().table(&mut table).unwrap();
        let table = String::from_utf8(table).unwrap();
        let page = report().html();
        for cell in ["op", "seal", "1000", "250.0", "64.0"] {
            assert!(table.contains(cell) && page.contains(cell), "{cell}");
        }
        assert!(page.contains("a&lt;b"));
    }
}
