//! `limit LIMIT VALUE`.

use uxfrm_engine::Limits;

use super::{
    cursor::{Cursor, Fault},
    keyword::{LIMITS, LimitWord},
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
