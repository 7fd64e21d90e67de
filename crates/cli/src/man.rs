//! `uxfrm man [DIRECTORY]`: manual pages of section 8, from clap's description of the command line
//! and the grammars of `ip xfrm`, `ip fou`, `ip link` and `uxfrm dev`; and uxfrm.toml(5).

#[cfg(test)]
mod commands;
mod configuration;
mod example;
mod exit_status;

use std::fs;
use std::io::{self, Write as _};

use clap::{Command, CommandFactory as _};
use clap_mangen::Man;
use uxfrm_xfrm::help;

use crate::arguments::{Arguments, ManOptions};

const SECTION: &str = "8";

/// Prints uxfrm(8), or writes all pages.
pub(crate) fn execute(options: &ManOptions) -> anyhow::Result<()> {
    let command = described();
    let Some(directory) = &options.directory else {
        return Ok(io::stdout().lock().write_all(&page(&command)?)?);
    };
    fs::create_dir_all(directory)?;
    let subcommands = command.get_subcommands().filter(|one| !one.is_hide_set());
    for one in std::iter::once(&command).chain(subcommands) {
        let name = format!("{}.{SECTION}", page_name(one));
        fs::write(directory.join(name), page(one)?)?;
    }
    fs::write(directory.join("uxfrm.toml.5"), configuration::manual())?;
    Ok(())
}

/// The command line as built by clap, without a page for its `help`.
fn described() -> Command {
    let mut command = Arguments::command().disable_help_subcommand(true);
    command.build();
    command
}

/// `uxfrm`, `uxfrm-run` …
fn page_name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

fn page(command: &Command) -> io::Result<Vec<u8>> {
    let name = page_name(command).to_owned();
    let mut page = Vec::new();
    Man::new(command.clone()).title(name.to_uppercase()).section(SECTION).render(&mut page)?;
    match command.get_name() {
        "xfrm" => page.extend_from_slice(help::manual().as_bytes()),
        object @ ("fou" | "link") => {
            page.extend_from_slice(uxfrm_link::help::manual(object).as_bytes());
        }
        "dev" => page.extend_from_slice(uxfrm_offload::dev::help::manual().as_bytes()),
        _no_grammar => {}
    }
    page.extend_from_slice(example::manual(command.get_name()).as_bytes());
    page.extend_from_slice(exit_status::manual(command.get_name()).as_bytes());
    Ok(page)
}

/// Columns of pages.
#[cfg(test)]
const COLUMNS: usize = 100;

/// Prose in lines of at most so many columns.
#[cfg(test)]
fn filled(prose: &str, columns: usize) -> String {
    let mut lines = vec![String::new()];
    for word in prose.split_whitespace() {
        let last = lines.last().map_or(0, |line| line.chars().count());
        if last > 0 && last + 1 + word.chars().count() > columns {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares a page of the book with what it is made from; with UPDATE=1 writes it anew.
    pub(super) fn hold(name: &str, page: &str) {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
        if std::env::var_os("UPDATE").is_some() {
            return fs::write(&path, page).unwrap();
        }
        let there = fs::read_to_string(&path).unwrap_or_default();
        assert!(there == page, "docs/{name} is old: UPDATE=1 cargo test -p uxfrm-cli man::");
    }

    #[test]
    fn every_command_has_a_page_and_is_listed_in_the_main_page() {
        let command = described();
        let first = String::from_utf8(page(&command).unwrap()).unwrap().replace("\\-", "-");
        for one in command.get_subcommands().filter(|one| !one.is_hide_set()) {
            let name = page_name(one);
            assert!(name.starts_with("uxfrm-"), "{name}");
            assert!(first.contains(name), "{name} in uxfrm(8)");
            let text = String::from_utf8(page(one).unwrap()).unwrap();
            assert!(text.contains(".TH") && text.contains(".SH SYNOPSIS"), "{name}");
        }
        assert!(!first.contains("complete-"));
    }
}
