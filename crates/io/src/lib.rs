//! uxfrm io.
