//! The message types of `NETLINK_XFRM` (`XFRM_MSG_*` in `include/uapi/linux/xfrm.h`).

macro_rules! message_types {
    ($($(#[$doc:meta])* $name:ident = $value:literal,)*) => {
        /// What a message of `NETLINK_XFRM` is (`XFRM_MSG_*`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum MessageType { $($(#[$doc])* $name = $value,)* }

        impl MessageType {
            /// By its number.
            #[must_use]
            pub const fn from_number(number: u16) -> Option<Self> {
                match number { $($value => Some(Self::$name),)* _ => None }
            }
        }
    };
}

message_types! {
    /// Add a state; the answer to GETSA.
    NewSa = 0x10,
    /// Delete a state.
    DelSa = 0x11,
    /// One state, or all.
    GetSa = 0x12,
    /// Add a policy; the answer to GETPOLICY.
    NewPolicy = 0x13,
    /// Delete a policy.
    DelPolicy = 0x14,
    /// One policy, or all.
    GetPolicy = 0x15,
    /// Reserve an SPI with a larval state.
    AllocSpi = 0x16,
    /// A packet needs a state.
    Acquire = 0x17,
    /// A state reached a limit.
    Expire = 0x18,
    /// Add a policy or put it in another's place.
    UpdPolicy = 0x19,
    /// Change a state.
    UpdSa = 0x1a,
    /// A policy reached a limit.
    PolExpire = 0x1b,
    /// Delete all states of a protocol.
    FlushSa = 0x1c,
    /// Delete all policies of a kind.
    FlushPolicy = 0x1d,
    /// Set the counters of a state; tell of them.
    NewAe = 0x1e,
    /// The counters of a state.
    GetAe = 0x1f,
    /// Only ever sent: Mobile IPv6.
    Report = 0x20,
    /// New addresses for states and policies.
    Migrate = 0x21,
    /// The answer to GETSADINFO.
    NewSadInfo = 0x22,
    /// How many states.
    GetSadInfo = 0x23,
    /// Set hash thresholds; the answer to GETSPDINFO.
    NewSpdInfo = 0x24,
    /// How many policies.
    GetSpdInfo = 0x25,
    /// A peer's address changed.
    Mapping = 0x26,
    /// What happens to packets without policy.
    SetDefault = 0x27,
    /// The same, asked for.
    GetDefault = 0x28,
    /// New addresses for one state (Linux 7.2).
    MigrateState = 0x29,
}
