//! uxfrm testkit.
