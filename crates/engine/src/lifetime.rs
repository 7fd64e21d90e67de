//! Limits of states and policies (RFC 4301 §4.4.2.1, `struct xfrm_lifetime_cfg`).

/// One pair of limits; the default is "none". A limit is passed when the count *reaches* it, as in
/// `net/xfrm/xfrm_state.c: xfrm_state_check_expire`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// At this the SA is to be rekeyed: an event, once.
    pub soft: u64,
    /// At this it stops working: an event, and every later packet is dropped.
    pub hard: u64,
}

impl Budget {
    /// No limit (`XFRM_INF`).
    pub const NONE: u64 = u64::MAX;
}

impl Default for Budget {
    fn default() -> Self {
        Self { soft: Self::NONE, hard: Self::NONE }
    }
}

/// All limits of a state or policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of IP packets before encapsulation, after decapsulation, as the kernel counts.
    pub bytes: Budget,
    /// Packets.
    pub packets: Budget,
    /// Seconds since it was added; [`Budget::NONE`] or 0 is no limit.
    pub added_seconds: Budget,
    /// Seconds since the first use; [`Budget::NONE`] or 0 is no limit.
    pub used_seconds: Budget,
}
