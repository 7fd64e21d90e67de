//! `uxfrm xfrm sync FILE`: the running gateway's states and policies become what a text says.
//!
//! All states and policies of the gateway count as said before, whoever put them in, so that what
//! the text says no more goes. Held policies are the gateway's own: they go when one of the same
//! name comes. Default actions that the text does not name stay. What files own is theirs
//! afterwards as well, under the same names; the rest is as a client's.

use std::path::Path;

use uxfrm_control_client::reload::{SyncCourse, SyncOthers, SyncRequest};
use uxfrm_engine::{Database, DefaultActions};
use zeroize::Zeroizing;

use super::{
    Outcome, Reload,
    diff::{self, Difference},
    host_settings,
    intake::{EMPTY, WholeText},
    make,
};
use crate::{
    batch::{apply::TextProgress, provenance::FileOwned},
    check,
    clock::now,
    devices::Devices,
    protocol::ClientId,
    reconcile::{Reconciler, databases},
};

/// Bytes of a text that are read before it is the turn of other clients.
const PART: usize = 64 * 1024;

/// What a text changes.
#[derive(Debug)]
pub(crate) struct SyncTargets<'a> {
    pub(crate) database: &'a mut Database,
    pub(crate) reconciler: &'a mut Reconciler,
}

/// A text that is being read into databases of its own, in parts between which other clients have
/// their turn. Nothing of what runs changes before the last.
#[derive(Debug)]
pub(super) struct SyncReading {
    client: ClientId,
    request: SyncRequest,
    text: Text,
    said: Database,
    /// The defaults that ran when it began.
    before: DefaultActions,
    progress: TextProgress,
}

/// With keys in it.
struct Text(Zeroizing<String>);

impl std::fmt::Debug for Text {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Text({} bytes)", self.0.len())
    }
}

impl Reload {
    /// Begins to read what a client has sent.
    ///
    /// # Errors
    /// Why that can't be.
    pub(crate) fn begin_sync(
        &mut self,
        client: ClientId,
        text: WholeText,
        running: &Database,
        devices: &Devices,
    ) -> anyhow::Result<()> {
        let mut empty = databases::empty(&self.config, None)?;
        devices.imagine(&mut empty)?;
        self.reading = Some(SyncReading::begin(client, text, running, empty)?);
        Ok(())
    }

    /// Whether a text is being read.
    pub(crate) const fn is_reading(&self) -> bool {
        self.reading.is_some()
    }

    /// A client has left: what it has sent is not carried out.
    pub(crate) fn forget(&mut self, client: ClientId) {
        self.intake.forget(client);
        self.reading.take_if(|reading| reading.client == client);
    }

    /// Whose text is being read, which is given up.
    pub(crate) fn give_reading_up(&mut self) -> Option<ClientId> {
        self.reading.take().map(|reading| reading.client)
    }

    /// Reads another part. `None` while there is more, or nothing.
    pub(crate) fn read_on(&mut self) -> Option<ReadText> {
        self.reading.as_mut()?.read_on();
        let reading = self.reading.take_if(|reading| reading.is_over())?;
        Some(ReadText(reading))
    }

    /// Does what a text says, all of it or nothing; with [`SyncCourse::Show`] only says what that
    /// is. To whom it is told.
    pub(crate) fn sync(
        &mut self,
        ReadText(text): ReadText,
        targets: SyncTargets<'_>,
    ) -> (ClientId, Outcome) {
        let client = text.client;
        (client, self.attempt_sync(text, targets).unwrap_or_else(Outcome::failed))
    }

    fn attempt_sync(
        &mut self,
        text: SyncReading,
        targets: SyncTargets<'_>,
    ) -> Result<Outcome, Vec<String>> {
        let SyncTargets { database, reconciler } = targets;
        let whole = |error: anyhow::Error| vec![format!("{error:#}")];
        let course = text.request.course;
        let is_whole = text.request.others == SyncOthers::Remove;
        let (difference, said) = text.difference(database)?;
        let before = database.snapshot();
        let mut outcome = Outcome { lines: difference.lines(), ..Outcome::default() };
        let (host, is_other) = (host_settings(&self.config, reconciler), !difference.is_empty());
        let wanted = match course {
            // What stays beside the text may be what it lacks.
            SyncCourse::Show => is_whole.then(|| said.snapshot()),
            SyncCourse::Apply => {
                outcome.changes = make(difference, database, reconciler).map_err(whole)?;
                self.written = diff::still_owned(&self.written, &before, database);
                Some(database.snapshot())
            }
        };
        if let Some(wanted) = wanted.filter(|_| is_other) {
            outcome.warnings = check::new_warnings((&before, &host), (&wanted, &host));
        }
        Ok(outcome)
    }
}

/// A text that was read to its end.
#[derive(Debug)]
pub(crate) struct ReadText(SyncReading);

impl SyncReading {
    /// Into `said`, which is empty and begins with the running defaults.
    fn begin(
        client: ClientId,
        WholeText { request, mut bytes }: WholeText,
        running: &Database,
        mut said: Database,
    ) -> anyhow::Result<Self> {
        let text = String::from_utf8(std::mem::take(&mut *bytes)).map_err(|error| {
            let _wiped = Zeroizing::new(error.into_bytes());
            anyhow::anyhow!("{}: it is no UTF-8 text", request.source)
        })?;
        let before = running.current().spd.defaults();
        said.apply(now(), |change| change.set_defaults(before));
        let (text, progress) = (Text(Zeroizing::new(text)), TextProgress::default());
        Ok(Self { client, request, text, said, before, progress })
    }

    fn read_on(&mut self) {
        let text = (Path::new(&self.request.source), self.text.0.as_str());
        self.progress.advance(&mut self.said, text, PART, now());
    }

    fn is_over(&self) -> bool {
        self.progress.is_over(&self.text.0)
    }

    /// What it asks for, and the databases that it says.
    fn difference(self, running: &Database) -> Result<(Difference, Database), Vec<String>> {
        let Self { request, mut said, before, progress, .. } = self;
        let lines = progress
            .finish()
            .map_err(|faults| faults.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        if lines == 0 {
            return Err(vec![format!("{}: {EMPTY}", request.source)]);
        }
        keep_defaults(&mut said, before, running);
        let counted = counted(running, request.others);
        let difference = Difference::find(running, &counted, &said);
        Ok((difference, said))
    }
}

/// A default that the text does not change stays as it runs, which somebody may have told
/// otherwise meanwhile.
fn keep_defaults(said: &mut Database, before: DefaultActions, running: &Database) {
    let (wanted, runs) = (said.current().spd.defaults(), running.current().spd.defaults());
    let either = |wanted, before, runs| if wanted == before { runs } else { wanted };
    let defaults = DefaultActions {
        inbound: either(wanted.inbound, before.inbound, runs.inbound),
        forward: either(wanted.forward, before.forward, runs.forward),
        outbound: either(wanted.outbound, before.outbound, runs.outbound),
    };
    said.apply(now(), |change| change.set_defaults(defaults));
}

/// What counts as said before: what the text says no more of it goes.
fn counted(running: &Database, others: SyncOthers) -> FileOwned {
    let defaults = running.current().spd.defaults();
    match others {
        SyncOthers::Remove => FileOwned::all(running),
        SyncOthers::Keep => FileOwned::restored(std::iter::empty(), std::iter::empty(), defaults),
    }
}

#[cfg(test)]
mod tests;
