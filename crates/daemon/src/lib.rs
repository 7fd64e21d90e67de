//! uxfrm daemon.
