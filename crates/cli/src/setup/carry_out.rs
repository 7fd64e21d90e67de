//! Carries a plan out, or says what would be done.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use nix::unistd::{Gid, chown};

use crate::host::Host;

use super::plan::{Access, GatewayStart, NewFile, Plan, Step};
use super::record::{Done, Record, checksum, replace, rewrite};
use super::{app_armor, refuse};

/// The group that may read configurations.
const GROUP: &str = "uxfrm";

/// Whether anything is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Real,
    DryRun,
}

impl Effect {
    /// A line about something that is done, or would be.
    pub(super) fn say(self, done: &str, undone: &str, what: &str) -> String {
        match self {
            Self::Real => format!("{done} {what}"),
            Self::DryRun => format!("would {undone} {what}"),
        }
    }
}

/// Where a step stands.
#[derive(Debug, PartialEq, Eq)]
enum Progress {
    ToDo,
    Done,
    /// What is in the way, and what to do.
    Obstacle(String),
}

/// Does all steps of a plan that are not done yet, then its commands where systemd runs; each is
/// told in a line of `out`.
///
/// # Errors
/// Before anything is changed, where a file that is not ours is in the way; the file system's;
/// where a command fails.
pub(super) fn carry_out(
    host: &Host,
    plan: &Plan,
    effect: Effect,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let mut record = Record::load(host)?;
    let all_progress: Vec<_> =
        plan.steps.iter().map(|step| progress(host, &record, step)).collect();
    let obstacles: Vec<_> = all_progress
        .iter()
        .filter_map(|progress| match progress {
            Progress::Obstacle(why) => Some(why.clone()),
            Progress::ToDo | Progress::Done => None,
        })
        .collect();
    refuse(&obstacles)?;
    for (step, progress) in plan.steps.iter().zip(all_progress) {
        let shown = host.path(place(step));
        if progress != Progress::ToDo {
            writeln!(out, "is there already: {}", shown.display())?;
            continue;
        }
        if effect == Effect::Real {
            perform(host, &mut record, step)?;
        }
        writeln!(out, "{}", describe(host, step, effect))?;
    }
    note_units(host, &mut record, plan, effect)?;
    run_all(&commands(host, plan), effect, out)?;
    if plan.gateway == GatewayStart::Now && !systemd_runs(host) {
        writeln!(out, "note: systemd does not run here: the units start at the next boot")?;
    }
    plan.notes.iter().try_for_each(|note| writeln!(out, "note: {note}"))?;
    Ok(())
}

fn place(step: &Step) -> &Path {
    match step {
        Step::File(NewFile { path, .. }) | Step::Lines { path, .. } | Step::Link { path, .. } => {
            path
        }
    }
}

fn describe(host: &Host, step: &Step, effect: Effect) -> String {
    let shown = host.path(place(step)).display().to_string();
    match step {
        Step::File(_) => effect.say("wrote", "write", &shown),
        Step::Lines { text, .. } => {
            effect.say("added", "add", &format!("`{}` to {shown}", text.trim()))
        }
        Step::Link { target, .. } => {
            effect.say("linked", "link", &format!("{shown} to {}", target.display()))
        }
    }
}

fn progress(host: &Host, record: &Record, step: &Step) -> Progress {
    let here = host.path(place(step));
    match step {
        Step::File(file) if !host.has(&file.path) => Progress::ToDo,
        Step::File(file) => match fs::read(&here) {
            Ok(bytes) if bytes == file.text.as_bytes() => Progress::Done,
            _different if record.wrote(&file.path) => Progress::Obstacle(format!(
                "{} is from an earlier setup, and another would be written: uxfrm setup --undo first",
                here.display()
            )),
            _foreign => Progress::Obstacle(format!(
                "{} is there and not from setup: move it away, or have setup write elsewhere by --root and merge the two by hand",
                here.display()
            )),
        },
        Step::Lines { path, .. } if !host.has(path) => Progress::ToDo,
        Step::Lines { path, text } => match host.resolve(path) {
            Some(leads) if host.path(&leads).is_file() => match host.read(&leads) {
                Some(there) if there.contains(text) => Progress::Done,
                Some(_) | None => Progress::ToDo,
            },
            Some(_) | None => Progress::Obstacle(format!(
                "{} is no file, nor a link that leads to one: add `{}` where it belongs",
                here.display(),
                text.trim()
            )),
        },
        Step::Link { path, target } if host.has(path) => match fs::read_link(&here) {
            Ok(leads) if leads == *target || host.is_same_file(path, target) => Progress::Done,
            _foreign => Progress::Obstacle(format!(
                "{} is there and leads elsewhere: remove it",
                here.display()
            )),
        },
        Step::Link { .. } => Progress::ToDo,
    }
}

/// Does one step, and has it in the record first: an interrupted setup can be undone.
fn perform(host: &Host, record: &mut Record, step: &Step) -> anyhow::Result<()> {
    let access = match step {
        Step::File(file) => file.access,
        Step::Lines { .. } | Step::Link { .. } => Access::All,
    };
    make_directories(host, record, place(step), access)?;
    let here = host.path(place(step));
    let failed = || format!("can't write {}", here.display());
    match step {
        Step::File(file) => {
            let (path, crc) = (file.path.clone(), checksum(file.text.as_bytes()));
            record.done.push(Done::File { path, crc });
            record.save(host)?;
            replace(&here, file.text.as_bytes(), file.access.mode()).with_context(failed)?;
            give_to_group(host, &here, file.access)
        }
        Step::Lines { path, text } => {
            // A link stays one: the lines go to the file that it leads to.
            let here = host.resolve(path).map_or_else(|| here.clone(), |leads| host.path(leads));
            let before = match fs::read(&here) {
                Ok(bytes) => Some(bytes),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(error).with_context(failed),
            };
            let is_open = before.as_ref().is_some_and(|it| it.last().is_some_and(|b| *b != b'\n'));
            let text = if is_open { format!("\n{text}") } else { text.clone() };
            let created = before.is_none();
            record.done.push(Done::Lines { path: path.clone(), text: text.clone(), created });
            record.save(host)?;
            match before {
                Some(before) => rewrite(&here, &[before, text.into_bytes()].concat()),
                None => replace(&here, text.as_bytes(), Access::All.mode()),
            }
            .with_context(failed)
        }
        Step::Link { path, target } => {
            record.done.push(Done::Link { path: path.clone(), target: target.clone() });
            record.save(host)?;
            symlink(target, &here).with_context(failed)
        }
    }
}

fn make_directories(
    host: &Host,
    record: &mut Record,
    path: &Path,
    access: Access,
) -> anyhow::Result<()> {
    let above: Vec<_> = path.ancestors().skip(1).filter(|above| !host.has(above)).collect();
    for directory in above.into_iter().rev() {
        let here = host.path(directory);
        let mode = access.directory_mode();
        let made = DirBuilder::new().mode(mode).create(&here);
        // Again, as a umask of 077 would keep the group out.
        let made = made.and_then(|()| fs::set_permissions(&here, Permissions::from_mode(mode)));
        made.with_context(|| format!("can't make {}", here.display()))?;
        give_to_group(host, &here, access)?;
        record.done.push(Done::Directory(directory.to_owned()));
    }
    Ok(())
}

fn give_to_group(host: &Host, path: &Path, access: Access) -> anyhow::Result<()> {
    let Some(group) = group(host).filter(|_| access == Access::Gateway) else { return Ok(()) };
    chown(path, None, Some(group))
        .with_context(|| format!("can't give {} to group {GROUP}", path.display()))
}

/// The number of the gateway's group. `None` where there is no such group: files are root's then.
fn group(host: &Host) -> Option<Gid> {
    let text = host.read("/etc/group")?;
    let line = text.lines().find_map(|line| line.strip_prefix(GROUP)?.strip_prefix(':'))?;
    line.split(':').nth(1)?.parse().ok().map(Gid::from_raw)
}

fn note_units(host: &Host, record: &mut Record, plan: &Plan, effect: Effect) -> anyhow::Result<()> {
    let units = plan.units.iter().filter(|unit| !record.units.contains(unit)).cloned();
    let units: Vec<_> = units.collect();
    let profiles = plan.profiles.iter().filter(|one| !record.profiles.contains(one)).cloned();
    let profiles: Vec<_> = profiles.collect();
    record.units.extend(units);
    record.profiles.extend(profiles);
    match effect {
        Effect::Real => record.save(host),
        Effect::DryRun => Ok(()),
    }
}

/// What is run behind the steps.
fn commands(host: &Host, plan: &Plan) -> Vec<Vec<PathBuf>> {
    if !systemd_runs(host) || plan.gateway == GatewayStart::Later {
        return Vec::new();
    }
    let wanted: Vec<_> = plan.units.iter().filter(|unit| is_wanted(unit)).collect();
    let mut commands = vec![words("systemctl daemon-reload")];
    commands.extend(profile_reloads(host, &plan.profiles));
    // The gateway takes UDP port 4500, which a daemon of before has.
    commands.extend(plan.units.iter().map(|unit| words(&format!("systemctl stop {unit}"))));
    commands.push(words("systemctl start uxfrm.service"));
    commands.extend(wanted.iter().map(|unit| words(&format!("systemctl start {unit}"))));
    commands
}

/// Whether a unit runs, or would from the next boot on.
fn is_wanted(unit: &str) -> bool {
    let is = |question: &str| {
        let asked = Command::new("systemctl").args([question, "--quiet", unit]).status();
        asked.is_ok_and(|status| status.success())
    };
    is("is-active") || is("is-enabled")
}

/// The commands that load these profiles anew, where the kernel has AppArmor.
pub(super) fn profile_reloads(host: &Host, profiles: &[PathBuf]) -> Vec<Vec<PathBuf>> {
    if !host.is_this_machine() || !app_armor::is_enabled(host) {
        return Vec::new();
    }
    profiles.iter().map(|profile| app_armor::reload(profile)).collect()
}

/// A command of words without spaces.
pub(super) fn words(command: &str) -> Vec<PathBuf> {
    command.split(' ').map(PathBuf::from).collect()
}

/// Whether units of this host can be started now.
pub(super) fn systemd_runs(host: &Host) -> bool {
    host.is_this_machine() && host.has("/run/systemd/system")
}

/// Runs commands, and tells each in a line of `out`.
///
/// # Errors
/// With the first that fails.
pub(super) fn run_all(
    commands: &[Vec<PathBuf>],
    effect: Effect,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    for command in commands {
        writeln!(out, "{}", run(command, effect)?)?;
    }
    Ok(())
}

fn run(command: &[PathBuf], effect: Effect) -> anyhow::Result<String> {
    let shown: Vec<_> = command.iter().map(|word| word.display().to_string()).collect();
    let shown = shown.join(" ");
    if let (Effect::Real, Some((program, arguments))) = (effect, command.split_first()) {
        let status = Command::new(program).args(arguments).status();
        if !status.with_context(|| format!("can't run {shown}"))?.success() {
            bail!("failed: {shown} (`uxfrm setup --undo` takes all back)");
        }
    }
    Ok(effect.say("ran", "run", &shown))
}
