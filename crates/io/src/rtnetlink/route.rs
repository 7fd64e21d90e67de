//! Routes, and route lookups.

mod encoded;

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::{Error, RoutePrefix, Rtnetlink};
use encoded::SignalRequest;

/// The main table (`RT_TABLE_MAIN`).
const MAIN: u32 = 254;

/// Targets of routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// A device by index, with on-link neighbours.
    Link(u32),
    /// A gateway, by the device of this index if given.
    Gateway(IpAddr, Option<u32>),
    /// Drops packets with an ICMP error (`unreachable`). With a high metric behind a TUN's routes
    /// it keeps packets from leaving plain when the TUN is gone.
    Unreachable,
    /// Drops packets silently (`blackhole`).
    Blackhole,
    /// Continues with the next rule (`throw`).
    Throw,
}

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Its destination; host bits must be 0.
    pub destination: RoutePrefix,
    /// Its target.
    pub via: Via,
    /// The table it is in.
    pub table: u32,
    /// Source address of packets that have none yet.
    pub source: Option<IpAddr>,
    /// Lower is preferred; `None` leaves it to the kernel (0 for IPv4, 1024 for IPv6).
    pub metric: Option<u32>,
    /// Its MTU in bytes; `None` for the device's.
    pub mtu: Option<u32>,
}

impl Route {
    /// A route in the main table.
    #[must_use]
    pub fn new(destination: RoutePrefix, via: Via) -> Self {
        Self { destination, via, table: MAIN, source: None, metric: None, mtu: None }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.via {
            Via::Link(link) => write!(f, "{} dev index {link}", self.destination)?,
            Via::Gateway(gateway, _) => write!(f, "{} via {gateway}", self.destination)?,
            Via::Unreachable => write!(f, "unreachable {}", self.destination)?,
            Via::Blackhole => write!(f, "blackhole {}", self.destination)?,
            Via::Throw => write!(f, "throw {}", self.destination)?,
        }
        write!(f, " table {}", self.table)
    }
}

/// A change of one route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteChange {
    /// Adds it, replacing one to the same destination with the same metric.
    Put(Route),
    /// Deletes it, if it exists.
    Delete(Route),
}

/// Changes per datagram.
const TOGETHER: usize = 64;

/// Result of a route lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteLookup {
    /// The outgoing device.
    pub link: u32,
    /// The source address.
    pub source: Option<IpAddr>,
    /// The gateway; `None` for an on-link destination.
    pub gateway: Option<IpAddr>,
    /// MTU in bytes: the path MTU if known, else the device's.
    pub mtu: u32,
    /// Whether the kernel will forget this route, and with it an MTU that routers told.
    pub expires: bool,
    /// Whether the host receives it: the destination is its own address, or a broadcast.
    pub is_local: bool,
    /// Whether only the kernel can send by it: it encapsulates (`encap`), or the gateway is of
    /// another family (`via inet6`).
    pub needs_kernel: bool,
}

impl Rtnetlink {
    /// Adds a route.
    ///
    /// # Errors
    /// [`Error::Exists`] when there is one to the same destination with the same metric in the
    /// table.
    pub fn add_route(&mut self, route: &Route) -> Result<(), Error> {
        self.request_route(SignalRequest::New, NLM_F_CREATE | NLM_F_EXCL, route)
    }

    /// Deletes a route.
    ///
    /// # Errors
    /// [`Error::NotFound`] when there is no such route.
    pub fn delete_route(&mut self, route: &Route) -> Result<(), Error> {
        self.request_route(SignalRequest::Delete, 0, route)
    }

    /// Applies changes in order, many per system call. A failure does not stop the others.
    ///
    /// # Errors
    /// The kernel's about the first that failed.
    pub fn change_routes(&mut self, changes: &[RouteChange]) -> Result<(), Error> {
        let mut result = Ok(());
        for some in changes.chunks(TOGETHER) {
            let encode = |change: &RouteChange, sequence: u32, bytes: &mut Vec<u8>| match change {
                RouteChange::Put(route) => {
                    let flags = NLM_F_CREATE | NLM_F_REPLACE;
                    encoded::append(SignalRequest::New, flags, sequence, route, bytes);
                }
                RouteChange::Delete(route) => {
                    encoded::append(SignalRequest::Delete, 0, sequence, route, bytes);
                }
            };
            let failed =
                self.request_all(some, encode).map_err(|error| Error::of("routes", error))?;
            for (place, errno) in failed {
                let error = io::Error::from_raw_os_error(errno);
                let error = match some.get(place) {
                    Some(RouteChange::Put(route)) => failure(SignalRequest::New, route, error),
                    Some(RouteChange::Delete(_)) if errno == libc::ESRCH => continue,
                    Some(RouteChange::Delete(route)) => {
                        failure(SignalRequest::Delete, route, error)
                    }
                    None => continue, // of an earlier request
                };
                result = result.and(Err(error));
            }
        }
        result
    }

    fn request_route(
        &mut self,
        request: SignalRequest,
        flags: u16,
        route: &Route,
    ) -> Result<(), Error> {
        let encode = |route: &Route, sequence: u32, bytes: &mut Vec<u8>| {
            encoded::append(request, flags, sequence, route, bytes);
        };
        let failed = self
            .request_all(std::slice::from_ref(route), encode)
            .map_err(|error| failure(request, route, error))?;
        match failed.iter().find(|(place, _)| *place == 0) {
            Some((_, errno)) => Err(failure(request, route, io::Error::from_raw_os_error(*errno))),
            None => Ok(()),
        }
    }

    /// All routes of both families in a table, except broadcast, multicast and multipath ones.
    ///
    /// # Errors
    /// The kernel's.
    pub fn routes(&mut self, table: u32) -> Result<Vec<Route>, Error> {
        self.routes_of(&[table])
    }

    /// All routes in several tables.
    ///
    /// # Errors
    /// The kernel's.
    pub fn routes_of(&mut self, tables: &[u32]) -> Result<Vec<Route>, Error> {
        let mut routes = Vec::new();
        for (family, is_v4) in [(AddressFamily::Inet, true), (AddressFamily::Inet6, false)] {
            let mut message = RouteMessage::default();
            message.header.address_family = family;
            let found = self.dump("routes", RouteNetlinkMessage::GetRoute(message))?;
            // For a family that the kernel lacks it dumps the others.
            let is_meant = |route: &Route| {
                tables.contains(&route.table) && route.destination.address().is_ipv4() == is_v4
            };
            routes.extend(found.into_iter().filter_map(read).filter(is_meant));
        }
        Ok(routes)
    }

    /// Looks up the route of a packet to `destination` with `mark`.
    ///
    /// # Errors
    /// [`Error::Refused`] with `ENETUNREACH` or `EHOSTUNREACH` when no route leads there.
    pub fn route_to(&mut self, destination: IpAddr, mark: u32) -> Result<RouteLookup, Error> {
        self.route_between(None, destination, mark)
    }

    /// Looks up the route of a packet from the host's address `source`, if given.
    ///
    /// # Errors
    /// As [`Rtnetlink::route_to`].
    pub fn route_between(
        &mut self,
        source: Option<IpAddr>,
        destination: IpAddr,
        mark: u32,
    ) -> Result<RouteLookup, Error> {
        let mut message = question(destination, mark);
        if let Some(source) = source {
            message.header.source_prefix_length = RoutePrefix::host(source).length();
            message.attributes.push(RouteAttribute::Source(source.into()));
        }
        self.look_up(destination, message)
    }

    /// The MTU of the entry that leads to `destination`, or of its device, in bytes: what routers
    /// have told since is left out. Kernels before 4.13 tell that instead.
    ///
    /// # Errors
    /// As [`Rtnetlink::route_to`], and where the entry has several next hops.
    pub fn lasting_mtu(&mut self, destination: IpAddr, mark: u32) -> Result<u32, Error> {
        let mut message = question(destination, mark);
        message.header.flags = RouteFlags::FibMatch;
        self.look_up(destination, message).map(|entry| entry.mtu)
    }

    fn look_up(
        &mut self,
        destination: IpAddr,
        message: RouteMessage,
    ) -> Result<RouteLookup, Error> {
        let request = format!("route to {destination}");
        let found = self.ask(&request, RouteNetlinkMessage::GetRoute(message))?;
        let chosen = found.into_iter().find_map(choose);
        let mut chosen = chosen.ok_or_else(|| Error::Unreadable {
            request,
            reason: "it names no device".to_owned(),
        })?;
        if chosen.mtu == 0 {
            chosen.mtu = self.link_of_index(chosen.link)?.mtu;
        }
        Ok(chosen)
    }
}

/// Asks for the route of a packet with a mark.
fn question(destination: IpAddr, mark: u32) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = destination.into();
    message.header.destination_prefix_length = RoutePrefix::host(destination).length();
    message.attributes.push(RouteAttribute::Destination(destination.into()));
    if mark != 0 {
        message.attributes.push(RouteAttribute::Mark(mark));
    }
    message
}

fn failure(request: SignalRequest, route: &Route, error: io::Error) -> Error {
    let request = match request {
        SignalRequest::New => format!("route {route}"),
        SignalRequest::Delete => format!("delete route {route}"),
    };
    Error::of(&request, error)
}

/// Attributes of an answer.
#[derive(Default)]
struct RouteAttributes {
    destination: Option<IpAddr>,
    link: Option<u32>,
    gateway: Option<IpAddr>,
    source: Option<IpAddr>,
    metric: Option<u32>,
    table: Option<u32>,
    mtu: Option<u32>,
    expires: bool,
    needs_kernel: bool,
}

impl RouteAttributes {
    fn of(attributes: Vec<RouteAttribute>) -> Self {
        let mut found = Self::default();
        for attribute in attributes {
            #[expect(
                clippy::wildcard_enum_match_arm,
                reason = "the library's enum is open; the rest is not of use"
            )]
            match attribute {
                RouteAttribute::Destination(address) => found.destination = ip(&address),
                RouteAttribute::Oif(link) => found.link = Some(link),
                RouteAttribute::Gateway(address) => found.gateway = ip(&address),
                RouteAttribute::PrefSource(address) => found.source = ip(&address),
                RouteAttribute::Priority(metric) => found.metric = Some(metric),
                RouteAttribute::Table(table) => found.table = Some(table),
                RouteAttribute::Metrics(metrics) => {
                    found.mtu = metrics.iter().find_map(|metric| match metric {
                        RouteMetric::Mtu(mtu) => Some(*mtu),
                        _ => None,
                    });
                }
                RouteAttribute::CacheInfo(cached) => found.expires = cached.expires != 0,
                RouteAttribute::Encap(_)
                | RouteAttribute::EncapType(_)
                | RouteAttribute::NewDestination(_)
                | RouteAttribute::Via(_) => found.needs_kernel = true,
                _ => {}
            }
        }
        found
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    if let RouteAddress::Inet(v4) = address {
        Some((*v4).into())
    } else if let RouteAddress::Inet6(v6) = address {
        Some((*v6).into())
    } else {
        None
    }
}

pub(super) fn read(answer: RouteNetlinkMessage) -> Option<Route> {
    let RouteNetlinkMessage::NewRoute(message) = answer else { return None };
    let header = message.header;
    let found = RouteAttributes::of(message.attributes);
    let everything: IpAddr = if header.address_family == AddressFamily::Inet {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let via = match (header.kind, found.gateway, found.link) {
        (RouteType::Unicast | RouteType::Local, Some(gateway), link) => Via::Gateway(gateway, link),
        (RouteType::Unicast | RouteType::Local, None, Some(link)) => Via::Link(link),
        (RouteType::Unreachable, _, _) => Via::Unreachable,
        (RouteType::BlackHole, _, _) => Via::Blackhole,
        (RouteType::Throw, _, _) => Via::Throw,
        _other_kinds => return None,
    };
    Some(Route {
        destination: RoutePrefix::new(
            found.destination.unwrap_or(everything),
            header.destination_prefix_length,
        )?,
        via,
        table: found.table.unwrap_or_else(|| u32::from(header.table)),
        source: found.source,
        metric: found.metric,
        mtu: found.mtu,
    })
}

pub(super) fn choose(answer: RouteNetlinkMessage) -> Option<RouteLookup> {
    let RouteNetlinkMessage::NewRoute(message) = answer else { return None };
    let is_local = matches!(message.header.kind, RouteType::Local | RouteType::Broadcast);
    let found = RouteAttributes::of(message.attributes);
    Some(RouteLookup {
        link: found.link?,
        source: found.source,
        gateway: found.gateway,
        mtu: found.mtu.unwrap_or(0),
        expires: found.expires,
        is_local,
        needs_kernel: found.needs_kernel,
    })
}
