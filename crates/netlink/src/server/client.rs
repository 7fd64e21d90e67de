//! Connected clients: port ids, multicast groups, dumps.

use std::collections::BTreeMap;

use bitflags::bitflags;
pub use uxfrm_netlink_wire::SocketOptions;
use uxfrm_netlink_wire::{NetlinkFlags, NetlinkMessage};

use super::dump::Dump;

/// A client's connection. A program that opens a socket per request has the same port each time,
/// and may connect anew before the old connection ends: `connection` tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId {
    /// Its connection, by its caller's number.
    pub connection: u32,
    /// Its netlink port id, which its `getsockname` gave it; never 0, which is the kernel's.
    pub port: u32,
}

bitflags! {
    /// Multicast groups as `bind` takes them (`nl_groups`): group n is bit n − 1 (`XFRMNLGRP_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Groups: u32 {
        /// Packets that need a state.
        const ACQUIRE = 1;
        /// States and policies that reached a limit.
        const EXPIRE = 1 << 1;
        /// States added, changed, deleted. Their keys are in it, as in the kernel's.
        const SA = 1 << 2;
        /// Policies added, changed, deleted, and defaults.
        const POLICY = 1 << 3;
        /// Counters of states.
        const AEVENTS = 1 << 4;
        /// Mobile IPv6; never sent.
        const REPORT = 1 << 5;
        /// Migrations.
        const MIGRATE = 1 << 6;
        /// Peers behind NAT that moved.
        const MAPPING = 1 << 7;
    }
}

/// All clients.
#[derive(Debug, Default)]
pub(crate) struct Clients(BTreeMap<ClientId, Client>);

/// State of a client.
#[derive(Debug, Default)]
pub(crate) struct Client {
    pub(crate) groups: Groups,
    pub(crate) options: SocketOptions,
    pub(crate) dump: Option<Dump>,
    chain: Chain,
}

/// Whether a chained request was refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Chain {
    #[default]
    Whole,
    Broken,
}

impl Clients {
    pub(crate) fn join(&mut self, id: ClientId, groups: Groups, options: SocketOptions) {
        let client = self.0.entry(id).or_default();
        client.groups = groups;
        client.options = options;
    }

    pub(crate) fn leave(&mut self, id: ClientId) {
        self.0.remove(&id);
    }

    /// Whether an earlier chained request was refused, so that this one is skipped.
    pub(crate) fn is_chain_broken(&self, id: ClientId, message: NetlinkMessage<'_>) -> bool {
        self.known(id).is_some_and(|client| {
            client.chain == Chain::Broken && client.is_chained(message.flags())
        })
    }

    /// Notes a refusal, which breaks the chain.
    pub(crate) fn record_refusal(&mut self, id: ClientId, message: NetlinkMessage<'_>) {
        if let Some(client) = self.0.get_mut(&id)
            && client.is_chained(message.flags())
        {
            client.chain = Chain::Broken;
        }
    }

    /// A client that never joined listens to nothing, has set no option, and may ask for anything.
    pub(crate) fn of(&mut self, id: ClientId) -> &mut Client {
        self.0.entry(id).or_default()
    }

    pub(crate) fn options(&self, id: ClientId) -> SocketOptions {
        self.known(id).map_or_else(SocketOptions::default, |client| client.options)
    }

    pub(crate) fn known(&self, id: ClientId) -> Option<&Client> {
        self.0.get(&id)
    }

    pub(crate) fn are_listening(&self, group: Groups) -> bool {
        self.listeners(group).next().is_some()
    }

    pub(crate) fn listeners(&self, group: Groups) -> impl Iterator<Item = ClientId> {
        let listens = move |client: &Client| client.groups.intersects(group);
        self.0.iter().filter(move |(_, client)| listens(client)).map(|(id, _)| *id)
    }
}

impl Client {
    fn is_chained(&self, flags: NetlinkFlags) -> bool {
        self.options.contains(SocketOptions::CHAINS) && flags.contains(NetlinkFlags::CHAINED)
    }
}
