//! The window against a set that forgets nothing.
