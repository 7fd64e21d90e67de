//! A datagram's addresses and TOS in control messages, both ways.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;

use uxfrm_packet::{PacketBuf, Segments, UdpPath};

use crate::cmsg::{ControlMessages, integer};
use crate::socket;

/// Requests control messages for what the socket's own address does not tell: the destination
/// address, and the TOS.
pub(super) fn ask_for_path(fd: BorrowedFd<'_>, local: IpAddr) -> io::Result<()> {
    let address = i32::from(local.is_unspecified());
    match local {
        IpAddr::V4(_) => {
            socket::set(fd, libc::IPPROTO_IP, libc::IP_PKTINFO, address)?;
            socket::set(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)
        }
        IpAddr::V6(_) => {
            socket::set(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
            socket::set(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, address)?;
            socket::set(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)
        }
    }
}

/// Control messages for the outer header.
pub(crate) fn write_path(control: &mut ControlMessages, path: &UdpPath) {
    write_source(control, path.local.ip());
    write_tos(control, path);
}

/// Sets a datagram's source address.
pub(super) fn write_source(control: &mut ControlMessages, local: IpAddr) {
    match local {
        local if local.is_unspecified() => {}
        IpAddr::V4(local) => {
            let mut info = [0; 12];
            info[4..8].copy_from_slice(&local.octets());
            control.put(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
        }
        IpAddr::V6(local) => {
            let mut info = [0; 20];
            info[..16].copy_from_slice(&local.octets());
            control.put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
        }
    }
}

pub(super) fn write_tos(control: &mut ControlMessages, path: &UdpPath) {
    if path.tos != 0 {
        let (level, kind) = match path.remote {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
        };
        control.put(level, kind, &i32::from(path.tos).to_ne_bytes());
    }
}

/// Sets a received datagram's or burst's metadata from its control messages.
pub(super) fn read_path(
    packet: &mut PacketBuf,
    control: &ControlMessages,
    bound: SocketAddr,
    remote: SocketAddr,
) {
    let mut path = UdpPath { local: bound, remote, tos: 0, dont_fragment: false };
    for (level, kind, data) in control.messages() {
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                if let Some(octets) =
                    data.get(8..12).and_then(|octets| <[u8; 4]>::try_from(octets).ok())
                {
                    path.local.set_ip(Ipv4Addr::from(octets).into());
                }
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                if let Some(octets) =
                    data.get(..16).and_then(|octets| <[u8; 16]>::try_from(octets).ok())
                {
                    path.local.set_ip(Ipv6Addr::from(octets).into());
                }
            }
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                path.tos = integer(data).and_then(|tos| u8::try_from(tos).ok()).unwrap_or(0);
            }
            (libc::SOL_UDP, libc::UDP_GRO) => {
                let stride = integer(data).and_then(|size| u16::try_from(size).ok()).unwrap_or(0);
                if stride > 0 && packet.len() > usize::from(stride) {
                    packet.segments = Segments::Burst { stride };
                }
            }
            _not_asked_for => {}
        }
    }
    packet.udp = Some(path);
}
