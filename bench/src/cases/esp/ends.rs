//! Two gateways in memory with the same SAs: one sends, the other receives.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use uxfrm_crypto::Backend;
use uxfrm_engine::{
    Action, Database, Direction, IfId, LifetimeLimits, Mark, Mode, Moment, Output, Policy,
    PolicyFlags, PolicyIndex, PolicyKind, Prefix, Priority, ReplayConfig, Reqid, SaConfig, SaId,
    SaProtocol, SaTransform, Selector, Settings, Spi, Template, TemplateLevel, UdpEncap,
    UdpEncapKind, Worker,
};
use uxfrm_packet::ipv4::{self, Ipv4Header};
use uxfrm_packet::ipv6::Ipv6Header;
use uxfrm_packet::{PacketBuf, Pool, Protocol};
use zerocopy::IntoBytes;

use super::plan::{EspMode, EspSetup};
use crate::direction::TestDirection;

/// Both ends, for any number of workers.
pub(super) struct TunnelEnds {
    pub(super) sender: TunnelEnd,
    pub(super) receiver: TunnelEnd,
    ends: Addressing,
}

/// The database that the workers of one end share, and the end's addresses.
pub(super) struct TunnelEnd {
    pub(super) database: Database,
    own: Vec<IpAddr>,
}

/// One worker of one end.
pub(super) struct EndWorker {
    pub(super) worker: Worker,
    pub(super) pool: Pool,
    pub(super) out: Output,
}

/// A worker of each end, and the headers of the packets between them: flow n uses SA n.
pub(super) struct WorkerPair {
    pub(super) sender: EndWorker,
    pub(super) receiver: EndWorker,
    heads: Vec<PacketHeader>,
    /// The next flow.
    at: usize,
}

/// IP and UDP headers without lengths.
#[derive(Clone, Copy)]
struct PacketHeader {
    bytes: [u8; 48],
    ip_len: usize,
}

/// The clock stands still while a bench runs.
pub(super) const NOW: Moment = Moment::from_secs(1);

impl TunnelEnds {
    /// The measured end is a hub; the other end stands for its peers.
    pub(super) fn new(setup: &EspSetup, measured: TestDirection) -> anyhow::Result<Self> {
        let ends = Addressing { mode: setup.mode, hub: measured };
        let mut near: Vec<_> = (0..setup.sas).map(|number| ends.near(number)).collect();
        let mut far: Vec<_> = (0..setup.sas).map(|number| ends.far(number)).collect();
        near.dedup();
        far.dedup();
        Ok(Self {
            sender: TunnelEnd::new(setup, &ends, &[Direction::Out], near)?,
            receiver: TunnelEnd::new(setup, &ends, &[Direction::In, Direction::Forward], far)?,
            ends,
        })
    }

    /// Has policies of both ends drop whatever they look at. Inbound these look at packets that no
    /// state has decapsulated, so the sender's let them leave plain.
    pub(super) fn block(&mut self) -> anyhow::Result<()> {
        let sender = match self.ends.hub {
            TestDirection::Out => Action::Block,
            TestDirection::In => Action::Allow,
        };
        let ends = &self.ends;
        let changed = |direction, action| -> anyhow::Result<Policy> {
            let policy = ends.policy(0, direction)?;
            Ok(Policy { priority: Priority(1), action, templates: Vec::new(), ..policy })
        };
        let update = |end: &mut TunnelEnd, policy: Policy| {
            end.database.apply(NOW, |change| change.update_policy(policy).map(drop))
        };
        update(&mut self.sender, changed(Direction::Out, sender)?)?;
        update(&mut self.receiver, changed(Direction::In, Action::Block)?)?;
        update(&mut self.receiver, changed(Direction::Forward, Action::Block)?)?;
        Ok(())
    }

    /// A worker of each end, with packets of some flows.
    pub(super) fn worker_pair(&self, flows: Range<usize>) -> anyhow::Result<WorkerPair> {
        let (sender, receiver) = (self.sender.worker()?, self.receiver.worker()?);
        let heads = flows.map(|number| self.ends.head(number)).collect();
        Ok(WorkerPair { sender, receiver, heads, at: 0 })
    }
}

impl WorkerPair {
    /// Restarts at the first flow.
    pub(super) fn rewind(&mut self) {
        self.at = 0;
    }

    /// Rewrites the buffer as a packet of the next flow, `bytes` long.
    pub(super) fn fill(&mut self, packet: &mut PacketBuf, bytes: usize) {
        let head = &self.heads[self.at];
        self.at = (self.at + 1) % self.heads.len();
        packet.reset();
        if let Some(room) = packet.append(bytes) {
            head.write(room);
        }
    }
}

impl TunnelEnd {
    fn new(
        setup: &EspSetup,
        ends: &Addressing,
        directions: &[Direction],
        own: Vec<IpAddr>,
    ) -> anyhow::Result<Self> {
        let mut database = Database::new(Backend::Auto, 1);
        database.apply(NOW, |change| -> anyhow::Result<()> {
            for number in 0..setup.sas {
                change.add_sa(ends.state(number, setup))?;
                for direction in directions {
                    change.add_policy(ends.policy(number, *direction)?)?;
                }
            }
            Ok(())
        })?;
        Ok(Self { database, own })
    }

    fn worker(&self) -> anyhow::Result<EndWorker> {
        // Large enough that nothing is fragmented.
        let addresses = self.own.iter().copied().collect();
        let settings = Settings { addresses, mtu: 9000, ..Settings::default() };
        let worker = Worker::new(settings, &self.database.published())?;
        Ok(EndWorker { worker, pool: Pool::new(), out: Output::default() })
    }
}

impl PacketHeader {
    fn write(&self, packet: &mut [u8]) {
        let (ip_len, len) = (self.ip_len, packet.len());
        packet[..ip_len + 8].copy_from_slice(&self.bytes[..ip_len + 8]);
        let below = |len: usize| u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes();
        if ip_len == ipv4::HEADER_LEN {
            packet[2..4].copy_from_slice(&below(len));
            // It cannot fail: the header is whole.
            let _ = ipv4::fill_checksum(packet);
        } else {
            packet[4..6].copy_from_slice(&below(len - ip_len));
        }
        packet[ip_len + 4..ip_len + 6].copy_from_slice(&below(len - ip_len));
    }
}

/// Addresses of gateways and flows. In transport mode the gateways are the hosts.
struct Addressing {
    mode: EspMode,
    /// The gateway on this side has one address and as many peers as there are SAs.
    hub: TestDirection,
}

impl Addressing {
    fn near(&self, number: usize) -> IpAddr {
        self.address(0, if self.hub == TestDirection::Out { 0 } else { number })
    }

    fn far(&self, number: usize) -> IpAddr {
        self.address(1, if self.hub == TestDirection::In { 0 } else { number })
    }

    /// Source and destination of a flow.
    fn hosts(&self, number: usize) -> (IpAddr, IpAddr) {
        if self.mode.is_tunnel() {
            (self.address(2, 1), self.address(3, number))
        } else {
            (self.near(number), self.far(number))
        }
    }

    fn address(&self, network: u8, number: usize) -> IpAddr {
        let [low, high, ..] = number.to_le_bytes();
        if self.mode.is_ipv6() {
            let last = u16::from_be_bytes([high, low]);
            IpAddr::V6(Ipv6Addr::new(0xfd00, network.into(), 0, 0, 0, 0, 1, last))
        } else {
            IpAddr::V4(Ipv4Addr::new(10, network, high, low))
        }
    }

    fn head(&self, number: usize) -> PacketHeader {
        let mut bytes = [0; 48];
        let ip_len = match self.hosts(number) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let ip = Ipv4Header::new(source, destination, Protocol::UDP, 0);
                bytes[..20].copy_from_slice(ip.as_bytes());
                20
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let ip = Ipv6Header::new(source, destination, Protocol::UDP, 0);
                bytes[..40].copy_from_slice(ip.as_bytes());
                40
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => 0,
        };
        bytes[ip_len + 1] = 7;
        bytes[ip_len + 3] = 9;
        PacketHeader { bytes, ip_len }
    }

    fn mode(&self) -> Mode {
        if self.mode.is_tunnel() { Mode::Tunnel } else { Mode::Transport }
    }

    fn state(&self, number: usize, setup: &EspSetup) -> SaConfig {
        let [encryption_key, authentication_key] = setup.material(number);
        let spi = Spi(0x1000 + u32::try_from(number).unwrap_or(0));
        SaConfig {
            mode: self.mode(),
            reqid: Reqid(1),
            replay: ReplayConfig { window: setup.window, sent: 0, received: 0 },
            encap: self.mode.is_in_udp().then(|| UdpEncap {
                kind: UdpEncapKind::Esp,
                source_port: 4500,
                destination_port: 4500,
                original_address: self.near(number),
            }),
            ..SaConfig::new(
                SaId { destination: self.far(number), spi, protocol: SaProtocol::Esp },
                self.near(number),
                SaTransform { transform: setup.transform, encryption_key, authentication_key },
            )
        }
    }

    fn policy(&self, number: usize, direction: Direction) -> anyhow::Result<Policy> {
        let (source, destination) = self.hosts(number);
        let network =
            |address: IpAddr| Prefix::new(address, if address.is_ipv4() { 24 } else { 64 });
        let by_source = !self.mode.is_tunnel() && self.hub == TestDirection::In;
        let (source_net, destination_net) = if by_source {
            (Prefix::host(source), network(destination)?)
        } else {
            (network(source)?, Prefix::host(destination))
        };
        let family = uxfrm_engine::Family::of(source);
        let template = Template {
            source: self.near(number),
            destination: self.far(number),
            protocol: SaProtocol::Esp,
            spi: Spi(0),
            mode: self.mode(),
            reqid: Reqid(1),
            level: TemplateLevel::Required,
        };
        Ok(Policy {
            direction,
            kind: PolicyKind::Main,
            index: PolicyIndex(0),
            selector: Selector {
                source: source_net,
                destination: destination_net,
                ..Selector::any(family)
            },
            priority: Priority(100),
            action: Action::Allow,
            templates: vec![template],
            mark: Mark::default(),
            if_id: IfId(0),
            flags: PolicyFlags::empty(),
            limits: LifetimeLimits::default(),
            offload: None,
        })
    }
}
