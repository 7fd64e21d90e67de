//! `limit LIMIT VALUE`.

use uxfrm_engine::{LifetimeLimits, SoftHardLimit};

use super::{
    cursor::{Cursor, SyntaxError},
    keyword::{LIMITS, LimitWord},
};

/// What `ip` sends where no limit is named: times have no end at 0.
pub(super) const NONE: LifetimeLimits = LifetimeLimits {
    bytes: SoftHardLimit { soft: SoftHardLimit::NONE, hard: SoftHardLimit::NONE },
    packets: SoftHardLimit { soft: SoftHardLimit::NONE, hard: SoftHardLimit::NONE },
    added_seconds: SoftHardLimit { soft: 0, hard: 0 },
    used_seconds: SoftHardLimit { soft: 0, hard: 0 },
};

/// Behind `limit`: one limit.
pub(super) fn parse(
    cursor: &mut Cursor<'_, '_>,
    limits: &mut LifetimeLimits,
) -> Result<(), SyntaxError> {
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
