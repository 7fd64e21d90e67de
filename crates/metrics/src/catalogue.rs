//! All metrics that a page may have.

use prometheus_client::registry::Unit;

use crate::kernel;

/// A metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name as series have it: with unit, and `_total` or `_info`.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// What it has a series for.
    pub scope: Scope,
    /// Labels beside those of the scope.
    pub labels: &'static [&'static str],
    /// What it says, in a sentence without full stop, of plain ASCII letters.
    pub help: &'static str,
}

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A count that begins anew with what is counted.
    Counter,
    /// What goes up and down.
    Gauge,
    /// Labels that tell something; the value is 1. To Prometheus' text format a gauge.
    Info,
}

/// What a metric has a series for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The gateway.
    Gateway,
    /// Each tunnel, as far as there is room.
    Tunnel,
}

/// Labels that name a tunnel. It has `if_id` and `protocol` besides where they are not 0 and `esp`.
pub const TUNNEL_LABELS: [&str; 4] = ["peer", "local", "reqid", "mode"];

impl Metric {
    /// All of its labels.
    pub fn all_labels(&self) -> impl Iterator<Item = &'static str> {
        let of_scope: &[_] = match self.scope {
            Scope::Gateway => &[],
            Scope::Tunnel => &TUNNEL_LABELS,
        };
        of_scope.iter().chain(self.labels).copied()
    }

    /// Its name in OpenMetrics without its unit, and that.
    pub(crate) fn stem(&self) -> (&'static str, Option<Unit>) {
        let suffix = match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge => "",
        };
        let name = self.name.strip_suffix(suffix).unwrap_or(self.name);
        let units = [
            Unit::Bytes,
            Unit::Seconds,
            Unit::Other("packets".into()),
            Unit::Other("ratio".into()),
        ];
        let stem = units.into_iter().find_map(|unit| {
            let stem = name.strip_suffix(unit.as_str())?.strip_suffix('_')?;
            Some((stem, Some(unit)))
        });
        stem.unwrap_or((name, None))
    }
}

/// All of them, in the order of the page.
pub fn all() -> impl Iterator<Item = &'static Metric> {
    ALL.iter().chain(kernel::COUNTERS.iter().map(|(_, metric)| metric))
}

macro_rules! catalogue {
    ($($constant:ident: $kind:ident of $scope:ident, $name:literal, $labels:expr, $help:literal;)+) => {
        $(
            pub(crate) const $constant: Metric = Metric {
                name: $name,
                kind: Kind::$kind,
                scope: Scope::$scope,
                labels: &$labels,
                help: $help,
            };
        )+
        const ALL: &[Metric] = &[$($constant,)+];
    };
}

#[rustfmt::skip]
catalogue! {
    UP: Gauge of Gateway, "uxfrm_up", [],
        "Whether the gateway answers; without an answer there is no other series";
    BUILD: Info of Gateway, "uxfrm_build_info", ["version"],
        "Release of the gateway";
    GATEWAY: Info of Gateway, "uxfrm_gateway_info", ["mode", "tun"],
        "Host or inline mode, and the TUN of host mode";
    START_TIME: Gauge of Gateway, "uxfrm_start_time_seconds", [],
        "When the process of the gateway started, in Unix time";
    WORKERS: Gauge of Gateway, "uxfrm_workers", [],
        "Threads that move packets";
    KEY_MANAGER: Gauge of Gateway, "uxfrm_key_manager_listens", [],
        "Whether a key manager, as an IKE daemon, listens for acquires";
    REPORT_AGE: Gauge of Gateway, "uxfrm_report_age_seconds", [],
        "How old the notices and the drops by kernel and devices are: 0 unless control is too busy to answer";
    NOTICES: Gauge of Gateway, "uxfrm_notices", [],
        "Sentences about what is wrong with the store of sequence numbers, or held from the last run";
    STATES: Gauge of Gateway, "uxfrm_states", [],
        "States of the gateway";
    POLICIES: Gauge of Gateway, "uxfrm_policies", [],
        "Policies of the gateway";
    PLAIN_POLICIES: Gauge of Gateway, "uxfrm_plain_policies", ["action"],
        "Policies without templates: bypass, block, or held from the last run, which drop as well";
    UNMATCHED_STATES: Gauge of Gateway, "uxfrm_unmatched_states", [],
        "States that fit no policy";
    ACQUIRES: Gauge of Gateway, "uxfrm_acquires_pending", [],
        "States that a key manager was asked for and has not added";
    TUNNELS: Gauge of Gateway, "uxfrm_tunnels", ["health"],
        "All tunnels by health: up, idle, one-way, down";
    TUNNELS_OMITTED: Gauge of Gateway, "uxfrm_tunnels_omitted", [],
        "Tunnels without series of their own: the page has the worst, and of those the busiest";
    HIGHEST_SEQUENCE_RATIO: Gauge of Gateway, "uxfrm_highest_sequence_ratio", [],
        "How much of its sequence numbers the newest outbound state of any tunnel has used at the most";
    SOONEST_EXPIRY: Gauge of Gateway, "uxfrm_soonest_expiry_seconds", [],
        "Until the first newest state of any tunnel reaches its hard limit of time";
    DROPS: Counter of Gateway, "uxfrm_drops_total", ["reason"],
        "Packets dropped, by drop reason";
    WORKER_CPU: Counter of Gateway, "uxfrm_worker_cpu_seconds_total", ["worker"],
        "Processor time of a worker's thread, in the kernel too; its rate is the busy share";
    WORKER_TURNS: Counter of Gateway, "uxfrm_worker_turns_total", ["worker"],
        "Rounds of a worker's loop";
    WORKER_BATCHES: Counter of Gateway, "uxfrm_worker_batches_total", ["worker"],
        "Batches that a worker received from its ports";
    WORKER_WAITING: Gauge of Gateway, "uxfrm_worker_waiting_buffers", ["worker"],
        "Buffers of a worker that wait for a state or for fragments";
    WORKER_RECEIVED_PACKETS: Counter of Gateway, "uxfrm_worker_received_packets_total", ["worker", "direction"],
        "Packets that came to a worker: out from the host, in from the network";
    WORKER_RECEIVED_BYTES: Counter of Gateway, "uxfrm_worker_received_bytes_total", ["worker", "direction"],
        "Bytes of packets that came to a worker";
    WORKER_SENT_PACKETS: Counter of Gateway, "uxfrm_worker_sent_packets_total", ["worker", "direction"],
        "Packets that a worker passed on";
    WORKER_SENT_BYTES: Counter of Gateway, "uxfrm_worker_sent_bytes_total", ["worker", "direction"],
        "Bytes of packets that a worker passed on";
    WORKER_DROPPED_PACKETS: Counter of Gateway, "uxfrm_worker_dropped_packets_total", ["worker", "direction"],
        "Packets that a worker dropped";
    PORT_RECEIVED_BUFFERS: Counter of Gateway, "uxfrm_worker_port_received_buffers_total", ["worker", "port"],
        "Buffers that a worker's port received: a packet each, or several that the kernel has joined";
    PORT_SENT_PACKETS: Counter of Gateway, "uxfrm_worker_port_sent_packets_total", ["worker", "port"],
        "Packets that a worker's port sent";
    PORT_SENT_BYTES: Counter of Gateway, "uxfrm_worker_port_sent_bytes_total", ["worker", "port"],
        "Bytes that a worker's port sent";
    PORT_REFUSED_PACKETS: Counter of Gateway, "uxfrm_worker_port_refused_packets_total", ["worker", "port"],
        "Packets of a worker's port that the kernel did not take";
    DEVICES: Info of Gateway, "uxfrm_device_info", ["device"],
        "Offload devices";
    DEVICE_DROPS: Counter of Gateway, "uxfrm_device_drops_total", ["device", "reason"],
        "Packets dropped that an offload device had a part in, by drop reason";
    CACHE_ENTRIES: Gauge of Gateway, "uxfrm_flow_cache_entries", ["worker", "direction", "family"],
        "Flows that a flow cache holds";
    CACHE_ROOM: Gauge of Gateway, "uxfrm_flow_cache_capacity", ["worker", "direction", "family"],
        "Flows that a flow cache has room for";
    CACHE_BYTES: Gauge of Gateway, "uxfrm_flow_cache_memory_bytes", ["worker", "direction", "family"],
        "Memory of a flow cache";
    CACHE_HITS: Counter of Gateway, "uxfrm_flow_cache_hits_total", ["worker", "direction", "family"],
        "Look-ups that found their flow";
    CACHE_MISSES: Counter of Gateway, "uxfrm_flow_cache_misses_total", ["worker", "direction", "family"],
        "Look-ups that did not";
    CACHE_STALE: Counter of Gateway, "uxfrm_flow_cache_stale_total", ["worker", "direction", "family"],
        "Look-ups that found what had changed meanwhile";
    CACHE_EVICTED: Counter of Gateway, "uxfrm_flow_cache_evicted_total", ["worker", "direction", "family"],
        "Flows that made room for others";
    CACHE_BYPASSED: Counter of Gateway, "uxfrm_flow_cache_bypassed_total", ["worker", "direction", "family"],
        "Look-ups that passed a flow cache by, as it did not pay";
    LINK_SENT_PACKETS: Counter of Gateway, "uxfrm_link_sent_packets_total", ["link"],
        "Packets that a link (IPIP, SIT, GRE, FOU) sent";
    LINK_SENT_BYTES: Counter of Gateway, "uxfrm_link_sent_bytes_total", ["link"],
        "Bytes that a link sent";
    LINK_RECEIVED_PACKETS: Counter of Gateway, "uxfrm_link_received_packets_total", ["link"],
        "Packets that a link or receive port received";
    LINK_RECEIVED_BYTES: Counter of Gateway, "uxfrm_link_received_bytes_total", ["link"],
        "Bytes that a link or receive port received";
    LINK_DROPS: Counter of Gateway, "uxfrm_link_drops_total", ["reason"],
        "Packets that links and receive ports dropped, by drop reason";
    TUNNEL_UP: Gauge of Tunnel, "uxfrm_tunnel_up", [],
        "Whether a tunnel is up or idle; 0 where it is one-way or down, also if it never was up";
    TUNNEL_HEALTH: Gauge of Tunnel, "uxfrm_tunnel_health", ["health"],
        "Which health a tunnel has: 1 for one of up, idle, one-way and down, 0 for the others";
    TUNNEL: Info of Tunnel, "uxfrm_tunnel_info", ["nets", "cipher", "encapsulation", "device"],
        "What a tunnel protects and how, by its newest state";
    TUNNEL_STATES: Gauge of Tunnel, "uxfrm_tunnel_states", [],
        "States of a tunnel, both directions";
    TUNNEL_SENT_PACKETS: Counter of Tunnel, "uxfrm_tunnel_sent_packets_total", [],
        "Packets that its present states have sent";
    TUNNEL_SENT_BYTES: Counter of Tunnel, "uxfrm_tunnel_sent_bytes_total", [],
        "Bytes of IP packets before encapsulation that its present states have sent";
    TUNNEL_RECEIVED_PACKETS: Counter of Tunnel, "uxfrm_tunnel_received_packets_total", [],
        "Packets that its present states have received";
    TUNNEL_RECEIVED_BYTES: Counter of Tunnel, "uxfrm_tunnel_received_bytes_total", [],
        "Bytes of IP packets after decapsulation that its present states have received";
    TUNNEL_LAST_SENT: Gauge of Tunnel, "uxfrm_tunnel_last_sent_timestamp_seconds", [],
        "When the latest packet was sent, in Unix time; absent if none was";
    TUNNEL_LAST_RECEIVED: Gauge of Tunnel, "uxfrm_tunnel_last_received_timestamp_seconds", [],
        "When the latest packet was received, in Unix time; absent if none was";
    TUNNEL_FAILURES: Counter of Tunnel, "uxfrm_tunnel_failures_total", ["kind"],
        "Packets that its present states refused: replay-window, replay, integrity";
    TUNNEL_DROPS: Counter of Tunnel, "uxfrm_tunnel_drops_total", ["reason"],
        "Packets dropped for its states and policies, by the 16 most frequent drop reasons";
    SEQUENCE_RATIO: Gauge of Tunnel, "uxfrm_state_sequence_ratio", [],
        "How much of its sequence numbers the newest outbound state has used, from 0 to 1";
    EXPIRES: Gauge of Tunnel, "uxfrm_state_expires_seconds", ["direction"],
        "Until the newest state of a direction ends by its hard limit of time; absent without one";
    REKEY: Gauge of Tunnel, "uxfrm_state_rekey_seconds", ["direction"],
        "Until a key manager is to replace the newest state by its soft limit of time";
    LIMIT_RATIO: Gauge of Tunnel, "uxfrm_state_limit_ratio", ["direction", "limit"],
        "How much of the soft or hard limit of time, bytes or packets that comes first is used, from 0 to 1";
}
