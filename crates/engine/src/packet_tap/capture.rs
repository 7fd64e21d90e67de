//! A capture: copies of packets at some points, on their way from workers to one reader.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use super::headers::whole_packet;
use super::{PacketHeaders, PacketTap, PacketWay, ShowSite, ShownPacket, TapFilter};
use crate::sa::subject::SaSubject;
use crate::{DeviceId, DropReason, Moment, PolicyIndex};

/// Packets that wait for a reader at the most.
pub const WAITING_PACKETS: usize = 4096;
/// Their bytes at the most.
pub const WAITING_BYTES: usize = 16 << 20;

/// Where a packet is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapturePoint {
    /// The plain side: before it is protected, or opened and checked.
    Plain(PacketWay),
    /// The side of the network.
    Wire(PacketWay),
    /// Where it was dropped.
    Drop(PacketWay),
}

/// The sides at which a capture looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureSides {
    /// The plain side.
    pub plain: bool,
    /// The side of the network.
    pub wire: bool,
    /// Dropped packets.
    pub drops: bool,
}

/// What is to be captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureRequest {
    /// Where.
    pub sides: CaptureSides,
    /// Which packets. On the plain side what it says of ESP is left to the reader.
    pub filter: TapFilter,
    /// Bytes of each packet at the most.
    pub snaplen: usize,
    /// Packets a second at the most, of all workers together.
    pub per_second: u64,
}

/// A packet as it was at a point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TappedPacket {
    /// When.
    pub at: Moment,
    /// Number of the worker.
    pub worker: u32,
    /// Where.
    pub point: CapturePoint,
    /// Length of the whole packet.
    pub len: usize,
    /// Its first bytes, from the IP header on. Empty for drops of which only the number is known.
    pub bytes: Box<[u8]>,
    /// What its headers say.
    pub headers: PacketHeaders,
    /// Length of a segment, of a TCP or UDP super-packet.
    pub segment: Option<u16>,
    /// Why it was dropped, and whose it was.
    pub drop: Option<DropNote>,
}

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropNote {
    /// The reason.
    pub reason: DropReason,
    /// Packets in the buffer, or how many there were.
    pub packets: u64,
    /// The state.
    pub sa: Option<SaSubject>,
    /// The policy.
    pub policy: Option<PolicyIndex>,
    /// The device.
    pub device: Option<DeviceId>,
}

/// The workers' end of a capture.
#[derive(Debug)]
pub(super) struct CaptureFeed {
    request: CaptureRequest,
    sender: SyncSender<TappedPacket>,
    waiting_bytes: AtomicUsize,
    lost: AtomicU64,
    over_rate: AtomicU64,
    /// The second that `taken` is of.
    second: AtomicU64,
    taken: AtomicU64,
}

/// The reader's end of a capture, which ends with it.
///
/// ```
/// use uxfrm_crypto::Backend;
/// use uxfrm_engine::{Database, DropReason, Moment, Output, Settings, Worker};
/// use uxfrm_engine::{CapturePoint, CaptureReader, CaptureRequest, CaptureSides, PacketWay};
/// use uxfrm_packet::{Batch, PacketBuf, Pool};
///
/// let database = Database::new(Backend::Auto, 1);
/// let mut worker = Worker::new(Settings::default(), &database.published())?;
/// let request = CaptureRequest {
///     sides: CaptureSides { drops: true, ..CaptureSides::default() },
///     filter: Default::default(),
///     snaplen: 4,
///     per_second: 1000,
/// };
/// let reader = CaptureReader::new(&[worker.tap()], request);
/// assert!(worker.tap().is_armed());
///
/// let mut batch: Batch = [PacketBuf::from_slice(b"not IP")].into_iter().collect();
/// worker.outbound(&mut batch, Moment(7), &mut Pool::new(), &mut Output::default());
/// let packet = reader.take().unwrap();
/// assert_eq!((packet.point, packet.at), (CapturePoint::Drop(PacketWay::Out), Moment(7)));
/// assert_eq!((&*packet.bytes, packet.len), (&b"not "[..], 6));
/// assert_eq!(packet.drop.unwrap().reason, DropReason::OutMalformed);
/// assert!(reader.take().is_none());
///
/// drop(reader);
/// assert!(!worker.tap().is_armed());
/// # Ok::<(), uxfrm_crypto::Error>(())
/// ```
#[derive(Debug)]
pub struct CaptureReader {
    feed: Arc<CaptureFeed>,
    receiver: Receiver<TappedPacket>,
    taps: Vec<Arc<PacketTap>>,
}

impl CapturePoint {
    /// Which way the packet goes.
    #[must_use]
    pub const fn way(self) -> PacketWay {
        match self {
            Self::Plain(way) | Self::Wire(way) | Self::Drop(way) => way,
        }
    }
}

impl From<DropReason> for PacketWay {
    fn from(reason: DropReason) -> Self {
        if reason.is_outbound() { Self::Out } else { Self::In }
    }
}

impl CaptureReader {
    /// Begins to capture at these workers' taps.
    #[must_use]
    pub fn new(taps: &[Arc<PacketTap>], request: CaptureRequest) -> Self {
        let (sender, receiver) = sync_channel(WAITING_PACKETS);
        let feed = Arc::new(CaptureFeed {
            request,
            sender,
            waiting_bytes: AtomicUsize::new(0),
            lost: AtomicU64::new(0),
            over_rate: AtomicU64::new(0),
            second: AtomicU64::new(0),
            taken: AtomicU64::new(0),
        });
        for tap in taps {
            tap.change(|watchers| watchers.captures.push(Arc::clone(&feed)));
        }
        Self { feed, receiver, taps: taps.to_vec() }
    }

    /// The next packet; those of one worker come in order.
    #[must_use]
    pub fn take(&self) -> Option<TappedPacket> {
        let packet = self.receiver.try_recv().ok()?;
        self.feed.waiting_bytes.fetch_sub(packet.bytes.len(), Ordering::Relaxed);
        Some(packet)
    }

    /// What is captured.
    #[must_use]
    pub fn request(&self) -> &CaptureRequest {
        &self.feed.request
    }

    /// Packets lost so far, as they were not taken in time.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.feed.lost.load(Ordering::Relaxed)
    }

    /// Packets left out so far, as there were more a second than asked for.
    #[must_use]
    pub fn over_rate(&self) -> u64 {
        self.feed.over_rate.load(Ordering::Relaxed)
    }
}

impl Drop for CaptureReader {
    fn drop(&mut self) {
        for tap in &self.taps {
            tap.change(|watchers| {
                watchers.captures.retain(|feed| !Arc::ptr_eq(feed, &self.feed));
            });
        }
    }
}

impl CaptureFeed {
    /// Whether it looks at a point.
    pub(super) fn wants(&self, point: CapturePoint) -> bool {
        let CaptureSides { plain, wire, drops } = self.request.sides;
        match point {
            CapturePoint::Plain(_) => plain,
            CapturePoint::Wire(_) => wire,
            CapturePoint::Drop(_) => drops,
        }
    }

    /// Takes a packet on its way, if it is wanted.
    pub(super) fn offer(&self, point: CapturePoint, packet: &ShownPacket<'_>, site: ShowSite<'_>) {
        let whole = whole_packet(packet, point.way());
        let headers = PacketHeaders::of(&whole, site.ports).with_mark_of(packet);
        let filter = &self.request.filter;
        let is_wanted = match point {
            CapturePoint::Plain(_) => filter.selects_flow(headers.flow.as_ref()),
            CapturePoint::Wire(_) | CapturePoint::Drop(_) => filter.selects(&headers),
        };
        if is_wanted {
            self.take(point, (&whole, packet.segment), headers, None, site);
        }
    }

    /// Takes a dropped packet, if it is wanted. Whose it was counts like its headers.
    pub(super) fn offer_drop(
        &self,
        packet: Option<&ShownPacket<'_>>,
        note: DropNote,
        site: ShowSite<'_>,
    ) {
        let way = PacketWay::from(note.reason);
        let whole = packet.map(|packet| whole_packet(packet, way)).unwrap_or_default();
        let headers = PacketHeaders::of(&whole, site.ports);
        let headers = packet.map_or(headers, |packet| headers.with_mark_of(packet));
        let filter = &self.request.filter;
        let is_of_state = || {
            note.sa.is_some_and(|sa| filter.selects_esp(sa.source, sa.id.destination, sa.id.spi))
        };
        let is_wanted =
            filter.selects(&headers) || filter.selects_flow(headers.flow.as_ref()) && is_of_state();
        if is_wanted {
            let segment = packet.and_then(|packet| packet.segment);
            self.take(CapturePoint::Drop(way), (&whole, segment), headers, Some(note), site);
        }
    }

    fn take(
        &self,
        point: CapturePoint,
        (whole, segment): (&[u8], Option<u16>),
        headers: PacketHeaders,
        drop: Option<DropNote>,
        site: ShowSite<'_>,
    ) {
        if !self.has_rate(site.at) {
            self.over_rate.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let bytes = &whole[..whole.len().min(self.request.snaplen)];
        if self.waiting_bytes.load(Ordering::Relaxed) + bytes.len() > WAITING_BYTES {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let ShowSite { at, worker, .. } = site;
        let (len, size) = (whole.len(), bytes.len());
        let bytes = bytes.into();
        let packet = TappedPacket { at, worker, point, len, bytes, headers, segment, drop };
        self.waiting_bytes.fetch_add(size, Ordering::Relaxed);
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            self.sender.try_send(packet)
        {
            self.waiting_bytes.fetch_sub(size, Ordering::Relaxed);
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether one more packet may be taken in this second.
    fn has_rate(&self, now: Moment) -> bool {
        let second = now.0 / 1_000_000_000;
        // Workers that meet here at the turn of a second may take a few more.
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.taken.store(0, Ordering::Relaxed);
        }
        self.taken.fetch_add(1, Ordering::Relaxed) < self.request.per_second
    }
}
