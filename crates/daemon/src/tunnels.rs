//! The tunnels of a gateway: batch files of `ip fou` and `ip link` lines, and what they come to: TUNs, sockets, a thread.
//!
//! Each tunnel is a TUN of its name, up from the start, without addresses and routes: those are the user's own (`ip addr`, `ip route`).
//! A tunnel without `local` gets the address that the way to its other end has when the gateway starts.
//!
//! Not here yet: changing them while the gateway runs (`uxfrm fou`, `uxfrm link`, `uxfrm exec -- ip fou`), receive ports with `dev`,
//! and what neither a tunnel nor ESP is behind a receive port: it is counted as `tunnel_in_unclaimed`.

use std::{fmt::Write as _, fs, net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::{Context as _, bail};
use uxfrm_io::{Port, Raw, RawOptions, Rtnetlink, Tun, TunOptions, Udp, UdpOptions, random};
use uxfrm_link::{Command, Fou, Link, TunnelLink};
use uxfrm_packet::{Protocol, Version};
use uxfrm_runtime::{Interface, Running, Sockets, TunnelLane, egress};
use uxfrm_tunnel::{
    Config, DropReason, Ports, Tunnel, Tunnels,
    counters::{Drops, Traffic},
};

use crate::gateway::bring_up;

/// What the network takes towards who knows where.
const USUAL_MTU: usize = 1500;
/// `IPPROTO_RAW`: a socket that only sends.
const SENDS_ONLY: Protocol = Protocol(255);

/// Tunnels and receive ports as batch files describe them; they can be, all together.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    ports: Ports,
    links: Vec<TunnelLink>,
}

/// Tunnels that run.
#[derive(Debug)]
pub(crate) struct Carrying {
    lane: Running,
    drops: Arc<Drops>,
    traffic: Vec<(String, Arc<Traffic>)>,
}

impl Plan {
    /// Reads batch files, in order.
    ///
    /// # Errors
    /// All that is wrong with them, a line each.
    pub(crate) fn read(files: &[PathBuf]) -> anyhow::Result<Self> {
        let (mut plan, mut faults) = (Self::default(), Vec::new());
        let mut tunnels = Tunnels::new();
        for file in files {
            let text = fs::read_to_string(file)
                .with_context(|| format!("can't read {}", file.display()))?;
            for located in uxfrm_link::lines(&text) {
                let done = located
                    .command
                    .map_err(anyhow::Error::from)
                    .and_then(|command| plan.run(command, &mut tunnels));
                let place = format!("{}:{}", file.display(), located.line);
                faults.extend(done.err().map(|fault| format!("{place}: {fault:#}")));
            }
        }
        if faults.is_empty() { Ok(plan) } else { bail!(faults.join("\n")) }
    }

    fn run(&mut self, command: Command, tunnels: &mut Tunnels) -> anyhow::Result<()> {
        match command {
            Command::Fou(Fou::Add(port)) => {
                if port.device.is_some() {
                    bail!("fou: dev is not supported by uxfrm yet");
                }
                self.ports.add(uxfrm_tunnel::Port::of(&port.request)?)?;
            }
            Command::Link(Link::Add(link)) => {
                tunnels.add(Tunnel::new(&link.name, link.config.clone())?)?;
                self.links.push(link);
            }
            Command::Fou(Fou::Delete(_)) | Command::Link(Link::Change(_) | Link::Delete { .. }) => {
                bail!("a configuration only adds");
            }
        }
        Ok(())
    }

    /// Opens TUNs and sockets and starts the thread; `None` where there is nothing to do.
    ///
    /// # Errors
    /// The kernel's; what was to be done is in the text.
    pub(crate) fn start(self) -> anyhow::Result<Option<Carrying>> {
        if self.links.is_empty() && self.ports.iter().next().is_none() {
            return Ok(None);
        }
        let mut rtnetlink = Rtnetlink::open()?;
        let mut tunnels = Tunnels::new();
        let mut interfaces = Vec::new();
        for link in &self.links {
            let tunnel = tunnels.add(Tunnel::new(&link.name, link.config.clone())?)?;
            interfaces.push(interface(link, tunnel, &mut rtnetlink)?);
        }
        let traffic = interfaces
            .iter()
            .map(|interface| (interface.tunnel.name().to_owned(), Arc::clone(&interface.traffic)))
            .collect();
        let sockets = sockets(&self)?;
        let lane = TunnelLane::new(tunnels, self.ports, interfaces, sockets)?;
        let drops = lane.drops();
        let lane = Running::start(lane, "uxfrm-tunnels".to_owned(), None)?;
        Ok(Some(Carrying { lane, drops, traffic }))
    }
}

impl Carrying {
    /// Whether the thread ended by itself.
    pub(crate) fn has_ended(&self) -> bool {
        self.lane.has_ended()
    }

    /// Ends the thread; the TUNs go with it.
    ///
    /// # Errors
    /// What ended it before it was told to.
    pub(crate) fn stop(self) -> anyhow::Result<()> {
        Ok(self.lane.stop()?)
    }

    /// A line for each drop reason, and for each tunnel what it carried, in the form of `/proc/net/xfrm_stat`.
    pub(crate) fn counts(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        for reason in DropReason::ALL {
            let _ = writeln!(text, "{:<32}\t{}", reason.as_str(), self.drops.of(*reason));
        }
        for (name, traffic) in &self.traffic {
            for (way, count) in [("sent", &traffic.sent), ("received", &traffic.received)] {
                let (packets, bytes) = count.read();
                let _ = writeln!(text, "{:<32}\t{packets}", format!("tunnel_{name}_{way}_packets"));
                let _ = writeln!(text, "{:<32}\t{bytes}", format!("tunnel_{name}_{way}_bytes"));
            }
        }
        text
    }
}

fn interface(
    link: &TunnelLink,
    tunnel: Arc<Tunnel>,
    rtnetlink: &mut Rtnetlink,
) -> anyhow::Result<Interface> {
    let Config { local, remote, .. } = link.config;
    let way = if remote.is_unspecified() { None } else { rtnetlink.route_to(remote, 0).ok() };
    let path_mtu =
        way.as_ref().map_or(USUAL_MTU, |way| usize::try_from(way.mtu).unwrap_or(USUAL_MTU));
    let local = match way.and_then(|way| way.source) {
        Some(source) if local.is_unspecified() => source,
        Some(_) | None => local,
    };
    if local.is_unspecified() && needs_local(&link.config) {
        bail!("tunnel {}: no way leads to {remote}, so it needs a local address", link.name);
    }
    let device_mtu = link.mtu.map_or_else(|| tunnel.device_mtu(path_mtu), usize::from);
    let tun = Tun::open(&TunOptions::new(&link.name))
        .with_context(|| format!("can't open the TUN {}", link.name))?;
    bring_up(&tun, u16::try_from(device_mtu).unwrap_or(u16::MAX))
        .with_context(|| format!("can't bring {} up", link.name))?;
    Ok(Interface {
        tunnel,
        port: Box::new(uxfrm_io::Fitted::new(tun)),
        local,
        egress: egress(path_mtu, device_mtu, seed()?),
        traffic: Arc::default(),
    })
}

/// Whether the kernel can't fill in the source address: IPv6 headers have no such thing, and a UDP checksum covers it.
fn needs_local(config: &Config) -> bool {
    !config.remote.is_unspecified() && (config.udp.is_some() || config.kind.outer() == Version::V6)
}

fn seed() -> anyhow::Result<u64> {
    let [a, b, c, d, e, f, g, h, ..] = random::seed().context("can't get a random seed")?;
    Ok(u64::from_ne_bytes([a, b, c, d, e, f, g, h]))
}

/// Raw sockets for the protocols of the tunnels, a UDP socket for each receive port, and those for ICMP and for sending.
fn sockets(plan: &Plan) -> anyhow::Result<Sockets> {
    let mut incoming: Vec<(Box<dyn Port>, u32)> = Vec::new();
    for (version, protocol) in protocols(&plan.links) {
        incoming.push((raw(version, protocol)?, 0));
    }
    for port in plan.ports.iter() {
        let local = SocketAddr::new(port.identity.local, port.identity.port);
        let socket = Udp::open(&UdpOptions::new(local))
            .with_context(|| format!("can't open the receive port {local}"))?;
        socket.accept_without_checksum().with_context(|| format!("receive port {local}"))?;
        incoming.push((Box::new(socket), 0));
    }
    let errors = vec![raw(Version::V4, Protocol::ICMP)?, raw(Version::V6, Protocol::ICMPV6)?];
    let outgoing = [raw(Version::V4, SENDS_ONLY)?, raw(Version::V6, SENDS_ONLY)?];
    Ok(Sockets { incoming, errors, outgoing })
}

fn raw(version: Version, protocol: Protocol) -> anyhow::Result<Box<dyn Port>> {
    let port = Raw::open(&RawOptions { protocol, ..RawOptions::new(version) })
        .with_context(|| format!("can't open a raw socket for {protocol} (needs CAP_NET_RAW)"))?;
    Ok(Box::new(port))
}

/// What comes without UDP, each once.
fn protocols(links: &[TunnelLink]) -> Vec<(Version, Protocol)> {
    let mut protocols = Vec::new();
    for link in links {
        let Config { kind, carries, .. } = link.config;
        for version in [Version::V4, Version::V6] {
            let wanted = (kind.outer(), kind.protocol(version));
            if carries.takes(version) && !protocols.contains(&wanted) {
                protocols.push(wanted);
            }
        }
    }
    protocols
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> anyhow::Result<Plan> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("tunnels.batch");
        fs::write(&file, text).unwrap();
        Plan::read(&[file])
    }

    #[test]
    fn a_batch_file_is_ports_and_tunnels() {
        let plan = read(
            "ip fou add port 5555 ipproto 4\nip -6 fou add port 6666 gue\n\
             ip link add tun1 type ipip remote 10.0.0.2 local 10.0.0.1 encap fou encap-dport 5555\n\
             ip link add gre1 mtu 1400 type gre remote 10.0.0.2\nip link add sit1 type sit mode any\n",
        )
        .unwrap();
        assert_eq!((plan.ports.iter().count(), plan.links.len()), (2, 3));
        let wanted: Vec<_> =
            protocols(&plan.links).into_iter().map(|(_, protocol)| protocol.0).collect();
        assert_eq!(wanted, [4, 47, 41]);
    }

    #[test]
    fn every_mistake_has_its_line() {
        let text = "fou add port 5 gue\nfou add port 5 ipproto 4\nlink add t type ipip\nlink add t type gre\n\
                    link del t\nfou add port 6 gue local 10.0.0.1 dev eth0\nlink add u type vxlan\n";
        let faults = read(text).unwrap_err().to_string();
        let ends: Vec<_> =
            faults.lines().map(|line| line.split_once("tunnels.batch:").unwrap().1).collect();
        assert_eq!(
            ends,
            [
                "2: Operation already in progress",
                "4: File exists",
                "5: a configuration only adds",
                "6: fou: dev is not supported by uxfrm yet",
                "7: argument \"vxlan\" is wrong: the type is ipip, sit, gre, ip6tnl or ip6gre",
            ]
        );
    }
}
