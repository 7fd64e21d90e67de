//! Text into words: quotes, comments, continuation lines (`lib/utils.c: getcmdline, makeargs`).

use zeroize::Zeroizing;

use super::{
    cursor::SyntaxError,
    error::{Error, Position},
    secret::RedactedWord,
};

/// A word and where it begins.
#[derive(Debug)]
pub(super) struct Word<'a> {
    text: Text<'a>,
    quote: Option<char>,
    pub(super) at: Position,
}

/// The text itself: it may be a key, so a copy is wiped.
enum Text<'a> {
    Slice(&'a str),
    /// Joined over a continuation.
    Joined(Zeroizing<String>),
}

impl std::fmt::Debug for Text<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Text(redacted)")
    }
}

impl<'a> Word<'a> {
    /// A word that needs no reading.
    pub(super) fn literal(text: &'a str, at: Position) -> Self {
        Self { text: Text::Slice(text), quote: Some('\''), at }
    }

    pub(super) fn text(&self) -> &str {
        match &self.text {
            Text::Slice(text) => text,
            Text::Joined(text) => text,
        }
    }

    /// The fault of a shell variable that nobody expanded.
    pub(super) fn unexpanded(&self) -> Option<SyntaxError> {
        if self.quote == Some('\'') {
            return None;
        }
        let name = variable_in(self.text())?;
        Some(SyntaxError {
            at: self.at,
            error: Error::Rule(format!(
                "shell variables are not expanded here ({name}); single quotes keep the \"$\""
            )),
        })
    }
}

/// The lines of a text, comments and blank lines left out.
pub(super) struct Lines<'a> {
    text: &'a str,
    /// Byte that comes next.
    next: usize,
    at: Position,
}

impl<'a> Lines<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        Self { text, next: 0, at: Position { line: 1, column: 1 } }
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.next..).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn advance(&mut self, character: char) {
        self.next += character.len_utf8();
        self.at = match character {
            '\n' => Position { line: self.at.line.saturating_add(1), column: 1 },
            _ => Position { column: self.at.column.saturating_add(1), ..self.at },
        };
    }

    fn skip_while(&mut self, fits: impl Fn(char) -> bool) {
        while let Some(character) = self.peek().filter(|c| fits(*c)) {
            self.advance(character);
        }
    }

    /// Skips ordinary characters of a word.
    fn skip_plain(&mut self) {
        let is_plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'\\' | b'#');
        let plain = self.rest().bytes().take_while(is_plain).count();
        self.next += plain;
        let columns = u32::try_from(plain).unwrap_or(u32::MAX);
        self.at.column = self.at.column.saturating_add(columns);
    }

    /// Skips a backslash at the end of a line, and blanks between them.
    fn skip_continuation(&mut self) -> Result<bool, SyntaxError> {
        let Some(behind) = self.rest().strip_prefix('\\') else { return Ok(false) };
        if !behind.trim_start_matches(is_blank).starts_with('\n') {
            return Ok(false);
        }
        let backslash = self.at;
        self.skip_while(|c| c != '\n');
        self.advance('\n');
        if self.rest().is_empty() {
            let error = Error::Rule("missing continuation line".to_owned());
            return Err(SyntaxError { at: backslash, error });
        }
        Ok(true)
    }

    /// The words up to the end of the line; none for a blank one.
    fn line(&mut self) -> Result<Vec<Word<'a>>, SyntaxError> {
        let mut words = Vec::new();
        loop {
            self.skip_while(is_blank);
            if self.skip_continuation()? {
                continue;
            }
            match self.peek() {
                None => return Ok(words),
                Some('\n') => {
                    self.advance('\n');
                    return Ok(words);
                }
                Some('#') => self.skip_while(|c| c != '\n'),
                Some(quote @ ('\'' | '"')) => words.push(self.quoted(quote)?),
                Some(_) => words.push(self.bare()?),
            }
        }
    }

    fn quoted(&mut self, quote: char) -> Result<Word<'a>, SyntaxError> {
        let at = self.at;
        self.advance(quote);
        let mut pieces = Pieces::from(self.next);
        loop {
            let end = self.next;
            if self.skip_continuation()? {
                pieces.cut(self.text, end, self.next);
                continue;
            }
            match self.peek() {
                None | Some('\n') => {
                    let error = Error::Rule("unterminated quoted string".to_owned());
                    return Err(SyntaxError { at, error });
                }
                Some(c) if c == quote => break,
                Some(c) => self.advance(c),
            }
        }
        let text = pieces.join(self.text, self.next);
        self.advance(quote);
        if self.peek().is_some_and(|c| !is_blank(c) && !matches!(c, '\n' | '\\')) {
            let error = Error::Rule("a blank has to follow the closing quote".to_owned());
            return Err(SyntaxError { at: self.at, error });
        }
        Ok(Word { text, quote: Some(quote), at })
    }

    fn bare(&mut self) -> Result<Word<'a>, SyntaxError> {
        let at = self.at;
        let mut pieces = Pieces::from(self.next);
        loop {
            self.skip_plain();
            let end = self.next;
            if self.skip_continuation()? {
                pieces.cut(self.text, end, self.next);
                continue;
            }
            match self.peek() {
                None | Some('\n') => break,
                Some('#') => return Err(SyntaxError { at: self.at, error: hash_in_word() }),
                Some(c) if is_blank(c) => break,
                Some(c) => self.advance(c),
            }
        }
        Ok(Word { text: pieces.join(self.text, self.next), quote: None, at })
    }
}

impl<'a> Iterator for Lines<'a> {
    type Item = Result<Vec<Word<'a>>, SyntaxError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.next < self.text.len() {
            match self.line() {
                Ok(words) if words.is_empty() => {}
                Ok(words) => return Some(Ok(words)),
                Err(fault) => {
                    self.skip_while(|c| c != '\n');
                    return Some(Err(fault));
                }
            }
        }
        None
    }
}

/// A word's parts between continuations.
struct Pieces<'a> {
    done: Vec<&'a str>,
    begin: usize,
}

impl<'a> Pieces<'a> {
    fn from(begin: usize) -> Self {
        Self { done: Vec::new(), begin }
    }

    fn cut(&mut self, text: &'a str, end: usize, next: usize) {
        self.done.push(text.get(self.begin..end).unwrap_or_default());
        self.begin = next;
    }

    /// `concat` makes one allocation of the right size: no half-grown copy of a key stays behind.
    fn join(mut self, text: &'a str, end: usize) -> Text<'a> {
        let last = text.get(self.begin..end).unwrap_or_default();
        if self.done.is_empty() {
            return Text::Slice(last);
        }
        self.done.push(last);
        Text::Joined(Zeroizing::new(self.done.concat()))
    }
}

fn is_blank(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\r')
}

fn hash_in_word() -> Error {
    Error::Rule(
        "a \"#\" inside a word: put a blank before it if it begins a comment, or quotes around the word".to_owned(),
    )
}

/// `$NAME`, `${NAME}` or `$(…)` in a text, as far as it is a name.
fn variable_in(text: &str) -> Option<RedactedWord> {
    text.match_indices('$').find_map(|(place, _)| {
        let behind = text.get(place + 1..)?;
        let name = behind.strip_prefix(['{', '(']).unwrap_or(behind);
        let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(name.len());
        let name = name.get(..end)?;
        if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        // All of the word, or it may be an ASCII key with a `$` in it.
        let whole = place == 0 && behind.trim_matches(['{', '}', '(', ')']).len() == end;
        Some(if whole { RedactedWord::behind_key(name) } else { RedactedWord::key(text) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<Result<Vec<String>, String>> {
        Lines::of(text)
            .map(|line| {
                line.map(|words| words.iter().map(|word| word.text().to_owned()).collect()).map_err(
                    |fault| format!("{}:{}: {}", fault.at.line, fault.at.column, fault.error),
                )
            })
            .collect()
    }

    fn line(words: &[&str]) -> Result<Vec<String>, String> {
        Ok(words.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn lexer_splits_words_as_iproute2() {
        for (text, words) in [
            ("a b\tc\r\n", &["a", "b", "c"][..]),
            ("  a # b 'c\n", &["a"]),
            ("a 'b c' \"d'e\" ''\n", &["a", "b c", "d'e", ""]),
            ("a '#b' \\c d'e", &["a", "#b", "\\c", "d'e"]),
            ("a \\\n b", &["a", "b"]),
            ("a \\ \t\r\n b", &["a", "b"]),
            ("0x12\\\n34", &["0x1234"]),
            ("'1 2\\\n3 4'", &["1 23 4"]),
        ] {
            assert_eq!(read(text), [line(words)], "{text:?}");
        }
        assert_eq!(read("\n#x\n \n"), []);
        assert_eq!(read("a\n\nb"), [line(&["a"]), line(&["b"])]);
    }

    #[test]
    fn comment_ends_at_line_end_despite_backslash() {
        assert_eq!(read("a # b \\\nc"), [line(&["a"]), line(&["c"])]);
    }

    #[test]
    fn lexer_error_has_position_and_next_line_is_read() {
        for (text, error) in [
            ("a 'b\nc", "1:3: unterminated quoted string"),
            ("a 'b'c\nc", "1:6: a blank has to follow the closing quote"),
        ] {
            assert_eq!(read(text), [Err(error.to_owned()), line(&["c"])]);
        }
        assert!(read("ab#c")[0].as_ref().unwrap_err().starts_with("1:3: a \"#\" inside a word"));
        assert_eq!(read("a \\\n"), [Err("1:3: missing continuation line".to_owned())]);
    }

    #[test]
    fn dollar_is_literal_in_single_quotes_only() {
        for (text, found) in
            [("$KEY", true), ("\"${KEY}\"", true), ("'$KEY'", false), ("$", false), ("a$1", false)]
        {
            let words = Lines::of(text).next().unwrap().unwrap();
            assert_eq!(words[0].unexpanded().is_some(), found, "{text}");
        }
    }
}
