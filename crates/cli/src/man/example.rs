//! Examples of each command, for its manual page and the book.

use std::fmt::Write as _;

/// A line to type, and what it does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Example {
    pub(super) line: &'static str,
    pub(super) does: &'static str,
}

const fn example(line: &'static str, does: &'static str) -> Example {
    Example { line, does }
}

/// Commands and their examples, in the order of `uxfrm --help`.
const EXAMPLES: &[(&str, &[Example])] = &[
    (
        "doctor",
        &[
            example(
                "uxfrm doctor",
                "what of this host is in the way, and the command that mends it",
            ),
            example("uxfrm doctor -j", "the same for a program"),
        ],
    ),
    (
        "setup",
        &[
            example("uxfrm setup strongswan --dry-run", "says what it would write and run"),
            example("uxfrm setup strongswan", "puts charon on uxfrm"),
            example("uxfrm setup --undo", "takes all of it back"),
        ],
    ),
    (
        "run",
        &[
            example("uxfrm run /etc/uxfrm/uxfrm.toml", "a gateway in the foreground"),
            example("uxfrm run --log json gateway.toml", "its log as JSON objects, one a line"),
        ],
    ),
    (
        "check",
        &[example(
            "uxfrm check gateway.toml",
            "every error, and what will not work though each line is right",
        )],
    ),
    (
        "reload",
        &[
            example("uxfrm reload --dry-run", "what would come, change and go"),
            example("uxfrm reload", "the files' states and policies, at once or not at all"),
        ],
    ),
    (
        "upgrade",
        &[example(
            "uxfrm upgrade /usr/bin/uxfrm",
            "this program takes over without losing a packet",
        )],
    ),
    (
        "guard",
        &[example("uxfrm guard gateway.toml", "after a boot: refuses what the last run protected")],
    ),
    ("release", &[example("uxfrm release", "lets go of what is held from the last run")]),
    ("clean", &[example("uxfrm clean", "removes what an ended gateway left")]),
    (
        "status",
        &[
            example("uxfrm status", "the tunnels, worst first"),
            example("uxfrm status 192.0.2.2", "those with this peer"),
            example("uxfrm status -j", "the document for a program"),
        ],
    ),
    (
        "top",
        &[
            example("uxfrm top", "live: tunnels, workers, ports, devices, drops, caches"),
            example("uxfrm top -v workers -s 'BUSY %'", "workers, the busiest first"),
            example("uxfrm top --once 192.0.2.2", "one frame, of tunnels with this peer"),
        ],
    ),
    (
        "stat",
        &[
            example("uxfrm stat --reasons", "a counter for each drop reason"),
            example("uxfrm stat -w 1", "what has changed, each second"),
        ],
    ),
    (
        "drops",
        &[
            example("uxfrm drops -f", "dropped packets as they are dropped"),
            example("uxfrm drops --reason in_no_state --peer 192.0.2.2", "only these"),
            example("uxfrm drops --by sa", "how many of each state, by reason"),
        ],
    ),
    (
        "why",
        &[
            example(
                "uxfrm why 10.1.0.5 10.2.0.7 tcp 443",
                "what such a packet meets on its way out",
            ),
            example("uxfrm why 10.2.0.7 10.1.0.5 dir in spi 0x1002", "on its way in, by this SPI"),
            example("uxfrm why --drop 17", "a packet of `uxfrm drops`"),
        ],
    ),
    (
        "capture",
        &[
            example(
                "uxfrm capture --plain --host 10.2.0.0/16 -c 10",
                "ten packets of the plain side, a line each",
            ),
            example(
                "uxfrm capture --wire -w esp.pcapng --keys esp_sa",
                "the wire side, and its keys for Wireshark",
            ),
            example(
                "uxfrm capture --drops --peer 192.0.2.2",
                "what is dropped of this peer, and why",
            ),
        ],
    ),
    (
        "trace",
        &[
            example("uxfrm trace", "the next ten packets, with what each stage decided"),
            example("uxfrm trace 1 --host 10.2.0.7 -j", "one packet of this host, for a program"),
        ],
    ),
    (
        "probe",
        &[example(
            "uxfrm probe 10.2.0.7 --source 10.1.0.1",
            "the largest packet that passes to this host",
        )],
    ),
    (
        "web",
        &[
            example("uxfrm web --group adm", "on /run/uxfrm/web.sock, for members of this group"),
            example(
                "uxfrm web --listen 127.0.0.1:8080 --token-file /etc/uxfrm/web.token",
                "on a loopback address, for who has the token",
            ),
        ],
    ),
    (
        "fleet",
        &[
            example("uxfrm fleet init ours --etcd http://10.0.0.9:2379", "a fleet, and its key"),
            example(
                "uxfrm fleet join gw-1 --address 10.0.0.1:4600",
                "this host is a gateway of it",
            ),
            example("uxfrm fleet apply --dry-run tunnels.toml", "what would change"),
            example("uxfrm fleet drain gw-1", "before maintenance: its tunnels go to the others"),
        ],
    ),
    (
        "xfrm",
        &[
            example("uxfrm xfrm -s state list nokeys", "the states, with counters"),
            example("uxfrm xfrm policy list dir out", "the policies of a direction"),
            example("uxfrm xfrm monitor", "changes, acquires and expiries as they come"),
            example(
                "uxfrm xfrm save > gateway.batch",
                "all as lines; with keys: `umask 077` first",
            ),
            example(
                "uxfrm xfrm sync --dry-run gateway.batch",
                "what would change to have what the file says",
            ),
        ],
    ),
    ("fou", &[example("uxfrm fou add port 5555 ipproto 4", "IPIP in UDP is taken at this port")]),
    (
        "link",
        &[
            example("uxfrm link add tun1 type ipip local 192.0.2.1 remote 192.0.2.2", "a tunnel"),
            example("uxfrm link show", "all of them"),
        ],
    ),
    (
        "dev",
        &[
            example(
                "uxfrm dev add nic0 profile niantic",
                "a model of Intel's 10GbE with its IPsec offload",
            ),
            example("uxfrm dev show nic0 states", "what is on it"),
        ],
    ),
    (
        "exec",
        &[
            example("uxfrm exec -- ip xfrm state", "the gateway's states by iproute2"),
            example("uxfrm exec -- /usr/sbin/charon-systemd", "strongSwan on the gateway"),
        ],
    ),
    ("demo", &[example("uxfrm demo", "two gateways, real traffic, and what is on the wire")]),
    (
        "bench",
        &[
            example("uxfrm bench crypto", "what a core seals and opens"),
            example("uxfrm bench lookup --quick", "policy look-up with and without the flow cache"),
        ],
    ),
    (
        "completions",
        &[example("uxfrm completions bash > /etc/bash_completion.d/uxfrm", "completion in bash")],
    ),
    (
        "man",
        &[
            example("uxfrm man", "uxfrm(8)"),
            example("uxfrm man /usr/local/share/man/man8", "all pages"),
        ],
    ),
];

/// Examples of a command.
pub(super) fn of(command: &str) -> &'static [Example] {
    let found = EXAMPLES.iter().find(|(name, _)| *name == command);
    found.map_or(&[], |(_, examples)| examples)
}

/// The part of a command's manual page.
pub(super) fn manual(command: &str) -> String {
    let examples = of(command);
    let mut part = if examples.is_empty() { String::new() } else { ".SH EXAMPLES\n".to_owned() };
    for Example { line, does } in examples {
        // A string takes all.
        let _written =
            write!(part, ".TP\n.B {}\n{}\n", line.replace('-', "\\-"), does.replace('-', "\\-"));
    }
    part
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::arguments::Arguments;

    #[test]
    fn every_command_has_an_example_and_every_example_is_right() {
        let command = super::super::described();
        for one in command.get_subcommands().filter(|one| !one.is_hide_set()) {
            assert!(!of(one.get_name()).is_empty(), "{} has no example", one.get_name());
        }
        for (name, examples) in EXAMPLES {
            for Example { line, .. } in *examples {
                let words = line.split_whitespace().take_while(|word| *word != ">");
                let parsed = Arguments::try_parse_from(words);
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
                assert_eq!(line.split(' ').nth(1), Some(*name));
            }
        }
    }
}
