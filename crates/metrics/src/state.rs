//! The newest states of each tunnel: how near they are to their end.
//!
//! Their SPIs are no labels, so that a rekey makes no new series.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use uxfrm_status::{
    limit::{LimitKind, LimitStatus},
    tunnel::{StateStatus, TunnelStatus},
};

use crate::{
    catalogue::{self, Metric},
    sample,
    tunnel::Named,
};

/// The word of a status document, and of the label.
const DIRECTIONS: [&str; 2] = ["out", "in"];

/// Writes them.
pub(crate) fn write(encoder: &mut DescriptorEncoder<'_>, tunnels: &[Named<'_>]) -> fmt::Result {
    let ratios = tunnels.iter().filter_map(|(name, tunnel)| {
        let ratio = tunnel.sequence_ratio.filter(|ratio| ratio.is_finite())?;
        Some((name.as_slice(), ratio.into()))
    });
    sample::write(encoder, &catalogue::SEQUENCE_RATIO, ratios)?;
    let mut seconds = |metric: &Metric, limit: fn(&StateStatus) -> Option<LimitStatus>| {
        let left = newest(tunnels).filter_map(|(name, direction, state)| {
            let seconds = seconds_left(limit(state)?)?;
            Some(((name.as_slice(), [("direction", direction)]), seconds.into()))
        });
        sample::write(encoder, metric, left)
    };
    seconds(&catalogue::EXPIRES, |state| state.expiry)?;
    seconds(&catalogue::REKEY, |state| state.rekey)?;
    let used = newest(tunnels).flat_map(|(name, direction, state)| {
        let limits = [("soft", state.rekey), ("hard", state.expiry)];
        limits.into_iter().filter_map(move |(limit, status)| {
            let ratio = status?.used_ratio;
            let labels = (name.as_slice(), [("direction", direction), ("limit", limit)]);
            ratio.is_finite().then_some((labels, ratio.into()))
        })
    });
    sample::write(encoder, &catalogue::LIMIT_RATIO, used)
}

/// The newest state of each tunnel and direction.
fn newest<'a>(
    tunnels: &'a [Named<'a>],
) -> impl Iterator<Item = (&'a crate::label::Labels<'a>, &'static str, &'a StateStatus)> {
    tunnels.iter().flat_map(|(name, tunnel)| {
        let of = move |direction| Some((name, direction, newest_of(tunnel, direction)?));
        DIRECTIONS.into_iter().filter_map(of)
    })
}

/// The first is the newest.
fn newest_of<'a>(tunnel: &'a TunnelStatus, direction: &str) -> Option<&'a StateStatus> {
    tunnel.states.iter().find(|state| state.direction.as_deref() == Some(direction))
}

const fn seconds_left(limit: LimitStatus) -> Option<u64> {
    match limit.of {
        LimitKind::Added | LimitKind::Used => Some(limit.left),
        LimitKind::Bytes | LimitKind::Packets => None,
    }
}
