//! `mark VALUE [mask MASK]`, `output-mark`, `set-mark`.

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

/// The mark that a state sets, as a line has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputMarkArgs {
    /// `output-mark`, with mask 0 if none is named. iproute2 sends neither a value nor a mask of 0.
    Usual(Mark),
    /// `set-mark`, with all bits if no mask is named: it is sent as it is.
    Exact(Mark),
}

impl Default for OutputMarkArgs {
    fn default() -> Self {
        Self::Usual(Mark::default())
    }
}

impl OutputMarkArgs {
    /// What the kernel makes of it (`net/xfrm/xfrm_user.c: xfrm_smark_init`): without a value there
    /// is no mark, without a mask all bits count.
    #[must_use]
    pub const fn mark(self) -> Mark {
        match self {
            Self::Usual(Mark { value: 0, .. }) => Mark { value: 0, mask: 0 },
            Self::Usual(Mark { value, mask: 0 }) => Mark { value, mask: u32::MAX },
            Self::Usual(mark) | Self::Exact(mark) => mark,
        }
    }
}

/// Behind `output-mark`: without a mask it is 0, which iproute2 does not send.
pub(super) fn parse_output(cursor: &mut Cursor<'_, '_>) -> Result<OutputMarkArgs, SyntaxError> {
    let value = cursor.number()?;
    Ok(OutputMarkArgs::Usual(Mark { value, mask: mask(cursor)?.unwrap_or(0) }))
}

/// Behind `set-mark`.
pub(super) fn parse_set(cursor: &mut Cursor<'_, '_>) -> Result<OutputMarkArgs, SyntaxError> {
    let value = cursor.number()?;
    Ok(OutputMarkArgs::Exact(Mark { value, mask: mask(cursor)?.unwrap_or(u32::MAX) }))
}

fn mask(cursor: &mut Cursor<'_, '_>) -> Result<Option<u32>, SyntaxError> {
    cursor.keyword(&MASK).map(|()| cursor.number()).transpose()
}
