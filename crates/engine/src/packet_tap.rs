//! What workers show of their packets to whoever watches: captures and traces.
//!
//! Nobody watches most of the time. A worker's loop then reads one flag a round
//! ([`PacketTap::is_armed`]), and packets pass by nothing of this. While somebody watches, packets
//! are copied into a bounded queue: a reader that is slow loses packets, which are counted, and
//! holds up no worker.

mod capture;
mod filter;
mod headers;
mod trace;
mod trace_feed;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use uxfrm_packet::{PacketBuf, Segments, UdpPath};

use crate::Moment;

pub use capture::{
    CapturePoint, CaptureReader, CaptureRequest, CaptureSides, DropNote, TappedPacket,
    WAITING_BYTES, WAITING_PACKETS,
};
pub use filter::TapFilter;
pub(crate) use headers::{EncapPorts, whole_packet};
pub use headers::{EspStart, PacketHeaders, PacketWay};
pub use trace::{
    BundleOrigin, CacheAnswer, DatapathKind, PacketTrace, TRACED_BYTES, TracePort, TraceStep,
};
pub(crate) use trace_feed::TraceFeed;
pub use trace_feed::{TRACES_WAITING, TRIED_A_SECOND, TraceReader};

use capture::CaptureFeed;

/// One worker's tap: who watches it.
#[derive(Debug, Default)]
pub struct PacketTap {
    is_armed: AtomicBool,
    watchers: ArcSwap<Watchers>,
}

/// Who watches.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watchers {
    captures: Vec<Arc<CaptureFeed>>,
    pub(crate) traces: Vec<Arc<TraceFeed>>,
}

/// A packet where it is shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShownPacket<'a> {
    pub(crate) bytes: &'a [u8],
    /// Set if the bytes are the payload of a datagram.
    pub(crate) udp: Option<UdpPath>,
    pub(crate) mark: u32,
    pub(crate) if_id: u32,
    /// Length of a segment, of a TCP or UDP super-packet.
    pub(crate) segment: Option<u16>,
}

/// Where and when packets are shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShowSite<'a> {
    pub(crate) at: Moment,
    pub(crate) worker: u32,
    pub(crate) ports: EncapPorts<'a>,
}

impl PacketTap {
    /// Whether anybody watches. For a worker's loop, once a round.
    #[must_use]
    #[inline]
    pub fn is_armed(&self) -> bool {
        self.is_armed.load(Ordering::Relaxed)
    }

    /// Who watches now.
    pub(crate) fn watchers(&self) -> Arc<Watchers> {
        self.watchers.load_full()
    }

    /// Shows the packets of a batch to those who capture at this point.
    #[cold]
    pub(crate) fn show(&self, point: CapturePoint, packets: &[PacketBuf], site: ShowSite<'_>) {
        let watchers = self.watchers.load();
        for feed in watchers.captures.iter().filter(|feed| feed.wants(point)) {
            for packet in packets {
                each_packet(packet, |shown| feed.offer(point, &shown, site));
            }
        }
    }

    /// Shows a dropped packet; `None` where only their number is known.
    #[cold]
    pub(crate) fn show_drop(
        &self,
        packet: Option<&ShownPacket<'_>>,
        note: DropNote,
        site: ShowSite<'_>,
    ) {
        let watchers = self.watchers.load();
        let point = CapturePoint::Drop(note.reason.into());
        for feed in watchers.captures.iter().filter(|feed| feed.wants(point)) {
            feed.offer_drop(packet, note, site);
        }
    }

    fn change(&self, change: impl Fn(&mut Watchers)) {
        self.watchers.rcu(|watchers| {
            let mut watchers = Watchers::clone(watchers);
            change(&mut watchers);
            watchers
        });
        let watchers = self.watchers.load();
        let is_armed = !(watchers.captures.is_empty() && watchers.traces.is_empty());
        self.is_armed.store(is_armed, Ordering::Relaxed);
    }
}

impl<'a> ShownPacket<'a> {
    /// A buffer as it is.
    pub(crate) fn of(packet: &'a PacketBuf) -> Self {
        let segment = match packet.segments {
            Segments::One => None,
            Segments::Tcp { mss } => Some(mss),
            Segments::Udp { size } => Some(size),
            Segments::Burst { stride } => Some(stride),
        };
        Self {
            bytes: packet.bytes(),
            udp: packet.udp,
            mark: packet.mark,
            if_id: packet.if_id,
            segment,
        }
    }
}

/// The packets of a segment burst one by one; a super-packet as it is.
fn each_packet<'a>(packet: &'a PacketBuf, mut show: impl FnMut(ShownPacket<'a>)) {
    let shown = ShownPacket::of(packet);
    match packet.segments {
        Segments::One | Segments::Tcp { .. } | Segments::Udp { .. } => show(shown),
        Segments::Burst { stride } => packet
            .bytes()
            .chunks(usize::from(stride.max(1)))
            .for_each(|bytes| show(ShownPacket { bytes, segment: None, ..shown })),
    }
}
