//! Software fallback for segmentation and checksums: accepts every kind of buffer in front of any
//! port.
//!
//! Buffers that [`Port::accepts`] does not name are converted by copying: super-packets are
//! segmented, GSO bursts split and checksums filled in. So a caller may coalesce without asking for
//! the kernel's features, and pays only where they are missing.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use uxfrm_packet::checksum::complete;
use uxfrm_packet::{Batch, Checksum, PacketBuf, Pool, SegmentPlan, Segments, SizeClass};

use crate::port::{Accepts, Port, Transmitted};

/// A port behind the fallback.
#[derive(Debug)]
pub struct SegmentingPort<P> {
    port: P,
    fitting: Batch,
}

impl<P: Port> SegmentingPort<P> {
    /// Wraps `port`.
    #[must_use]
    pub fn new(port: P) -> Self {
        Self { port, fitting: Batch::new() }
    }

    /// The wrapped port.
    #[must_use]
    pub fn port(&self) -> &P {
        &self.port
    }

    /// Converts a buffer and queues the result.
    fn fit(&mut self, mut packet: PacketBuf, pool: &mut Pool, done: &mut Transmitted) {
        match packet.segments {
            Segments::One => match complete(&mut packet) {
                Ok(()) => return self.queue(packet, pool, done),
                Err(_outside) => done.unsupported(&packet),
            },
            Segments::Burst { stride } => {
                for bytes in packet.bytes().chunks(usize::from(stride.max(1))) {
                    let write = |out: &mut [u8]| out.copy_from_slice(bytes);
                    let piece = piece(&packet, bytes.len(), packet.checksum, pool, write);
                    self.queue(piece, pool, done);
                }
            }
            Segments::Tcp { .. } | Segments::Udp { .. } => match SegmentPlan::new(&packet) {
                Ok(plan) => self.segment(&packet, &plan, pool, done),
                Err(_unreadable) => done.unsupported(&packet),
            },
        }
        pool.give(packet);
    }

    fn segment(
        &mut self,
        packet: &PacketBuf,
        plan: &SegmentPlan,
        pool: &mut Pool,
        done: &mut Transmitted,
    ) {
        for k in 0..plan.count() {
            let write = |out: &mut [u8]| {
                let written = plan.write(k, packet.bytes(), out);
                debug_assert_eq!(written, Some(plan.len(k)), "the piece is as long as planned");
            };
            let piece = piece(packet, plan.len(k), Checksum::Verified, pool, write);
            self.queue(piece, pool, done);
        }
    }

    /// Queues a converted buffer; a full queue is sent first.
    fn queue(&mut self, packet: PacketBuf, pool: &mut Pool, done: &mut Transmitted) {
        if self.fitting.room() == 0 {
            *done += self.port.transmit(&mut self.fitting, pool);
        }
        self.fitting.push(packet);
    }
}

impl<P: Port> Port for SegmentingPort<P> {
    fn receive(&mut self, pool: &mut Pool, into: &mut Batch) -> io::Result<usize> {
        self.port.receive(pool, into)
    }

    fn transmit(&mut self, batch: &mut Batch, pool: &mut Pool) -> Transmitted {
        let accepts = self.port.accepts();
        if batch.as_slice().iter().all(|packet| accepts.takes(packet)) {
            return self.port.transmit(batch, pool);
        }
        let mut done = Transmitted::default();
        for packet in batch.drain() {
            if accepts.takes(&packet) {
                self.queue(packet, pool, &mut done);
            } else {
                self.fit(packet, pool, &mut done);
            }
        }
        done += self.port.transmit(&mut self.fitting, pool);
        done
    }

    fn accepts(&self) -> Accepts {
        Accepts::ALL
    }

    fn waited(&self) -> Duration {
        self.port.waited()
    }

    fn overflowed(&mut self) -> u64 {
        self.port.overflowed()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.port.descriptor()
    }
}

/// A packet of `len` bytes that `write` fills, with the metadata of `whole`.
fn piece(
    whole: &PacketBuf,
    len: usize,
    checksum: Checksum,
    pool: &mut Pool,
    write: impl FnOnce(&mut [u8]),
) -> PacketBuf {
    let mut piece = pool.take(SizeClass::holding(len));
    if let Some(out) = piece.append(len) {
        write(out);
    }
    piece.inherit(whole);
    piece.segments = Segments::One;
    piece.checksum = checksum;
    piece
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;
    use uxfrm_packet::IpPacket;
    use uxfrm_packet::checksum::{Verification, verify};

    /// 3000 bytes of TCP over IPv4, with an MSS of 1000.
    fn super_packet() -> PacketBuf {
        let mut bytes =
            vec![0x45, 0, 0x0b, 0xe0, 0, 1, 0x40, 0, 64, 6, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2];
        bytes.extend([0, 80, 1, 1, 0, 0, 0, 9, 0, 0, 0, 0, 5 << 4, 0x10, 1, 0, 0, 0, 0, 0]);
        bytes.resize(3040, 0xab);
        let mut packet = PacketBuf::from_slice(&bytes);
        packet.segments = Segments::Tcp { mss: 1000 };
        packet.checksum = Checksum::Partial { start: 20, offset: 16 };
        packet.mark = 5;
        packet
    }

    fn through(accepts: Accepts, packets: Vec<PacketBuf>) -> (Transmitted, Vec<PacketBuf>) {
        let (near, mut far) = Memory::pair(1024);
        let mut port = SegmentingPort::new(near.accepting(accepts));
        let (mut pool, mut got) = (Pool::new(), Batch::new());
        let done = port.transmit(&mut packets.into_iter().collect(), &mut pool);
        let mut all = Vec::new();
        while far.receive(&mut pool, &mut got).unwrap() > 0 {
            all.extend(got.drain());
        }
        (done, all)
    }

    #[test]
    fn plain_port_gets_finished_segments() {
        let (done, got) = through(Accepts::PLAIN, vec![super_packet()]);
        assert_eq!((done.packets, done.refused.packets()), (3, 0));
        assert_eq!(got.len(), 3);
        for packet in &got {
            assert_eq!((packet.len(), packet.segments, packet.mark), (1040, Segments::One, 5));
            let ip = IpPacket::parse(packet.bytes()).unwrap();
            assert_eq!(verify(&ip, packet.bytes()), Verification::Right);
        }
    }

    #[test]
    fn accepted_buffer_passes_unchanged() {
        let (done, got) = through(Accepts::ALL, vec![super_packet()]);
        assert_eq!((done.packets, got.len()), (3, 1));
        assert_eq!(got[0].segments, Segments::Tcp { mss: 1000 });
    }

    #[test]
    fn segments_beyond_a_batch_keep_order() {
        let mut burst = PacketBuf::from_slice(&[0x45; 700]);
        burst.segments = Segments::Burst { stride: 2 };
        let (first, last) = (PacketBuf::from_slice(&[1; 9]), PacketBuf::from_slice(&[2; 9]));
        let (done, got) = through(Accepts::PLAIN, vec![first, burst, last]);
        assert_eq!((done.packets, got.len()), (352, 352));
        assert_eq!((got[0].bytes(), got[351].bytes()), (&[1; 9][..], &[2; 9][..]));
        assert!(got[1..351].iter().all(|packet| packet.bytes() == [0x45; 2]));
    }

    #[test]
    fn unsegmentable_buffer_is_counted() {
        let mut broken = super_packet();
        broken.trim(30);
        let mut outside = PacketBuf::from_slice(&[0x45; 20]);
        outside.checksum = Checksum::Partial { start: 20, offset: 0 };
        let (done, got) = through(Accepts::PLAIN, vec![broken, outside]);
        assert_eq!((done.packets, done.refused.unsupported, got.len()), (0, 2, 0));
    }
}
