//! The plaintext that gives itself away: all traffic of `uxfrm demo` is made of it, so a search for it in what was
//! captured on the wire tells whether anything went in the clear.

/// What ping and TCP carry, over and over.
const MARKER: &[u8; 16] = b"uxfrm-plaintext ";

/// `len` bytes of marker.
#[must_use]
pub fn fill(len: usize) -> Vec<u8> {
    MARKER.iter().copied().cycle().take(len).collect()
}

/// Whether the marker can be read in `bytes`, wherever it begins.
#[must_use]
pub fn is_visible(bytes: &[u8]) -> bool {
    bytes.windows(MARKER.len()).any(|window| window == MARKER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_found_where_it_is_whole() {
        let filled = fill(56);
        assert!(is_visible(&filled[5..]));
        assert!(!is_visible(&filled[5..20]));
        let hidden: Vec<u8> = filled.iter().map(|byte| byte ^ 1).collect();
        assert!(!is_visible(&hidden));
        assert!(!is_visible(&[]));
    }
}
