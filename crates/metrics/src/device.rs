//! Offload devices, and flow caches of workers.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use uxfrm_status::{
    counters::{CacheReport, CounterReport},
    drops::DropTallyReport,
    gateway::GatewayStatus,
};

use crate::{
    catalogue::{self, Metric},
    distinct::distinct,
    label::{self, Labels},
    sample::{self, Value},
};

/// Devices.
const DEVICES: usize = 256;
/// Counts of drops by device and reason.
const DROPS: usize = 1024;
/// Flow caches.
const CACHES: usize = 1024;

/// Writes offload devices, and what was dropped with them.
pub(crate) fn write(
    encoder: &mut DescriptorEncoder<'_>,
    status: &GatewayStatus,
    drops: &DropTallyReport,
) -> fmt::Result {
    let names = status.gateway.devices.iter().map(|name| label::value(name));
    let names = distinct(names, Clone::clone).take(DEVICES);
    let devices = names.map(|name| ([("device", name)], Value::from(true)));
    sample::write(encoder, &catalogue::DEVICES, devices)?;
    let tallies = drops.tallies.iter().filter_map(|tally| {
        let device = label::value(tally.device.as_ref()?);
        let labels = [("device", device), ("reason", label::value(&tally.reason))];
        Some((labels, tally.packets.into()))
    });
    let tallies = distinct(tallies, |(labels, _)| labels.clone()).take(DROPS);
    sample::write(encoder, &catalogue::DEVICE_DROPS, tallies)
}

/// Writes what flow caches hold and do.
pub(crate) fn write_caches(
    encoder: &mut DescriptorEncoder<'_>,
    report: &CounterReport,
) -> fmt::Result {
    type Count = fn(&CacheReport) -> u64;
    let name = |cache: &&CacheReport| (cache.worker, cache.direction.clone(), cache.family.clone());
    let caches: Vec<_> = distinct(report.caches.iter(), name).take(CACHES).collect();
    let counts: [(Metric, Count); 8] = [
        (catalogue::CACHE_ENTRIES, |cache| cache.entries),
        (catalogue::CACHE_ROOM, |cache| cache.room),
        (catalogue::CACHE_BYTES, |cache| cache.bytes),
        (catalogue::CACHE_HITS, |cache| cache.hits),
        (catalogue::CACHE_MISSES, |cache| cache.misses),
        (catalogue::CACHE_STALE, |cache| cache.stale),
        (catalogue::CACHE_EVICTED, |cache| cache.evicted),
        (catalogue::CACHE_BYPASSED, |cache| cache.bypassed),
    ];
    for (metric, count) in counts {
        let series = caches.iter().map(|cache| (cache_labels(cache), count(cache).into()));
        sample::write(encoder, &metric, series)?;
    }
    Ok(())
}

fn cache_labels(cache: &CacheReport) -> Labels<'_> {
    let (direction, family) = (label::value(&cache.direction), label::value(&cache.family));
    vec![("worker", cache.worker.to_string().into()), ("direction", direction), ("family", family)]
}
