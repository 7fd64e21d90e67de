//! Limits that the configuration and `uxfrm dev` share.

/// Of virtual functions: a TUN each.
pub(crate) const MOST_FUNCTIONS: u16 = 64;
