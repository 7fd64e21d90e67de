//! `monitor …` (`ip/xfrm_monitor.c`).

use super::{
    command::{Line, Monitor, Topic},
    cursor::{Cursor, SyntaxError},
    keyword::{MONITOR, MonitorWord},
    lexer::Word,
};

/// Behind `monitor`.
pub(super) fn parse(cursor: &mut Cursor<'_, '_>) -> Result<Line, SyntaxError> {
    let mut monitor = Monitor::default();
    while let Some(word) = cursor.peek() {
        // `nokeys` and `all` are not abbreviated: `a` is `all-nsid`.
        let meaning = match cursor.keyword(&MONITOR) {
            Some(meaning) => meaning,
            None => abbreviated(word, cursor)?,
        };
        match meaning {
            MonitorWord::File => monitor.file = Some(cursor.value()?.text().to_owned()),
            MonitorWord::NoKeys => monitor.hides_keys = true,
            MonitorWord::All => {}
            MonitorWord::AllNamespaces => monitor.names_namespace = true,
            MonitorWord::Group(bit) => monitor.groups |= bit,
            MonitorWord::Help => return Ok(Line::Help(Topic::Monitor)),
        }
    }
    Ok(Line::Monitor(monitor))
}

fn abbreviated(word: &Word<'_>, cursor: &mut Cursor<'_, '_>) -> Result<MonitorWord, SyntaxError> {
    let meaning = cursor.abbreviated(&MONITOR)?;
    if matches!(meaning, MonitorWord::NoKeys) {
        return Err(cursor.misplaced(word, "unknown; \"nokeys\" has no abbreviation"));
    }
    let is_all = matches!(meaning, MonitorWord::All);
    Ok(if is_all { MonitorWord::AllNamespaces } else { meaning })
}
