//! Messages: `struct nlmsghdr` and how a datagram falls into messages.

use std::fmt;

use bitflags::bitflags;
use zerocopy::{FromBytes, Immutable, IntoBytes, transmute};

use crate::aligned;

/// Message type of an answer with an errno, or with 0 for success.
pub const NLMSG_ERROR: u16 = 2;
/// Message type of the end of a dump.
pub const NLMSG_DONE: u16 = 3;
/// Message types below this are netlink's own.
pub const NLMSG_MIN_TYPE: u16 = 0x10;

bitflags! {
    /// `NLM_F_*`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct NetlinkFlags: u16 {
        /// A request; anything else is only acknowledged.
        const REQUEST = 1;
        /// Part of a dump, which [`NLMSG_DONE`] ends.
        const MULTI = 2;
        /// Asks for an error message also on success.
        const ACK = 4;
        /// Asks for a notification of what was made, with its handle.
        const ECHO = 8;
        /// On a GET: all entries (`NLM_F_ROOT | NLM_F_MATCH`).
        const DUMP = 0x300;
        /// On `XFRM_MSG_NEWAE`: required. XFRM ignores it elsewhere: NEW and UPD are two messages.
        const REPLACE = 0x100;
        /// On a NEW: make it if it does not exist.
        const CREATE = 0x400;
        /// On a NEW: put it behind the others.
        const APPEND = 0x800;
        /// uxfrm's own, on a connection that asked for chained requests: skip this request if an
        /// earlier chained one was refused.
        const CHAINED = 0x4000;
        /// In an error message: only the request's header follows, not its body.
        const CAPPED = 0x100;
        /// In an error message: extended-ACK attributes follow.
        const ACK_TLVS = 0x200;
    }
}

/// `struct nlmsghdr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct NetlinkHeader {
    /// Bytes of the message with this header, without the padding behind it.
    pub len: u32,
    /// Message type.
    pub kind: u16,
    /// [`NetlinkFlags`].
    pub flags: u16,
    /// Sequence number: the client chooses it and answers repeat it.
    pub seq: u32,
    /// The sender's port id; 0 is the kernel.
    pub pid: u32,
}

impl NetlinkHeader {
    /// Bytes of the header.
    pub const LEN: usize = size_of::<Self>();

    /// Splits a header off; `len` is not checked.
    #[must_use]
    pub fn split(bytes: &[u8]) -> Option<(Self, &[u8])> {
        Self::read_from_prefix(bytes).ok()
    }

    /// Reads a header; `len` is not checked.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        transmute!(bytes)
    }

    /// The header's bytes.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; Self::LEN] {
        transmute!(self)
    }
}

/// One message of a datagram.
#[derive(Clone, Copy)]
pub struct NetlinkMessage<'a> {
    /// The header.
    pub header: NetlinkHeader,
    /// Header and body, `header.len` bytes.
    pub bytes: &'a [u8],
}

/// Shows the header only: the body may hold keys.
impl fmt::Debug for NetlinkMessage<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Message").field("header", &self.header).finish_non_exhaustive()
    }
}

impl<'a> NetlinkMessage<'a> {
    /// The bytes behind the header.
    #[must_use]
    pub fn body(&self) -> &'a [u8] {
        self.bytes.get(NetlinkHeader::LEN..).unwrap_or_default()
    }

    /// The header's flags, unknown ones included.
    #[must_use]
    pub const fn flags(&self) -> NetlinkFlags {
        NetlinkFlags::from_bits_retain(self.header.flags)
    }

    /// The code that [`NLMSG_ERROR`] and [`NLMSG_DONE`] begin with: 0 or a negative errno.
    #[must_use]
    pub fn error_code(&self) -> Option<i32> {
        self.body().first_chunk().map(|code| i32::from_ne_bytes(*code))
    }
}

/// The messages of a datagram, up to the first that is cut short (`netlink_rcv_skb`).
#[derive(Clone, Copy)]
pub struct NetlinkMessages<'a>(&'a [u8]);

impl<'a> NetlinkMessages<'a> {
    /// Reads a datagram.
    #[must_use]
    pub const fn of(datagram: &'a [u8]) -> Self {
        Self(datagram)
    }
}

impl fmt::Debug for NetlinkMessages<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Messages({} bytes)", self.0.len())
    }
}

impl<'a> Iterator for NetlinkMessages<'a> {
    type Item = NetlinkMessage<'a>;

    fn next(&mut self) -> Option<NetlinkMessage<'a>> {
        let (header, _) = NetlinkHeader::split(self.0)?;
        let len = usize::try_from(header.len).ok().filter(|len| *len >= NetlinkHeader::LEN)?;
        let bytes = self.0.get(..len)?;
        self.0 = self.0.get(aligned(len)..).unwrap_or_default();
        Some(NetlinkMessage { header, bytes })
    }
}
