//! `save …` and `sync FILE …`: uxfrm's own, iproute2 has neither.

use super::{
    command::{Line, SaveArgs, SyncArgs, Topic},
    cursor::{Cursor, SyntaxError},
    keyword::{SAVE, SYNC, SaveWord, SyncWord},
};

/// Behind `save`: `[nokeys] [index]`
pub(super) fn parse_save(cursor: &mut Cursor<'_, '_>) -> Result<Line, SyntaxError> {
    let mut save = SaveArgs::default();
    while !cursor.is_at_end() {
        match cursor.exactly(&SAVE)? {
            SaveWord::NoKeys => save.hides_keys = true,
            SaveWord::Index => save.keeps_indexes = true,
            SaveWord::Help => return Ok(Line::Help(Topic::Save)),
        }
    }
    Ok(Line::Save(save))
}

/// Behind `sync`: `FILE [--dry-run] [--keep-others]`, in any order; `./help` is a file of that
/// name.
pub(super) fn parse_sync(cursor: &mut Cursor<'_, '_>) -> Result<Line, SyntaxError> {
    let (mut file, mut is_dry_run, mut keeps_others) = (None, false, false);
    while let Some(word) = cursor.peek() {
        match cursor.keyword(&SYNC) {
            Some(SyncWord::DryRun) => is_dry_run = true,
            Some(SyncWord::KeepOthers) => keeps_others = true,
            Some(SyncWord::Help) => return Ok(Line::Help(Topic::Sync)),
            None if word.text().starts_with("--") => return Err(cursor.unknown(&SYNC.words())),
            None if file.is_some() => return Err(cursor.duplicate("FILE", word)),
            None => file = Some(cursor.operand("sync", "FILE")?.text().into()),
        }
    }
    let file = file.ok_or_else(|| cursor.required("FILE"))?;
    Ok(Line::Sync(SyncArgs { file, is_dry_run, keeps_others }))
}
