//! iproute2's `ip fou …` and `ip link … type ipip|sit|gre|ip6tnl|ip6gre`, parsed for
//! [`uxfrm_tunnel`].
//!
//! Mirrors `ip/ipfou.c`, `ip/iplink.c`, `ip/link_iptnl.c`, `ip/link_gre.c`, `ip/link_ip6tnl.c`,
//! `ip/link_gre6.c`, with abbreviations of objects and commands. No text makes it panic.
//!
//! | module | owns |
//! | --- | --- |
//! | [`lines`], [`command`] | parsing `fou add`, `del`, `show`; `link add`, `change`, `del`, `show` |
//! | [`wire`] | ports and tunnels in netlink messages |
//! | [`text`], [`json`] | answers as iproute2 prints them |
//! | [`help`] | help, completion and manual, from a table of the grammar's words |
//!
//! `mode` of MPLS, `external`, `fwmark` and `isatap` are refused by name.
#![forbid(unsafe_code)]

mod error;
mod fou;
mod info;
mod link;
mod tunnel;
mod values;

pub mod help;
pub mod json;
pub mod text;
pub mod wire;

use uxfrm_cli_grammar::{Cursor, is_abbreviation};
use uxfrm_packet::Version;

pub use error::Error;
pub use fou::{FouAction, FouPort};
pub use link::{Admin, LinkAction, LinkChange, LinkFilter, TunnelLink, is_name};

/// A command of a batch file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TunnelCommand {
    /// `fou …`
    Fou(FouAction),
    /// `link …`
    Link(LinkAction),
}

/// A command or its error, and its line from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocatedCommand {
    /// The line where it begins.
    pub line: usize,
    /// What stands there.
    pub command: Result<TunnelCommand, Error>,
}

/// The commands of a batch file, without blank lines and comments (`#` at the start of a word). A
/// backslash joins a line with the next; `ip` may precede a command.
#[must_use]
pub fn lines(text: &str) -> Vec<LocatedCommand> {
    let mut found = Vec::new();
    let mut words: Vec<&str> = Vec::new();
    let mut begin = None;
    for (line, text) in (1..).zip(text.lines()) {
        let (text, goes_on) = match text.trim_end().strip_suffix('\\') {
            Some(text) => (text, true),
            None => (text, false),
        };
        begin = begin.or(Some(line));
        words.extend(text.split_whitespace().take_while(|word| !word.starts_with('#')));
        if !goes_on {
            found.extend(located(begin.take().unwrap_or(line), &std::mem::take(&mut words)));
        }
    }
    found.extend(begin.and_then(|begin| located(begin, &words)));
    found
}

fn located(line: usize, words: &[&str]) -> Option<LocatedCommand> {
    (!words.is_empty()).then(|| LocatedCommand { line, command: command(words) })
}

/// Parses the words of one command from `fou` or `link` on; `ip`, `-4` and `-6` may precede it.
///
/// # Errors
/// What is wrong with it.
pub fn command(words: &[&str]) -> Result<TunnelCommand, Error> {
    let mut cursor = Cursor::new(words);
    cursor.skip("ip");
    let version = if cursor.skip("-6") { Version::V6 } else { Version::V4 };
    if version == Version::V4 {
        cursor.skip("-4");
    }
    let object = cursor.next("an object")?;
    if is_abbreviation(object, "fou") {
        return fou::read(&mut cursor, version).map(TunnelCommand::Fou);
    }
    if is_abbreviation(object, "link") {
        return link::read(&mut cursor).map(TunnelCommand::Link);
    }
    Err(Error::Object(object.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_file_skips_comments_and_joins_lines() {
        let text = "# FOU\n\nip fou add port 5555 ipproto 4 # IPIP\nlink add t1 \\\n  type ipip \\\n remote 10.0.0.1\nbad\n";
        let found = lines(text);
        let at: Vec<_> = found.iter().map(|found| (found.line, found.command.is_ok())).collect();
        assert_eq!(at, [(3, true), (4, true), (7, false)]);
        assert_eq!(found[2].command, Err(Error::Object("bad".to_owned())));
        assert_eq!(lines("fou del port 1 \\")[0].line, 1);
    }

    proptest::proptest! {
        #[test]
        fn parsing_any_text_does_not_panic(text in "((fou|link|add|del|name|type|gre|sit|port|key|ttl|encap|fou|gue|-6|[0-9a-f.:/]{1,9}|\\PC{0,4})[ \n\\\\]){0,20}") {
            let _ = lines(&text);
        }
    }
}
