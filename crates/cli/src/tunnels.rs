//! `uxfrm fou …` and `uxfrm link …`: iproute2's `ip fou` and `ip link` for tunnels. They talk
//! generic netlink's family `fou` and rtnetlink to the gateway. Grammar, messages and texts are in
//! [`uxfrm_link`]; this module runs a command line.
//!
//! Exit codes are iproute2's: 0 done, 1 no gateway answers or an object does not exist, 2 the
//! gateway refused, 255 invalid arguments.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nix::net::if_::{if_indextoname, if_nametoindex};
use serde::Serialize as _;
use uxfrm_control_client::{ClientDialect, connect_dialect};
use uxfrm_link::{
    Error, FouAction, FouPort, LinkAction, LinkFilter, TunnelCommand, TunnelLink, help,
    json::{self, Json},
    text::{self, ShowCounters},
    wire::{self, TunnelInfo},
};
use uxfrm_netlink::{
    NamedCounters, NetlinkError, NetlinkFlags, NetlinkMessage,
    client::NetlinkRequest,
    fou::{self, PortAttributes},
};
use uxfrm_xfrm::client::{self, Connection};
use uxfrm_xfrm::grammar::{CliOptions, Notation};
use uxfrm_xfrm::request::ExpectedAnswer;

use crate::environment;

/// `NLM_F_CREATE | NLM_F_EXCL`
const NEW_ONE: NetlinkFlags = NetlinkFlags::from_bits_retain(0x600);
const ENODEV: i32 = 19;
/// `IFF_UP`
const UP: u32 = 1;

/// The object of a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Object {
    /// `fou`
    Fou,
    /// `link`
    Link,
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("Error: {0}")]
    Argument(Error),
    #[error("{0}")]
    Words(Error),
    #[error("{0}")]
    Options(String),
    #[error("{0}")]
    Absent(String),
    #[error("Cannot open file \"{path}\" for reading: {error}", path = path.display())]
    Batch { path: PathBuf, error: io::Error },
    #[error("{0}")]
    Talk(#[from] client::Error),
    #[error("{0}")]
    Output(#[from] io::Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        if error.is_of_a_value() { Self::Argument(error) } else { Self::Words(error) }
    }
}

impl Failure {
    const fn code(&self) -> u8 {
        match self {
            Self::Argument(_) | Self::Words(_) | Self::Options(_) => 255,
            Self::Talk(client::Error::Refused(_)) => 2,
            Self::Absent(_) | Self::Batch { .. } | Self::Talk(_) | Self::Output(_) => 1,
        }
    }
}

/// Runs a command line; the exit code is iproute2's.
pub(crate) fn execute(object: Object, words: &[String]) -> ExitCode {
    match attempt(object, words) {
        Ok(code) => code,
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(failure) => {
            // An error on stderr itself cannot be reported.
            let _ = writeln!(io::stderr(), "{failure}");
            ExitCode::from(failure.code())
        }
    }
}

/// Prints completions, a line each.
pub(crate) fn complete(object: Object, words: &[String]) -> anyhow::Result<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut out = io::stdout().lock();
    for word in help::complete(object.name(), &words, &environment::interfaces()) {
        writeln!(out, "{word}")?;
    }
    Ok(())
}

impl Object {
    const fn name(self) -> &'static str {
        match self {
            Self::Fou => "fou",
            Self::Link => "link",
        }
    }
}

fn attempt(object: Object, words: &[String]) -> Result<ExitCode, Failure> {
    let (options, count) = CliOptions::parse(words)
        .map_err(|fault| Failure::Options(format!("Error: {}", fault.error)))?;
    if options.version {
        writeln!(io::stdout(), "uxfrm utility, {}", env!("CARGO_PKG_VERSION"))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(path) = options.batch.clone() {
        return batch(&path, &options);
    }
    let rest = &words[count..];
    let asks_for_help = rest.first().map_or(object == Object::Fou, |word| word == "help");
    if options.help || asks_for_help {
        io::stderr().write_all(help::text(object.name()).as_bytes())?;
        return Ok(ExitCode::from(255));
    }
    let is_v6 = options.style.family == Some(uxfrm_engine::Family::V6);
    let family = is_v6.then_some("-6").into_iter();
    let line: Vec<&str> =
        family.chain([object.name()]).chain(rest.iter().map(String::as_str)).collect();
    run(&uxfrm_link::command(&line)?, &options).map(|()| ExitCode::SUCCESS)
}

/// Runs the lines of a file, as `ip -batch` does.
fn batch(path: &Path, options: &CliOptions) -> Result<ExitCode, Failure> {
    let text = if path == Path::new("-") {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text)?;
        text
    } else {
        fs::read_to_string(path).map_err(|error| Failure::Batch { path: path.into(), error })?
    };
    let mut code = ExitCode::SUCCESS;
    for located in uxfrm_link::lines(&text) {
        let done = located.command.map_err(Failure::from);
        if let Err(failure) = done.and_then(|command| run(&command, options)) {
            writeln!(
                io::stderr(),
                "{failure}\nCommand failed {}:{}",
                path.display(),
                located.line
            )?;
            code = ExitCode::FAILURE;
            if !options.force {
                break;
            }
        }
    }
    Ok(code)
}

fn run(command: &TunnelCommand, options: &CliOptions) -> Result<(), Failure> {
    let (spoken, printer) = (spoken(command), Printer { options });
    let path = environment::enter(options).map_err(Failure::Absent)?;
    let socket = connect_dialect(path.as_deref(), spoken)
        .map_err(|error| Failure::Absent(format!("{error:#}")))?;
    let mut gateway = Connection::new(socket);
    match command {
        TunnelCommand::Fou(FouAction::Add(port)) => {
            change_port(&mut gateway, fou::FouCommand::Add, port)
        }
        TunnelCommand::Fou(FouAction::Delete(port)) => {
            change_port(&mut gateway, fou::FouCommand::Delete, port)
        }
        TunnelCommand::Fou(FouAction::Show) => show_ports(&mut gateway, &printer),
        TunnelCommand::Link(LinkAction::Add(link)) => make_link(&mut gateway, link, NEW_ONE),
        TunnelCommand::Link(LinkAction::Change(change)) => {
            let before = one_link(&mut gateway, &change.name)
                .map_err(|failure| missing(failure, || cannot_find(&change.name)))?;
            make_link(&mut gateway, &change.onto(&before.config)?, NetlinkFlags::empty())
        }
        TunnelCommand::Link(LinkAction::Delete { name }) => {
            let request = NetlinkRequest::numbered(wire::DELETE, NetlinkFlags::ACK)
                .body(&wire::encode_delete_link(name)[..]);
            let done = gateway.talk(request, ExpectedAnswer::Acknowledgement, |_| {}).map(drop);
            done.map_err(|error| missing(error.into(), || cannot_find(name)))
        }
        TunnelCommand::Link(LinkAction::Show(filter)) => show_links(&mut gateway, filter, &printer),
    }
}

const fn spoken(command: &TunnelCommand) -> ClientDialect {
    match command {
        TunnelCommand::Fou(_) => ClientDialect::Generic,
        TunnelCommand::Link(_) => ClientDialect::Route,
    }
}

/// Replaces ENODEV by iproute2's own text.
fn missing(failure: Failure, text: impl FnOnce() -> String) -> Failure {
    let is_missing = matches!(
        failure,
        Failure::Talk(client::Error::Refused(NetlinkError { errno: ENODEV, .. }))
    );
    if is_missing { Failure::Absent(text()) } else { failure }
}

fn cannot_find(name: &str) -> String {
    format!("Cannot find device \"{name}\"")
}

fn change_port(
    gateway: &mut Connection,
    command: fou::FouCommand,
    port: &FouPort,
) -> Result<(), Failure> {
    let mut request = port.request.clone();
    if let Some(name) = &port.device {
        let index = if_nametoindex(name.as_str());
        request.device =
            Some(index.map_err(|_| Failure::Absent("fou: unknown device name".to_owned()))?);
    }
    let mut body = Vec::new();
    wire::port_attributes(&request).encode(command, &mut body);
    let request = NetlinkRequest::numbered(fou::FAMILY_ID, NetlinkFlags::ACK).body(&body[..]);
    Ok(gateway.talk(request, ExpectedAnswer::Acknowledgement, |_| {}).map(drop)?)
}

fn show_ports(gateway: &mut Connection, printer: &Printer<'_>) -> Result<(), Failure> {
    let counted = printer.counted();
    let statistics = (counted == ShowCounters::Yes).then(NamedCounters::default);
    let mut body = Vec::new();
    PortAttributes { statistics, ..PortAttributes::default() }
        .encode(fou::FouCommand::Get, &mut body);
    let request = NetlinkRequest::numbered(fou::FAMILY_ID, NetlinkFlags::DUMP).body(&body[..]);
    let mut ports = Vec::new();
    gateway.talk(request, ExpectedAnswer::All, |message: &NetlinkMessage<'_>| {
        ports.extend(PortAttributes::decode(message.body()).map(|(_, port)| port));
    })?;
    printer.print(
        ports.iter(),
        |port| text::port(port, counted, device),
        |port| json::port(port, counted, device),
    )
}

fn make_link(
    gateway: &mut Connection,
    link: &TunnelLink,
    flags: NetlinkFlags,
) -> Result<(), Failure> {
    let request = NetlinkRequest::numbered(wire::NEW, NetlinkFlags::ACK | flags)
        .body(&wire::encode_new_link(link)[..]);
    Ok(gateway.talk(request, ExpectedAnswer::Acknowledgement, |_| {}).map(drop)?)
}

fn one_link(gateway: &mut Connection, name: &str) -> Result<TunnelInfo, Failure> {
    let request = NetlinkRequest::numbered(wire::GET, NetlinkFlags::empty())
        .body(&wire::encode_get_link(Some(name))[..]);
    let mut found = None;
    gateway
        .talk(request, ExpectedAnswer::One, |message| found = TunnelInfo::decode(message.body()))?;
    found.ok_or(Failure::Talk(client::Error::Unexpected))
}

fn show_links(
    gateway: &mut Connection,
    filter: &LinkFilter,
    printer: &Printer<'_>,
) -> Result<(), Failure> {
    let links = match &filter.name {
        Some(name) => {
            let one = one_link(gateway, name);
            let text = || format!("Device \"{name}\" does not exist.");
            vec![one.map_err(|failure| missing(failure, text))?]
        }
        None => {
            let request = NetlinkRequest::numbered(wire::GET, NetlinkFlags::DUMP)
                .body(&wire::encode_get_link(None)[..]);
            let mut links = Vec::new();
            gateway.talk(request, ExpectedAnswer::All, |message| {
                links.extend(TunnelInfo::decode(message.body()));
            })?;
            links
        }
    };
    let is_meant = |link: &&TunnelInfo| {
        filter.kind.is_none_or(|kind| kind == link.config.kind)
            && (!filter.is_up || link.flags & UP != 0)
    };
    let counted = printer.counted();
    printer.print(
        links.iter().filter(is_meant),
        |link| text::link(link, counted),
        |link| json::link(link, counted),
    )
}

/// The name of an interface.
fn device(index: u32) -> String {
    let name = if_indextoname(index).ok().and_then(|name| name.into_string().ok());
    name.unwrap_or_else(|| format!("if{index}"))
}

/// Prints answers.
struct Printer<'o> {
    options: &'o CliOptions,
}

impl Printer<'_> {
    const fn counted(&self) -> ShowCounters {
        if self.options.style.statistics > 0 { ShowCounters::Yes } else { ShowCounters::No }
    }

    fn print<T>(
        &self,
        all: impl Iterator<Item = T>,
        text: impl Fn(&T) -> String,
        json: impl Fn(&T) -> Json,
    ) -> Result<(), Failure> {
        let mut page = Vec::new();
        match self.options.style.notation {
            Notation::Text => all.for_each(|one| page.extend(text(&one).into_bytes())),
            Notation::Oneline => all.for_each(|one| {
                let line = text(&one);
                page.extend(line.trim_end_matches('\n').replace('\n', "\\").into_bytes());
                page.push(b'\n');
            }),
            Notation::Json => {
                let list = Json::List(all.map(|one| json(&one)).collect());
                serde_json::to_writer(&mut page, &list).map_err(io::Error::from)?;
                page.push(b'\n');
            }
            Notation::PrettyJson => {
                let list = Json::List(all.map(|one| json(&one)).collect());
                let indent = serde_json::ser::PrettyFormatter::with_indent(b"    ");
                let mut writer = serde_json::Serializer::with_formatter(&mut page, indent);
                list.serialize(&mut writer).map_err(io::Error::from)?;
                page.push(b'\n');
            }
        }
        Ok(io::stdout().lock().write_all(&page)?)
    }
}
