//! A sender, a gateway and what is behind it, a namespace each. All goes when it is dropped.

use std::io::{BufRead, BufReader, Read};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use anyhow::{Context, anyhow, bail};
use tempfile::TempDir;
use uxfrm_io::rtnetlink::{Prefix, Route, Rtnetlink, Via};
use uxfrm_io::{FramePort, Frames, Namespace, PacketSocket, PacketSocketOptions};
use uxfrm_packet::ethernet::{EtherType, EthernetHeader, MacAddr};
use uxfrm_packet::ipv4::{self, Ipv4Header};
use uxfrm_packet::udp::{self, UdpHeader};
use uxfrm_packet::{Pool, Protocol, SizeClass};
use zerocopy::IntoBytes;

use super::Path;

/// Packets of one call: what a batch of the gateway is.
const BURST: usize = 64;

const STATES: &str = "\
xfrm state add src 10.9.0.1 dst 10.9.0.2 proto esp spi 0x1001 reqid 1 mode tunnel aead rfc4106(gcm(aes)) 0x0102030405060708090a0b0c0d0e0f1011121314 128
xfrm policy add src 10.1.0.0/24 dst 10.2.0.0/24 dir out tmpl src 10.9.0.1 dst 10.9.0.2 proto esp reqid 1 mode tunnel
";

/// The network of one path.
#[derive(Debug)]
pub(super) struct Network {
    sender: PacketSocket,
    header: EthernetHeader,
    frames: Frames,
    far: Namespace,
    child: Child,
    _gateway: Namespace,
    _near: Namespace,
    _files: TempDir,
}

impl Network {
    pub(super) fn start(path: Path) -> anyhow::Result<Self> {
        let namespace = || Namespace::new().context("the bench needs root, for network namespaces");
        let (near, gateway, far) = (namespace()?, namespace()?, namespace()?);
        gateway.enter(|| Rtnetlink::open()?.add_veth("lan0", "eth0", near.as_fd()))??;
        gateway.enter(|| Rtnetlink::open()?.add_veth("wire0", "eth0", far.as_fd()))??;
        let (index, source) = near.enter(|| settle("eth0", "10.1.0.2"))??;
        far.enter(|| settle("eth0", "10.9.0.2"))??;
        let (_, destination) = gateway.enter(|| settle("lan0", "10.1.0.1"))??;
        gateway.enter(|| route_gateway(path))??;
        let files = tempfile::tempdir()?;
        let child = gateway.enter(|| start(path, files.path()))??;
        let options = PacketSocketOptions::new(index);
        let sender = near.enter(|| PacketSocket::open(&options))??;
        let header = EthernetHeader { destination, source, ether_type: EtherType::IPV4 };
        let (frames, _files) = (Frames::new(), files);
        Ok(Self { sender, header, frames, far, child, _gateway: gateway, _near: near, _files })
    }

    /// Sends a burst of packets of `bytes`; how many the link took.
    pub(super) fn offer(&mut self, bytes: u16, pool: &mut Pool) -> anyhow::Result<u64> {
        for _ in 0..BURST {
            let mut packet = pool.take(SizeClass::Packet);
            let room = packet.append(bytes.into()).context("a packet fits into its buffer")?;
            write(room)?;
            self.frames.push(self.header, packet);
        }
        Ok(self.sender.transmit(&mut self.frames, pool).packets)
    }

    /// How many packets have come out behind the gateway.
    pub(super) fn arrived(&self) -> anyhow::Result<u64> {
        let table = self.far.enter(|| fs::read_to_string("/proc/thread-self/net/dev"))??;
        let line = table.lines().find_map(|line| line.trim_start().strip_prefix("eth0:"));
        let packets = line.and_then(|line| line.split_ascii_whitespace().nth(1)?.parse().ok());
        packets.context("the kernel counts no packets")
    }

    /// What all threads of the gateway have used: the first number of `schedstat`, in nanoseconds.
    pub(super) fn cpu_time(&self) -> anyhow::Result<Duration> {
        let mut nanoseconds = 0;
        let tasks = format!("/proc/{}/task", self.child.id());
        for task in fs::read_dir(tasks).context("the gateway has ended")? {
            let text = fs::read_to_string(task?.path().join("schedstat"))?;
            let first = text.split_ascii_whitespace().next();
            nanoseconds += first.and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(Duration::from_nanos(nanoseconds))
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
    settle("wire0", "10.9.0.1")?;
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
        Path::Xdp => "inline = { protected = 'lan0', wire = 'wire0', wire_by = 'af-xdp' }\n",
    };
    fs::write(files.join("tunnel.batch"), STATES)?;
    let config = files.join("config.toml");
    let rest = "host.guard = 'off'\ncontrol.enabled = false\nxfrm.batch = ['tunnel.batch']\n";
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

/// A datagram to behind the gateway that fills `room`.
fn write(room: &mut [u8]) -> anyhow::Result<()> {
    let len = u16::try_from(room.len())?;
    let (source, destination) = ("10.1.0.2".parse()?, "10.2.0.2".parse()?);
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
