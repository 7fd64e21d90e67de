//! ESP by AF_XDP, past the kernel's network stack, for a worker whose host keeps all other traffic.
//!
//! ```text
//!   ESP ─┬─ next hop known, at the AF_XDP device ──▶ frames at the device
//!        └─ any other next hop, or too large ──────▶ the kernel's raw sockets
//! ```
//!
//! Nothing waits here, because the kernel can send whatever this cannot: packets without a resolved
//! next hop leave by the raw sockets until the resolver answers.

use std::{io, os::fd::BorrowedFd, time::Duration};

use uxfrm_engine::Moment;
use uxfrm_io::{FramePort, Frames, Transmitted};
use uxfrm_packet::{
    Batch, Checksum, IpPacket, PacketBuf, Pool, Protocol, Segments, congestion::CongestionSignal,
    ethernet::MacAddr,
};

use crate::{
    codel::Codel,
    next_hops::{HopLookup, NextHops, ResolverEnds},
};

/// A device that sends and receives ESP as frames.
#[derive(Debug)]
pub struct AfXdpEsp {
    port: Box<dyn FramePort>,
    next_hops: NextHops,
    leaving: Frames,
    /// Receive queue, if it is monitored.
    queue: Option<Codel>,
    now: Moment,
}

impl AfXdpEsp {
    /// Wraps a port that receives only ESP for this host, at a device with this MAC address;
    /// `guide` resolves next hops.
    #[must_use]
    pub fn new(port: Box<dyn FramePort>, address: MacAddr, guide: ResolverEnds) -> Self {
        // There is only one port, so it stands for both sides.
        let next_hops = NextHops::new(guide, [address; 2]);
        Self { port, next_hops, leaving: Frames::new(), queue: None, now: Moment(0) }
    }

    /// Signals congestion to TCP senders from now on once packets wait for `target`.
    pub(crate) fn watch(&mut self, target: Duration) {
        self.queue = Some(Codel::new(target));
    }

    /// Slows a TCP sender down if the queue stands; `batch` holds what the last receive became.
    pub(crate) fn signal_congestion(
        &mut self,
        now: Moment,
        batch: &mut Batch,
        pool: &mut Pool,
    ) -> Option<CongestionSignal> {
        self.queue.as_mut()?.signal_congestion(self.port.waited(), now, batch, pool)
    }

    /// Applies next-hop updates and sets the time for later calls.
    pub(crate) fn apply_updates(&mut self, now: Moment) {
        self.now = now;
        self.next_hops.apply_updates(now);
    }

    /// Queues a packet, or gives it back if the kernel has to send it.
    #[inline]
    pub(crate) fn take(&mut self, packet: PacketBuf) -> Result<(), PacketBuf> {
        let Some((ip, longest)) = sealed(&packet) else { return Err(packet) };
        match self.next_hops.lookup(ip.destination, self.now) {
            HopLookup::Send { header, mtu, .. }
                if longest <= usize::from(mtu) && longest <= self.port.mtu() =>
            {
                self.leaving.push(header, packet);
                Ok(())
            }
            HopLookup::Send { .. }
            | HopLookup::Pending
            | HopLookup::Local
            | HopLookup::NoRoute
            | HopLookup::Unreachable => Err(packet),
        }
    }

    /// Sends what was queued, and what the device had no room for before.
    pub(crate) fn transmit(&mut self, pool: &mut Pool) -> Transmitted {
        self.next_hops.wake_resolver();
        if self.leaving.is_empty() && !self.port.has_backlog() {
            return Transmitted::default();
        }
        self.port.transmit(&mut self.leaving, pool)
    }

    /// Whether the device had no room for all packets; call `transmit` again soon.
    pub(crate) fn has_backlog(&mut self) -> bool {
        self.port.has_backlog()
    }

    /// See [`FramePort::receive`].
    pub(crate) fn receive(&mut self, pool: &mut Pool, into: &mut Batch) -> io::Result<usize> {
        self.port.receive(pool, into)
    }

    /// See [`FramePort::save_state`].
    pub(crate) fn save_state(&mut self) {
        self.port.save_state();
    }

    /// See [`FramePort::restore_state`].
    pub(crate) fn restore_state(&mut self) -> io::Result<()> {
        self.port.restore_state()
    }

    /// See [`FramePort::lost`].
    pub(crate) fn lost(&mut self) -> u64 {
        self.port.lost()
    }

    /// What to poll for readability.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.port.descriptor()
    }
}

/// Parses ESP that needs no offload, one packet or a GSO burst; with the length of its longest
/// packet.
#[inline]
fn sealed(packet: &PacketBuf) -> Option<(IpPacket, usize)> {
    let longest = match packet.segments {
        Segments::One => packet.len(),
        Segments::Burst { stride } => usize::from(stride).min(packet.len()),
        Segments::Tcp { .. } | Segments::Udp { .. } => return None,
    };
    let ip = IpPacket::parse(packet.bytes()).ok()?;
    let is_done = packet.checksum == Checksum::AsIs && !ip.is_fragment();
    (ip.protocol == Protocol::ESP && is_done).then_some((ip, longest))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use uxfrm_io::{Framed, Memory, Port as _, poll::Poller, rtnetlink::NeighbourState};
    use uxfrm_packet::ethernet::EthernetHeader;
    use uxfrm_testkit::packets;

    use super::*;
    use crate::{NextHop, NextHopRequest, NextHopUpdate, PortSide, ResolvedRoute};

    const MTU: u16 = 1500;

    fn esp(to: &str, size: usize) -> PacketBuf {
        let source = if to.starts_with('[') { "[2001:db8::1]:1" } else { "192.0.2.1:1" };
        let mut packet = packets::udp(source, to, &vec![7; size]);
        packet.bytes_mut()[if to.starts_with('[') { 6 } else { 9 }] = Protocol::ESP.0;
        packet
    }

    struct Bench {
        af_xdp: AfXdpEsp,
        far: Memory,
        asked: mpsc::Receiver<NextHopRequest>,
        told: mpsc::Sender<NextHopUpdate>,
        pool: Pool,
    }

    impl Bench {
        fn new() -> Self {
            let (near, far) = Memory::pair(64);
            let (questions, asked) = mpsc::sync_channel(8);
            let (told, news) = mpsc::channel();
            let guide = ResolverEnds {
                requests: questions,
                waker: Poller::new().unwrap().waker(),
                updates: news,
            };
            let af_xdp = AfXdpEsp::new(Box::new(Framed::new(near)), MacAddr([2; 6]), guide);
            Self { af_xdp, far, asked, told, pool: Pool::new() }
        }

        fn knows(&mut self, address: &str) {
            let address = address.parse().unwrap();
            let hop = NextHop { side: PortSide::Wire, address };
            let answer = ResolvedRoute::Via { hop, mtu: MTU, source: None };
            self.told.send(NextHopUpdate::Route(address, answer)).unwrap();
            let standing = NeighbourState::Known(MacAddr([4; 6]));
            self.told.send(NextHopUpdate::Neighbour(hop, standing)).unwrap();
            self.af_xdp.apply_updates(Moment(1));
        }

        /// Number of frames that leave, all of them to the neighbour.
        fn leave(&mut self) -> usize {
            let _sent = self.af_xdp.transmit(&mut self.pool);
            let mut frames = Batch::new();
            self.far.receive(&mut self.pool, &mut frames).unwrap();
            for frame in frames.as_slice() {
                assert_eq!(frame.bytes()[..6], [4; 6]);
                assert_eq!(frame.bytes()[6..12], [2; 6]);
            }
            frames.len()
        }
    }

    #[test]
    fn unknown_next_hop_leaves_packet_to_kernel() {
        let mut bench = Bench::new();
        assert!(bench.af_xdp.take(esp("192.0.2.2:2", 40)).is_err());
        assert!(bench.af_xdp.take(esp("192.0.2.2:2", 40)).is_err());
        let way = NextHopRequest::Route("192.0.2.2".parse().unwrap());
        assert_eq!(bench.asked.try_iter().collect::<Vec<_>>(), [way], "once is enough");
        assert_eq!(bench.leave(), 0);
        bench.knows("192.0.2.2");
        assert!(bench.af_xdp.take(esp("192.0.2.2:2", 40)).is_ok());
        assert!(bench.af_xdp.take(esp("192.0.2.3:2", 40)).is_err(), "of another nothing is known");
        assert_eq!(bench.leave(), 1);
    }

    #[test]
    fn af_xdp_takes_only_complete_esp_that_fits() {
        let mut bench = Bench::new();
        for address in ["192.0.2.2", "2001:db8::2"] {
            let to = if address.contains(':') {
                format!("[{address}]:2")
            } else {
                format!("{address}:2")
            };
            assert!(bench.af_xdp.take(esp(&to, 40)).is_err());
            bench.knows(address);
            assert!(bench.af_xdp.take(esp(&to, 40)).is_ok());
        }
        assert_eq!(bench.leave(), 2);
        let changed = |change: fn(&mut PacketBuf)| {
            let mut packet = esp("192.0.2.2:2", 40);
            change(&mut packet);
            packet
        };
        let longest = usize::from(MTU) - 28;
        for (packet, is_taken) in [
            (esp("192.0.2.2:2", longest), true),
            (esp("192.0.2.2:2", longest + 1), false),
            (packets::udp("192.0.2.1:1", "192.0.2.2:2", b"plain"), false),
            (changed(|packet| packet.bytes_mut()[6] = 0x20), false),
            (changed(|packet| packet.checksum = Checksum::Partial { start: 20, offset: 6 }), false),
            (changed(|packet| packet.segments = Segments::Udp { size: 20 }), false),
            (PacketBuf::from_slice(b"no packet"), false),
        ] {
            let shown = format!("{packet:?}");
            assert_eq!(bench.af_xdp.take(packet).is_ok(), is_taken, "{shown}");
        }
        assert_eq!(bench.leave(), 1);
    }

    /// A burst may be longer than the link's MTU, its packets may not.
    #[test]
    fn af_xdp_checks_burst_by_segment_length() {
        let mut bench = Bench::new();
        assert!(bench.af_xdp.take(esp("192.0.2.2:2", 40)).is_err());
        bench.knows("192.0.2.2");
        let burst = |stride| {
            let mut packet = esp("192.0.2.2:2", 2972);
            packet.segments = Segments::Burst { stride };
            packet
        };
        assert!(bench.af_xdp.take(burst(1500)).is_ok());
        assert!(bench.af_xdp.take(burst(1501)).is_err());
    }

    #[test]
    fn af_xdp_frames_have_ether_type_of_packet() {
        let mut bench = Bench::new();
        for (address, to, ether_type) in
            [("192.0.2.2", "192.0.2.2:2", [8, 0]), ("2001:db8::2", "[2001:db8::2]:2", [0x86, 0xdd])]
        {
            assert!(bench.af_xdp.take(esp(to, 40)).is_err());
            bench.knows(address);
            assert!(bench.af_xdp.take(esp(to, 40)).is_ok());
            let _sent = bench.af_xdp.transmit(&mut bench.pool);
            let mut frames = Batch::new();
            bench.far.receive(&mut bench.pool, &mut frames).unwrap();
            let frame = frames.as_slice()[0].bytes();
            assert_eq!(frame[12..size_of::<EthernetHeader>()], ether_type);
        }
    }
}
