//! Help, completion and manual page, generated from one table of words.

use std::fmt::Write as _;

use uxfrm_cli_grammar::{WordAndValue, completion, is_abbreviation, page, takes_value, words_of};

const COMMANDS: [WordAndValue; 6] = [
    ("add", "NAME OPTIONS"),
    ("delete", "NAME"),
    ("show", "[ NAME [ states | debugfs ] ]"),
    ("set", "NAME SETTINGS"),
    ("flow", "NAME [ -u | -U RULE | -U delete LOC ]"),
    ("events", "[ NAME ]"),
];
const ADD: [WordAndValue; 9] = [
    ("over", "INTERFACE"),
    ("profile", "{ niantic | connectx6dx | netdevsim | unlimited | FILE }"),
    ("vfs", "NUMBER"),
    ("trust", "{ on | off }"),
    ("marks", "{ on | off }"),
    ("receive", "NUMBER"),
    ("transmit", "NUMBER"),
    ("both", "NUMBER"),
    ("addresses", "NUMBER"),
];
const SET: [WordAndValue; 4] =
    [("up", ""), ("down", ""), ("vf", "NUMBER trust { on | off }"), ("fault", "FAULT")];
const FAULTS: [WordAndValue; 6] = [
    ("lost-event", "N"),
    ("full-table", "N"),
    ("busy", "N"),
    ("delay", "MICROSECONDS"),
    ("wrong-decryption", "N"),
    ("reorder", "N"),
];
const RULE: [WordAndValue; 11] = [
    ("src-ip", "ADDR [ m MASK ]"),
    ("dst-ip", "ADDR [ m MASK ]"),
    ("l4proto", "N"),
    ("src-port", "PORT [ m MASK ]"),
    ("dst-port", "PORT [ m MASK ]"),
    ("spi", "SPI [ m MASK ]"),
    ("vlan", "N [ m MASK ]"),
    ("vlan-etype", "N"),
    ("user-def", "N"),
    ("action", "{ QUEUE | -1 }"),
    ("loc", "N"),
];
const FLOW_TYPES: [&str; 10] =
    ["ip4", "ip6", "tcp4", "tcp6", "udp4", "udp6", "sctp4", "sctp6", "esp4", "esp6"];
const PROFILES: [&str; 4] = ["niantic", "connectx6dx", "netdevsim", "unlimited"];
/// Options before the command.
const OPTIONS: [WordAndValue; 4] =
    [("-json", ""), ("-pretty", ""), ("-netns", "NAME"), ("-control", "PATH")];

/// What `uxfrm dev help` prints.
#[must_use]
pub fn text() -> String {
    let mut text = "Usage: uxfrm dev [ OPTIONS ] COMMAND\n".to_owned();
    page::options(&mut text, "COMMAND", &COMMANDS);
    page::options(&mut text, "OPTIONS of add", &ADD);
    page::options(&mut text, "SETTINGS", &SET);
    page::options(&mut text, "FAULT", &FAULTS);
    let _ = writeln!(text, "RULE := flow-type {{ {} }} RULE-OPTIONS", FLOW_TYPES.join(" | "));
    page::options(&mut text, "RULE-OPTIONS", &RULE);
    page::options(&mut text, "OPTIONS", &OPTIONS);
    text
}

/// Completions of the last of `words`, behind `uxfrm dev`. The caller adds interface names.
#[must_use]
pub fn complete(words: &[&str], interfaces: &[String]) -> Vec<String> {
    let (typed, before) = completion::typed(words);
    completion::matching(typed, candidates(typed, before, interfaces))
}

fn candidates(typed: &str, before: &[&str], interfaces: &[String]) -> Vec<String> {
    let line = completion::behind_options(before, &OPTIONS);
    let [command, rest @ ..] = &line[..] else {
        return if typed.starts_with('-') { words_of(&OPTIONS) } else { words_of(&COMMANDS) };
    };
    let command = COMMANDS.iter().find(|(whole, _)| is_abbreviation(command, whole));
    let command = command.map_or("", |(word, _)| word);
    let last = rest.last().copied().unwrap_or_default();
    match (command, rest.len()) {
        ("", _) => Vec::new(),
        ("add" | "delete" | "show" | "set" | "flow" | "events", 0) => interfaces.to_vec(),
        ("add", _) => match last {
            "over" => interfaces.to_vec(),
            "profile" => owned(&PROFILES),
            "trust" | "marks" => owned(&["on", "off"]),
            last if takes_value(&ADD, last) && rest.len() > 1 => Vec::new(),
            _ => words_of(&ADD),
        },
        ("show", 1) => owned(&["states", "debugfs"]),
        ("set", _) => match last {
            "fault" => words_of(&FAULTS),
            "trust" => owned(&["on", "off"]),
            "vf" => Vec::new(),
            last if takes_value(&FAULTS, last) => Vec::new(),
            _ if rest.len() > 2 && rest[rest.len() - 2] == "vf" => owned(&["trust"]),
            _ => words_of(&SET),
        },
        ("flow", 1) => owned(&["-u", "-U"]),
        ("flow", _) => match last {
            "-U" => owned(&["flow-type", "delete"]),
            "flow-type" => owned(&FLOW_TYPES),
            "-u" | "delete" => Vec::new(),
            last if takes_value(&RULE, last) => Vec::new(),
            _ => words_of(&RULE),
        },
        (_, _) => Vec::new(),
    }
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// The grammar's part of uxfrm-dev(8), in roff.
#[must_use]
pub fn manual() -> String {
    let mut page = String::new();
    for (title, phrases) in [
        ("COMMANDS", &COMMANDS[..]),
        ("OPTIONS OF ADD", &ADD),
        ("SETTINGS", &SET),
        ("FAULTS", &FAULTS),
        ("RULES", &RULE),
        ("OPTIONS BEFORE THE COMMAND", &OPTIONS),
    ] {
        page::section(&mut page, title, phrases);
    }
    page + SECTIONS
}

const SECTIONS: &str = r#".SH DEVICES
A device is a model of a network card that does IPsec, between the gateway and the host's network; states name it by
.BR "offload packet|crypto dev NAME dir in|out" ,
policies by
.BR "offload packet dev NAME" .
NAME is an interface that is there, whose link it follows, or one that is made for it, so that
.BR ip\-xfrm (8)
finds it; with
.B over
it follows that interface's link. Its virtual functions are interfaces as well: NAMEv0, NAMEv1 and so on, each with an equal share of the tables. An
untrusted one is refused with EACCES.
.PP
Rules are those of
.BR "ethtool \-U" ,
with
.B esp4
and
.B esp6
for the 32\-bit SPI; action \-1 drops.
.PP
.B events
prints a line for each thing that a device says, and that one is added or deleted, until it is interrupted.
.SH EXIT STATUS
.TP
0
Done.
.TP
1
No gateway answers.
.TP
2
The gateway refuses it.
.TP
255
A word that is not in the grammar, or a value that its word does not take; also
.BR help .
.SH SEE ALSO
.BR ethtool (8),
.BR uxfrm\-xfrm (8)
"#;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fault, Profile, dev::command};

    #[test]
    fn help_table_matches_grammar() {
        for (word, _) in FAULTS {
            assert!(format!("{word} 1").parse::<Fault>().is_ok(), "{word}");
        }
        for name in PROFILES {
            assert!(Profile::by_name(name).is_some(), "{name}");
        }
        for (word, takes) in ADD {
            let value = if takes.contains("on") { "on" } else { "1" };
            assert!(command(&["add", "nic0", word, value]).is_ok(), "{word}");
        }
        for flow_type in FLOW_TYPES {
            assert!(command(&["flow", "nic0", "-U", "flow-type", flow_type]).is_ok());
        }
        let page = manual();
        assert!(page.contains("lost\\-event") && text().contains("[ fault FAULT ]"));
    }

    #[test]
    fn completion_lists_next_words() {
        let interfaces = ["nic0".to_owned(), "lo".to_owned()];
        for (line, found) in [
            ("", &["add", "delete", "events", "flow", "set", "show"][..]),
            ("a", &["add"]),
            ("show n", &["nic0"]),
            ("show nic0 ", &["debugfs", "states"]),
            ("add nic1 profile n", &["netdevsim", "niantic"]),
            ("-netns x add nic1 v", &["vfs"]),
            ("set nic0 fault d", &["delay"]),
            ("set nic0 vf 1 ", &["trust"]),
            ("flow nic0 -U f", &["flow-type"]),
            ("flow nic0 -U flow-type e", &["esp4", "esp6"]),
            ("flow nic0 -U flow-type esp4 s", &["spi", "src-ip", "src-port"]),
        ] {
            let words: Vec<_> = line.split(' ').collect();
            assert_eq!(complete(&words, &interfaces), found, "{line}");
        }
    }
}
