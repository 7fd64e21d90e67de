//! Conditions for checks.

use serde::Deserialize;
use uxfrm_engine::{OffloadKind, SaConfig, SaFlags};

use super::word::{DirectionWord, KindWord};

/// All given fields must match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Condition {
    kind: Option<KindWord>,
    direction: Option<DirectionWord>,
    encapsulated: Option<bool>,
    /// ESN or a window above 32, which iproute2 sends as `XFRMA_REPLAY_ESN_VAL`.
    wide_replay: Option<bool>,
}

impl Condition {
    pub(super) fn holds(&self, sa: &SaConfig, kind: OffloadKind) -> bool {
        let direction = sa.offload.as_ref().map(|offload| offload.direction);
        let wide = sa.flags.contains(SaFlags::ESN) || sa.replay.window > 32;
        self.kind.is_none_or(|word| word.means(kind))
            && self.direction.is_none_or(|word| direction.is_some_and(|found| word.means(found)))
            && self.encapsulated.is_none_or(|wanted| wanted == sa.encap.is_some())
            && self.wide_replay.is_none_or(|wanted| wanted == wide)
    }
}
