//! Packets with the Ethernet headers before which they leave, and the ports that take them.
//!
//! A [`FramePort`] is to a network device what a [`Port`] is to a TUN: what it receives are whole IP packets, the frame's header taken off;
//! what it sends are IP packets, each with a header of its own choosing. What is no IP for this machine stays with the host.

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use uxfrm_packet::ethernet::EthernetHeader;
use uxfrm_packet::{Batch, PacketBuf, Pool};

use crate::port::{Accepts, Port, Transmitted};

/// Packets on their way out, in order, each with its Ethernet header.
#[derive(Debug, Default)]
pub struct Frames {
    packets: Batch,
    headers: Vec<EthernetHeader>,
}

impl Frames {
    /// None, with room for a batch.
    #[must_use]
    pub fn new() -> Self {
        Self { packets: Batch::new(), headers: Vec::with_capacity(uxfrm_packet::BATCH) }
    }

    /// Adds a packet; each packet of a train or super-packet gets the same header.
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

    /// Takes all out.
    pub fn drain(&mut self) -> impl Iterator<Item = (EthernetHeader, PacketBuf)> {
        self.headers.drain(..).zip(self.packets.drain())
    }

    /// Gives all buffers back.
    pub fn give_all(&mut self, pool: &mut Pool) {
        pool.give_all(&mut self.packets);
        self.headers.clear();
    }
}

/// A network device, as a way in and out for packets, owned by one worker.
pub trait FramePort: Debug + Send {
    /// Appends the IP packets that wait to `into`, as far as it has room; how many buffers that were. Ethernet's padding may be behind them.
    ///
    /// Does not block: 0 when nothing waits. Only packets of untagged frames to the device's own address come.
    ///
    /// # Errors
    /// The kernel's, when the device is gone. Transient ones are an empty answer.
    fn receive(&mut self, pool: &mut Pool, into: &mut Batch) -> io::Result<usize>;

    /// Sends all of `frames` in order, behind what it [keeps](Self::has_backlog), and gives the buffers back to `pool`; what became of them.
    fn transmit(&mut self, frames: &mut Frames, pool: &mut Pool) -> Transmitted;

    /// Whether it has taken packets that the device has no room for yet: another [`transmit`](Self::transmit), of nothing if need be, is to follow soon.
    fn has_backlog(&mut self) -> bool {
        false
    }

    /// Leaves to another process of the gateway what that needs beside the descriptors to go on with the port; nothing where the kernel has all.
    fn save_state(&mut self) {}

    /// Goes on where another process has [laid it down](Self::save_state).
    ///
    /// # Errors
    /// Where it can't have.
    fn restore_state(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// How long the first buffer of the last [`receive`](Self::receive) had waited; see [`Port::waited`].
    fn waited(&self) -> Duration {
        Duration::ZERO
    }

    /// Bytes of the largest IP packet that it sends, where that is not for the device to say.
    fn mtu(&self) -> usize {
        usize::MAX
    }

    /// Packets that came for it and were lost for want of room, since the last time; none where the kernel counts them elsewhere.
    fn lost(&mut self) -> u64 {
        0
    }

    /// Which kinds of super-packets the port takes; see [`Port::accepts`].
    fn accepts(&self) -> Accepts;

    /// What to poll for readability; `None` when the port is to be asked in turn.
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
