//! What really happened to one packet.

use arrayvec::ArrayVec;
use uxfrm_crypto::OpenStatus;

use super::{DropNote, PacketHeaders, PacketWay, TapFilter};
use crate::sa::subject::SaSubject;
use crate::{DeviceId, Direction, FlowKey, Moment, PolicyIndex, PolicyOutcome};

/// Bytes of a packet that a trace keeps.
pub const TRACED_BYTES: usize = 128;

/// A packet's way through a worker, as it went. Traced packets go through the engine one by one,
/// so by the path for single packets or by the slow path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketTrace {
    /// When it was taken from its port.
    pub at: Moment,
    /// Number of the worker.
    pub worker: u32,
    /// Which way it went.
    pub way: PacketWay,
    /// The port that it came by.
    pub port: TracePort,
    /// What its headers said as it came.
    pub headers: PacketHeaders,
    /// Length as it came.
    pub len: usize,
    /// Packets in the buffer: more than one in a super-packet or segment burst.
    pub packets: u64,
    /// Its first bytes as it came, from the IP header on, at most [`TRACED_BYTES`].
    pub bytes: ArrayVec<u8, TRACED_BYTES>,
    /// What it met, in order.
    pub steps: Vec<TraceStep>,
}

/// The port that a traced packet came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TracePort {
    /// The host's TUN.
    Host,
    /// The protected device of inline mode.
    Protected,
    /// The side of the network: a socket, a device, a queue of AF_XDP.
    Wire,
}

/// One thing that a packet met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceStep {
    /// Which path carried it.
    Path(DatapathKind),
    /// The policies were looked up.
    LookUp {
        /// For which direction.
        direction: Direction,
        /// What the policies say.
        outcome: PolicyOutcome,
        /// The policies that decide; none for the default.
        policies: ArrayVec<PolicyIndex, 2>,
        /// How the flow cache answered; `None` if it was not asked again.
        cache: Option<CacheAnswer>,
    },
    /// The states by which it leaves.
    Bundle {
        /// Where the bundle came from.
        origin: BundleOrigin,
        /// Its states, the innermost first.
        states: Vec<SaSubject>,
        /// The largest packet towards the peer, in bytes.
        path_mtu: u16,
        /// The largest plain packet that fits, in bytes.
        inner_mtu: usize,
        /// The largest that passes: of IPv6 at least 1280 bytes, in fragments where less fits.
        limit: usize,
    },
    /// The state of an ESP packet that came in, whose window takes its number.
    State {
        /// The state.
        sa: SaSubject,
        /// The packet's number, all 64 bits.
        sequence: u64,
    },
    /// It was authenticated and decrypted, or not.
    Opened(OpenStatus),
    /// It left towards the network.
    Sent {
        /// What its headers say.
        headers: PacketHeaders,
        /// Bytes of the buffer, headers that the kernel writes included.
        len: usize,
        /// Packets in the buffer.
        packets: u64,
    },
    /// A device does the rest.
    HandedOver(DeviceId),
    /// It was given to the host, or is to be forwarded.
    Delivered {
        /// Its flow.
        flow: Option<FlowKey>,
        /// Bytes of the buffer.
        len: usize,
    },
    /// Its sender was answered by an ICMP error.
    Answered,
    /// It waits for a state that a key manager is asked for, or for the rest of its datagram.
    Waits,
    /// It was dropped.
    Dropped(DropNote),
}

/// The paths that carry packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatapathKind {
    /// The fast path for single packets.
    Fast,
    /// The slow path.
    Slow,
}

/// Where the bundle of an outgoing packet came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BundleOrigin {
    /// The flow cache had it.
    Cached,
    /// It was looked up by policies and states.
    Resolved,
}

/// How the flow cache answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheAnswer {
    /// It had the flow.
    Hit,
    /// It did not have the flow.
    Miss,
    /// It had the flow, but policies have changed since.
    Stale,
    /// It is passed by, as it does not pay.
    Bypassed,
}

impl PacketTrace {
    /// Whether it is of a packet that the filter selects, by all that is known of it now.
    pub(super) fn is_selected(&self, filter: &TapFilter) -> bool {
        self.flows().any(|flow| filter.selects_flow(flow.as_ref())) && self.has_esp_of(filter)
    }

    /// The flows as which it came and went.
    fn flows(&self) -> impl Iterator<Item = Option<FlowKey>> {
        let of_step = |step: &TraceStep| match step {
            TraceStep::Sent { headers, .. } => Some(headers.flow),
            TraceStep::Delivered { flow, .. } => Some(*flow),
            TraceStep::Path(_)
            | TraceStep::LookUp { .. }
            | TraceStep::Bundle { .. }
            | TraceStep::State { .. }
            | TraceStep::Opened(_)
            | TraceStep::HandedOver(_)
            | TraceStep::Answered
            | TraceStep::Waits
            | TraceStep::Dropped(_) => None,
        };
        [self.headers.flow].into_iter().chain(self.steps.iter().filter_map(of_step))
    }

    /// Whether some ESP around it is one that the filter asks for.
    fn has_esp_of(&self, filter: &TapFilter) -> bool {
        let is_it = |sa: &SaSubject| filter.selects_esp(sa.source, sa.id.destination, sa.id.spi);
        let esp_of = |headers: &PacketHeaders| headers.esp.is_some() && filter.selects(headers);
        let of_step = |step: &TraceStep| match step {
            TraceStep::Bundle { states, .. } => states.iter().any(is_it),
            TraceStep::State { sa, .. } => is_it(sa),
            TraceStep::Sent { headers, .. } => esp_of(headers),
            TraceStep::Dropped(note) => note.sa.as_ref().is_some_and(is_it),
            TraceStep::Path(_)
            | TraceStep::LookUp { .. }
            | TraceStep::Opened(_)
            | TraceStep::HandedOver(_)
            | TraceStep::Delivered { .. }
            | TraceStep::Answered
            | TraceStep::Waits => false,
        };
        !filter.names_esp() || esp_of(&self.headers) || self.steps.iter().any(of_step)
    }
}
