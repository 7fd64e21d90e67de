//! Batch files of `ip xfrm` lines: iproute2's grammar for states and policies, read into the engine's types.
//!
//! Owns the grammar and nothing behind it: what a message says is checked by the database that takes it (as the kernel
//! checks what `ip` sends), and what a line says is checked here, in iproute2's words. Promises: never a panic on any
//! text, every wrong line reported at once with its place and what would have been right, and no key byte in any error.
//!
//! Mirrors `ip/xfrm_state.c`, `ip/xfrm_policy.c` and `lib/utils.c: do_batch` of iproute2, including abbreviations
//! (`ip x s add`). It departs from them where a script is *copied* into a batch file, as such a line would otherwise
//! come to mean something else without a word:
//! - blanks may follow a continuation's backslash;
//! - `#` begins a comment at the start of a word only and is text inside quotes; inside a bare word it is an error;
//! - an unexpanded `$NAME` is an error, not an ASCII key of five bytes;
//! - `any` next to an address of known family takes that family;
//! - `offload … dir` says what the device is told and does not set the state's own `dir` (as up to iproute2 6.9).

mod address;
mod algorithm;
mod command;
mod cursor;
mod error;
mod filter;
mod flags;
mod id;
mod keyword;
mod limit;
mod mark;
mod number;
mod policy;
mod protocol;
mod secret;
mod selector;
mod state;
mod template;
mod words;

use std::{fs, path::Path};

use uxfrm_engine::Family;
use zeroize::Zeroizing;

pub use self::{
    command::{Command, Hthresh, PolicyKey, PolicyTarget, SpiRequest, StateKey},
    error::{BatchError, Error, LoadError},
    filter::{PolicyFilter, SelectorFilter, StateFilter},
    secret::Shown,
};
use self::{
    cursor::{Cursor, Fault},
    error::Position,
    keyword::{OBJECTS, Object, PROGRAM_OBJECTS, PROGRAM_OPTIONS, ProgramOption},
    words::{Lines, Word},
};

/// A command and the line where it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located<T> {
    /// Line in the file, from 1.
    pub line: u32,
    /// What stands there.
    pub value: T,
}

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
    for line in Lines::of(text) {
        let parsed = line.and_then(|words| {
            let line = words.first().map_or(1, |word| word.at.line);
            program_line(&words).map(|value| Located { line, value })
        });
        match parsed {
            Ok(command) => commands.push(command),
            Err(fault) => errors.push(BatchError::new(source, fault)),
        }
    }
    if errors.is_empty() { Ok(commands) } else { Err(errors) }
}

/// Reads the words of one command, from the object on (`state add …`), as a command line hands them over.
///
/// # Errors
/// What is wrong with it.
pub fn parse_line<S: AsRef<str>>(words: &[S]) -> Result<Command, Error> {
    let mut column = 1;
    let words: Vec<Word<'_>> = words
        .iter()
        .map(|word| {
            let at = Position { line: 1, column };
            column += u32::try_from(word.as_ref().chars().count()).unwrap_or(u32::MAX - column) + 1;
            Word::literal(word.as_ref(), at)
        })
        .collect();
    object(&mut Cursor::new(&words, None)).map_err(|fault| fault.error)
}

/// `[ip [OPTIONS]] xfrm OBJECT …`
fn program_line(words: &[Word<'_>]) -> Result<Command, Fault> {
    if let Some(fault) = words.iter().find_map(Word::unexpanded) {
        return Err(fault);
    }
    let mut cursor = Cursor::new(words, None);
    cursor.skip_program();
    while cursor.peek().is_some_and(|word| word.text().starts_with('-')) {
        cursor.family = program_option(&mut cursor)?;
    }
    cursor.abbreviated(&PROGRAM_OBJECTS)?;
    object(&mut cursor)
}

fn program_option(cursor: &mut Cursor<'_, '_>) -> Result<Option<Family>, Fault> {
    Ok(match cursor.exactly(&PROGRAM_OPTIONS)? {
        ProgramOption::Inet => Some(Family::V4),
        ProgramOption::Inet6 => Some(Family::V6),
        ProgramOption::Family => Some(cursor.choice(&keyword::FAMILIES)?),
        ProgramOption::Output => cursor.family,
    })
}

/// `state|policy COMMAND …`
fn object(cursor: &mut Cursor<'_, '_>) -> Result<Command, Fault> {
    match cursor.abbreviated(&OBJECTS)? {
        Object::State => state::parse(cursor),
        Object::Policy => policy::parse(cursor),
        Object::Monitor => Err(cursor.refuse("\"monitor\" never ends: it is not for batch files")),
        Object::Help => Err(cursor.refuse("\"help\" is not for batch files")),
    }
}

#[cfg(test)]
mod tests;
