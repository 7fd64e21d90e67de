//! Opens TUNs, raw sockets and receive port sockets of tunnels, and finds the route to the other
//! end.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use uxfrm_io::rtnetlink::RouteLookup;
use uxfrm_io::{
    Port, Raw, RawOptions, Rtnetlink, SegmentingPort, Tun, TunOptions, Udp, UdpOptions,
    ipv6_support::{MissingIpPort, is_missing},
    random,
};
use uxfrm_link::{Admin, TunnelLink};
use uxfrm_netlink::NetlinkError;
use uxfrm_packet::{Protocol, Version};
use uxfrm_runtime::{TunnelRoute, egress};
use uxfrm_tunnel::{
    DecapPort as ReceivePort, PortIdentity, Tunnel, TunnelConfig, ports::ZeroChecksum6,
};

use super::error;
use crate::{
    local_ports,
    tun::{QUEUE, gso_limit},
};

/// What the network takes towards who knows where.
const USUAL_MTU: usize = 1500;
/// `IPPROTO_RAW`: a socket that only sends.
const SENDS_ONLY: Protocol = Protocol(255);
/// `ENETUNREACH`
const UNREACHABLE: i32 = 101;

/// The way to a tunnel's other end, as it is now. The interface's MTU follows from it where it is
/// not said.
pub(super) fn route(
    tunnel: Arc<Tunnel>,
    mtu: Option<u16>,
    rtnetlink: &mut Rtnetlink,
) -> Result<TunnelRoute, NetlinkError> {
    let TunnelConfig { local, remote, .. } = *tunnel.config();
    let way = if remote.is_unspecified() { None } else { way(local, remote, rtnetlink) };
    let path_mtu =
        way.as_ref().map_or(USUAL_MTU, |way| usize::try_from(way.mtu).unwrap_or(USUAL_MTU));
    let local = match way.and_then(|way| way.source) {
        Some(source) if local.is_unspecified() => source,
        Some(_) | None => local,
    };
    if local.is_unspecified() && needs_local(tunnel.config()) {
        let text = format!("no way leads to {remote}, so the tunnel needs a local address");
        return Err(NetlinkError { errno: UNREACHABLE, text: Some(text.into()), offset: None });
    }
    let device_mtu = mtu.map_or_else(|| tunnel.device_mtu(path_mtu), usize::from);
    let [a, b, c, d, e, f, g, h, ..] =
        random::seed().map_err(|error| error::of_system(&error, "a source of random numbers"))?;
    let seed = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
    let egress = egress((path_mtu, device_mtu), seed, local_ports::range());
    Ok(TunnelRoute { tunnel, local, egress })
}

/// The way from an address, or from the one that the kernel chooses: what protects packets may lead
/// those of the address another way, which takes less.
fn way(local: IpAddr, remote: IpAddr, rtnetlink: &mut Rtnetlink) -> Option<RouteLookup> {
    let chosen = rtnetlink.route_to(remote, 0).ok();
    let source = if local.is_unspecified() { chosen?.source } else { Some(local) };
    rtnetlink.route_between(source, remote, 0).ok().or(chosen)
}

/// Whether the kernel can't fill in the source address: IPv6 headers have no such thing, and a UDP
/// checksum covers it.
fn needs_local(config: &TunnelConfig) -> bool {
    !config.remote.is_unspecified() && (config.udp.is_some() || config.kind.outer() == Version::V6)
}

/// A tunnel's TUN, and its index. It is up only where that is said, as the kernel's.
pub(super) fn tun(
    link: &TunnelLink,
    route: &TunnelRoute,
    rtnetlink: &mut Rtnetlink,
) -> Result<(Box<dyn Port>, u32), NetlinkError> {
    let tun = Tun::open(&TunOptions::new(&link.name))
        .map_err(|error| error::of_system(&error, &format!("the TUN {}", link.name)))?;
    // A link-local address would make the kernel send neighbour and router solicitations into the
    // tunnel.
    let addr_gen_mode = format!("net/ipv6/conf/{}/addr_gen_mode", tun.name());
    if let Err(error) = uxfrm_io::netns::set_sysctl(&addr_gen_mode, "1") {
        tracing::debug!(%error, "the kernel has no IPv6 on the TUN");
    }
    let index = rtnetlink.link(tun.name()).map_err(error::of_rtnetlink)?.index;
    // Also while another process of the gateway takes over.
    rtnetlink.set_queue_length(index, QUEUE).map_err(error::of_rtnetlink)?;
    adjust(index, route, link.admin, rtnetlink)?;
    Ok((Box::new(SegmentingPort::new(tun)), index))
}

/// Gives a tunnel's interface its MTU, and sets it up or down where that is said.
pub(super) fn adjust(
    index: u32,
    route: &TunnelRoute,
    admin: Option<Admin>,
    rtnetlink: &mut Rtnetlink,
) -> Result<(), NetlinkError> {
    let mtu = u32::try_from(route.egress.device_mtu).unwrap_or(u32::MAX).min(u32::from(u16::MAX));
    rtnetlink.set_mtu(index, mtu).map_err(error::of_rtnetlink)?;
    let path_mtu = u32::try_from(route.egress.path_mtu).unwrap_or(u32::MAX);
    gso_limit::fit(rtnetlink, index, path_mtu);
    match admin {
        None => Ok(()),
        Some(Admin::Up) => rtnetlink.set_up(index).map_err(error::of_rtnetlink),
        Some(Admin::Down) => rtnetlink.set_down(index).map_err(error::of_rtnetlink),
    }
}

/// The socket of a receive port.
pub(super) fn datagrams(port: &ReceivePort) -> Result<Udp, NetlinkError> {
    let identity = &port.identity;
    let local = match identity.local {
        // A link-local address is one of its device's.
        IpAddr::V6(address) if address.is_unicast_link_local() => {
            SocketAddrV6::new(address, identity.port, 0, identity.device).into()
        }
        IpAddr::V4(_) | IpAddr::V6(_) => SocketAddr::new(identity.local, identity.port),
    };
    let options = UdpOptions { device: identity.device, ..UdpOptions::new(local) };
    let socket = Udp::open(&options).map_err(|error| error::bare(&error))?;
    allow(port, &socket).map_err(|error| error::bare(&error))?;
    Ok(socket)
}

/// The socket of a receive port, or of one at a single address, that another process has had until
/// now.
pub(super) fn taken_datagrams(
    identity: &PortIdentity,
    socket: OwnedFd,
) -> Result<Udp, NetlinkError> {
    let local = SocketAddr::new(identity.local, identity.port);
    let options = UdpOptions { device: identity.device, ..UdpOptions::new(local) };
    Udp::of_socket(socket, &options).map_err(|error| error::bare(&error))
}

/// Takes datagrams without checksum where the port does.
pub(super) fn allow(port: &ReceivePort, socket: &Udp) -> io::Result<()> {
    match port.zero_checksum6 {
        ZeroChecksum6::Allow => socket.accept_without_checksum(),
        ZeroChecksum6::Refuse => Ok(()),
    }
}

/// A socket for whole packets of a protocol.
pub(super) fn raw(version: Version, protocol: Protocol) -> Result<Box<dyn Port>, NetlinkError> {
    raw_of(version, protocol, Raw::open)
}

/// The same of one that another process has received by until now.
pub(super) fn taken_raw(
    version: Version,
    protocol: Protocol,
    socket: OwnedFd,
) -> Result<Box<dyn Port>, NetlinkError> {
    raw_of(version, protocol, |options| Raw::receiving(socket, options))
}

fn raw_of(
    version: Version,
    protocol: Protocol,
    open: impl FnOnce(&RawOptions) -> io::Result<Raw>,
) -> Result<Box<dyn Port>, NetlinkError> {
    let open = || -> io::Result<Box<dyn Port>> {
        if is_missing(version) {
            return Ok(Box::new(MissingIpPort::new()?));
        }
        Ok(Box::new(open(&RawOptions { protocol, ..RawOptions::new(version) })?))
    };
    let what = || format!("a raw socket for {protocol} (needs CAP_NET_RAW)");
    open().map_err(|error| error::of_system(&error, &what()))
}

/// A socket for whole packets that leave.
pub(super) fn sending(version: Version) -> Result<Box<dyn Port>, NetlinkError> {
    raw(version, SENDS_ONLY)
}
