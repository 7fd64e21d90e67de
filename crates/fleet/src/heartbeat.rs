//! What the gateways of a pool tell each other, over UDP.
//!
//! A heartbeat is sealed for whom it goes to, and says which of his it heard last. So an old one
//! that somebody sends again proves no life: what it heard is too long ago.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{
    edges::StateDigest,
    names::{ChildId, GatewayName, PoolName},
    seal::{Keyring, OpenError, SealNonce, Serial},
};

/// One message of a gateway to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerHeartbeat {
    /// Who sends it.
    pub from: GatewayName,
    /// The sender's time when it sent it, in milliseconds; it only goes up while the sender runs.
    pub sent_at: u64,
    /// The `sent_at` of the last one that it heard from whom this goes to; 0 where none was.
    pub heard: u64,
    /// The epoch that the sender knows.
    pub epoch: Serial,
    /// Whether the sender accepts packets up to its far edges, or is about to.
    pub is_far: bool,
    /// Of which gateways the sender knows that they do, or does not know that they do not.
    pub far: BTreeSet<GatewayName>,
    /// Children that the sender is to have, and asks whom this goes to for.
    pub asks: Vec<ChildId>,
    /// Children that the sender gave up, for whom this goes to.
    pub releases: Vec<Release>,
}

/// A child that a gateway had, and accepts nothing for any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Release {
    /// Which.
    pub child: ChildId,
    /// Under which epoch it went away.
    pub epoch: Serial,
    /// The highest number that each of its states accepted.
    pub received: Vec<(StateDigest, u64)>,
}

impl PeerHeartbeat {
    /// The datagram for a gateway.
    #[must_use]
    pub fn seal(
        &self,
        keyring: &Keyring,
        pool: &PoolName,
        to: &GatewayName,
        nonce: SealNonce,
    ) -> Vec<u8> {
        // Names, numbers and lists: JSON has a form for all of them.
        let text = serde_json::to_vec(self).unwrap_or_default();
        keyring.seal(&path(pool, to), Serial(self.sent_at), &text, nonce)
    }

    /// What came for a gateway.
    ///
    /// # Errors
    /// Where no gateway of the fleet sent it to this one, as it is.
    pub fn open(
        keyring: &Keyring,
        pool: &PoolName,
        own: &GatewayName,
        datagram: &[u8],
    ) -> Result<Self, OpenError> {
        let opened = keyring.open(&path(pool, own), datagram)?;
        serde_json::from_slice(&opened.text).map_err(|_| OpenError::Form)
    }
}

/// What a heartbeat is bound to; no key of etcd begins so.
fn path(pool: &PoolName, to: &GatewayName) -> String {
    format!("heartbeat/{pool}/{to}")
}
