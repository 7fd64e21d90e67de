//! `uxfrm reload`, SIGHUP: the configuration and its batch files are read again, and of what they
//! say only the difference is carried out.
//!
//! What files said at the start or the last reload is theirs: it goes when they say it no more.
//! What others have put in, as an IKE daemon, stays. States and policies change as one: workers see
//! all of it at once, and one thing that is refused leaves all as it was. A state whose line is the
//! same goes on with its numbers.

mod diff;
pub(crate) mod intake;
mod report;
mod settings;
mod step;
pub(crate) mod sync;
mod tunnels;

use std::path::{Path, PathBuf};

use uxfrm_control_client::reload::{ReloadAnswer, ReloadRequest};
use uxfrm_engine::{ChangeSet, Database, Error as Refused, PolicyChange, Snapshot};

use crate::{
    batch::{apply::MOST_FAULTS, provenance::FileOwned},
    check::{self, HostSettings},
    clock::now,
    config::{AtExit, Config},
    reconcile::{Reconciler, databases},
    sandbox,
    tunnels::{TunnelService, TunnelSpec},
};
use diff::Difference;
use intake::TextIntake;
use sync::SyncReading;

/// Lines of one answer.
const LINES: usize = 256;
/// Lines that are told; of more, how many there are.
const MOST_LINES: usize = 4096;

/// What files said when they were last carried out.
#[derive(Debug)]
pub(crate) struct Reload {
    path: PathBuf,
    config: Config,
    written: FileOwned,
    plan: TunnelSpec,
    /// The text of a client that is still coming.
    pub(crate) intake: TextIntake,
    /// One that has come.
    reading: Option<SyncReading>,
}

/// What a reload works on.
#[derive(Debug)]
pub(crate) struct Targets<'a> {
    pub(crate) database: &'a mut Database,
    pub(crate) reconciler: &'a mut Reconciler,
    pub(crate) tunnels: &'a mut TunnelService,
    pub(crate) at_exit: &'a mut AtExit,
}

/// What came of it.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) lines: Vec<String>,
    /// What will not work of it, though each line is right.
    pub(crate) warnings: Vec<String>,
    pub(crate) faults: Vec<String>,
    /// What listeners are to be told.
    pub(crate) changes: ChangeSet,
    /// Seconds that acquires wait from now on, where that is another time.
    pub(crate) acquire_expires: Option<u32>,
}

impl Reload {
    /// Of a gateway that has just been made from these.
    pub(crate) fn new(path: &Path, config: Config, written: FileOwned, plan: TunnelSpec) -> Self {
        let (path, intake) = (path.to_owned(), TextIntake::default());
        Self { path, config, written, plan, intake, reading: None }
    }

    /// What the gateway runs with.
    pub(crate) const fn config(&self) -> &Config {
        &self.config
    }

    /// What of the databases files made.
    pub(crate) const fn written(&self) -> &FileOwned {
        &self.written
    }

    /// Which tunnels files said.
    pub(crate) const fn plan(&self) -> &TunnelSpec {
        &self.plan
    }

    /// Reads the files again and does what they ask for; with [`ReloadRequest::Show`] only says so.
    pub(crate) fn answer(&mut self, request: &ReloadRequest, targets: Targets<'_>) -> Outcome {
        let done = match request {
            ReloadRequest::Show | ReloadRequest::Apply => self.attempt(request, targets),
            ReloadRequest::Release => release(targets),
            // Its text has to come first.
            ReloadRequest::Sync(_) => Ok(Outcome::default()),
        };
        done.unwrap_or_else(|error| {
            Outcome::failed(vec![sandbox::with_sandbox_advice(format!("{error:#}"))])
        })
    }

    fn attempt(
        &mut self,
        request: &ReloadRequest,
        targets: Targets<'_>,
    ) -> anyhow::Result<Outcome> {
        let config = Config::load(&self.path)?;
        let said = databases::dry_run(&config)?;
        let plan = TunnelSpec::read(&config)?;
        let Targets { database, reconciler, tunnels: carrying, at_exit } = targets;
        let difference = Difference::find(database, &self.written, &said);
        let steps = tunnels::find(&self.plan, &plan);
        let mut outcome = Outcome::default();
        outcome.lines.extend(difference.lines());
        outcome.lines.extend(steps.iter().map(tunnels::Step::line));
        outcome.lines.extend(self.followed(&config));
        let waiting = settings::waiting(&self.config, &config);
        outcome.lines.extend(waiting.iter().map(|key| format!("! {key} is for the next start")));
        let hosts = [&self.config, &config].map(|config| host_settings(config, reconciler));
        let is_other = !difference.is_empty() || hosts[0].mtu != hosts[1].mtu;
        let before = database.snapshot();
        let warn = |now: &Snapshot| match is_other {
            true => check::new_warnings((&before, &hosts[0]), (now, &hosts[1])),
            false => Vec::new(),
        };
        if *request == ReloadRequest::Show {
            outcome.warnings = warn(&said.snapshot());
            return Ok(outcome);
        }
        outcome.changes = make(difference, database, reconciler)?;
        outcome.warnings = warn(&database.snapshot());
        outcome.faults.extend(steps.into_iter().filter_map(|step| step.carry_out(carrying).err()));
        *at_exit = config.host.at_exit;
        reconciler.tun_mtu.set(config.host.mtu);
        reconciler.follow_tun_mtu(database);
        let expires = config.control.acquire_expires;
        outcome.acquire_expires =
            (expires != self.config.control.acquire_expires).then_some(expires.get());
        self.written = diff::written(database, &said);
        self.plan = plan;
        // What waits for the next start is told again at the next reload.
        self.config.host.at_exit = config.host.at_exit;
        self.config.host.mtu = config.host.mtu;
        self.config.control.acquire_expires = expires;
        Ok(outcome)
    }

    /// A line for each key that the gateway follows at once.
    fn followed(&self, wanted: &Config) -> impl Iterator<Item = String> {
        let keys = [
            ("[host] at_exit", self.config.host.at_exit == wanted.host.at_exit),
            ("[host] mtu", self.config.host.mtu == wanted.host.mtu),
            (
                "[control] acquire_expires",
                self.config.control.acquire_expires == wanted.control.acquire_expires,
            ),
        ];
        keys.into_iter().filter(|(_, is_same)| !is_same).map(|(key, _)| format!("~ {key}"))
    }
}

impl Outcome {
    /// Nothing was done.
    fn failed(faults: Vec<String>) -> Self {
        Self { faults, ..Self::default() }
    }

    /// As a client is told.
    pub(crate) fn answers(&self) -> impl Iterator<Item = ReloadAnswer> {
        let told = &self.lines[..self.lines.len().min(MOST_LINES)];
        let more = self.lines.len() - told.len();
        let more = (more > 0).then(|| ReloadAnswer::Lines(vec![format!("… and {more} more")]));
        let last = if self.faults.is_empty() {
            ReloadAnswer::Done
        } else {
            ReloadAnswer::Failed(told_faults(&self.faults))
        };
        let lines = told.chunks(LINES).map(|lines| ReloadAnswer::Lines(lines.to_vec()));
        let warnings = self.warnings.chunks(LINES);
        let warnings = warnings.map(|warnings| ReloadAnswer::Lines(warnings.to_vec()));
        lines.chain(more).chain(warnings).chain([last])
    }

    /// In the log, where nobody waits for an answer.
    pub(crate) fn log(&self) {
        for line in self.lines.iter().take(LINES) {
            tracing::info!("reload: {line}");
        }
        for warning in &self.warnings {
            tracing::warn!("{}", log_line(warning));
        }
        for fault in &self.faults {
            tracing::error!("reload: {fault}");
        }
        tracing::info!(
            changes = self.lines.len(),
            faults = self.faults.len(),
            "files were read again"
        );
    }
}

/// Logs what will not work of what files say, though each line is right.
pub(crate) fn warn_of(config: &Config, said: &Snapshot, reconciler: &Reconciler) {
    for warning in check::warnings(said, &host_settings(config, reconciler)) {
        tracing::warn!("{}", log_line(&warning));
    }
}

/// A warning of [`check`] in one line.
fn log_line(warning: &str) -> String {
    let text = warning.strip_prefix("warning: ").unwrap_or(warning);
    text.replace("\n  ", "; ")
}

/// What rules are told of the host.
fn host_settings(config: &Config, reconciler: &Reconciler) -> HostSettings {
    HostSettings::running(config, reconciler.own(), reconciler.lasting_mtus())
}

/// Faults as one text, which has to fit one answer.
fn told_faults(faults: &[String]) -> String {
    let told = &faults[..faults.len().min(LINES)];
    let more = faults.len() - told.len();
    let told = told.join("\n");
    match faults.len() {
        _ if more == 0 => told,
        MOST_FAULTS.. => format!("{told}\n… and {more} more; the rest was not read"),
        _ => format!("{told}\n… and {more} more"),
    }
}

/// Deletes all held policies.
fn release(targets: Targets<'_>) -> anyhow::Result<Outcome> {
    let Targets { database, reconciler, .. } = targets;
    let mut held = Vec::new();
    database.apply(now(), |change| {
        held.extend(change.policies().filter(|entry| entry.is_held()).map(|entry| entry.key()));
        held.iter().try_for_each(|key| change.delete_policy(key).map(drop))
    })?;
    let changes = together(database, reconciler)?;
    let gone = changes.policies.iter().filter_map(|change| match change {
        PolicyChange::Removed(entry) => Some(report::gone(&entry.policy())),
        PolicyChange::Added(_) => None,
    });
    Ok(Outcome { lines: gone.collect(), changes, ..Outcome::default() })
}

/// Makes states and policies what files say, all of it or nothing.
fn make(
    difference: Difference,
    database: &mut Database,
    reconciler: &mut Reconciler,
) -> anyhow::Result<ChangeSet> {
    if difference.is_empty() {
        return Ok(ChangeSet::default());
    }
    let done = database.apply(now(), |change| difference.carry_out(change));
    if let Err((line, refused)) = done {
        reconciler.take_back(database);
        return Err(refusal(&line, &refused));
    }
    together(database, reconciler)
}

fn together(database: &mut Database, reconciler: &mut Reconciler) -> anyhow::Result<ChangeSet> {
    reconciler.make_together(database).map_err(|refusal| {
        let text = refusal.text.unwrap_or_default();
        anyhow::anyhow!("{text} (errno {}); nothing was changed", refusal.errno)
    })
}

fn refusal(line: &str, refused: &Refused) -> anyhow::Error {
    anyhow::anyhow!("{line}: {refused}; nothing was changed")
}

#[cfg(test)]
mod tests;
