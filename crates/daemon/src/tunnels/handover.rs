//! Tunnels and receive ports as they pass to another process of the gateway (`uxfrm upgrade`): what
//! they are as netlink has it, with copies of their descriptors; and once their thread rests,
//! counts and numbers.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    os::fd::OwnedFd,
    sync::Arc,
};

use anyhow::{Context as _, anyhow, ensure};
use serde::{Deserialize, Serialize};
use uxfrm_engine::Moment;
use uxfrm_io::{SegmentingPort, Tun, TunOptions, tun::QueueOrder};
use uxfrm_link::{
    TunnelLink,
    wire::{LinkRequest, encode_new_link, port_attributes, port_request},
};
use uxfrm_netlink::{
    NetlinkError,
    fou::{FouCommand, PortAttributes},
};
use uxfrm_packet::{Protocol, Version};
use uxfrm_runtime::{
    ExportedInterface, LearnedPmtu, ReceivePort, ReceiveSource, SocketCounts, TunnelCounts,
    TunnelInterface, TunnelLoop, TunnelLoopExport, TunnelRoute, TunnelSockets, egress,
};
use uxfrm_tunnel::{
    DecapPort, DropReason, PortIdentity, PortRequest, Tunnel,
    counters::{Count, TunnelDrops},
};

use super::{
    TunnelDevice, TunnelService, TunnelSpec, Worker, error,
    per_address_sockets::{self, WildcardPort},
    sockets,
};
use crate::{
    descriptor_store::{Copies, DescriptorStore},
    pausable_thread::PausableThread,
};

/// All that there is.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct TunnelsHandover {
    links: Vec<LinkHandover>,
    ports: Vec<Vec<u8>>,
    /// In the order of their descriptors.
    sockets: Vec<SourceHandover>,
    /// The identification of the next packet that is cut.
    ident: u32,
}

/// A tunnel: the body of `RTM_NEWLINK`, and what that does not say.
#[derive(Debug, Serialize, Deserialize)]
struct LinkHandover {
    body: Vec<u8>,
    index: u32,
    local: IpAddr,
    path_mtu: usize,
    device_mtu: usize,
    /// What the path takes for a while, and until when.
    narrow: Option<(usize, u64)>,
    /// Of the hash that a flow's source port comes from.
    seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum SourceHandover {
    /// Version 4 or 6 of IP, and the number of the protocol.
    Protocol(u8, u8),
    Datagrams {
        is_v6: bool,
        port: u16,
        peer_port: u16,
        device: u32,
        local: IpAddr,
        peer: IpAddr,
    },
}

/// What batch files said when they were last read.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct SpecHandover {
    ports: Vec<Vec<u8>>,
    links: Vec<Vec<u8>>,
}

/// How far all are, once the thread rests.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct TunnelFinals {
    links: BTreeMap<String, LinkFinal>,
    sockets: Vec<(SourceHandover, Counted)>,
    drops: BTreeMap<String, u64>,
}

/// GRE's numbers as [`Tunnel::numbers`] has them, and counts.
#[derive(Debug, Serialize, Deserialize)]
struct LinkFinal {
    numbers: (u32, Option<u32>),
    sent: (u64, u64),
    received: Counted,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Counted {
    packets: u64,
    bytes: u64,
    drops: BTreeMap<String, u64>,
}

impl TunnelService {
    /// What there is, which goes on; `None` where there never was any.
    ///
    /// # Errors
    /// When the thread does not answer.
    pub(crate) fn portray(&mut self) -> anyhow::Result<Option<(TunnelsHandover, Copies)>> {
        self.maintain();
        let Some(worker) = &self.worker else { return Ok(None) };
        let TunnelLoopExport { interfaces, incoming, errors, ident } =
            worker.control.export().context("the thread of the tunnels does not answer")?;
        let mut descriptors = Vec::new();
        let mut links = Vec::new();
        for ExportedInterface { tun, route, narrow } in interfaces {
            descriptors.push((tun_name(route.tunnel.name()), tun));
            links.push(self.portray_link(&route, narrow)?);
        }
        let mut sockets = Vec::new();
        for (number, (source, socket)) in incoming.into_iter().enumerate() {
            descriptors.push((socket_name(number), socket));
            sockets.push(source.into());
        }
        let errors = errors.into_iter().enumerate();
        descriptors.extend(errors.map(|(number, socket)| (error_name(number), socket)));
        let ports = self.ports.iter().map(|port| port_body(&port.request())).collect();
        Ok(Some((TunnelsHandover { links, ports, sockets, ident }, descriptors)))
    }

    fn portray_link(
        &self,
        route: &TunnelRoute,
        narrow: Option<LearnedPmtu>,
    ) -> anyhow::Result<LinkHandover> {
        let TunnelRoute { tunnel, local, egress } = route;
        let index = self.index_of(tunnel.name()).map_err(|refusal| refused(&refusal))?;
        Ok(LinkHandover {
            body: encode_new_link(&TunnelLink {
                name: tunnel.name().to_owned(),
                mtu: None,
                admin: None,
                config: tunnel.config().clone(),
            }),
            index,
            local: *local,
            path_mtu: egress.path_mtu,
            device_mtu: egress.device_mtu,
            narrow: narrow.map(|narrow| (narrow.path_mtu, narrow.until.0)),
            seed: egress.seed.0,
        })
    }

    /// The thread finishes its batch; packets wait in the kernel's queues from now on.
    ///
    /// # Errors
    /// What ended it before.
    pub(crate) fn rest(&mut self) -> anyhow::Result<()> {
        self.worker.as_mut().map_or(Ok(()), |worker| worker.thread.rest())
    }

    /// It carries packets again, or for the first time.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub(crate) fn resume(&mut self) -> std::io::Result<()> {
        self.worker.as_mut().map_or(Ok(()), |worker| worker.thread.resume())
    }

    /// How far all are. What comes by a socket of a single address counts as its port's.
    pub(crate) fn finals(&self) -> TunnelFinals {
        let link = |opened: &TunnelDevice| {
            let TunnelCounts { traffic, drops, .. } = &*opened.counts;
            let numbers = self.tunnels.named(&opened.name)?.numbers();
            let received = Counted::of(&traffic.received, drops);
            let link = LinkFinal { numbers, sent: traffic.sent.read(), received };
            Some((opened.name.clone(), link))
        };
        let counts_alone = |source: &ReceiveSource| match source {
            ReceiveSource::Protocol(..) => true,
            ReceiveSource::Datagrams(identity) => self.ports.find(identity).is_ok(),
        };
        let sockets = self.sockets.iter().filter(|(source, _)| counts_alone(source));
        let sockets = sockets.map(|(source, counts)| {
            let SocketCounts { received, drops } = &**counts;
            ((*source).into(), Counted::of(received, drops))
        });
        TunnelFinals {
            links: self.interfaces.iter().filter_map(link).collect(),
            sockets: sockets.collect(),
            drops: self.worker.as_ref().map(|worker| by_name(&worker.drops)).unwrap_or_default(),
        }
    }

    /// Goes on with counts and numbers, before the thread carries anything.
    pub(crate) fn go_on_from(&self, finals: &TunnelFinals) {
        for opened in &self.interfaces {
            let Some(LinkFinal { numbers, sent, received }) = finals.links.get(&opened.name) else {
                continue;
            };
            if let Some(tunnel) = self.tunnels.named(&opened.name) {
                tunnel.resume_sequence(*numbers);
            }
            add(&opened.counts.traffic.sent, *sent);
            received.add_to(&opened.counts.traffic.received, &opened.counts.drops);
        }
        for (source, counted) in &finals.sockets {
            let is_it = |known: &ReceiveSource| SourceHandover::from(*known) == *source;
            let socket = self.sockets.iter().find(|(known, _)| is_it(known));
            if let Some((_, counts)) = socket {
                counted.add_to(&counts.received, &counts.drops);
            }
        }
        if let Some(worker) = &self.worker {
            add_drops(&worker.drops, &finals.drops);
        }
    }

    /// What another process had, which carries on until this one's thread is
    /// [resumed](Self::resume).
    ///
    /// # Errors
    /// What this release does not take of it; the kernel's.
    pub(crate) fn of_passed(
        passed: &TunnelsHandover,
        descriptors: &mut DescriptorStore,
    ) -> anyhow::Result<Self> {
        let mut all = Self::default();
        for body in &passed.ports {
            all.ports.add(DecapPort::of(&port_of(body)?)?)?;
        }
        let mut interfaces = Vec::new();
        for link in &passed.links {
            interfaces.push(all.take_link(link, descriptors)?);
        }
        let mut incoming = Vec::new();
        for (number, source) in passed.sockets.iter().enumerate() {
            let socket = descriptors.take(&socket_name(number)).context("a socket is missing")?;
            incoming.push(all.take_socket(ReceiveSource::from(*source), socket)?);
        }
        let errors = [(Version::V4, Protocol::ICMP), (Version::V6, Protocol::ICMPV6)];
        let errors = errors.into_iter().enumerate().map(|(number, (version, protocol))| {
            let socket = descriptors.take(&error_name(number)).context("a socket is missing")?;
            sockets::taken_raw(version, protocol, socket).map_err(|refusal| refused(&refusal))
        });
        let sending = |version| sockets::sending(version).map_err(|refusal| refused(&refusal));
        let sockets = TunnelSockets {
            incoming,
            errors: errors.collect::<anyhow::Result<_>>()?,
            outgoing: [sending(Version::V4)?, sending(Version::V6)?],
        };
        let (mut lane, control) = TunnelLoop::new(sockets)?;
        lane.take_over((all.tunnels.clone(), all.ports.clone()), interfaces, passed.ident)?;
        let drops = lane.drops();
        let thread = PausableThread::resting(lane, super::THREAD.to_owned());
        all.worker = Some(Worker { thread, control, drops });
        Ok(all)
    }

    fn take_link(
        &mut self,
        link: &LinkHandover,
        descriptors: &mut DescriptorStore,
    ) -> anyhow::Result<(TunnelInterface, Option<LearnedPmtu>)> {
        let TunnelLink { name, config, .. } = link_of(&link.body)?;
        let queue = descriptors.take(&tun_name(&name));
        let queue = queue.with_context(|| format!("the TUN of {name} is missing"))?;
        let tun = Tun::of_queue(queue, &TunOptions::new(&name), QueueOrder::First)
            .with_context(|| format!("the TUN of {name}"))?;
        let tunnel = Arc::clone(&self.tunnels.add(Tunnel::new(&name, config)?)?);
        let counts: Arc<TunnelCounts> = Arc::default();
        self.interfaces.push(TunnelDevice { name, index: link.index, counts: Arc::clone(&counts) });
        let mtus = (link.path_mtu, link.device_mtu);
        let egress = egress(mtus, link.seed, crate::local_ports::range());
        let route = TunnelRoute { tunnel, local: link.local, egress };
        let narrow =
            link.narrow.map(|(path_mtu, until)| LearnedPmtu { path_mtu, until: Moment(until) });
        Ok((TunnelInterface { route, port: Box::new(SegmentingPort::new(tun)), counts }, narrow))
    }

    fn take_socket(
        &mut self,
        source: ReceiveSource,
        socket: OwnedFd,
    ) -> anyhow::Result<ReceivePort> {
        let refusal = |refusal: NetlinkError| refused(&refusal);
        let (port, counts) = match source {
            ReceiveSource::Protocol(version, protocol) => {
                (sockets::taken_raw(version, protocol, socket).map_err(refusal)?, Arc::default())
            }
            ReceiveSource::Datagrams(identity) => {
                let socket = sockets::taken_datagrams(&identity, socket).map_err(refusal)?;
                let found = self.ports.find(&identity).copied();
                self.wide.extend(found.ok().and_then(|port| WildcardPort::of(port, &socket)));
                (Box::new(socket) as _, self.counts_of(&identity))
            }
        };
        self.sockets.push((source, Arc::clone(&counts)));
        Ok(ReceivePort { source, port, counts })
    }

    /// Those of the port for all addresses, for a socket of a single one.
    fn counts_of(&self, identity: &PortIdentity) -> Arc<SocketCounts> {
        if self.ports.find(identity).is_ok() {
            return Arc::default();
        }
        let covers = |source: &ReceiveSource| match source {
            ReceiveSource::Datagrams(wide) => per_address_sockets::covers(wide, identity),
            ReceiveSource::Protocol(..) => false,
        };
        let of_all = self.sockets.iter().find(|(source, _)| covers(source));
        of_all.map(|(_, counts)| Arc::clone(counts)).unwrap_or_default()
    }
}

impl TunnelSpec {
    pub(crate) fn portray(&self) -> SpecHandover {
        SpecHandover {
            ports: self.ports.iter().map(port_body).collect(),
            links: self.links.iter().map(encode_new_link).collect(),
        }
    }

    /// What another process read.
    ///
    /// # Errors
    /// What this release does not take of it.
    pub(crate) fn of_passed(passed: &SpecHandover) -> anyhow::Result<Self> {
        let ports = passed.ports.iter().map(|body| port_of(body)).collect::<anyhow::Result<_>>()?;
        let links = passed.links.iter().map(|body| link_of(body)).collect::<anyhow::Result<_>>()?;
        Ok(Self { ports, links })
    }
}

impl Counted {
    fn of(count: &Count, drops: &TunnelDrops) -> Self {
        let (packets, bytes) = count.read();
        Self { packets, bytes, drops: by_name(drops) }
    }

    fn add_to(&self, count: &Count, drops: &TunnelDrops) {
        add(count, (self.packets, self.bytes));
        add_drops(drops, &self.drops);
    }
}

fn add(count: &Count, (packets, bytes): (u64, u64)) {
    count.add(packets, usize::try_from(bytes).unwrap_or(usize::MAX));
}

/// Those that are not zero.
fn by_name(drops: &TunnelDrops) -> BTreeMap<String, u64> {
    super::counters::by_reason(drops).collect()
}

fn add_drops(drops: &TunnelDrops, passed: &BTreeMap<String, u64>) {
    let reasons: HashMap<_, _> = DropReason::ALL.iter().map(|why| (why.as_str(), *why)).collect();
    for (name, packets) in passed {
        // Another release may have had other reasons.
        if let Some(reason) = reasons.get(name.as_str()) {
            drops.add(*reason, *packets);
        }
    }
}

impl From<ReceiveSource> for SourceHandover {
    fn from(source: ReceiveSource) -> Self {
        match source {
            ReceiveSource::Protocol(Version::V4, protocol) => Self::Protocol(4, protocol.0),
            ReceiveSource::Protocol(Version::V6, protocol) => Self::Protocol(6, protocol.0),
            ReceiveSource::Datagrams(PortIdentity {
                version,
                port,
                peer_port,
                device,
                local,
                peer,
            }) => {
                let is_v6 = version == Version::V6;
                Self::Datagrams { is_v6, port, peer_port, device, local, peer }
            }
        }
    }
}

impl From<SourceHandover> for ReceiveSource {
    fn from(passed: SourceHandover) -> Self {
        let version = |is_v6| if is_v6 { Version::V6 } else { Version::V4 };
        match passed {
            SourceHandover::Protocol(number, protocol) => {
                Self::Protocol(version(number == 6), Protocol(protocol))
            }
            SourceHandover::Datagrams { is_v6, port, peer_port, device, local, peer } => {
                let version = version(is_v6);
                Self::Datagrams(PortIdentity { version, port, peer_port, device, local, peer })
            }
        }
    }
}

fn port_body(request: &PortRequest) -> Vec<u8> {
    let mut body = Vec::new();
    port_attributes(request).encode(FouCommand::Add, &mut body);
    body
}

fn port_of(body: &[u8]) -> anyhow::Result<PortRequest> {
    let (_, attributes) = PortAttributes::decode(body).map_err(|refusal| refused(&refusal))?;
    Ok(port_request(&attributes))
}

fn link_of(body: &[u8]) -> anyhow::Result<TunnelLink> {
    let request = LinkRequest::decode(body).map_err(|refusal| refused(&refusal))?;
    let LinkRequest { name, mtu, admin, config, .. } = request;
    let name = name.context("a tunnel without a name")?;
    ensure!(uxfrm_link::is_name(&name), "{name} is no name of an interface");
    Ok(TunnelLink { config: config.context("a tunnel without ends")?, name, mtu, admin })
}

fn refused(refusal: &NetlinkError) -> anyhow::Error {
    anyhow!("a tunnel or receive port: {}", error::words(refusal))
}

fn tun_name(tunnel: &str) -> String {
    format!("tunnel {tunnel}")
}

fn socket_name(number: usize) -> String {
    format!("tunnel socket {number}")
}

fn error_name(number: usize) -> String {
    format!("tunnel errors {number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> (Vec<PortRequest>, Vec<TunnelLink>) {
        use uxfrm_link::{FouAction, LinkAction, TunnelCommand};
        let (mut ports, mut links) = (Vec::new(), Vec::new());
        for located in uxfrm_link::lines(text) {
            match located.command.unwrap() {
                TunnelCommand::Fou(FouAction::Add(port)) => ports.push(port.request),
                TunnelCommand::Link(LinkAction::Add(link)) => links.push(link),
                TunnelCommand::Fou(FouAction::Delete(_) | FouAction::Show)
                | TunnelCommand::Link(
                    LinkAction::Change(_) | LinkAction::Delete { .. } | LinkAction::Show(_),
                ) => {
                    unreachable!("only adds");
                }
            }
        }
        (ports, links)
    }

    #[test]
    fn tunnel_spec_handed_over_is_unchanged() {
        let (ports, links) = lines(
            "fou add port 5555 ipproto 4\nip -6 fou add port 6666 gue\n\
             fou add port 7777 gue local 127.0.0.1 peer 10.0.0.2 peer_port 9\n\
             link add a up mtu 1400 type gre remote 10.0.0.2 key 5 seq csum\n\
             link add b down type ip6tnl mode any remote fd00::1 local fd00::2 encaplimit none hoplimit 9\n\
             link add c type sit mode any encap gue encap-dport 7 encap-sport 8 encap-csum encap-remcsum\n\
             link add d type sit 6rd-prefix 2001:db8::/32 6rd-relay_prefix 10.0.0.0/8\n\
             link add e type gre remote 10.0.0.3 nopmtudisc ignore-df tos 10\n",
        );
        assert_eq!((ports.len(), links.len()), (3, 5));
        let plan = TunnelSpec { ports: ports.clone(), links: links.clone() };
        let text = serde_json::to_vec(&plan.portray()).unwrap();
        let passed = TunnelSpec::of_passed(&serde_json::from_slice(&text).unwrap()).unwrap();
        assert_eq!(passed.ports(), ports);
        assert_eq!(passed.links(), links);
    }

    #[test]
    fn what_sockets_receive_passes() {
        let (ports, _) = lines(
            "fou add port 7777 gue local 127.0.0.1 peer 10.0.0.2 peer_port 9\nip -6 fou add port 6666 gue\n",
        );
        let identities = ports.iter().map(|port| PortIdentity::of(port).unwrap());
        let sources = identities.map(ReceiveSource::Datagrams).chain([
            ReceiveSource::Protocol(Version::V4, Protocol(47)),
            ReceiveSource::Protocol(Version::V6, Protocol(4)),
        ]);
        for source in sources {
            assert_eq!(ReceiveSource::from(SourceHandover::from(source)), source);
        }
    }
}
