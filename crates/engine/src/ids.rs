//! Newtypes for identifiers, and small enums of states and policies.

use std::fmt;

/// Security parameter index (RFC 4303 §2.1). 0 is never on the wire; 1 to 255 are reserved but
/// usable by hand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Spi(pub u32);

/// Request id: ties a policy's template to the states that may serve it; 0 matches any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reqid(pub u32);

/// XFRM interface id; 0 is "none".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IfId(pub u32);

/// CPU number (RFC 9611); a worker's own is its index among the workers, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cpu(pub u32);

/// Priority of a policy: lower goes first, among equals the older.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Priority(pub u32);

/// Index of a policy; its lowest three bits are the direction, as in the kernel
/// (`net/xfrm/xfrm_policy.c: xfrm_gen_index`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PolicyIndex(pub u32);

/// A packet mark under a mask, as `mark VALUE mask MASK`. The default (0/0) matches every packet.
///
/// ```
/// use uxfrm_engine::Mark;
///
/// let mark = Mark { value: 0x10, mask: 0xf0 };
/// assert!(mark.fits(0x1f) && !mark.fits(0x2f));
/// assert!(Mark::default().fits(0x2f));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mark {
    /// Value of the masked mark; states and policies have it [sanitized](Self::sanitized).
    pub value: u32,
    /// The bits that count.
    pub mask: u32,
}

impl Mark {
    /// Clears value bits outside the mask, as Linux does for the marks of states and policies
    /// (`__xfrm_state_insert`, `xfrm_policy_insert`).
    #[must_use]
    #[inline]
    pub const fn sanitized(self) -> Self {
        Self { value: self.value & self.mask, mask: self.mask }
    }

    /// Whether a packet with mark `mark` matches. None does if the value has bits outside the mask.
    #[must_use]
    #[inline]
    pub const fn fits(self, mark: u32) -> bool {
        mark & self.mask == self.value
    }

    /// The packet's mark with this one's bits set over it (`XFRMA_SET_MARK`).
    #[must_use]
    #[inline]
    pub fn applied_to(self, mark: u32) -> u32 {
        (mark & !self.mask) | (self.value & self.mask)
    }
}

impl fmt::Display for Spi {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "0x{:08x}", self.0)
    }
}

/// In iproute2's words.
impl fmt::Display for Direction {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::In => "in",
            Self::Out => "out",
            Self::Forward => "fwd",
        })
    }
}

/// In iproute2's words.
impl fmt::Display for Mode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Transport => "transport",
            Self::Tunnel => "tunnel",
            Self::RouteOptimization => "ro",
            Self::InTrigger => "in_trigger",
            Self::Beet => "beet",
            Self::Iptfs => "iptfs",
        })
    }
}

/// A device, by its interface index (`ifindex`); never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u32);

/// A device's name for a state or policy (`offload_handle`). Not reused while a packet in flight
/// may carry it: packets that were marked or handed over before a state went must not be taken for
/// another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u32);

/// Where a state is offloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attachment {
    /// The device.
    pub device: DeviceId,
    /// The device's handle of the state.
    pub handle: Handle,
    /// Kind of offload.
    pub kind: OffloadKind,
    /// Who segments its super-packets.
    pub segmentation: Segmentation,
}

/// Who segments super-packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Segmentation {
    /// The engine, in order, before it hands them over.
    #[default]
    Engine,
    /// The device (`NETIF_F_GSO_ESP`): it gets them whole.
    Device,
}

/// In, out or forwarded. States know only the first two (`dir in|out`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// For this host.
    In,
    /// From this host, or leaving it.
    Out,
    /// Through this host.
    Forward,
}

/// The IPsec protocol of a state or template. The engine processes [`SaProtocol::Esp`]; the others
/// are refused when a state is added ("Requested type not found").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SaProtocol {
    /// 50
    Esp,
    /// 51
    Ah,
    /// 108
    Comp,
    /// 43, Mobile IPv6 routing header type 2
    Route2,
    /// 60, Mobile IPv6 home address option
    Hao,
    /// Any IPsec protocol (`proto any`, 255), in templates and look-ups only.
    Any,
}

impl SaProtocol {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Esp, Self::Ah, Self::Comp, Self::Route2, Self::Hao, Self::Any];

    /// The IP protocol number; 255 (`IPSEC_PROTO_ANY`) for any.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Esp => 50,
            Self::Ah => 51,
            Self::Comp => 108,
            Self::Route2 => 43,
            Self::Hao => 60,
            Self::Any => 255,
        }
    }

    /// The protocol with this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.number() == number)
    }
}

/// Mode of a state or template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// ESP between the packet's own header and its payload (RFC 4303 §3.1.1).
    Transport,
    /// A new header around the whole packet (RFC 4303 §3.1.2).
    Tunnel,
    /// Mobile IPv6 route optimisation; known, not processed.
    RouteOptimization,
    /// Mobile IPv6 in-trigger; known, not processed.
    InTrigger,
    /// Bound end-to-end tunnel; known, not processed.
    Beet,
    /// Aggregation and fragmentation (RFC 9347); known, not processed.
    Iptfs,
}

/// The two kinds of hardware offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OffloadKind {
    /// The device encrypts; the stack does the rest.
    Crypto,
    /// The device does all the work; the packet reaches and leaves the stack plain.
    Packet,
}

/// `offload [packet|crypto] dev NAME dir in|out`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Offload {
    /// Kind of offload.
    pub kind: OffloadKind,
    /// The device's name.
    pub device: String,
    /// The direction of the line.
    pub direction: Direction,
}

/// Upper bound of SAs per packet (`XFRM_MAX_DEPTH`).
pub(crate) const MAX_DEPTH: usize = 6;
