//! `mark VALUE [mask MASK]`.

use uxfrm_engine::Mark;

use super::{
    cursor::{Cursor, Fault},
    keyword::MASK,
};

/// Behind `mark`: without a mask all bits count (`ip/ipxfrm.c: xfrm_parse_mark`). With mask 0 it is no mark.
pub(super) fn parse(cursor: &mut Cursor<'_, '_>) -> Result<Mark, Fault> {
    let value = cursor.number()?;
    Ok(match mask(cursor)?.unwrap_or(u32::MAX) {
        0 => Mark::default(),
        mask => Mark { value, mask },
    })
}

/// Behind `output-mark`: value 0 is no mark, whatever the mask (`net/xfrm/xfrm_user.c: xfrm_smark_init`).
pub(super) fn parse_output(cursor: &mut Cursor<'_, '_>) -> Result<Mark, Fault> {
    let value = cursor.number()?;
    // Mask 0 is not sent by `ip`, and the kernel takes all bits then.
    let mask = mask(cursor)?.filter(|mask| *mask != 0).unwrap_or(u32::MAX);
    Ok(if value == 0 { Mark::default() } else { Mark { value, mask } })
}

fn mask(cursor: &mut Cursor<'_, '_>) -> Result<Option<u32>, Fault> {
    cursor.keyword(&MASK).map(|()| cursor.number()).transpose()
}
