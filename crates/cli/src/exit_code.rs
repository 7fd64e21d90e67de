//! Exit codes, by one rule for all commands that talk to a running gateway: 0 it answered and all
//! is well, [`UNWELL`] it answered and something is not, [`UNASKED`] it could not be asked.
//! `man/exit_status.rs` has what each command means by them.

use anyhow::Error;
use uxfrm_control_client::{Unanswered, stat};

use crate::exec;

/// The gateway answered, and something is not as it should be; or the command failed.
pub(crate) const UNWELL: u8 = 1;
/// Nobody could be asked: no gateway answers, or not to this user; or the words are wrong. clap has
/// the same for its own.
pub(crate) const UNASKED: u8 = 2;

/// Words that clap takes, and that are wrong all the same.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct WrongUsage(pub(crate) String);

/// The exit code of a command that failed.
pub(crate) fn of(error: &Error) -> u8 {
    if let Some(not_started) = error.downcast_ref::<exec::NotStarted>() {
        return not_started.code;
    }
    let is_unasked =
        error.is::<stat::Error>() || error.is::<Unanswered>() || error.is::<WrongUsage>();
    if is_unasked { UNASKED } else { UNWELL }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_tells_who_could_not_be_asked() {
        let silent = || stat::Error::Silent(std::time::Duration::from_secs(5));
        let table: [(Error, u8); 5] = [
            (anyhow::anyhow!("the disk is full"), UNWELL),
            (silent().into(), UNASKED),
            (Error::new(silent()).context("can't capture"), UNASKED),
            (WrongUsage("no such column".to_owned()).into(), UNASKED),
            (Error::new(std::io::Error::other("x")).context(Unanswered::new("no uxfrm")), UNASKED),
        ];
        for (error, code) in table {
            assert_eq!(of(&error), code, "{error:#}");
        }
    }
}
