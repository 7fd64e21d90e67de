//! The views, and which table each one shows.

mod cache;
mod devices;
mod drops;
mod ports;
mod tunnels;
mod workers;

use clap::ValueEnum;

use super::{
    sample::Interval,
    table::{Cell, Column, Order, Table, Tone},
    text::short,
};

/// What can be looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum View {
    /// Tunnels: health, rates, drops, expiry
    #[default]
    #[value(alias = "1")]
    Tunnels,
    /// Workers: packets and batches a second, cycles a packet, busy share
    #[value(alias = "2")]
    Workers,
    /// Ports of each worker
    #[value(alias = "3")]
    Ports,
    /// Offload devices
    #[value(alias = "4")]
    Devices,
    /// Drops by reason, with cause and next step
    #[value(alias = "5")]
    Drops,
    /// Flow caches: hits, misses, entries
    #[value(alias = "6")]
    Cache,
}

impl View {
    /// All of them, in the order of their digits.
    pub(crate) const ALL: [Self; 6] =
        [Self::Tunnels, Self::Workers, Self::Ports, Self::Devices, Self::Drops, Self::Cache];

    /// Its name.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Tunnels => "Tunnels",
            Self::Workers => "Workers",
            Self::Ports => "Ports",
            Self::Devices => "Devices",
            Self::Drops => "Drops",
            Self::Cache => "Cache",
        }
    }

    /// The one behind it, or at the end the first.
    pub(crate) fn next(self) -> Self {
        Self::ALL[(self.place() + 1) % Self::ALL.len()]
    }

    /// The one before it.
    pub(crate) fn previous(self) -> Self {
        Self::ALL[(self.place() + Self::ALL.len() - 1) % Self::ALL.len()]
    }

    /// Its place among all.
    pub(crate) fn place(self) -> usize {
        Self::ALL.iter().position(|view| *view == self).unwrap_or_default()
    }

    /// How it is sorted until somebody says otherwise.
    pub(crate) const fn order(self) -> Order {
        match self {
            Self::Tunnels | Self::Workers | Self::Ports | Self::Devices | Self::Cache => {
                Order::ascending(0)
            }
            Self::Drops => Order::descending(1),
        }
    }

    /// Its columns.
    pub(crate) const fn columns(self) -> &'static [Column] {
        match self {
            Self::Tunnels => tunnels::COLUMNS,
            Self::Workers => workers::COLUMNS,
            Self::Ports => ports::COLUMNS,
            Self::Devices => devices::COLUMNS,
            Self::Drops => drops::COLUMNS,
            Self::Cache => cache::COLUMNS,
        }
    }

    /// What it shows of an interval.
    pub(crate) fn table(self, interval: Interval<'_>) -> Table {
        match self {
            Self::Tunnels => tunnels::table(interval),
            Self::Workers => workers::table(interval),
            Self::Ports => ports::table(interval),
            Self::Devices => devices::table(interval),
            Self::Drops => drops::table(interval),
            Self::Cache => cache::table(interval),
        }
    }
}

/// A rate, or `-` before the second sample.
fn rate(rate: Option<f64>) -> Cell {
    rate.map_or_else(Cell::unknown, |rate| {
        let tone = if rate > 0.0 { Tone::Plain } else { Tone::Dim };
        Cell::number(rate, short(rate)).toned(tone)
    })
}

/// Bits a second from bytes a second.
fn bits(bytes: Option<f64>) -> Cell {
    rate(bytes.map(|bytes| bytes * 8.0))
}

/// A rate of what should not happen.
fn bad_rate(number: Option<f64>) -> Cell {
    let tone = if number.is_some_and(|number| number > 0.0) { Tone::Bad } else { Tone::Dim };
    rate(number).toned(tone)
}

/// A count.
fn count(number: u64) -> Cell {
    let tone = if number > 0 { Tone::Plain } else { Tone::Dim };
    Cell::number(number as f64, short(number as f64)).toned(tone)
}

/// A count of what should not happen.
fn bad_count(number: u64) -> Cell {
    let tone = if number > 0 { Tone::Warn } else { Tone::Dim };
    count(number).toned(tone)
}
