//! Batch files of `ip xfrm` lines, read into the engine's types.
//!
//! The grammar is [`uxfrm_xfrm::grammar`]'s, the one of `uxfrm xfrm`; this module owns what a line means to the databases: what
//! the kernel makes of what `ip` sends for it. What a message says is checked by the database that takes it (as the kernel
//! checks what `ip` sends). Promises: never a panic on any text, every wrong line reported at once with its place and what
//! would have been right, and no key byte in any error.

mod algorithm;
mod error;
mod policy;
mod state;

use std::{fs, path::Path};

use uxfrm_engine::{Policy, SaConfig};
use uxfrm_xfrm::grammar::{self, Prefix};
use zeroize::Zeroizing;

pub use self::error::{BatchError, LoadError};
pub use uxfrm_xfrm::grammar::{
    Error, Fault, Hthresh, Located, PolicyFilter, PolicyKey, PolicyTarget, SelectorFilter, Shown,
    SpiRequest, StateFilter, StateKey, words,
};

/// One line: states and policies are what the databases take.
pub type Command = grammar::Command<Box<SaConfig>, Box<Policy>>;

/// Reads a batch file whole. The text is wiped from memory when it has been read.
///
/// # Errors
/// [`LoadError`] when the file can't be read or is no UTF-8, or with every wrong line in it.
pub fn load(path: &Path) -> Result<Vec<Located<Command>>, LoadError> {
    let source = path.display().to_string();
    let text = fs::read_to_string(path)
        .map(Zeroizing::new)
        .map_err(|error| LoadError::Read { source_name: source.clone(), error })?;
    parse(&source, &text).map_err(LoadError::Lines)
}

/// Reads the lines of a batch file. `source` names the text in errors. The caller wipes `text` if there are keys in it.
///
/// # Errors
/// Every wrong line, in the order of the text.
pub fn parse(source: &str, text: &str) -> Result<Vec<Located<Command>>, Vec<BatchError>> {
    let mut commands = Vec::new();
    let mut errors = Vec::new();
    for line in grammar::lines(text, Prefix::Program) {
        let read = line.and_then(|line| Ok(Located { line: line.line, value: read(line.value)? }));
        match read {
            Ok(command) => commands.push(command),
            Err(fault) => errors.push(BatchError::new(source, fault)),
        }
    }
    if errors.is_empty() { Ok(commands) } else { Err(errors) }
}

fn read(command: grammar::Command) -> Result<Command, Fault> {
    command.read(|words| state::config(*words), |words| Ok(policy::policy(*words)))
}

#[cfg(test)]
mod tests;
