//! The cases of `uxfrm bench`: every published figure, from the user's own machine.
//!
//! A case measures and fills a [`Report`]; [`run`] picks it by name and writes what it found: a table, one JSON object
//! (DESIGN.md, "Measuring"), or a page. Timings are best and median of interleaved rounds, so that a busy moment of the
//! machine hits all competitors alike.
#![forbid(unsafe_code)]

mod bars;
mod clock;
pub mod control;
pub mod crypto;
pub mod esp;
mod filter;
pub mod fou;
pub mod inline;
pub mod lookup;
mod meeting;
pub mod offload;
pub mod pair;
mod report;
mod ring;
pub mod states;
pub mod tunnel;

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, bail};

pub use clock::TscClock;
pub use filter::Filter;
pub use report::{Case, Machine, Report, Row, Sample};

/// What the command line says.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Only rows whose case has these keys and values.
    pub only: Filter,
    /// Few and short rounds: proves that the bench works, gives no figure.
    pub quick: bool,
    /// Where the JSON object goes besides the table; `-` is standard output, in the table's stead.
    pub json: Option<PathBuf>,
    /// Where the page goes; the curves alone, when it ends in `.svg`.
    pub html: Option<PathBuf>,
    /// `lookup`: rules in ClassBench's format, in the profiles' stead.
    pub rules: Option<PathBuf>,
    /// `lookup`: packets for them.
    pub trace: Option<PathBuf>,
    /// `tunnel`, `fou` and the files of `control`: rounds; where none are said, five, fifteen and eleven.
    pub rounds: Option<u32>,
    /// `tunnel`: seconds of each run of iperf3, three where none are said.
    pub seconds: Option<u32>,
    /// `esp`: cycles of each stage as well.
    pub stages: bool,
}

impl Options {
    /// # Errors
    /// An option that only other benches take, which would be said for nothing.
    fn check(&self, name: &str) -> anyhow::Result<()> {
        let taken: [(&str, bool, &[&str]); 5] = [
            ("--rules", self.rules.is_some(), &["lookup"]),
            ("--trace", self.trace.is_some(), &["lookup"]),
            ("--rounds", self.rounds.is_some(), &["tunnel", "fou", "control"]),
            ("--seconds", self.seconds.is_some(), &["tunnel"]),
            ("--stages", self.stages, &["esp"]),
        ];
        for (option, is_said, takers) in taken {
            if is_said && NAMES.contains(&name) && !takers.contains(&name) {
                bail!("bench {name} takes no {option}; it is for {}", takers.join(", "));
            }
        }
        if self.trace.is_some() && self.rules.is_none() {
            bail!("--trace has packets for the policies of a file: say which by --rules");
        }
        Ok(())
    }
}

/// The names [`run`] knows.
pub const NAMES: &[&str] = &[
    "crypto", "esp", "workers", "offload", "lookup", "control", "states", "fou", "tunnel", "inline",
];

/// Runs one bench and writes its table (or, for `--json -`, its JSON) to `out`.
///
/// # Errors
/// An unknown name, an option that this bench does not take, a filter that leaves nothing, a file that cannot be written.
pub fn run(name: &str, options: &Options, out: &mut impl Write) -> anyhow::Result<()> {
    options.check(name)?;
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
        _ => bail!("no bench \"{name}\": there are {}", NAMES.join(", ")),
    };
    if report.rows.is_empty() {
        let only = &options.only;
        if options.quick {
            bail!(
                "--only {only} leaves no case of bench {name} --quick, which has not all: without --quick there may be some"
            );
        }
        bail!(
            "--only {only} leaves no case of bench {name}: \"uxfrm bench {name} --quick\" shows its keys and values"
        );
    }
    let to_stdout = options.json.as_deref().is_some_and(|path| path.as_os_str() == "-");
    match &options.json {
        Some(_) if to_stdout => writeln!(out, "{}", report.json()?)?,
        Some(path) => {
            std::fs::write(path, report.json()?)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        None => {}
    }
    if let Some(path) = &options.html {
        let alone = path.extension().is_some_and(|extension| extension == "svg");
        std::fs::write(path, if alone { report.svg()? } else { report.html() })
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if !to_stdout {
        report.table(out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_that_a_bench_does_not_take_is_refused() {
        let rules = Options { rules: Some("acl1".into()), ..Options::default() };
        let stages = Options { stages: true, ..Options::default() };
        let trace = Options { trace: Some("acl1_trace".into()), ..Options::default() };
        let says =
            |options: &Options, name| options.check(name).err().map(|error| error.to_string());
        assert_eq!(says(&rules, "lookup"), None);
        assert_eq!(says(&rules, "esp").unwrap(), "bench esp takes no --rules; it is for lookup");
        assert_eq!(says(&stages, "esp"), None);
        assert_eq!(
            says(&stages, "lookup").unwrap(),
            "bench lookup takes no --stages; it is for esp"
        );
        assert!(says(&trace, "lookup").unwrap().contains("--rules"));
        let whatever = Options { rounds: Some(1), ..Options::default() };
        for name in ["tunnel", "fou", "control"] {
            assert_eq!(says(&whatever, name), None);
        }
    }
}
