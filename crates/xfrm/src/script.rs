//! `-batch FILE`: lines are pipelined, failures reported with their line (`lib/utils.c: do_batch`).
//!
//! Two departures from iproute2. Lines are in flight together: without `-force` nothing is read
//! after a failure, but lines already sent are carried out. And failures name their line: iproute2
//! itself ends at a failure of `ip xfrm`, before it could.

use std::io::Read;

use zeroize::{Zeroize as _, Zeroizing};

/// Bytes per read: what a pipe holds, and more while the source always fills it.
const PIECE: usize = 64 * 1024;
const LARGEST: usize = 16 * PIECE;

/// A whole line with its continuations, as it stands.
#[derive(Debug)]
pub(crate) struct Line {
    /// The number of its first line, from 1.
    pub(crate) number: u32,
    /// Wiped: it may have keys in it.
    pub(crate) text: Zeroizing<String>,
}

/// What comes next.
#[derive(Debug)]
pub(crate) enum Next {
    /// A line.
    Line(Line),
    /// No input for now: outstanding answers are awaited before more is read.
    Pause,
    /// The end.
    End,
}

/// The lines of a file or a pipe.
pub(crate) struct Lines<R> {
    source: R,
    /// Bytes that are read and not taken yet.
    held: Zeroizing<Vec<u8>>,
    taken: usize,
    piece: usize,
    number: u32,
    is_at_end: bool,
    has_paused: bool,
}

impl<R: Read> Lines<R> {
    pub(crate) fn of(source: R) -> Self {
        Self {
            source,
            held: Zeroizing::new(Vec::with_capacity(2 * PIECE)),
            taken: 0,
            piece: PIECE,
            number: 1,
            is_at_end: false,
            has_paused: false,
        }
    }

    /// The next line; a pause before every read, so that answers are not held up by a slow writer.
    pub(crate) fn next(&mut self) -> std::io::Result<Next> {
        loop {
            if let Some(line) = self.cut()? {
                self.has_paused = false;
                return Ok(Next::Line(line));
            }
            if self.is_at_end {
                return Ok(Next::End);
            }
            if !self.has_paused {
                self.has_paused = true;
                return Ok(Next::Pause);
            }
            self.read()?;
        }
    }

    /// A whole line from the buffer.
    fn cut(&mut self) -> std::io::Result<Option<Line>> {
        let rest = &self.held[self.taken..];
        let is_last = self.is_at_end && !rest.is_empty();
        let Some(len) = whole_line(rest).or_else(|| is_last.then_some(rest.len())) else {
            return Ok(None);
        };
        let text = std::str::from_utf8(&rest[..len])
            .map_err(|error| std::io::Error::new(std::io::ErrorKind::InvalidData, error))?;
        let line = Line { number: self.number, text: Zeroizing::new(text.to_owned()) };
        let lines = text.bytes().filter(|byte| *byte == b'\n').count();
        self.number = self.number.saturating_add(u32::try_from(lines).unwrap_or(u32::MAX));
        self.taken += len;
        Ok(Some(line))
    }

    fn read(&mut self) -> std::io::Result<()> {
        let mut held =
            Zeroizing::new(Vec::with_capacity(self.held.len() - self.taken + self.piece));
        held.extend_from_slice(&self.held[self.taken..]);
        self.held = held;
        self.taken = 0;
        let start = self.held.len();
        self.held.resize(start + self.piece, 0);
        let count = loop {
            match self.source.read(&mut self.held[start..]) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                result => break result?,
            }
        };
        self.held[start + count..].zeroize();
        self.held.truncate(start + count);
        if count == self.piece {
            self.piece = LARGEST.min(2 * self.piece);
        }
        self.is_at_end = count == 0;
        Ok(())
    }
}

/// Bytes of the first line with those that continue it; `None` where its end is not there yet.
fn whole_line(text: &[u8]) -> Option<usize> {
    let mut start = 0;
    loop {
        let len = text[start..].iter().position(|byte| *byte == b'\n')?;
        let end = start + len;
        if !is_continued(&text[start..end]) {
            return Some(end + 1);
        }
        start = end + 1;
    }
}

/// Blanks may follow the backslash; in a comment it means nothing.
fn is_continued(line: &[u8]) -> bool {
    if comment_in(line).is_some() {
        return false;
    }
    line.iter().rev().find(|byte| !matches!(byte, b' ' | b'\t' | b'\r')) == Some(&b'\\')
}

/// Where a comment begins: `#` at the start of a word and outside quotes.
fn comment_in(line: &[u8]) -> Option<usize> {
    let (mut quote, mut at_start) = (None, true);
    for (place, byte) in line.iter().enumerate() {
        match (quote, byte) {
            (Some(open), byte) if open == *byte => quote = None,
            (Some(_), _) => {}
            (None, b'#') if at_start => return Some(place),
            (None, b'\'' | b'"') if at_start => quote = Some(*byte),
            (None, _) => {}
        }
        at_start = matches!(byte, b' ' | b'\t' | b'\r');
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives its bytes in pieces of a length.
    struct Trickle<'a>(&'a [u8], usize);

    impl Read for Trickle<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let len = self.1.min(self.0.len()).min(buffer.len());
            let (now, later) = self.0.split_at(len);
            buffer[..len].copy_from_slice(now);
            self.0 = later;
            Ok(len)
        }
    }

    fn lines(text: &str, piece: usize) -> Vec<(u32, String)> {
        let mut lines = Lines::of(Trickle(text.as_bytes(), piece));
        let mut found = Vec::new();
        loop {
            match lines.next().unwrap() {
                Next::Line(line) => found.push((line.number, line.text.to_string())),
                Next::Pause => {}
                Next::End => return found,
            }
        }
    }

    #[test]
    fn script_lines_are_whole_for_any_read_size() {
        let text = "a b\n\nc \\ \n d\\\ne\n# x \\\n'#' \\\nf\nlast";
        let whole = [
            (1, "a b\n"),
            (2, "\n"),
            (3, "c \\ \n d\\\ne\n"),
            (6, "# x \\\n"),
            (7, "'#' \\\nf\n"),
            (9, "last"),
        ];
        let whole: Vec<_> = whole.map(|(number, text)| (number, text.to_owned())).into();
        for piece in [1, 2, 3, 7, 1000] {
            assert_eq!(lines(text, piece), whole, "{piece}");
        }
        assert_eq!(lines("", 1), []);
    }

    #[test]
    fn script_pauses_before_reading_more() {
        let mut lines = Lines::of(Trickle(b"a\nb\n", 2));
        let mut seen = String::new();
        loop {
            match lines.next().unwrap() {
                Next::Line(line) => seen.push_str(line.text.trim()),
                Next::Pause => seen.push('.'),
                Next::End => break,
            }
        }
        assert_eq!(seen, ".a.b.");
    }
}
