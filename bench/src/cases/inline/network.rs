//! A sender, a gateway and what is behind it, a namespace each. All goes when it is dropped.

use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use anyhow::{Context, anyhow, bail};
use tempfile::TempDir;
use uxfrm_daemon::upgrade::gateway_of;
use uxfrm_io::rtnetlink::{Prefix, Route, Rtnetlink, Via};
use uxfrm_io::{FramePort, Frames, Namespace, PacketSocket, PacketSocketOptions};
use uxfrm_packet::ethernet::{EtherType, EthernetHeader, MacAddr};
use uxfrm_packet::ipv4::{self, Ipv4Header};
use uxfrm_packet::udp::{self, UdpHeader};
use uxfrm_packet::{Pool, Protocol, SizeClass};
use zerocopy::IntoBytes;

use super::sealer::Sealer;
use super::{Path, Way};

/// Packets of one call: what a batch of the gateway is.
const BURST: usize = 64;

/// The gateway's end of the wire and the other one.
const NEAR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const HOSTS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 1, 0, 2), Ipv4Addr::new(10, 2, 0, 2)];

/// Key and salt of both states, the same as in their lines.
const MATERIAL: [u8; 20] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20];
const SPI_IN: u32 = 0x2001;

const STATES: &str = "\
xfrm state add src 10.9.0.1 dst 10.9.0.2 proto esp spi 0x1001 reqid 1 mode tunnel aead rfc4106(gcm(aes)) 0x0102030405060708090a0b0c0d0e0f1011121314 128
xfrm policy add src 10.1.0.0/24 dst 10.2.0.0/24 dir out tmpl src 10.9.0.1 dst 10.9.0.2 proto esp reqid 1 mode tunnel
xfrm state add src 10.9.0.2 dst 10.9.0.1 proto esp spi 0x2001 reqid 1 mode tunnel aead rfc4106(gcm(aes)) 0x0102030405060708090a0b0c0d0e0f1011121314 128
xfrm policy add src 10.2.0.0/24 dst 10.1.0.0/24 dir fwd tmpl src 10.9.0.2 dst 10.9.0.1 proto esp reqid 1 mode tunnel
";

/// The network of one path.
#[derive(Debug)]
pub(super) struct Network {
    protected: End,
    wire: End,
    sealer: Sealer,
    frames: Frames,
    child: Child,
    _gateway: Namespace,
    _files: TempDir,
}

/// Who is at the other end of one of the gateway's devices.
#[derive(Debug)]
struct End {
    namespace: Namespace,
    sender: PacketSocket,
    header: EthernetHeader,
}

impl Network {
    pub(super) fn start(path: Path) -> anyhow::Result<Self> {
        let namespace = || Namespace::new().context("the bench needs root, for network namespaces");
        let (near, gateway, far) = (namespace()?, namespace()?, namespace()?);
        gateway.enter(|| Rtnetlink::open()?.add_veth("lan0", "eth0", near.as_fd()))??;
        gateway.enter(|| Rtnetlink::open()?.add_veth("wire0", "eth0", far.as_fd()))??;
        let (_, lan) = gateway.enter(|| settle("lan0", "10.1.0.1"))??;
        let (_, wire) = gateway.enter(|| settle("wire0", &NEAR.to_string()))??;
        let protected = End::new(near, HOSTS[0], lan)?;
        let wire = End::new(far, FAR, wire)?;
        gateway.enter(|| route_gateway(path))??;
        let files = tempfile::tempdir()?;
        let child = gateway.enter(|| start(path, files.path()))??;
        let sealer = Sealer::new(SPI_IN, &MATERIAL)?;
        let (frames, _files) = (Frames::new(), files);
        Ok(Self { protected, wire, sealer, frames, child, _gateway: gateway, _files })
    }

    /// Sends a burst of packets of `bytes` to behind the gateway; how many the link took.
    pub(super) fn offer(&mut self, way: Way, bytes: u16, pool: &mut Pool) -> anyhow::Result<u64> {
        let Self { protected, wire, sealer, frames, .. } = self;
        let inner = usize::from(bytes);
        let (from, len) = match way {
            Way::Out => (protected, inner),
            Way::In => (wire, Sealer::around(inner)),
        };
        for _ in 0..BURST {
            let mut packet = pool.take(SizeClass::Packet);
            let room = packet.append(len).context("a packet fits into its buffer")?;
            match way {
                Way::Out => write(room, HOSTS)?,
                Way::In => {
                    let [near, far] = HOSTS;
                    sealer.seal(room, inner, (FAR, NEAR), |room| write(room, [far, near]))?;
                }
            }
            frames.push(from.header, packet);
        }
        Ok(from.sender.transmit(frames, pool).packets)
    }

    /// How many packets have come out behind the gateway.
    pub(super) fn arrived(&self, way: Way) -> anyhow::Result<u64> {
        let end = match way {
            Way::Out => &self.wire,
            Way::In => &self.protected,
        };
        let table = end.namespace.enter(|| fs::read_to_string("/proc/thread-self/net/dev"))??;
        let line = table.lines().find_map(|line| line.trim_start().strip_prefix("eth0:"));
        let packets = line.and_then(|line| line.split_ascii_whitespace().nth(1)?.parse().ok());
        packets.context("the kernel counts no packets")
    }

    /// What all threads of the gateway have used: the first number of `schedstat`, in nanoseconds.
    pub(super) fn cpu_time(&self) -> anyhow::Result<Duration> {
        let mut nanoseconds = 0;
        let process = gateway_of(self.child.id()).context("the gateway has no process")?;
        let tasks = format!("/proc/{process}/task");
        for task in fs::read_dir(tasks).context("the gateway has ended")? {
            let text = fs::read_to_string(task?.path().join("schedstat"))?;
            let first = text.split_ascii_whitespace().next();
            nanoseconds += first.and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(Duration::from_nanos(nanoseconds))
    }
}

impl End {
    /// With an address of its own, and frames for the gateway's device.
    fn new(namespace: Namespace, own: Ipv4Addr, destination: MacAddr) -> anyhow::Result<Self> {
        let (index, source) = namespace.enter(|| settle("eth0", &own.to_string()))??;
        let options = PacketSocketOptions::new(index);
        let sender = namespace.enter(|| PacketSocket::open(&options))??;
        let header = EthernetHeader { destination, source, ether_type: EtherType::IPV4 };
        Ok(Self { namespace, sender, header })
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // It ends with its standard input. Nobody is left to tell if it doesn't.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Brings a device up with an address, in the namespace of the calling thread; its index and Ethernet address.
fn settle(device: &str, own: &str) -> anyhow::Result<(u32, MacAddr)> {
    let mut kernel = Rtnetlink::open()?;
    let link = kernel.link(device)?;
    kernel.set_up(link.index)?;
    kernel.add_address(link.index, prefix(own, 24)?)?;
    Ok((link.index, link.mac.context("a veth has an Ethernet address")?))
}

/// The gateway's own way to the other side, and in host mode the leave to forward.
fn route_gateway(path: Path) -> anyhow::Result<()> {
    let mut kernel = Rtnetlink::open()?;
    let via = Via::Gateway("10.9.0.2".parse()?, None);
    kernel.add_route(&Route::new(prefix("10.2.0.0", 24)?, via))?;
    let forwarding = if path == Path::Host { "1" } else { "0" };
    Ok(uxfrm_io::netns::set_sysctl("net/ipv4/ip_forward", forwarding)?)
}

fn start(path: Path, files: &std::path::Path) -> anyhow::Result<Child> {
    let inline = match path {
        Path::Host => "",
        Path::Inline => "inline = { protected = 'lan0', wire = 'wire0' }\n",
        Path::XdpWire => "inline = { protected = 'lan0', wire = 'wire0', wire_by = 'af-xdp' }\n",
        Path::Xdp => {
            "inline = { protected = 'lan0', wire = 'wire0', protected_by = 'af-xdp', wire_by = 'af-xdp' }\n"
        }
    };
    fs::write(files.join("tunnel.batch"), STATES)?;
    let config = files.join("config.toml");
    let rest = "host.guard = 'off'\ncontrol.enabled = false\nxfrm.batch = ['tunnel.batch']\nxfrm.sequences = 'sequences'\n";
    fs::write(&config, format!("{inline}{rest}"))?;
    let mut command = Command::new(env::current_exe()?);
    command.args(["run", "--until-stdin-ends"]).arg(config);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().context("cannot start a gateway")?;
    let stderr = child.stderr.take().ok_or_else(|| anyhow!("a gateway has no stderr"))?;
    let (mut reader, mut said) = (BufReader::new(stderr), String::new());
    while !said.ends_with("uxfrm: ready\n") {
        if reader.read_line(&mut said)? == 0 {
            bail!("a gateway ended at its start:\n{said}");
        }
    }
    // Nobody reads on; a gateway that logs must not wait for that.
    thread::spawn(move || reader.read_to_end(&mut Vec::new()));
    Ok(child)
}

fn prefix(address: &str, length: u8) -> anyhow::Result<Prefix> {
    let address: IpAddr = address.parse()?;
    Prefix::new(address, length).with_context(|| format!("{address}/{length}"))
}

/// A datagram from one host to another that fills `room`.
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
