//! Carries out the lines of `ip xfrm` batch files on the databases.

use std::path::{Path, PathBuf};

use uxfrm_engine::{
    Database, DefaultActions, Error as Refusal, Moment, PolicyKey, PolicyName, SaProtocol,
    Transaction,
};

use uxfrm_xfrm::grammar::LinePrefix;

use crate::batch::{self, BatchError, Command, LoadError, Located, PolicyTarget};

/// Why the batch files can't be carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A file can't be read, or has lines that are no `ip xfrm`.
    #[error(transparent)]
    Unreadable(#[from] LoadError),
    /// The databases refuse a line, in the kernel's words.
    #[error("{file}:{line}: {refusal}", file = file.display())]
    Refused {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: u32,
        /// Why.
        refusal: Refusal,
    },
    /// The line asks for something that only a gateway can answer.
    #[error(
        "{file}:{line}: `{command}` has no place in a text of states and policies; expected state or policy add, update, delete, flush, or policy setdefault",
        file = file.display()
    )]
    Misplaced {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: u32,
        /// What it asks for.
        command: &'static str,
    },
}

/// Carries out all lines of `files`, in order, as one change: workers see all of it or nothing.
/// Each is done as it is read, so that no more than one is in memory beside what it leads to.
///
/// # Errors
/// The files that can't be read and all lines that are no `ip xfrm`, or else all lines that are
/// refused; the databases are then in no state to be used.
pub(crate) fn load(
    database: &mut Database,
    files: &[PathBuf],
    now: Moment,
) -> Result<(), Vec<Error>> {
    let (mut unreadable, mut refused) = (Vec::new(), Vec::new());
    database.apply(now, |change| {
        for file in files {
            match carry_out(change, file) {
                Ok(faults) => refused.extend(faults),
                Err(error) => unreadable.push(Error::Unreadable(error)),
            }
        }
    });
    let faults = if unreadable.is_empty() { refused } else { unreadable };
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

/// Which lines of a file were not carried out.
fn carry_out(change: &mut Transaction<'_>, file: &Path) -> Result<Vec<Error>, LoadError> {
    let text = batch::text(file)?;
    if batch::is_exposed(file, &text) {
        tracing::warn!(
            file = %file.display(),
            "every user of this host may read the keys in this file; `chmod o-r` it, and use new keys"
        );
    }
    let lines = carry_out_text(change, file, &text, LinePrefix::Program);
    if lines.wrong.is_empty() { Ok(lines.refused) } else { Err(LoadError::Lines(lines.wrong)) }
}

/// Carries out all lines of a text that has come otherwise; `source` names it in errors. How many
/// there were.
///
/// # Errors
/// As [`load`].
pub(crate) fn load_text(
    database: &mut Database,
    source: &Path,
    text: &str,
    now: Moment,
) -> Result<usize, Vec<Error>> {
    let prefix = LinePrefix::Optional;
    let lines = database.apply(now, |change| carry_out_text(change, source, text, prefix));
    if !lines.wrong.is_empty() {
        let wrong = lines.wrong.into_iter().map(|error| LoadError::Lines(vec![error]));
        return Err(wrong.map(Error::Unreadable).collect());
    }
    if lines.refused.is_empty() { Ok(lines.count) } else { Err(lines.refused) }
}

/// Faults after which a text is read no further: it is another kind of file.
pub(crate) const MOST_FAULTS: usize = 1000;

/// What came of a text.
#[derive(Default)]
struct TextOutcome {
    count: usize,
    refused: Vec<Error>,
    wrong: Vec<BatchError>,
}

fn carry_out_text(
    change: &mut Transaction<'_>,
    file: &Path,
    text: &str,
    prefix: LinePrefix,
) -> TextOutcome {
    let mut outcome = TextOutcome::default();
    for line in batch::commands_with(prefix, &file.display().to_string(), text) {
        outcome.count += 1;
        match line {
            Ok(line) => outcome.refused.extend(run(change, file, line).err()),
            Err(error) => outcome.wrong.push(error),
        }
        if outcome.wrong.len() + outcome.refused.len() >= MOST_FAULTS {
            break;
        }
    }
    outcome
}

fn run(change: &mut Transaction<'_>, file: &Path, line: Located<Command>) -> Result<(), Error> {
    let misplaced = |command| Err(Error::Misplaced { file: file.into(), line: line.line, command });
    let done = match line.value {
        Command::StateAdd(config) => change.add_sa(*config).map(drop),
        Command::StateUpdate(config) => change.update_sa(*config).map(drop),
        Command::StateDelete(key) => change.delete_sa(key.id, key.mark).map(drop),
        Command::StateFlush { protocol } => {
            change.flush_sas(protocol.unwrap_or(SaProtocol::Any));
            Ok(())
        }
        Command::StateDeleteAll(filter) => {
            let meant = change.states().filter(|sa| filter.fits(&sa.to_config()));
            let names: Vec<_> = meant.map(|sa| (sa.id(), sa.config().mark)).collect();
            names.into_iter().try_for_each(|(id, mark)| change.delete_sa(id, mark).map(drop))
        }
        Command::PolicyAdd(policy) => change.add_policy(*policy).map(drop),
        Command::PolicyUpdate(policy) => change.update_policy(*policy).map(drop),
        Command::PolicyDelete(key) => change.delete_policy(&named(key)).map(drop),
        Command::PolicyDeleteAll(filter) => {
            let meant =
                change.policies().filter(|entry| filter.fits(&entry.policy(), entry.index()));
            let names: Vec<_> = meant.map(|entry| entry.key()).collect();
            names.iter().try_for_each(|name| change.delete_policy(name).map(drop))
        }
        Command::PolicyFlush { kind } => {
            change.flush_policies(kind.unwrap_or_default());
            Ok(())
        }
        Command::SetDefault { inbound, forward, outbound } => {
            let old = change.defaults();
            change.set_defaults(DefaultActions {
                inbound: inbound.unwrap_or(old.inbound),
                forward: forward.unwrap_or(old.forward),
                outbound: outbound.unwrap_or(old.outbound),
            });
            Ok(())
        }
        Command::SetHthresh { .. } => {
            tracing::warn!(
                file = %file.display(),
                line = line.line,
                "hthresh changes nothing here: what a file loads is planned together, by lengths that are found and not told"
            );
            Ok(())
        }
        Command::StateAllocSpi(_) => return misplaced("state allocspi"),
        Command::StateGet(_) => return misplaced("state get"),
        Command::StateList(_) | Command::StateListWithoutKeys(_) => return misplaced("state list"),
        Command::StateCount => return misplaced("state count"),
        Command::PolicyGet(_) => return misplaced("policy get"),
        Command::PolicyList(_) => return misplaced("policy list"),
        Command::PolicyCount => return misplaced("policy count"),
        Command::GetDefault => return misplaced("policy getdefault"),
    };
    done.map_err(|refusal| Error::Refused { file: file.into(), line: line.line, refusal })
}

/// The databases' name for the policy that a line names.
fn named(key: batch::PolicyKeyArgs) -> PolicyKey {
    PolicyKey {
        direction: key.direction,
        kind: key.kind.unwrap_or_default(),
        mark: key.mark,
        if_id: key.if_id.unwrap_or_default(),
        name: match key.target {
            PolicyTarget::Selector(selector) => PolicyName::Selector(selector),
            PolicyTarget::Index(index) => PolicyName::Index(index),
        },
    }
}
