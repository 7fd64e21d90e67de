//! `uxfrm xfrm sync FILE`: the running gateway's states and policies become what a text says.
//!
//! All states and policies of the gateway count as said before, whoever put them in, so that what
//! the text says no more goes. Held policies are the gateway's own: they go when one of the same
//! name comes. Default actions that the text does not name stay. What files own is theirs
//! afterwards as well, under the same names; the rest is as a client's.

use std::path::Path;

use uxfrm_control_client::reload::{SyncCourse, SyncOthers};
use uxfrm_engine::Database;

use super::{
    Outcome, Reload,
    diff::{self, Difference},
    intake::{EMPTY, WholeText},
    make,
};
use crate::{
    batch::{apply, provenance::FileOwned},
    clock::now,
    devices::Devices,
    reconcile::{Reconciler, databases},
};

/// What a text changes.
#[derive(Debug)]
pub(crate) struct SyncTargets<'a> {
    pub(crate) database: &'a mut Database,
    pub(crate) reconciler: &'a mut Reconciler,
    pub(crate) devices: &'a Devices,
}

impl Reload {
    /// Does what a text says, all of it or nothing; with [`SyncCourse::Show`] only says what that
    /// is.
    pub(crate) fn sync(&mut self, text: WholeText, targets: SyncTargets<'_>) -> Outcome {
        self.attempt_sync(&text, targets).unwrap_or_else(Outcome::failed)
    }

    fn attempt_sync(
        &mut self,
        text: &WholeText,
        targets: SyncTargets<'_>,
    ) -> Result<Outcome, Vec<String>> {
        let SyncTargets { database, reconciler, devices } = targets;
        let whole = |error: anyhow::Error| vec![format!("{error:#}")];
        let mut empty = databases::empty(&self.config, None).map_err(whole)?;
        devices.imagine(&mut empty).map_err(whole)?;
        let difference = plan(text, database, empty)?;
        let before = database.snapshot();
        let mut outcome = Outcome { lines: difference.lines(), ..Outcome::default() };
        match text.request.course {
            SyncCourse::Show => {}
            SyncCourse::Apply => {
                outcome.changes = make(difference, database, reconciler).map_err(whole)?;
                self.written = diff::still_owned(&self.written, &before, database);
            }
        }
        Ok(outcome)
    }
}

/// What a text asks for; it is read into `said`, which is empty.
fn plan(
    text: &WholeText,
    running: &Database,
    mut said: Database,
) -> Result<Difference, Vec<String>> {
    read(text, running, &mut said)?;
    let counted = counted(running, text.request.others);
    Ok(Difference::find(running, &counted, &said))
}

/// Reads the text into databases of their own, which begin with the running defaults.
fn read(text: &WholeText, running: &Database, said: &mut Database) -> Result<(), Vec<String>> {
    let source = Path::new(&text.request.source);
    let not_text = |_| vec![format!("{}: it is no UTF-8 text", source.display())];
    let lines = std::str::from_utf8(&text.bytes).map_err(not_text)?;
    let defaults = running.current().spd.defaults();
    said.apply(now(), |change| change.set_defaults(defaults));
    let said_so_far = apply::load_text(said, source, lines, now())
        .map_err(|faults| faults.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    if said_so_far == 0 {
        return Err(vec![format!("{}: {EMPTY}", source.display())]);
    }
    Ok(())
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
