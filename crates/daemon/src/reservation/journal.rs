//! The file of reservations: a line for each state, in the order in which they were written; of several about one state the last one
//! counts. Lines are added and synced in one go; when most are out of date, the file is replaced as a whole.
//!
//! A crash may cut off what was being added. Nobody relied on that: what follows the last line's end, or the first zero byte, is no line.

use std::{
    fmt::Write as _,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use super::name::StateName;

/// Nobody else may read the file: fingerprints help to guess weak keys.
pub(super) const OWNER: u32 = 0o600;

/// Lines that may be out of date before the file is replaced, besides as many as are not.
const SLACK: usize = if cfg!(test) { 16 } else { 4096 };

/// The file, and what is to be added to it.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    /// Open at its end; `None` when it has to be replaced first.
    file: Option<File>,
    /// Lines in the file.
    lines: usize,
    text: String,
    new_lines: usize,
}

impl Journal {
    /// Reads the file; none yet is an empty one. It is not touched before something is added.
    pub(super) fn open(path: &Path) -> io::Result<(Self, Vec<(StateName, u64)>)> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        let confirmed = text.split('\0').next().unwrap_or_default();
        let whole = confirmed.rfind('\n').map_or("", |end| &confirmed[..end]);
        let read = whole.lines().map(parse).collect::<Result<_, _>>()?;
        let path = path.to_owned();
        Ok((Self { path, file: None, lines: 0, text: String::new(), new_lines: 0 }, read))
    }

    /// Adds a line at the next [`Journal::commit`].
    pub(super) fn note(&mut self, state: &StateName, number: u64) {
        // Text takes any text.
        let _endless = writeln!(self.text, "{state} {number}");
        self.new_lines += 1;
    }

    /// Whether something was noted since the last [`Journal::commit`].
    pub(super) const fn has_news(&self) -> bool {
        self.new_lines > 0
    }

    /// Brings what was noted to the disk. `current` has all that counts, what was noted included.
    ///
    /// # Errors
    /// When the file can't be written; it is replaced as a whole the next time.
    pub(super) fn commit<'a>(
        &mut self,
        current: impl ExactSizeIterator<Item = (&'a StateName, u64)>,
    ) -> io::Result<()> {
        if self.new_lines == 0 {
            return Ok(());
        }
        let worth_replacing = self.lines + self.new_lines > 2 * current.len() + SLACK;
        let file = self.file.take().filter(|_| !worth_replacing);
        self.file = Some(match file {
            Some(file) => self.append(file)?,
            None => self.replace(current)?,
        });
        self.text.clear();
        self.new_lines = 0;
        Ok(())
    }

    fn append(&mut self, mut file: File) -> io::Result<File> {
        file.write_all(self.text.as_bytes())?;
        file.sync_data()?;
        self.lines += self.new_lines;
        Ok(file)
    }

    /// A crash leaves the old file or the new one.
    fn replace<'a>(
        &mut self,
        current: impl ExactSizeIterator<Item = (&'a StateName, u64)>,
    ) -> io::Result<File> {
        // Beside the file, by its whole name: another gateway may have one that differs in its extension alone.
        let mut new = self.path.clone().into_os_string();
        new.push(".new");
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(OWNER).open(&new)?;
        self.lines = current.len();
        let mut text = String::new();
        for (state, number) in current {
            let _endless = writeln!(text, "{state} {number}");
        }
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or_else(|| Path::new(".")))?.sync_all()?;
        Ok(file)
    }
}

fn parse(line: &str) -> io::Result<(StateName, u64)> {
    let parts = line
        .rsplit_once(' ')
        .and_then(|(state, number)| Some((state.parse().ok()?, number.parse().ok()?)));
    parts.ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("no reservation of sequence numbers: {line:?}"),
        )
    })
}
