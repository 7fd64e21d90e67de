//! The book's page of all commands.

use std::fmt::Write as _;

use super::{COLUMNS, described, example, exit_status};

fn page() -> String {
    let mut page = String::from(
        "# Commands\n\nWhat `uxfrm COMMAND --help` says, and examples. `man uxfrm-COMMAND` has the \
         same.\n\nIt is made by `UPDATE=1 cargo test -p uxfrm-cli man::`.\n\n",
    );
    page += "## Exit codes\n\nOf commands that ask a running gateway: 0 it answered and all is \
             well, 1 it answered and\nsomething is not, 2 it could not be asked.\n\n";
    page += &exit_status::table();
    for command in described().get_subcommands_mut().filter(|one| !one.is_hide_set()) {
        let name = command.get_name().to_owned();
        let help = command.render_long_help().to_string();
        let help: Vec<_> = help.trim().lines().map(within_columns).collect();
        // A string takes all.
        let _written = write!(page, "\n## uxfrm {name}\n\n```text\n{}\n```\n", help.join("\n"));
        let examples = example::of(&name);
        let width = examples.iter().map(|example| example.line.len()).max().unwrap_or_default();
        let lines = examples.iter().map(|each| format!("{:width$}  # {}\n", each.line, each.does));
        let _written = write!(page, "\n```sh\n{}```\n", lines.collect::<String>());
    }
    page
}

/// A line with its indent, in as many as it takes.
fn within_columns(line: &str) -> String {
    let indent = line.len() - line.trim_start().len();
    let blank = " ".repeat(indent);
    let filled = super::filled(line, COLUMNS - indent);
    let lines = filled.lines().map(|line| format!("{blank}{line}"));
    // Columns of a list stand behind several blanks, and are not too long.
    if line.len() <= COLUMNS {
        line.trim_end().to_owned()
    } else {
        lines.collect::<Vec<_>>().join("\n")
    }
}

#[test]
fn page_of_commands_is_what_they_say_of_themselves() {
    let page = page();
    assert!(page.contains("## uxfrm status") && page.matches("```sh").count() > 15);
    super::tests::hold("commands.md", &page);
}
