//! `save`: all states and policies as lines that make the same again.

use std::io::{self, Write};

use uxfrm_engine::{Action, DefaultActions, Policy, PolicyFlags, PolicyIndex, SaConfig};
use uxfrm_netlink::{
    MessageType, NetlinkError, NetlinkMessage,
    client::{DumpedState, RawDefaults, default_number, dumped_policy},
};
use zeroize::Zeroizing;

use super::{Failure, Session, SessionEnvironment, remark};
use crate::{
    answer::AnswerMessage,
    client,
    grammar::{
        CliOptions, LineWriter, PolicyFilter, SaveArgs, StateFilter, UnwritableError, XfrmCommand,
    },
    request::request,
    text::Keys,
};

/// Bytes of lines that are kept together.
const PAGE: usize = 64 * 1024;

/// Who may read the output beside the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputExposure {
    /// Whoever looks at the terminal.
    Terminal,
    /// Every user of this host, by the file's mode.
    EveryUser,
}

/// What a message of a dump is.
enum Entry {
    State(Box<SaConfig>),
    Policy(Policy),
}

/// Why something of a dump is not among the lines.
#[derive(Debug, thiserror::Error)]
enum Unsaved {
    #[error("{what}: {why}")]
    Unwritable { what: String, why: UnwritableError },
    #[error("a message of the gateway is not understood: {}", client::Error::Refused(.0.clone()))]
    Unread(NetlinkError),
}

/// Prints the lines in the order in which a gateway has to be told them: defaults first, so that it
/// is at no time more open, then states, as policies need them. Within each the oldest comes first:
/// among equals age decides.
pub(super) fn run(
    save: SaveArgs,
    options: &CliOptions,
    world: &mut impl SessionEnvironment,
) -> Result<(), Failure> {
    if let Some(exposure) = world.exposure().filter(|_| !save.hides_keys) {
        writeln!(world.complaints(), "Warning: {}", warning(exposure))?;
    }
    let mut session = Session::open(options, world)?;
    session.save_defaults()?;
    let states = XfrmCommand::StateList(StateFilter::default());
    let policies = XfrmCommand::PolicyList(PolicyFilter::default());
    let mut unsaved = session.save_list(&states, save)?;
    unsaved += session.save_list(&policies, save)?;
    session.world.output().flush()?;
    if unsaved == 0 { Ok(()) } else { Err(Failure::Unsaved(unsaved)) }
}

const fn warning(exposure: OutputExposure) -> &'static str {
    match exposure {
        OutputExposure::Terminal => {
            "the keys of all states are on this terminal; `nokeys` hides them"
        }
        OutputExposure::EveryUser => {
            "every user of this host may read the keys in this file; `chmod o-r` it, or begin with `umask 077`"
        }
    }
}

impl<W: SessionEnvironment> Session<'_, W> {
    fn save_defaults(&mut self) -> Result<(), Failure> {
        let (request, wanted) = request(&XfrmCommand::GetDefault)?;
        let mut defaults = DefaultActions::default();
        self.connection.talk(request, wanted, |message| {
            if let AnswerMessage::Defaults(raw) = AnswerMessage::of(message) {
                defaults = actions(&raw);
            }
        })?;
        let mut writer = LineWriter::new(&self.names, Keys::Shown);
        Ok(self.world.output().write_all(writer.defaults(defaults).as_bytes())?)
    }

    /// Prints what a list shows; how many of it no line can say.
    fn save_list(&mut self, list: &XfrmCommand, save: SaveArgs) -> Result<usize, Failure> {
        let keys = if save.hides_keys { Keys::Hidden } else { Keys::Shown };
        let mut writer = LineWriter::new(&self.names, keys);
        let mut lines = LinesBackwards::default();
        let mut unsaved = Vec::new();
        let (request, wanted) = request(list)?;
        let status = self.connection.talk(request, wanted, |message| {
            match entry(*message, save).map(|entry| entry.map(|entry| write(&mut writer, &entry))) {
                Ok(None) => {}
                Ok(Some(Ok(line))) => lines.push(line),
                Ok(Some(Err(fault))) => unsaved.push(fault),
                Err(refusal) => unsaved.push(Unsaved::Unread(refusal)),
            }
        })?;
        lines.write_to(self.world.output())?;
        for fault in &unsaved {
            writeln!(self.world.complaints(), "Error: {fault}.")?;
        }
        remark(&status, self.world)?;
        Ok(unsaved.len())
    }
}

/// What is to be a line: larval states answer an acquire of this moment, and held policies are the
/// gateway's own.
fn entry(message: NetlinkMessage<'_>, save: SaveArgs) -> Result<Option<Entry>, NetlinkError> {
    match MessageType::from_number(message.header.kind) {
        Some(MessageType::NewSa) => Ok(match DumpedState::of(message)? {
            DumpedState::Larval => None,
            DumpedState::Whole(config) => Some(Entry::State(config)),
        }),
        Some(MessageType::NewPolicy) => {
            let mut policy = dumped_policy(message)?;
            if !save.keeps_indexes {
                policy.index = PolicyIndex(0);
            }
            Ok((!policy.flags.contains(PolicyFlags::HELD)).then_some(Entry::Policy(policy)))
        }
        Some(_) | None => Ok(None),
    }
}

fn write<'w>(writer: &'w mut LineWriter<'_>, entry: &Entry) -> Result<&'w str, Unsaved> {
    match entry {
        Entry::State(config) => writer.state(config).map_err(|why| {
            let (destination, spi) = (config.id.destination, config.id.spi.0);
            Unsaved::Unwritable { what: format!("state dst {destination} spi {spi:#010x}"), why }
        }),
        Entry::Policy(policy) => writer.policy(policy).map_err(|why| {
            let selector = &policy.selector;
            let ends = format!("src {} dst {}", selector.source, selector.destination);
            Unsaved::Unwritable { what: format!("policy {ends}"), why }
        }),
    }
}

fn actions(raw: &RawDefaults) -> DefaultActions {
    let action = |number| {
        if number == default_number(Action::Block) { Action::Block } else { Action::Allow }
    };
    DefaultActions {
        inbound: action(raw.inbound),
        forward: action(raw.forward),
        outbound: action(raw.outbound),
    }
}

/// Lines that come the last first, as dumps have the youngest first: pages are filled from their
/// ends. All of a list is in memory, a line of about 300 bytes for each state. It is wiped.
#[derive(Default)]
struct LinesBackwards {
    pages: Vec<Page>,
}

struct Page {
    bytes: Zeroizing<Vec<u8>>,
    /// Where its lines begin.
    front: usize,
}

impl LinesBackwards {
    fn push(&mut self, line: &str) {
        if self.pages.last().is_none_or(|page| page.front < line.len()) {
            let len = PAGE.max(line.len());
            self.pages.push(Page { bytes: Zeroizing::new(vec![0; len]), front: len });
        }
        let Some(page) = self.pages.last_mut() else { return };
        let begin = page.front - line.len();
        page.bytes[begin..page.front].copy_from_slice(line.as_bytes());
        page.front = begin;
    }

    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        self.pages.iter().rev().try_for_each(|page| out.write_all(&page.bytes[page.front..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_backwards_are_turned_round_over_pages() {
        let all: Vec<_> =
            (0..3000).map(|number| format!("{number} {}\n", "x".repeat(number % 97))).collect();
        let mut lines = LinesBackwards::default();
        all.iter().rev().for_each(|line| lines.push(line));
        assert!(lines.pages.len() > 1);
        let mut text = Vec::new();
        lines.write_to(&mut text).unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), all.concat());
        let mut long = LinesBackwards::default();
        let line = "y".repeat(2 * PAGE);
        long.push("end");
        long.push(&line);
        let mut text = Vec::new();
        long.write_to(&mut text).unwrap();
        assert_eq!(text.len(), line.len() + 3);
    }
}
