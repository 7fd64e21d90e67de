//! The command lines of the documentation are right: `uxfrm …` is read by the command line's own
//! grammars, files of the repository are there. What can be run is run by the interop tests.

mod shell;

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::Parser as _;
use uxfrm_xfrm::grammar::{self, CliOptions};

use crate::arguments::{Arguments, Command};

/// Directories of the repository that command lines name.
const DIRECTORIES: [&str; 5] = ["docs/", "examples/", "scripts/", "tests/", "crates/"];

/// A command of a page.
struct DocumentedCommand {
    page: PathBuf,
    words: Vec<String>,
}

impl DocumentedCommand {
    fn place(&self) -> String {
        format!("{}: {}", self.page.display(), self.words.join(" "))
    }

    /// The words from `uxfrm` on, where it is a command line of ours, as in `setpriv … uxfrm run`.
    fn ours(&self) -> Option<&[String]> {
        const CARRIERS: [&str; 3] = ["setpriv", "sudo", "ip"];
        let first = self.words.first()?;
        let is_name = |word: &String| word == "uxfrm" || word.ends_with("/bin/uxfrm");
        if is_name(first) {
            return Some(&self.words);
        }
        let at = self.words.iter().rposition(is_name)?;
        CARRIERS.contains(&first.as_str()).then(|| &self.words[at..])
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The pages of the root and of `docs`.
fn pages() -> Vec<PathBuf> {
    let listed =
        |directory: PathBuf| fs::read_dir(directory).unwrap().map(|one| one.unwrap().path());
    let all = listed(root()).chain(listed(root().join("docs")));
    all.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

/// The commands of all pages: of blocks, and between backticks where `is_inline`.
fn commands(of: impl Fn(&str) -> Vec<String>) -> Vec<DocumentedCommand> {
    let mut found = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for line in of(&text) {
            let commands = shell::commands(&line);
            found.extend(
                commands.into_iter().map(|words| DocumentedCommand { page: page.clone(), words }),
            );
        }
    }
    found
}

/// Why a command line of ours is wrong.
fn fault(words: &[String]) -> Option<String> {
    let command = match Arguments::try_parse_from(words) {
        Ok(arguments) => arguments.command,
        Err(asked) if asked.exit_code() == 0 => return None, // --help, --version
        Err(error) => return Some(error.to_string()),
    };
    // Keys and other parts are left out by `…`.
    if words.iter().any(|word| word.contains('…')) {
        return None;
    }
    if let Command::Xfrm(options) = command {
        fault_of_xfrm(&options.words)
    } else if let Command::Fou(options) = command {
        fault_of_link("fou", &options.words)
    } else if let Command::Link(options) = command {
        fault_of_link("link", &options.words)
    } else if let Command::Dev(options) = command {
        fault_of_dev(&options.words)
    } else if let Command::Why(options) = command {
        let asked = options.drop.is_none().then(|| crate::why::query::parse(&options.words));
        asked.and_then(Result::err).map(|error| format!("{error:#}"))
    } else {
        None
    }
}

fn fault_of_dev(words: &[String]) -> Option<String> {
    let rest = behind_options(words).ok()?;
    let command = (rest != ["help"]).then(|| uxfrm_offload::dev::command(&rest))?;
    command.err().map(|error| error.to_string())
}

fn behind_options(words: &[String]) -> Result<Vec<&str>, String> {
    let (options, count) = CliOptions::parse(words).map_err(|fault| fault.error.to_string())?;
    if options.batch.is_some() {
        return Err(String::new());
    }
    Ok(words[count..].iter().map(String::as_str).collect())
}

fn fault_of_xfrm(words: &[String]) -> Option<String> {
    match behind_options(words) {
        Ok(rest) if rest.is_empty() => None,
        Ok(rest) => grammar::words(&rest, None).err().map(|fault| fault.error.to_string()),
        Err(error) => (!error.is_empty()).then_some(error),
    }
}

fn fault_of_link(object: &str, words: &[String]) -> Option<String> {
    match behind_options(words) {
        Ok(rest) if rest == ["help"] => None,
        Ok(rest) => {
            let line: Vec<_> = [object].into_iter().chain(rest).collect();
            uxfrm_link::command(&line).err().map(|error| error.to_string())
        }
        Err(error) => (!error.is_empty()).then_some(error),
    }
}

/// Whether only more words are wanted: a sentence names a command by its first ones. Some are then
/// answered by their help, which lists what they have.
fn is_begin(fault: &str) -> bool {
    ["required", "not complete", "Not enough information", "\nCommands:\n"]
        .iter()
        .any(|words| fault.contains(words))
}

fn assert_right(found: &[DocumentedCommand], least: usize, is_fault: impl Fn(&str) -> bool) {
    let ours: Vec<_> = found.iter().filter_map(|one| Some((one, one.ours()?))).collect();
    assert!(ours.len() >= least, "{} command lines were found", ours.len());
    let faults = ours
        .iter()
        .filter_map(|(one, words)| Some((one, fault(words).filter(|fault| is_fault(fault))?)))
        .map(|(one, fault)| format!("{}\n  {fault}", one.place()));
    let faults: Vec<_> = faults.collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn command_lines_of_blocks_are_right() {
    assert_right(&commands(shell::lines_of_blocks), 150, |_| true);
}

#[test]
fn command_lines_in_sentences_are_right() {
    assert_right(&commands(shell::inline), 150, |fault| !is_begin(fault));
}

#[test]
fn files_that_commands_name_are_there() {
    let mut count = 0;
    for found in commands(shell::lines_of_blocks) {
        for word in &found.words {
            if DIRECTORIES.iter().any(|directory| word.starts_with(directory)) {
                count += 1;
                let there = root().join(word.as_str());
                // What a command writes is made by it.
                assert!(there.exists() || word.contains('*'), "{}: {word}", found.place());
            }
        }
    }
    assert!(count > 2, "{count} files were found");
}

#[test]
fn wrong_command_lines_are_found() {
    for line in [
        "uxfrm nonsense",
        "uxfrm status --everything",
        "uxfrm xfrm state lits",
        "uxfrm xfrm policy add dir sideways",
        "uxfrm fou add prt 5555",
        "uxfrm link add tun1 type ipop",
        "uxfrm dev shw nic0",
        "uxfrm why 10.1.0.1",
        "uxfrm why 10.1.0.1 10.2.0.1 tpc",
        "uxfrm drops --reason in_nonsense",
        "setpriv --reuid uxfrm uxfrm runn x.toml",
    ] {
        let [words] = &shell::commands(line)[..] else { panic!("{line}") };
        let found = DocumentedCommand { page: PathBuf::new(), words: words.clone() };
        assert!(found.ours().is_some_and(|words| fault(words).is_some()), "{line}");
    }
}
