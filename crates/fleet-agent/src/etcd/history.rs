//! Which cluster and which past of it was seen: an etcd that was put back from a backup, or another
//! one under the same name, knows fewer sequence numbers than were used. It is not believed.
//!
//! What was seen stands in a file, so that a restart does not forget it: the cluster, its revision
//! now and then, and the serial numbers of the records that must not go back.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde::{Deserialize, Serialize};
use uxfrm_fleet::{seal::Serial, store::StoreRevision};

use crate::whole_file;

/// The file, in the agent's state directory.
const FILE: &str = "seen.json";

/// How far the revision may have gone on since it was written down.
const STRIDE: u64 = 1000;

/// What was seen of etcd. Copies are the same one.
#[derive(Clone, Debug)]
pub struct StoreHistory {
    seen: Arc<Mutex<Seen>>,
    /// Held while the file is written, which may take long.
    file: Arc<Mutex<Option<PathBuf>>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Seen {
    /// In hex, as etcd prints it; none before there was one.
    cluster: Option<String>,
    revision: u64,
    /// By key in etcd.
    serials: BTreeMap<String, Serial>,
    /// The revision in the file.
    #[serde(skip)]
    saved: u64,
    #[serde(skip)]
    is_changed: bool,
}

/// Why etcd is not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WentBack {
    /// Another cluster answers.
    #[error("it is another cluster: {now}, and it was {was}; was etcd made anew?")]
    Cluster {
        /// The one that answers.
        now: String,
        /// The one that was seen.
        was: String,
    },
    /// The same one knows less than it did.
    #[error("it went back from revision {was} to {now}: was a backup put back?")]
    Revision {
        /// What it says now.
        now: u64,
        /// What was seen.
        was: u64,
    },
}

impl StoreHistory {
    /// One that lasts as long as the process, for commands that own no numbers.
    #[must_use]
    pub fn in_memory() -> Self {
        Self { seen: Arc::default(), file: Arc::default() }
    }

    /// The one of a state directory.
    ///
    /// # Errors
    /// Where its file is there and can't be read.
    pub fn load(directory: &Path) -> io::Result<Self> {
        let file = directory.join(FILE);
        let seen = match fs::read(&file) {
            Ok(text) => parse(&text, &file)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Seen::default(),
            Err(error) => return Err(named(&file, &error)),
        };
        Ok(Self { seen: Arc::new(Mutex::new(seen)), file: Arc::new(Mutex::new(Some(file))) })
    }

    /// The highest revision that was seen.
    #[must_use]
    pub fn revision(&self) -> StoreRevision {
        StoreRevision(self.lock().revision)
    }

    /// Takes what an answer says of the cluster, asked when `known` was the highest revision.
    ///
    /// # Errors
    /// Where it must not be believed.
    pub fn accept(
        &self,
        cluster: u64,
        revision: StoreRevision,
        known: StoreRevision,
    ) -> Result<(), WentBack> {
        let mut seen = self.lock();
        let now = format!("{cluster:x}");
        match &seen.cluster {
            Some(was) if *was != now => {
                return Err(WentBack::Cluster { now, was: was.clone() });
            }
            Some(_) => {}
            None => {
                seen.cluster = Some(now);
                seen.is_changed = true;
            }
        }
        if revision < known {
            return Err(WentBack::Revision { now: revision.0, was: known.0 });
        }
        seen.revision = seen.revision.max(revision.0);
        seen.is_changed |= seen.revision >= seen.saved + STRIDE;
        Ok(())
    }

    /// Notes the serial number of a record; none with a lower one is to be believed.
    pub fn note(&self, key: &str, serial: Serial) {
        let mut seen = self.lock();
        let known = seen.serials.get(key).copied();
        if known.is_none_or(|known| known < serial) {
            seen.serials.insert(key.to_owned(), serial);
            seen.is_changed = true;
        }
    }

    /// The number of the record that was seen under a key.
    #[must_use]
    pub fn serial(&self, key: &str) -> Option<Serial> {
        self.lock().serials.get(key).copied()
    }

    /// Writes the file, if something is to be written. It waits for the disk.
    ///
    /// # Errors
    /// The file system's.
    pub fn save(&self) -> io::Result<()> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(file) = &*file else { return Ok(()) };
        let Some(text) = self.begin_save() else { return Ok(()) };
        whole_file::replace_on_disk(file, &text).map_err(|error| {
            self.lock().is_changed = true;
            named(file, &error)
        })
    }

    /// Makes sure that the file can be written.
    ///
    /// # Errors
    /// The file system's.
    pub fn check_writable(&self) -> io::Result<()> {
        self.lock().is_changed = true;
        self.save()
    }

    fn begin_save(&self) -> Option<Vec<u8>> {
        let mut seen = self.lock();
        if !std::mem::take(&mut seen.is_changed) {
            return None;
        }
        seen.saved = seen.revision;
        // Texts and numbers: JSON has a form for them.
        Some(serde_json::to_vec(&*seen).unwrap_or_default())
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        // Nothing panics while it is held; were it so, what was seen would still hold.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn parse(text: &[u8], file: &Path) -> io::Result<Seen> {
    let seen: Seen = serde_json::from_slice(text).map_err(|error| {
        let why = format!("{}: it is not what uxfrm-fleet wrote: {error}", file.display());
        io::Error::new(io::ErrorKind::InvalidData, why)
    })?;
    Ok(Seen { saved: seen.revision, ..seen })
}

fn named(file: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: StoreRevision = StoreRevision(100);

    #[test]
    fn another_cluster_is_not_believed() {
        let history = StoreHistory::in_memory();
        assert_eq!(history.accept(0xab, AT, StoreRevision(0)), Ok(()));
        let refused = history.accept(0xcd, StoreRevision(500), AT).unwrap_err();
        let (now, was) = ("cd".to_owned(), "ab".to_owned());
        assert_eq!(refused, WentBack::Cluster { now, was });
        assert_eq!(history.revision(), AT);
    }

    #[test]
    fn a_revision_does_not_go_back() {
        let history = StoreHistory::in_memory();
        assert_eq!(history.accept(1, AT, StoreRevision(0)), Ok(()));
        // Answers may overtake each other: what counts is what was known when it was asked.
        assert_eq!(history.accept(1, StoreRevision(99), StoreRevision(98)), Ok(()));
        assert_eq!(
            history.accept(1, StoreRevision(99), AT),
            Err(WentBack::Revision { now: 99, was: 100 })
        );
        assert_eq!(history.accept(1, AT, AT), Ok(()));
    }

    #[test]
    fn what_was_seen_outlives_the_process() {
        let directory = tempfile::tempdir().unwrap();
        let history = StoreHistory::load(directory.path()).unwrap();
        history.accept(7, StoreRevision(5_000), StoreRevision(0)).unwrap();
        history.note("/members", Serial(3));
        history.note("/members", Serial(2));
        history.save().unwrap();
        let again = StoreHistory::load(directory.path()).unwrap();
        assert_eq!(again.revision(), StoreRevision(5_000));
        assert_eq!(again.serial("/members"), Some(Serial(3)));
        assert_eq!(again.serial("/other"), None);
        assert!(again.accept(8, StoreRevision(9_000), AT).is_err());
    }

    #[test]
    fn a_file_of_others_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(FILE), "{\"cluster\":1}").unwrap();
        let refused = StoreHistory::load(directory.path()).unwrap_err().to_string();
        assert!(refused.contains("seen.json: it is not what uxfrm-fleet wrote"), "{refused}");
    }
}
