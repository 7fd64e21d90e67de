//! ICMP errors that the network sent about a tunnel's ESP.
//!
//! They are what others say: whoever sees a packet of the tunnel can make one up. So texts name who
//! says it, and nothing but texts depends on them.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

#[cfg(feature = "openapi")]
use crate::openapi::AddressText;
use crate::quantity::{span, things};

/// What an ICMP or ICMPv6 error says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum IcmpErrorKind {
    /// The host takes no packets of this IP protocol.
    ProtocolUnreachable,
    /// Nothing takes packets at this port; packet filters answer so, too.
    PortUnreachable,
    /// The last router finds no such host.
    HostUnreachable,
    /// A router has no route.
    NetUnreachable,
    /// A packet filter or policy of a router or host forbids it.
    AdminProhibited,
    /// The way goes through too many routers: most likely in a circle.
    TtlExceeded,
    /// Fragments of it were missing.
    ReassemblyTimeExceeded,
    /// The header is not understood.
    ParameterProblem,
    /// Another reason why it can't be delivered.
    OtherUnreachable,
}

/// ICMP errors of one kind about a tunnel's ESP, since its peer was heard last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct IcmpErrorStatus {
    /// What they say.
    pub kind: IcmpErrorKind,
    /// Who sent the latest: the peer, a router, or this host itself.
    #[cfg_attr(feature = "openapi", schema(value_type = AddressText))]
    pub told_by: IpAddr,
    /// How many came since the kind was first seen.
    pub errors: u64,
    /// Seconds since the latest.
    pub last_seconds_ago: u64,
}

impl IcmpErrorKind {
    /// What an ICMP error of this type and code says; `None` for messages that are none, and for
    /// those about sizes.
    #[must_use]
    pub const fn of_v4(kind: u8, code: u8) -> Option<Self> {
        match (kind, code) {
            (3, 0 | 6 | 11) => Some(Self::NetUnreachable),
            (3, 1 | 7 | 8 | 12) => Some(Self::HostUnreachable),
            (3, 2) => Some(Self::ProtocolUnreachable),
            (3, 3) => Some(Self::PortUnreachable),
            (3, 4) => None,
            (3, 9 | 10 | 13) => Some(Self::AdminProhibited),
            (3, _) => Some(Self::OtherUnreachable),
            (11, 0) => Some(Self::TtlExceeded),
            (11, _) => Some(Self::ReassemblyTimeExceeded),
            (12, _) => Some(Self::ParameterProblem),
            (_, _) => None,
        }
    }

    /// The same of ICMPv6, where a host that does not take a protocol calls it a problem of the
    /// header.
    #[must_use]
    pub const fn of_v6(kind: u8, code: u8) -> Option<Self> {
        match (kind, code) {
            (1, 0) => Some(Self::NetUnreachable),
            (1, 1 | 5 | 6) => Some(Self::AdminProhibited),
            (1, 3) => Some(Self::HostUnreachable),
            (1, 4) => Some(Self::PortUnreachable),
            (1, _) => Some(Self::OtherUnreachable),
            (3, 0) => Some(Self::TtlExceeded),
            (3, _) => Some(Self::ReassemblyTimeExceeded),
            (4, 1) => Some(Self::ProtocolUnreachable),
            (4, _) => Some(Self::ParameterProblem),
            (_, _) => None,
        }
    }

    /// Its name in RFC 792 and Linux.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ProtocolUnreachable => "protocol unreachable",
            Self::PortUnreachable => "port unreachable",
            Self::HostUnreachable => "host unreachable",
            Self::NetUnreachable => "net unreachable",
            Self::AdminProhibited => "admin prohibited",
            Self::TtlExceeded => "time to live exceeded",
            Self::ReassemblyTimeExceeded => "fragment reassembly time exceeded",
            Self::ParameterProblem => "parameter problem",
            Self::OtherUnreachable => "destination unreachable",
        }
    }

    /// Whom to ask what, where `peer` is where the ESP went.
    fn meaning(self, peer: IpAddr) -> (String, String) {
        let right = || format!("is {peer} the peer, and is it up?");
        let (said, question) = match self {
            Self::ProtocolUnreachable => ("it takes no ESP".to_owned(), IS_RUNNING.to_owned()),
            Self::PortUnreachable => (
                "nothing takes it there".to_owned(),
                "is uxfrm, or another IPsec, running there, and does a packet filter reject it?"
                    .to_owned(),
            ),
            Self::HostUnreachable => (format!("there is no host {peer}"), right()),
            Self::NetUnreachable => (format!("it has no route to {peer}"), right()),
            Self::AdminProhibited => (
                format!("a packet filter forbids packets to {peer}"),
                "does it let ESP pass (IP protocol 50, or its UDP port)?".to_owned(),
            ),
            Self::TtlExceeded => (
                format!("packets to {peer} go through too many routers"),
                "do routes lead in a circle? `traceroute` shows it".to_owned(),
            ),
            Self::ReassemblyTimeExceeded => (
                "fragments are missing".to_owned(),
                "does a packet filter drop fragments?".to_owned(),
            ),
            Self::ParameterProblem => {
                ("it does not understand the header".to_owned(), format!("does {peer} take ESP?"))
            }
            Self::OtherUnreachable => (format!("{peer} can't be reached"), right()),
        };
        (said, question)
    }
}

/// Asked where a host takes no ESP.
const IS_RUNNING: &str = "is uxfrm, or another IPsec, running there?";

impl IcmpErrorStatus {
    /// All of it in a sentence, with a question that leads to the cause. ESP went from `own` to
    /// `peer`.
    #[must_use]
    pub fn words(&self, own: IpAddr, peer: IpAddr) -> String {
        let Self { kind, told_by, errors, last_seconds_ago } = self;
        let who = match *told_by {
            by if by == peer => format!("{peer} answers"),
            by if by == own => "this host says".to_owned(),
            by => format!("router {by} says"),
        };
        let (said, question) = kind.meaning(peer);
        let (name, many) = (kind.name(), things(*errors, "time", "times"));
        let ago = span(*last_seconds_ago);
        format!("{who} that {said} (ICMP {name}, {many}, the last {ago} ago): {question}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_family_has_its_own_codes() {
        use IcmpErrorKind as Kind;
        for (kind, code, expected) in [
            (3, 0, Some(Kind::NetUnreachable)),
            (3, 1, Some(Kind::HostUnreachable)),
            (3, 2, Some(Kind::ProtocolUnreachable)),
            (3, 3, Some(Kind::PortUnreachable)),
            (3, 4, None),
            (3, 13, Some(Kind::AdminProhibited)),
            (11, 0, Some(Kind::TtlExceeded)),
            (8, 0, None),
        ] {
            assert_eq!(Kind::of_v4(kind, code), expected, "{kind} {code}");
        }
        for (kind, code, expected) in [
            (1, 0, Some(Kind::NetUnreachable)),
            (1, 1, Some(Kind::AdminProhibited)),
            (1, 3, Some(Kind::HostUnreachable)),
            (1, 4, Some(Kind::PortUnreachable)),
            (2, 0, None),
            (4, 1, Some(Kind::ProtocolUnreachable)),
            (128, 0, None),
        ] {
            assert_eq!(Kind::of_v6(kind, code), expected, "{kind} {code}");
        }
    }

    #[test]
    fn words_name_who_says_it() {
        let (own, peer) = (IpAddr::from([10, 9, 1, 1]), IpAddr::from([10, 9, 2, 9]));
        let router = IpAddr::from([10, 9, 1, 254]);
        let told = |kind, told_by| {
            let told = IcmpErrorStatus { kind, told_by, errors: 39, last_seconds_ago: 2 };
            told.words(own, peer)
        };
        assert_eq!(
            told(IcmpErrorKind::ProtocolUnreachable, peer),
            "10.9.2.9 answers that it takes no ESP (ICMP protocol unreachable, 39 times, the last \
             2 s ago): is uxfrm, or another IPsec, running there?"
        );
        let words = told(IcmpErrorKind::HostUnreachable, router);
        assert!(words.starts_with("router 10.9.1.254 says that there is no host 10.9.2.9"));
        let words = told(IcmpErrorKind::HostUnreachable, own);
        assert!(words.starts_with("this host says that there is no host 10.9.2.9"), "{words}");
        let words = told(IcmpErrorKind::AdminProhibited, router);
        assert!(words.contains("a packet filter forbids packets to 10.9.2.9"), "{words}");
    }
}
