//! The page of all drop reasons, `docs/drop-reasons.md`, is made from the reasons themselves.
//!
//! `UPDATE=1 cargo test -p uxfrm-runtime --test drop_reasons` writes it.

use std::path::Path;
use std::{env, fs};

use uxfrm_engine::DropReason;
use uxfrm_offload::NicDrop;
use uxfrm_tunnel::DropReason as TunnelDropReason;

const HEAD: &str = "\
# Drop reasons

Every packet that uxfrm drops is counted under one reason: `uxfrm stat --reasons`. This page says
when a reason counts, what usually causes it and what to try next. Where the kernel's
`/proc/net/xfrm_stat` counts it, its line follows in brackets; `uxfrm stat` shows these. In the next
steps SRC, DST, PEER and DEVICE stand for the addresses and the interface of the packet.

It is made from `crates/engine/src/drop_reason.rs` and its siblings, by
`UPDATE=1 cargo test -p uxfrm-runtime --test drop_reasons`.
";

const OF_TUNNELS: &str = "
## Of tunnels

IPIP, SIT, GRE and their like, alone and in FOU and GUE: `uxfrm link -s show`, and `uxfrm stat`.
";

const OF_DEVICES: &str = "
## Of model NICs

What a device drops itself: `uxfrm dev show`. `uxfrm stat` counts it under the gateway's reason,
which has cause and next step.
";

/// A reason's name, the line that counts it elsewhere, and its texts.
struct Entry {
    name: &'static str,
    elsewhere: Option<String>,
    meaning: &'static str,
    advice: Option<[&'static str; 2]>,
}

fn of_engine() -> impl Iterator<Item = Entry> {
    DropReason::ALL.iter().map(|reason| Entry {
        name: reason.as_str(),
        elsewhere: reason.counter().map(|counter| format!("`Xfrm{counter:?}`")),
        meaning: reason.meaning(),
        advice: Some([reason.cause(), reason.next_step()]),
    })
}

fn of_tunnels() -> impl Iterator<Item = Entry> {
    TunnelDropReason::ALL.iter().map(|reason| Entry {
        name: reason.as_str(),
        elsewhere: None,
        meaning: reason.meaning(),
        advice: Some([reason.cause(), reason.next_step()]),
    })
}

fn of_devices() -> impl Iterator<Item = Entry> {
    NicDrop::ALL.iter().map(|reason| Entry {
        name: reason.as_str(),
        elsewhere: Some(format!("`{}`", reason.reason().as_str())),
        meaning: reason.meaning(),
        advice: None,
    })
}

fn all() -> impl Iterator<Item = Entry> {
    of_engine().chain(of_tunnels()).chain(of_devices())
}

impl Entry {
    /// Its part of the page.
    fn text(&self) -> String {
        let elsewhere = self.elsewhere.as_ref().map_or(String::new(), |line| format!(" ({line})"));
        let paragraph = folded(&format!("{}{elsewhere}", self.meaning), "");
        let advice = self.advice.map(|[cause, next]| {
            let item = |name, text| folded(&format!("- {name}: {text}"), "  ");
            format!("\n{}{}", item("Usual cause", cause), item("Next", next))
        });
        format!("\n### {}\n\n{paragraph}{}", self.name, advice.unwrap_or_default())
    }
}

/// The text in lines of at most 100 columns, all but the first with an indent.
fn folded(text: &str, indent: &str) -> String {
    let (mut lines, mut line) = (String::new(), String::new());
    for word in text.split(' ') {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > 100 {
            lines += &line;
            lines.push('\n');
            line = format!("{indent}{word}");
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line += word;
        }
    }
    lines + &line + "\n"
}

fn page() -> String {
    let part = |entries: Vec<Entry>| entries.iter().map(Entry::text).collect::<String>();
    let engine = |begins: &[&str]| {
        let is_one = |entry: &Entry| begins.iter().any(|begin| entry.name.starts_with(begin));
        part(of_engine().filter(is_one).collect())
    };
    let parts = [
        (HEAD, String::new()),
        ("\n## Outbound\n", engine(&["out_"])),
        ("\n## Inbound\n", engine(&["in_"])),
        ("\n## Forwarding and transmission\n", engine(&["forward_", "port_"])),
        (OF_TUNNELS, part(of_tunnels().collect())),
        (OF_DEVICES, part(of_devices().collect())),
    ];
    parts.map(|(head, entries)| format!("{head}{entries}")).concat()
}

#[test]
fn page_says_what_the_reasons_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/drop-reasons.md");
    if env::var_os("UPDATE").is_some() {
        fs::write(&path, page()).unwrap();
    }
    assert_eq!(page().matches("\n### ").count(), all().count(), "each reason has its place");
    let there = fs::read_to_string(&path).unwrap_or_default();
    let differs = there.lines().zip(page().lines()).find(|(there, new)| there != new).map(|pair| {
        let (there, new) = pair;
        format!("{there:?} should be {new:?}")
    });
    assert!(there == page(), "run it with UPDATE=1: {differs:?}");
}

#[test]
fn every_reason_says_when_why_and_what_next_in_a_line() {
    for Entry { name, meaning, advice, .. } in all() {
        assert!(meaning.ends_with('.') && !meaning.contains("]("), "{name}: {meaning}");
        for line in advice.into_iter().flatten() {
            assert!(line.ends_with('.') && !line.contains('\n'), "{name}: {line}");
            assert!((8..=100).contains(&line.chars().count()), "{name}: {line}");
        }
    }
}

/// A next step that names a command of uxfrm names one that there is, or that is announced.
#[test]
fn next_steps_name_commands_that_exist() {
    let commands = [
        "stat", "xfrm", "check", "release", "dev", "exec", "drops", "link", "fou", "why", "doctor",
    ];
    for Entry { name, advice, .. } in of_engine().chain(of_tunnels()) {
        for line in advice.into_iter().flatten() {
            for (at, _) in line.match_indices("`uxfrm ") {
                let word = line[at + 7..].split([' ', '`']).next().unwrap();
                assert!(commands.contains(&word), "{name}: {line}");
            }
        }
    }
}
