//! The document about a gateway and its tunnels.

use std::{fmt, net::IpAddr, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    counters::CounterList,
    health::Health,
    tunnel::{StateStatus, TrafficStatus, TunnelStatus},
};

/// A gateway and its tunnels, the worst first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GatewayStatus {
    /// Who answers.
    pub gateway: GatewayIdentity,
    /// When this was read, in Unix seconds.
    pub at: u64,
    /// How many seconds ago the gateway's control thread told what it alone knows: `notices`, and
    /// what the kernel and devices dropped. 0 unless it was too busy to answer in time.
    pub age_seconds: u64,
    /// Counts of all tunnels that were asked for, and of the gateway.
    pub totals: StatusTotals,
    /// Policies without templates.
    pub plain: PlainPolicies,
    /// Tunnels, as far as they were asked for: the worst first, or by name after a cursor.
    pub tunnels: Vec<TunnelStatus>,
    /// States that fit no policy: the first 50.
    pub unmatched_states: Vec<StateStatus>,
    /// How many there are.
    pub unmatched_states_total: u64,
    /// Where to go on, for [`StatusQuery::after`]; without where that was all, or where the worst
    /// were asked for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next: Option<String>,
    /// What is wrong with the store of sequence numbers, or held from the last run; a sentence
    /// each.
    pub notices: Vec<String>,
}

/// Who a gateway is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GatewayIdentity {
    /// Its release.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// When this process started, in Unix seconds.
    pub started: u64,
    /// How long it has run, in seconds.
    pub uptime_seconds: u64,
    /// Its configuration file.
    pub configuration: String,
    /// `host` or `inline`.
    pub mode: String,
    /// Its TUN.
    pub tun: String,
    /// Threads that move packets.
    pub workers: u64,
    /// UDP ports of ESP in UDP.
    pub udp_ports: Vec<u16>,
    /// Devices of inline mode (protected, wire) or of AF_XDP.
    pub interfaces: Vec<String>,
    /// Offload devices.
    pub devices: Vec<String>,
    /// Whether a key manager, as an IKE daemon, listens for acquires.
    pub key_manager_listens: bool,
}

/// Counts of tunnels, states, packets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StatusTotals {
    /// Tunnels that were asked for.
    pub tunnels: u64,
    /// Those that are up.
    pub up: u64,
    /// Those that are idle.
    pub idle: u64,
    /// Those that are one-way.
    pub one_way: u64,
    /// Those that are down.
    pub down: u64,
    /// All states of the gateway.
    pub states: u64,
    /// All policies of the gateway.
    pub policies: u64,
    /// States that a key manager was asked for and has not added yet.
    #[serde(default)]
    pub acquires_pending: u64,
    /// How much of its sequence numbers the newest outbound state of a tunnel has used at the most,
    /// from 0 to 1; without if there is none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub highest_sequence_ratio: Option<f64>,
    /// Seconds until the first newest state of a tunnel reaches a hard limit of time; without if
    /// none has one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub soonest_expiry_seconds: Option<u64>,
    /// What the present states of these tunnels have sent.
    pub sent: TrafficStatus,
    /// What they have received.
    pub received: TrafficStatus,
    /// Packets that the gateway dropped.
    pub dropped: u64,
    /// The same by reason, without those that never happened.
    pub dropped_by_reason: CounterList,
}

/// Policies without templates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PlainPolicies {
    /// `action allow`: what matches passes as it is.
    pub bypass: u64,
    /// `action block`: what matches is dropped.
    pub block: u64,
    /// Held from the last run until policies of the same selectors come: what matches is dropped.
    pub held: u64,
}

/// Which tunnels are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(default, deny_unknown_fields)]
pub struct StatusQuery {
    /// Only tunnels with this peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", param(value_type = Option<crate::openapi::PrefixText>))]
    pub peer: Option<PeerFilter>,
    /// At most so many; 50 without, and 10000 are the most.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", param(maximum = 10_000))]
    pub limit: Option<u32>,
    /// By name, behind the [`GatewayStatus::next`] of the answer before; an empty one begins.
    /// Without, the worst come first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Which tunnels of equal health come first, where the worst do.
    #[serde(skip_serializing_if = "TunnelOrder::is_name")]
    #[cfg_attr(feature = "openapi", param(required = false, inline))]
    pub order: TunnelOrder,
}

/// The order of tunnels of equal health.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum TunnelOrder {
    /// By name: other end, this end, reqid.
    #[default]
    Name,
    /// Those that carried most bytes first, then by name.
    Traffic,
}

/// An address or prefix; in JSON and on the command line as `192.0.2.7` or `192.0.2.0/24`.
///
/// ```
/// use uxfrm_status::gateway::PeerFilter;
///
/// let peer: PeerFilter = "192.0.2.0/24".parse()?;
/// assert!(peer.contains([192, 0, 2, 7].into()) && !peer.contains([192, 0, 3, 7].into()));
/// assert!("192.0.2.0/33".parse::<PeerFilter>().is_err());
/// # Ok::<(), uxfrm_status::gateway::PeerError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PeerFilter {
    address: IpAddr,
    length: u8,
}

/// Text that is neither an address nor a prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither an IP address nor a prefix, as 192.0.2.7 or 192.0.2.0/24")]
pub struct PeerError(String);

impl StatusQuery {
    /// Tunnels of an answer where the query says nothing.
    pub const DEFAULT_LIMIT: u32 = 50;
    /// The most tunnels of one answer.
    pub const MOST: u32 = 10_000;

    /// How many tunnels an answer has at the most.
    #[must_use]
    pub fn limit(&self) -> usize {
        let limit = self.limit.unwrap_or(Self::DEFAULT_LIMIT).min(Self::MOST);
        usize::try_from(limit).unwrap_or(usize::MAX)
    }
}

impl TunnelOrder {
    /// Whether it is the one that need not be said.
    const fn is_name(&self) -> bool {
        match self {
            Self::Name => true,
            Self::Traffic => false,
        }
    }
}

impl PeerFilter {
    /// Whether an address is in it; never across families.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let apart = match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                u128::from(own.to_bits() ^ other.to_bits()) << 96
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => own.to_bits() ^ other.to_bits(),
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return false,
        };
        apart.leading_zeros() >= u32::from(self.length)
    }

    /// Its address, and how many bits of it count.
    #[must_use]
    pub const fn prefix(&self) -> (IpAddr, u8) {
        (self.address, self.length)
    }
}

impl FromStr for PeerFilter {
    type Err = PeerError;

    fn from_str(text: &str) -> Result<Self, PeerError> {
        let wrong = || PeerError(text.to_owned());
        let (address, length) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let length = length.map_or(Ok(most), str::parse).map_err(|_| wrong())?;
        if length > most { Err(wrong()) } else { Ok(Self { address, length }) }
    }
}

impl TryFrom<String> for PeerFilter {
    type Error = PeerError;

    fn try_from(text: String) -> Result<Self, PeerError> {
        text.parse()
    }
}

impl From<PeerFilter> for String {
    fn from(filter: PeerFilter) -> Self {
        filter.to_string()
    }
}

impl fmt::Display for PeerFilter {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, length } = self;
        let is_host = *length == if address.is_ipv4() { 32 } else { 128 };
        if is_host { write!(out, "{address}") } else { write!(out, "{address}/{length}") }
    }
}

impl StatusTotals {
    /// Counts one tunnel.
    pub fn count(&mut self, health: Health) {
        self.tunnels += 1;
        *match health {
            Health::Up => &mut self.up,
            Health::Idle => &mut self.idle,
            Health::OneWay => &mut self.one_way,
            Health::Down => &mut self.down,
        } += 1;
    }
}

impl GatewayStatus {
    /// Whether somebody should look: a tunnel is down or one-way, or policies are held.
    #[must_use]
    pub const fn is_bad(&self) -> bool {
        self.totals.down | self.totals.one_way | self.plain.held != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_filter_by_table() {
        for (filter, address, fits) in [
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.8", false),
            ("192.0.2.0/24", "192.0.2.255", true),
            ("0.0.0.0/0", "192.0.2.255", true),
            ("0.0.0.0/0", "::1", false),
            ("2001:db8::/32", "2001:db8:1::1", true),
            ("2001:db8::/32", "2001:db9::1", false),
            ("::1", "::1", true),
        ] {
            let filter: PeerFilter = filter.parse().unwrap();
            assert_eq!(filter.contains(address.parse().unwrap()), fits, "{filter} {address}");
        }
        for wrong in ["", "x", "1.2.3.4/", "1.2.3.4/33", "::1/129", "1.2.3.4/-1"] {
            assert!(wrong.parse::<PeerFilter>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn query_has_defaults_and_bounds() {
        let query: StatusQuery = serde_json::from_str("{}").unwrap();
        assert_eq!((query.limit(), &query), (50, &StatusQuery::default()));
        let many = StatusQuery { limit: Some(u32::MAX), ..query };
        assert_eq!(many.limit(), 10_000);
        assert!(serde_json::from_str::<StatusQuery>(r#"{"peer":"nonsense"}"#).is_err());
    }

    #[test]
    fn totals_count_each_health_once() {
        let mut totals = StatusTotals::default();
        for health in [Health::Up, Health::Down, Health::Down, Health::Idle, Health::OneWay] {
            totals.count(health);
        }
        let StatusTotals { tunnels, up, idle, one_way, down, .. } = totals;
        assert_eq!((tunnels, up, idle, one_way, down), (5, 1, 1, 1, 2));
    }
}
