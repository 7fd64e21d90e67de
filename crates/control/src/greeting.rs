//! Greetings: what client and gateway exchange beside netlink messages, 28 bytes in host byte
//! order.
//!
//! | bytes | field | content |
//! | --- | --- | --- |
//! | 0–7 | magic | `uxfrm/1\n`: no netlink message is so long as to begin so |
//! | 8–11 | kind | see [`GreetingKind`] |
//! | 12–15 | port | the client's netlink port id (`nl_pid`), never zero |
//! | 16–19 | groups | the client's multicast groups, a bit each as in `nl_groups` |
//! | 20–23 | options | netlink socket options, bit N for option N; bit 31 allows chained requests |
//! | 24–27 | value | see below |
//!
//! The value is: from a client its [`Dialect`]; in [`GreetingKind::Welcome`] the gateway's socket
//! mark; in
//! [`GreetingKind::Refused`] the errno; where a page is shared, from both ends its
//! [layout](crate::mailbox::LAYOUT); otherwise zero. `NETLINK_EXT_ACK` is option 11, and bit 31 is
//! `uxfrm_netlink`'s `SocketOptions::CHAINS`.
//!
//! A greeting is a datagram of its own. The default for a client without one: its process id as
//! port, no groups and no options.

/// Bytes of a greeting.
pub const LENGTH: usize = 28;

/// First bytes of every greeting.
pub const MAGIC: [u8; 8] = *b"uxfrm/1\n";

/// The gateway's abstract socket name, without the leading zero byte. Any program can take the name
/// while no gateway has it, so clients verify the listener: [`is_gateway_user`]. A gateway that
/// finds it taken uses a [file](crate::fallback_socket).
pub const NAME: &[u8] = b"uxfrm/xfrm";

/// Prefix of the abstract socket names of clients that wait for a gateway; 16 digits of the
/// client's choice follow. A starting gateway sends each an empty datagram, upon which they connect
/// and listen.
pub const QUIET: &[u8] = b"uxfrm/quiet/";

/// Whether the listener at an abstract name may receive keys and be trusted: root, or the client's
/// own user. Others may be, too: [`place`](crate::socket_trust).
#[must_use]
pub const fn is_gateway_user(listener: u32, own: u32) -> bool {
    listener == 0 || listener == own
}

/// Kinds of greetings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GreetingKind {
    /// From the client, without an answer: its port, groups and options.
    Hello = 1,
    /// The same, answered by [`GreetingKind::Welcome`] or [`GreetingKind::Refused`].
    Ask = 2,
    /// The gateway's answer: the client's groups are subscribed.
    Welcome = 3,
    /// The gateway's refusal.
    Refused = 4,
    /// From the gateway to a client that did not read in time: messages were lost (`ENOBUFS`).
    Overrun = 5,
    /// From a client with frequent requests: share a page. Answered by [`GreetingKind::Welcome`]
    /// with the descriptor of a [`Page`](crate::mailbox::Page), or by [`GreetingKind::Refused`].
    Share = 6,
}

/// Protocol of a client, in the value of its greeting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// `NETLINK_XFRM`
    #[default]
    Xfrm = 0,
    /// `NETLINK_GENERIC`: the family `fou`.
    Generic = 1,
    /// `NETLINK_ROUTE`: tunnels as links.
    Route = 2,
    /// No netlink: `uxfrm dev`, in JSON.
    Devices = 3,
    /// No netlink: a write to `/proc/sys/net/core/xfrm_acq_expires`, seconds in decimal. There is
    /// no answer.
    AcquireExpires = 4,
    /// No netlink: `uxfrm reload`, in JSON.
    Reload = 5,
    /// No netlink: `uxfrm upgrade`, in JSON.
    Upgrade = 6,
}

impl Dialect {
    /// The dialect of a value.
    #[must_use]
    pub const fn of(value: u32) -> Option<Self> {
        match value {
            0 => Some(Self::Xfrm),
            1 => Some(Self::Generic),
            2 => Some(Self::Route),
            3 => Some(Self::Devices),
            4 => Some(Self::AcquireExpires),
            5 => Some(Self::Reload),
            6 => Some(Self::Upgrade),
            _ => None,
        }
    }
}

/// A greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// What it means.
    pub kind: GreetingKind,
    /// The client's port id.
    pub port: u32,
    /// The client's groups.
    pub groups: u32,
    /// The client's netlink options.
    pub options: u32,
    /// Dialect, mark or errno.
    pub value: u32,
}

impl Greeting {
    /// The bytes on the socket.
    #[must_use]
    pub fn to_bytes(self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[..8].copy_from_slice(&MAGIC);
        let words = [self.kind as u32, self.port, self.groups, self.options, self.value];
        for (field, word) in bytes[8..].chunks_exact_mut(4).zip(words) {
            field.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// Parses a datagram; `None` for netlink messages and truncated greetings.
    #[must_use]
    pub fn parse(datagram: &[u8]) -> Option<Self> {
        let bytes: &[u8; LENGTH] = datagram.try_into().ok()?;
        let word = |at: usize| {
            u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        if bytes[..8] != MAGIC {
            return None;
        }
        let kind = match word(8) {
            1 => GreetingKind::Hello,
            2 => GreetingKind::Ask,
            3 => GreetingKind::Welcome,
            4 => GreetingKind::Refused,
            5 => GreetingKind::Overrun,
            6 => GreetingKind::Share,
            _ => return None,
        };
        Some(Self { kind, port: word(12), groups: word(16), options: word(20), value: word(24) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greeting_round_trips() {
        let all = [
            GreetingKind::Hello,
            GreetingKind::Ask,
            GreetingKind::Welcome,
            GreetingKind::Refused,
            GreetingKind::Overrun,
            GreetingKind::Share,
        ];
        for kind in all {
            let greeting = Greeting { kind, port: 1, groups: 2, options: 3, value: 4 };
            assert_eq!(Greeting::parse(&greeting.to_bytes()), Some(greeting));
        }
    }

    #[test]
    fn netlink_message_is_no_greeting() {
        let greeting =
            Greeting { kind: GreetingKind::Hello, port: 1, groups: 0, options: 0, value: 0 };
        let bytes = greeting.to_bytes();
        let length = u32::from_ne_bytes(bytes[..4].try_into().unwrap());
        assert!(length > 1 << 30, "a netlink length of {length}");
        assert_eq!(Greeting::parse(&bytes[..LENGTH - 1]), None);
        let mut unknown = bytes;
        unknown[8..12].copy_from_slice(&9_u32.to_ne_bytes());
        assert_eq!(Greeting::parse(&unknown), None);
        assert_eq!(Greeting::parse(&[28; LENGTH]), None);
    }
}
