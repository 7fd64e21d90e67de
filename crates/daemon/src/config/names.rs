//! The interface name and the mark bit that are the gateway's own.

/// The bit of a packet's mark by which it is led into the TUN. Conditions on marks never look at
/// it.
pub const DIVERTED: u32 = 0x0800_0000;

/// Why its name is not a device's.
pub(crate) fn message_of_tun_name(tun: &str) -> String {
    format!("{tun} is the TUN that uxfrm makes ([host] tun); name another device")
}
