//! What a gateway tells about itself and all of its tunnels.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use uxfrm_status::{
    counters::{CounterList, CounterReport},
    gateway::GatewayStatus,
    health::Health,
};

use crate::{
    catalogue::{self, Metric},
    distinct::distinct,
    label::{self, Labels},
    sample::{self, Value},
};

/// Drop reasons of one list.
const REASONS: usize = 256;

/// Writes identity and totals.
pub(crate) fn write(encoder: &mut DescriptorEncoder<'_>, status: &GatewayStatus) -> fmt::Result {
    let (gateway, totals) = (&status.gateway, &status.totals);
    let version = vec![("version", label::value(&gateway.version))];
    sample::write(encoder, &catalogue::BUILD, [(version, Value::from(true))])?;
    let mode = vec![("mode", label::value(&gateway.mode)), ("tun", label::value(&gateway.tun))];
    sample::write(encoder, &catalogue::GATEWAY, [(mode, Value::from(true))])?;
    let mut one =
        |metric: &Metric, value: Value| sample::write(encoder, metric, [(Labels::new(), value)]);
    one(&catalogue::START_TIME, gateway.started.into())?;
    one(&catalogue::WORKERS, gateway.workers.into())?;
    one(&catalogue::KEY_MANAGER, gateway.key_manager_listens.into())?;
    one(&catalogue::REPORT_AGE, status.age_seconds.into())?;
    one(&catalogue::NOTICES, (status.notices.len() as u64).into())?;
    one(&catalogue::STATES, totals.states.into())?;
    one(&catalogue::POLICIES, totals.policies.into())?;
    one(&catalogue::UNMATCHED_STATES, status.unmatched_states_total.into())?;
    one(&catalogue::ACQUIRES, totals.acquires_pending.into())?;
    let omitted = totals.tunnels.saturating_sub(status.tunnels.len() as u64);
    one(&catalogue::TUNNELS_OMITTED, omitted.into())?;
    if let Some(ratio) = totals.highest_sequence_ratio.filter(|ratio| ratio.is_finite()) {
        one(&catalogue::HIGHEST_SEQUENCE_RATIO, ratio.into())?;
    }
    if let Some(seconds) = totals.soonest_expiry_seconds {
        one(&catalogue::SOONEST_EXPIRY, seconds.into())?;
    }
    write_kinds(encoder, status)
}

fn write_kinds(encoder: &mut DescriptorEncoder<'_>, status: &GatewayStatus) -> fmt::Result {
    let (plain, totals) = (status.plain, &status.totals);
    let plain = [("bypass", plain.bypass), ("block", plain.block), ("held", plain.held)];
    let plain = plain.map(|(action, count)| ([("action", action)], count.into()));
    sample::write(encoder, &catalogue::PLAIN_POLICIES, plain)?;
    let tunnels = [
        (Health::Up, totals.up),
        (Health::Idle, totals.idle),
        (Health::OneWay, totals.one_way),
        (Health::Down, totals.down),
    ];
    let tunnels = tunnels.map(|(health, count)| ([("health", health.as_str())], count.into()));
    sample::write(encoder, &catalogue::TUNNELS, tunnels)
}

/// Writes what was dropped.
pub(crate) fn write_drops(
    encoder: &mut DescriptorEncoder<'_>,
    report: &CounterReport,
) -> fmt::Result {
    let drops = by_name(&report.reasons, REASONS);
    sample::write(encoder, &catalogue::DROPS, drops.map(|(reason, count)| ([reason], count)))
}

/// The first `most` counts of a list, each with a label that has its name.
pub(crate) fn by_name(
    list: &CounterList,
    most: usize,
) -> impl Iterator<Item = ((&'static str, std::borrow::Cow<'_, str>), Value)> {
    let named = list.0.iter().map(|(name, count)| (label::value(name), *count));
    let named = distinct(named, |(name, _)| name.clone()).take(most);
    named.map(|(name, count)| (("reason", name), count.into()))
}
