//! Security associations: configuration ([`config`]) and the state that changes with every packet.

pub mod aevent;
mod attachment;
pub mod config;
pub mod counters;
pub(crate) mod deferred_counters;
pub mod heir;
pub mod iv;
pub mod keepalive;
mod lazy_keys;
mod live;
mod numbers;
pub mod overhead;
mod prefetch;
pub mod progress;
pub mod replay;
pub mod replay_store;
pub(crate) mod request;
pub mod sequence;
pub mod shared_config;
pub mod subject;
pub mod udp_encap;
pub mod usage;
pub(crate) mod validate;

pub(crate) mod address;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use once_cell::race::OnceBox;
use uxfrm_crypto::Transform;

use crate::{
    Attachment, Direction, DropReason, Family, Moment, ReplayConfig, Reqid, SaConfig, SaId,
    SaTransform,
};
use address::PackedAddress;
use config::SaFlags;
use lazy_keys::LazyKeys;
use live::Active;
use sequence::Sequence;
use shared_config::{SaNames, SharedSaConfig};
#[cfg(test)]
pub(crate) use test_sa::sample;
use usage::Lifecycle;

/// A security association (a state in the kernel's words). Its configuration never changes: an
/// update (`XFRM_MSG_UPDSA`) makes a new `Sa` that shares keys, sequence numbers and counters with
/// the old one, so that workers which still hold the old one neither repeat a number nor lose a
/// count.
///
/// Of a million SAs few carry packets at a time, so an unused one is small: counters, window and
/// expanded keys are allocated for its first packet.
#[derive(Debug)]
#[repr(C)]
pub struct Sa {
    // Fields that look-ups read come first: with the reference counts before them they fill one
    // cache line.
    name: SaNames,
    shared: Arc<SharedSaConfig>,
    active: OnceBox<Active>,
    reqid: Reqid,
    attachment: Option<Attachment>,
    // Next to `active`, which outbound packets need too.
    sequence: Sequence,
    /// Insertion sequence number within its database; set before others see the SA.
    insertion_seq: AtomicU64,
    keys: LazyKeys,
    added: AtomicU64,
    acquire_seq: u32,
    /// For the first 2^32 sequence numbers; 0 if none was drawn.
    iv_prefix: AtomicU32,
}

impl Sa {
    /// A new SA that starts at `config.replay`, added `now`. `words` are those of `config`.
    #[must_use]
    pub fn new(config: &SaConfig, words: Arc<SharedSaConfig>, now: Moment) -> Arc<Self> {
        let ReplayConfig { sent, received, .. } = config.replay;
        let mut new = Arc::new(Self {
            name: SaNames::new(config.id, config.source),
            insertion_seq: AtomicU64::new(0),
            active: OnceBox::new(),
            sequence: Sequence::new(sent, words.last_number()),
            shared: words,
            keys: LazyKeys::none(),
            added: now.0.into(),
            reqid: config.reqid,
            acquire_seq: config.acquire_seq,
            iv_prefix: AtomicU32::new(0),
            attachment: None,
        });
        if let Some(sa) = Arc::get_mut(&mut new) {
            let SaTransform { encryption_key, authentication_key, .. } = &config.transform;
            sa.keys.copy(encryption_key.expose(), authentication_key.expose());
            if (sent, received) != (0, 0) {
                sa.begin(sent, received);
            }
        }
        new
    }

    /// The shared configuration.
    #[must_use]
    #[inline]
    pub fn config(&self) -> &SharedSaConfig {
        &self.shared
    }

    /// The shared configuration, for another generation.
    pub(crate) fn shared_words(&self) -> Arc<SharedSaConfig> {
        Arc::clone(&self.shared)
    }

    /// The full configuration, keys included, as for adding it again. Numbers begin at 0 there.
    #[must_use]
    pub fn to_config(&self) -> SaConfig {
        let words = &*self.shared;
        SaConfig {
            id: self.id(),
            source: self.source(),
            mode: words.mode,
            reqid: self.reqid,
            acquire_seq: self.acquire_seq,
            transform: self.secrets(),
            selector: words.selector,
            mark: words.mark,
            output_mark: words.output_mark,
            if_id: words.if_id,
            replay: ReplayConfig { window: words.window, sent: 0, received: 0 },
            limits: words.limits,
            flags: words.flags,
            extra_flags: words.extra_flags,
            encap: words.encap,
            nat_keepalive: words.nat_keepalive,
            mapping_age: words.mapping_age,
            tfc_padding: words.tfc_padding,
            direction: words.direction,
            pcpu: words.pcpu,
            care_of: words.care_of,
            offload: words.offload.clone(),
        }
    }

    /// Destination, SPI and protocol.
    #[must_use]
    #[inline]
    pub fn id(&self) -> SaId {
        self.name.id()
    }

    /// Whether its destination is this one.
    #[inline]
    pub(crate) fn leads_to(&self, destination: PackedAddress) -> bool {
        self.name.leads_to(destination)
    }

    /// Source of the outer header; unspecified takes the packet's own.
    #[must_use]
    #[inline]
    pub fn source(&self) -> IpAddr {
        self.name.source()
    }

    /// The family of the outer header.
    #[must_use]
    pub fn family(&self) -> Family {
        Family::of(self.id().destination)
    }

    /// Request id that ties it to templates.
    #[must_use]
    #[inline]
    pub fn reqid(&self) -> Reqid {
        self.reqid
    }

    /// The acquire that it answers; 0 for none.
    #[must_use]
    pub fn acquire_seq(&self) -> u32 {
        self.acquire_seq
    }

    /// Its algorithm.
    #[must_use]
    #[inline]
    pub fn transform(&self) -> &Transform {
        &self.shared.transform
    }

    /// Algorithm and keys as given: for dumps with keys, and for callers that compare keys.
    #[must_use]
    pub fn secrets(&self) -> SaTransform {
        let (encryption_key, authentication_key) = self.keys.material();
        SaTransform { transform: self.shared.transform, encryption_key, authentication_key }
    }

    /// When it was added.
    #[must_use]
    pub fn added(&self) -> Moment {
        Moment(self.first().added.load(Ordering::Relaxed))
    }

    /// Whether sequence numbers have 64 bits.
    #[must_use]
    #[inline]
    pub fn extended(&self) -> bool {
        self.shared.flags.contains(SaFlags::ESN)
    }

    /// Whether an inbound packet may be given to it: the checks of `net/xfrm/xfrm_input.c` before
    /// the replay check.
    ///
    /// # Errors
    /// [`DropReason::InStateDirection`], [`DropReason::InStateExpired`], [`DropReason::InNoState`]
    /// while it is larval.
    #[inline]
    pub fn receives(&self) -> Result<(), DropReason> {
        if self.shared.direction == Some(Direction::Out) {
            return Err(DropReason::InStateDirection);
        }
        match self.lifecycle() {
            Lifecycle::Valid | Lifecycle::Dying => Ok(()),
            Lifecycle::Expired => Err(DropReason::InStateExpired),
            Lifecycle::Acquire | Lifecycle::Error => Err(DropReason::InNoState),
        }
    }

    /// Whether both are generations of one SA.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        std::ptr::eq(self.first(), other.first())
    }

    /// Insertion sequence number: unchanged by updates, unique within its database.
    #[must_use]
    #[inline]
    pub fn insertion_seq(&self) -> u64 {
        self.insertion_seq.load(Ordering::Relaxed)
    }

    /// Called by the database that inserts it.
    pub(crate) fn set_insertion_seq(&self, insertion_seq: u64) {
        self.insertion_seq.store(insertion_seq, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod test_sa;
