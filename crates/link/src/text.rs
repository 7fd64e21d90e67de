//! Prints answers as iproute2 6.1: `ip fou show` and `ip -d link show`, with counters under `-s`.
//!
//! uxfrm's additions come last: `noudp6zerocsumrx` and counters of a port, and drops by reason.

use std::fmt::Write as _;

use uxfrm_netlink::fou::PortAttributes;
use uxfrm_tunnel::TunnelKind;

use crate::info;
use crate::wire::TunnelInfo;

/// Whether counters are shown: `-s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShowCounters {
    /// They are.
    Yes,
    /// They are not.
    No,
}

/// A receive port (`ip/ipfou.c: print_fou_mapping`); `device` gives an interface's name.
#[must_use]
pub fn port(
    port: &PortAttributes,
    counted: ShowCounters,
    device: impl Fn(u32) -> String,
) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    if let Some(number) = port.port {
        let _ = write!(text, "port {number}");
    }
    match (info::framing(port), port.protocol) {
        (Some(word), _) => drop(write!(text, " {word}")),
        (_, Some(protocol)) => drop(write!(text, " ipproto {protocol}")),
        (_, None) => {}
    }
    if port.family == Some(info::INET6) {
        text += " -6";
    }
    let (local, peer) = info::ends(port);
    for (name, end) in [("local", local), ("peer", peer)] {
        if let Some(end) = end {
            let _ = write!(text, " {name} {end}");
        }
    }
    if let Some(number) = port.peer_port.filter(|number| *number != 0) {
        let _ = write!(text, " peer_port {number}");
    }
    if let Some(index) = info::device(port) {
        let _ = write!(text, " dev {}", device(index));
    }
    if port.checksum6 {
        text += " noudp6zerocsumrx";
    }
    text += "\n";
    if let (ShowCounters::Yes, Some(counts)) = (counted, &port.statistics) {
        let drops: Vec<_> = info::drops(counts).collect();
        let of = |name| counts.of(name).unwrap_or(0);
        let dropped = drops.iter().map(|(_, count)| count).sum();
        let row = [of("bytes"), of("packets"), dropped];
        let widths = [10, 7, 7].into_iter().zip(row).map(|(least, value)| width(value).max(least));
        let widths: Vec<_> = widths.collect();
        table(&mut text, "RX", &["bytes", "packets", "dropped"], &row, &widths);
        text += &reasons(&drops);
    }
    text
}

/// A tunnel (`ip/ipaddress.c: print_linkinfo`).
#[must_use]
pub fn link(link: &TunnelInfo, counted: ShowCounters) -> String {
    let mut text = format!(
        "{}: {}@NONE: <{}> mtu {} ",
        link.index,
        link.name,
        flags(link.flags).join(","),
        link.mtu
    );
    if let Some(qdisc) = &link.qdisc {
        let _ = write!(text, "qdisc {qdisc} ");
    }
    for (at, word) in ["state", "mode", "group"].into_iter().enumerate() {
        if let Some(number) = link.state[at] {
            let _ = write!(text, "{word} {} ", state_word(at, number));
        }
    }
    if let Some(length) = link.state[3].filter(|length| *length != 0) {
        let _ = write!(text, "qlen {length}");
    }
    let config = &link.config;
    let hardware = hardware(config.kind);
    let _ = write!(text, "\n    link/{hardware} {} peer {}", config.local, config.remote);
    for (name, number) in link.details.iter().filter(|(name, _)| info::stands_before(name)) {
        let before = if ["promiscuity", "allmulti"].contains(name) { " " } else { "" };
        let _ = write!(text, "{before}{} {number} ", plain(name));
    }
    let _ = write!(text, "\n    {} {}", config.kind.name(), info::of(config).text());
    for (name, number) in link.details.iter().filter(|(name, _)| !info::stands_before(name)) {
        let _ = write!(text, "{} {number} ", plain(name));
    }
    text += "\n";
    if counted == ShowCounters::Yes {
        statistics(&mut text, link);
    }
    text
}

/// iproute2's word for a device's number, where it is not its name in JSON.
fn plain(name: &str) -> &str {
    match name {
        "min_mtu" => "minmtu",
        "max_mtu" => "maxmtu",
        "num_tx_queues" => "numtxqueues",
        "num_rx_queues" => "numrxqueues",
        name => name,
    }
}

/// `ip/ipaddress.c: print_stats64`
fn statistics(text: &mut String, link: &TunnelInfo) {
    let statistics = &link.statistics;
    let ((packets_in, bytes_in), (packets_out, bytes_out)) = (statistics.received, statistics.sent);
    let received = [bytes_in, packets_in, 0, statistics.received_dropped, 0, 0];
    let sent = [bytes_out, packets_out, 0, statistics.sent_dropped, 0, statistics.collisions];
    let least = [10, 7, 6, 7, 7, 7];
    let widths: Vec<usize> =
        (0..6).map(|at| width(received[at]).max(width(sent[at])).max(least[at])).collect();
    let heads =
        |ends: [&'static str; 2]| ["bytes", "packets", "errors", "dropped", ends[0], ends[1]];
    table(text, "RX", &heads(["missed", "mcast"]), &received, &widths);
    table(text, "TX", &heads(["carrier", "collsns"]), &sent, &widths);
    *text += &reasons(&statistics.drops.0);
}

/// A line of heads and one of numbers under them.
fn table(text: &mut String, way: &str, heads: &[&str], row: &[u64], widths: &[usize]) {
    let _ = write!(text, "    {way}: ");
    for (at, (head, width)) in heads.iter().zip(widths).enumerate() {
        let width = if at == 0 { width - 4 } else { *width };
        let _ = write!(text, "{head:>width$} ");
    }
    // iproute2 leaves room for a column that is not there.
    let _ = write!(text, "{:>10}\n    ", "");
    for (value, width) in row.iter().zip(widths) {
        let _ = write!(text, "{value:>width$} ");
    }
    *text += "\n";
}

/// Drops by reason, on a line of their own; nothing where there are none.
fn reasons(drops: &[(String, u64)]) -> String {
    let mut text = String::new();
    for (name, count) in drops {
        let _ = write!(text, " {name} {count}");
    }
    if text.is_empty() { text } else { format!("    drops:{text}\n") }
}

/// Digits of a number.
fn width(value: u64) -> usize {
    value.to_string().len()
}

/// The words of an interface's flags (`print_link_flags`).
pub(crate) fn flags(flags: u32) -> Vec<String> {
    const RUNNING: u32 = 0x40;
    const NAMES: [(u32, &str); 18] = [
        (0x8, "LOOPBACK"),
        (0x2, "BROADCAST"),
        (0x10, "POINTOPOINT"),
        (0x1000, "MULTICAST"),
        (0x80, "NOARP"),
        (0x200, "ALLMULTI"),
        (0x100, "PROMISC"),
        (0x400, "MASTER"),
        (0x800, "SLAVE"),
        (0x4, "DEBUG"),
        (0x8000, "DYNAMIC"),
        (0x4000, "AUTOMEDIA"),
        (0x2000, "PORTSEL"),
        (0x20, "NOTRAILERS"),
        (0x1, "UP"),
        (0x1_0000, "LOWER_UP"),
        (0x2_0000, "DORMANT"),
        (0x4_0000, "ECHO"),
    ];
    let no_carrier = (flags & 1 != 0 && flags & RUNNING == 0).then_some("NO-CARRIER");
    let known = NAMES.into_iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| name);
    let mut words: Vec<_> = no_carrier.into_iter().chain(known).map(str::to_owned).collect();
    let rest = NAMES.into_iter().fold(flags & !RUNNING, |rest, (bit, _)| rest & !bit);
    if rest != 0 {
        words.push(format!("{rest:x}"));
    }
    words
}

/// The word for an interface's state, mode or group, in this order.
pub(crate) fn state_word(which: usize, number: u32) -> String {
    const STATES: [&str; 7] =
        ["UNKNOWN", "NOTPRESENT", "DOWN", "LOWERLAYERDOWN", "TESTING", "DORMANT", "UP"];
    let words: &[&str] = match which {
        0 => &STATES,
        1 => &["DEFAULT", "DORMANT"],
        _ => &["default"],
    };
    let word = usize::try_from(number).ok().and_then(|number| words.get(number));
    word.map_or_else(|| number.to_string(), ToString::to_string)
}

/// The word for the type of a tunnel's interface (`lib/ll_types.c`).
pub(crate) fn hardware(kind: TunnelKind) -> &'static str {
    match kind {
        TunnelKind::Ipip => "ipip",
        TunnelKind::Sit => "sit",
        TunnelKind::Gre => "gre",
        TunnelKind::Ip6tnl => "tunnel6",
        TunnelKind::Ip6gre => "gre6",
    }
}

#[cfg(test)]
mod tests;
