//! Which programs a supervisor starts. A gateway names them, and one that was broken into may name
//! any and have written some.

use std::{
    fs::{self, File, Metadata},
    os::{
        fd::AsRawFd as _,
        unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
};

use anyhow::{Context as _, ensure};
use nix::{fcntl::OFlag, unistd::Uid};

/// A gateway names no more places. Once one does, it is not known any more which programs gateways
/// could have written, and none is started.
const MOST: usize = 64;

/// The paths that gateways declared as writable before they read anything. A gateway that is
/// broken into later can only add to them.
#[derive(Debug, Default)]
pub(super) struct DeclaredPaths {
    places: Vec<PathBuf>,
    /// Some were named that there is no room for.
    is_incomplete: bool,
}

impl DeclaredPaths {
    pub(super) fn add(&mut self, place: PathBuf) {
        if self.places.contains(&place) {
            return;
        }
        if self.places.len() < MOST {
            self.places.push(place);
        } else {
            self.is_incomplete = true;
        }
    }

    /// Opens a program that nobody but root, or who runs this, may have written or put there, and
    /// no gateway either: it would run with none of a gateway's filters.
    ///
    /// # Errors
    /// What is wrong with it, and what would be right.
    pub(super) fn open_other(&self, program: &Path) -> anyhow::Result<File> {
        let shown = program.display();
        ensure!(
            !self.is_incomplete,
            "the gateway has named more than {MOST} places that it may write to, so that no program is known to be another's: if nobody has broken into \
             it, restart it"
        );
        // Only looked at: who opens a pipe waits for its other end, and some devices are set going.
        let file = File::options().read(true).custom_flags(OFlag::O_PATH.bits()).open(program);
        let file = file.with_context(|| format!("{shown} can't be found"))?;
        let found = file.metadata()?;
        ensure!(found.is_file(), "{shown} is no file");
        let owned = is_owned_well(&found);
        ensure!(owned, "{shown} is user {}'s: it must be root's", found.uid());
        ensure!(
            found.mode() & OTHERS == 0,
            "{shown} may be written by others than its owner (mode {:o}): chmod go-w",
            found.mode() & 0o7777
        );
        // The name of what was opened, wherever links led: `/proc/self/fd` itself leads to memory
        // that has none.
        let name = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let there = fs::metadata(&name).is_ok_and(|there| is_same(&there, &found));
        ensure!(there, "{shown} is no file of a directory");
        self.ensure_others_place(&name, &found)?;
        for directory in name.ancestors().skip(1) {
            let found = fs::metadata(directory)?;
            ensure!(
                is_owned_well(&found) && (found.mode() & OTHERS == 0 || found.mode() & STICKY != 0),
                "others may put another program in the place of {shown}: {} is theirs as well",
                directory.display()
            );
            self.ensure_others_place(directory, &found)?;
        }
        Ok(file)
    }

    fn ensure_others_place(&self, name: &Path, found: &Metadata) -> anyhow::Result<()> {
        let written =
            |place: &PathBuf| fs::metadata(place).is_ok_and(|place| is_same(&place, found));
        ensure!(
            !self.places.iter().any(written),
            "the gateway itself may write to {}: a program that is to take over lies elsewhere",
            name.display()
        );
        Ok(())
    }
}

/// Group and others.
const OTHERS: u32 = 0o022;
/// Nobody but its owner renames or removes what is in such a directory.
const STICKY: u32 = 0o1000;

fn is_owned_well(found: &Metadata) -> bool {
    found.uid() == 0 || found.uid() == Uid::effective().as_raw()
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

#[cfg(test)]
mod tests;
