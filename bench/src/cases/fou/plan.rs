//! The tunnels and the tests over them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{Case, CaseFilter};

/// A type of tunnel, by `ip link`'s names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TunnelType {
    Gre,
    Ipip,
    Sit,
}

/// The encapsulation between the tunnel's outer and inner header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FouEncap {
    None,
    /// UDP without a checksum.
    Fou,
    /// UDP with a checksum.
    FouCsum,
    /// UDP without a checksum and GUE; the series has none.
    Gue,
}

/// A tunnel of the bench, one of each combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FouTunnel {
    pub(super) tunnel_type: TunnelType,
    pub(super) encap: FouEncap,
    /// Part of its addresses and its port.
    number: u8,
}

/// netperf's TCP_STREAM and TCP_RR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NetperfTest {
    Stream,
    /// Requests and responses over this many connections at once.
    Requests(usize),
}

/// As the series has it: 200 connections at once.
const RR: NetperfTest = NetperfTest::Requests(200);
/// A single connection: latency.
const RR1: NetperfTest = NetperfTest::Requests(1);

/// The case of one row.
#[derive(Clone, Copy, Debug)]
pub(super) struct FouCase {
    pub(super) tunnel: FouTunnel,
    pub(super) test: NetperfTest,
}

/// One of the two gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TunnelSide {
    Left,
    Right,
}

const TUNNEL_TYPES: [TunnelType; 3] = [TunnelType::Gre, TunnelType::Ipip, TunnelType::Sit];
/// The first is the one that the others are compared with.
const ENCAPS: [FouEncap; 4] = [FouEncap::None, FouEncap::Fou, FouEncap::FouCsum, FouEncap::Gue];

/// The cases that a filter leaves, in the order in which they run.
pub(super) fn cases(only: &CaseFilter) -> Vec<FouCase> {
    let tests = [NetperfTest::Stream, RR, RR1];
    let cases = TUNNEL_TYPES.iter().flat_map(|tunnel_type| {
        let of_type = all().filter(move |tunnel| tunnel.tunnel_type == *tunnel_type);
        tests.iter().flat_map(move |test| {
            of_type.clone().map(move |tunnel| FouCase { tunnel, test: *test })
        })
    });
    cases.filter(|fou_case| only.admits(&fou_case.case())).collect()
}

/// The tunnels of these cases.
pub(super) fn tunnels(only: &CaseFilter) -> Vec<FouTunnel> {
    let wanted = cases(only);
    all().filter(|tunnel| wanted.iter().any(|fou_case| fou_case.tunnel == *tunnel)).collect()
}

fn all() -> impl Iterator<Item = FouTunnel> + Clone {
    let both = TUNNEL_TYPES
        .iter()
        .flat_map(|tunnel_type| ENCAPS.iter().map(move |encap| (*tunnel_type, *encap)));
    (1..).zip(both).map(|(number, (tunnel_type, encap))| FouTunnel { tunnel_type, encap, number })
}

impl FouCase {
    /// Whether both are the same test through the same type of tunnel, and so are compared.
    pub(super) fn is_compared_with(self, other: Self) -> bool {
        self.test == other.test && self.tunnel.tunnel_type == other.tunnel.tunnel_type
    }

    pub(super) fn case(self) -> Case {
        Case::new()
            .with("tunnel", self.tunnel.tunnel_type.name())
            .with("encap", self.tunnel.encap.name())
            .with("test", self.test.name())
    }
}

impl NetperfTest {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Requests(1) => "rr1",
            Self::Requests(_) => "rr",
        }
    }
}

impl TunnelType {
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

impl FouEncap {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Fou => "fou",
            Self::FouCsum => "fou-csum",
            Self::Gue => "gue",
        }
    }
}

impl TunnelSide {
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

impl FouTunnel {
    /// Its interface's name.
    pub(super) fn name(self) -> String {
        format!("{}-{}", self.tunnel_type.name(), self.encap.name())
    }

    /// One end's outer address, in a /24.
    pub(super) const fn outer(self, side: TunnelSide) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, self.number, side.host())
    }

    /// One end's inner address and its prefix length.
    pub(super) fn inner(self, side: TunnelSide) -> (IpAddr, u8) {
        let (number, host) = (self.number, side.host());
        match self.tunnel_type {
            TunnelType::Gre | TunnelType::Ipip => (Ipv4Addr::new(10, 78, number, host).into(), 24),
            TunnelType::Sit => {
                (Ipv6Addr::new(0xfd78, number.into(), 0, 0, 0, 0, 0, host.into()).into(), 64)
            }
        }
    }

    /// The `ip -batch` lines that add one end.
    pub(super) fn lines(self, side: TunnelSide) -> String {
        let port = 5000 + u16::from(self.number);
        let (what, how) = match self.encap {
            FouEncap::None => (String::new(), String::new()),
            FouEncap::Fou => (format!("ipproto {}", self.tunnel_type.protocol()), "fou".to_owned()),
            FouEncap::FouCsum => {
                (format!("ipproto {}", self.tunnel_type.protocol()), "fou encap-csum".to_owned())
            }
            FouEncap::Gue => ("gue".to_owned(), "gue".to_owned()),
        };
        let mut link = format!(
            "ip link add name {} type {} local {} remote {} ttl 64",
            self.name(),
            self.tunnel_type.name(),
            self.outer(side),
            self.outer(side.other())
        );
        if self.encap == FouEncap::None {
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
    fn every_type_has_every_encapsulation_and_a_valid_name() {
        let only = CaseFilter::default();
        assert_eq!((tunnels(&only).len(), cases(&only).len()), (12, 36));
        assert!(all().all(|tunnel| tunnel.name().len() < 16));
        let only: CaseFilter = "tunnel=sit,encap=none,test=rr".parse().unwrap();
        assert_eq!(tunnels(&only).iter().map(|one| one.name()).collect::<Vec<_>>(), ["sit-none"]);
    }

    #[test]
    fn lines_of_gre_in_fou_with_checksum() {
        let tunnel = all().find(|tunnel| tunnel.name() == "gre-fou-csum").unwrap();
        assert_eq!(
            tunnel.lines(TunnelSide::Right),
            "ip fou add port 5003 ipproto 47\nip link add name gre-fou-csum type gre local 10.77.3.2 remote 10.77.3.1 \
             ttl 64 encap fou encap-csum encap-sport auto encap-dport 5003\n"
        );
    }
}
