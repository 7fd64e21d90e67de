//! The grammar's own page, completion and manual, made from its tables.

mod completion;
mod manual;

use uxfrm_cli_grammar::page;

pub use self::{completion::complete, manual::manual};
use crate::grammar::{Topic, vocabulary};

/// What `help` prints.
#[must_use]
pub fn text(topic: Topic) -> String {
    let mut text = String::new();
    match topic {
        Topic::Objects => {
            text += "Usage: uxfrm xfrm [ OPTIONS ] XFRM-OBJECT { COMMAND | help }\n";
            text += "       uxfrm xfrm [ -force ] -batch FILE\n";
            page::choice(&mut text, "XFRM-OBJECT", &vocabulary::objects());
            page::choice(&mut text, "OPTIONS", &vocabulary::options());
        }
        Topic::State => commands(&mut text, "state"),
        Topic::Policy => commands(&mut text, "policy"),
        Topic::Save => {
            text += "Usage: uxfrm xfrm save [ nokeys ] [ index ]\n";
            page::choice(&mut text, "WHAT", &vocabulary::commands("save"));
        }
        Topic::Sync => {
            text += "Usage: uxfrm xfrm sync FILE [ --dry-run ] [ --keep-others ]\n";
            page::choice(&mut text, "OPTION", &vocabulary::commands("sync"));
        }
        Topic::Monitor => {
            text += "Usage: uxfrm xfrm monitor [ WHAT ]...\n";
            page::choice(&mut text, "WHAT", &vocabulary::commands("monitor"));
        }
    }
    text
}

/// Every command of an object with its parts, then what their names mean.
fn commands(text: &mut String, object: &str) {
    for (command, _) in vocabulary::commands(object) {
        let parts = vocabulary::parts(object, command);
        let line = format!("Usage: uxfrm xfrm {object} {command}");
        page::wrap(
            text,
            &line,
            parts.iter().map(|phrase| format!("[ {} ]", page::joined(*phrase))),
        );
    }
    for (name, phrases) in vocabulary::notions() {
        page::choice(text, name, &phrases);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grammar::vocabulary::{notions, objects, options, parts};

    const TOPICS: [Topic; 6] =
        [Topic::Objects, Topic::State, Topic::Policy, Topic::Monitor, Topic::Save, Topic::Sync];

    /// All words that the parser takes.
    fn every_word() -> Vec<&'static str> {
        let mut words: Vec<&str> = Vec::new();
        let mut take = |phrases: Vec<uxfrm_cli_grammar::WordAndValue>| {
            words.extend(phrases.iter().map(|p| p.0))
        };
        take(objects());
        take(options());
        for object in ["state", "policy", "monitor", "save", "sync"] {
            for (command, _) in vocabulary::commands(object) {
                take(vec![(command, "")]);
                take(parts(object, command));
            }
        }
        for (_, phrases) in notions() {
            take(phrases);
        }
        words.retain(|word| *word != "VALUE");
        words
    }

    #[test]
    fn help_and_manual_contain_every_word() {
        let help = TOPICS.map(text).concat();
        let manual = manual().replace("\\-", "-");
        assert!(every_word().len() > 150);
        for word in every_word() {
            assert!(help.split_whitespace().any(|one| one == word), "{word} in help");
            assert!(manual.contains(word), "{word} in manual");
        }
    }

    #[test]
    fn help_lines_are_at_most_the_width() {
        for topic in TOPICS {
            for line in text(topic).lines() {
                assert!(line.len() <= page::WIDTH + 10, "{line}");
            }
        }
    }
}
