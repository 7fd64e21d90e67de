//! Numbers that must not be mixed up.

use std::fmt;

/// Security parameter index (RFC 4303 §2.1). 0 is never on the wire; 1 to 255 are reserved but usable by hand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Spi(pub u32);

/// Request id: ties a policy's template to the states that may serve it; 0 fits any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reqid(pub u32);

/// XFRM interface id; 0 is "none".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IfId(pub u32);

/// The number of a processor (RFC 9611); a worker's own is its place among the workers, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cpu(pub u32);

/// A policy's priority: lower goes first, among equals the older.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Priority(pub u32);

/// A policy's index; its lowest three bits say the direction, as in the kernel (`net/xfrm/xfrm_policy.c: xfrm_gen_index`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PolicyIndex(pub u32);

/// A packet mark under a mask, as `mark VALUE mask MASK`. The default (0/0) fits every packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mark {
    /// What the masked mark must be; states and policies have it [sanitized](Self::sanitized).
    pub value: u32,
    /// The bits that count.
    pub mask: u32,
}

impl Mark {
    /// Without those bits of the value that do not count: what Linux keeps of states' and policies' marks (`__xfrm_state_insert`,
    /// `xfrm_policy_insert`).
    #[must_use]
    #[inline]
    pub const fn sanitized(self) -> Self {
        Self { value: self.value & self.mask, mask: self.mask }
    }

    /// Whether a packet with mark `mark` fits. None does where the value has bits that do not count.
    #[must_use]
    #[inline]
    pub const fn fits(self, mark: u32) -> bool {
        mark & self.mask == self.value
    }

    /// The packet's mark with this one's bits laid over it (`XFRMA_SET_MARK`).
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

/// A device, by its interface index (`ifindex`); never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u32);

/// What a device knows a state or policy by (`offload_handle`). Not used again as long as anybody may still have it in hands: packets that
/// were marked or handed over before a state went must not be taken for another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u32);

/// A state's place on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attachment {
    /// Which device.
    pub device: DeviceId,
    /// What the device calls the state.
    pub handle: Handle,
    /// How much of the work is the device's.
    pub kind: OffloadKind,
    /// Who cuts its super-packets.
    pub segmentation: Segmentation,
}

/// Who cuts super-packets.
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

/// The IPsec protocol of a state or template. The engine processes [`SaProtocol::Esp`]; the others are refused when a state is
/// added ("Requested type not found").
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

/// How a state wraps packets.
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
    /// The device does it all; the packet reaches and leaves the stack plain.
    Packet,
}

/// `offload [packet|crypto] dev NAME dir in|out`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Offload {
    /// Which kind.
    pub kind: OffloadKind,
    /// The device's name.
    pub device: String,
    /// The direction that the line named.
    pub direction: Direction,
}

/// SAs around a packet at the most (`XFRM_MAX_DEPTH`).
pub(crate) const MAX_DEPTH: usize = 6;
