//! A relay's loop: packets from the TUN go to the wire in chunks, chunks from the wire are
//! reassembled and go to the TUN.

use std::fmt;
use std::net::SocketAddr;

use anyhow::Context;
use uxfrm_io::poll::{Poller, Waker};
use uxfrm_io::rtnetlink::Rtnetlink;
use uxfrm_io::{Port, Raw, RawOptions, Tun, TunOptions, Udp, UdpOptions};
use uxfrm_packet::ipv4::{self, DONT_FRAGMENT, Ipv4Header};
use uxfrm_packet::{Batch, PacketBuf, Pool, Protocol, SizeClass, UdpPath, Version};
use zerocopy::IntoBytes as _;

use super::RelayEncap;
use super::chunks;
use super::reassembler::Reassembler;
use crate::cases::tunnel::route;
use crate::pair::{ESP_IN_UDP, GatewaySite};

/// The TUN's name at either end.
const TUN: &str = "relay0";

/// Queue length of the TUN, as in a gateway.
const QUEUE: u32 = 4000;

/// Segments of a super-packet at most, as in a gateway, so that it leaves as one message.
const SEGMENTS: u32 = 44;

const HOST: u8 = 0;
const WIRE: u8 = 1;

/// One end's descriptors and buffers.
#[derive(Debug)]
pub(super) struct Forwarder {
    poller: Poller,
    tun: Tun,
    wire: Box<dyn Port>,
    outer: OuterHeader,
    stride: u16,
    number: u32,
    reassembler: Reassembler,
    pool: Pool,
    taken: Batch,
    made: Batch,
    losses: LossCounts,
}

/// The header around each chunk.
#[derive(Debug)]
enum OuterHeader {
    /// Headers that the kernel writes.
    Udp(UdpPath),
    /// An IPv4 header, in which the kernel fills length and checksum.
    Ip(Ipv4Header),
}

/// Packets that did not arrive.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LossCounts {
    incomplete: u64,
    uncut: u64,
    refused_by_wire: u64,
    refused_by_tun: u64,
}

impl Forwarder {
    /// Opens TUN and wire in the namespace of the calling thread, with a route to `there` through
    /// the TUN.
    pub(super) fn open(
        encap: RelayEncap,
        (here, there): (&GatewaySite, &GatewaySite),
    ) -> anyhow::Result<Self> {
        let tun = Tun::open(&TunOptions::new(TUN)).context("cannot open a TUN")?;
        let (wire, outer) = open_wire(encap, (here, there))?;
        let poller = Poller::new()?;
        for (port, token) in [(&tun as &dyn Port, HOST), (&*wire, WIRE)] {
            poller.add(port.descriptor().context("a port without descriptor")?, token)?;
        }
        let mut kernel = Rtnetlink::open()?;
        let link = kernel.link(tun.name())?;
        kernel.set_queue_length(link.index, QUEUE)?;
        kernel.set_segments(link.index, SEGMENTS)?;
        route::add_through(tun.name(), encap.tun_mtu(), (here, there))?;
        Ok(Self {
            poller,
            tun,
            wire,
            outer,
            stride: encap.chunk_len(),
            number: 0,
            reassembler: Reassembler::new(encap.chunk_len()),
            pool: Pool::new(),
            taken: Batch::new(),
            made: Batch::new(),
            losses: LossCounts::default(),
        })
    }

    /// Waking it ends the loop.
    pub(super) fn waker(&self) -> Waker {
        self.poller.waker()
    }

    /// Relays until it is woken; returns the losses.
    ///
    /// # Errors
    /// A broken port.
    pub(super) fn run(mut self) -> anyhow::Result<LossCounts> {
        loop {
            let ready = self.poller.wait(None).context("cannot poll")?;
            if ready.woken {
                return Ok(LossCounts { incomplete: self.reassembler.incomplete(), ..self.losses });
            }
            if ready.has(HOST) {
                self.send()?;
            }
            if ready.has(WIRE) {
                self.receive()?;
            }
        }
    }

    fn send(&mut self) -> anyhow::Result<()> {
        self.tun.receive(&mut self.pool, &mut self.taken).context("the TUN is broken")?;
        for mut packet in self.taken.drain() {
            self.number = self.number.wrapping_add(1);
            if chunks::split(&mut packet, self.number, self.stride).is_some() {
                self.outer.add(packet, self.stride, &mut self.pool, &mut self.made);
            } else {
                self.losses.uncut += 1;
                self.pool.give(packet);
            }
        }
        let done = self.wire.transmit(&mut self.made, &mut self.pool);
        self.losses.refused_by_wire += done.refused.packets();
        Ok(())
    }

    fn receive(&mut self) -> anyhow::Result<()> {
        self.wire.receive(&mut self.pool, &mut self.taken).context("the wire is broken")?;
        for mut message in self.taken.drain() {
            self.outer.strip(&mut message);
            self.reassembler.take(message, &mut self.pool, &mut self.made);
        }
        let done = self.tun.transmit(&mut self.made, &mut self.pool);
        self.losses.refused_by_tun += done.refused.packets();
        Ok(())
    }
}

fn open_wire(
    encap: RelayEncap,
    (here, there): (&GatewaySite, &GatewaySite),
) -> anyhow::Result<(Box<dyn Port>, OuterHeader)> {
    let [local, remote] = [here, there].map(|site| SocketAddr::new(site.wire.into(), ESP_IN_UDP));
    Ok(match encap {
        RelayEncap::Udp => {
            let udp = Udp::open(&UdpOptions::new(local)).context("cannot open a UDP socket")?;
            (
                Box::new(udp),
                OuterHeader::Udp(UdpPath { local, remote, tos: 0, dont_fragment: true }),
            )
        }
        RelayEncap::Esp => {
            let options = RawOptions { local: Some(local.ip()), ..RawOptions::new(Version::V4) };
            let raw = Raw::open(&options).context("cannot open raw sockets")?;
            let mut header = Ipv4Header::new(here.wire, there.wire, Protocol::ESP, 0);
            header.flags_fragment = DONT_FRAGMENT.into();
            (Box::new(raw), OuterHeader::Ip(header))
        }
    })
}

impl OuterHeader {
    /// Makes packets for the wire of a packet's chunks. Raw sockets send each by itself with its
    /// header, so it is copied.
    fn add(&self, mut chunks: PacketBuf, stride: u16, pool: &mut Pool, into: &mut Batch) {
        match self {
            Self::Udp(path) => {
                chunks.udp = Some(*path);
                into.push(chunks);
            }
            Self::Ip(header) => {
                for chunk in chunks.bytes().chunks(stride.into()) {
                    let mut packet = pool.take(SizeClass::Packet);
                    for part in [header.as_bytes(), chunk] {
                        // The buffer has room for 2,048 bytes, more than the wire's MTU.
                        packet.append(part.len()).expect("room for 2048").copy_from_slice(part);
                    }
                    into.push(packet);
                }
                pool.give(chunks);
            }
        }
    }

    /// Removes the header that the kernel leaves before a chunk.
    fn strip(&self, message: &mut PacketBuf) {
        match self {
            Self::Udp(_) => {}
            Self::Ip(_) => message.pull(ipv4::HEADER_LEN),
        }
    }
}

impl fmt::Display for LossCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { incomplete, uncut, refused_by_wire, refused_by_tun } = self;
        write!(
            f,
            "gave up {incomplete} incomplete packets, could not cut {uncut}, \
             and had {refused_by_wire} refused by the wire and {refused_by_tun} by the TUN"
        )
    }
}
