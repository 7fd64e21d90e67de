//! Programs beside `uxfrm`, which start in this process's place: `uxfrm-web`, `uxfrm-fleet`. They
//! are programs of their own, so that neither `uxfrm` nor the gateway links HTTP.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

/// Where packages lay them.
const PACKAGED: &str = "/usr/lib/uxfrm";
/// The same seen from `uxfrm`, for a tarball that was unpacked elsewhere.
const UNPACKED: &str = "../lib/uxfrm";

/// A program that does one of the commands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Companion {
    /// The command, as `web`.
    pub(crate) command: &'static str,
    /// The program, as `uxfrm-web`.
    pub(crate) program: &'static str,
}

/// `uxfrm web`.
pub(crate) const WEB: Companion = Companion { command: "web", program: "uxfrm-web" };
/// `uxfrm fleet`.
pub(crate) const FLEET: Companion = Companion { command: "fleet", program: "uxfrm-fleet" };

impl Companion {
    /// Starts it with the same arguments; they have been read here, so they are right.
    pub(crate) fn execute(self) -> anyhow::Result<()> {
        let Self { command, program } = self;
        let own = env::current_exe().context("can't tell where uxfrm is")?;
        let found = self.find(&own).with_context(|| {
            format!("{program} is neither beside {} nor in {PACKAGED}", own.display())
        })?;
        let words = words(command, env::args_os());
        let failed = Command::new(&found).arg0(program).args(words).exec();
        Err(failed).with_context(|| format!("can't start {}", found.display()))
    }

    fn find(self, own: &Path) -> Option<PathBuf> {
        let unpacked = Path::new(UNPACKED).join(self.program);
        let places = [
            own.with_file_name(self.program),
            own.with_file_name(unpacked),
            Path::new(PACKAGED).join(self.program),
        ];
        places.into_iter().find(|place| place.is_file())
    }
}

/// What follows the command.
fn words(
    command: &'static str,
    all: impl Iterator<Item = OsString>,
) -> impl Iterator<Item = OsString> {
    all.skip_while(move |word| word != command).skip(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_web_are_passed_on() {
        let line = ["uxfrm", "web", "--listen", "127.0.0.1:1", "--user", "web"];
        let passed: Vec<_> = words("web", line.into_iter().map(OsString::from)).collect();
        assert_eq!(passed, line[2..]);
    }

    #[test]
    fn program_beside_comes_first() {
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("uxfrm");
        let beside = directory.path().join(FLEET.program);
        assert_ne!(FLEET.find(&own), Some(beside.clone()));
        std::fs::write(&beside, "").unwrap();
        assert_eq!(FLEET.find(&own), Some(beside));
    }
}
