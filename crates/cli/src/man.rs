//! `uxfrm man [DIRECTORY]`: manual pages of section 8, from clap's description of the command line
//! and the grammars of `ip xfrm`, `ip fou`, `ip link` and `uxfrm dev`.

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
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

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
