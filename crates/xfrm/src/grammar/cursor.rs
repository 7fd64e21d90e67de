//! The place in a line, and the ways to go on from it.

use uxfrm_engine::Family;

use super::{
    error::{Error, Position, one_of},
    keyword::{Entry, Table},
    lexer::Word,
    number::Number,
    secret::RedactedWord,
};

/// What is wrong with a line, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyntaxError {
    /// Where.
    pub at: Position,
    /// What.
    pub error: Error,
}

/// A line being read.
pub(super) struct Cursor<'l, 'a> {
    words: &'l [Word<'a>],
    next: usize,
    /// The last keyword that was taken: what a value belongs to.
    keyword: (&'static str, &'static str),
    /// Whether a key may have gone by.
    behind_key: bool,
    /// iproute2's preferred family: `-4`, `-6`, or the family of addresses so far.
    pub(super) family: Option<Family>,
}

impl<'l, 'a> Cursor<'l, 'a> {
    pub(super) fn new(words: &'l [Word<'a>], family: Option<Family>) -> Self {
        Self { words, next: 0, keyword: ("", ""), behind_key: false, family }
    }

    /// The next word, left where it is.
    pub(super) fn peek(&self) -> Option<&'l Word<'a>> {
        self.words.get(self.next)
    }

    /// How many words have been taken.
    pub(super) fn taken(&self) -> usize {
        self.next
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.next >= self.words.len()
    }

    /// Goes over `ip`, as a script has it, with or without its directory.
    pub(super) fn skip_program(&mut self) {
        let is_ip = |word: &Word<'_>| word.text() == "ip" || word.text().ends_with("/ip");
        self.next += usize::from(self.peek().is_some_and(is_ip));
    }

    /// Takes the next word if the table has it.
    pub(super) fn keyword<T: Copy>(&mut self, table: &Table<T>) -> Option<T> {
        let entry = table.exact(self.peek()?.text())?;
        Some(self.take(entry))
    }

    /// Takes the next word, which has to be of the table.
    pub(super) fn exactly<T: Copy>(&mut self, table: &Table<T>) -> Result<T, SyntaxError> {
        self.keyword(table).ok_or_else(|| self.unknown(&table.words()))
    }

    /// Takes the next word as a table's word or abbreviation; the first match counts.
    pub(super) fn abbreviated<T: Copy>(&mut self, table: &Table<T>) -> Result<T, SyntaxError> {
        let entry = self.peek().and_then(|word| table.abbreviated(word.text()));
        match entry {
            Some(entry) => Ok(self.take(entry)),
            None => Err(self.unknown(&table.words())),
        }
    }

    fn take<T: Copy>(&mut self, entry: &Entry<T>) -> T {
        self.keyword = (entry.word, entry.takes);
        self.next += 1;
        entry.meaning
    }

    /// The value behind the last keyword.
    pub(super) fn value(&mut self) -> Result<&'l Word<'a>, SyntaxError> {
        let (keyword, takes) = self.keyword;
        self.operand(keyword, takes)
    }

    /// The next word as the part `takes` of `keyword`, for keywords with several values.
    pub(super) fn operand(
        &mut self,
        keyword: &'static str,
        takes: &'static str,
    ) -> Result<&'l Word<'a>, SyntaxError> {
        self.keyword = (keyword, takes);
        let Some(word) = self.peek() else {
            let error =
                Error::Incomplete { after: RedactedWord::word(keyword), takes: takes.to_owned() };
            return Err(SyntaxError { at: self.last_place(), error });
        };
        self.next += 1;
        Ok(word)
    }

    /// The value behind the last keyword, one of a table.
    pub(super) fn choice<T: Copy>(&mut self, table: &Table<T>) -> Result<T, SyntaxError> {
        let word = self.value()?;
        let found = table.exact(word.text());
        found.map(|entry| entry.meaning).ok_or_else(|| self.wrong(word, one_of(&table.words())))
    }

    /// Like [`Self::choice`]; the beginning of a word will do.
    pub(super) fn abbreviated_choice<T: Copy>(
        &mut self,
        table: &Table<T>,
    ) -> Result<T, SyntaxError> {
        let word = self.value()?;
        let found = table.abbreviated(word.text());
        found.map(|entry| entry.meaning).ok_or_else(|| self.wrong(word, one_of(&table.words())))
    }

    /// The value behind the last keyword, a number.
    pub(super) fn number<N: Number>(&mut self) -> Result<N, SyntaxError> {
        let word = self.value()?;
        N::read(word.text()).ok_or_else(|| self.wrong(word, N::expected()))
    }

    /// `part` of `keyword`, a number.
    pub(super) fn number_operand<N: Number>(
        &mut self,
        keyword: &'static str,
        part: &'static str,
    ) -> Result<N, SyntaxError> {
        let word = self.operand(keyword, part)?;
        N::read(word.text()).ok_or_else(|| self.wrong(word, N::expected()))
    }

    /// From here on words may be keys: errors show them with care.
    pub(super) fn pass_key(&mut self) {
        self.behind_key = true;
    }

    /// A word as an error may show it.
    pub(super) fn shown(&self, word: &Word<'_>) -> RedactedWord {
        if self.behind_key {
            RedactedWord::behind_key(word.text())
        } else {
            RedactedWord::word(word.text())
        }
    }

    /// `word` is no value for the last keyword.
    pub(super) fn wrong(&self, word: &Word<'_>, expected: impl Into<String>) -> SyntaxError {
        let what = format!("{} value is invalid", self.keyword.1);
        let error = Error::Wrong { word: self.shown(word), what, expected: expected.into() };
        SyntaxError { at: word.at, error }
    }

    /// The next word does not belong here, or there is none where one has to be.
    pub(super) fn unknown(&self, expected: &[&'static str]) -> SyntaxError {
        match self.peek() {
            Some(word) => SyntaxError {
                at: word.at,
                error: Error::Unknown { word: self.shown(word), expected: expected.to_vec() },
            },
            None => SyntaxError {
                at: self.last_place(),
                error: Error::Incomplete {
                    after: self
                        .next
                        .checked_sub(1)
                        .and_then(|last| self.words.get(last))
                        .map_or_else(|| RedactedWord::word(""), |word| self.shown(word)),
                    takes: one_of(expected),
                },
            },
        }
    }

    /// iproute2's `invarg("unknown")`: the word is one of ours and may not stand here.
    pub(super) fn misplaced(&self, word: &Word<'_>, what: &'static str) -> SyntaxError {
        SyntaxError { at: word.at, error: Error::Misplaced { word: self.shown(word), what } }
    }

    /// `word` begins `part` a second time.
    pub(super) fn duplicate(&self, part: &'static str, word: &Word<'_>) -> SyntaxError {
        SyntaxError { at: word.at, error: Error::Duplicate { part, word: self.shown(word) } }
    }

    /// `part` is not there.
    pub(super) fn required(&self, part: &'static str) -> SyntaxError {
        SyntaxError { at: self.last_place(), error: Error::Required(part) }
    }

    /// What was read does not go together.
    pub(super) fn refuse(&self, rule: impl Into<String>) -> SyntaxError {
        SyntaxError { at: self.last_place(), error: Error::Rule(rule.into()) }
    }

    /// Where the last word that was taken begins.
    pub(super) fn last_place(&self) -> Position {
        let last = self.words.get(self.next.saturating_sub(1)).or_else(|| self.words.last());
        last.map_or(Position { line: 1, column: 1 }, |word| word.at)
    }
}
