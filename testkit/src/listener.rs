//! Someone who listens on the wire and looks for what should not be there.

use uxfrm_packet::PacketBuf;

/// Looks for plaintext in what passes.
#[derive(Debug)]
pub struct Listener {
    marker: Vec<u8>,
    /// Buffers in which the marker was seen.
    pub seen: u64,
    /// Buffers that passed.
    pub passed: u64,
}

impl Listener {
    /// One that knows what plaintext looks like.
    #[must_use]
    pub fn new(marker: &[u8]) -> Self {
        Self { marker: marker.to_vec(), seen: 0, passed: 0 }
    }

    /// Looks at what passes.
    pub fn listen(&mut self, packets: &[PacketBuf]) {
        for packet in packets {
            self.passed += 1;
            let found = packet.bytes().windows(self.marker.len()).any(|bytes| bytes == self.marker);
            self.seen += u64::from(found);
        }
    }
}
