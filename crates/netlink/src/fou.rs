//! Generic netlink family `fou`: requests of `ip fou` and their answers
//! (`Documentation/netlink/specs/fou.yaml`, `include/uapi/linux/fou.h`).
//!
//! Covers `struct genlmsghdr` and attributes, total on any bytes. Lengths are checked as by the
//! kernel's policy (`net/ipv4/fou_nl.c: fou_nl_policy`), values by the table of ports.
//!
//! Two attributes are uxfrm's own: a get request with [`STATISTICS`] is answered with
//! [`NamedCounters`]; a port with [`CHECKSUM6`] refuses IPv6 datagrams without checksum, as every
//! kernel port does.
//!
//! The family's number is above the kernel's highest (`GENL_MAX_ID`, 1023), so that one socket can
//! speak to kernel families too; `uxfrm exec` tells them apart by it.

mod family;

use std::net::{Ipv4Addr, Ipv6Addr};

pub use uxfrm_netlink_wire::fou::{FAMILY, FAMILY_ID};
use uxfrm_netlink_wire::genl::{FAMILY_HEADER_LEN, GenlHeader};
use uxfrm_netlink_wire::{AttributeWriter, RawAttributes};

pub use self::family::{CONTROL, FamilyQuery};
use crate::counts::NamedCounters;
use crate::refusal::{NetlinkError, number};

/// The family's version.
pub const VERSION: u8 = 1;

/// `FOU_ATTR_MAX`
const HIGHEST: u32 = 11;

/// Our own attribute: without value in a request to get, [`NamedCounters`] in answers to it.
pub const STATISTICS: u16 = 0x1000;
/// Our own attribute, without value: of datagrams over IPv6 only those with a checksum are taken.
pub const CHECKSUM6: u16 = 0x1001;

/// What is to be done (`FOU_CMD_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FouCommand {
    /// A port is to be there.
    Add = 1,
    /// A port is to go.
    Delete = 2,
    /// A port is asked for, or with `NLM_F_DUMP` all; and each answer.
    Get = 3,
}

impl FouCommand {
    const fn of(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Add),
            2 => Some(Self::Delete),
            3 => Some(Self::Get),
            _ => None,
        }
    }
}

/// The attributes of a port; `None` for those that are not there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortAttributes {
    /// `FOU_ATTR_PORT`, in network order on the wire.
    pub port: Option<u16>,
    /// `FOU_ATTR_AF`.
    pub family: Option<u8>,
    /// `FOU_ATTR_IPPROTO`.
    pub protocol: Option<u8>,
    /// `FOU_ATTR_TYPE`: 1 direct, 2 GUE.
    pub kind: Option<u8>,
    /// `FOU_ATTR_REMCSUM_NOPARTIAL` is there.
    pub remcsum_nopartial: bool,
    /// `FOU_ATTR_LOCAL_V4`.
    pub local4: Option<Ipv4Addr>,
    /// `FOU_ATTR_LOCAL_V6`.
    pub local6: Option<Ipv6Addr>,
    /// `FOU_ATTR_PEER_V4`.
    pub peer4: Option<Ipv4Addr>,
    /// `FOU_ATTR_PEER_V6`.
    pub peer6: Option<Ipv6Addr>,
    /// `FOU_ATTR_PEER_PORT`, in network order on the wire.
    pub peer_port: Option<u16>,
    /// `FOU_ATTR_IFINDEX`, a signed number on the wire.
    pub ifindex: Option<i32>,
    /// [`STATISTICS`], empty in a request.
    pub statistics: Option<NamedCounters>,
    /// [`CHECKSUM6`] is there.
    pub checksum6: bool,
}

impl PortAttributes {
    /// Reads a message's body. Unknown attributes are skipped; the last of a type counts.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for an unknown command, `EINVAL` without one, `ERANGE` with the offset for a
    /// short attribute.
    pub fn decode(body: &[u8]) -> Result<(FouCommand, Self), NetlinkError> {
        let (header, attributes) =
            GenlHeader::split(body).ok_or(NetlinkError::bare(number::EINVAL))?;
        let command =
            FouCommand::of(header.command).ok_or(NetlinkError::bare(number::EOPNOTSUPP))?;
        let mut found = Self::default();
        for attribute in RawAttributes::of(attributes) {
            let place = FAMILY_HEADER_LEN + attribute.offset;
            let taken = found.take(attribute.kind, attribute.value);
            taken.ok_or_else(|| NetlinkError::too_short(place))?;
        }
        Ok((command, found))
    }

    /// Appends a message's body, attributes in the order of their numbers.
    pub fn encode(&self, command: FouCommand, out: &mut Vec<u8>) {
        out.extend(GenlHeader { command: command as u8, version: VERSION }.to_bytes());
        let mut out = AttributeWriter::new(out);
        let mut put = |kind, value: Option<&[u8]>| {
            value.into_iter().for_each(|value| out.bytes(kind, value));
        };
        put(1, self.port.map(u16::to_be_bytes).as_ref().map(<[u8; 2]>::as_slice));
        put(2, self.family.map(|family| [family]).as_ref().map(<[u8; 1]>::as_slice));
        put(3, self.protocol.map(|protocol| [protocol]).as_ref().map(<[u8; 1]>::as_slice));
        put(4, self.kind.map(|kind| [kind]).as_ref().map(<[u8; 1]>::as_slice));
        put(5, self.remcsum_nopartial.then_some(&[]));
        put(6, self.local4.map(|local| local.octets()).as_ref().map(<[u8; 4]>::as_slice));
        put(7, self.local6.map(|local| local.octets()).as_ref().map(<[u8; 16]>::as_slice));
        put(8, self.peer4.map(|peer| peer.octets()).as_ref().map(<[u8; 4]>::as_slice));
        put(9, self.peer6.map(|peer| peer.octets()).as_ref().map(<[u8; 16]>::as_slice));
        put(10, self.peer_port.map(u16::to_be_bytes).as_ref().map(<[u8; 2]>::as_slice));
        put(11, self.ifindex.map(i32::to_ne_bytes).as_ref().map(<[u8; 4]>::as_slice));
        put(STATISTICS, self.statistics.as_ref().map(NamedCounters::encode).as_deref());
        put(CHECKSUM6, self.checksum6.then_some(&[]));
    }

    /// Takes an attribute in; `None` when it is too short.
    fn take(&mut self, kind: u16, value: &[u8]) -> Option<()> {
        match kind {
            1 => self.port = Some(u16::from_be_bytes(*value.first_chunk()?)),
            2 => self.family = Some(*value.first()?),
            3 => self.protocol = Some(*value.first()?),
            4 => self.kind = Some(*value.first()?),
            5 => self.remcsum_nopartial = true,
            6 => self.local4 = Some(value.first_chunk::<4>().copied()?.into()),
            7 => self.local6 = Some(value.first_chunk::<16>().copied()?.into()),
            8 => self.peer4 = Some(value.first_chunk::<4>().copied()?.into()),
            9 => self.peer6 = Some(value.first_chunk::<16>().copied()?.into()),
            10 => self.peer_port = Some(u16::from_be_bytes(*value.first_chunk()?)),
            11 => self.ifindex = Some(i32::from_ne_bytes(*value.first_chunk()?)),
            STATISTICS => self.statistics = Some(NamedCounters::decode(value)),
            CHECKSUM6 => self.checksum6 = true,
            _ => {}
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `ip fou add port 5555 ipproto 4`, attributes in another order than ours.
    #[cfg(target_endian = "little")]
    const ADD: [u8; 36] = [
        1, 1, 0, 0, // FOU_CMD_ADD, version 1
        6, 0, 1, 0, 0x15, 0xb3, 0, 0, // port
        5, 0, 4, 0, 1, 0, 0, 0, // type
        5, 0, 2, 0, 2, 0, 0, 0, // AF
        5, 0, 3, 0, 4, 0, 0, 0, // protocol
    ];

    #[cfg(target_endian = "little")]
    #[test]
    fn fou_request_is_read_in_any_attribute_order() {
        let expected = PortAttributes {
            port: Some(5555),
            family: Some(2),
            protocol: Some(4),
            kind: Some(1),
            ..PortAttributes::default()
        };
        assert_eq!(PortAttributes::decode(&ADD), Ok((FouCommand::Add, expected.clone())));
        let mut written = Vec::new();
        expected.encode(FouCommand::Add, &mut written);
        assert_eq!(PortAttributes::decode(&written), Ok((FouCommand::Add, expected)));
        assert_eq!(written.len(), ADD.len());
    }

    #[test]
    fn written_value_is_read_back() {
        let all = PortAttributes {
            port: Some(1),
            family: Some(10),
            protocol: Some(41),
            kind: Some(2),
            remcsum_nopartial: true,
            local4: Some([1, 2, 3, 4].into()),
            local6: Some("fd00::1".parse().unwrap()),
            peer4: Some([5, 6, 7, 8].into()),
            peer6: Some("fd00::2".parse().unwrap()),
            peer_port: Some(0xff01),
            ifindex: Some(-3),
            statistics: Some(NamedCounters(vec![("packets".to_owned(), 7)])),
            checksum6: true,
        };
        for command in [FouCommand::Add, FouCommand::Delete, FouCommand::Get] {
            let mut bytes = Vec::new();
            all.encode(command, &mut bytes);
            assert_eq!(bytes.len() % 4, 0);
            assert_eq!(PortAttributes::decode(&bytes), Ok((command, all.clone())));
        }
    }

    #[test]
    fn fou_decode_error_has_the_kernels_errno() {
        let errno = |body: &[u8]| PortAttributes::decode(body).unwrap_err().errno;
        assert_eq!(errno(&[1, 1]), 22);
        assert_eq!(errno(&[9, 1, 0, 0]), 95);
        let mut short = vec![1, 1, 0, 0];
        AttributeWriter::new(&mut short).bytes(7, &[0; 15]);
        assert_eq!(PortAttributes::decode(&short).unwrap_err().offset, Some(4));
        assert_eq!(errno(&short), 34);
    }

    #[test]
    fn decode_of_any_bytes_does_not_panic() {
        let mut random = 7_u64;
        for _ in 0..100_000 {
            let mut bytes = [0; 48];
            for byte in &mut bytes {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = random.to_be_bytes()[1] % 24;
            }
            let _ = PortAttributes::decode(&bytes[..usize::from(bytes[0]) * 2]);
        }
    }
}
