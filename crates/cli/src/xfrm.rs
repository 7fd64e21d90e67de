//! `uxfrm xfrm …`: iproute2's `ip xfrm` for the gateway. [`uxfrm_xfrm`] does the work; this module
//! provides its input and output.

use std::fs::File;
use std::io::{self, Read, Stderr, StdoutLock, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use uxfrm_control_client::connect;
use uxfrm_xfrm::grammar::CliOptions;
use uxfrm_xfrm::help;
use uxfrm_xfrm::session::{self, SessionEnvironment};

use crate::arguments::XfrmOptions;
use crate::environment;

/// Runs a command line; the exit code is iproute2's.
pub(crate) fn execute(options: &XfrmOptions) -> u8 {
    session::run(&options.words, &mut Terminal { out: io::stdout().lock(), err: io::stderr() })
}

/// Prints completions, a line each.
pub(crate) fn complete(options: &XfrmOptions) -> anyhow::Result<()> {
    let interfaces = environment::interfaces();
    let words: Vec<&str> = options.words.iter().map(String::as_str).collect();
    let mut out = io::stdout().lock();
    for word in help::complete(&words, &interfaces) {
        writeln!(out, "{word}")?;
    }
    Ok(())
}

/// The input and output of this process.
struct Terminal {
    out: StdoutLock<'static>,
    err: Stderr,
}

impl SessionEnvironment for Terminal {
    fn connect(&mut self, options: &CliOptions, groups: u32) -> Result<OwnedFd, String> {
        let path = environment::enter(options)?;
        connect(path.as_deref(), groups).map_err(|error| format!("{error:#}"))
    }

    fn output(&mut self) -> &mut dyn Write {
        &mut self.out
    }

    fn complaints(&mut self) -> &mut dyn Write {
        &mut self.err
    }

    fn script(&mut self, path: &Path) -> io::Result<Box<dyn Read>> {
        if path == Path::new("-") {
            return Ok(Box::new(io::stdin()));
        }
        Ok(Box::new(File::open(path)?))
    }
}
