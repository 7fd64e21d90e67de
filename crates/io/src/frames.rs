//! Packets with Ethernet headers, and the ports that send them.
//!
//! A [`FramePort`] is for a network device what a [`Port`] is for a TUN: it receives whole IP
//! packets without the frame's header, and sends IP packets, each with its own header. Frames
//! without IP for this machine stay with the host.

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use uxfrm_packet::ethernet::EthernetHeader;
use uxfrm_packet::{Batch, PacketBuf, Pool};

use crate::port::{Accepts, Port, Transmitted};

/// Outgoing packets in order, each with its Ethernet header.
#[derive(Debug, Default)]
pub struct Frames {
    packets: Batch,
    headers: Vec<EthernetHeader>,
}

impl Frames {
    /// An empty list with room for a batch.
    #[must_use]
    pub fn new() -> Self {
        Self { packets: Batch::new(), headers: Vec::with_capacity(uxfrm_packet::BATCH) }
    }

    /// Adds a packet; each packet of a burst or super-packet gets the same header.
    #[inline]
    pub fn push(&mut self, header: EthernetHeader, packet: PacketBuf) {
        self.packets.push(packet);
        self.headers.push(header);
    }

    /// Buffers held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.headers.len()
    }

    /// Whether it holds none.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.headers.is_empty()
    }

    /// The buffers in order.
    #[must_use]
    pub fn packets(&self) -> &[PacketBuf] {
        self.packets.as_slice()
    }

    /// Their headers.
    #[must_use]
    pub fn headers(&self) -> &[EthernetHeader] {
        &self.headers
    }

    /// Removes all buffers with their headers.
    pub fn drain(&mut self) -> impl Iterator<Item = (EthernetHeader, PacketBuf)> {
        self.headers.drain(..).zip(self.packets.drain())
    }

    /// Gives all buffers back.
    pub fn give_all(&mut self, pool: &mut Pool) {
        pool.give_all(&mut self.packets);
        self.headers.clear();
    }
}

/// A port at a network device, owned by one worker.
pub trait FramePort: Debug + Send {
    /// Appends waiting IP packets to `into`, as far as it has room; returns the number of buffers.
    /// Ethernet padding may follow a packet.
    ///
    /// Does not block: 0 when nothing waits. Receives only untagged frames to the device's own
    /// address.
    ///
    /// # Errors
    /// The kernel's, when the device is gone. Transient ones are an empty answer.
    fn receive(&mut self, pool: &mut Pool, into: &mut Batch) -> io::Result<usize>;

    /// Sends `frames` in order, behind its [backlog](Self::has_backlog), and gives the buffers back
    /// to `pool`.
    fn transmit(&mut self, frames: &mut Frames, pool: &mut Pool) -> Transmitted;

    /// Whether packets wait for room at the device: call [`transmit`](Self::transmit) again soon,
    /// even without frames.
    fn has_backlog(&mut self) -> bool {
        false
    }

    /// Saves the state that a successor process needs beside the descriptors; nothing if the kernel
    /// has all of it.
    fn save_state(&mut self) {}

    /// Restores the state that a predecessor [saved](Self::save_state).
    ///
    /// # Errors
    /// When none was saved.
    fn restore_state(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Waiting time of the first buffer of the last [`receive`](Self::receive); see
    /// [`Port::waited`].
    fn waited(&self) -> Duration {
        Duration::ZERO
    }

    /// Largest IP packet in bytes that it sends, where the device does not decide that.
    fn mtu(&self) -> usize {
        usize::MAX
    }

    /// Packets lost for want of room since the last call; 0 if the kernel counts them elsewhere.
    fn lost(&mut self) -> u64 {
        0
    }

    /// Which kinds of super-packets the port takes; see [`Port::accepts`].
    fn accepts(&self) -> Accepts;

    /// Descriptor to poll for readability; `None` for a port that is read in turn.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}

/// A [`FramePort`] in memory: whole frames through any [`Port`], for tests.
#[derive(Debug)]
pub struct Framed<P> {
    port: P,
    leaving: Batch,
}

impl<P: Port> Framed<P> {
    /// Frames pass through `port`.
    #[must_use]
    pub fn new(port: P) -> Self {
        Self { port, leaving: Batch::new() }
    }
}

impl<P: Port> FramePort for Framed<P> {
    fn receive(&mut self, pool: &mut Pool, into: &mut Batch) -> io::Result<usize> {
        let before = into.len();
        let count = self.port.receive(pool, into)?;
        for packet in &mut into.as_mut_slice()[before..] {
            packet.pull(size_of::<EthernetHeader>());
        }
        Ok(count)
    }

    fn transmit(&mut self, frames: &mut Frames, pool: &mut Pool) -> Transmitted {
        for (header, mut packet) in frames.drain() {
            if let Some(room) = packet.push(size_of::<EthernetHeader>()) {
                room.copy_from_slice(zerocopy::IntoBytes::as_bytes(&header));
            }
            self.leaving.push(packet);
        }
        self.port.transmit(&mut self.leaving, pool)
    }

    fn accepts(&self) -> Accepts {
        self.port.accepts()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.port.descriptor()
    }
}
