//! Sequence numbers across restarts: no IV is used twice under a static key.
//!
//! States from batch files have the same keys after a restart, so their numbers must go on above any that may have been
//! used. A file keeps, for each state that sends, a number ahead of use; a state hands out none above it
//! ([`Sequence::reserve`](uxfrm_engine::Sequence::reserve)). The file holds no keys. An orderly end writes down the exact numbers; after a crash the
//! rest of a reservation is lost, which peers see as a gap.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use uxfrm_engine::{Direction, Sa, SaConfig, Sad};

/// How many numbers are reserved at a time: at ten million packets per second a second and a half.
const AHEAD: u64 = 1 << 24;

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

    /// Lets a state begin above all numbers that it may have used before.
    pub(crate) fn resume(&self, config: &mut SaConfig) {
        if let Some(number) = self.numbers.get(&name(config)) {
            config.replay.sent = config.replay.sent.max(*number);
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
        let mut file = File::create(&new)?;
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
    let mark = config.mark;
    format!("{} {} {:#x}/{:#x}", config.id.destination, config.id.spi, mark.value, mark.mask)
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
mod tests {
    use uxfrm_crypto::Backend;
    use uxfrm_engine::{Database, Moment};

    use super::*;
    use crate::batch::{self, Command};

    const LINE: &str = "xfrm state add src 10.0.0.1 dst 10.0.0.2 proto esp spi 7 mode transport \
        aead 'rfc4106(gcm(aes))' 0x3132333435363738393031323334353664636261 128";

    /// A gateway's start: databases with one state, its numbers resumed and reserved.
    fn start(path: &Path) -> (Database, Reservations) {
        let mut reservations = Reservations::open(path).unwrap();
        let mut database = Database::new(Backend::Portable);
        for line in batch::parse("test", LINE).unwrap() {
            let Command::StateAdd(mut config) = line.value else { panic!("not a state") };
            reservations.resume(&mut config);
            database.apply(Moment(0), |change| change.add_sa(*config)).unwrap();
        }
        reservations.renew(&database.snapshot().sad).unwrap();
        (database, reservations)
    }

    fn take(database: &Database, count: u32) -> u64 {
        let snapshot = database.snapshot();
        let sa = snapshot.sad.iter().next().unwrap();
        sa.sequence().take(count).unwrap().first
    }

    #[test]
    fn a_crash_loses_numbers_and_repeats_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("gateway.sequences");
        let (database, reservations) = start(&path);
        assert_eq!(take(&database, 1000), 1);
        drop((database, reservations));
        let (database, _) = start(&path);
        assert!(take(&database, 1) > 1000);
    }

    #[test]
    fn an_orderly_end_loses_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("gateway.sequences");
        let (database, reservations) = start(&path);
        take(&database, 1000);
        reservations.settle(&database.snapshot().sad).unwrap();
        let (database, _) = start(&path);
        assert_eq!(take(&database, 1), 1001);
    }

    #[test]
    fn numbers_are_reserved_again_before_they_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("gateway.sequences");
        let (database, mut reservations) = start(&path);
        let half = u32::try_from(AHEAD / 2).unwrap() + 1;
        take(&database, half);
        let before = reservations.numbers.clone();
        reservations.renew(&database.snapshot().sad).unwrap();
        assert_ne!(reservations.numbers, before);
        let written = Reservations::open(&path).unwrap();
        assert_eq!(written.numbers, reservations.numbers);
    }

    #[test]
    fn a_file_of_another_kind_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("gateway.sequences");
        fs::write(&path, "not ours at all\n").unwrap();
        assert!(Reservations::open(&path).is_err());
    }
}
