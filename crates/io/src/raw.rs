//! Whole IP packets through raw sockets: ESP as protocol 50, and all else that leaves beside it.
//!
//! Sending uses an `IPPROTO_RAW` socket, so any protocol will do (ICMP errors, bypassed packets);
//! the IP header is the buffer's own. The kernel only fills in IPv4's total length, checksum and,
//! where they are 0, source and identification (`net/ipv4/raw.c: raw_send_hdrinc`). It fragments
//! nothing: oversized packets are refused.
//!
//! Receiving takes one protocol only (ESP, or [`RawOptions::protocol`]), after the kernel has
//! reassembled. IPv4 comes with its header, whose checksum is recomputed where there are options.
//! IPv6 comes without (RFC 3542 §3): the header is rebuilt from the addresses, traffic class and
//! hop limit beside the payload; flow label and extension headers are lost, and ESP does not need
//! them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use uxfrm_packet::{Batch, Checksum, IpPacket, PacketBuf, Pool, Protocol, Segments, Version, ipv4};

use crate::cmsg::{ControlMessages, integer};
use crate::esp_fanout::{self, FanoutShare};
use crate::mmsg::{MESSAGES, MmsgReceiver, MmsgSender, OutMessage, RecvCount};
use crate::port::{Accepts, Port, Transmitted, wire_packets};
use crate::socket::{self, RxOverflow, SocketName};

/// Options of a raw port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawOptions {
    /// IP version of the port.
    pub version: Version,
    /// The received protocol; ESP by default.
    pub protocol: Protocol,
    /// Receive only packets to this address; `None` for all of the host's.
    pub local: Option<IpAddr>,
    /// Share of ESP, if several ports share it; other protocols come whole.
    pub share: FanoutShare,
    /// Mark of everything sent (`SO_MARK`); 0 for none.
    pub mark: u32,
    /// Bytes of kernel buffer to ask for in each direction.
    pub buffer: usize,
    /// The kernel timestamps each packet, for [`Port::waited`].
    pub timed: bool,
}

impl RawOptions {
    /// All local addresses of a version, no mark, 8 MiB of kernel buffer each way.
    #[must_use]
    pub fn new(version: Version) -> Self {
        let (protocol, share) = (Protocol::ESP, FanoutShare::ALL);
        Self { version, protocol, local: None, share, mark: 0, buffer: 8 << 20, timed: false }
    }
}

/// Raw sockets of one IP version as a port.
#[derive(Debug)]
pub struct Raw {
    version: Version,
    protocol: Protocol,
    mark: u32,
    incoming: OwnedFd,
    outgoing: OwnedFd,
    receiver: MmsgReceiver,
    sender: MmsgSender,
    overflow: RxOverflow,
    waited: Duration,
    /// Makes the kernel learn path MTUs, see [`pmtu_listener`]; not used otherwise.
    _pmtu_listener: Option<OwnedFd>,
}

/// A socket that makes the kernel learn the MTUs of IPv6 paths of ESP. For raw sockets IPv6 heeds
/// "packet too big" only if they request errors (`net/ipv6/raw.c: rawv6_err`), IPv4 always. Unread
/// errors fill a socket's buffer, so this one receives nothing else.
fn pmtu_listener(mark: u32) -> io::Result<OwnedFd> {
    let pmtu_listener = socket::open(libc::AF_INET6, libc::SOCK_RAW, libc::IPPROTO_ESP)?;
    let fd = pmtu_listener.as_fd();
    socket::attach_filter(fd, &mut [esp_fanout::nothing()])?;
    socket::set(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, 0)?;
    socket::set_mark(fd, mark)?;
    socket::set(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1)?;
    Ok(pmtu_listener)
}

impl Raw {
    /// Opens the sockets. Needs `CAP_NET_RAW` in the user namespace that owns the network
    /// namespace.
    ///
    /// # Errors
    /// The kernel's: not permitted, no such address.
    pub fn open(options: &RawOptions) -> io::Result<Self> {
        let family = family_of(options.version);
        let incoming = socket::open(family, libc::SOCK_RAW, i32::from(options.protocol.0))?;
        Self::receiving(incoming, options)
    }

    /// Continues with a predecessor's receiving socket.
    ///
    /// # Errors
    /// The kernel's.
    pub fn receiving(incoming: OwnedFd, options: &RawOptions) -> io::Result<Self> {
        let family = family_of(options.version);
        if options.protocol == Protocol::ESP {
            esp_fanout::restrict(incoming.as_fd(), options.version, options.share)?;
        }
        let outgoing = socket::open(family, libc::SOCK_RAW, libc::IPPROTO_RAW)?;
        if options.version == Version::V6 {
            for option in [libc::IPV6_RECVPKTINFO, libc::IPV6_RECVTCLASS, libc::IPV6_RECVHOPLIMIT] {
                socket::set(incoming.as_fd(), libc::IPPROTO_IPV6, option, 1)?;
            }
        }
        for fd in [incoming.as_fd(), outgoing.as_fd()] {
            socket::set_mark(fd, options.mark)?;
            socket::enlarge(fd, options.buffer)?;
        }
        if options.timed {
            socket::note_arrival(incoming.as_fd())?;
        }
        if let Some(local) = options.local {
            socket::bind(incoming.as_fd(), SocketAddr::new(local, 0))?;
        }
        let learns = options.version == Version::V6
            && options.protocol == Protocol::ESP
            && options.share.is_first();
        let pmtu_listener = learns.then(|| pmtu_listener(options.mark)).transpose()?;
        let mut overflow = RxOverflow::default();
        // Earlier losses are the predecessor's to report.
        let _before = overflow.since(incoming.as_fd());
        Ok(Self {
            _pmtu_listener: pmtu_listener,
            version: options.version,
            protocol: options.protocol,
            mark: options.mark,
            incoming,
            outgoing,
            receiver: MmsgReceiver::new(),
            sender: MmsgSender::new(),
            overflow,
            waited: Duration::ZERO,
        })
    }

    /// Queues one buffer, a message for each packet in it.
    fn queue(&mut self, index: usize, packets: &[PacketBuf], done: &mut Transmitted) {
        let packet = &packets[index];
        let step = match (packet.udp, packet.segments, packet.checksum) {
            (None, Segments::One, Checksum::AsIs | Checksum::Verified) => packet.len(),
            (None, Segments::Burst { stride }, Checksum::AsIs | Checksum::Verified) => {
                usize::from(stride.max(1))
            }
            (Some(_), _, _)
            | (None, Segments::Tcp { .. } | Segments::Udp { .. }, _)
            | (None, Segments::One | Segments::Burst { .. }, Checksum::Partial { .. }) => {
                return done.unsupported(packet);
            }
        };
        let Some(destination) = destination(self.version, packet.bytes()) else {
            return done
                .refuse(wire_packets(packet), &io::Error::from_raw_os_error(libc::EAFNOSUPPORT));
        };
        let name = SocketName::of(SocketAddr::new(destination, 0));
        for start in (0..packet.len()).step_by(step) {
            if self.sender.is_full() {
                self.flush(packets, done);
            }
            let len = step.min(packet.len() - start);
            self.sender
                .push(OutMessage { packet: index, buffers: 1, start, len, packets: 1 }, name);
        }
    }

    fn flush(&mut self, packets: &[PacketBuf], done: &mut Transmitted) {
        let mut too_big = None;
        self.sender.send(self.outgoing.as_fd(), packets, |part, fate| match fate {
            Ok(()) => {
                done.packets += 1;
                done.bytes += part.len as u64;
            }
            Err(error) => {
                let bytes = packets[part.packet].bytes();
                let bytes = bytes.get(part.start..).unwrap_or_default();
                match esp(bytes) {
                    Some((destination, esp)) => done.refuse_esp(1, error, (destination, esp)),
                    None if destination(self.version, bytes).is_some_and(is_of_own_link) => {}
                    None => done.refuse(1, error),
                }
                if error.raw_os_error() == Some(libc::EMSGSIZE) {
                    too_big = destination(self.version, packets[part.packet].bytes());
                }
            }
        });
        if let Some(remote) = too_big {
            done.refused.path = socket::narrow_path(remote, self.mark);
        }
    }
}

impl Port for Raw {
    fn receive(&mut self, pool: &mut Pool, into: &mut Batch) -> io::Result<usize> {
        let before = into.len();
        while into.room() > 0 {
            let most = MESSAGES.min(into.room());
            let RecvCount { count, is_full } =
                self.receiver.receive(self.incoming.as_fd(), pool, most)?;
            if count > 0 && into.len() == before {
                self.waited = self.receiver.waited();
            }
            for index in 0..count {
                let (mut packet, name, control) = self.receiver.datagram(index, pool);
                let is_whole = match self.version {
                    Version::V4 => renew_checksum(packet.bytes_mut()).is_some(),
                    Version::V6 => {
                        restore_header(&mut packet, self.protocol, name, control).is_some()
                    }
                };
                if is_whole {
                    into.push(packet);
                } else {
                    pool.give(packet);
                }
            }
            if !is_full {
                break;
            }
        }
        Ok(into.len() - before)
    }

    fn transmit(&mut self, batch: &mut Batch, pool: &mut Pool) -> Transmitted {
        let mut done = Transmitted::default();
        self.sender.begin();
        for index in 0..batch.len() {
            self.queue(index, batch.as_slice(), &mut done);
        }
        self.flush(batch.as_slice(), &mut done);
        pool.give_all(batch);
        done
    }

    /// Bursts always: each of their packets is a message of the same system call.
    fn accepts(&self) -> Accepts {
        Accepts { bursts: true, ..Accepts::PLAIN }
    }

    fn waited(&self) -> Duration {
        self.waited
    }

    fn overflowed(&mut self) -> u64 {
        self.overflow.since(self.incoming.as_fd())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.incoming.as_fd())
    }
}

const fn family_of(version: Version) -> i32 {
    match version {
        Version::V4 => libc::AF_INET,
        Version::V6 => libc::AF_INET6,
    }
}

/// Destination address of a packet of this version.
fn destination(version: Version, bytes: &[u8]) -> Option<IpAddr> {
    match (version, bytes.first()? >> 4) {
        (Version::V4, 4) => {
            Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes.get(16..20)?).ok()?).into())
        }
        (Version::V6, 6) => {
            Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes.get(24..40)?).ok()?).into())
        }
        (Version::V4 | Version::V6, _) => None,
    }
}

/// The ESP in an IP packet, and where it goes.
fn esp(bytes: &[u8]) -> Option<(IpAddr, &[u8])> {
    let ip = IpPacket::parse(bytes).ok().filter(|ip| ip.protocol == Protocol::ESP)?;
    Some((ip.destination, ip.upper(bytes)))
}

/// Whether plain packets to there are for the link that they began on, as the kernel's router
/// solicitations and multicast reports on a TUN: no other link is meant to have them, so nothing is
/// lost with them.
fn is_of_own_link(destination: IpAddr) -> bool {
    match destination {
        IpAddr::V4(v4) => v4.is_link_local() || v4.octets()[..3] == [224, 0, 0],
        IpAddr::V6(v6) => {
            let is_link_scope = v6.is_multicast() && v6.octets()[1] & 0x0f <= 2;
            v6.is_unicast_link_local() || is_link_scope
        }
    }
}

/// Recomputes the checksum: the kernel verifies an IPv4 header, then writes into its options
/// (`net/ipv4/ip_options.c: __ip_options_compile`: record route, timestamp) without a new checksum.
/// `None` if there is no header.
fn renew_checksum(bytes: &mut [u8]) -> Option<()> {
    if *bytes.first()? == ipv4::WITHOUT_OPTIONS {
        return Some(());
    }
    ipv4::fill_checksum(bytes).ok()
}

/// Rebuilds the IPv6 header before the payload; `None` if control messages are missing.
fn restore_header(
    packet: &mut PacketBuf,
    protocol: Protocol,
    name: &SocketName,
    control: &ControlMessages,
) -> Option<()> {
    let source = name.address().and_then(|address| match address {
        SocketAddr::V6(v6) => Some(*SocketAddrV6::ip(&v6)),
        SocketAddr::V4(_) => None,
    })?;
    let (mut destination, mut class, mut hops) = (None, 0, 64);
    for (level, kind, data) in control.messages() {
        match (level, kind) {
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                destination = data.get(..16).and_then(|octets| <[u8; 16]>::try_from(octets).ok());
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => class = byte(data)?,
            (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => hops = byte(data)?,
            _not_asked_for => {}
        }
    }
    let length = u16::try_from(packet.len()).ok()?;
    let header = packet.push(40)?;
    header[..4].copy_from_slice(&(6 << 28 | u32::from(class) << 20).to_be_bytes());
    header[4..6].copy_from_slice(&length.to_be_bytes());
    header[6] = protocol.0;
    header[7] = hops;
    header[8..24].copy_from_slice(&source.octets());
    header[24..40].copy_from_slice(&destination?);
    Some(())
}

/// A byte in an `int` control message.
fn byte(data: &[u8]) -> Option<u8> {
    integer(data).and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destination_needs_whole_header_of_version() {
        let mut v4 = [0_u8; 20];
        v4[0] = 0x45;
        v4[16..].copy_from_slice(&[192, 0, 2, 1]);
        assert_eq!(destination(Version::V4, &v4), Some("192.0.2.1".parse().unwrap()));
        assert_eq!(destination(Version::V4, &v4[..19]), None);
        assert_eq!(destination(Version::V6, &v4), None);
        assert_eq!(destination(Version::V6, &[]), None);
    }

    #[test]
    fn ipv4_checksum_is_renewed_after_kernel_options() {
        let mut packet = [0_u8; 28];
        (packet[0], packet[3], packet[20]) = (0x47, 28, 7);
        ipv4::fill_checksum(&mut packet).unwrap();
        let before = packet;
        packet[24] = 192;
        renew_checksum(&mut packet).unwrap();
        assert!(ipv4::Ipv4::parse(&packet).unwrap().checksum_is_right());
        assert_eq!((packet[..10].to_vec(), packet[24]), (before[..10].to_vec(), 192));
        assert!(renew_checksum(&mut []).is_none());
    }

    #[test]
    fn an_ipv6_header_is_restored() {
        let mut control = ControlMessages::EMPTY;
        let mut info = [0; 20];
        info[15] = 1;
        control.put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
        control.put(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &0xb9_i32.to_ne_bytes());
        control.put(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &63_i32.to_ne_bytes());
        let name = SocketName::of("[2001:db8::2]:0".parse().unwrap());
        let mut packet = PacketBuf::from_slice(b"payload!");
        restore_header(&mut packet, Protocol::ESP, &name, &control).unwrap();
        assert_eq!(packet.bytes()[..8], [0x6b, 0x90, 0, 0, 0, 8, 50, 63]);
        assert_eq!(packet.bytes()[8..24], "2001:db8::2".parse::<Ipv6Addr>().unwrap().octets());
        assert_eq!(packet.bytes()[24..40], Ipv6Addr::LOCALHOST.octets());
        assert!(
            restore_header(&mut packet, Protocol::ESP, &name, &ControlMessages::EMPTY).is_none()
        );
    }
}
