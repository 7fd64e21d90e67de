//! A gateway and its tunnels for people: a head, then three lines a tunnel.

pub mod drops;
mod fragment;
pub mod packets;

use std::net::IpAddr;

use crate::{
    counters::CounterList,
    gateway::{GatewayIdentity, GatewayStatus, PlainPolicies, StatusTotals},
    health::Health,
    quantity::{bytes, count, span, things},
    tunnel::{StateStatus, TrafficStatus, TunnelStatus, UdpStatus},
};

/// Whether words are coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// They are not.
    Plain,
    /// By the escapes of a terminal (ECMA-48).
    Ansi,
}

/// Nets that a tunnel's first line names.
const NETS: usize = 3;
/// Reasons that the head names.
const REASONS: usize = 4;

/// The whole text, with an end of line.
#[must_use]
pub fn render(status: &GatewayStatus, colour: Colour) -> String {
    let mut text = head(status);
    for notice in &status.notices {
        text += &format!("{}: {notice}\n", paint("notice", YELLOW, colour));
    }
    for tunnel in &status.tunnels {
        text += &format!("\n{}", tunnel_lines(tunnel, colour));
    }
    text + &rest(status)
}

/// What stands before tunnels: the gateway, what passed, what there is.
#[must_use]
pub fn head(status: &GatewayStatus) -> String {
    let GatewayStatus { gateway, totals, plain, .. } = status;
    format!("{}\n{}\n{}\n", identity(gateway), passed(totals), tally(totals, *plain))
}

fn identity(gateway: &GatewayIdentity) -> String {
    let GatewayIdentity { version, pid, uptime_seconds, configuration, mode, .. } = gateway;
    let up = span(*uptime_seconds);
    let workers = things(gateway.workers, "worker", "workers");
    let ports: Vec<_> = gateway.udp_ports.iter().map(ToString::to_string).collect();
    let mut text = format!("uxfrm {version} (pid {pid}), up {up}, {mode} mode, {workers}");
    if !ports.is_empty() {
        text += &format!(", UDP {}", ports.join(" "));
    }
    for (kind, names) in [("by", &gateway.interfaces), ("offload", &gateway.devices)] {
        if !names.is_empty() {
            text += &format!(", {kind} {}", names.join(" "));
        }
    }
    format!("{text}, {configuration}")
}

fn passed(totals: &StatusTotals) -> String {
    let StatusTotals { sent, received, dropped, .. } = totals;
    let mut text = format!(
        "sent {}, received {}, dropped {}",
        carried(sent),
        carried(received),
        things(*dropped, "packet", "packets")
    );
    text += &reasons(&totals.dropped_by_reason);
    text
}

/// The most frequent ones, in brackets; nothing where there are none.
fn reasons(counts: &CounterList) -> String {
    let mut reasons = counts.0.clone();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let more = reasons.len().saturating_sub(REASONS);
    let mut named: Vec<_> =
        reasons.iter().take(REASONS).map(|(name, of)| format!("{name} {}", count(*of))).collect();
    if more > 0 {
        named.push(format!("{more} more reasons"));
    }
    if named.is_empty() { String::new() } else { format!(" ({})", named.join(", ")) }
}

fn tally(totals: &StatusTotals, plain: PlainPolicies) -> String {
    let StatusTotals { tunnels, up, idle, one_way, down, states, policies, .. } = totals;
    let all = [(down, "down"), (one_way, "one-way"), (idle, "idle"), (up, "up")];
    let some = all.iter().filter(|(number, _)| **number > 0);
    let some: Vec<_> = some.map(|(number, name)| format!("{} {name}", count(**number))).collect();
    let mut text = things(*tunnels, "tunnel", "tunnels");
    if !some.is_empty() {
        text += &format!(": {}", some.join(", "));
    }
    text += &format!(
        "; {}, {}",
        things(*states, "state", "states"),
        things(*policies, "policy", "policies")
    );
    let PlainPolicies { bypass, block, held } = plain;
    let kinds = [(bypass, "bypass"), (block, "block"), (held, "held: refused until they come")];
    let kinds = kinds.iter().filter(|(number, _)| *number > 0);
    let kinds: Vec<_> = kinds.map(|(number, name)| format!("{} {name}", count(*number))).collect();
    if kinds.is_empty() { text } else { format!("{text} ({})", kinds.join(", ")) }
}

/// The three lines of a tunnel.
#[must_use]
pub fn tunnel_lines(tunnel: &TunnelStatus, colour: Colour) -> String {
    let (name, health) = (name(tunnel), health(tunnel, colour));
    format!("{name}\n  {health}\n  {}\n", limits(tunnel))
}

fn name(tunnel: &TunnelStatus) -> String {
    let TunnelStatus { local, remote, mode, reqid, if_id, nets, .. } = tunnel;
    let mut text = format!("{} <-> {}", end(*local), end(*remote));
    let shown: Vec<_> = nets
        .iter()
        .take(NETS)
        .map(|nets| {
            let ports = nets.traffic.as_ref().map(|traffic| format!(" proto {traffic}"));
            format!("{} <-> {}{}", nets.local, nets.remote, ports.unwrap_or_default())
        })
        .collect();
    text += &format!("  {}", shown.join(", "));
    let more = tunnel.nets_total.saturating_sub(shown.len() as u64);
    if more > 0 {
        text += &format!(" and {} more", count(more));
    }
    text += &format!("  {mode} reqid {reqid}");
    if *if_id != 0 {
        text += &format!(" if_id {if_id:#x}");
    }
    if let Some(cipher) = &tunnel.cipher {
        text += &format!(", {cipher}");
    }
    if let Some(udp) = &tunnel.encapsulation {
        text += &format!(", {}", encapsulation(udp));
    }
    if let Some(device) = &tunnel.device {
        text += &format!(", offload {device}");
    }
    text
}

fn health(tunnel: &TunnelStatus, colour: Colour) -> String {
    let word = paint(tunnel.health.as_str(), shade(tunnel.health), colour);
    let why = tunnel.explanation.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
    let (received, sent) = (way("received", &tunnel.received), way("sent", &tunnel.sent));
    format!("{word}{why}: {received}; {sent}")
}

fn way(verb: &str, traffic: &TrafficStatus) -> String {
    match traffic.last_seconds_ago {
        Some(seconds) => format!("{verb} {}, last {} ago", carried(traffic), span(seconds)),
        None => format!("{verb} nothing"),
    }
}

fn limits(tunnel: &TunnelStatus) -> String {
    let mut parts = Vec::new();
    let spis = |direction: &str| {
        let states =
            tunnel.states.iter().filter(|state| state.direction.as_deref() == Some(direction));
        let spis: Vec<_> = states.take(2).map(|state| state.spi.clone()).collect();
        if spis.is_empty() { "none".to_owned() } else { spis.join(" ") }
    };
    parts.push(format!("states in {}, out {}", spis("in"), spis("out")));
    match (&tunnel.rekey, &tunnel.expiry) {
        (None, None) if tunnel.states.is_empty() => {}
        (None, None) => parts.push("never expires".to_owned()),
        (rekey, expiry) => {
            parts.extend(rekey.map(|limit| format!("rekey {limit}")));
            parts.extend(expiry.map(|limit| format!("expires {limit}")));
        }
    }
    parts.extend(tunnel.sequence_ratio.filter(|ratio| *ratio >= 0.001).map(used_numbers));
    let failures = tunnel.failures;
    for (number, what) in [
        (failures.replay, "replayed"),
        (failures.replay_window, "too old"),
        (failures.integrity_failed, "not authentic"),
    ] {
        if number > 0 {
            parts.push(format!("{} {what}", count(number)));
        }
    }
    let dropped = tunnel.drops.total();
    if dropped > 0 {
        parts.push(format!("{} dropped{}", count(dropped), reasons(&tunnel.drops)));
    }
    parts.join(", ")
}

fn used_numbers(ratio: f64) -> String {
    format!("{:.1} % of sequence numbers used", ratio * 100.0)
}

/// What follows the tunnels: those that are left out, states without a policy.
fn rest(status: &GatewayStatus) -> String {
    let mut text = String::new();
    let shown = status.tunnels.len() as u64;
    let left = status.totals.tunnels.saturating_sub(shown);
    if left > 0 && status.next.is_none() {
        let left = things(left, "tunnel", "tunnels");
        text +=
            &format!("\n{left} more, none in a worse state: --all shows them, or name a PEER\n");
    }
    if status.unmatched_states_total > 0 {
        let states = things(status.unmatched_states_total, "state fits", "states fit");
        text += &format!("\n{states} no policy\n");
        for state in &status.unmatched_states {
            text += &format!("  {}\n", state_line(state));
        }
        let more = status.unmatched_states_total - status.unmatched_states.len() as u64;
        if more > 0 {
            text += &format!("  and {} more\n", count(more));
        }
    }
    text
}

fn state_line(state: &StateStatus) -> String {
    let StateStatus { spi, source, destination, mode, reqid, cipher, lifecycle, .. } = state;
    let mut text =
        format!("{spi} {source} -> {destination}, {mode} reqid {reqid}, {cipher}, {lifecycle}");
    if let Some(udp) = &state.encapsulation {
        text += &format!(", {}", encapsulation(udp));
    }
    let traffic = &state.traffic;
    text + &traffic.last_seconds_ago.map_or_else(
        || ", unused".to_owned(),
        |seconds| format!(", {}, last {} ago", carried(traffic), span(seconds)),
    )
}

fn encapsulation(udp: &UdpStatus) -> String {
    match udp.source_port {
        0 => format!("UDP to {}", udp.destination_port),
        source if source == udp.destination_port => format!("UDP {source}"),
        source => format!("UDP {source} to {}", udp.destination_port),
    }
}

fn carried(traffic: &TrafficStatus) -> String {
    format!("{} ({})", things(traffic.packets, "packet", "packets"), bytes(traffic.bytes))
}

fn end(address: IpAddr) -> String {
    if address.is_unspecified() { "any".to_owned() } else { address.to_string() }
}

const RED: u8 = 31;
const GREEN: u8 = 32;
const YELLOW: u8 = 33;
const DIM: u8 = 2;

const fn shade(health: Health) -> u8 {
    match health {
        Health::Down => RED,
        Health::OneWay => YELLOW,
        Health::Idle => DIM,
        Health::Up => GREEN,
    }
}

fn paint(word: &str, code: u8, colour: Colour) -> String {
    match colour {
        Colour::Plain => word.to_owned(),
        Colour::Ansi => format!("\x1b[{code}m{word}\x1b[0m"),
    }
}

#[cfg(test)]
mod tests;
