//! Completion of command lines.

use uxfrm_cli_grammar::{WordAndValue, completion, takes_value};

use crate::grammar::vocabulary;

/// Completes the last of `words` behind `uxfrm xfrm`. The caller gives the names of interfaces.
#[must_use]
pub fn complete(words: &[&str], interfaces: &[String]) -> Vec<String> {
    let (typed, before) = completion::typed(words);
    completion::matching(typed, candidates(typed, before, interfaces))
}

fn candidates(typed: &str, before: &[&str], interfaces: &[String]) -> Vec<String> {
    let owned = |words: Vec<&str>| words.into_iter().map(str::to_owned).collect();
    let first = |phrases: Vec<WordAndValue>| phrases.into_iter().map(|phrase| phrase.0).collect();
    let line = completion::behind_options(before, &vocabulary::options());
    let last = before.last().copied().unwrap_or_default();
    if last == "dev" {
        return interfaces.to_vec();
    }
    match line[..] {
        [] if last == "-family" || last == "-f" => owned(vocabulary::values("", "", last)),
        [] if typed.starts_with('-') => owned(first(vocabulary::options())),
        [] => owned(first(vocabulary::objects())),
        [object] => owned(first(vocabulary::commands(full(object, vocabulary::objects())))),
        [object, command, ref rest @ ..] => {
            let object = full(object, vocabulary::objects());
            if ["monitor", "save", "sync"].contains(&object) {
                return owned(first(vocabulary::commands(object)));
            }
            let command = full(command, vocabulary::commands(object));
            owned(behind_command(object, command, rest))
        }
    }
}

fn behind_command(object: &str, command: &str, rest: &[&str]) -> Vec<&'static str> {
    let parts = vocabulary::parts(object, command);
    let last = rest.last().copied().unwrap_or_default();
    let values = vocabulary::values(object, command, last);
    if !values.is_empty() {
        return values;
    }
    if takes_value(&parts, last) {
        return Vec::new(); // a name or number that nobody can guess
    }
    let mut words: Vec<&str> = parts.into_iter().map(|(word, _)| word).collect();
    words.extend(vocabulary::continuations(rest));
    // More flags may follow a flag.
    if let Some(flag) = rest.iter().rev().find(|word| ["flag", "extra-flag"].contains(*word)) {
        let flags = vocabulary::values(object, command, flag);
        if flags.contains(&last) {
            words.extend(flags);
        }
    }
    words
}

/// The word that `abbreviation` is the beginning of.
fn full(abbreviation: &str, phrases: Vec<WordAndValue>) -> &'static str {
    phrases.iter().find(|(word, _)| word.starts_with(abbreviation)).map_or("", |(word, _)| *word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(line: &str) -> Vec<String> {
        let words: Vec<&str> = line.split(' ').collect();
        complete(&words, &["eth0".to_owned(), "lo".to_owned()])
    }

    #[test]
    fn completion_offers_next_words() {
        for (line, words) in [
            ("", &["help", "monitor", "policy", "sa", "save", "state", "sync"][..]),
            ("save no", &["nokeys"]),
            ("sync /tmp/x --d", &["--dry-run"]),
            ("-s st", &["state"]),
            ("-fam", &["-family"]),
            ("-family ", &["inet", "inet6"]),
            ("state de", &["delall", "delete", "deleteall"]),
            ("policy set", &["set", "setdefault"]),
            ("state add mode t", &["transport", "tunnel"]),
            ("s a dst 1.2.3.4 offload p", &["packet"]),
            ("state add offload packet ", &["dev"]),
            ("state add offload packet dev ", &["eth0", "lo"]),
            ("state add offload packet dev eth0 d", &["dir", "dst"]),
            ("state add dir ", &["in", "out"]),
            ("policy add dir ", &["fwd", "in", "out"]),
            ("policy add dir out tmpl pr", &["proto"]),
            ("policy add dir in tmpl proto esp l", &["level", "limit"]),
            ("policy setdefault in ", &["accept", "allow", "block"]),
            ("state add reqid ", &[]),
            ("state add flag esn no", &["noecn", "nopmtudisc"]),
            ("state add aead rfc75", &["rfc7539esp(chacha20,poly1305)"]),
            ("state add mark 5 mas", &["mask"]),
            ("monitor acquire po", &["policy"]),
            ("state list nok", &["nokeys"]),
            ("bogus x ", &[]),
        ] {
            assert_eq!(after(line), words, "{line}");
        }
    }

    /// Wherever the parser takes a word, completion offers it.
    #[test]
    fn completion_offers_every_word() {
        for (object, _) in vocabulary::objects() {
            assert!(after("").contains(&object.to_owned()));
            for (command, _) in vocabulary::commands(object) {
                assert!(after(&format!("{object} ")).contains(&command.to_owned()));
                for (part, _) in vocabulary::parts(object, command) {
                    let offered = after(&format!("{object} {command} "));
                    assert!(offered.contains(&part.to_owned()), "{object} {command} {part}");
                    for value in vocabulary::values(object, command, part) {
                        let offered = after(&format!("{object} {command} {part} "));
                        assert!(offered.contains(&value.to_owned()), "{part} {value}");
                    }
                }
            }
        }
        for (option, _) in vocabulary::options() {
            assert!(after("-").contains(&option.to_owned()), "{option}");
        }
    }
}
