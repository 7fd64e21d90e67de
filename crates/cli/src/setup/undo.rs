//! Takes away what setup did, by its record, in the reverse order.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::host::Host;

use super::carry_out::{Effect, profile_reloads, run_all, systemd_runs, words};
use super::record::{Done, RECORD, Record, checksum, rewrite};

/// Undoes all that is in the record, and removes it; each thing is told in a line of `out`.
///
/// # Errors
/// The file system's; where a command fails.
pub(super) fn undo(host: &Host, effect: Effect, out: &mut dyn Write) -> anyhow::Result<()> {
    if !host.has(RECORD) {
        writeln!(out, "nothing to undo: no {}", host.path(RECORD).display())?;
        return Ok(());
    }
    let record = Record::load(host)?;
    for done in record.done.iter().filter(|done| !matches!(done, Done::Directory(_))).rev() {
        writeln!(out, "{}", take_back(host, done, effect)?)?;
    }
    if effect == Effect::Real {
        fs::remove_file(host.path(RECORD)).context("can't remove the record")?;
    }
    writeln!(out, "{}", effect.say("removed", "remove", &host.path(RECORD).display().to_string()))?;
    let directories = record.done.iter().rev().filter_map(|done| match done {
        Done::Directory(path) => remove_directory(&host.path(path), effect),
        Done::File { .. } | Done::Lines { .. } | Done::Link { .. } => None,
    });
    for line in directories {
        writeln!(out, "{line}")?;
    }
    run_all(&commands(host, &record), effect, out)?;
    clean(host, &record, effect).iter().try_for_each(|line| writeln!(out, "{line}"))?;
    Ok(())
}

fn take_back(host: &Host, done: &Done, effect: Effect) -> anyhow::Result<String> {
    match done {
        Done::Directory(_) => Ok(String::new()),
        Done::File { path, crc } => take_back_file(&host.path(path), *crc, effect),
        Done::Lines { path, text, created } => take_back_lines(host, path, text, *created, effect),
        Done::Link { path, target } => take_back_link(&host.path(path), target, effect),
    }
}

/// A file that somebody changed is kept under another name, which nothing reads.
fn take_back_file(path: &Path, crc: u32, effect: Effect) -> anyhow::Result<String> {
    let shown = path.display().to_string();
    let Ok(bytes) = fs::read(path) else { return Ok(format!("is gone already: {shown}")) };
    let failed = || format!("can't remove {shown}");
    if checksum(&bytes) == crc {
        if effect == Effect::Real {
            fs::remove_file(path).with_context(failed)?;
        }
        return Ok(effect.say("removed", "remove", &shown));
    }
    let kept = match effect {
        Effect::Real => keep_aside(path).with_context(failed)?,
        Effect::DryRun => kept_names(path).find(|name| is_free(name)).with_context(failed)?,
    };
    let what = format!("{shown}, which was changed since setup, to {}", kept.display());
    Ok(effect.say("renamed", "rename", &what))
}

/// `FILE.uxfrm-saved`, then with numbers behind it.
fn kept_names(path: &Path) -> impl Iterator<Item = PathBuf> {
    let first = format!("{}.uxfrm-saved", path.display());
    let numbered = (1_u32..).map({
        let first = first.clone();
        move |number| PathBuf::from(format!("{first}.{number}"))
    });
    std::iter::once(PathBuf::from(first)).chain(numbered)
}

fn is_free(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err()
}

/// Gives a file the first name that is free. A second link, unlike a rename, replaces nothing.
fn keep_aside(path: &Path) -> io::Result<PathBuf> {
    for kept in kept_names(path) {
        match fs::hard_link(path, &kept) {
            Ok(()) => return fs::remove_file(path).map(|()| kept),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

fn take_back_lines(
    host: &Host,
    path: &Path,
    text: &str,
    created: bool,
    effect: Effect,
) -> anyhow::Result<String> {
    let shown = host.path(path).display().to_string();
    let leads = host.resolve(path).map(|leads| host.path(leads)).filter(|leads| leads.is_file());
    let Some((leads, mut whole)) =
        leads.and_then(|leads| fs::read(&leads).ok().map(|it| (leads, it)))
    else {
        return Ok(format!("is gone already: {shown}"));
    };
    // Of the same lines twice the last are ours: they were added at the end.
    let found = whole.windows(text.len().max(1)).rposition(|part| part == text.as_bytes());
    let Some(at) = found else {
        return Ok(format!("is gone already: `{}` in {shown}", text.trim()));
    };
    whole.drain(at..at + text.len());
    if effect == Effect::Real {
        let changed = if whole.is_empty() && created && !host.path(path).is_symlink() {
            fs::remove_file(&leads)
        } else {
            rewrite(&leads, &whole)
        };
        changed.with_context(|| format!("can't change {shown}"))?;
    }
    Ok(effect.say("removed", "remove", &format!("`{}` from {shown}", text.trim())))
}

fn take_back_link(path: &Path, target: &Path, effect: Effect) -> anyhow::Result<String> {
    let shown = path.display().to_string();
    if fs::read_link(path).ok().as_deref() != Some(target) {
        return Ok(format!("is gone already: {shown}"));
    }
    if effect == Effect::Real {
        fs::remove_file(path).with_context(|| format!("can't remove {shown}"))?;
    }
    Ok(effect.say("removed", "remove", &shown))
}

/// One that has got other files since stays.
fn remove_directory(path: &Path, effect: Effect) -> Option<String> {
    let shown = path.display().to_string();
    match effect {
        Effect::Real => {
            fs::remove_dir(path).is_ok().then(|| effect.say("removed", "remove", &shown))
        }
        Effect::DryRun => Some(effect.say("removed", "remove", &shown)),
    }
}

/// The IKE daemon goes back to the kernel, and the gateway ends.
fn commands(host: &Host, record: &Record) -> Vec<Vec<PathBuf>> {
    if !systemd_runs(host) || record.units.is_empty() {
        return Vec::new();
    }
    let mut commands =
        vec![words("systemctl daemon-reload"), words("systemctl stop uxfrm.service")];
    commands.extend(profile_reloads(host, &record.profiles));
    let restarts = record.units.iter().map(|unit| words(&format!("systemctl try-restart {unit}")));
    commands.extend(restarts);
    commands
}

/// What the gateway protected is refused no more, where it has ended.
fn clean(host: &Host, record: &Record, effect: Effect) -> Option<String> {
    if !host.is_this_machine() || record.units.is_empty() {
        return None;
    }
    match effect {
        Effect::DryRun => Some(effect.say("ran", "run", "uxfrm clean")),
        Effect::Real => match uxfrm_daemon::gateway::clean(None) {
            Ok(()) => Some(effect.say("ran", "run", "uxfrm clean")),
            Err(why) => Some(format!("note: run `uxfrm clean` later: {why:#}")),
        },
    }
}
