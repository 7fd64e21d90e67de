//! Why the kernel refuses to send, by its `errno`.

use nix::{errno::Errno, libc};

/// Causes that call for different steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefusedSend {
    /// A chain of this host's packet filter drops them.
    OwnFilter,
    /// No route leads there, or one says that none does.
    NoRoute,
    /// A route or rule prohibits it.
    Prohibited,
    /// The interface is down, or gone.
    InterfaceDown,
    /// The source is no address of this host.
    WrongSource,
}

impl RefusedSend {
    /// The cause of this `errno`; `None` where it tells none.
    pub(super) const fn of(errno: i32) -> Option<Self> {
        match errno {
            libc::EPERM => Some(Self::OwnFilter),
            libc::ENETUNREACH | libc::EHOSTUNREACH => Some(Self::NoRoute),
            libc::EACCES => Some(Self::Prohibited),
            libc::ENETDOWN | libc::ENODEV | libc::ENXIO => Some(Self::InterfaceDown),
            libc::EADDRNOTAVAIL => Some(Self::WrongSource),
            _other_number => None,
        }
    }

    /// It in a sentence without an end.
    pub(super) const fn cause(self) -> &'static str {
        match self {
            Self::OwnFilter => "this host's own packet filter drops them",
            Self::NoRoute => "this host has no route to the peer",
            Self::Prohibited => "a route or rule of this host prohibits them",
            Self::InterfaceDown => "the interface towards the peer is down, or gone",
            Self::WrongSource => "their source is no address of this host",
        }
    }

    /// What to look at.
    pub(super) const fn next_step(self) -> &'static str {
        match self {
            Self::OwnFilter => {
                "`nft list ruleset`: a chain at hook output or postrouting must let ESP (IP protocol \
                 50, or its UDP port) pass"
            }
            Self::NoRoute => "`ip route get PEER`; does an interface lack its address or route?",
            Self::Prohibited => "`ip route get PEER`; `ip rule`",
            Self::InterfaceDown => "`ip link`; `ip route get PEER`",
            Self::WrongSource => "`ip address`: the state's `src` must be one of them",
        }
    }
}

/// The name of an `errno` and what it means, as far as that is known: `EPERM: …`.
pub(super) fn words(errno: i32) -> String {
    let name = format!("{:?}", Errno::from_raw(errno));
    match RefusedSend::of(errno) {
        Some(refused) => format!("{name}: {}", refused.cause()),
        None => format!("{name}: {}", Errno::from_raw(errno).desc()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_errno_has_its_own_cause() {
        let said = |errno: Errno| words(errno as i32);
        assert_eq!(said(Errno::EPERM), "EPERM: this host's own packet filter drops them");
        assert_eq!(said(Errno::ENETUNREACH), "ENETUNREACH: this host has no route to the peer");
        let down = "ENETDOWN: the interface towards the peer is down, or gone";
        assert_eq!(said(Errno::ENETDOWN), down);
        assert_eq!(said(Errno::EIO), "EIO: I/O error");
    }
}
