//! Which fields a policy stores itself and which it shares with others.

use std::net::IpAddr;

use arrayvec::ArrayVec;

use super::address_codec::{FieldReader, FieldWriter};
use crate::{Direction, Family, Policy, PortMask, Prefix, Reqid, Selector, Template};

/// The fields that a policy stores itself. All others are in its shared fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FieldLayout {
    pub(crate) direction: Direction,
    pub(crate) family: Family,
    ports: Ports,
    /// Traffic addresses stored. Protocol and prefix lengths are stored where the local address is.
    pub(crate) traffic: OwnEnds,
    /// Tunnel addresses of the first template stored, with the request id.
    tunnel: Option<(Family, OwnEnds)>,
}

/// Whether the policy matches ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Ports {
    Any,
    Some,
}

/// Which addresses are stored. A gateway has few of its own and many peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum OwnEnds {
    /// The remote address; the local one is shared.
    Far,
    /// Both addresses.
    Both,
}

/// Decoded traffic fields.
struct TrafficFields {
    lens: [u8; 2],
    protocol: u8,
    ports: [u16; 2],
    traffic: [IpAddr; 2],
}

/// Selector fields that are shared: all but ports and remote address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SharedTraffic {
    local: IpAddr,
    /// Prefix lengths of source and destination.
    lens: [u8; 2],
    protocol: u8,
}

/// Base of addresses that resemble no other.
const ZEROS: [u8; 16] = [0; 16];

/// The layout that shares most comes first.
type Layouts = ArrayVec<FieldLayout, 6>;

impl FieldLayout {
    /// The layout that shares least.
    pub(crate) fn most_own(policy: &Policy) -> Self {
        let tunnel = tunnel_family(policy).map(|family| (family, OwnEnds::Both));
        Self { tunnel, ..Self::base(policy, OwnEnds::Both) }
    }

    /// Layouts that share more, the most first. One that saves no memory, given `room` inline, is
    /// left out, unless it makes comparison cheaper.
    pub(crate) fn sharing(policy: &Policy, room: usize) -> Layouts {
        let mut layouts = Layouts::new();
        let far = Self::base(policy, OwnEnds::Far);
        let fits = || Self::most_own(policy).bytes(policy).len() <= room;
        if far.is_compact() || far.family == Family::V6 && !fits() {
            layouts.extend(far.with_tunnels(policy, room));
        }
        layouts.extend(Self::base(policy, OwnEnds::Both).with_tunnels(policy, room));
        layouts.pop();
        layouts
    }

    /// This layout, and those that also store tunnel addresses. Of those that fit inline only the
    /// last is kept.
    fn with_tunnels(self, policy: &Policy, room: usize) -> ArrayVec<Self, 3> {
        let mut layouts: ArrayVec<_, 3> = [self].into_iter().collect();
        if let Some(family) = tunnel_family(policy) {
            let tunnel = |ends| Self { tunnel: Some((family, ends)), ..self };
            layouts.extend([OwnEnds::Far, OwnEnds::Both].map(tunnel));
        }
        let fitting =
            layouts.iter().take_while(|layout| layout.bytes(policy).len() <= room).count();
        layouts.drain(..fitting.saturating_sub(1));
        layouts
    }

    fn base(policy: &Policy, traffic: OwnEnds) -> Self {
        let Selector { source_port, destination_port, .. } = policy.selector;
        let any = PortMask::default();
        let ports =
            if [source_port, destination_port] == [any; 2] { Ports::Any } else { Ports::Some };
        let (direction, family) = (policy.direction, policy.selector.family());
        Self { direction, family, ports, traffic, tunnel: None }
    }

    /// Whether its policies differ in the remote address only; compact rules pay for IPv6.
    pub(crate) fn is_compact(self) -> bool {
        (self.family, self.ports, self.traffic) == (Family::V6, Ports::Any, OwnEnds::Far)
    }

    /// Encodes a policy's own fields.
    pub(crate) fn bytes(self, policy: &Policy) -> FieldWriter {
        let mut bytes = FieldWriter::default();
        let selector = &policy.selector;
        if self.traffic == OwnEnds::Both {
            let lens = [selector.source, selector.destination].map(Prefix::prefix_len);
            bytes.put(&[lens[0], lens[1], selector.protocol]);
        }
        if self.ports == Ports::Some {
            let ports = [selector.source_port.value, selector.destination_port.value];
            ports.iter().for_each(|port| bytes.put(&port.to_ne_bytes()));
        }
        let traffic = [selector.source.address(), selector.destination.address()];
        for end in self.ends(self.traffic) {
            bytes.address(traffic[*end], ZEROS);
        }
        if let (Some((_, ends)), Some(template)) = (self.tunnel, policy.templates.first()) {
            let addresses = [template.source, template.destination];
            let ends = self.ends(ends).iter().map(|end| (addresses[*end], traffic[*end]));
            bytes.tunnel(&ends.collect::<ArrayVec<_, 2>>(), template.reqid);
        }
        bytes
    }

    /// Traffic fields left to be shared.
    pub(crate) fn shared_traffic(self, selector: &Selector) -> SharedTraffic {
        match self.traffic {
            OwnEnds::Both => {
                SharedTraffic { local: self.family.unspecified(), lens: [0; 2], protocol: 0 }
            }
            OwnEnds::Far => SharedTraffic {
                local: [selector.source, selector.destination][local(self.direction)].address(),
                lens: [selector.source, selector.destination].map(Prefix::prefix_len),
                protocol: selector.protocol,
            },
        }
    }

    /// Decodes the selector of a policy, given its shared fields and port masks.
    pub(crate) fn selector(
        self,
        bytes: &[u8],
        shared_traffic: &SharedTraffic,
        masks: [u16; 2],
    ) -> Selector {
        let (_, said) = self.decode_traffic(bytes, shared_traffic);
        let TrafficFields { lens, protocol, ports, traffic } = said;
        let port = |end: usize| PortMask { value: ports[end], mask: masks[end] };
        Selector {
            source: prefix(traffic[0], lens[0]),
            destination: prefix(traffic[1], lens[1]),
            protocol,
            source_port: port(0),
            destination_port: port(1),
            ..Selector::any(self.family)
        }
    }

    /// Decodes a policy's first template, given its shared part.
    pub(crate) fn template(
        self,
        bytes: &[u8],
        shared_traffic: &SharedTraffic,
        rest: &Template,
    ) -> Template {
        let Some((family, ends)) = self.tunnel else { return *rest };
        let (mut words, TrafficFields { traffic, .. }) = self.decode_traffic(bytes, shared_traffic);
        let (tunnel_base, len) = words.tunnel(family);
        let mut addresses = [rest.source, rest.destination];
        for end in self.ends(ends) {
            addresses[*end] = words.address(family, tunnel_base.octets(traffic[*end]));
        }
        let ([source, destination], reqid) = (addresses, words.reqid(len));
        Template { source, destination, reqid, ..*rest }
    }

    /// A policy's first template without the fields that the policy stores itself.
    pub(crate) fn rest(self, template: &Template) -> Template {
        let Some((family, ends)) = self.tunnel else { return *template };
        let mut addresses = [template.source, template.destination];
        for end in self.ends(ends) {
            addresses[*end] = family.unspecified();
        }
        let [source, destination] = addresses;
        Template { source, destination, reqid: Reqid(0), ..*template }
    }

    /// Decodes the traffic fields; returns the reader behind them.
    fn decode_traffic<'a>(
        self,
        bytes: &'a [u8],
        shared_traffic: &SharedTraffic,
    ) -> (FieldReader<'a>, TrafficFields) {
        let mut words = FieldReader(bytes);
        let SharedTraffic { local, mut lens, mut protocol } = *shared_traffic;
        if self.traffic == OwnEnds::Both {
            [lens[0], lens[1], protocol] = words.take();
        }
        let ports = match self.ports {
            Ports::Any => [0; 2],
            Ports::Some => [0; 2].map(|_| u16::from_ne_bytes(words.take())),
        };
        let mut traffic = [local; 2];
        for end in self.ends(self.traffic) {
            traffic[*end] = words.address(self.family, ZEROS);
        }
        (words, TrafficFields { lens, protocol, ports, traffic })
    }

    /// Indexes of the stored ends: 0 source, 1 destination.
    const fn ends(self, ends: OwnEnds) -> &'static [usize] {
        match (ends, local(self.direction)) {
            (OwnEnds::Both, _) => &[0, 1],
            (OwnEnds::Far, 0) => &[1],
            (OwnEnds::Far, _) => &[0],
        }
    }
}

/// The length was taken from a prefix of the same family.
fn prefix(address: IpAddr, len: u8) -> Prefix {
    Prefix::new(address, len).unwrap_or_else(|_| Prefix::host(address))
}

/// Index of the local end: 0 source, 1 destination.
const fn local(direction: Direction) -> usize {
    match direction {
        Direction::Out => 0,
        Direction::In | Direction::Forward => 1,
    }
}

/// Address family of the first template, if both addresses have the same.
fn tunnel_family(policy: &Policy) -> Option<Family> {
    let template = policy.templates.first()?;
    let families = [template.source, template.destination].map(Family::of);
    (families[0] == families[1]).then_some(families[0])
}
