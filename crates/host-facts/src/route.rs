//! The kernel's routes, for single packets.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteType,
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::errno::Errno;
use nix::net::if_::if_indextoname;
use uxfrm_status::explanation::PathMtuOrigin;

/// A route with its device's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedRoute {
    pub(crate) device: String,
    pub(crate) gateway: Option<IpAddr>,
    /// The host's own address that packets of the host get.
    pub(crate) own: Option<IpAddr>,
    /// In bytes, of the route or of its device; 0 where neither tells.
    pub(crate) mtu: u32,
    /// Where it comes from.
    pub(crate) origin: PathMtuOrigin,
    /// Until the kernel forgets a learned one.
    pub(crate) expires: Duration,
}

/// Asks the kernel for the routes of packets.
pub(crate) struct RouteSocket(Socket);

impl RouteSocket {
    pub(crate) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self(socket))
    }

    /// The route of a packet from the host's address `source`, if given; `None` without any.
    pub(crate) fn route(
        &self,
        source: Option<IpAddr>,
        destination: IpAddr,
        mark: u32,
    ) -> io::Result<Option<NamedRoute>> {
        let question = question(source, destination, mark);
        let payload = self.ask(RouteNetlinkMessage::GetRoute(question.clone()))?;
        if let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(message)) = &payload {
            let route = named(message);
            return Ok(route.map(|route| match route.origin {
                PathMtuOrigin::Device => {
                    NamedRoute { mtu: self.device_mtu(&route.device), ..route }
                }
                PathMtuOrigin::Route => route,
                PathMtuOrigin::Learned => {
                    NamedRoute { origin: self.origin_of_cached(&route, question), ..route }
                }
            }));
        }
        let NetlinkPayload::Error(error) = payload else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        no_route(error.to_io())
    }

    /// Where an MTU comes from that the kernel forgets. It keeps so what a route or device has as
    /// well, once it has refused a packet for it.
    fn origin_of_cached(&self, route: &NamedRoute, mut question: RouteMessage) -> PathMtuOrigin {
        question.header.flags = RouteFlags::FibMatch;
        let answer = self.ask(RouteNetlinkMessage::GetRoute(question));
        let Ok(NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(entry))) = answer else {
            return PathMtuOrigin::Learned;
        };
        match mtu_metric(&entry) {
            Some(mtu) if mtu == route.mtu => PathMtuOrigin::Route,
            None if self.device_mtu(&route.device) == route.mtu => PathMtuOrigin::Device,
            Some(_) | None => PathMtuOrigin::Learned,
        }
    }

    /// A device's MTU in bytes; 0 where the kernel does not tell.
    pub(crate) fn device_mtu(&self, device: &str) -> u32 {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(device.to_owned()));
        let answer = self.ask(RouteNetlinkMessage::GetLink(message));
        let Ok(NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link))) = answer else {
            return 0;
        };
        let mtu = |attribute: &LinkAttribute| {
            if let LinkAttribute::Mtu(mtu) = attribute { Some(*mtu) } else { None }
        };
        link.attributes.iter().find_map(mtu).unwrap_or(0)
    }

    fn ask(&self, message: RouteNetlinkMessage) -> io::Result<NetlinkPayload<RouteNetlinkMessage>> {
        self.0.send(&request(message), 0)?;
        let (datagram, _kernel) = self.0.recv_from_full()?;
        let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&datagram)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
        Ok(answer.payload)
    }
}

/// Of errors only those that speak of the route itself are answers.
fn no_route(error: io::Error) -> io::Result<Option<NamedRoute>> {
    let errno = error.raw_os_error().map(Errno::from_raw);
    match errno {
        Some(
            Errno::ENETUNREACH
            | Errno::EHOSTUNREACH
            | Errno::EACCES
            | Errno::EINVAL
            | Errno::EAGAIN,
        ) => Ok(None),
        Some(_) | None => Err(error),
    }
}

fn question(source: Option<IpAddr>, destination: IpAddr, mark: u32) -> RouteMessage {
    let bits = |address: IpAddr| if address.is_ipv4() { 32 } else { 128 };
    let mut message = RouteMessage::default();
    message.header.address_family = destination.into();
    message.header.destination_prefix_length = bits(destination);
    message.attributes.push(RouteAttribute::Destination(destination.into()));
    if let Some(source) = source {
        message.header.source_prefix_length = bits(source);
        message.attributes.push(RouteAttribute::Source(source.into()));
    }
    if mark != 0 {
        message.attributes.push(RouteAttribute::Mark(mark));
    }
    message
}

fn request(message: RouteNetlinkMessage) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

fn named(message: &RouteMessage) -> Option<NamedRoute> {
    if matches!(message.header.kind, RouteType::Unreachable | RouteType::BlackHole) {
        return None;
    }
    let (mut link, mut gateway, mut own, mut expires) = (None, None, None, Duration::ZERO);
    let mtu = mtu_metric(message);
    for attribute in &message.attributes {
        if let RouteAttribute::Oif(index) = attribute {
            link = Some(*index);
        } else if let RouteAttribute::Gateway(address) = attribute {
            gateway = ip(address);
        } else if let RouteAttribute::PrefSource(address) = attribute {
            own = ip(address);
        } else if let RouteAttribute::CacheInfo(cached) = attribute {
            expires = Duration::from_millis(u64::from(cached.expires) * MILLISECONDS);
        }
    }
    // Of a device that has gone the name may be empty.
    let device = if_indextoname(link?).ok()?.into_string().ok().filter(|name| !name.is_empty())?;
    let origin = match mtu {
        None => PathMtuOrigin::Device,
        Some(_) if expires.is_zero() => PathMtuOrigin::Route,
        Some(_) => PathMtuOrigin::Learned,
    };
    Some(NamedRoute { device, gateway, own, mtu: mtu.unwrap_or(0), origin, expires })
}

/// Of the unit in which the kernel tells times (`USER_HZ`).
const MILLISECONDS: u64 = 10;

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    if let RouteAddress::Inet(v4) = address {
        Some(IpAddr::V4(*v4))
    } else if let RouteAddress::Inet6(v6) = address {
        Some(IpAddr::V6(*v6))
    } else {
        None
    }
}

/// The MTU that a route has of its own.
fn mtu_metric(route: &RouteMessage) -> Option<u32> {
    route.attributes.iter().find_map(|attribute| {
        let RouteAttribute::Metrics(metrics) = attribute else { return None };
        metrics.iter().find_map(mtu_of)
    })
}

fn mtu_of(metric: &RouteMetric) -> Option<u32> {
    if let RouteMetric::Mtu(mtu) = metric { Some(*mtu) } else { None }
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::route::RouteHeader;

    use super::*;

    fn answer(kind: RouteType, attributes: Vec<RouteAttribute>) -> RouteMessage {
        let mut message = RouteMessage::default();
        message.header = RouteHeader { kind, ..RouteHeader::default() };
        message.attributes = attributes;
        message
    }

    /// The loopback device is 1 in every namespace.
    #[test]
    fn answer_names_device_gateway_and_mtu() {
        let gateway = RouteAttribute::Gateway(RouteAddress::Inet([192, 0, 2, 1].into()));
        let mtu = RouteAttribute::Metrics(vec![RouteMetric::Hoplimit(9), RouteMetric::Mtu(1400)]);
        let own = RouteAttribute::PrefSource(RouteAddress::Inet([192, 0, 2, 9].into()));
        let attributes = vec![RouteAttribute::Oif(1), gateway, own, mtu];
        let route = named(&answer(RouteType::Unicast, attributes));
        let gateway = Some([192, 0, 2, 1].into());
        let origin = PathMtuOrigin::Route;
        let expected = NamedRoute {
            device: "lo".to_owned(),
            gateway,
            own: Some([192, 0, 2, 9].into()),
            mtu: 1400,
            origin,
            expires: Duration::ZERO,
        };
        assert_eq!(route, Some(expected));
        let bare = named(&answer(RouteType::Local, vec![RouteAttribute::Oif(1)])).unwrap();
        assert_eq!((bare.gateway, bare.mtu, bare.origin), (None, 0, PathMtuOrigin::Device));
        for (kind, link) in [(RouteType::Unreachable, 1), (RouteType::Unicast, u32::MAX)] {
            assert_eq!(named(&answer(kind, vec![RouteAttribute::Oif(link)])), None);
        }
        assert_eq!(named(&answer(RouteType::Unicast, Vec::new())), None);
    }

    #[test]
    fn only_errors_about_routes_are_answers() {
        let error = |errno: Errno| no_route(io::Error::from(errno));
        assert_eq!(error(Errno::ENETUNREACH).unwrap(), None);
        assert_eq!(error(Errno::EHOSTUNREACH).unwrap(), None);
        assert!(error(Errno::EPERM).is_err() && error(Errno::ENOBUFS).is_err());
    }

    #[test]
    fn kernel_tells_the_way_to_oneself() {
        let own: IpAddr = [127, 0, 0, 1].into();
        let Ok(socket) = RouteSocket::open() else { return };
        let route = socket.route(Some(own), own, 0).unwrap();
        let is_lo =
            |route: NamedRoute| route.device == "lo" && route.mtu == socket.device_mtu("lo");
        assert!(route.is_none_or(is_lo), "none where lo is down");
        assert!(socket.device_mtu("lo") > 0 && socket.device_mtu("no-such") == 0);
    }
}
