//! `mark VALUE [mask MASK]`.

use uxfrm_engine::Mark;

use super::{
    cursor::{Cursor, SyntaxError},
    keyword::MASK,
};

/// Behind `mark`: no mask means all bits (`ip/ipxfrm.c: xfrm_parse_mark`); mask 0 means no mark.
pub(super) fn parse(cursor: &mut Cursor<'_, '_>) -> Result<Mark, SyntaxError> {
    let value = cursor.number()?;
    Ok(match mask(cursor)?.unwrap_or(u32::MAX) {
        0 => Mark::default(),
        mask => Mark { value, mask },
    })
}

/// Behind `output-mark`: without a mask it is 0, which iproute2 does not send.
pub(super) fn parse_output(cursor: &mut Cursor<'_, '_>) -> Result<Mark, SyntaxError> {
    let value = cursor.number()?;
    Ok(Mark { value, mask: mask(cursor)?.unwrap_or(0) })
}

fn mask(cursor: &mut Cursor<'_, '_>) -> Result<Option<u32>, SyntaxError> {
    cursor.keyword(&MASK).map(|()| cursor.number()).transpose()
}
