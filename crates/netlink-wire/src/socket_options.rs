//! Options of a netlink socket that its other end has to know.

use bitflags::bitflags;

bitflags! {
    /// Socket options that change answers: option n is bit n, as in greetings.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SocketOptions: u32 {
        /// `NETLINK_CAP_ACK`: a refusal repeats only the header of its request.
        const CAP_ACK = 1 << 10;
        /// `NETLINK_EXT_ACK`: error text and offset.
        const EXT_ACK = 1 << 11;
        /// uxfrm's own: requests may be chained ([`CHAINED`](crate::NetlinkFlags::CHAINED)). For
        /// other clients that flag is ignored.
        const CHAINS = 1 << 31;
    }
}
