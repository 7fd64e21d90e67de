//! `uxfrm exec -- CMD…`: an unmodified XFRM program, with uxfrm in the kernel's place.
//!
//! The command replaces this process, so exit code and signals are its own. It is started only if
//! it cannot reach the kernel's XFRM: a gateway must answer, the dynamic loader must confirm the
//! preload library, and a system call filter blocks the kernel's IPsec for all calls that bypass
//! the library, children included.
//!
//! Its own exit codes are those of `env`: 127 for no such command, 126 for one that can't or must
//! not be run, 125 for everything else.

mod library;
mod program;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, anyhow, ensure};
use uxfrm_control_client::ensure_gateway;
use uxfrm_io::seccomp;

use crate::arguments::ExecOptions;
use program::Program;

const PRELOAD: &str = "LD_PRELOAD";

/// Why the command was not started.
#[derive(Debug)]
pub(crate) struct NotStarted {
    /// The exit code for it.
    pub(crate) code: u8,
    reason: anyhow::Error,
}

/// The command exists but can't be run here.
const CANNOT_RUN: u8 = 126;

/// There is no such command.
const NOT_FOUND: u8 = 127;

impl fmt::Display for NotStarted {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:#}", self.reason)
    }
}

impl std::error::Error for NotStarted {}

impl NotStarted {
    /// The error is not in the command.
    fn by_us(reason: anyhow::Error) -> Self {
        Self { code: 125, reason }
    }

    fn by_command(reason: anyhow::Error) -> Self {
        let is_missing = |cause: &(dyn std::error::Error + 'static)| {
            cause.downcast_ref::<io::Error>().map(io::Error::kind) == Some(io::ErrorKind::NotFound)
        };
        let code = if reason.chain().any(is_missing) { NOT_FOUND } else { CANNOT_RUN };
        Self { code, reason }
    }
}

/// Replaces this process by the command. Returns only if it was not started.
pub(crate) fn execute(options: &ExecOptions) -> anyhow::Result<()> {
    Err(start(options).into())
}

fn start(options: &ExecOptions) -> NotStarted {
    let Some((name, arguments)) = options.command.split_first() else {
        return NotStarted::by_us(anyhow!("which command? `uxfrm exec -- ip xfrm state`"));
    };
    if name.as_encoded_bytes().starts_with(b"-") {
        let name = name.display();
        return NotStarted::by_us(anyhow!(
            "exec has no option {name}: in a network namespace it is `ip netns exec NAME uxfrm exec -- \
             CMD`"
        ));
    };
    let library = match ensure_gateway(options.control.as_deref()).and_then(|()| library::find()) {
        Ok(library) => library,
        Err(reason) => return NotStarted::by_us(reason),
    };
    let program = match Program::find(name) {
        Ok(program) => program,
        Err(reason) => return NotStarted::by_command(reason),
    };
    let mut command = Command::new(program.path());
    command.arg0(name).args(arguments);
    match prepare(&mut command, options, &program, &library) {
        Ok(()) => {
            let error = anyhow::Error::new(command.exec());
            NotStarted::by_command(error.context(format!("can't run {}", program.path().display())))
        }
        Err(reason) => NotStarted::by_us(reason),
    }
}

/// Ensures that the command reaches the gateway and not the kernel.
fn prepare(
    command: &mut Command,
    options: &ExecOptions,
    program: &Program,
    library: &Path,
) -> anyhow::Result<()> {
    let preload = preload(library);
    check_preload(program, library, &preload)?;
    seccomp::forbid_kernel_ipsec().context(
        "this kernel has no system call filters, which keep what escapes the library from the kernel's XFRM",
    )?;
    command.env(PRELOAD, preload);
    match &options.control {
        Some(path) => command.env("UXFRM_CONTROL", std::path::absolute(path)?),
        None => command.env_remove("UXFRM_CONTROL"),
    };
    Ok(())
}

/// Our library, before others in `LD_PRELOAD`.
fn preload(library: &Path) -> OsString {
    let mut preload = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    preload
}

/// Has the program's loader list what it would load, without running it.
fn check_preload(program: &Program, library: &Path, preload: &OsString) -> anyhow::Result<()> {
    let loader = program.loader();
    let output = Command::new(loader)
        .arg("--list")
        .arg(program.binary())
        .env(PRELOAD, preload)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("can't run the dynamic loader {}", loader.display()))?;
    let listed = String::from_utf8_lossy(&output.stdout);
    let ours = library.to_string_lossy();
    let takes_it = listed.lines().any(|line| line.split_whitespace().next() == Some(&ours));
    ensure!(
        output.status.success() && takes_it,
        "{} would not load {}: it would reach the kernel's XFRM{}",
        program.binary().display(),
        library.display(),
        complaint(&output.stderr)
    );
    Ok(())
}

fn complaint(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    text.lines().next().map_or_else(String::new, |line| format!(" ({line})"))
}
