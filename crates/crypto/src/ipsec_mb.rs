//! Placeholder.
pub(crate) fn available() -> bool {
    false
}
