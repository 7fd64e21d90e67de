//! Several byte strings in one fuzz input, each after a byte of flags and its length in two bytes,
//! big-endian.
//!
//! Any bytes are a valid script: a piece that is too long ends at the end of the input.

/// A piece with its flags.
pub(super) struct ScriptPiece<'a> {
    pub(super) flags: u8,
    pub(super) bytes: &'a [u8],
}

/// The pieces of a script.
pub(super) struct ScriptPieces<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for ScriptPieces<'a> {
    type Item = ScriptPiece<'a>;

    fn next(&mut self) -> Option<ScriptPiece<'a>> {
        let (&[flags, high, low], rest) = self.0.split_first_chunk()?;
        let length = usize::from(u16::from_be_bytes([high, low]));
        let (bytes, rest) = rest.split_at(length.min(rest.len()));
        self.0 = rest;
        Some(ScriptPiece { flags, bytes })
    }
}

/// Adds a piece to a script.
pub(super) fn write(script: &mut Vec<u8>, flags: u8, bytes: &[u8]) {
    script.push(flags);
    script.extend(u16::try_from(bytes.len()).expect("a packet").to_be_bytes());
    script.extend(bytes);
}
