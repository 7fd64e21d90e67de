//! uxfrm runtime.
