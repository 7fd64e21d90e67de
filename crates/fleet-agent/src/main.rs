//! The program behind `uxfrm fleet`.
#![forbid(unsafe_code)]

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use uxfrm_fleet_agent::commands;
use uxfrm_fleet_options::FleetOptions;

/// Many gateways from one desired state in etcd.
#[derive(Debug, Parser)]
#[command(name = "uxfrm-fleet", bin_name = "uxfrm fleet", version)]
struct Arguments {
    #[command(flatten)]
    options: FleetOptions,
}

fn main() -> ExitCode {
    let Arguments { options } = Arguments::parse();
    start_log();
    match commands::execute(&options) {
        Ok(code) => code,
        Err(error) => {
            // An error on stderr itself can't be reported.
            let _closed = writeln!(io::stderr(), "uxfrm-fleet: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Logs to stderr. The journal has times of its own.
fn start_log() {
    let log = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_env_filter(log_filter())
        .with_target(false)
        .with_ansi(io::stderr().is_terminal());
    match std::env::var_os("JOURNAL_STREAM") {
        Some(_) => log.without_time().init(),
        None => log.init(),
    }
}

/// What `RUST_LOG` names; without, all that an operator has to know.
fn log_filter() -> EnvFilter {
    EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).from_env_lossy()
}
