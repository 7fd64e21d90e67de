//! `uxfrm xfrm …`: iproute2's `ip xfrm` for the gateway. [`uxfrm_xfrm`] does the work; this module
//! provides its input and output.

use std::fs::File;
use std::io::{self, IsTerminal as _, Read, Stderr, StdoutLock, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::sys::stat::{SFlag, fstat};
use uxfrm_control_client::reload::{SyncCourse, SyncOthers, SyncRequest};
use uxfrm_control_client::{ClientDialect, connect, connect_dialect};
use uxfrm_xfrm::grammar::{CliOptions, SyncArgs};
use uxfrm_xfrm::help;
use uxfrm_xfrm::session::{self, OutputExposure, SessionEnvironment, SyncFailure, SyncText};

use crate::arguments::XfrmOptions;
use crate::{environment, reload};

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

    fn exposure(&self) -> Option<OutputExposure> {
        if self.out.is_terminal() {
            return Some(OutputExposure::Terminal);
        }
        let about = fstat(&self.out).ok()?;
        let is_file = SFlag::from_bits_truncate(about.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG;
        (is_file && about.st_mode & 0o004 != 0).then_some(OutputExposure::EveryUser)
    }

    fn sync(
        &mut self,
        options: &CliOptions,
        sync: &SyncArgs,
        text: &SyncText,
    ) -> Result<(), SyncFailure> {
        let path = environment::enter(options).map_err(SyncFailure::NoConnection)?;
        let gateway = connect_dialect(path.as_deref(), ClientDialect::Reload)
            .map_err(|error| SyncFailure::NoConnection(format!("{error:#}")))?;
        let request = SyncRequest {
            source: text.source.clone(),
            bytes: text.len() as u64,
            course: if sync.is_dry_run { SyncCourse::Show } else { SyncCourse::Apply },
            others: if sync.keeps_others { SyncOthers::Keep } else { SyncOthers::Remove },
        };
        reload::sync(&gateway, request, text, &mut self.out)
            .map_err(|error| SyncFailure::Refused(format!("{error:#}")))
    }
}
