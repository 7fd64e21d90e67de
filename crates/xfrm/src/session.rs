//! `uxfrm xfrm WORDS…`: one command line, or a batch of them, from its words to its exit code.
//!
//! Exit codes are iproute2's: 0 success, 1 contradictory arguments or a socket error, 2 refused by
//! the server, 255 wrong words.

mod batch;
mod deletion;
mod save;
mod sync;

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::OwnedFd,
};

use jiff::Timestamp;
use uxfrm_netlink::{NetlinkMessage, NetlinkMessages};

use crate::{
    answer::AnswerMessage,
    client::{self, AnswerStatus, Connection},
    grammar::{
        self, CliOptions, Line, Monitor, Notation, SyncArgs, SyntaxError, Timestamps, Topic,
        XfrmCommand,
    },
    help, json,
    names::Names,
    request::{self, request},
    text::{Keys, WipedText},
};

pub use self::{
    save::OutputExposure,
    sync::{SyncFailure, SyncText},
};

/// What a command line may use of the world outside.
pub trait SessionEnvironment {
    /// Connects to the gateway that `options` name, listening to `groups` (bits of `nl_groups`).
    ///
    /// # Errors
    /// Why there is none, for the user.
    fn connect(&mut self, options: &CliOptions, groups: u32) -> Result<OwnedFd, String>;
    /// Where answers go.
    fn output(&mut self) -> &mut dyn Write;
    /// Where complaints go.
    fn complaints(&mut self) -> &mut dyn Write;
    /// The text of `-batch FILE` or `sync FILE`.
    ///
    /// # Errors
    /// The system's.
    fn script(&mut self, path: &std::path::Path) -> io::Result<Box<dyn Read>>;
    /// Who may read the output beside the user.
    fn exposure(&self) -> Option<OutputExposure>;
    /// Lets the gateway that `options` name do what `text` says, and prints the changes.
    ///
    /// # Errors
    /// Why nothing was changed.
    fn sync(
        &mut self,
        options: &CliOptions,
        sync: &SyncArgs,
        text: &SyncText,
    ) -> Result<(), SyncFailure>;
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("Error: {}", .0.error)]
    Words(SyntaxError),
    #[error("{}", .0.error)]
    Rule(SyntaxError),
    #[error("Error: {0}")]
    Device(#[from] request::Error),
    #[error("{0}")]
    NoConnection(String),
    #[error("{0}")]
    Talk(#[from] client::Error),
    #[error("{0}")]
    Output(#[from] io::Error),
    #[error("The lines are not all there is: {0} could not be written")]
    Unsaved(usize),
    #[error("{0}")]
    Sync(#[from] SyncFailure),
}

impl From<SyntaxError> for Failure {
    fn from(fault: SyntaxError) -> Self {
        if matches!(fault.error, grammar::Error::Rule(_)) {
            Self::Rule(fault)
        } else {
            Self::Words(fault)
        }
    }
}

const DONE: u8 = 0;
const FAILED: u8 = 1;
const REFUSED: u8 = 2;
const USAGE: u8 = 255;

impl Failure {
    const fn code(&self) -> u8 {
        match self {
            Self::Words(_) | Self::Device(_) => USAGE,
            Self::Talk(client::Error::Refused(_)) | Self::Sync(SyncFailure::Refused(_)) => REFUSED,
            Self::Rule(_)
            | Self::NoConnection(_)
            | Self::Talk(_)
            | Self::Output(_)
            | Self::Unsaved(_)
            | Self::Sync(SyncFailure::NoConnection(_)) => FAILED,
        }
    }

    /// Whoever read the answers has read enough.
    fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// Carries out `words`, all that stands behind `uxfrm xfrm`; the exit code.
pub fn run<S: AsRef<str>>(words: &[S], world: &mut impl SessionEnvironment) -> u8 {
    match attempt(words, world) {
        Ok(code) => code,
        Err(failure) if failure.is_broken_pipe() => DONE,
        Err(failure) => {
            // Nothing is left to tell when that is closed as well.
            let _ = writeln!(world.complaints(), "{failure}");
            failure.code()
        }
    }
}

fn attempt<S: AsRef<str>>(words: &[S], world: &mut impl SessionEnvironment) -> Result<u8, Failure> {
    let (options, count) = CliOptions::parse(words)?;
    let rest = &words[count..];
    if options.version {
        writeln!(world.output(), "uxfrm utility, {}", env!("CARGO_PKG_VERSION"))?;
        return Ok(DONE);
    }
    if options.help {
        return show_help(Topic::Objects, world);
    }
    if let Some(path) = options.batch.clone() {
        return batch::run(&path, &options, world);
    }
    if rest.is_empty() {
        return show_help(Topic::Objects, world);
    }
    match grammar::words(rest, options.style.family)? {
        Line::Help(topic) => show_help(topic, world),
        Line::Monitor(monitor) => listen(&monitor, &options, world).map(|()| DONE),
        Line::Save(save) => save::run(save, &options, world).map(|()| DONE),
        Line::Sync(sync) => sync::run(&sync, &options, world).map(|()| DONE),
        Line::Command(command) => {
            let mut session = Session::open(&options, world)?;
            session.execute(&command)?;
            Ok(DONE)
        }
    }
}

/// As iproute2: on stderr, and not a success.
fn show_help(topic: Topic, world: &mut impl SessionEnvironment) -> Result<u8, Failure> {
    world.complaints().write_all(help::text(topic).as_bytes())?;
    Ok(USAGE)
}

/// A connection and how its answers are shown.
struct Session<'w, W> {
    world: &'w mut W,
    options: &'w CliOptions,
    connection: Connection,
    names: Names,
}

impl<'w, W: SessionEnvironment> Session<'w, W> {
    fn open(options: &'w CliOptions, world: &'w mut W) -> Result<Self, Failure> {
        let socket = world.connect(options, 0).map_err(Failure::NoConnection)?;
        let connection = Connection::new(socket);
        Ok(Self { world, options, connection, names: Names::of_host() })
    }

    /// Carries out one command and shows what comes back.
    fn execute(&mut self, command: &XfrmCommand) -> Result<(), Failure> {
        if let XfrmCommand::StateDeleteAll(filter) = command {
            Ok(deletion::states(&mut self.connection, filter)?)
        } else if let XfrmCommand::PolicyDeleteAll(filter) = command {
            Ok(deletion::policies(&mut self.connection, filter)?)
        } else {
            self.ask(command)
        }
    }

    fn ask(&mut self, command: &XfrmCommand) -> Result<(), Failure> {
        let (request, wanted) = request(command)?;
        let hides = matches!(command, XfrmCommand::StateListWithoutKeys(_));
        let keys = if hides { Keys::Hidden } else { Keys::Shown };
        let mut printer = Printer::new(self.options, keys, &self.names, self.world.output());
        printer.begin(wanted);
        let mut failed = Ok(());
        let status = self.connection.talk(request, wanted, |message| {
            let answer = AnswerMessage::of(message);
            if failed.is_ok() && is_meant(command, &answer) {
                failed = printer.show(&answer);
            }
        })?;
        failed?;
        printer.end(wanted)?;
        remark(&status, self.world)?;
        Ok(())
    }
}

/// Whether a list's filter lets it through; what answers no list always goes through.
fn is_meant(command: &XfrmCommand, answer: &AnswerMessage<'_>) -> bool {
    match (command, answer) {
        (
            XfrmCommand::StateList(filter) | XfrmCommand::StateListWithoutKeys(filter),
            AnswerMessage::State(state),
        ) => filter.means(&state.info),
        (XfrmCommand::PolicyList(filter), AnswerMessage::Policy(policy)) => {
            filter.means(&policy.info, policy.kind())
        }
        _other => true,
    }
}

fn remark(status: &AnswerStatus, world: &mut impl SessionEnvironment) -> io::Result<()> {
    if let Some(warning) = &status.warning {
        writeln!(world.complaints(), "Warning: {}", client::with_stop(warning))?;
    }
    if status.inconsistent {
        writeln!(world.complaints(), "Dump was interrupted and may be inconsistent.")?;
    }
    Ok(())
}

/// All groups that there are.
const ALL_GROUPS: u32 = u32::MAX;

/// `monitor`: ends only with the connection, or the file.
fn listen(
    monitor: &Monitor,
    options: &CliOptions,
    world: &mut impl SessionEnvironment,
) -> Result<(), Failure> {
    let names = Names::of_host();
    let keys = if monitor.hides_keys { Keys::Hidden } else { Keys::Shown };
    if let Some(path) = &monitor.file {
        let mut bytes = zeroize::Zeroizing::new(Vec::new());
        File::open(path)?.read_to_end(&mut bytes)?;
        let mut printer = Printer::new(options, keys, &names, world.output());
        return NetlinkMessages::of(&bytes)
            .try_for_each(|message| printer.event(&message, monitor));
    }
    let groups = if monitor.groups == 0 { ALL_GROUPS } else { monitor.groups };
    let mut connection =
        Connection::new(world.connect(options, groups).map_err(Failure::NoConnection)?);
    loop {
        let mut printer = Printer::new(options, keys, &names, world.output());
        let ended = connection.listen(|message| printer.event(message, monitor));
        match ended {
            Err(failure @ Failure::Talk(client::Error::Overrun)) => {
                writeln!(world.complaints(), "{failure}")?;
            }
            ended => return ended,
        }
    }
}

/// Shows answers as they come.
struct Printer<'p> {
    page: WipedText<'p>,
    notation: Notation,
    timestamps: Timestamps,
    names: &'p Names,
    out: &'p mut dyn Write,
    /// Answers so far: JSON has a comma before all but the first.
    count: u64,
}

/// A page is written out when it is this long.
const PAGE: usize = 32 * 1024;

impl<'p> Printer<'p> {
    fn new(options: &CliOptions, keys: Keys, names: &'p Names, out: &'p mut dyn Write) -> Self {
        let style = options.style;
        Self {
            page: WipedText::new(style, keys, names),
            notation: style.notation,
            timestamps: style.timestamps,
            names,
            out,
            count: 0,
        }
    }

    const fn is_json(&self) -> bool {
        matches!(self.notation, Notation::Json | Notation::PrettyJson)
    }

    fn begin(&mut self, wanted: request::ExpectedAnswer) {
        if self.is_json() && wanted == request::ExpectedAnswer::All {
            self.page.raw("[");
        }
    }

    fn show(&mut self, answer: &AnswerMessage<'_>) -> io::Result<()> {
        if self.is_json() {
            if self.count > 0 {
                self.page.raw(",");
            }
            json::write(&mut self.page, answer);
        } else {
            self.page.answer(answer);
        }
        self.count += 1;
        if self.page.text().len() >= PAGE { self.flush() } else { Ok(()) }
    }

    fn end(&mut self, wanted: request::ExpectedAnswer) -> io::Result<()> {
        let is_list = wanted == request::ExpectedAnswer::All;
        if self.is_json() && (is_list || self.count > 0) {
            self.page.raw(if is_list { "]\n" } else { "\n" });
        }
        self.flush()
    }

    /// Shows an event at once.
    fn event(&mut self, message: &NetlinkMessage<'_>, monitor: &Monitor) -> Result<(), Failure> {
        if self.is_json() {
            json::event(&mut self.page, &AnswerMessage::of(message));
            self.page.raw("\n");
            return Ok(self.flush()?);
        }
        let stamp = self.names.stamp(Timestamp::now(), self.timestamps);
        self.page.raw(&stamp);
        if monitor.names_namespace {
            self.page.raw("[nsid current]"); // a control socket is one namespace's
        }
        self.page.answer(&AnswerMessage::of(message));
        Ok(self.flush()?)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.write_all(self.page.text().as_bytes())?;
        self.page.clear();
        self.out.flush()
    }
}
