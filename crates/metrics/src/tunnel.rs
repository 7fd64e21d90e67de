//! Tunnels that have series of their own.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use uxfrm_status::{
    gateway::GatewayStatus,
    health::Health,
    tunnel::{ProtectedNets, TunnelStatus, UdpStatus},
};

use crate::{
    catalogue::{self, Metric},
    distinct::distinct,
    gateway::by_name,
    label::{self, Labels},
    sample::{self, Value},
};

/// Drop reasons of one tunnel.
const REASONS: usize = 16;

/// A tunnel with the labels that name it.
pub(crate) type Named<'a> = (Labels<'a>, &'a TunnelStatus);

/// The tunnels of a document, each once.
pub(crate) fn named(status: &GatewayStatus) -> Vec<Named<'_>> {
    let named = status.tunnels.iter().map(|tunnel| (labels(tunnel), tunnel));
    distinct(named, |(labels, _)| labels.clone()).collect()
}

fn labels(tunnel: &TunnelStatus) -> Labels<'_> {
    let mut labels = vec![
        ("peer", tunnel.remote.to_string().into()),
        ("local", tunnel.local.to_string().into()),
        ("reqid", tunnel.reqid.to_string().into()),
        ("mode", label::value(&tunnel.mode)),
    ];
    if tunnel.if_id != 0 {
        labels.push(("if_id", tunnel.if_id.to_string().into()));
    }
    if tunnel.protocol != "esp" {
        labels.push(("protocol", label::value(&tunnel.protocol)));
    }
    labels
}

/// Writes health, traffic and drops.
pub(crate) fn write(
    encoder: &mut DescriptorEncoder<'_>,
    status: &GatewayStatus,
    tunnels: &[Named<'_>],
) -> fmt::Result {
    write_health(encoder, tunnels)?;
    let infos = tunnels.iter().map(|(name, tunnel)| ((name.as_slice(), info(tunnel)), true.into()));
    sample::write(encoder, &catalogue::TUNNEL, infos)?;
    write_traffic(encoder, tunnels)?;
    let at = |ago: u64| status.at.saturating_sub(ago);
    let mut last = |metric: &Metric, ago: fn(&TunnelStatus) -> Option<u64>| {
        let told = tunnels.iter().filter_map(|(name, tunnel)| Some((name, ago(tunnel)?)));
        sample::write(encoder, metric, told.map(|(name, ago)| (name.as_slice(), at(ago).into())))
    };
    last(&catalogue::TUNNEL_LAST_SENT, |tunnel| tunnel.sent.last_seconds_ago)?;
    last(&catalogue::TUNNEL_LAST_RECEIVED, |tunnel| tunnel.received.last_seconds_ago)?;
    write_refused(encoder, tunnels)
}

fn write_health(encoder: &mut DescriptorEncoder<'_>, tunnels: &[Named<'_>]) -> fmt::Result {
    const ALL: [Health; 4] = [Health::Up, Health::Idle, Health::OneWay, Health::Down];
    let up =
        tunnels.iter().map(|(name, tunnel)| (name.as_slice(), (!tunnel.health.is_bad()).into()));
    sample::write(encoder, &catalogue::TUNNEL_UP, up)?;
    let health = tunnels.iter().flat_map(|(name, tunnel)| {
        ALL.map(|health| {
            let labels = (name.as_slice(), [("health", health.as_str())]);
            (labels, (tunnel.health == health).into())
        })
    });
    sample::write(encoder, &catalogue::TUNNEL_HEALTH, health)
}

fn write_traffic(encoder: &mut DescriptorEncoder<'_>, tunnels: &[Named<'_>]) -> fmt::Result {
    type Count = fn(&TunnelStatus) -> u64;
    let counts: [(Metric, Count); 5] = [
        (catalogue::TUNNEL_STATES, |tunnel| tunnel.states_total),
        (catalogue::TUNNEL_SENT_PACKETS, |tunnel| tunnel.sent.packets),
        (catalogue::TUNNEL_SENT_BYTES, |tunnel| tunnel.sent.bytes),
        (catalogue::TUNNEL_RECEIVED_PACKETS, |tunnel| tunnel.received.packets),
        (catalogue::TUNNEL_RECEIVED_BYTES, |tunnel| tunnel.received.bytes),
    ];
    for (metric, count) in counts {
        let series = tunnels.iter().map(|(name, tunnel)| (name.as_slice(), count(tunnel).into()));
        sample::write(encoder, &metric, series)?;
    }
    Ok(())
}

fn write_refused(encoder: &mut DescriptorEncoder<'_>, tunnels: &[Named<'_>]) -> fmt::Result {
    let failures = tunnels.iter().flat_map(|(name, tunnel)| {
        let failures = tunnel.failures;
        let kinds: [(&str, Value); 3] = [
            ("replay-window", failures.replay_window.into()),
            ("replay", failures.replay.into()),
            ("integrity", failures.integrity_failed.into()),
        ];
        kinds.map(|(kind, count)| ((name.as_slice(), [("kind", kind)]), count))
    });
    sample::write(encoder, &catalogue::TUNNEL_FAILURES, failures)?;
    let drops = tunnels.iter().flat_map(|(name, tunnel)| {
        let drops = by_name(&tunnel.drops, REASONS);
        drops.map(|(reason, count)| ((name.as_slice(), [reason]), count))
    });
    sample::write(encoder, &catalogue::TUNNEL_DROPS, drops)
}

/// What it protects and how; nothing for what is not known.
fn info(tunnel: &TunnelStatus) -> Labels<'_> {
    let nets = tunnel.nets.first().map(|first| {
        let more = tunnel.nets_total.saturating_sub(1);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        label::value(&(nets(first) + &more)).into_owned()
    });
    let encapsulation = tunnel.encapsulation.as_ref().map(udp);
    let told = [
        ("nets", nets.map(Into::into)),
        ("cipher", tunnel.cipher.as_deref().map(label::value)),
        ("encapsulation", encapsulation.map(|text| label::value(&text).into_owned().into())),
        ("device", tunnel.device.as_deref().map(label::value)),
    ];
    told.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

fn nets(nets: &ProtectedNets) -> String {
    let ProtectedNets { local, remote, traffic } = nets;
    let traffic = traffic.as_ref().map(|traffic| format!(" proto {traffic}"));
    format!("{local} <-> {remote}{}", traffic.unwrap_or_default())
}

fn udp(encapsulation: &UdpStatus) -> String {
    format!("{} {}", encapsulation.kind, encapsulation.destination_port)
}
