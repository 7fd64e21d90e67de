//! How near a state is to a limit (RFC 4301 §4.4.2.1).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::quantity;

/// What a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum LimitKind {
    /// Seconds since the state was added.
    Added,
    /// Seconds since its first packet.
    Used,
    /// Bytes.
    Bytes,
    /// Packets.
    Packets,
}

/// The limit of a state of which most is used.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LimitStatus {
    /// What it counts.
    pub of: LimitKind,
    /// How much of it is used, from 0 to 1.
    pub used_ratio: f64,
    /// What is left: seconds, bytes or packets.
    pub left: u64,
}

/// A limit and what counts against it, in the same unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitUse {
    /// What the limit counts.
    pub of: LimitKind,
    /// The count so far.
    pub count: u64,
    /// The limit; `u64::MAX` is none, and 0 is none of time.
    pub limit: u64,
}

impl LimitUse {
    fn status(self) -> Option<LimitStatus> {
        let Self { of, count, limit } = self;
        let is_none =
            limit == u64::MAX || limit == 0 && matches!(of, LimitKind::Added | LimitKind::Used);
        let used_ratio = if limit == 0 { 1.0 } else { count as f64 / limit as f64 };
        (!is_none).then(|| LimitStatus {
            of,
            used_ratio: used_ratio.min(1.0),
            left: limit.saturating_sub(count),
        })
    }
}

impl LimitStatus {
    /// The limit that is likely to come first: the one of which most is used. `None` without any.
    ///
    /// ```
    /// use uxfrm_status::limit::{LimitKind, LimitStatus, LimitUse};
    ///
    /// let time = LimitUse { of: LimitKind::Added, count: 60, limit: 3600 };
    /// let bytes = LimitUse { of: LimitKind::Bytes, count: 900, limit: 1000 };
    /// let first = LimitStatus::nearest([time, bytes]).unwrap();
    /// assert_eq!((first.of, first.left), (LimitKind::Bytes, 100));
    /// assert_eq!(first.to_string(), "after 100 B more");
    /// ```
    #[must_use]
    pub fn nearest(limits: impl IntoIterator<Item = LimitUse>) -> Option<Self> {
        let all = limits.into_iter().filter_map(LimitUse::status);
        all.reduce(|one, other| if other.used_ratio > one.used_ratio { other } else { one })
    }
}

impl fmt::Display for LimitStatus {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left = self.left;
        match self.of {
            _ if left == 0 => out.write_str("now"),
            LimitKind::Added | LimitKind::Used => write!(out, "in {}", quantity::span(left)),
            LimitKind::Bytes => write!(out, "after {} more", quantity::bytes(left)),
            LimitKind::Packets => {
                write!(out, "after {} more", quantity::things(left, "packet", "packets"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LimitKind::{Added, Bytes, Packets, Used};

    /// Kind, count and limit; then the nearest one's words.
    #[test]
    fn nearest_limit_by_table() {
        type Row = (&'static [(LimitKind, u64, u64)], Option<&'static str>);
        let table: [Row; 8] = [
            (&[], None),
            (&[(Added, 5, u64::MAX), (Used, 5, 0), (Bytes, 7, u64::MAX)], None),
            (&[(Added, 60, 3600)], Some("in 59 min")),
            (&[(Added, 60, 3600), (Used, 3000, 3600)], Some("in 10 min")),
            (&[(Added, 3599, 3600), (Packets, 1, 1000)], Some("in 1 s")),
            (&[(Added, 1, 3600), (Packets, 999, 1000)], Some("after 1 packet more")),
            (&[(Bytes, 1000, 1000)], Some("now")),
            (&[(Bytes, 5000, 1000), (Packets, 0, 0)], Some("now")),
        ];
        for (limits, words) in table {
            let uses = limits.iter().map(|&(of, count, limit)| LimitUse { of, count, limit });
            let nearest = LimitStatus::nearest(uses);
            assert_eq!(nearest.map(|nearest| nearest.to_string()).as_deref(), words, "{limits:?}");
            assert!(nearest.is_none_or(|nearest| (0.0..=1.0).contains(&nearest.used_ratio)));
        }
    }
}
