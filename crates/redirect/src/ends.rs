//! The header of each datagram between the gateway and a redirected UDP socket, and both names.
//!
//! | bytes | field | is |
//! | --- | --- | --- |
//! | 0–3 | magic | `uxd1` |
//! | 4 | family | 4 or 6 |
//! | 5 | tos | the TOS or traffic-class byte |
//! | 6–7 | | zero |
//! | 8–9 | local port | in network byte order |
//! | 10–11 | remote port | in network byte order |
//! | 12–15 | scope | interface index for link-local addresses, in host byte order |
//! | 16–31 | local address | IPv4 in the first four bytes; to the gateway: unspecified |
//! | 32–47 | remote address | likewise |
//!
//! Why there is a Unix socket at all is told in `crates/io/src/ike.rs`.

/// Bytes before a datagram's payload.
pub const LENGTH: usize = 48;

/// Room for a name: `uxfrm/udp/65535/` and 32 digits.
pub const NAME: usize = 48;

const MAGIC: [u8; 4] = *b"uxd1";

/// Bytes of an IPv4 address; the rest of [`End::address`] is zero then.
const IPV4: usize = 4;

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressFamily {
    /// IPv4.
    V4 = 4,
    /// IPv6.
    V6 = 6,
}

/// An address and a port, in the machine's byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The address as on the wire, left-aligned.
    pub address: [u8; 16],
    /// The port.
    pub port: u16,
}

/// Local and remote address of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Of both addresses.
    pub family: AddressFamily,
    /// The TOS or traffic-class byte.
    pub tos: u8,
    /// The interface's index, or zero.
    pub scope: u32,
    /// This host's end.
    pub local: End,
    /// The other one.
    pub remote: End,
}

impl Ends {
    /// The bytes on the socket.
    #[must_use]
    pub fn to_bytes(self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[..4].copy_from_slice(&MAGIC);
        (bytes[4], bytes[5]) = (self.family as u8, self.tos);
        bytes[8..10].copy_from_slice(&self.local.port.to_be_bytes());
        bytes[10..12].copy_from_slice(&self.remote.port.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.scope.to_ne_bytes());
        bytes[16..32].copy_from_slice(&self.local.address);
        bytes[32..].copy_from_slice(&self.remote.address);
        bytes
    }

    /// The ends that the bytes say; `None` when they are not from a gateway.
    #[must_use]
    pub fn parse(bytes: &[u8; LENGTH]) -> Option<Self> {
        if bytes[..4] != MAGIC {
            return None;
        }
        let family = match bytes[4] {
            4 => AddressFamily::V4,
            6 => AddressFamily::V6,
            _ => return None,
        };
        let end = |port: usize, address: usize| End {
            address: std::array::from_fn(|index| bytes[address + index]),
            port: u16::from_be_bytes([bytes[port], bytes[port + 1]]),
        };
        let scope = u32::from_ne_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]);
        Some(Self { family, tos: bytes[5], scope, local: end(8, 16), remote: end(10, 32) })
    }
}

/// Writes the name of the gateway's socket for a port, or of the socket bound to it; its length.
pub fn name(port: u16, bound: Option<(AddressFamily, &[u8; 16])>, into: &mut [u8; NAME]) -> usize {
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        into[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
        at
    };
    put(b"uxfrm/udp/");
    let digits = [10_000, 1000, 100, 10, 1].map(|unit| b'0' + (port / unit % 10) as u8);
    let zeros = digits.iter().take(4).take_while(|digit| **digit == b'0').count();
    let Some((family, address)) = bound else { return put(&digits[zeros..]) };
    put(&digits[zeros..]);
    put(b"/");
    let bytes = match family {
        AddressFamily::V4 => &address[..IPV4],
        AddressFamily::V6 => &address[..],
    };
    let hex = |nibble: u8| b"0123456789abcdef"[usize::from(nibble & 15)];
    bytes.iter().fold(0, |_, byte| put(&[hex(byte >> 4), hex(*byte)]))
}
