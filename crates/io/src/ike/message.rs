//! Messages between the gateway and a daemon's socket: a header of 48 bytes, then the datagram's
//! payload.
//!
//! | bytes | field | content |
//! | --- | --- | --- |
//! | 0–3 | magic | `uxd1` |
//! | 4 | family | 4 or 6 |
//! | 5 | tos | the TOS or traffic-class byte |
//! | 6–7 | | zero |
//! | 8–9 | local port | in network byte order |
//! | 10–11 | remote port | in network byte order |
//! | 12–15 | scope | interface index of a link-local address, in host byte order |
//! | 16–31 | local address | IPv4 in the first four bytes; unspecified: the kernel's choice |
//! | 32–47 | remote address | likewise |
//!
//! `crates/redirect/src/ends.rs` is the other end; it may use no crate of ours, so a test keeps the
//! two alike.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use uxfrm_packet::UdpPath;

/// Bytes before the payload.
pub(super) const LENGTH: usize = 48;

const MAGIC: [u8; 4] = *b"uxd1";

/// The bytes before the payload of a datagram on `path`.
pub(super) fn header(path: &UdpPath) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4] = if path.remote.is_ipv4() { 4 } else { 6 };
    bytes[5] = path.tos;
    bytes[8..10].copy_from_slice(&path.local.port().to_be_bytes());
    bytes[10..12].copy_from_slice(&path.remote.port().to_be_bytes());
    if let SocketAddr::V6(remote) = path.remote {
        bytes[12..16].copy_from_slice(&remote.scope_id().to_ne_bytes());
    }
    put(&mut bytes[16..32], path.local.ip());
    put(&mut bytes[32..48], path.remote.ip());
    bytes
}

/// Parses a message into its path and payload.
pub(super) fn parse(message: &[u8]) -> Option<(UdpPath, &[u8])> {
    let (header, payload) = message.split_first_chunk::<LENGTH>()?;
    if header[..4] != MAGIC {
        return None;
    }
    let local = u16::from_be_bytes([header[8], header[9]]);
    let remote = u16::from_be_bytes([header[10], header[11]]);
    let scope = u32::from_ne_bytes([header[12], header[13], header[14], header[15]]);
    let end = |at: usize, port: u16| -> Option<SocketAddr> {
        let bytes = &header[at..at + 16];
        match header[4] {
            4 => {
                let ip = Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]);
                Some(SocketAddrV4::new(ip, port).into())
            }
            6 => {
                let ip = Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?);
                Some(SocketAddrV6::new(ip, port, 0, scope).into())
            }
            _ => None,
        }
    };
    let (local, remote) = (end(16, local)?, end(32, remote)?);
    Some((UdpPath { local, remote, tos: header[5], dont_fragment: false }, payload))
}

/// A parsed message is the same once written again.
#[cfg(any(test, fuzzing))]
pub(crate) fn there_and_back(bytes: &[u8]) {
    if let Some((path, payload)) = parse(bytes) {
        let again = [&header(&path)[..], payload].concat();
        assert_eq!(parse(&again), Some((path, payload)));
    }
}

fn put(to: &mut [u8], address: IpAddr) {
    match address {
        IpAddr::V4(ip) => to[..4].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => to.copy_from_slice(&ip.octets()),
    }
}
