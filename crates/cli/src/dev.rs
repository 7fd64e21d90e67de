//! `uxfrm dev …`: the gateway's offload devices. Grammar, answers and their text are in
//! [`uxfrm_offload::dev`]; this module runs a command line.
//!
//! Exit codes as of the other commands that talk to the gateway: 0 done, 1 no gateway answers, 2
//! the gateway refused, 255 invalid arguments.

use std::io::{self, StdoutLock, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitCode;

use nix::errno::Errno;
use serde::Serialize;
use uxfrm_control_client::{
    ClientDialect, connect_dialect, disable_timeout, receive_datagram, send_datagram,
};
use uxfrm_io::text_file;
use uxfrm_offload::Profile;
use uxfrm_offload::dev::{
    self, DevAnswer, DevCommand, DeviceReport, EventReport, ProfileChoice, ShowDetail, WordError,
    help,
};
use uxfrm_xfrm::grammar::{CliOptions, Notation};

use crate::environment;

/// Buffer for answers, larger than any that a gateway sends.
const LARGEST: usize = 256 * 1024;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Words(#[from] WordError),
    #[error("{0}")]
    Options(String),
    #[error("{0}")]
    Absent(String),
    #[error("Error: {0}.")]
    Refused(String),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the gateway went away")]
    Closed,
    #[error("the gateway does not answer: it is stopped or too busy")]
    Silent,
    #[error("what the gateway answered is not understood: {0}")]
    Answer(#[from] serde_json::Error),
}

impl Failure {
    const fn code(&self) -> u8 {
        match self {
            Self::Words(_) | Self::Options(_) => 255,
            Self::Refused(_) => 2,
            Self::Absent(_) | Self::Io(_) | Self::Closed | Self::Silent | Self::Answer(_) => 1,
        }
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        if matches!(errno, Errno::EPIPE | Errno::ECONNRESET) {
            Self::Closed
        } else if errno == Errno::EAGAIN {
            Self::Silent
        } else {
            Self::Io(errno.into())
        }
    }
}

/// Runs a command line.
pub(crate) fn execute(words: &[String]) -> ExitCode {
    match attempt(words) {
        Ok(code) => code,
        Err(Failure::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            // An error on stderr itself cannot be reported.
            let _ = writeln!(io::stderr(), "{failure}");
            ExitCode::from(failure.code())
        }
    }
}

/// Prints completions, a line each.
pub(crate) fn complete(words: &[String]) -> anyhow::Result<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut out = io::stdout().lock();
    for word in help::complete(&words, &environment::interfaces()) {
        writeln!(out, "{word}")?;
    }
    Ok(())
}

fn attempt(words: &[String]) -> Result<ExitCode, Failure> {
    let (options, count) = CliOptions::parse(words)
        .map_err(|fault| Failure::Options(format!("Error: {}", fault.error)))?;
    let rest: Vec<&str> = words[count..].iter().map(String::as_str).collect();
    if options.help || rest.first() == Some(&"help") {
        io::stderr().write_all(help::text().as_bytes())?;
        return Ok(ExitCode::from(255));
    }
    let mut command = dev::command(&rest)?;
    read_profile(&mut command)?;
    let only_flows = rest.first().is_some_and(|word| "flow".starts_with(word));
    let path = environment::enter(&options).map_err(Failure::Absent)?;
    let socket = connect_dialect(path.as_deref(), ClientDialect::Devices)
        .map_err(|error| Failure::Absent(format!("{error:#}")))?;
    let request = serde_json::to_vec(&command)?;
    send_datagram(&socket, &request)?;
    let printer = Printer { notation: options.style.notation, only_flows };
    if matches!(command, DevCommand::Events(_)) {
        disable_timeout(&socket)?;
        printer.follow(&socket)?;
    } else {
        printer.print(&command, &socket)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Replaces a profile's file name by its text: the gateway may not be able to read the file.
fn read_profile(command: &mut DevCommand) -> Result<(), Failure> {
    if let DevCommand::Add(addition) = command
        && let ProfileChoice::Named(name) = &addition.profile
        && Profile::by_name(name).is_none()
    {
        let text = text_file::read_to_string(Path::new(name)).map_err(|error| {
            Failure::Options(format!(
                "profile {name}: neither niantic, connectx6dx, netdevsim or unlimited, nor a file that can be read: {error}"
            ))
        })?;
        if let Err(error) = Profile::from_toml(&text) {
            return Err(Failure::Options(format!("profile {name}: {error}")));
        }
        addition.profile = ProfileChoice::Text(text);
    }
    Ok(())
}

/// Prints answers.
struct Printer {
    notation: Notation,
    /// `flow`: print only rules.
    only_flows: bool,
}

impl Printer {
    /// Prints all answers to a command.
    fn print(&self, command: &DevCommand, socket: &OwnedFd) -> Result<(), Failure> {
        let mut devices: Vec<DeviceReport> = Vec::new();
        let mut buffer = vec![0; LARGEST];
        let mut out = io::stdout().lock();
        loop {
            match receive(socket, &mut buffer)? {
                DevAnswer::Device(report) => devices.push(*report),
                DevAnswer::States(states) => {
                    if let Some(last) = devices.last_mut() {
                        last.states.extend(states);
                    }
                }
                DevAnswer::Text(text) => out.write_all(text.as_bytes())?,
                DevAnswer::Rule(place) => self.rule(command, place, &mut out)?,
                DevAnswer::Event(_) => {}
                DevAnswer::Done => break,
                DevAnswer::Refused { text, .. } => return Err(Failure::Refused(text)),
            }
        }
        match command {
            DevCommand::Show { part: ShowDetail::Device | ShowDetail::States, .. } => {
                self.devices(&devices, &mut out)
            }
            DevCommand::Show { part: ShowDetail::Debugfs, .. }
            | DevCommand::Add(_)
            | DevCommand::Delete(_)
            | DevCommand::Set { .. }
            | DevCommand::Flow { .. }
            | DevCommand::Events(_) => Ok(()),
        }
    }

    /// Prints a rule's number as ethtool does.
    fn rule(
        &self,
        command: &DevCommand,
        place: u32,
        out: &mut StdoutLock<'_>,
    ) -> Result<(), Failure> {
        let deletes =
            matches!(command, DevCommand::Flow { rule, .. } if rule.starts_with("delete"));
        match self.notation {
            Notation::Text | Notation::Oneline if deletes => {}
            Notation::Text | Notation::Oneline => writeln!(out, "Added rule with ID {place}")?,
            Notation::Json | Notation::PrettyJson => writeln!(out, "{{\"loc\":{place}}}")?,
        }
        Ok(())
    }

    fn devices(&self, devices: &[DeviceReport], out: &mut StdoutLock<'_>) -> Result<(), Failure> {
        if self.only_flows {
            let [device] = devices else { return Ok(()) };
            return match self.notation {
                Notation::Text | Notation::Oneline => {
                    device
                        .flows
                        .iter()
                        .try_for_each(|flow| writeln!(out, "{} loc {}", flow.rule, flow.loc))?;
                    Ok(())
                }
                Notation::Json | Notation::PrettyJson => self.json(&device.flows, out),
            };
        }
        match self.notation {
            Notation::Text => devices.iter().try_for_each(|device| write!(out, "{device}"))?,
            Notation::Oneline => devices.iter().try_for_each(|device| {
                let text = device.to_string();
                writeln!(out, "{}", text.trim_end_matches('\n').replace('\n', "\\"))
            })?,
            Notation::Json | Notation::PrettyJson => self.json(&devices, out)?,
        }
        Ok(())
    }

    fn json(&self, all: &impl Serialize, out: &mut StdoutLock<'_>) -> Result<(), Failure> {
        if self.notation == Notation::PrettyJson {
            let indent = serde_json::ser::PrettyFormatter::with_indent(b"    ");
            let mut writer = serde_json::Serializer::with_formatter(&mut *out, indent);
            all.serialize(&mut writer)?;
        } else {
            serde_json::to_writer(&mut *out, all)?;
        }
        Ok(writeln!(out)?)
    }

    /// Prints a line for each event until the gateway ends.
    fn follow(&self, socket: &OwnedFd) -> Result<(), Failure> {
        let mut buffer = vec![0; LARGEST];
        let mut out = io::stdout().lock();
        loop {
            match receive(socket, &mut buffer)? {
                DevAnswer::Event(report) => self.event(&report, &mut out)?,
                DevAnswer::Refused { text, .. } => return Err(Failure::Refused(text)),
                DevAnswer::Device(_)
                | DevAnswer::States(_)
                | DevAnswer::Text(_)
                | DevAnswer::Rule(_)
                | DevAnswer::Done => {}
            }
        }
    }

    fn event(&self, report: &EventReport, out: &mut StdoutLock<'_>) -> Result<(), Failure> {
        match self.notation {
            Notation::Text | Notation::Oneline => writeln!(out, "{report}")?,
            Notation::Json | Notation::PrettyJson => self.json(report, out)?,
        }
        Ok(out.flush()?)
    }
}

fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Result<DevAnswer, Failure> {
    match receive_datagram(socket, buffer)? {
        0 => Err(Failure::Closed),
        length => Ok(serde_json::from_slice(&buffer[..length])?),
    }
}
