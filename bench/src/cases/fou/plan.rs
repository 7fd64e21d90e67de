//! Which tunnels there are and what is sent through them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{Case, Filter};

/// A kind of tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Gre,
    Ipip,
    Sit,
}

/// What is between its outer and its own header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encap {
    None,
    /// UDP without a checksum.
    Fou,
    /// UDP with one.
    FouCsum,
    /// UDP without a checksum and GUE; the series has none.
    Gue,
}

/// A tunnel of the bench, one of each combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tunnel {
    pub(super) kind: Kind,
    pub(super) encap: Encap,
    /// Its number, which its addresses and its port have.
    number: u8,
}

/// netperf's names are TCP_STREAM and TCP_RR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Test {
    Stream,
    /// Requests and responses over so many connections at once.
    Requests(usize),
}

/// As the series has it: 200 connections at once.
const MANY: Test = Test::Requests(200);
/// A connection by itself: what each packet waits for.
const ALONE: Test = Test::Requests(1);

/// One row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    pub(super) tunnel: Tunnel,
    pub(super) test: Test,
}

/// Where a tunnel's gateway is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

const KINDS: [Kind; 3] = [Kind::Gre, Kind::Ipip, Kind::Sit];
/// The one that the others are compared with comes first.
const ENCAPS: [Encap; 4] = [Encap::None, Encap::Fou, Encap::FouCsum, Encap::Gue];

/// The rows that a filter leaves, in the order in which they take turns.
pub(super) fn trials(only: &Filter) -> Vec<Trial> {
    let tests = [Test::Stream, MANY, ALONE];
    let trials = KINDS.iter().flat_map(|kind| {
        let of_kind = all().filter(move |tunnel| tunnel.kind == *kind);
        tests
            .iter()
            .flat_map(move |test| of_kind.clone().map(move |tunnel| Trial { tunnel, test: *test }))
    });
    trials.filter(|trial| only.admits(&trial.case())).collect()
}

/// The tunnels that those rows need.
pub(super) fn tunnels(only: &Filter) -> Vec<Tunnel> {
    let wanted = trials(only);
    all().filter(|tunnel| wanted.iter().any(|trial| trial.tunnel == *tunnel)).collect()
}

fn all() -> impl Iterator<Item = Tunnel> + Clone {
    let both = KINDS.iter().flat_map(|kind| ENCAPS.iter().map(move |encap| (*kind, *encap)));
    (1..).zip(both).map(|(number, (kind, encap))| Tunnel { kind, encap, number })
}

impl Trial {
    /// Whether the other one is the same test through a tunnel of the same kind.
    pub(super) fn is_beside(self, other: Self) -> bool {
        self.test == other.test && self.tunnel.kind == other.tunnel.kind
    }

    pub(super) fn case(self) -> Case {
        Case::new()
            .with("tunnel", self.tunnel.kind.name())
            .with("encap", self.tunnel.encap.name())
            .with("test", self.test.name())
    }
}

impl Test {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Requests(1) => "rr1",
            Self::Requests(_) => "rr",
        }
    }
}

impl Kind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Gre => "gre",
            Self::Ipip => "ipip",
            Self::Sit => "sit",
        }
    }

    const fn protocol(self) -> u8 {
        match self {
            Self::Gre => 47,
            Self::Ipip => 4,
            Self::Sit => 41,
        }
    }
}

impl Encap {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Fou => "fou",
            Self::FouCsum => "fou-csum",
            Self::Gue => "gue",
        }
    }
}

impl Side {
    const fn other(self) -> Self {
        match self {
            Self::Left => Self::Right,
            Self::Right => Self::Left,
        }
    }

    const fn host(self) -> u8 {
        match self {
            Self::Left => 1,
            Self::Right => 2,
        }
    }
}

impl Tunnel {
    /// Its interface's.
    pub(super) fn name(self) -> String {
        format!("{}-{}", self.kind.name(), self.encap.name())
    }

    /// One end's address on the wire, of a network of 24 bits.
    pub(super) const fn outer(self, side: Side) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, self.number, side.host())
    }

    /// One end's address in the tunnel, with its network's length.
    pub(super) fn inner(self, side: Side) -> (IpAddr, u8) {
        let (number, host) = (self.number, side.host());
        match self.kind {
            Kind::Gre | Kind::Ipip => (Ipv4Addr::new(10, 78, number, host).into(), 24),
            Kind::Sit => {
                (Ipv6Addr::new(0xfd78, number.into(), 0, 0, 0, 0, 0, host.into()).into(), 64)
            }
        }
    }

    /// The lines of `ip` that make one end.
    pub(super) fn lines(self, side: Side) -> String {
        let port = 5000 + u16::from(self.number);
        let (what, how) = match self.encap {
            Encap::None => (String::new(), String::new()),
            Encap::Fou => (format!("ipproto {}", self.kind.protocol()), "fou".to_owned()),
            Encap::FouCsum => {
                (format!("ipproto {}", self.kind.protocol()), "fou encap-csum".to_owned())
            }
            Encap::Gue => ("gue".to_owned(), "gue".to_owned()),
        };
        let mut link = format!(
            "ip link add name {} type {} local {} remote {} ttl 64",
            self.name(),
            self.kind.name(),
            self.outer(side),
            self.outer(side.other())
        );
        if self.encap == Encap::None {
            return format!("{link}\n");
        }
        link.push_str(&format!(" encap {how} encap-sport auto encap-dport {port}"));
        format!("ip fou add port {port} {what}\n{link}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_every_encapsulation_and_a_name_that_fits() {
        let only = Filter::default();
        assert_eq!((tunnels(&only).len(), trials(&only).len()), (12, 36));
        assert!(all().all(|tunnel| tunnel.name().len() < 16));
        let only: Filter = "tunnel=sit,encap=none,test=rr".parse().unwrap();
        assert_eq!(tunnels(&only).iter().map(|one| one.name()).collect::<Vec<_>>(), ["sit-none"]);
    }

    #[test]
    fn lines_are_what_ip_takes() {
        let tunnel = all().find(|tunnel| tunnel.name() == "gre-fou-csum").unwrap();
        assert_eq!(
            tunnel.lines(Side::Right),
            "ip fou add port 5003 ipproto 47\nip link add name gre-fou-csum type gre local 10.77.3.2 remote 10.77.3.1 \
             ttl 64 encap fou encap-csum encap-sport auto encap-dport 5003\n"
        );
    }
}
