//! What workers read: one generation of states and policies, swapped whole.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::sa::news::StateNews;
use crate::{Acquires, HostAddresses, Sad, Spd, Spi};

/// One generation of the databases. Immutable; a worker loads it once per batch and sees either all of a change or nothing.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// States.
    pub sad: Arc<Sad>,
    /// Policies.
    pub spd: Arc<Spd>,
    /// What key managers were asked for.
    pub acquires: Arc<Acquires>,
    /// What is known of the host; `None` when workers' settings say it.
    pub host: Option<Arc<Host>>,
    /// Rises with every change of states or policies.
    pub generation: u64,
    /// Rises with every change of states: those found for a flow under another number may be others now.
    pub states: u64,
    /// Which states the latest of these changes were about.
    pub(crate) state_news: StateNews,
}

impl Snapshot {
    /// The SPIs of states that have changed since there were so many changes; `None` when nobody knows any more.
    pub(crate) fn changed_since(&self, states: u64) -> Option<impl ExactSizeIterator<Item = Spi>> {
        self.state_news.of(states..self.states)
    }

    /// Notes a change of a state.
    pub(crate) fn note_state(&mut self, spi: Spi) {
        self.state_news.note(self.states, spi);
        self.states += 1;
    }
}

/// What may change on the host while workers run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its own addresses.
    pub addresses: HostAddresses,
    /// Bytes of the largest IP packet that the network takes, headers included; at least 576.
    pub mtu: u16,
    /// Peers towards which it takes less.
    pub narrow: NarrowPaths,
}

/// What the network takes towards some peers, in bytes of IP packet: less than towards all others, as routers on the way have said.
pub type NarrowPaths = BTreeMap<IpAddr, u16>;

/// What every path is held to take, whatever routers and links say: `net.ipv4.route.min_pmtu`, and RFC 8200 §5.
#[must_use]
pub const fn least_path(to: IpAddr) -> u16 {
    match to {
        IpAddr::V4(_) => 552,
        IpAddr::V6(_) => 1280,
    }
}

/// Where the newest snapshot is found. Each worker keeps an [`arc_swap::Cache`] of it.
pub type Published = Arc<ArcSwap<Snapshot>>;
