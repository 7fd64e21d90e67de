//! `uxfrm xfrm …`: iproute2's `ip xfrm`, speaking to the gateway. The work is [`uxfrm_xfrm`]'s; this is the world around it.

use std::fs::File;
use std::io::{self, Read, Stderr, StdoutLock, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::net::if_::if_nameindex;
use nix::sched::{CloneFlags, setns};
use uxfrm_daemon::control;
use uxfrm_xfrm::grammar::Options;
use uxfrm_xfrm::help;
use uxfrm_xfrm::session::{self, World};

use crate::arguments::XfrmOptions;

/// Where `ip netns` keeps namespaces.
const NAMESPACES: &str = "/run/netns";

/// Carries the words out; the exit code is iproute2's.
pub(crate) fn execute(options: &XfrmOptions) -> u8 {
    session::run(&options.words, &mut Terminal { out: io::stdout().lock(), err: io::stderr() })
}

/// Prints what may come next, a line each.
pub(crate) fn complete(options: &XfrmOptions) -> anyhow::Result<()> {
    let interfaces = if_nameindex().map_or_else(
        |_| Vec::new(),
        |all| all.iter().map(|one| one.name().to_string_lossy().into_owned()).collect(),
    );
    let words: Vec<&str> = options.words.iter().map(String::as_str).collect();
    let mut out = io::stdout().lock();
    for word in help::complete(&words, &interfaces) {
        writeln!(out, "{word}")?;
    }
    Ok(())
}

/// This process's.
struct Terminal {
    out: StdoutLock<'static>,
    err: Stderr,
}

impl World for Terminal {
    fn connect(&mut self, options: &Options, groups: u32) -> Result<OwnedFd, String> {
        let join = |name: &str| -> anyhow::Result<()> {
            let namespace = File::open(Path::new(NAMESPACES).join(name))?;
            Ok(setns(namespace, CloneFlags::CLONE_NEWNET)?)
        };
        if let Some(name) = &options.namespace {
            join(name)
                .map_err(|error| format!("Cannot open network namespace \"{name}\": {error}"))?;
        }
        let path = options.control.clone().or_else(configured);
        control::connect(path.as_deref(), groups).map_err(|error| format!("{error:#}"))
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

/// What `uxfrm exec --control` tells the programs that it runs.
fn configured() -> Option<PathBuf> {
    std::env::var_os("UXFRM_CONTROL").filter(|path| !path.is_empty()).map(PathBuf::from)
}
