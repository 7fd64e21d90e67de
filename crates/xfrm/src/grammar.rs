//! The grammar of `ip xfrm`: lines into [`XfrmCommand`]s. No text makes it panic; no error shows a
//! key.
//!
//! Mirrors `ip/ipxfrm.c`, `ip/xfrm_state.c`, `ip/xfrm_policy.c`, `ip/xfrm_monitor.c` and
//! `lib/utils.c: do_batch` of iproute2, including abbreviations (`ip x s add`). It departs from
//! them where a *copied* script would silently mean something else:
//! - blanks may follow a continuation's backslash;
//! - `#` begins a comment only at the start of a word, is text inside quotes, and an error
//!   elsewhere;
//! - an unexpanded `$NAME` is an error, not an ASCII key of five bytes;
//! - `any` next to an address of known family takes that family;
//! - `offload … dir` is the device's and does not set the state's `dir` (as up to iproute2 6.9).

mod address;
mod algorithm;
mod backup;
mod command;
mod cursor;
mod error;
mod filter;
mod flags;
mod id;
mod keyword;
mod lexer;
mod limit;
mod mark;
mod monitor;
mod number;
mod options;
mod policy;
mod protocol;
mod secret;
mod selector;
mod state;
mod template;
pub(crate) mod vocabulary;
mod written;

use uxfrm_engine::Family;

pub(crate) use self::algorithm::HIDDEN_KEY;
pub use self::{
    algorithm::{Algorithm, algorithms},
    command::{
        Hthresh, Line, Monitor, PolicyKeyArgs, PolicyTarget, SaveArgs, SpiRequest, StateKey,
        SyncArgs, Topic, XfrmCommand,
    },
    cursor::SyntaxError,
    error::{Error, Position, one_of},
    filter::{PolicyFilter, SelectorFilter, StateFilter},
    keyword::AlgorithmKind,
    mark::OutputMarkArgs,
    options::{CliOptions, Notation, Style, Timestamps},
    policy::PolicyArgs,
    secret::RedactedWord,
    state::{EncapArgs, ReplayArgs, StateArgs, StateClause},
    template::TemplateArgs,
    written::{LineWriter, UnwritableError},
};
use self::{
    cursor::Cursor,
    keyword::{OBJECTS, OPTIONS, Object, PROGRAM_OBJECTS, ProgramOption},
    lexer::{Lines, Word},
};

/// A command and the line where it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located<T> {
    /// Line in the file, from 1.
    pub line: u32,
    /// What stands there.
    pub value: T,
}

/// What may stand before the object in a batch file's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinePrefix {
    /// `[ip [OPTIONS]] xfrm`, as in a script.
    Program,
    /// The same or nothing, as in a file for `uxfrm xfrm -batch`.
    Optional,
}

/// The commands of a batch file, without comments and blank lines. The caller wipes the text if it
/// holds keys.
pub fn lines(
    text: &str,
    prefix: LinePrefix,
) -> impl Iterator<Item = Result<Located<XfrmCommand>, SyntaxError>> {
    Lines::of(text).map(move |words| {
        let words = words?;
        let line = words.first().map_or(1, |word| word.at.line);
        let value = batch_line(&words, prefix, None)?;
        Ok(Located { line, value })
    })
}

/// The command of `text`, one line with its continuations; `None` for a blank line or a comment.
/// `family` is the preferred one.
///
/// # Errors
/// What is wrong with it; lines are counted from the text's first.
pub fn line(text: &str, family: Option<Family>) -> Result<Option<XfrmCommand>, SyntaxError> {
    match Lines::of(text).next() {
        None => Ok(None),
        Some(words) => batch_line(&words?, LinePrefix::Optional, family).map(Some),
    }
}

/// Reads the words of one command, from the object on (`state add …`), as a shell passes them.
///
/// # Errors
/// What is wrong with it.
pub fn words<S: AsRef<str>>(words: &[S], family: Option<Family>) -> Result<Line, SyntaxError> {
    let words = literal(words);
    object(&mut Cursor::new(&words, family))
}

/// Words that need no reading; columns count as if one blank stood between them.
fn literal<S: AsRef<str>>(words: &[S]) -> Vec<Word<'_>> {
    let mut column = 1;
    let mut literal = Vec::with_capacity(words.len());
    for word in words {
        literal.push(Word::literal(word.as_ref(), Position { line: 1, column }));
        let len = u32::try_from(word.as_ref().chars().count()).unwrap_or(u32::MAX - column - 1);
        column = column.saturating_add(len).saturating_add(1);
    }
    literal
}

fn batch_line(
    words: &[Word<'_>],
    prefix: LinePrefix,
    family: Option<Family>,
) -> Result<XfrmCommand, SyntaxError> {
    if let Some(fault) = words.iter().find_map(Word::unexpanded) {
        return Err(fault);
    }
    let mut cursor = Cursor::new(words, family);
    cursor.skip_program();
    while cursor.peek().is_some_and(|word| word.text().starts_with('-')) {
        line_option(&mut cursor)?;
    }
    match prefix {
        LinePrefix::Program => cursor.abbreviated(&PROGRAM_OBJECTS)?,
        LinePrefix::Optional if cursor.peek().is_some_and(|word| word.text().starts_with('x')) => {
            cursor.abbreviated(&PROGRAM_OBJECTS)?;
        }
        LinePrefix::Optional => {}
    }
    let refuse = |cursor: &Cursor<'_, '_>, what: &str| Err(cursor.refuse(what));
    match object(&mut cursor)? {
        Line::Command(command) => Ok(command),
        Line::Monitor(_) => refuse(&cursor, "\"monitor\" never ends: it is not for batch files"),
        Line::Save(_) => refuse(&cursor, "\"save\" is not for batch files"),
        Line::Sync(_) => refuse(&cursor, "\"sync\" is not for batch files"),
        Line::Help(_) => refuse(&cursor, "\"help\" is not for batch files"),
    }
}

/// Options that a line of a script may have: the family counts, what changes the output does not.
fn line_option(cursor: &mut Cursor<'_, '_>) -> Result<(), SyntaxError> {
    const ALLOWED: &[&str] = &[
        "-4",
        "-6",
        "-family",
        "-stats",
        "-statistics",
        "-details",
        "-oneline",
        "-json",
        "-pretty",
    ];
    let word = cursor.peek().map(Word::text).unwrap_or_default();
    let is_allowed = OPTIONS.abbreviated(word).is_some_and(|entry| ALLOWED.contains(&entry.word));
    if !is_allowed {
        return Err(cursor.unknown(ALLOWED));
    }
    let option = cursor.abbreviated(&OPTIONS)?;
    if matches!(option, ProgramOption::Inet) {
        cursor.family = Some(Family::V4);
    } else if matches!(option, ProgramOption::Inet6) {
        cursor.family = Some(Family::V6);
    } else if matches!(option, ProgramOption::Family) {
        cursor.family = Some(cursor.choice(&keyword::FAMILIES)?);
    }
    Ok(())
}

/// `state|policy COMMAND …`, `monitor|save|sync …`
fn object(cursor: &mut Cursor<'_, '_>) -> Result<Line, SyntaxError> {
    match cursor.abbreviated(&OBJECTS)? {
        Object::State => state::parse(cursor),
        Object::Policy => policy::parse(cursor),
        Object::Monitor => monitor::parse(cursor),
        Object::Save => backup::parse_save(cursor),
        Object::Sync => backup::parse_sync(cursor),
        Object::Help => Ok(Line::Help(Topic::Objects)),
    }
}
