//! Tunnels: the worst first.

use std::net::IpAddr;

use uxfrm_status::{
    health::Health,
    limit::{LimitKind, LimitStatus},
    quantity::count as thousands,
    text::{Colour, tunnel_lines},
    tunnel::TunnelStatus,
};

use super::{bad_count, bad_rate, bits, rate};
use crate::top::{
    sample::{Interval, Rate, is_same},
    table::{Cell, Column, Row, Table, Tone},
    text::{escaped, short, short_span},
};

/// The columns.
pub(super) const COLUMNS: &[Column] = &[
    Column::text("HEALTH", 7, 0),
    Column::text("PEER", 15, 1).growing(2),
    Column::text("REMOTE NETS", 18, 6).growing(3),
    Column::number("IN b/s", 6, 2),
    Column::number("OUT b/s", 7, 3),
    Column::number("IN p/s", 6, 8),
    Column::number("OUT p/s", 7, 9),
    Column::number("DROP/s", 6, 4),
    Column::number("DROPS", 5, 7),
    Column::number("EXPIRES", 7, 5),
    Column::number("REQID", 5, 10),
];

/// The tunnels of the latest sample.
pub(super) fn table(interval: Interval<'_>) -> Table {
    let tunnels = &interval.now.status.tunnels;
    let before = interval.before.map_or(&[][..], |before| &before.status.tunnels);
    let rows = tunnels.iter().enumerate().map(|(place, tunnel)| {
        // Most stand where they stood.
        let there = before.get(place).filter(|was| is_same(was, tunnel));
        let was = there.or_else(|| before.iter().find(|was| is_same(was, tunnel)));
        row(interval, was, tunnel)
    });
    let total = interval.now.status.totals.tunnels;
    let left = total.saturating_sub(tunnels.len() as u64);
    let note = (left > 0).then(|| {
        format!(
            "the {} in the worst state of {}: filter by an address for others",
            thousands(tunnels.len() as u64),
            thousands(total)
        )
    });
    Table { columns: COLUMNS, rows: rows.collect(), empty: "no tunnels", note }
}

fn row(interval: Interval<'_>, was: Option<&TunnelStatus>, tunnel: &TunnelStatus) -> Row {
    let rates = was.and_then(|was| interval.between(was, tunnel));
    let part = |way: usize, part: fn(&Rate) -> f64| rates.as_ref().map(|rates| part(&rates[way]));
    let dropped = was.and_then(|was| {
        let grown = tunnel.drops.total().checked_sub(was.drops.total())?;
        interval.per_second(grown)
    });
    let TunnelStatus { local, remote, mode, reqid, if_id, .. } = tunnel;
    Row {
        key: format!("{local} {remote} {mode} {reqid} {if_id}"),
        cells: vec![
            health(tunnel.health),
            Cell::text(&end(*remote)),
            Cell::text(&nets(tunnel)),
            bits(part(0, |rate| rate.bytes)),
            bits(part(1, |rate| rate.bytes)),
            rate(part(0, |rate| rate.packets)),
            rate(part(1, |rate| rate.packets)),
            bad_rate(dropped),
            bad_count(tunnel.drops.total()),
            expiry(tunnel),
            Cell::number(f64::from(*reqid), reqid.to_string()),
        ],
        detail: tunnel_lines(tunnel, Colour::Plain)
            .lines()
            .map(|line| escaped(line.trim()))
            .collect(),
    }
}

fn health(health: Health) -> Cell {
    let (rank, tone) = match health {
        Health::Down => (0.0, Tone::Bad),
        Health::OneWay => (1.0, Tone::Warn),
        Health::Idle => (2.0, Tone::Dim),
        Health::Up => (3.0, Tone::Good),
    };
    Cell::ranked(rank, health.as_str()).toned(tone)
}

/// The first net on the other side, and how many more there are; the details have both sides.
fn nets(tunnel: &TunnelStatus) -> String {
    let Some(first) = tunnel.nets.first() else { return "-".to_owned() };
    let more = match tunnel.nets_total {
        0 | 1 => String::new(),
        total => format!(" +{}", total - 1),
    };
    format!("{}{more}", first.remote)
}

/// What ends it first: the soft limit, at which it is rekeyed, is shown in the details.
fn expiry(tunnel: &TunnelStatus) -> Cell {
    let Some(limit) = tunnel.expiry.or(tunnel.rekey) else {
        // Behind all that expire.
        return Cell::number(f64::MAX, "never".to_owned()).toned(Tone::Dim);
    };
    let LimitStatus { of, used_ratio, left } = limit;
    let text = match of {
        LimitKind::Added | LimitKind::Used => short_span(left),
        LimitKind::Bytes => format!("{}B", short(left as f64)),
        LimitKind::Packets => format!("{}p", short(left as f64)),
    };
    let tone = if used_ratio >= 0.95 { Tone::Warn } else { Tone::Plain };
    Cell::number(1.0 - used_ratio, text).toned(tone)
}

fn end(address: IpAddr) -> String {
    if address.is_unspecified() { "any".to_owned() } else { address.to_string() }
}
