//! `uxfrm exec -- CMD…`: an unmodified XFRM program, with uxfrm in the kernel's place.
//!
//! The command becomes this process, so its exit code and signals are its own. It is started only when it cannot reach
//! the kernel's XFRM: a gateway must answer, the dynamic loader must have said that it takes the preload library, and a
//! system call filter refuses the kernel's IPsec to whatever does not come by that library, children included.

mod library;
mod program;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use uxfrm_daemon::control;
use uxfrm_io::fence;

use crate::arguments::ExecOptions;
use program::Program;

const PRELOAD: &str = "LD_PRELOAD";

/// Becomes the command. Returns only when it was not started.
pub(crate) fn execute(options: &ExecOptions) -> anyhow::Result<()> {
    let Some((name, arguments)) = options.command.split_first() else {
        bail!("which command? `uxfrm exec -- ip xfrm state`");
    };
    control::reach(options.control.as_deref())?;
    let library = library::find()?;
    let program = Program::find(name)?;
    let preload = preload(&library);
    check_preload(&program, &library, &preload)?;
    fence::forbid_kernel_ipsec().context(
        "this kernel has no system call filters, which keep what escapes the library from the kernel's XFRM",
    )?;
    let mut command = Command::new(program.path());
    command.arg0(name).args(arguments).env(PRELOAD, preload);
    match &options.control {
        Some(path) => command.env("UXFRM_CONTROL", std::path::absolute(path)?),
        None => command.env_remove("UXFRM_CONTROL"),
    };
    Err(command.exec()).with_context(|| format!("can't run {}", program.path().display()))
}

/// Our library before those that are preloaded anyway.
fn preload(library: &Path) -> OsString {
    let mut preload = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    preload
}

/// Has the program's own loader list what it would load, without running any of it.
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
