//! Packet and drop counters of tunnels and receive ports.

use uxfrm_link::wire::LinkStatistics;
use uxfrm_netlink::NamedCounters;
use uxfrm_packet::Version;
use uxfrm_runtime::{ReceiveSource, TunnelCounts};
use uxfrm_tunnel::{DropReason, PortIdentity, counters::TunnelDrops};

use super::TunnelService;

/// The counters of a receive port: `packets` and `bytes` that came, and its drops by reason.
pub(super) fn of_port(carrying: &TunnelService, identity: &PortIdentity) -> NamedCounters {
    let source = ReceiveSource::Datagrams(*identity);
    let Some((_, counts)) = carrying.sockets.iter().find(|(known, _)| *known == source) else {
        return NamedCounters::default();
    };
    let (packets, bytes) = counts.received.read();
    let mut named = vec![("packets".to_owned(), packets), ("bytes".to_owned(), bytes)];
    named.extend(by_reason(&counts.drops));
    NamedCounters(named)
}

/// The counters of a tunnel.
pub(super) fn of_link(carrying: &TunnelService, name: &str) -> LinkStatistics {
    let opened = carrying.interfaces.iter().find(|opened| opened.name == name);
    opened.map(|opened| statistics(&opened.counts)).unwrap_or_default()
}

fn statistics(counts: &TunnelCounts) -> LinkStatistics {
    let drops = &counts.drops;
    let dropped = |begin: &str| {
        let reasons = DropReason::ALL.iter().filter(|reason| reason.as_str().starts_with(begin));
        reasons.map(|reason| drops.of(*reason)).sum()
    };
    LinkStatistics {
        received: counts.traffic.received.read(),
        sent: counts.traffic.sent.read(),
        received_dropped: dropped("tunnel_in_"),
        sent_dropped: dropped("tunnel_out_"),
        collisions: drops.of(DropReason::OutRecursion),
        drops: NamedCounters(by_reason(drops).collect()),
    }
}

/// Those that are not zero.
pub(super) fn by_reason(drops: &TunnelDrops) -> impl Iterator<Item = (String, u64)> {
    let all = DropReason::ALL.iter().map(|reason| (reason.as_str().to_owned(), drops.of(*reason)));
    all.filter(|(_, count)| *count != 0)
}

impl TunnelService {
    /// A count for each drop reason, and for each tunnel and receive port what it carried; nothing
    /// where there never was one.
    pub(crate) fn counts(&self) -> Vec<(String, u64)> {
        let mut counts = Vec::new();
        let Some(worker) = &self.worker else { return counts };
        let mut line = |name: &str, count: u64| counts.push((name.to_owned(), count));
        for reason in DropReason::ALL {
            line(reason.as_str(), worker.drops.of(*reason));
        }
        for opened in &self.interfaces {
            let traffic = &opened.counts.traffic;
            for (way, count) in [("sent", &traffic.sent), ("received", &traffic.received)] {
                let (packets, bytes) = count.read();
                line(&format!("tunnel_{}_{way}_packets", opened.name), packets);
                line(&format!("tunnel_{}_{way}_bytes", opened.name), bytes);
            }
        }
        for port in self.ports.iter() {
            let (name, counts) = (name_of(&port.identity), of_port(self, &port.identity));
            for (counter, count) in counts.0.iter().take(2) {
                line(&format!("{name}_received_{counter}"), *count);
            }
        }
        counts
    }
}

/// `fou_5555`, `fou6_5555`, and the address where it has one.
fn name_of(identity: &PortIdentity) -> String {
    let family = match identity.version {
        Version::V4 => "",
        Version::V6 => "6",
    };
    let local = if identity.local.is_unspecified() {
        String::new()
    } else {
        format!("_{}", identity.local)
    };
    format!("fou{family}_{}{local}", identity.port)
}
