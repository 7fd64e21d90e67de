//! Keeps the saved policies on the disk up to date from a thread of its own, some time after
//! policies change.

use std::{
    io,
    path::{Path, PathBuf},
    thread::{self, JoinHandle},
    time::Duration,
};

use uxfrm_engine::{Database, Moment};
use uxfrm_io::{poll::Waker, priority};

use super::saved_policies::{self, DraftFile};
use crate::{batch::provenance::FileOwned, clock::now, config::AtExit};

/// From the first change on: changes come together.
const GATHER: Duration = Duration::from_millis(200);
/// Between two, at least and at most, and as a multiple of what writing the last one took.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(10);
const SHARE: u32 = 20;

/// Saves the policies of a running gateway.
#[derive(Debug)]
pub(crate) struct PolicySaver {
    directory: PathBuf,
    waker: Waker,
    writing: Option<JoinHandle<SaveResult>>,
    /// The generation of policies that the file has.
    kept: Option<u64>,
    /// When it is written, if that is known already.
    due: Option<Moment>,
    not_before: Moment,
    is_failing: bool,
}

/// The result of one write.
#[derive(Debug)]
struct SaveResult {
    generation: u64,
    took: Duration,
    result: io::Result<()>,
}

impl PolicySaver {
    /// In a state directory. Whoever waits at the poller of `waker` is woken when it is written.
    pub(crate) fn new(directory: &Path, waker: Waker) -> Self {
        Self {
            directory: directory.to_owned(),
            waker,
            writing: None,
            kept: None,
            due: None,
            not_before: Moment(0),
            is_failing: false,
        }
    }

    /// Begins to write what is to be written; `written` is what of the policies files made.
    pub(crate) fn maintain(&mut self, database: &Database, written: &FileOwned) {
        if let Some(thread) = self.writing.take_if(|thread| thread.is_finished()) {
            self.note(thread);
        }
        if self.writing.is_some() || self.kept == Some(database.current().spd.generation()) {
            return;
        }
        let due = *self.due.get_or_insert_with(|| now().plus(GATHER).max(self.not_before));
        if now() < due {
            return;
        }
        self.due = None;
        match self.begin(database, written) {
            Ok(thread) => self.writing = Some(thread),
            Err(error) => self.fail(&error),
        }
    }

    fn begin(
        &self,
        database: &Database,
        written: &FileOwned,
    ) -> io::Result<JoinHandle<SaveResult>> {
        let (snapshot, written) = (database.snapshot(), written.clone());
        let (directory, waker) = (self.directory.clone(), self.waker.clone());
        thread::Builder::new().name("policies".into()).spawn(move || {
            if let Err(error) = priority::lower_priority() {
                tracing::debug!(%error, "policies are written down beside the lanes");
            }
            let begun = now();
            let generation = snapshot.spd.generation();
            let draft = DraftFile::write(&directory, &snapshot.spd, &written);
            drop(snapshot);
            // Without what a slow disk takes.
            let took = now().since(begun);
            let result = draft.and_then(|draft| draft.settle(&directory));
            let attempt = SaveResult { generation, took, result };
            waker.wake();
            attempt
        })
    }

    fn note(&mut self, thread: JoinHandle<SaveResult>) {
        let attempt = thread.join();
        let Ok(SaveResult { generation, took, result }) = attempt else {
            return self.fail(&io::Error::other("the thread that writes has failed"));
        };
        self.not_before = now().plus((took * SHARE).clamp(PAUSE, LONGEST));
        match result {
            Ok(()) => {
                self.kept = Some(generation);
                if std::mem::take(&mut self.is_failing) {
                    tracing::info!("policies are written down again");
                }
            }
            Err(error) => self.fail(&error),
        }
    }

    fn fail(&mut self, error: &io::Error) {
        self.not_before = now().plus(PAUSE);
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::error!(
                %error,
                directory = %self.directory.display(),
                "policies can't be written down: what programs' policies protect leaves plain after the next start until they come again"
            );
        }
    }

    /// Waits for what is being written: another process may write next.
    pub(crate) fn rest(&mut self) {
        if let Some(thread) = self.writing.take() {
            self.note(thread);
        }
    }

    /// The gateway ends: the file is as the policies are, or gone where nothing is to be held.
    pub(crate) fn end(&mut self, database: &Database, written: &FileOwned, at_exit: AtExit) {
        self.rest();
        let snapshot = database.snapshot();
        let ended = match at_exit {
            AtExit::Open => saved_policies::remove(&self.directory),
            AtExit::Block if self.kept == Some(snapshot.spd.generation()) => Ok(()),
            AtExit::Block => DraftFile::write(&self.directory, &snapshot.spd, written)
                .and_then(|draft| draft.settle(&self.directory)),
        };
        if let Err(error) = ended {
            self.fail(&error);
        }
    }
}
