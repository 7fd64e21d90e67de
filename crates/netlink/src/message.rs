//! Netlink messages: the header (`struct nlmsghdr`), the numbers of `NETLINK_XFRM`, and how a datagram falls into messages.

use bitflags::bitflags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of [`Header`].
pub(crate) const HEADER_LEN: usize = size_of::<Header>();

/// `NLMSG_ERROR`: the answer to a request, with an errno or 0.
pub(crate) const ERROR: u16 = 2;
/// `NLMSG_DONE`: the end of a dump.
pub(crate) const DONE: u16 = 3;
/// Below this types belong to netlink itself.
pub(crate) const LOWEST_TYPE: u16 = 0x10;

/// `struct nlmsghdr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// Bytes of the message with this header, without padding behind it.
    pub len: u32,
    /// What it is: [`MessageType`] or one of netlink's own.
    pub kind: u16,
    /// [`Flags`].
    pub flags: u16,
    /// The request's number, chosen by the client, repeated in answers.
    pub seq: u32,
    /// The sender's port id; 0 is the kernel.
    pub pid: u32,
}

bitflags! {
    /// `NLM_F_*`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Flags: u16 {
        /// A request; anything else is only acknowledged.
        const REQUEST = 1;
        /// Part of a dump, which [`DONE`] ends.
        const MULTI = 2;
        /// Answer with an error message also when all is well.
        const ACK = 4;
        /// On a GET: all that there is (`NLM_F_ROOT | NLM_F_MATCH`).
        const DUMP = 0x300;
        /// On NEWAE: required. On others without meaning, as in the kernel: NEW and UPD are messages of their own.
        const REPLACE = 0x100;
        /// From a client with [`Options::CHAINS`](crate::Options::CHAINS): not to be carried out once one that says so was refused.
        const CHAINED = 0x4000;
        /// In an answer: the request is not repeated behind its header.
        const CAPPED = 0x100;
        /// In an answer: extended-ACK attributes follow.
        const ACK_TLVS = 0x200;
    }
}

macro_rules! message_types {
    ($($(#[$doc:meta])* $name:ident = $value:literal,)*) => {
        /// What a message of `NETLINK_XFRM` is (`XFRM_MSG_*`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum MessageType { $($(#[$doc])* $name = $value,)* }

        impl MessageType {
            /// By its number.
            #[must_use]
            pub const fn from_number(number: u16) -> Option<Self> {
                match number { $($value => Some(Self::$name),)* _ => None }
            }
        }
    };
}

message_types! {
    /// Add a state; the answer to GETSA.
    NewSa = 0x10,
    /// Delete a state.
    DelSa = 0x11,
    /// One state, or all.
    GetSa = 0x12,
    /// Add a policy; the answer to GETPOLICY.
    NewPolicy = 0x13,
    /// Delete a policy.
    DelPolicy = 0x14,
    /// One policy, or all.
    GetPolicy = 0x15,
    /// Reserve an SPI with a larval state.
    AllocSpi = 0x16,
    /// A packet needs a state.
    Acquire = 0x17,
    /// A state reached a limit.
    Expire = 0x18,
    /// Add a policy or put it in another's place.
    UpdPolicy = 0x19,
    /// Change a state.
    UpdSa = 0x1a,
    /// A policy reached a limit.
    PolExpire = 0x1b,
    /// Delete all states of a protocol.
    FlushSa = 0x1c,
    /// Delete all policies of a kind.
    FlushPolicy = 0x1d,
    /// Set the counters of a state; tell of them.
    NewAe = 0x1e,
    /// The counters of a state.
    GetAe = 0x1f,
    /// Only ever sent: Mobile IPv6.
    Report = 0x20,
    /// New addresses for states and policies.
    Migrate = 0x21,
    /// The answer to GETSADINFO.
    NewSadInfo = 0x22,
    /// How many states.
    GetSadInfo = 0x23,
    /// Set hash thresholds; the answer to GETSPDINFO.
    NewSpdInfo = 0x24,
    /// How many policies.
    GetSpdInfo = 0x25,
    /// A peer's address changed.
    Mapping = 0x26,
    /// What happens to packets without policy.
    SetDefault = 0x27,
    /// The same, asked for.
    GetDefault = 0x28,
    /// New addresses for one state (Linux 7.2).
    MigrateState = 0x29,
}

/// One message of a datagram: its header, and what follows it.
#[derive(Clone, Copy)]
pub struct Message<'a> {
    /// The header.
    pub header: Header,
    /// Header and body, `header.len` bytes.
    pub bytes: &'a [u8],
}

/// May hold keys, so its bytes are not shown.
impl std::fmt::Debug for Message<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Message").field("header", &self.header).finish_non_exhaustive()
    }
}

impl<'a> Message<'a> {
    /// What follows the header.
    #[must_use]
    pub fn body(&self) -> &'a [u8] {
        self.bytes.get(HEADER_LEN..).unwrap_or_default()
    }

    /// The header's flags, unknown ones included.
    #[must_use]
    pub const fn flags(&self) -> Flags {
        Flags::from_bits_retain(self.header.flags)
    }
}

/// The messages of a datagram, as `net/netlink/af_netlink.c: netlink_rcv_skb` takes them: ends at the first that is not whole.
#[derive(Clone, Copy)]
pub struct Messages<'a>(&'a [u8]);

impl<'a> Messages<'a> {
    /// Of a datagram.
    #[must_use]
    pub const fn of(datagram: &'a [u8]) -> Self {
        Self(datagram)
    }
}

impl std::fmt::Debug for Messages<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Messages({} bytes)", self.0.len())
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let (header, _) = Header::read_from_prefix(self.0).ok()?;
        let len = usize::try_from(header.len).ok().filter(|len| *len >= HEADER_LEN)?;
        let bytes = self.0.get(..len)?;
        self.0 = self.0.get(aligned(len)..).unwrap_or_default();
        Some(Message { header, bytes })
    }
}

/// `NLMSG_ALIGN`, `NLA_ALIGN`.
pub(crate) const fn aligned(len: usize) -> usize {
    len.next_multiple_of(4)
}
