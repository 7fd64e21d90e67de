//! Links (IPIP, SIT, GRE and their like) and receive ports (FOU, GUE): what they carried and
//! dropped.
//!
//! The report has one list for all: `tunnel_gre1_sent_bytes`, `fou_5555_received_packets`, and the
//! drop reasons, `tunnel_in_no_tunnel`.

use std::{borrow::Cow, fmt};

use prometheus_client::encoding::DescriptorEncoder;
use uxfrm_status::counters::{CounterList, CounterReport};

use crate::{
    catalogue::{self, Metric},
    distinct::distinct,
    gateway::by_name,
    label, sample,
};

/// Links.
const LINKS: usize = 1000;
/// Drop reasons.
const REASONS: usize = 256;

const TRAFFIC: [(&str, Metric); 4] = [
    ("_sent_packets", catalogue::LINK_SENT_PACKETS),
    ("_sent_bytes", catalogue::LINK_SENT_BYTES),
    ("_received_packets", catalogue::LINK_RECEIVED_PACKETS),
    ("_received_bytes", catalogue::LINK_RECEIVED_BYTES),
];

/// Writes them.
pub(crate) fn write(encoder: &mut DescriptorEncoder<'_>, report: &CounterReport) -> fmt::Result {
    let list = &report.tunnels.0;
    for (suffix, metric) in &TRAFFIC {
        let links = list.iter().filter_map(|(name, count)| Some((link(name, suffix)?, *count)));
        let links = distinct(links, |(link, _)| link.clone()).take(LINKS);
        let series = links.map(|(link, count)| ([("link", link)], count.into()));
        sample::write(encoder, metric, series)?;
    }
    let is_drop = |name: &str| TRAFFIC.iter().all(|(suffix, _)| !name.ends_with(suffix));
    let drops = CounterList(list.iter().filter(|(name, _)| is_drop(name)).cloned().collect());
    let drops = by_name(&drops, REASONS).map(|(reason, count)| ([reason], count));
    sample::write(encoder, &catalogue::LINK_DROPS, drops)
}

/// The link that a count is of.
fn link<'a>(name: &'a str, suffix: &str) -> Option<Cow<'a, str>> {
    let link = name.strip_suffix(suffix)?;
    Some(label::value(link.strip_prefix("tunnel_").unwrap_or(link)))
}
