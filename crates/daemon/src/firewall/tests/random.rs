//! Random policies, what becomes of them, and packets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use uxfrm_engine::{
    Action, Direction, Family, FlowKey, IfId, LifetimeLimits, Mark, Mode, Policy, PolicyFlags,
    PolicyIndex, PolicyKind, PortMask, Prefix, Priority, Reqid, SaProtocol, Selector, Spi,
    Template, TemplateLevel,
};
use uxfrm_io::nftables::SamplePacket;
use uxfrm_packet::IpPacket;

use super::{CHAINS, ChainKind};

/// A plain packet.
#[derive(Clone, Debug)]
pub(super) struct Plain {
    pub(super) bytes: Vec<u8>,
    pub(super) mark: u32,
    pub(super) came_by: u32,
}

impl Plain {
    pub(super) fn sample(&self, part: ChainKind) -> SamplePacket<'_> {
        SamplePacket {
            bytes: &self.bytes,
            mark: self.mark,
            came_by: self.came_by(part.direction()),
        }
    }

    pub(super) fn flow(&self, part: ChainKind) -> FlowKey {
        let ip = IpPacket::parse(&self.bytes).unwrap();
        let flow = FlowKey::of_bytes(&ip, &self.bytes);
        FlowKey { mark: self.mark, ifindex: self.came_by(part.direction()), ..flow }
    }

    /// The same by where it comes at last, if it goes by others.
    pub(super) fn flow_at_last(&self, part: ChainKind) -> Option<FlowKey> {
        let destination = self.last_segment()?;
        Some(FlowKey { destination, ..self.flow(part) })
    }

    /// Where it comes at last if it has a routing header.
    fn last_segment(&self) -> Option<IpAddr> {
        let is_routed = self.bytes[0] >> 4 == 6 && self.bytes[6] == ROUTING;
        let octets = is_routed.then(|| self.bytes[48..].first_chunk::<16>())??;
        Some(Ipv6Addr::from(*octets).into())
    }

    /// Whether it is an ICMP error itself.
    pub(super) fn is_error(&self) -> bool {
        let protocol = self.flow(ChainKind::In).protocol;
        let upper = IpPacket::parse(&self.bytes).unwrap();
        let kind = upper.upper(&self.bytes).first().copied().unwrap_or(0);
        match self.bytes[0] >> 4 {
            4 => protocol == 1 && [3, 4, 5, 11, 12].contains(&kind),
            _ => protocol == 58 && kind < 128,
        }
    }

    /// An ICMP error that quotes it: time exceeded.
    pub(super) fn told(&self) -> Self {
        let (source, protocol, kind) = match self.bytes[0] >> 4 {
            4 => (IpAddr::from(Ipv4Addr::new(192, 0, 2, 1)), 1, 11),
            _ => (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(), 58, 3),
        };
        self.quoted(source, protocol, &[kind, 0, 0, 0, 0, 0, 0, 0])
    }

    /// An ICMPv6 redirect that quotes it, which is of IPv6.
    pub(super) fn redirect(&self) -> Self {
        let router = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
        let head = [137, 0, 0, 0, 0, 0, 0, 0];
        let option = [4, 13, 0, 0, 0, 0, 0, 0];
        let head = [&head[..], &router.octets(), &self.bytes[24..40], &option].concat();
        self.quoted(router.into(), 58, &head)
    }

    /// A message to its source.
    fn quoted(&self, source: IpAddr, protocol: u8, head: &[u8]) -> Self {
        let bytes = [head, &self.bytes].concat();
        let bytes = packet(source, self.flow(ChainKind::In).source, protocol, &bytes);
        Self { bytes, mark: 0, came_by: 0 }
    }

    /// What leaves came from the host itself.
    pub(super) fn came_by(&self, direction: Direction) -> u32 {
        match direction {
            Direction::In | Direction::Forward => self.came_by,
            Direction::Out => 0,
        }
    }
}

/// Something that is asked of a gateway at once.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Add(Vec<Policy>),
    /// The policy of this number, of those that are there, does otherwise from now on.
    Update(usize, Action, Vec<Template>, Priority),
    /// So many policies go, from this number on.
    Remove(usize, usize),
}

pub(super) fn address(family: Family, host: u8) -> IpAddr {
    // Few bits that differ, so that prefixes meet.
    let [high, low] = [host >> 4, host & 15];
    match family {
        Family::V4 => Ipv4Addr::new(10, high, 0, low).into(),
        Family::V6 => Ipv6Addr::new(0xfd00, high.into(), 0, 0, 0, 0, 0, low.into()).into(),
    }
}

pub(super) fn prefixes(family: Family) -> impl Strategy<Value = Prefix> {
    let lengths: &[u8] = match family {
        Family::V4 => &[0, 13, 16, 24, 30, 32],
        Family::V6 => &[0, 29, 32, 64, 126, 128],
    };
    (any::<u8>(), prop::sample::select(lengths))
        .prop_map(move |(host, length)| Prefix::new(address(family, host & 0x33), length).unwrap())
}

pub(super) fn port_masks() -> impl Strategy<Value = PortMask> {
    let masks = prop::sample::select(&[0, 0, 0, 0xffff, 0xfffe, 0x00ff, 0xff00][..]);
    (0_u16..4, masks).prop_map(|(value, mask)| PortMask { value, mask })
}

pub(super) const PROTOCOLS: [u8; 9] = [6, 17, 33, 132, 1, 58, 135, 47, 89];

pub(super) fn selectors(family: Family) -> impl Strategy<Value = Selector> {
    let protocols = prop_oneof![3 => Just(0), 1 => prop::sample::select(&PROTOCOLS[..])];
    let ports = prop_oneof![3 => Just([PortMask { value: 0, mask: 0 }; 2]), 1 => [port_masks(), port_masks()]];
    let devices = prop_oneof![6 => Just(0), 1 => Just(3_u32)];
    (prefixes(family), prefixes(family), protocols, ports, devices).prop_map(
        move |(source, destination, protocol, [source_port, destination_port], ifindex)| {
            let any = Selector::any(family);
            Selector {
                source,
                destination,
                protocol,
                source_port,
                destination_port,
                ifindex,
                ..any
            }
        },
    )
}

/// What a policy does with plain packets.
pub(super) fn deeds() -> impl Strategy<Value = (Action, Vec<Template>)> {
    let template = Template {
        source: Ipv4Addr::new(10, 9, 0, 1).into(),
        destination: Ipv4Addr::new(10, 9, 0, 2).into(),
        protocol: SaProtocol::Esp,
        spi: Spi(0),
        mode: Mode::Tunnel,
        reqid: Reqid(0),
        level: TemplateLevel::Required,
    };
    prop_oneof![
        4 => Just((Action::Allow, vec![template])),
        2 => Just((Action::Allow, Vec::new())),
        2 => Just((Action::Block, Vec::new())),
    ]
}

pub(super) fn policies() -> impl Strategy<Value = Policy> {
    let families = prop_oneof![2 => Just(Family::V4), 1 => Just(Family::V6)];
    let directions = prop::sample::select(&CHAINS[..]).prop_map(|(part, _)| part.direction());
    let kinds = prop_oneof![4 => Just(PolicyKind::Main), 1 => Just(PolicyKind::Sub)];
    let marks =
        prop_oneof![5 => Just(Mark { value: 0, mask: 0 }), 1 => Just(Mark { value: 1, mask: 3 })];
    let interfaces = prop_oneof![9 => Just(0), 1 => Just(5)];
    let selectors = families.prop_flat_map(selectors);
    (directions, kinds, selectors, 0_u32..3, deeds(), marks, interfaces).prop_map(
        |(direction, kind, selector, priority, (action, templates), mark, if_id)| Policy {
            direction,
            kind,
            index: PolicyIndex(0),
            selector,
            priority: Priority(priority),
            action,
            templates,
            mark,
            if_id: IfId(if_id),
            flags: PolicyFlags::empty(),
            limits: LifetimeLimits::default(),
            offload: None,
        },
    )
}

/// About one policy.
pub(super) fn single_requests() -> impl Strategy<Value = Request> {
    prop_oneof![
        4 => policies().prop_map(|policy| Request::Add(vec![policy])),
        3 => (any::<usize>(), deeds(), 0_u32..3).prop_map(|(number, (action, templates), priority)| {
            Request::Update(number, action, templates, Priority(priority))
        }),
        2 => any::<usize>().prop_map(|number| Request::Remove(number, 1)),
    ]
}

pub(super) fn requests() -> impl Strategy<Value = Request> {
    prop_oneof![
        4 => prop::collection::vec(policies(), 1..8).prop_map(Request::Add),
        4 => policies().prop_map(|policy| Request::Add(vec![policy])),
        3 => (any::<usize>(), deeds(), 0_u32..3).prop_map(|(number, (action, templates), priority)| {
            Request::Update(number, action, templates, Priority(priority))
        }),
        3 => (any::<usize>(), 1_usize..6).prop_map(|(number, count)| Request::Remove(number, count)),
        1 => (any::<usize>(), 20_usize..90).prop_map(|(number, count)| Request::Remove(number, count)),
    ]
}

pub(super) fn packets() -> impl Strategy<Value = Plain> {
    let families = prop_oneof![2 => Just(Family::V4), 1 => Just(Family::V6)];
    let upper = [0_u8..4, 0..4, 0..4, 0..4, 0..4, 0..4, 0..4, 0..4];
    let flags = prop::sample::select(&[0_u8, 0x20, 0x60, 0x80, 0xa0][..]);
    // Mostly version 0; PPTP's of PPP, and of something else.
    let version = prop::sample::select(
        &[[0_u8, 8, 0], [0, 8, 0], [1, 0x88, 0x0b], [1, 8, 0], [2, 8, 0], [4, 8, 0]][..],
    );
    let protocols = prop::sample::select(&PROTOCOLS[..]);
    // The third one in a routing header.
    let hosts = ([any::<u8>(), any::<u8>()], prop::option::weighted(0.3, any::<u8>()));
    let gre = (flags, version).prop_map(|(flags, [version, a, b])| [flags, version, a, b]);
    (families, hosts, protocols, upper, gre, 0_u32..3, prop::sample::select(&[0_u32, 3][..]))
        .prop_map(|(family, (hosts, last), protocol, upper, gre, mark, came_by)| {
            let [source, destination] = hosts.map(|host| address(family, host & 0x33));
            let mut payload = [upper, [0; 8], [0; 8]].concat();
            match protocol {
                47 => payload[..4].copy_from_slice(&gre),
                135 => payload[1] = 2,
                _ => {}
            }
            let last = last.map(|host| address(family, host & 0x33));
            let bytes = match last {
                Some(IpAddr::V6(last)) => {
                    let payload = [&routing(protocol, last)[..], &payload].concat();
                    packet(source, destination, ROUTING, &payload)
                }
                Some(IpAddr::V4(_)) | None => packet(source, destination, protocol, &payload),
            };
            Plain { bytes, mark, came_by }
        })
}

const ROUTING: u8 = 43;

/// A segment routing header of one segment, which is still to be reached (RFC 8754 §2).
fn routing(protocol: u8, last: Ipv6Addr) -> [u8; 24] {
    let mut header = [0; 24];
    header[..4].copy_from_slice(&[protocol, 2, 4, 1]);
    header[8..].copy_from_slice(&last.octets());
    header
}

pub(super) fn packet(source: IpAddr, destination: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).unwrap();
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let [high, low] = (length + 20).to_be_bytes();
            let head = [0x45, 0, high, low, 0, 0, 0, 0, 64, protocol, 0, 0];
            [&head[..], &source.octets(), &destination.octets(), payload].concat()
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let [high, low] = length.to_be_bytes();
            let head = [0x60, 0, 0, 0, high, low, protocol, 64];
            [&head[..], &source.octets(), &destination.octets(), payload].concat()
        }
        _ => panic!("one family"),
    }
}
