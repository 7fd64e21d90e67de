//! The databases as a user of `ip xfrm` sees them.
