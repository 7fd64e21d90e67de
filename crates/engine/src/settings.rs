//! Settings of a gateway, and what workers know of the host.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{Cpu, Family, SourcePorts, WorkerCacheSettings};

/// Who writes the headers outside ESP in UDP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WireHeaders {
    /// The engine: whole IP packets, for raw sockets, memory ports and `AF_PACKET`.
    #[default]
    Engine,
    /// The kernel, for states with UDP encapsulation: the engine yields UDP payloads with a
    /// [`UdpPath`](uxfrm_packet::UdpPath). Without encapsulation, whole IP packets.
    UdpSocket,
}

/// What the host's port takes in one buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostPort {
    /// One packet.
    #[default]
    Packets,
    /// Super-packets too: TCP, and UDP when the port says so.
    SuperPackets {
        /// Which datagrams may be joined.
        udp: UdpSuper,
    },
}

/// Whether the host's port takes UDP super-packets (`TUN_F_USO4`, kernel 6.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UdpSuper {
    /// Only single datagrams.
    #[default]
    Refused,
    /// UDP super-packets too.
    Taken,
}

/// Whether TCP's SYNs are changed so that segments fit into tunnels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MssClamp {
    /// SYNs are carried as they are.
    #[default]
    Off,
    /// A loop calls [`Worker::clamp_outbound`](crate::Worker::clamp_outbound) and
    /// [`Worker::clamp_inbound`](crate::Worker::clamp_inbound).
    On,
}

/// The host's own addresses: packets to them are checked by `in` policies, all others by `fwd`
/// ones.
///
/// ```
/// use std::net::IpAddr;
/// use uxfrm_engine::HostAddresses;
///
/// let gateway = IpAddr::from([192, 0, 2, 1]);
/// let own: HostAddresses = [gateway].into_iter().collect();
/// assert!(own.holds(gateway) && !own.holds([192, 0, 2, 2].into()));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostAddresses {
    /// As integers, which compare faster; sorted.
    v4: Vec<u32>,
    v6: Vec<u128>,
}

impl HostAddresses {
    /// Whether a packet to `address` is for this host: an own address, multicast, or IPv4's limited
    /// broadcast.
    #[must_use]
    #[inline]
    pub fn holds(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => {
                v4.is_multicast()
                    || v4.is_broadcast()
                    || self.v4.binary_search(&v4.to_bits()).is_ok()
            }
            IpAddr::V6(v6) => v6.is_multicast() || self.v6.binary_search(&v6.to_bits()).is_ok(),
        }
    }

    /// All of a family, multicast excepted.
    pub(crate) fn of_family(&self, family: Family) -> impl Iterator<Item = IpAddr> {
        let (v4, v6): (&[u32], &[u128]) = match family {
            Family::V4 => (&self.v4, &[]),
            Family::V6 => (&[], &self.v6),
        };
        let v4 = v4.iter().map(|bits| IpAddr::V4(Ipv4Addr::from_bits(*bits)));
        v4.chain(v6.iter().map(|bits| IpAddr::V6(Ipv6Addr::from_bits(*bits))))
    }

    /// The first own address of the same family as `other`, used as source of ICMP errors.
    #[must_use]
    pub fn like(&self, other: IpAddr) -> Option<IpAddr> {
        let v4 = self.v4.iter().map(|bits| IpAddr::V4(Ipv4Addr::from_bits(*bits)));
        let v6 = self.v6.iter().map(|bits| IpAddr::V6(Ipv6Addr::from_bits(*bits)));
        let mut own = v4.chain(v6);
        own.find(|own| own.is_ipv4() == other.is_ipv4() && !own.is_loopback())
    }
}

impl FromIterator<IpAddr> for HostAddresses {
    fn from_iter<I: IntoIterator<Item = IpAddr>>(addresses: I) -> Self {
        let mut own = Self::default();
        for address in addresses {
            match address {
                IpAddr::V4(v4) => own.v4.push(v4.to_bits()),
                IpAddr::V6(v6) => own.v6.push(v6.to_bits()),
            }
        }
        own.v4.sort_unstable();
        own.v4.dedup();
        own.v6.sort_unstable();
        own.v6.dedup();
        own
    }
}

/// Limits of the packets that wait for states. A super-packet is one buffer; bytes are buffer
/// capacity, which is what is missing elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcquireQueueLimits {
    /// Buffers per state.
    pub packets_per_sa: usize,
    /// Bytes per state.
    pub bytes_per_sa: usize,
    /// Buffers in total.
    pub packets: usize,
    /// Bytes in total.
    pub bytes: usize,
}

impl Default for AcquireQueueLimits {
    /// 100 buffers per state as in Linux (`XFRM_MAX_QUEUE_LEN`), but at most 1 MiB; 1,024 in total,
    /// but at most 8 MiB.
    fn default() -> Self {
        Self { packets_per_sa: 100, bytes_per_sa: 1 << 20, packets: 1024, bytes: 8 << 20 }
    }
}

/// Settings of a worker. All workers of a gateway share them except `cpu` and `seed`.
///
/// ```
/// use uxfrm_engine::{Cpu, Settings, WireHeaders};
///
/// let shared = Settings {
///     addresses: [[192, 0, 2, 1].into()].into_iter().collect(),
///     headers: WireHeaders::UdpSocket,
///     ..Settings::default()
/// };
/// let second_worker = Settings { cpu: Cpu(1), seed: 0x5eed, ..shared };
/// assert_eq!((second_worker.mtu, second_worker.hop_limit), (1500, 64));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Who writes outer headers.
    pub headers: WireHeaders,
    /// What the host's port takes.
    pub host: HostPort,
    /// MTU of the network, headers included; at least 576.
    pub mtu: u16,
    /// Smaller path MTUs by peer.
    pub path_mtus: PathMtus,
    /// TTL and hop limit of outer headers.
    pub hop_limit: u8,
    /// The host's own addresses, until a [`HostView`] replaces them, as it does `mtu` and
    /// `path_mtus`.
    pub addresses: HostAddresses,
    /// UDP ports at which whole IP packets may hold ESP (RFC 3948: 4500). Socket payloads are
    /// parsed at any port.
    pub encap_ports: Vec<u16>,
    /// Settings of the flow caches.
    pub cache: WorkerCacheSettings,
    /// Limits of the acquire queue.
    pub acquire_queue: AcquireQueueLimits,
    /// The worker's `pcpu-num` (RFC 9611); different in every worker.
    pub cpu: Cpu,
    /// Seed of outer IPv4 ids, IPv6 fragment ids and flow caches; different in every worker.
    pub seed: u64,
    /// Source ports for inner flows.
    pub source_ports: SourcePorts,
    /// Whether TCP's SYNs are changed.
    pub clamp_mss: MssClamp,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            headers: WireHeaders::default(),
            host: HostPort::default(),
            mtu: 1500,
            path_mtus: PathMtus::new(),
            hop_limit: 64,
            addresses: HostAddresses::default(),
            encap_ports: vec![4500],
            cache: WorkerCacheSettings::default(),
            acquire_queue: AcquireQueueLimits::default(),
            cpu: Cpu(0),
            seed: 0,
            source_ports: SourcePorts::default(),
            clamp_mss: MssClamp::default(),
        }
    }
}

impl Settings {
    /// Path MTU towards `peer`.
    #[must_use]
    pub fn mtu_to(&self, peer: IpAddr) -> u16 {
        self.path_mtus.get(&peer).map_or(self.mtu, |narrow| self.mtu.min(*narrow))
    }

    /// These settings with what a host is now.
    #[must_use]
    pub fn with_host(self, host: &HostView) -> Self {
        let HostView { addresses, mtu, path_mtus } = host.clone();
        Self { addresses, mtu, path_mtus, ..self }
    }

    /// Largest plain packet that is sent unfragmented. The kernel's raw sockets do not fragment
    /// above the link's MTU and report nothing; other ports know each packet's path.
    #[inline]
    pub(crate) fn plain_limit(&self) -> usize {
        match self.headers {
            WireHeaders::UdpSocket => self.mtu.into(),
            WireHeaders::Engine => usize::MAX,
        }
    }
}

/// What may change on the host while workers run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostView {
    /// Its own addresses.
    pub addresses: HostAddresses,
    /// MTU of the network, headers included; at least 576.
    pub mtu: u16,
    /// Smaller path MTUs by peer.
    pub path_mtus: PathMtus,
}

/// Path MTUs in bytes of IP packet, for peers with less than the interface's, as learned from
/// routers.
pub type PathMtus = BTreeMap<IpAddr, u16>;

/// The minimum path MTU, whatever routers and links report: `net.ipv4.route.min_pmtu`, and RFC 8200
/// §5.
#[must_use]
pub const fn min_path_mtu(to: IpAddr) -> u16 {
    match to {
        IpAddr::V4(_) => 552,
        IpAddr::V6(_) => 1280,
    }
}
