//! `FLAG-LIST`.

use bitflags::Flags;

use super::{
    cursor::{Cursor, SyntaxError},
    error::one_of,
    keyword::Table,
    number::Number,
};

/// Behind `flag` or `extra-flag`: one name or more, or all bits as a hexadecimal number.
pub(super) fn parse<N, F>(cursor: &mut Cursor<'_, '_>, table: &Table<F>) -> Result<F, SyntaxError>
where
    N: Number,
    F: Flags<Bits = N> + Copy,
{
    let word = cursor.value()?;
    let text = word.text();
    if text.len() > 2 && text.starts_with("0x") {
        return N::read(text)
            .map(F::from_bits_retain)
            .ok_or_else(|| cursor.wrong(word, N::expected()));
    }
    let Some(first) = table.exact(text) else {
        return Err(cursor.wrong(word, one_of(&table.words())));
    };
    let mut flags = first.meaning;
    while let Some(flag) = cursor.keyword(table) {
        flags = flags.union(flag);
    }
    Ok(flags)
}
