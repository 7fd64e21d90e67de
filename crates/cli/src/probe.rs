//! `uxfrm probe`: the largest packet that really passes a tunnel, by ICMP echo with DF through it.
//!
//! Pings that would leave plain are not sent. Exit code: 0 packets pass as large as uxfrm takes
//! them for, 1 less do, or none, or they would leave plain, 2 the gateway does not answer.

mod size_search;
mod source;

use std::io::{self, Write as _};
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;
use uxfrm_control_client::stat;
use uxfrm_io::icmp_echo::{EchoOutcome, EchoSocket, LEAST};
use uxfrm_status::explanation::{EncapsulationStatus, FlowExplanation, FlowOutcome};
use uxfrm_status::gateway::StatusQuery;
use uxfrm_status::tunnel::TunnelStatus;

use crate::{
    arguments::ProbeOptions,
    environment,
    exit_code::{UNASKED, UNWELL},
};
use size_search::{Search, Trial};
use source::{Explainer, Ping};

/// The largest packet that is tried.
const MOST: usize = 9000;
/// How often a size is tried before it counts as lost.
const ATTEMPTS: u16 = 3;

/// What came of it.
#[derive(Debug, Serialize)]
struct ProbeReport {
    source: IpAddr,
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
            Ok(ExitCode::from(UNASKED))
        }
    }
}

fn run(options: &ProbeOptions) -> anyhow::Result<ExitCode> {
    environment::enter_namespace(options.namespace.netns.as_deref())?;
    let destination = options.address;
    if let Some(nets) = nets_behind(destination)? {
        anyhow::bail!(
            "{destination} is the other gateway: what goes to it is not in the tunnel. Name a host \
             behind it that answers ping, in {nets}"
        );
    }
    let ping = Ping { source: source::choose(options, &Gateway)?, destination };
    if Gateway.explain(&ping)?.outcome == FlowOutcome::LeavesPlain {
        // An error on stderr itself cannot be reported.
        let _closed = writeln!(io::stderr(), "{}", plain_words(&ping));
        return Ok(ExitCode::from(UNWELL));
    }
    let id = u16::try_from(std::process::id() & 0xffff).unwrap_or_default();
    let socket = EchoSocket::open(Some(ping.source), destination, id)
        .with_context(|| format!("can't send ICMP from {} to {destination}", ping.source))?;
    let report = probe(&socket, &ping, options)?;
    let text = match options.json {
        true => serde_json::to_string(&report)? + "\n",
        false => words(&report),
    };
    io::stdout().lock().write_all(text.as_bytes())?;
    Ok(code(&report))
}

/// The gateway that runs here.
struct Gateway;

impl Explainer for Gateway {
    fn explain(&self, ping: &Ping) -> anyhow::Result<FlowExplanation> {
        Ok(stat::explain_flow(&ping.query())?)
    }
}

/// Why nothing was sent.
fn plain_words(Ping { source, destination }: &Ping) -> String {
    format!(
        "pings from {source} to {destination} would leave PLAIN, not by the tunnel: nothing was \
         sent. Name an own address that a policy protects by `--source`; `uxfrm status` shows the \
         nets, `uxfrm why {source} {destination} icmp 8` the policies"
    )
}

/// The nets behind a gateway of that address, if there is one.
fn nets_behind(address: IpAddr) -> anyhow::Result<Option<String>> {
    let peer = address.to_string().parse().ok();
    let status = stat::read_status(&StatusQuery { peer, ..StatusQuery::default() })?;
    let is_it = |tunnel: &&TunnelStatus| tunnel.remote == address && tunnel.mode == "tunnel";
    Ok(status.tunnels.iter().find(is_it).map(|tunnel| {
        let nets: Vec<_> = tunnel.nets.iter().map(|nets| nets.remote.clone()).collect();
        nets.join(", ")
    }))
}

fn probe(socket: &EchoSocket, ping: &Ping, options: &ProbeOptions) -> anyhow::Result<ProbeReport> {
    let (mut search, mut sequence) = (Search::new(LEAST, MOST), 0_u16);
    while let Some(size) = search.next_size() {
        let trial = try_size(socket, size, &mut sequence, options)?;
        search.note(size, trial);
    }
    // After the pings: what they met is known now.
    let explained = Gateway.explain(ping)?.encapsulation;
    Ok(ProbeReport {
        source: ping.source,
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

fn words(report: &ProbeReport) -> String {
    let ProbeReport { source, destination, passes, fails, told, expected, encapsulation } = report;
    let Some(passes) = passes else {
        return format!(
            "{destination} answers no ping of {LEAST} bytes from {source}: name a host behind the \
             tunnel that does, or see `uxfrm why {source} {destination} icmp 8`\n"
        );
    };
    let mut text = format!("from {source} to {destination}: packets of up to {passes} bytes pass");
    if let Some(outer) = encapsulation {
        text += &format!(", in ESP to {}", outer.destination);
    }
    text.push('\n');
    if let Some(fails) = fails {
        text += &match told {
            true => format!("of {fails} bytes: refused as too large, and the sender is told\n"),
            false => format!("of {fails} bytes: lost, and nobody says so (an MTU hole)\n"),
        };
    }
    match expected {
        Some(expected) if (*passes as u64) < *expected && !told => {
            text += &format!(
                "uxfrm takes {expected} to fit: a router drops larger ESP without a word. {}, so that \
                 senders are told\n",
                route_advice(*passes as u64, encapsulation.as_ref())
            );
        }
        Some(expected) if (*passes as u64) < *expected => {
            text += &format!(
                "uxfrm takes {expected} to fit in ESP: less is taken before, as by the TUN \
                 (`mtu` in [host]) or a route, and senders are told\n"
            );
        }
        Some(expected) => text += &format!("as expected: {expected} fit by what uxfrm knows\n"),
        None => text += "they no longer leave in ESP: this was not the tunnel's path\n",
    }
    text
}

/// What to set where a router drops larger ESP without a word. `[host] mtu` is for all tunnels, and
/// does not go as low as a route.
fn route_advice(passes: u64, encapsulation: Option<&EncapsulationStatus>) -> String {
    let Some(outer) = encapsulation else {
        return "Lower the MTU of the route to the other gateway".to_owned();
    };
    let (mtu, to) = (passes + outer.overhead, outer.destination);
    format!("Set `mtu {mtu}` on the route to {to}: `ip route change … mtu {mtu}`")
}

fn code(report: &ProbeReport) -> ExitCode {
    let is_whole = |passes: usize, expected: u64| passes as u64 >= expected || report.told;
    match (report.passes, report.expected) {
        (Some(passes), Some(expected)) if is_whole(passes, expected) => ExitCode::SUCCESS,
        (Some(_) | None, _) => ExitCode::from(UNWELL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(passes: usize, inner_mtu: u64, path_mtu: u16) -> ProbeReport {
        ProbeReport {
            source: [10, 1, 0, 1].into(),
            destination: [10, 2, 0, 2].into(),
            passes: Some(passes),
            fails: Some(passes + 1),
            told: false,
            expected: Some(inner_mtu),
            encapsulation: Some(EncapsulationStatus {
                source: [10, 9, 0, 1].into(),
                destination: [10, 8, 0, 2].into(),
                spis: Vec::new(),
                udp_port: None,
                path_mtu,
                path_mtu_origin: None,
                path_mtu_expires: None,
                inner_mtu,
                overhead: 54,
                tun_mtu: None,
                fixed_tun_mtu: None,
                clamped_mss: None,
                too_big: None,
                offloaded: false,
            }),
        }
    }

    /// The TUN is for all tunnels, and takes no less than IPv6's least.
    #[test]
    fn hole_is_mended_by_the_route_alone() {
        for (passes, inner_mtu, path_mtu, mtu) in
            [(1246, 1446, 1500, 1300), (1200, 1280, 1300, 1254)]
        {
            let text = words(&report(passes, inner_mtu, path_mtu));
            let advice = format!(
                "Set `mtu {mtu}` on the route to 10.8.0.2: `ip route change … mtu {mtu}`, so that"
            );
            assert!(text.contains(&advice) && !text.contains("[host]"), "{text}");
        }
    }

    #[test]
    fn least_of_ipv6_is_as_expected() {
        let whole = report(1280, 1280, 1300);
        assert!(words(&whole).contains("as expected: 1280 fit"), "{}", words(&whole));
        assert_eq!(code(&whole), ExitCode::SUCCESS);
    }
}
