//! Acquires: SAs that key managers are asked for, as workers see them.
//!
//! A packet whose template has no SA causes a *larval SA* and an `XFRM_MSG_ACQUIRE`
//! (`net/xfrm/xfrm_state.c: xfrm_state_find`): one per [`SaRequest`], not one per packet. Larval
//! SAs carry no packets and belong to the owner of the netlink server; workers read pending ones
//! from the snapshot, so that each acquire is sent once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::sa::request::SaRequest;
use crate::{Moment, PolicyIndex};

/// Whether a key manager listens for acquires (`net/xfrm/xfrm_state.c: km_is_alive`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyManagers {
    /// None: packets without an SA are dropped at once, without a larval SA (`ESRCH` in the
    /// kernel).
    #[default]
    Absent,
    /// At least one.
    Listening,
}

/// Acquires as workers see them. A change invalidates no bundle.
///
/// ```
/// use uxfrm_crypto::Backend;
/// use uxfrm_engine::{
///     AcquireView, Database, Direction, Event, Family, KeyManagers, Moment, Output, Policy,
///     Prefix, Settings, Template, Worker,
/// };
/// use uxfrm_packet::{Batch, PacketBuf, Pool};
///
/// let mut database = Database::new(Backend::Auto, 1);
/// let any = Prefix::any(Family::V4);
/// let template = Template::esp_tunnel([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
/// let policy = Policy::protect(Direction::Out, any, any, template);
/// database.apply(Moment(0), |change| change.add_policy(policy))?;
/// let key_managers = KeyManagers::Listening;
/// database.set_acquires(AcquireView { key_managers, ..AcquireView::default() });
///
/// let mut worker = Worker::new(Settings::default(), &database.published())?;
/// let (mut pool, mut out) = (Pool::new(), Output::default());
/// let mut plain = *b"\x45\0\0\x14\0\0\0\0\x40\xfd\0\0\x0a\x01\0\x01\x0a\x02\0\x01";
/// uxfrm_packet::ipv4::fill_checksum(&mut plain)?;
/// let mut batch: Batch = [PacketBuf::from_slice(&plain)].into_iter().collect();
/// worker.outbound(&mut batch, Moment(0), &mut pool, &mut out);
/// let [Event::Acquire { wanted, .. }] = &out.events[..] else { panic!("{:?}", out.events) };
/// assert_eq!(wanted.destination, template.destination);
/// assert_eq!(worker.waiting(), 1, "the packet waits for the state");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcquireView {
    /// Whether key managers listen.
    pub key_managers: KeyManagers,
    /// Lifetime of a larval SA (`net.core.xfrm_acq_expires`), which is how long packets wait.
    pub lifetime: Duration,
    /// Pending acquires, each with the expiry of its larval SA.
    pub pending: Arc<HashMap<SaRequest, Moment>>,
    /// SAs whose larval SA a device refused, each with the time to ask again; until then packets
    /// that need it are dropped. Linux asks with each packet.
    pub refused: Arc<HashMap<SaRequest, Moment>>,
}

impl Default for AcquireView {
    /// No key manager; 30 seconds.
    fn default() -> Self {
        let lifetime = Duration::from_secs(30);
        Self {
            key_managers: KeyManagers::default(),
            lifetime,
            pending: Arc::default(),
            refused: Arc::default(),
        }
    }
}

impl AcquireView {
    /// Whether a device refused this SA and is not to be asked yet.
    pub(crate) fn is_refused(&self, wanted: &SaRequest, now: Moment) -> bool {
        self.refused.get(wanted).is_some_and(|again| now < *again)
    }
}

/// A template without an SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MissingSa {
    /// The template's policy.
    pub(crate) policy: PolicyIndex,
    /// Index among the policy's templates.
    pub(crate) template: u8,
    pub(crate) wanted: SaRequest,
}
