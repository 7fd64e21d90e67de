//! What the fuzzers of `fuzz/` run on this crate: any text as a batch file, as one command's words,
//! as a configuration.

use uxfrm_daemon::batch::{self, Command, Located};
use uxfrm_daemon::config::Config;

/// Bytes as a batch file.
///
/// # Panics
/// When reading does, or an error names a line that is not there, or the same line is read in two
/// ways.
#[allow(dead_code, reason = "each fuzz target uses one of the two")]
pub(crate) fn batch(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let last = text.split('\n').count();
    match batch::parse("fuzz", text) {
        Ok(commands) => {
            assert!(commands.is_sorted_by_key(|command| command.line));
            assert!(commands.iter().all(|command| (1..=last).contains(&(command.line as usize))));
            let again = batch::parse("fuzz", &format!("# first\n{text}")).expect("a comment");
            let shown = |read: Vec<Located<Command>>| -> Vec<String> {
                read.into_iter().map(|command| format!("{:?}", command.value)).collect()
            };
            assert_eq!(shown(commands), shown(again));
        }
        Err(errors) => {
            assert!(!errors.is_empty());
            for error in errors {
                assert!(error.to_string().starts_with("fuzz:"), "{error}");
            }
        }
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    if let Err(fault) = batch::words(&words, None) {
        assert!(!fault.error.to_string().is_empty());
    }
}

/// Bytes as a configuration file.
///
/// # Panics
/// When reading does, or an error names a place that is not there.
#[allow(dead_code, reason = "each fuzz target uses one of the two")]
pub(crate) fn config(bytes: &[u8]) {
    use uxfrm_daemon::config::{Diagnostic, Error};
    let Ok(text) = str::from_utf8(bytes) else { return };
    if let Err(Error::Text(mistakes)) = Config::parse("fuzz", text) {
        let lines: Vec<&str> = text.split('\n').collect();
        assert!(!mistakes.is_empty());
        for Diagnostic { line, column, .. } in mistakes {
            let named = lines.get(line - 1).expect("the line is there");
            assert!((1..=named.chars().count() + 1).contains(&column), "{line}:{column}");
        }
    }
}
