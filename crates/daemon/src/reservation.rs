//! Sequence numbers across restarts: no IV is used twice under a static key.
//!
//! States from batch files have the same keys after a restart, so their numbers must go on above any that may have been
//! used. A file keeps, for each state that sends, a number ahead of use; a state hands out none above it
//! ([`Sequence::reserve`](uxfrm_engine::Sequence::reserve)). An orderly end writes down the exact numbers; after a crash the
//! rest of a reservation is lost, which peers see as a gap.
//!
//! It is the key that must not meet an IV again. So numbers go on wherever the key is used, also under another SPI, and a state
//! that was given another key begins where its line says. The file names keys by their fingerprints and holds none.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use uxfrm_engine::{Direction, Sa, SaConfig, Sad};

/// How many numbers are reserved at a time: a second's at four million packets per second, renewed when half are used. A
/// crash loses them, so without ESN a key lasts a thousand crashes.
const AHEAD: u64 = 1 << 22;

/// Nobody else may read the file: fingerprints help to guess weak keys.
const OWNER: u32 = 0o600;

/// The file of reservations, and what it says.
#[derive(Debug)]
pub(crate) struct Reservations {
    path: PathBuf,
    numbers: BTreeMap<String, u64>,
}

impl Reservations {
    /// Reads the file; none yet is an empty one.
    ///
    /// # Errors
    /// A file that can't be read or has other lines than ours: starting without it could use an IV twice.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        let numbers = text.lines().map(parse).collect::<Result<_, _>>()?;
        Ok(Self { path: path.to_owned(), numbers })
    }

    /// Lets a state begin above all numbers that may have been used with its key before: at its last one, if those were all.
    pub(crate) fn resume(&self, config: &mut SaConfig) {
        if config.direction == Some(Direction::In) {
            return;
        }
        let key = key_name(config);
        let with_key =
            self.numbers.range(key.clone()..).take_while(|(name, _)| name.starts_with(&key));
        if let Some(used) = with_key.map(|(_, number)| *number).max() {
            if used >= config.last_number() {
                let (destination, spi) = (config.id.destination, config.id.spi);
                tracing::warn!(%destination, %spi, "this key has used all its sequence numbers: nothing is sent until it is replaced");
            }
            config.replay.sent = config.replay.sent.max(used.min(config.last_number()));
        }
    }

    /// Reserves numbers for all states that are running short of them, and writes them down first.
    ///
    /// # Errors
    /// When the file can't be written; nothing is reserved then, and those states stop when theirs end.
    pub(crate) fn renew(&mut self, sad: &Sad) -> io::Result<()> {
        let short: Vec<_> = sad.iter().filter(|sa| sends(sa) && self.is_short(sa)).collect();
        if short.is_empty() {
            return Ok(());
        }
        for sa in &short {
            let ceiling = sa.sequence().last().saturating_add(AHEAD);
            self.numbers.insert(name(sa.config()), ceiling);
        }
        self.write()?;
        for sa in short {
            sa.sequence().reserve(self.numbers[&name(sa.config())]);
        }
        Ok(())
    }

    /// Writes down the very numbers that were used. The states must be at rest.
    ///
    /// # Errors
    /// When the file can't be written; the reservations in it stand.
    pub(crate) fn settle(mut self, sad: &Sad) -> io::Result<()> {
        for sa in sad.iter().filter(|sa| sends(sa)) {
            self.numbers.insert(name(sa.config()), sa.sequence().last());
        }
        self.write()
    }

    fn is_short(&self, sa: &Sa) -> bool {
        let reserved = self.numbers.get(&name(sa.config())).copied().unwrap_or(0);
        reserved.saturating_sub(sa.sequence().last()) < AHEAD / 2
    }

    /// Replaces the file as a whole: a crash leaves the old one or the new one.
    fn write(&self) -> io::Result<()> {
        let new = self.path.with_extension("sequences.new");
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(OWNER).open(&new)?;
        for (state, number) in &self.numbers {
            writeln!(file, "{state} {number}")?;
        }
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or_else(|| Path::new(".")))?.sync_all()
    }
}

fn sends(sa: &Sa) -> bool {
    sa.config().direction != Some(Direction::In)
}

/// What names a state in the file.
fn name(config: &SaConfig) -> String {
    let (key, id, mark) = (key_name(config), config.id, config.mark);
    format!("{key} {} {} {:#x}/{:#x}", id.destination, id.spi, mark.value, mark.mask)
}

/// What names a state's key in the file: that of the cipher, which the IV belongs to. Without a cipher no IV matters.
fn key_name(config: &SaConfig) -> String {
    let transform = &config.transform;
    let no_cipher = transform.encryption_key.is_empty();
    let key = if no_cipher { &transform.authentication_key } else { &transform.encryption_key };
    format!("{:032x}", key.fingerprint())
}

fn parse(line: &str) -> io::Result<(String, u64)> {
    let parts =
        line.rsplit_once(' ').and_then(|(state, number)| Some((state, number.parse().ok()?)));
    let (state, number) = parts.ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("no reservation of sequence numbers: {line:?}"),
        )
    })?;
    Ok((state.to_owned(), number))
}

#[cfg(test)]
mod tests;
