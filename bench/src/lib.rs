//! The benches of `uxfrm bench`: every published figure, from the user's own machine.
//!
//! A bench in [`cases`] measures and returns a [`BenchReport`]. [`run`] picks it by name and writes
//! the report as a table, as one JSON object, or as a page. Timings are best and median of
//! interleaved rounds, so that a busy moment of the machine hits all competitors alike.
#![forbid(unsafe_code)]

mod barrier;
pub mod cases;
mod clock;
mod direction;
mod filter;
mod gateway_child;
pub mod pair;
mod report;
mod ring;

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};

use cases::{control, crypto, esp, fou, inline, lookup, offload, states, tunnel};

pub use clock::TscClock;
pub use filter::CaseFilter;
pub use report::{BenchReport, Case, Machine, Row, Samples};

/// The options of the command line.
#[derive(Debug, Clone, Default)]
pub struct BenchOptions {
    /// Only rows whose case has these keys and values.
    pub only: CaseFilter,
    /// Few and short rounds: proves that the bench works; the figures mean nothing.
    pub quick: bool,
    /// The file of the JSON object; `-` writes it to standard output instead of the table.
    pub json: Option<PathBuf>,
    /// The file of the page; if it ends in `.svg`, it gets only the curves.
    pub html: Option<PathBuf>,
    /// `lookup`: a file of rules in ClassBench's format, instead of the profiles.
    pub rules: Option<PathBuf>,
    /// `lookup`: a file of packets for these rules.
    pub trace: Option<PathBuf>,
    /// `tunnel`, `fou` and the files of `control`: rounds; 5, 15 and 11 by default.
    pub rounds: Option<u32>,
    /// `tunnel`: seconds of each run of iperf3; 3 by default.
    pub seconds: Option<u32>,
    /// `esp`: also show the cycles of each stage.
    pub stages: bool,
}

impl BenchOptions {
    /// # Errors
    /// No such bench, or an option or a key of `--only` that only other benches take.
    fn check(&self, name: &str) -> anyhow::Result<()> {
        let Some((_, keys)) = BENCHES.iter().find(|(bench, _)| *bench == name) else {
            let names = BENCHES.map(|(bench, _)| bench);
            bail!("no bench \"{name}\": there are {}", names.join(", "));
        };
        let taken: [(&str, bool, &[&str]); 5] = [
            ("--rules", self.rules.is_some(), &["lookup"]),
            ("--trace", self.trace.is_some(), &["lookup"]),
            ("--rounds", self.rounds.is_some(), &["tunnel", "fou", "control"]),
            ("--seconds", self.seconds.is_some(), &["tunnel"]),
            ("--stages", self.stages, &["esp"]),
        ];
        for (option, is_said, takers) in taken {
            if is_said && !takers.contains(&name) {
                bail!("bench {name} takes no {option}; it is for {}", takers.join(", "));
            }
        }
        if self.wants_curves_alone() && name != "lookup" {
            bail!("bench {name} has no curves: --html takes an .html file");
        }
        if self.trace.is_some() && self.rules.is_none() {
            bail!("--trace has packets for the policies of a file: say which by --rules");
        }
        if let Some(key) = self.only.keys().find(|key| !keys.contains(key)) {
            bail!("--only {key}=…: cases of bench {name} have {}", keys.join(", "));
        }
        if self.wants_curves_alone() {
            lookup::find_curves(self)?;
        }
        Ok(())
    }

    /// Whether the page has only curves.
    fn wants_curves_alone(&self) -> bool {
        self.html.as_ref().and_then(|path| path.extension()).is_some_and(|end| end == "svg")
    }

    /// Call this once all cases were offered to the filter, before anything is measured.
    ///
    /// # Errors
    /// A value of `--only` that selects no case while others do, and the values there are.
    pub(crate) fn ensure_all_values_select(&self) -> anyhow::Result<()> {
        let unselected = self.only.explain_unselected();
        let more = if self.quick { "; without --quick there may be more" } else { "" };
        ensure!(unselected.is_empty(), "--only: {}{more}", unselected.join("; "));
        Ok(())
    }

    /// Checks, before anything is measured, that the files can be written.
    ///
    /// # Errors
    /// A file that cannot be written.
    fn open_files(&self) -> anyhow::Result<()> {
        let json = self.json.iter().filter(|path| path.as_os_str() != "-");
        for path in json.chain(&self.html) {
            let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
            opened.with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

/// The benches by name, each with the keys of its rows' cases.
const BENCHES: [(&str, &[&str]); 10] = [
    ("crypto", &["op", "transform", "backend", "bytes"]),
    ("esp", &["direction", "transform", "bytes", "sas", "mode", "batch"]),
    ("workers", &["test", "workers", "states", "direction", "transform", "bytes", "line"]),
    ("offload", &["test", "path", "bytes", "workers"]),
    (
        "lookup",
        &[
            "profile",
            "family",
            "direction",
            "policies",
            "match",
            "flows",
            "cache",
            "loaded",
            "changes",
            "templates",
        ],
    ),
    ("control", &["count", "request", "by", "turn", "listeners", "dump"]),
    ("states", &["direction", "states", "batch"]),
    ("fou", &["tunnel", "encap", "test"]),
    (
        "tunnel",
        &[
            "path",
            "frames",
            "transform",
            "workers",
            "queue_delay",
            "gather",
            "test",
            "load",
            "congestion",
        ],
    ),
    ("inline", &["path", "way", "bytes"]),
];

/// The names of all benches.
pub fn names() -> impl Iterator<Item = &'static str> {
    BENCHES.iter().map(|(name, _)| *name)
}

/// Runs one bench and writes its table (or, for `--json -`, its JSON) to `out`.
///
/// # Errors
/// An unknown name, an option or a key that this bench does not take, a filter value that selects
/// no case, a file that cannot be written. If anything was measured, it has been written to `out`.
pub fn run(name: &str, options: &BenchOptions, out: &mut impl Write) -> anyhow::Result<()> {
    options.check(name)?;
    options.open_files()?;
    let report = match name {
        "crypto" => crypto::run(options)?,
        "esp" => esp::run(options)?,
        "workers" => esp::workers::run(options)?,
        "offload" => offload::run(options)?,
        "lookup" => lookup::run(options)?,
        "states" => states::run(options)?,
        "tunnel" => tunnel::run(options)?,
        "control" => control::run(options)?,
        "fou" => fou::run(options)?,
        "inline" => inline::run(options)?,
        _ => unreachable!("its name was checked"),
    };
    let known = BENCHES.iter().find(|(bench, _)| *bench == name).map_or(&[][..], |(_, keys)| keys);
    debug_assert!(report.rows.iter().all(|row| row.case.keys().all(|key| known.contains(&key))));
    if report.rows.is_empty() {
        let why = options.only.explain_empty();
        if options.quick {
            bail!(
                "--only leaves no case of bench {name} --quick: {why}; without --quick there may be more"
            );
        }
        bail!("--only leaves no case of bench {name}: {why}");
    }
    match &options.json {
        Some(path) if path.as_os_str() == "-" => writeln!(out, "{}", report.json()?)?,
        Some(path) => {
            report.table(out)?;
            std::fs::write(path, report.json()?)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        None => report.table(out)?,
    }
    if let Some(path) = &options.html {
        let page = if options.wants_curves_alone() { report.svg()? } else { report.html() };
        std::fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))?;
    }
    // Most benches know all their cases before they run, and have checked this already.
    options.ensure_all_values_select()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_of_another_bench_is_refused() {
        let rules = BenchOptions { rules: Some("acl1".into()), ..BenchOptions::default() };
        let stages = BenchOptions { stages: true, ..BenchOptions::default() };
        let trace = BenchOptions { trace: Some("acl1_trace".into()), ..BenchOptions::default() };
        let says =
            |options: &BenchOptions, name| options.check(name).err().map(|error| error.to_string());
        assert_eq!(says(&rules, "lookup"), None);
        assert_eq!(says(&rules, "esp").unwrap(), "bench esp takes no --rules; it is for lookup");
        assert_eq!(says(&stages, "esp"), None);
        assert_eq!(
            says(&stages, "lookup").unwrap(),
            "bench lookup takes no --stages; it is for esp"
        );
        assert!(says(&trace, "lookup").unwrap().contains("--rules"));
        assert!(says(&BenchOptions::default(), "nosuch").unwrap().contains("crypto, esp, workers"));
        let curves = BenchOptions { html: Some("curves.svg".into()), ..BenchOptions::default() };
        assert_eq!(says(&curves, "lookup"), None);
        assert_eq!(
            says(&curves, "tunnel").unwrap(),
            "bench tunnel has no curves: --html takes an .html file"
        );
        let point = BenchOptions { only: "policies=10".parse().unwrap(), ..curves.clone() };
        let file = BenchOptions { rules: Some("acl1".into()), ..curves.clone() };
        let changes = BenchOptions { only: "changes=0/s".parse().unwrap(), ..curves.clone() };
        for without in [&point, &file, &changes] {
            let said = says(without, "lookup").unwrap();
            assert!(said.starts_with("bench lookup has no curves of these rows"), "{said}");
        }
        let whatever = BenchOptions { rounds: Some(1), ..BenchOptions::default() };
        for name in ["tunnel", "fou", "control"] {
            assert_eq!(says(&whatever, name), None);
        }
    }

    #[test]
    fn filter_key_of_no_row_is_refused() {
        let only =
            |text: &str| BenchOptions { only: text.parse().unwrap(), ..BenchOptions::default() };
        let says = |text, name| only(text).check(name).err().map(|error| error.to_string());
        assert_eq!(says("profile=tunnels,cache=off", "lookup"), None);
        assert_eq!(
            says("profil=tunnels", "lookup").unwrap(),
            "--only profil=…: cases of bench lookup have profile, family, direction, policies, match, flows, cache, loaded, \
             changes, templates"
        );
        assert!(says("policies=1", "states").is_some());
    }

    #[test]
    fn filter_value_of_no_row_is_refused_with_the_known_values() {
        let says = |name, only: &str| {
            let options = BenchOptions {
                only: only.parse().unwrap(),
                quick: true,
                ..BenchOptions::default()
            };
            run(name, &options, &mut Vec::new()).unwrap_err().to_string()
        };
        assert_eq!(
            says("lookup", "profile=fw,cache=maybe"),
            "--only leaves no case of bench lookup --quick: none has cache=maybe (cache is one of auto, off, on); \
             without --quick there may be more"
        );
        for (name, only, why) in [
            ("crypto", "op=steal", "none has op=steal (op is one of open, seal"),
            ("esp", "direction=up", "none has direction=up (direction is one of in, out"),
            ("lookup", "policies=7", "none has policies=7 (policies is one of 1, 10, 100, 1000"),
            ("states", "direction=up", "none has direction=up (direction is one of "),
        ] {
            let said = says(name, only);
            assert!(said.contains(why), "{said}");
        }
    }

    #[test]
    fn filter_value_that_selects_nothing_is_refused_before_measuring() {
        for (name, only, why) in [
            ("esp", "sas=1,sas=1024", "none has sas=1024 (sas is one of 1, 64, 256, 4096)"),
            (
                "offload",
                "bytes=64,test=forward,test=lock-manager",
                "test=lock-manager selects no case: with bytes=64, test is forward",
            ),
            ("crypto", "bytes=64,bytes=65", "none has bytes=65 (bytes is one of 64, 256,"),
            ("lookup", "policies=1,policies=7", "none has policies=7 (policies is one of 1, 10,"),
            ("states", "states=1,states=7", "none has states=7 (states is one of 1, 10, 100,"),
            ("control", "count=100,count=7", "none has count=7 (count is one of 100, 1000,"),
            ("workers", "bytes=64,bytes=7", "none has bytes=7 (bytes is one of 64, 1400)"),
            ("offload", "bytes=64,bytes=7", "none has bytes=7 (bytes is one of tso, 64, 512"),
            ("fou", "encap=fou,encap=vxlan", "none has encap=vxlan (encap is one of fou"),
            ("inline", "bytes=64,bytes=7", "none has bytes=7 (bytes is one of 64, 1400)"),
            ("tunnel", "path=clear,path=ipip", "none has path=ipip (path is one of boringtun"),
        ] {
            let mut out = Vec::new();
            let options = BenchOptions {
                only: only.parse().unwrap(),
                quick: true,
                ..BenchOptions::default()
            };
            let said = run(name, &options, &mut out).unwrap_err().to_string();
            assert!(said.starts_with(&format!("--only: {why}")), "{said}");
            assert!(out.is_empty(), "{name} has measured something");
        }
    }

    #[test]
    fn unwritable_file_is_refused_first_and_full_disk_keeps_the_table() {
        let run_to = |json: &str, html: Option<&str>| {
            let only = "op=seal,transform=gcm128,bytes=64".parse().unwrap();
            let (json, html) = (Some(json.into()), html.map(Into::into));
            let mut out = Vec::new();
            let error = run(
                "crypto",
                &BenchOptions { only, quick: true, json, html, ..BenchOptions::default() },
                &mut out,
            );
            (error.unwrap_err().to_string(), String::from_utf8(out).unwrap())
        };
        for missing in [run_to("/nosuch/x", None), run_to("-", Some("/nosuch/x"))] {
            assert_eq!(missing, ("cannot write /nosuch/x".to_owned(), String::new()));
        }
        let (error, shown) = run_to("/dev/full", None);
        assert_eq!(error, "cannot write /dev/full");
        assert!(shown.contains("gcm128"), "{shown}");
    }
}
