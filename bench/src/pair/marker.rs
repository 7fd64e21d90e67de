//! Recognizable plaintext: all traffic of `uxfrm demo` consists of it, so searching a capture for
//! it shows whether anything was sent in the clear.

/// The repeated payload of ping and TCP.
const MARKER: &[u8; 16] = b"uxfrm-plaintext ";

/// `len` bytes of marker.
#[must_use]
pub fn fill(len: usize) -> Vec<u8> {
    MARKER.iter().copied().cycle().take(len).collect()
}

/// Whether `bytes` contain the marker at any offset.
#[must_use]
pub fn is_visible(bytes: &[u8]) -> bool {
    bytes.windows(MARKER.len()).any(|window| window == MARKER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marker_is_visible_only_if_whole() {
        let filled = fill(56);
        assert!(is_visible(&filled[5..]));
        assert!(!is_visible(&filled[5..20]));
        let hidden: Vec<u8> = filled.iter().map(|byte| byte ^ 1).collect();
        assert!(!is_visible(&hidden));
        assert!(!is_visible(&[]));
    }
}
