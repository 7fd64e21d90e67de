//! `uxfrm web`: starts `uxfrm-web` in this process's place. It is a program of its own, so that
//! neither `uxfrm` nor the gateway links HTTP.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

/// The program's name, and where packages lay it.
const PROGRAM: &str = "uxfrm-web";
const PACKAGED: &str = "/usr/lib/uxfrm/uxfrm-web";
/// The same seen from `uxfrm`, for a tarball that was unpacked elsewhere.
const UNPACKED: &str = "../lib/uxfrm/uxfrm-web";

/// Starts it with the same arguments; they have been read here, so they are right.
pub(crate) fn execute() -> anyhow::Result<()> {
    let own = env::current_exe().context("can't tell where uxfrm is")?;
    let program = find(&own).with_context(|| {
        format!("{PROGRAM} is neither beside {} nor in /usr/lib/uxfrm", own.display())
    })?;
    let failed = Command::new(&program).arg0(PROGRAM).args(words(env::args_os())).exec();
    Err(failed).with_context(|| format!("can't start {}", program.display()))
}

fn find(own: &Path) -> Option<PathBuf> {
    let places =
        [own.with_file_name(PROGRAM), own.with_file_name(UNPACKED), PathBuf::from(PACKAGED)];
    places.into_iter().find(|place| place.is_file())
}

/// What follows `web`.
fn words(all: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    all.skip_while(|word| word != "web").skip(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_web_are_passed_on() {
        let line = ["uxfrm", "web", "--listen", "127.0.0.1:1", "--user", "web"];
        let passed: Vec<_> = words(line.into_iter().map(OsString::from)).collect();
        assert_eq!(passed, line[2..]);
    }

    #[test]
    fn program_beside_comes_first() {
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("uxfrm");
        let beside = directory.path().join(PROGRAM);
        assert_ne!(find(&own), Some(beside.clone()));
        std::fs::write(&beside, "").unwrap();
        assert_eq!(find(&own), Some(beside));
    }
}
