//! What key managers are asked for, and what workers know of it.
//!
//! A packet whose template has no state makes a *larval state* and an `XFRM_MSG_ACQUIRE` (`net/xfrm/xfrm_state.c: xfrm_state_find`):
//! one per [`Wanted`], not one per packet. Larval states carry no packets and belong to whoever speaks with the key managers; workers
//! read from the snapshot which there are, so that all of them ask but once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::sa::request::Wanted;
use crate::{Moment, PolicyIndex};

/// Whether anybody would hear an acquire (`net/xfrm/xfrm_state.c: km_is_alive`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyManagers {
    /// Nobody: packets without a state are dropped at once, and no larval state is made (`ESRCH` in the kernel).
    #[default]
    Absent,
    /// Somebody.
    Listening,
}

/// What workers know of key managers. Changes of it leave all that was worked out for flows as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquires {
    /// Whether there are any.
    pub key_managers: KeyManagers,
    /// How long a larval state lives (`net.core.xfrm_acq_expires`), and a packet waits.
    pub lifetime: Duration,
    /// What they were asked for and have not answered, each with the end of its larval state.
    pub pending: Arc<HashMap<Wanted, Moment>>,
    /// What a device refused a larval state of, each with when it is asked again: until then packets that want it are dropped. Linux asks with each packet.
    pub refused: Arc<HashMap<Wanted, Moment>>,
}

impl Default for Acquires {
    /// Nobody listens; 30 seconds.
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

impl Acquires {
    /// Whether a device does not want to be asked for it yet.
    pub(crate) fn is_refused(&self, wanted: &Wanted, now: Moment) -> bool {
        self.refused.get(wanted).is_some_and(|again| now < *again)
    }
}

/// A template without a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    /// Whose template it is.
    pub(crate) policy: PolicyIndex,
    /// Its place among the policy's templates.
    pub(crate) template: u8,
    pub(crate) wanted: Wanted,
}
