//! What exit codes mean, for the manual pages and the head of docs/commands.md.

use std::fmt::Write as _;

/// What each code means of some commands.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExitStatus {
    pub(super) commands: &'static [&'static str],
    pub(super) codes: &'static [(&'static str, &'static str)],
}

/// What 2 means wherever a running gateway is asked.
const UNASKED: (&str, &str) =
    ("2", "no gateway answers, or it refuses to, or the command line is wrong");
/// What 2 means elsewhere: clap's.
const USAGE: (&str, &str) = ("2", "the command line is wrong");

/// All commands, in groups that mean the same.
pub(super) const ALL: &[ExitStatus] = &[
    ExitStatus {
        commands: &["status"],
        codes: &[
            ("0", "all tunnels are up or idle"),
            ("1", "a tunnel is down or one-way, policies are held, or none has the PEER"),
            UNASKED,
        ],
    },
    ExitStatus {
        commands: &["why"],
        codes: &[
            ("0", "the packet leaves in ESP, or comes in"),
            ("1", "it is dropped, waits for a state, leaves plain, or gets no further"),
            UNASKED,
        ],
    },
    ExitStatus {
        commands: &["probe"],
        codes: &[
            ("0", "packets pass as large as uxfrm takes them for"),
            ("1", "only smaller ones do, none is answered, or pings would leave plain"),
            UNASKED,
        ],
    },
    ExitStatus {
        commands: &["top", "stat", "drops", "capture", "trace"],
        codes: &[("0", "done"), ("1", "failed, as for a file that can't be written"), UNASKED],
    },
    ExitStatus {
        commands: &["reload", "upgrade", "release"],
        codes: &[("0", "done"), ("1", "the gateway refused, or failed"), UNASKED],
    },
    ExitStatus {
        commands: &["doctor"],
        codes: &[
            ("0", "all is well"),
            ("1", "there are warnings"),
            ("2", "something keeps uxfrm from working, or the command line is wrong"),
        ],
    },
    ExitStatus {
        commands: &["check"],
        codes: &[("0", "no errors; there may be warnings and notes"), ("1", "errors"), USAGE],
    },
    ExitStatus {
        commands: &["setup", "run", "guard", "clean", "web", "demo", "bench", "completions", "man"],
        codes: &[("0", "done"), ("1", "failed"), USAGE],
    },
    ExitStatus {
        commands: &["fleet"],
        codes: &[
            ("0", "done; `status`: all is well"),
            (
                "1",
                "it was refused, or failed; `status`: a gateway or an endpoint of etcd is not well",
            ),
            ("2", "`status`: etcd does not answer; or the command line is wrong"),
        ],
    },
    ExitStatus {
        commands: &["xfrm", "fou", "link", "dev"],
        codes: &[
            ("0", "done"),
            ("1", "no gateway answers, or the words contradict each other"),
            ("2", "the gateway refused, as the kernel would"),
            ("255", "the words are wrong; all as of iproute2"),
        ],
    },
    ExitStatus {
        commands: &["exec"],
        codes: &[
            ("125", "the command was not started, as no gateway answers"),
            ("126", "it can't be executed, or must not be"),
            ("127", "there is no such command"),
            ("other", "the command's own"),
        ],
    },
];

/// What ends any command that is at work.
const SIGNALLED: (&str, &str) = ("128+N", "ended by signal N: 130 for Ctrl-C");

/// The part of a command's manual page.
pub(super) fn manual(command: &str) -> String {
    let Some(status) = ALL.iter().find(|status| status.commands.contains(&command)) else {
        return String::new();
    };
    let mut part = ".SH EXIT STATUS\n".to_owned();
    for (code, means) in status.codes.iter().chain([&SIGNALLED]) {
        // A string takes all.
        let _written = write!(part, ".TP\n.B {code}\n{}\n", means.replace('-', "\\-"));
    }
    part
}

/// The table of all commands, in Markdown.
#[cfg(test)]
pub(super) fn table() -> String {
    let mut table = "| command | exit code |\n| --- | --- |\n".to_owned();
    for ExitStatus { commands, codes } in ALL {
        let commands: Vec<_> = commands.iter().map(|command| format!("`{command}`")).collect();
        let codes: Vec<_> = codes.iter().map(|(code, means)| format!("{code} {means}")).collect();
        let _written = writeln!(table, "| {} | {} |", commands.join(", "), codes.join("; "));
    }
    let (code, means) = SIGNALLED;
    format!("{table}| any | {code} {means} |\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_its_exit_codes_once() {
        let command = super::super::described();
        for one in command.get_subcommands().filter(|one| !one.is_hide_set()) {
            let name = one.get_name();
            let found = ALL.iter().filter(|status| status.commands.contains(&name)).count();
            assert_eq!(found, 1, "{name}");
            assert!(manual(name).contains(".SH EXIT STATUS"), "{name}");
        }
    }
}
