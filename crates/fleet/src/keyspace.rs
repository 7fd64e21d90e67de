//! Where what stands in etcd.
//!
//! | key, below `/uxfrm/1/FLEET/` | holds | who writes it |
//! | --- | --- | --- |
//! | `generation` | the number of the last desired state | `fleet apply` |
//! | `pools/POOL/desired` | [`PoolIndex`](crate::desired::PoolIndex) | `fleet apply` |
//! | `pools/POOL/buckets/NUMBER/SERIAL` | [`Bucket`](crate::desired::Bucket) | `fleet apply` |
//! | `pools/POOL/members` | [`Members`](crate::members::Members) | gateways, by vote or own will |
//! | `pools/POOL/votes/SUSPECT/VOTER` | that VOTER does not hear SUSPECT; under VOTER's lease | VOTER |
//! | `pools/POOL/gateways/GATEWAY` | version, health; under GATEWAY's lease | GATEWAY |
//! | `pools/POOL/numbers/KEY` | [`NumberRecord`](crate::numbers::NumberRecord) | who sends with it |
//! | `tunnels/POOL/TUNNEL/SERIAL` | [`DesiredTunnel`](crate::desired::DesiredTunnel) | `fleet apply` |
//! | `edges/POOL/GATEWAY` | [`EdgeRecord`](crate::edges::EdgeRecord) | GATEWAY |
//!
//! A gateway watches all below `pools/POOL/`. The others are read by who needs them: a tunnel by
//! who has a child of it, edges by who takes a child over.
//!
//! All values are [sealed](crate::seal). The `1` is the version of this table and of the records: a
//! gateway that does not know it keeps away. A bucket and a tunnel never change under their key: a
//! new one has a new serial number, and the pool's index says which holds. So whatever is applied
//! takes effect by one transaction, the one that writes indices.

use crate::{
    names::{FleetName, GatewayName, PoolName, TunnelName},
    numbers::KeyFingerprint,
    seal::Serial,
};

/// The version of keys and records.
const VERSION: u32 = 1;

/// The keys of one fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keyspace {
    /// Of all its keys, with the slash.
    prefix: String,
}

/// The keys of one pool of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolKeyspace {
    /// Of what all its gateways watch, with the slash.
    prefix: String,
    tunnels: String,
    edges: String,
}

impl Keyspace {
    /// Of a fleet.
    #[must_use]
    pub fn of(fleet: &FleetName) -> Self {
        Self { prefix: format!("/uxfrm/{VERSION}/{fleet}/") }
    }

    /// What all its keys begin with.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The number of the last desired state.
    #[must_use]
    pub fn generation(&self) -> String {
        format!("{}generation", self.prefix)
    }

    /// What the keys of all pools begin with.
    #[must_use]
    pub fn pools(&self) -> String {
        format!("{}pools/", self.prefix)
    }

    /// The keys of a pool.
    #[must_use]
    pub fn pool(&self, pool: &PoolName) -> PoolKeyspace {
        PoolKeyspace {
            prefix: format!("{}{pool}/", self.pools()),
            tunnels: format!("{}tunnels/{pool}/", self.prefix),
            edges: format!("{}edges/{pool}/", self.prefix),
        }
    }
}

impl PoolKeyspace {
    /// What all keys begin with that its gateways watch.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The pool's index.
    #[must_use]
    pub fn desired(&self) -> String {
        self.key("desired")
    }

    /// What the keys of all buckets begin with.
    #[must_use]
    pub fn all_buckets(&self) -> String {
        self.key("buckets/")
    }

    /// What the keys of all tunnels begin with.
    #[must_use]
    pub fn all_tunnels(&self) -> String {
        self.tunnels.clone()
    }

    /// What all votes begin with.
    #[must_use]
    pub fn all_votes(&self) -> String {
        self.key("votes/")
    }

    /// What the keys of what gateways say of themselves begin with.
    #[must_use]
    pub fn all_gateways(&self) -> String {
        self.key("gateways/")
    }

    /// One bucket of tunnels.
    #[must_use]
    pub fn bucket(&self, number: usize, serial: Serial) -> String {
        self.key(&format!("buckets/{number}/{}", serial.0))
    }

    /// One tunnel.
    #[must_use]
    pub fn tunnel(&self, name: &TunnelName, serial: Serial) -> String {
        format!("{}{name}/{}", self.tunnels, serial.0)
    }

    /// The gateways of the pool.
    #[must_use]
    pub fn members(&self) -> String {
        self.key("members")
    }

    /// What all votes against a gateway begin with.
    #[must_use]
    pub fn votes(&self, suspect: &GatewayName) -> String {
        self.key(&format!("votes/{suspect}/"))
    }

    /// A vote against a gateway.
    #[must_use]
    pub fn vote(&self, suspect: &GatewayName, voter: &GatewayName) -> String {
        self.votes(suspect) + voter.as_str()
    }

    /// What a gateway says of itself.
    #[must_use]
    pub fn gateway(&self, gateway: &GatewayName) -> String {
        self.key(&format!("gateways/{gateway}"))
    }

    /// What the keys of all sequence numbers begin with.
    #[must_use]
    pub fn all_numbers(&self) -> String {
        self.key("numbers/")
    }

    /// The sequence numbers of a key.
    #[must_use]
    pub fn numbers(&self, key: KeyFingerprint) -> String {
        self.key(&format!("numbers/{key}"))
    }

    /// What a gateway receives up to.
    #[must_use]
    pub fn edges(&self, gateway: &GatewayName) -> String {
        self.all_edges() + gateway.as_str()
    }

    /// What the keys of all gateways' edges begin with.
    #[must_use]
    pub fn all_edges(&self) -> String {
        self.edges.clone()
    }

    fn key(&self, rest: &str) -> String {
        self.prefix.clone() + rest
    }
}
