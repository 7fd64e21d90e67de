//! `limit LIMIT VALUE`.

use uxfrm_engine::{Budget, Limits};

use super::{
    cursor::{Cursor, Fault},
    keyword::{LIMITS, LimitWord},
};

/// What `ip` sends where no limit is named: times have no end at 0.
pub(super) const NONE: Limits = Limits {
    bytes: Budget { soft: Budget::NONE, hard: Budget::NONE },
    packets: Budget { soft: Budget::NONE, hard: Budget::NONE },
    added_seconds: Budget { soft: 0, hard: 0 },
    used_seconds: Budget { soft: 0, hard: 0 },
};

/// Behind `limit`: one limit.
pub(super) fn parse(cursor: &mut Cursor<'_, '_>, limits: &mut Limits) -> Result<(), Fault> {
    let limit = match cursor.exactly(&LIMITS)? {
        LimitWord::TimeSoft => &mut limits.added_seconds.soft,
        LimitWord::TimeHard => &mut limits.added_seconds.hard,
        LimitWord::TimeUseSoft => &mut limits.used_seconds.soft,
        LimitWord::TimeUseHard => &mut limits.used_seconds.hard,
        LimitWord::ByteSoft => &mut limits.bytes.soft,
        LimitWord::ByteHard => &mut limits.bytes.hard,
        LimitWord::PacketSoft => &mut limits.packets.soft,
        LimitWord::PacketHard => &mut limits.packets.hard,
    };
    *limit = cursor.number()?;
    Ok(())
}
