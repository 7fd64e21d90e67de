//! Searches packets on the wire for plaintext.

use uxfrm_packet::PacketBuf;

/// Counts buffers that contain a plaintext marker.
#[derive(Debug)]
pub struct PlaintextDetector {
    marker: Vec<u8>,
    /// Buffers that contained the marker.
    pub seen: u64,
    /// Buffers that were inspected.
    pub passed: u64,
}

impl PlaintextDetector {
    /// A detector of this marker.
    #[must_use]
    pub fn new(marker: &[u8]) -> Self {
        Self { marker: marker.to_vec(), seen: 0, passed: 0 }
    }

    /// Inspects packets.
    pub fn listen(&mut self, packets: &[PacketBuf]) {
        for packet in packets {
            self.passed += 1;
            let found = packet.bytes().windows(self.marker.len()).any(|bytes| bytes == self.marker);
            self.seen += u64::from(found);
        }
    }
}
