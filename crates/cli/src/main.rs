//! The `uxfrm` command: a thin layer over the other crates.
//!
//! Exit codes are in [`exit_code`]; `uxfrm exec` has its command's, or 125 to 127 if that did not
//! start ([`exec`]); `uxfrm xfrm`, `fou`, `link` and `dev` have iproute2's.

#![forbid(unsafe_code)]

mod arguments;
mod bench;
mod capture;
mod check;
mod companion;
mod completions;
mod demo;
mod demo_case;
mod dev;
mod doctor;
#[cfg(test)]
mod documentation;
mod drops;
mod environment;
mod exec;
mod exit_code;
mod fleet;
mod host;
mod ike_unit;
mod left_guard;
mod log;
mod man;
mod probe;
mod reload;
mod run;
mod setup;
mod stat;
mod status;
mod top;
mod trace;
mod tunnels;
mod upgrade;
mod why;
mod xfrm;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

use arguments::{Arguments, Command, LogFormat};
use tunnels::Object;
use uxfrm_io::huge_pages::HugePages;

/// Policies, states and flow caches are large tables with random access.
#[global_allocator]
static MEMORY: HugePages = HugePages;

/// The exit code of a command that SIGINT ended, as in shells: 128 + 2.
const EXIT_INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut log = None;
    if let Command::Run(options) = &arguments.command {
        match log::start_queued(options.log.unwrap_or(LogFormat::Text)) {
            Ok(thread) => log = Some(thread),
            Err(error) => {
                return explain(&anyhow::Error::new(error).context("can't start the log"));
            }
        }
    } else {
        log::start();
    }
    if reads_keys(&arguments.command)
        && let Err(error) = uxfrm_io::secret_memory::forbid()
    {
        return explain(&anyhow::Error::new(error).context("can't keep keys out of core dumps"));
    }
    let result = execute(arguments.command, arguments.under_supervisor);
    // Its last lines go before what is said next.
    drop(log);
    match result {
        Ok(code) => code,
        Err(error) => explain(&error),
    }
}

/// Whether a command reads users' keys from files, standard input or its arguments. `run` disables
/// core dumps itself; other commands have only keys that they generate.
const fn reads_keys(command: &Command) -> bool {
    match command {
        Command::Check(_)
        | Command::Capture(_)
        | Command::Guard(_)
        | Command::Reload(_)
        | Command::Setup(_)
        | Command::Xfrm(_)
        | Command::CompleteXfrm(_) => true,
        Command::Run(_)
        | Command::Doctor(_)
        | Command::Upgrade(_)
        | Command::Release(_)
        | Command::Clean(_)
        | Command::Status(_)
        | Command::Stat(_)
        | Command::Top(_)
        | Command::Drops(_)
        | Command::Why(_)
        | Command::Trace(_)
        | Command::Probe(_)
        | Command::Web(_)
        | Command::Fleet(_)
        | Command::Exec(_)
        | Command::Demo(_)
        | Command::Bench(_)
        | Command::Completions(_)
        | Command::Man(_)
        | Command::CompleteFou(_)
        | Command::CompleteLink(_)
        | Command::CompleteDev(_)
        | Command::Fou(_)
        | Command::Link(_)
        | Command::Dev(_) => false,
    }
}

fn execute(command: Command, supervisor: Option<u32>) -> anyhow::Result<ExitCode> {
    let done = match command {
        Command::Run(options) => return run::execute(&options, supervisor),
        Command::Doctor(options) => return doctor::execute(&options),
        Command::Setup(options) => setup::execute(&options),
        Command::Upgrade(options) => upgrade::execute(&options),
        Command::Check(options) => check::execute(&options),
        Command::Reload(options) => reload::execute(&options),
        Command::Guard(options) => check::guard(&options),
        Command::Release(options) => reload::release(&options),
        Command::Clean(options) => uxfrm_daemon::gateway::clean(options.config.as_deref()),
        Command::Status(options) => return status::execute(&options),
        Command::Stat(options) => stat::execute(&options),
        Command::Top(options) => return top::execute(&options),
        Command::Drops(options) => drops::execute(&options),
        Command::Why(options) => return why::execute(&options),
        Command::Capture(options) => capture::execute(&options),
        Command::Trace(options) => trace::execute(&options),
        Command::Probe(options) => return probe::execute(&options),
        Command::Web(_) => companion::WEB.execute(),
        Command::Fleet(options) => fleet::execute(&options),
        Command::Exec(options) => exec::execute(&options),
        Command::Demo(options) => demo::execute(&options),
        Command::Bench(options) => bench::execute(&options),
        Command::Completions(options) => completions::execute(&options),
        Command::Man(options) => man::execute(&options),
        Command::CompleteXfrm(options) => xfrm::complete(&options),
        Command::CompleteFou(options) => tunnels::complete(Object::Fou, &options.words),
        Command::CompleteLink(options) => tunnels::complete(Object::Link, &options.words),
        Command::CompleteDev(options) => dev::complete(&options.words),
        Command::Xfrm(options) => return Ok(ExitCode::from(xfrm::execute(&options))),
        Command::Fou(options) => return Ok(tunnels::execute(Object::Fou, &options.words)),
        Command::Link(options) => return Ok(tunnels::execute(Object::Link, &options.words)),
        Command::Dev(options) => return Ok(dev::execute(&options.words)),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// Prints on stderr why the command failed; returns the exit code.
fn explain(error: &anyhow::Error) -> ExitCode {
    if error.is::<uxfrm_bench::pair::Interrupted>() {
        return ExitCode::from(EXIT_INTERRUPTED);
    }
    if error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS; // `uxfrm stat | head` has read enough
    }
    // An error on stderr itself cannot be reported.
    let _ = writeln!(io::stderr(), "uxfrm: {error:#}");
    ExitCode::from(exit_code::of(error))
}
