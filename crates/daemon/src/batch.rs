//! Batch files of `ip xfrm` lines, read into the engine's types.
//!
//! The grammar is [`uxfrm_xfrm::grammar`]'s, the one of `uxfrm xfrm`; this module owns what a line
//! means to the databases: what the kernel makes of what `ip` sends for it. What a message says is
//! checked by the database that takes it (as the kernel checks what `ip` sends). Promises: never a
//! panic on any text, every wrong line reported at once with its place and what would have been
//! right, and no key byte in any error.

mod algorithm;
pub(crate) mod apply;
mod error;
mod policy;
pub(crate) mod provenance;
mod state;

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use uxfrm_engine::{Policy, SaConfig};
use uxfrm_io::text_file;
use uxfrm_xfrm::grammar::{self, LinePrefix};
use zeroize::Zeroizing;

pub use self::error::{BatchError, LoadError};
pub use uxfrm_xfrm::grammar::{
    Error, Hthresh, Located, PolicyFilter, PolicyKeyArgs, PolicyTarget, RedactedWord,
    SelectorFilter, SpiRequest, StateFilter, StateKey, SyntaxError, words,
};

/// One line: states and policies are what the databases take.
pub type Command = grammar::XfrmCommand<Box<SaConfig>, Box<Policy>>;

/// A batch file's text, wiped from memory when it is dropped: there are keys in it.
///
/// # Errors
/// [`LoadError::Read`] when the file can't be read or is no UTF-8.
pub fn text(path: &Path) -> Result<Zeroizing<String>, LoadError> {
    let source_name = path.display().to_string();
    text_file::read_to_string(path)
        .map(Zeroizing::new)
        .map_err(|error| LoadError::Read { source_name, error })
}

/// Whether every user of the host may read a file with keys in it.
pub(crate) fn is_exposed(path: &Path, text: &str) -> bool {
    let is_open = || fs::metadata(path).is_ok_and(|file| file.mode() & 0o004 != 0);
    let mut words = text.split_ascii_whitespace();
    is_open() && words.any(|word| matches!(word, "enc" | "auth" | "auth-trunc" | "aead"))
}

/// Reads the lines of a batch file one by one. `source` names the text in errors. The caller wipes
/// `text` if there are keys in it.
pub fn commands(
    source: &str,
    text: &str,
) -> impl Iterator<Item = Result<Located<Command>, BatchError>> {
    commands_with(LinePrefix::Program, source, text)
}

/// The same, with another beginning of lines.
pub(crate) fn commands_with(
    prefix: LinePrefix,
    source: &str,
    text: &str,
) -> impl Iterator<Item = Result<Located<Command>, BatchError>> {
    grammar::lines(text, prefix).map(move |line| {
        line.and_then(|line| Ok(Located { line: line.line, value: read(line.value)? }))
            .map_err(|fault| BatchError::new(source, fault))
    })
}

/// Reads all lines of a batch file, as [`commands`] does.
///
/// # Errors
/// Every wrong line, in the order of the text.
pub fn parse(source: &str, text: &str) -> Result<Vec<Located<Command>>, Vec<BatchError>> {
    let (mut right, mut errors) = (Vec::new(), Vec::new());
    for command in commands(source, text) {
        match command {
            Ok(command) => right.push(command),
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(right) } else { Err(errors) }
}

fn read(command: grammar::XfrmCommand) -> Result<Command, SyntaxError> {
    command.read(|words| state::config(*words), |words| Ok(policy::policy(*words)))
}

#[cfg(test)]
mod tests;
