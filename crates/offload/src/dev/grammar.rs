//! Parses the words behind `uxfrm dev` into commands.

use std::collections::BTreeMap;

use uxfrm_cli_grammar::{Cursor, Error, is_abbreviation};

use super::{Addition, DevCommand, LinkWord, ProfileChoice, Setting, ShowDetail, TableName};
use crate::{Fault, FaultError, RuleError, steering::grammar::RuleCommand};

/// Errors of a command line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WordError {
    /// A word.
    #[error(transparent)]
    Word(#[from] Error),
    /// A fault that there is not.
    #[error(transparent)]
    Fault(#[from] FaultError),
    /// An unknown fault.
    #[error(transparent)]
    Rule(#[from] RuleError),
}

const COMMANDS: &str = "add, del, show, set, flow or events";
const ADD: &str = "over, profile, vfs, trust, marks, receive, transmit, both or addresses";
const SET: &str = "up, down, vf or fault";
const FLOW: &str = "-u, or -U and a rule (flow-type … or delete N)";
const PARTS: &str = "states or debugfs";
const ON_OFF: &str = "on or off";
const VFS: &str = "a number of virtual functions, 0 to 64";
/// As many as ixgbe has.
const MOST_VFS: u16 = 64;
/// An invalid rule.
const NAME_LENGTH: usize = 15;

/// Parses the words behind `uxfrm dev`. No words are `show`. A profile's path stays one
/// ([`ProfileChoice::Named`]).
///
/// # Errors
/// The first invalid word.
pub fn command(words: &[&str]) -> Result<DevCommand, WordError> {
    let mut words = Cursor::new(words);
    let Some(word) = words.take() else {
        return Ok(DevCommand::Show { device: None, part: ShowDetail::default() });
    };
    let is = |whole: &str| is_abbreviation(word, whole);
    if is("add") {
        addition(&mut words).map(DevCommand::Add)
    } else if is("delete") {
        let name = device(&mut words)?;
        words.end("nothing more")?;
        Ok(DevCommand::Delete(name))
    } else if is("show") || is("list") {
        show(&mut words)
    } else if is("set") {
        set(&mut words)
    } else if is("flow") {
        flow(&mut words)
    } else if is("events") || is("monitor") {
        let device = words.take().map(str::to_owned);
        words.end("nothing more")?;
        Ok(DevCommand::Events(device))
    } else {
        Err(Error::command(word, COMMANDS).into())
    }
}

fn addition(words: &mut Cursor<'_, '_>) -> Result<Addition, WordError> {
    skip_dev(words);
    let mut addition =
        Addition { name: interface(words, "the device's name")?, ..Addition::default() };
    let mut tables = BTreeMap::new();
    while let Some(word) = words.take() {
        if let Some(table) = TableName::ALL.into_iter().find(|table| table.as_str() == word) {
            tables.insert(table, words.number("how many it holds")?);
            continue;
        }
        match word {
            "over" => addition.port = Some(interface(words, "an interface")?),
            "profile" => {
                let profile = words.next("niantic, connectx6dx, netdevsim, unlimited or a file")?;
                addition.profile = ProfileChoice::Named(profile.to_owned());
            }
            "vfs" => addition.functions = functions(words)?,
            "trust" => addition.trusted = on_off(words)?,
            "marks" => addition.marks = Some(on_off(words)?),
            _ => return Err(Error::option(word, ADD).into()),
        }
    }
    addition.tables = tables;
    let longest = addition.name.len() + if addition.functions > 0 { "v63".len() } else { 0 };
    if longest > NAME_LENGTH {
        let what = "a name of at most 15 letters, 12 with virtual functions";
        return Err(Error::argument(&addition.name, what).into());
    }
    Ok(addition)
}

fn show(words: &mut Cursor<'_, '_>) -> Result<DevCommand, WordError> {
    skip_dev(words);
    let device = words.take().map(str::to_owned);
    let part = match words.take() {
        None => ShowDetail::Device,
        Some(word) if !word.is_empty() && "states".starts_with(word) => ShowDetail::States,
        Some("debugfs") => ShowDetail::Debugfs,
        Some(word) => return Err(Error::option(word, PARTS).into()),
    };
    words.end("nothing more")?;
    Ok(DevCommand::Show { device, part })
}

fn set(words: &mut Cursor<'_, '_>) -> Result<DevCommand, WordError> {
    let device = device(words)?;
    let mut settings = Vec::new();
    while let Some(word) = words.take() {
        settings.push(match word {
            "up" => Setting::Link(LinkWord::Up),
            "down" => Setting::Link(LinkWord::Down),
            "vf" => {
                let vf = words.number("a virtual function, from 0")?;
                match words.next("trust on or trust off")? {
                    "trust" => Setting::Trust { vf, trusted: on_off(words)? },
                    word => {
                        return Err(Error::option(word, "trust on or trust off").into());
                    }
                }
            }
            "fault" => {
                let name = words.next("a fault")?;
                let fault = format!("{name} {}", words.take().unwrap_or_default());
                fault.parse::<Fault>()?;
                Setting::Fault(fault)
            }
            _ => return Err(Error::option(word, SET).into()),
        });
    }
    if settings.is_empty() {
        return Err(Error::Incomplete(SET).into());
    }
    Ok(DevCommand::Set { device, settings })
}

fn flow(words: &mut Cursor<'_, '_>) -> Result<DevCommand, WordError> {
    let device = device(words)?;
    let option = words.take();
    match option {
        None | Some("-u" | "-n" | "--show-nfc" | "--show-ntuple") => {
            words.end("nothing more")?;
            Ok(DevCommand::Show { device: Some(device), part: ShowDetail::Device })
        }
        Some("-U" | "-N" | "--config-nfc" | "--config-ntuple") => {
            let rule = words.rest().join(" ");
            rule.parse::<RuleCommand>()?;
            Ok(DevCommand::Flow { device, rule })
        }
        Some(word) => Err(Error::option(word, FLOW).into()),
    }
}

fn device(words: &mut Cursor<'_, '_>) -> Result<String, Error> {
    skip_dev(words);
    words.next("a device").map(str::to_owned)
}

/// Skips `dev`, unless that is the device's name.
fn skip_dev(words: &mut Cursor<'_, '_>) {
    if words.rest().len() > 1 {
        words.skip("dev");
    }
}

/// `net/core/dev.c: dev_valid_name`
fn interface(words: &mut Cursor<'_, '_>, expected: &'static str) -> Result<String, Error> {
    let word = words.next(expected)?;
    let is_letter = |byte: u8| byte.is_ascii_graphic() && byte != b'/' && byte != b':';
    let is_name = !word.is_empty() && word.len() <= NAME_LENGTH && word.bytes().all(is_letter);
    if is_name && !matches!(word, "." | "..") {
        return Ok(word.to_owned());
    }
    Err(Error::argument(word, "an interface's name, 1 to 15 letters without /, : and blanks"))
}

fn functions(words: &mut Cursor<'_, '_>) -> Result<u16, Error> {
    let number: u16 = words.number(VFS)?;
    if number > MOST_VFS { Err(Error::argument(&number.to_string(), VFS)) } else { Ok(number) }
}

fn on_off(words: &mut Cursor<'_, '_>) -> Result<bool, Error> {
    match words.next(ON_OFF)? {
        "on" => Ok(true),
        "off" => Ok(false),
        word => Err(Error::argument(word, ON_OFF)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<DevCommand, WordError> {
        command(&line.split_whitespace().collect::<Vec<_>>())
    }

    #[test]
    fn every_command_is_read() {
        let addition = Addition {
            name: "nic0".into(),
            port: Some("eth0".into()),
            profile: ProfileChoice::Named("niantic".into()),
            functions: 2,
            trusted: true,
            marks: Some(false),
            tables: [(TableName::Addresses, 256)].into(),
        };
        let line = "add nic0 over eth0 profile niantic vfs 2 trust on marks off addresses 256";
        assert_eq!(read(line), Ok(DevCommand::Add(addition)));
        let name = || "nic0".to_owned();
        let show = |part| DevCommand::Show { device: Some(name()), part };
        let rule = "flow-type tcp4 src-port 52790 action 14".to_owned();
        for (line, command) in [
            ("del nic0", DevCommand::Delete(name())),
            ("", DevCommand::Show { device: None, part: ShowDetail::Device }),
            ("sh nic0", show(ShowDetail::Device)),
            ("show dev nic0 states", show(ShowDetail::States)),
            ("show nic0 debugfs", show(ShowDetail::Debugfs)),
            ("flow nic0", show(ShowDetail::Device)),
            ("flow nic0 -u", show(ShowDetail::Device)),
            (
                "flow nic0 -U flow-type tcp4 src-port 52790 action 14",
                DevCommand::Flow { device: name(), rule },
            ),
            ("events", DevCommand::Events(None)),
            ("events nic0", DevCommand::Events(Some(name()))),
            (
                "set nic0 down vf 1 trust on fault delay 500",
                DevCommand::Set {
                    device: name(),
                    settings: vec![
                        Setting::Link(LinkWord::Down),
                        Setting::Trust { vf: 1, trusted: true },
                        Setting::Fault("delay 500".into()),
                    ],
                },
            ),
        ] {
            assert_eq!(read(line), Ok(command), "{line}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (line, text) in [
            ("ad", "Command line is not complete. Expected the device's name"),
            ("fly nic0", "Command \"fly\" is unknown, try add, del, show, set, flow or events"),
            (
                "add a/b",
                "argument \"a/b\" is wrong: an interface's name, 1 to 15 letters without /, : and blanks",
            ),
            ("add nic0 vfs 65", "argument \"65\" is wrong: a number of virtual functions, 0 to 64"),
            (
                "add thirteen-long vfs 1",
                "argument \"thirteen-long\" is wrong: a name of at most 15 letters, 12 with virtual functions",
            ),
            ("add nic0 marks maybe", "argument \"maybe\" is wrong: on or off"),
            ("set nic0", "Command line is not complete. Expected up, down, vf or fault"),
            (
                "set nic0 fault flood 1",
                "\"flood 1\" is no fault: lost-event N, full-table N, busy N, delay MICROSECONDS, wrong-decryption N or reorder N",
            ),
            (
                "flow nic0 -U flow-type ip5",
                "unknown flow-type \"ip5\": ip4, ip6, tcp4, tcp6, udp4, udp6, sctp4, sctp6, esp4 or esp6",
            ),
            ("flow nic0 -x", "\"-x\"? expected -u, or -U and a rule (flow-type … or delete N)"),
            ("show nic0 all", "\"all\"? expected states or debugfs"),
        ] {
            assert_eq!(read(line).unwrap_err().to_string(), text, "{line}");
        }
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_words_do_not_panic(line in "((add|del|show|set|flow|events|nic0|over|vfs|vf|trust|on|fault|-U|flow-type|tcp4|[0-9a-z]{0,6}) ){0,8}") {
            let _ = read(&line);
        }
    }
}
