//! The interface name and the mark bit that are the gateway's own.

pub(crate) use uxfrm_control::DIVERTED;

/// Why its name is not a device's.
pub(crate) fn message_of_tun_name(tun: &str) -> String {
    format!("{tun} is the TUN that uxfrm makes ([host] tun); name another device")
}
