//! `uxfrm probe`: the largest packet that really passes a tunnel, by ICMP echo with DF through it.
//!
//! Exit code: 0 packets pass as large as uxfrm takes them for, 1 less do, 2 nobody answers.

mod size_search;

use std::io::{self, Write as _};
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;
use uxfrm_control_client::stat;
use uxfrm_io::icmp_echo::{EchoOutcome, EchoSocket, LEAST};
use uxfrm_status::explanation::{EncapsulationStatus, FlowOutcome, FlowQuery};
use uxfrm_status::gateway::StatusQuery;

use crate::arguments::ProbeOptions;
use size_search::{Search, Trial};

/// Packets pass, but not as large ones as uxfrm takes them for.
const NARROW: u8 = 1;
/// Nobody answers, or nobody could be asked.
const UNKNOWN: u8 = 2;

/// The largest packet that is tried.
const MOST: usize = 9000;
/// How often a size is tried before it counts as lost.
const ATTEMPTS: u16 = 3;

/// What came of it.
#[derive(Debug, Serialize)]
struct ProbeReport {
    destination: IpAddr,
    /// The largest packet that was answered, in bytes; none if not even the smallest was.
    passes: Option<usize>,
    /// The smallest that was not.
    fails: Option<usize>,
    /// Whether somebody said that it was too large.
    told: bool,
    /// The largest that uxfrm takes to fit.
    expected: Option<u64>,
    /// How such a packet leaves.
    encapsulation: Option<EncapsulationStatus>,
}

/// Tries sizes.
pub(crate) fn execute(options: &ProbeOptions) -> anyhow::Result<ExitCode> {
    match run(options) {
        Ok(code) => Ok(code),
        Err(error) => {
            // An error on stderr itself cannot be reported.
            let _closed = writeln!(io::stderr(), "uxfrm: {error:#}");
            Ok(ExitCode::from(UNKNOWN))
        }
    }
}

fn run(options: &ProbeOptions) -> anyhow::Result<ExitCode> {
    let destination = options.address;
    if let Some(nets) = nets_behind(destination) {
        anyhow::bail!(
            "{destination} is the other gateway: what goes to it is not in the tunnel. Name a host \
             behind it that answers ping, in {nets}"
        );
    }
    let id = u16::try_from(std::process::id() & 0xffff).unwrap_or_default();
    let socket = EchoSocket::open(options.source, destination, id)
        .with_context(|| format!("can't send ICMP to {destination}"))?;
    let report = probe(&socket, options)?;
    let text = match options.json {
        true => serde_json::to_string(&report)? + "\n",
        false => words(&report),
    };
    io::stdout().lock().write_all(text.as_bytes())?;
    Ok(code(&report))
}

/// The nets behind a gateway of that address, if there is one.
fn nets_behind(address: IpAddr) -> Option<String> {
    let peer = address.to_string().parse().ok();
    let status = stat::read_status(&StatusQuery { peer, ..StatusQuery::default() }).ok()?;
    let tunnel = status.tunnels.iter().find(|tunnel| tunnel.remote == address)?;
    let is_tunnel = tunnel.mode == "tunnel";
    let nets: Vec<_> = tunnel.nets.iter().map(|nets| nets.remote.clone()).collect();
    is_tunnel.then(|| nets.join(", "))
}

fn probe(socket: &EchoSocket, options: &ProbeOptions) -> anyhow::Result<ProbeReport> {
    let (mut search, mut sequence) = (Search::new(LEAST, MOST), 0_u16);
    while let Some(size) = search.next_size() {
        let trial = try_size(socket, size, &mut sequence, options)?;
        search.note(size, trial);
    }
    let explained = explain(options);
    Ok(ProbeReport {
        destination: options.address,
        passes: search.passes(),
        fails: search.fails(),
        told: search.is_told(),
        expected: explained.as_ref().map(|encapsulation| encapsulation.inner_mtu),
        encapsulation: explained,
    })
}

fn try_size(
    socket: &EchoSocket,
    size: usize,
    sequence: &mut u16,
    options: &ProbeOptions,
) -> anyhow::Result<Trial> {
    for _ in 0..ATTEMPTS {
        *sequence = sequence.wrapping_add(1);
        let patience = Duration::from_millis(options.patience);
        match socket.ask(*sequence, size, patience)? {
            EchoOutcome::Answered => return Ok(Trial::Passed),
            EchoOutcome::TooBig(mtu) => return Ok(Trial::TooBig(mtu)),
            EchoOutcome::Unreachable | EchoOutcome::Silent => {}
        }
    }
    Ok(Trial::Lost)
}

/// How such packets leave, by the gateway's word.
fn explain(options: &ProbeOptions) -> Option<EncapsulationStatus> {
    let source = options.source.or_else(|| own_source(options.address))?;
    let query = FlowQuery {
        source,
        destination: options.address,
        protocol: Some(if options.address.is_ipv4() { 1 } else { 58 }),
        source_port: Some(if options.address.is_ipv4() { 8 } else { 128 }),
        destination_port: None,
        mark: None,
        way: None,
        esp: None,
    };
    let explanation = stat::explain_flow(&query).ok()?;
    match explanation.outcome {
        FlowOutcome::LeavesProtected => explanation.encapsulation,
        FlowOutcome::LeavesPlain
        | FlowOutcome::Waits
        | FlowOutcome::ComesIn
        | FlowOutcome::Dropped => None,
    }
}

/// The source address that the kernel takes for a destination.
fn own_source(destination: IpAddr) -> Option<IpAddr> {
    let mut netlink = uxfrm_io::Rtnetlink::open().ok()?;
    netlink.route_to(destination, 0).ok()?.source
}

fn words(report: &ProbeReport) -> String {
    let ProbeReport { destination, passes, fails, told, expected, encapsulation } = report;
    let Some(passes) = passes else {
        return format!(
            "{destination} answers no ping of {LEAST} bytes: name a host behind the tunnel that \
             does, or see `uxfrm why SRC {destination}`\n"
        );
    };
    let mut text = format!("{destination}: packets of up to {passes} bytes pass");
    if let Some(outer) = encapsulation {
        text += &format!(", in ESP to {}", outer.destination);
    }
    text.push('\n');
    if let Some(fails) = fails {
        text += &match told {
            true => format!("of {fails} bytes: somebody on the path says that it is too large\n"),
            false => format!("of {fails} bytes: lost, and nobody says so (an MTU hole)\n"),
        };
    }
    match expected {
        Some(expected) if (*passes as u64) < *expected && !told => {
            let overhead = encapsulation
                .as_ref()
                .map_or(0, |outer| u64::from(outer.path_mtu).saturating_sub(outer.inner_mtu));
            let mtu = *passes as u64 + overhead;
            text += &format!(
                "uxfrm takes {expected} to fit: a router drops larger ESP without a word. Set `mtu = \
                 {passes}` in [host], or `mtu {mtu}` on the route to the other gateway, so that \
                 senders are told\n"
            );
        }
        Some(expected) => text += &format!("as expected: {expected} fit by what uxfrm knows\n"),
        None => text += "no policy protects it: this was not the tunnel's path\n",
    }
    text
}

fn code(report: &ProbeReport) -> ExitCode {
    match (report.passes, report.expected) {
        (None, _) => ExitCode::from(UNKNOWN),
        (Some(passes), Some(expected)) if (passes as u64) < expected && !report.told => {
            ExitCode::from(NARROW)
        }
        (Some(_), _) => ExitCode::SUCCESS,
    }
}
