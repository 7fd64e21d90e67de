//! Packets that wait for states, an acquire under way, as they pass to another process: what is
//! known of each as JSON, and their bytes in one piece behind it.

use serde::{Deserialize, Serialize};
use uxfrm_engine::WaitingPacket;
use uxfrm_packet::{Checksum, PacketBuf, Segments};
use uxfrm_runtime::PausedWorker;

/// Bytes that pass while no worker runs: what one worker lets wait at the most.
const MOST: usize = 8 << 20;

/// All packets that wait for states.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct QueuedPackets {
    packets: Vec<QueuedPacketHandover>,
    /// Packets that were too many.
    pub(super) left: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct QueuedPacketHandover {
    worker: usize,
    bytes: usize,
    count: usize,
    longest: Option<usize>,
    mark: u32,
    if_id: u32,
    segments: SegmentsHandover,
    checksum: ChecksumHandover,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum SegmentsHandover {
    One,
    Tcp(u16),
    Udp(u16),
    Train(u16),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ChecksumHandover {
    AsIs,
    Partial(u16, u16),
    Verified,
}

impl QueuedPackets {
    /// What waits with workers that rest, and its bytes.
    pub(super) fn of(paused: &[PausedWorker]) -> (Self, Vec<u8>) {
        let waiting = paused.iter().map(PausedWorker::copy_waiting).enumerate();
        Self::of_each(
            waiting.flat_map(|(worker, waiting)| {
                waiting.into_iter().map(move |packet| (worker, packet))
            }),
        )
    }

    pub(super) fn of_each(
        waiting: impl Iterator<Item = (usize, WaitingPacket)>,
    ) -> (Self, Vec<u8>) {
        let (mut all, mut bytes) = (Self::default(), Vec::new());
        for (worker, WaitingPacket { packet, count, longest_fragment: longest }) in waiting {
            if bytes.len() + packet.len() > MOST {
                all.left += count as u64;
                continue;
            }
            bytes.extend_from_slice(packet.bytes());
            all.packets.push(QueuedPacketHandover {
                worker,
                bytes: packet.len(),
                count,
                longest,
                mark: packet.mark,
                if_id: packet.if_id,
                segments: packet.segments.into(),
                checksum: packet.checksum.into(),
            });
        }
        (all, bytes)
    }

    /// Whether bytes follow.
    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// The packets of each worker that had any; of bytes that are too few, those that are whole.
    pub(super) fn with(&self, mut bytes: &[u8]) -> Vec<(usize, Vec<WaitingPacket>)> {
        let mut all: Vec<(usize, Vec<WaitingPacket>)> = Vec::new();
        for passed in &self.packets {
            let Some((first, rest)) = bytes.split_at_checked(passed.bytes) else { break };
            bytes = rest;
            let mut packet = PacketBuf::from_slice(first);
            (packet.mark, packet.if_id) = (passed.mark, passed.if_id);
            (packet.segments, packet.checksum) = (passed.segments.into(), passed.checksum.into());
            let waiting =
                WaitingPacket { packet, count: passed.count, longest_fragment: passed.longest };
            match all.last_mut() {
                Some((worker, packets)) if *worker == passed.worker => packets.push(waiting),
                Some(_) | None => all.push((passed.worker, vec![waiting])),
            }
        }
        all
    }
}

impl From<Segments> for SegmentsHandover {
    fn from(segments: Segments) -> Self {
        match segments {
            Segments::One => Self::One,
            Segments::Tcp { mss } => Self::Tcp(mss),
            Segments::Udp { size } => Self::Udp(size),
            Segments::Burst { stride } => Self::Train(stride),
        }
    }
}

impl From<SegmentsHandover> for Segments {
    fn from(passed: SegmentsHandover) -> Self {
        match passed {
            SegmentsHandover::One => Self::One,
            SegmentsHandover::Tcp(mss) => Self::Tcp { mss },
            SegmentsHandover::Udp(size) => Self::Udp { size },
            SegmentsHandover::Train(stride) => Self::Burst { stride },
        }
    }
}

impl From<Checksum> for ChecksumHandover {
    fn from(checksum: Checksum) -> Self {
        match checksum {
            Checksum::AsIs => Self::AsIs,
            Checksum::Partial { start, offset } => Self::Partial(start, offset),
            Checksum::Verified => Self::Verified,
        }
    }
}

impl From<ChecksumHandover> for Checksum {
    fn from(passed: ChecksumHandover) -> Self {
        match passed {
            ChecksumHandover::AsIs => Self::AsIs,
            ChecksumHandover::Partial(start, offset) => Self::Partial { start, offset },
            ChecksumHandover::Verified => Self::Verified,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(length: usize, segments: Segments) -> WaitingPacket {
        let mut packet = PacketBuf::from_slice(&vec![7; length]);
        packet.segments = segments;
        packet.checksum = Checksum::Partial { start: 20, offset: 16 };
        (packet.mark, packet.if_id) = (5, 6);
        WaitingPacket { packet, count: 3, longest_fragment: Some(9) }
    }

    #[test]
    fn queued_packets_handed_over_keep_metadata() {
        let sent = [
            (0, waiting(100, Segments::Tcp { mss: 40 })),
            (0, waiting(1, Segments::One)),
            (3, waiting(65_000, Segments::Udp { size: 1200 })),
        ];
        let (passed, bytes) = QueuedPackets::of_each(sent.into_iter());
        let text = serde_json::to_vec(&passed).unwrap();
        let passed: QueuedPackets = serde_json::from_slice(&text).unwrap();
        let all = passed.with(&bytes);
        let workers: Vec<_> =
            all.iter().map(|(worker, packets)| (*worker, packets.len())).collect();
        assert_eq!(workers, [(0, 2), (3, 1)]);
        let expected = waiting(65_000, Segments::Udp { size: 1200 });
        let WaitingPacket { packet, count, longest_fragment: longest } = &all[1].1[0];
        assert_eq!(packet.bytes(), expected.packet.bytes());
        assert_eq!(
            (packet.segments, packet.checksum),
            (expected.packet.segments, expected.packet.checksum)
        );
        assert_eq!((packet.mark, packet.if_id, *count, *longest), (5, 6, 3, Some(9)));
    }

    #[test]
    fn queued_packets_over_limit_are_counted() {
        let sent = (0..130).map(|_| (0, waiting(65_535, Segments::One)));
        let (passed, bytes) = QueuedPackets::of_each(sent);
        assert!(bytes.len() <= MOST);
        assert_eq!((passed.packets.len(), passed.left), (128, 6), "each is three packets");
    }
}
