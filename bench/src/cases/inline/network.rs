//! A sender, a gateway and a receiver, in a namespace each; all end when dropped.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::Context;
use tempfile::TempDir;
use uxfrm_io::rtnetlink::{Route, RoutePrefix, Rtnetlink, Via};
use uxfrm_io::{FramePort, Frames, Namespace, PacketSocket, PacketSocketOptions};
use uxfrm_packet::ethernet::{EtherType, EthernetHeader, MacAddr};
use uxfrm_packet::ipv4::{self, Ipv4Header};
use uxfrm_packet::udp::{self, UdpHeader};
use uxfrm_packet::{Pool, Protocol, SizeClass};
use zerocopy::IntoBytes;

use super::InlinePath;
use super::sealer::EspSealer;
use crate::direction::TestDirection;
use crate::gateway_child::GatewayChild;

/// Packets of one call: a batch of the gateway.
const BURST: usize = 64;

/// The gateway's end of the wire and the other one.
const NEAR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const HOSTS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 1, 0, 2), Ipv4Addr::new(10, 2, 0, 2)];

/// Key and salt of both SAs, the same as in `STATES`.
const MATERIAL: [u8; 20] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20];
const SPI_IN: u32 = 0x2001;

const STATES: &str = "\
xfrm state add src 10.9.0.1 dst 10.9.0.2 proto esp spi 0x1001 reqid 1 mode tunnel aead rfc4106(gcm(aes)) 0x0102030405060708090a0b0c0d0e0f1011121314 128
xfrm policy add src 10.1.0.0/24 dst 10.2.0.0/24 dir out tmpl src 10.9.0.1 dst 10.9.0.2 proto esp reqid 1 mode tunnel
xfrm state add src 10.9.0.2 dst 10.9.0.1 proto esp spi 0x2001 reqid 1 mode tunnel aead rfc4106(gcm(aes)) 0x0102030405060708090a0b0c0d0e0f1011121314 128
xfrm policy add src 10.2.0.0/24 dst 10.1.0.0/24 dir fwd tmpl src 10.9.0.2 dst 10.9.0.1 proto esp reqid 1 mode tunnel
";

/// The namespaces of one path.
#[derive(Debug)]
pub(super) struct InlineNetwork {
    /// Dropped first.
    child: GatewayChild,
    protected: PeerEnd,
    wire: PeerEnd,
    sealer: EspSealer,
    frames: Frames,
    _gateway: Namespace,
    _files: TempDir,
}

/// The other end of one of the gateway's devices.
#[derive(Debug)]
struct PeerEnd {
    namespace: Namespace,
    sender: PacketSocket,
    header: EthernetHeader,
}

impl InlineNetwork {
    pub(super) fn start(path: InlinePath) -> anyhow::Result<Self> {
        let namespace = || Namespace::new().context("the bench needs root, for network namespaces");
        let (near, gateway, far) = (namespace()?, namespace()?, namespace()?);
        gateway.enter(|| Rtnetlink::open()?.add_veth("lan0", "eth0", near.as_fd()))??;
        gateway.enter(|| Rtnetlink::open()?.add_veth("wire0", "eth0", far.as_fd()))??;
        let (_, lan) = gateway.enter(|| configure_device("lan0", "10.1.0.1"))??;
        let (_, wire) = gateway.enter(|| configure_device("wire0", &NEAR.to_string()))??;
        let protected = PeerEnd::new(near, HOSTS[0], lan)?;
        let wire = PeerEnd::new(far, FAR, wire)?;
        gateway.enter(|| route_gateway(path))??;
        let files = tempfile::tempdir()?;
        let child = gateway.enter(|| start(path, files.path()))??;
        let sealer = EspSealer::new(SPI_IN, &MATERIAL)?;
        let (frames, _files) = (Frames::new(), files);
        Ok(Self { child, protected, wire, sealer, frames, _gateway: gateway, _files })
    }

    /// Sends a burst of packets of `bytes` bytes; returns how many the link took.
    pub(super) fn offer(
        &mut self,
        direction: TestDirection,
        bytes: u16,
        pool: &mut Pool,
    ) -> anyhow::Result<u64> {
        let Self { protected, wire, sealer, frames, .. } = self;
        let inner = usize::from(bytes);
        let (from, len) = match direction {
            TestDirection::Out => (protected, inner),
            TestDirection::In => (wire, EspSealer::around(inner)),
        };
        for _ in 0..BURST {
            let mut packet = pool.take(SizeClass::Packet);
            let room = packet.append(len).context("a packet fits into its buffer")?;
            match direction {
                TestDirection::Out => write(room, HOSTS)?,
                TestDirection::In => {
                    let [near, far] = HOSTS;
                    sealer.seal(room, inner, (FAR, NEAR), |room| write(room, [far, near]))?;
                }
            }
            frames.push(from.header, packet);
        }
        Ok(from.sender.transmit(frames, pool).packets)
    }

    /// Packets that have come out behind the gateway so far.
    pub(super) fn arrived(&self, direction: TestDirection) -> anyhow::Result<u64> {
        let end = match direction {
            TestDirection::Out => &self.wire,
            TestDirection::In => &self.protected,
        };
        let table = end.namespace.enter(|| fs::read_to_string("/proc/thread-self/net/dev"))??;
        let line = table.lines().find_map(|line| line.trim_start().strip_prefix("eth0:"));
        let packets = line.and_then(|line| line.split_ascii_whitespace().nth(1)?.parse().ok());
        packets.context("the kernel counts no packets")
    }

    /// CPU time of the gateway so far.
    pub(super) fn cpu_time(&self) -> anyhow::Result<Duration> {
        self.child.cpu_time()
    }
}

impl PeerEnd {
    /// Gives the namespace an address, and addresses frames to the gateway's device.
    fn new(namespace: Namespace, own: Ipv4Addr, destination: MacAddr) -> anyhow::Result<Self> {
        let (index, source) = namespace.enter(|| configure_device("eth0", &own.to_string()))??;
        let options = PacketSocketOptions::new(index);
        let sender = namespace.enter(|| PacketSocket::open(&options))??;
        let header = EthernetHeader { destination, source, ether_type: EtherType::IPV4 };
        Ok(Self { namespace, sender, header })
    }
}

/// Brings a device up with an address, in the namespace of the calling thread; returns its index
/// and Ethernet address.
fn configure_device(device: &str, own: &str) -> anyhow::Result<(u32, MacAddr)> {
    let mut kernel = Rtnetlink::open()?;
    let link = kernel.link(device)?;
    kernel.set_up(link.index)?;
    kernel.add_address(link.index, prefix(own, 24)?)?;
    Ok((link.index, link.mac.context("a veth has an Ethernet address")?))
}

/// Adds the gateway's route to the other side, and enables forwarding in host mode.
fn route_gateway(path: InlinePath) -> anyhow::Result<()> {
    let mut kernel = Rtnetlink::open()?;
    let via = Via::Gateway("10.9.0.2".parse()?, None);
    kernel.add_route(&Route::new(prefix("10.2.0.0", 24)?, via))?;
    let forwarding = if path == InlinePath::Host { "1" } else { "0" };
    Ok(uxfrm_io::netns::set_sysctl("net/ipv4/ip_forward", forwarding)?)
}

fn start(path: InlinePath, files: &std::path::Path) -> anyhow::Result<GatewayChild> {
    let inline = match path {
        InlinePath::Host => "",
        InlinePath::Inline => "inline = { protected = 'lan0', wire = 'wire0' }\n",
        InlinePath::XdpWire => {
            "inline = { protected = 'lan0', wire = 'wire0', wire_by = 'af-xdp' }\n"
        }
        InlinePath::Xdp => {
            "inline = { protected = 'lan0', wire = 'wire0', protected_by = 'af-xdp', wire_by = 'af-xdp' }\n"
        }
    };
    fs::write(files.join("tunnel.batch"), STATES)?;
    let config = files.join("config.toml");
    let rest = "host.guard = 'off'\ncontrol.enabled = false\nxfrm.batch = ['tunnel.batch']\nxfrm.sequences = 'sequences'\n";
    fs::write(&config, format!("{inline}{rest}"))?;
    GatewayChild::start(&config)
}

fn prefix(address: &str, length: u8) -> anyhow::Result<RoutePrefix> {
    let address: IpAddr = address.parse()?;
    RoutePrefix::new(address, length).with_context(|| format!("{address}/{length}"))
}

/// Writes a datagram from one host to the other that fills `room`.
fn write(room: &mut [u8], [source, destination]: [Ipv4Addr; 2]) -> anyhow::Result<()> {
    let len = u16::try_from(room.len())?;
    let mut ip = Ipv4Header::new(source, destination, Protocol::UDP, len);
    ip.fill_checksum();
    let length = len - u16::try_from(ipv4::HEADER_LEN)?;
    let udp = UdpHeader {
        source: 5000.into(),
        destination: 9.into(),
        length: length.into(),
        checksum: 0.into(),
    };
    room[..ipv4::HEADER_LEN].copy_from_slice(ip.as_bytes());
    room[ipv4::HEADER_LEN..][..udp::HEADER_LEN].copy_from_slice(udp.as_bytes());
    Ok(())
}
