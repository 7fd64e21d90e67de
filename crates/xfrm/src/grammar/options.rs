//! The options before the object: `-s -d -o -j -p -4 -6 -batch FILE …` (`ip/ip.c: main`).

use std::path::PathBuf;

use uxfrm_engine::Family;

use super::{
    cursor::{Cursor, SyntaxError},
    keyword::{FAMILIES, OPTIONS, ProgramOption},
    literal,
};

/// How answers are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// How many `-s`.
    pub statistics: u8,
    /// `-o`, `-j`, `-p`.
    pub notation: Notation,
    /// `-t`, `-ts`: when an event came.
    pub timestamps: Timestamps,
    /// `-4`, `-6`
    pub family: Option<Family>,
}

/// What an answer is written as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Notation {
    /// iproute2's lines.
    #[default]
    Text,
    /// The same with `\` for line ends: one line for each answer.
    Oneline,
    /// JSON without blanks.
    Json,
    /// JSON for people.
    PrettyJson,
}

/// Before each event of `monitor`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timestamps {
    /// Nothing.
    #[default]
    None,
    /// A line of its own.
    Long,
    /// A time in brackets.
    Short,
}

/// The options of a command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CliOptions {
    /// How answers are shown.
    pub style: Style,
    /// `-batch`: `-` is standard input.
    pub batch: Option<PathBuf>,
    /// `-force`: a batch goes on behind a line that failed.
    pub force: bool,
    /// `-netns`: the gateway of that namespace.
    pub namespace: Option<String>,
    /// `-control`: the gateway at this socket.
    pub control: Option<PathBuf>,
    /// `-help`
    pub help: bool,
    /// `-Version`
    pub version: bool,
    /// `-pretty`, which changes nothing without `-json`.
    pretty: bool,
}

impl CliOptions {
    /// Reads the options at the beginning of `words`; and how many words they are.
    ///
    /// # Errors
    /// An option that there is not, or without its value.
    pub fn parse<S: AsRef<str>>(words: &[S]) -> Result<(Self, usize), SyntaxError> {
        // As iproute2: `--stats` is `-stats`.
        let single = |word: &S| {
            let word = word.as_ref();
            if word.len() > 2 && word.starts_with("--") {
                word[1..].to_owned()
            } else {
                word.to_owned()
            }
        };
        let words: Vec<String> = words.iter().map(single).collect();
        let words = literal(&words);
        let mut cursor = Cursor::new(&words, None);
        let mut options = Self::default();
        let mut count = 0;
        while let Some(word) = cursor.peek().filter(|word| word.text().starts_with('-')) {
            if word.text() == "--" {
                return Ok((options, count + 1));
            }
            count = options.take(&mut cursor)?;
        }
        Ok((options, count))
    }

    /// Takes one option; how many words it was.
    fn take(&mut self, cursor: &mut Cursor<'_, '_>) -> Result<usize, SyntaxError> {
        let style = &mut self.style;
        match cursor.abbreviated(&OPTIONS)? {
            ProgramOption::Inet => style.family = Some(Family::V4),
            ProgramOption::Inet6 => style.family = Some(Family::V6),
            ProgramOption::Statistics => style.statistics = style.statistics.saturating_add(1),
            ProgramOption::Oneline => style.notation = Notation::Oneline,
            ProgramOption::Json if self.pretty => style.notation = Notation::PrettyJson,
            ProgramOption::Json => style.notation = Notation::Json,
            ProgramOption::Pretty => {
                self.pretty = true;
                if style.notation == Notation::Json {
                    style.notation = Notation::PrettyJson;
                }
            }
            ProgramOption::Timestamp => style.timestamps = Timestamps::Long,
            ProgramOption::ShortTimestamp => style.timestamps = Timestamps::Short,

            ProgramOption::Force => self.force = true,
            ProgramOption::Help => self.help = true,
            ProgramOption::Version => self.version = true,
            ProgramOption::Details | ProgramOption::Ignored => {}
            ProgramOption::Family => style.family = Some(cursor.choice(&FAMILIES)?),
            ProgramOption::Batch => self.batch = Some(cursor.value()?.text().into()),
            ProgramOption::Namespace => self.namespace = Some(cursor.value()?.text().to_owned()),
            ProgramOption::Control => self.control = Some(cursor.value()?.text().into()),
            ProgramOption::IgnoredWithValue => {
                cursor.value()?;
            }
        }
        Ok(cursor.taken())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> (CliOptions, usize) {
        let words: Vec<&str> = line.split(' ').collect();
        CliOptions::parse(&words).unwrap()
    }

    #[test]
    fn options_abbreviate_as_in_iproute2() {
        for (line, style) in [
            ("-s -s state", Style { statistics: 2, ..Style::default() }),
            ("--statistics state", Style { statistics: 1, ..Style::default() }),
            (
                "-o -6 state",
                Style { notation: Notation::Oneline, family: Some(Family::V6), ..Style::default() },
            ),
            ("-f inet state", Style { family: Some(Family::V4), ..Style::default() }),
            ("-p -j state", Style { notation: Notation::PrettyJson, ..Style::default() }),
            ("-ts monitor", Style { timestamps: Timestamps::Short, ..Style::default() }),
        ] {
            assert_eq!(read(line).0.style, style, "{line}");
        }
        assert_eq!(read("-s -b x -fo").1, 4);
        let (options, words) = read("-force -batch - ");
        assert_eq!((options.force, options.batch, words), (true, Some("-".into()), 3));
        assert_eq!(read("-- state").1, 1);
        assert!(CliOptions::parse(&["-x"]).is_err() && CliOptions::parse(&["-batch"]).is_err());
    }
}
