//! What a line asks for.

use std::net::IpAddr;

use uxfrm_engine::{
    Action, Direction, IfId, Mark, Mode, Policy, PolicyIndex, PolicyKind, Reqid, SaConfig, SaId,
    SaProtocol, Selector,
};

use super::filter::{PolicyFilter, StateFilter};

/// One line.
#[derive(Debug)]
pub enum Command {
    /// `state add`
    StateAdd(Box<SaConfig>),
    /// `state update`
    StateUpdate(Box<SaConfig>),
    /// `state allocspi`
    StateAllocSpi(SpiRequest),
    /// `state delete`
    StateDelete(StateKey),
    /// `state get`
    StateGet(StateKey),
    /// `state deleteall`
    StateDeleteAll(StateFilter),
    /// `state list`
    StateList(StateFilter),
    /// `state list nokeys`
    StateListWithoutKeys(StateFilter),
    /// `state flush`
    StateFlush {
        /// Only states of this protocol.
        protocol: Option<SaProtocol>,
    },
    /// `state count`
    StateCount,
    /// `policy add`
    PolicyAdd(Box<Policy>),
    /// `policy update`
    PolicyUpdate(Box<Policy>),
    /// `policy delete`
    PolicyDelete(PolicyKey),
    /// `policy get`
    PolicyGet(PolicyKey),
    /// `policy deleteall`
    PolicyDeleteAll(PolicyFilter),
    /// `policy list`; socket policies, which `nosock` leaves out, don't exist here.
    PolicyList(PolicyFilter),
    /// `policy flush`
    PolicyFlush {
        /// Main (also if not named) or sub policies.
        kind: PolicyKind,
    },
    /// `policy count`
    PolicyCount,
    /// `policy set`
    SetHthresh {
        /// For IPv4.
        v4: Option<Hthresh>,
        /// For IPv6.
        v6: Option<Hthresh>,
    },
    /// `policy setdefault`: what happens in a direction where no policy matches; `None` stays as it is.
    SetDefault {
        /// For packets to this host.
        inbound: Option<Action>,
        /// For packets through this host.
        forward: Option<Action>,
        /// For packets from this host, and leaving it.
        outbound: Option<Action>,
    },
    /// `policy getdefault`
    GetDefault,
}

/// Which state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateKey {
    /// Destination, SPI and protocol.
    pub id: SaId,
    /// Source; unspecified fits any. It counts where there is no SPI.
    pub source: IpAddr,
    /// Mark.
    pub mark: Mark,
}

/// `state allocspi`: a larval state with a free SPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpiRequest {
    /// Destination and protocol; the SPI is 0.
    pub id: SaId,
    /// Source.
    pub source: IpAddr,
    /// Mode.
    pub mode: Mode,
    /// Request id.
    pub reqid: Reqid,
    /// The acquire that it answers; 0 for none.
    pub acquire_seq: u32,
    /// Mark.
    pub mark: Mark,
    /// Lowest SPI that will do.
    pub min: u32,
    /// Highest SPI that will do.
    pub max: u32,
    /// `dir in|out`.
    pub direction: Option<Direction>,
    /// `pcpu-num`.
    pub pcpu: Option<u32>,
}

/// Which policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyKey {
    /// In, out or forward.
    pub direction: Direction,
    /// By selector or by index.
    pub target: PolicyTarget,
    /// Mark.
    pub mark: Mark,
    /// XFRM interface id.
    pub if_id: IfId,
    /// Main or sub.
    pub kind: PolicyKind,
}

/// What names a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyTarget {
    /// The whole selector is this one.
    Selector(Selector),
    /// The index is this one.
    Index(PolicyIndex),
}

/// Prefixes at least this long are found through a hash in the kernel; here it is kept for listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hthresh {
    /// Bits of the local prefix.
    pub local: u8,
    /// Bits of the remote prefix.
    pub remote: u8,
}
