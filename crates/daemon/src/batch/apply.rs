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
    let source = TextSource { file, before: 0 };
    let lines = carry_out_text(change, source, &text, LinePrefix::Program);
    if lines.wrong.is_empty() { Ok(lines.refused) } else { Err(LoadError::Lines(lines.wrong)) }
}

/// Faults after which a text is read no further: it is another kind of file.
pub(crate) const MOST_FAULTS: usize = 1000;

/// A text that has come otherwise, as far as it was carried out. Each part is a change of its own,
/// so it is for databases that nobody uses before the last.
#[derive(Debug, Default)]
pub(crate) struct TextProgress {
    /// Bytes that are done.
    done: usize,
    /// Lines that are done.
    lines: u32,
    outcome: TextOutcome,
}

/// What came of a text.
#[derive(Debug, Default)]
struct TextOutcome {
    count: usize,
    refused: Vec<Error>,
    wrong: Vec<BatchError>,
}

/// Where a text comes from, and how many lines are before it.
#[derive(Clone, Copy, Debug)]
struct TextSource<'a> {
    file: &'a Path,
    before: u32,
}

impl TextProgress {
    /// Carries out the next lines of a text, of so many `bytes` or a little more; `source` names it
    /// in errors.
    pub(crate) fn advance(
        &mut self,
        database: &mut Database,
        (source, text): (&Path, &str),
        bytes: usize,
        now: Moment,
    ) {
        let part = part(text.get(self.done..).unwrap_or_default(), bytes);
        let source = TextSource { file: source, before: self.lines };
        let TextOutcome { count, refused, wrong } = database
            .apply(now, |change| carry_out_text(change, source, part, LinePrefix::Optional));
        self.outcome.count += count;
        self.outcome.refused.extend(refused);
        self.outcome.wrong.extend(wrong);
        self.done += part.len();
        let lines = part.bytes().filter(|byte| *byte == b'\n').count();
        self.lines = self.lines.saturating_add(u32::try_from(lines).unwrap_or(u32::MAX));
    }

    /// Whether nothing of a text is left, or so much of it was wrong that no more is read.
    pub(crate) fn is_over(&self, text: &str) -> bool {
        self.done >= text.len() || self.outcome.faults() >= MOST_FAULTS
    }

    /// How many lines there were.
    ///
    /// # Errors
    /// As [`load`].
    pub(crate) fn finish(self) -> Result<usize, Vec<Error>> {
        let TextOutcome { count, refused, wrong } = self.outcome;
        if !wrong.is_empty() {
            let wrong = wrong.into_iter().map(|error| LoadError::Lines(vec![error]));
            return Err(wrong.map(Error::Unreadable).collect());
        }
        if refused.is_empty() { Ok(count) } else { Err(refused) }
    }
}

impl TextOutcome {
    fn faults(&self) -> usize {
        self.wrong.len() + self.refused.len()
    }
}

/// The first lines of a text, of so many bytes at least where there are as many. A line goes with
/// its continuations.
fn part(text: &str, bytes: usize) -> &str {
    let mut end = 0;
    for line in text.split_inclusive('\n') {
        end += line.len();
        if end >= bytes && !line.trim_end().ends_with('\\') {
            break;
        }
    }
    text.get(..end).unwrap_or(text)
}

fn carry_out_text(
    change: &mut Transaction<'_>,
    TextSource { file, before }: TextSource<'_>,
    text: &str,
    prefix: LinePrefix,
) -> TextOutcome {
    let mut outcome = TextOutcome::default();
    for line in batch::commands_with(prefix, &file.display().to_string(), text) {
        outcome.count += 1;
        match line {
            Ok(Located { line, value }) => {
                let line = Located { line: line.saturating_add(before), value };
                outcome.refused.extend(run(change, file, line).err());
            }
            Err(error) => {
                let line = error.line.saturating_add(before);
                outcome.wrong.push(BatchError { line, ..error });
            }
        }
        if outcome.faults() >= MOST_FAULTS {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_ends_with_a_whole_command() {
        let text = "one\ntwo \\ \n three\nfour";
        for (bytes, first) in [(1, 4), (4, 4), (5, 18), (18, 18), (19, 22), (100, 22)] {
            assert_eq!(part(text, bytes).len(), first, "{bytes}");
        }
        assert_eq!(part("", 1), "");
        assert_eq!(part("é\\\n", 1), "é\\\n", "what is missing is told");
    }
}
