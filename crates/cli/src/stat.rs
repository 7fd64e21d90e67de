//! `uxfrm stat`: the counters of the gateway that runs in this network namespace.

use std::{
    io::{self, Write as _},
    thread,
    time::Duration,
};

use serde::Serialize;
use uxfrm_control_client::stat;
use uxfrm_status::counters::{CounterList, CounterReport};

use crate::{arguments::StatOptions, environment};

/// What counters are listed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listing {
    /// The lines of `/proc/net/xfrm_stat`.
    Kernel,
    /// Drop reasons, and what tunnels carried.
    Reasons,
    /// Flow caches.
    Caches,
}

/// What a watch has seen in one interval, as JSON.
#[derive(Serialize)]
struct Growth<'a> {
    at: u64,
    seconds: u64,
    grown: &'a CounterList,
}

/// Prints them, a line each, and warns if the store of sequence numbers is not healthy.
pub(crate) fn execute(options: &StatOptions) -> anyhow::Result<()> {
    environment::enter_namespace(options.namespace.netns.as_deref())?;
    let listing = match options {
        StatOptions { reasons: true, .. } => Listing::Reasons,
        StatOptions { caches: true, .. } => Listing::Caches,
        StatOptions { .. } => Listing::Kernel,
    };
    let report = stat::read_counters()?;
    warn(&report);
    match options.json {
        true => json(listing, &report)?,
        false => io::stdout().lock().write_all(text(listing, &report).as_bytes())?,
    }
    match options.watch {
        Some(seconds) => watch(options, listing, seconds, &report),
        None => Ok(()),
    }
}

/// The counters matter more than a closed stderr.
fn warn(report: &CounterReport) {
    for notice in &report.notices {
        let _closed = writeln!(io::stderr(), "warning: {notice}");
    }
    if report.age_seconds > 1 {
        let _closed = writeln!(
            io::stderr(),
            "warning: the gateway is busy: what the kernel and devices dropped is as of {} s ago",
            report.age_seconds
        );
    }
}

fn text(listing: Listing, report: &CounterReport) -> String {
    match listing {
        Listing::Kernel => report.kernel_text(),
        Listing::Reasons => report.reasons_text(),
        Listing::Caches => report.caches_text(),
    }
}

fn json(listing: Listing, report: &CounterReport) -> anyhow::Result<()> {
    match listing {
        Listing::Kernel | Listing::Reasons => line(&counts(listing, report)),
        Listing::Caches => line(&report.caches),
    }
}

fn line(content: &impl Serialize) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(content)?;
    line.push(b'\n');
    Ok(io::stdout().lock().write_all(&line)?)
}

/// What can be compared with what was before.
fn counts(listing: Listing, report: &CounterReport) -> CounterList {
    match listing {
        Listing::Kernel => report.kernel.clone(),
        Listing::Reasons => CounterList([&report.reasons.0[..], &report.tunnels.0[..]].concat()),
        Listing::Caches => {
            CounterList(report.caches.iter().flat_map(|cache| cache.counts()).collect())
        }
    }
}

/// Prints what has changed, again and again.
fn watch(
    options: &StatOptions,
    listing: Listing,
    seconds: u64,
    first: &CounterReport,
) -> anyhow::Result<()> {
    let mut before = counts(listing, first);
    loop {
        thread::sleep(Duration::from_secs(seconds));
        let report = stat::read_counters()?;
        let now = counts(listing, &report);
        let grown = now.since(&before);
        match options.json {
            true => line(&Growth { at: report.at, seconds, grown: &grown })?,
            false => {
                io::stdout().lock().write_all(changes(&grown, &now, seconds).as_bytes())?;
            }
        }
        before = now;
    }
}

/// A line for each counter that grew: by how much a second, and to what.
fn changes(grown: &CounterList, now: &CounterList, seconds: u64) -> String {
    let mut text = String::from("\n");
    for (name, count) in &grown.0 {
        let rate = *count as f64 / seconds as f64;
        let total = now.of(name).unwrap_or_default();
        text += &format!("{name:<24}\t{rate:.1}/s\t{total}\n");
    }
    if grown.0.is_empty() {
        text += "nothing\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(counts: &[(&str, u64)]) -> CounterList {
        CounterList(counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect())
    }

    #[test]
    fn watch_shows_what_grew_a_second() {
        let (before, now) = (list(&[("a", 1), ("b", 5)]), list(&[("a", 11), ("b", 5)]));
        let text = changes(&now.since(&before), &now, 4);
        assert_eq!(text, "\na                       \t2.5/s\t11\n");
        assert_eq!(changes(&now.since(&now), &now, 4), "\nnothing\n");
    }

    #[test]
    fn reasons_are_told_with_those_of_tunnels() {
        let report = CounterReport {
            reasons: list(&[("in_no_state", 1)]),
            tunnels: list(&[("tunnel_in_short", 2)]),
            ..CounterReport::default()
        };
        let all = counts(Listing::Reasons, &report);
        assert_eq!(all, list(&[("in_no_state", 1), ("tunnel_in_short", 2)]));
    }
}
