//! What a gateway sets, and what workers know of its host.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{Caches, Cpu, SourcePorts};

/// Who writes the headers outside ESP-in-UDP packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WireHeaders {
    /// The engine: whole IP packets, for raw sockets, memory ports and `AF_PACKET`.
    #[default]
    Engine,
    /// The kernel, for states with UDP encapsulation: the engine yields UDP payloads with a
    /// [`UdpPath`](uxfrm_packet::UdpPath). Without encapsulation, whole IP packets all the same.
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
        /// Which datagrams may be put together.
        udp: UdpSuper,
    },
}

/// Whether the host's port takes UDP super-packets (`TUN_F_USO4`, kernel 6.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UdpSuper {
    /// It does not.
    #[default]
    Refused,
    /// It does.
    Taken,
}

/// The addresses that are the host's own: what goes to them is checked by `in` policies, all else by `fwd` ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostAddresses {
    /// As numbers, which are compared faster; sorted.
    v4: Vec<u32>,
    v6: Vec<u128>,
}

impl HostAddresses {
    /// Whether a packet to `address` is for this host: an own address, multicast, or IPv4's limited broadcast.
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

    /// The first own address of the same family as `other`: what an ICMP error comes from.
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

/// How much a worker lets wait for states that key managers are to make. A super-packet is one buffer; bytes are those of whole
/// buffers, whatever is in them, as that is what is missing elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Buffers for one state.
    pub buffers_each: usize,
    /// Bytes for one state.
    pub bytes_each: usize,
    /// Buffers in all.
    pub buffers: usize,
    /// Bytes in all.
    pub bytes: usize,
}

impl Default for Patience {
    /// 100 buffers for each state as in Linux (`XFRM_MAX_QUEUE_LEN`), but no more than 1 MiB; 1,024 in all, but no more than 8 MiB.
    fn default() -> Self {
        Self { buffers_each: 100, bytes_each: 1 << 20, buffers: 1024, bytes: 8 << 20 }
    }
}

/// How a worker is set up. All workers of a gateway share these but for `cpu` and `seed`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Who writes outer headers.
    pub headers: WireHeaders,
    /// What the host takes.
    pub host: HostPort,
    /// Bytes of the largest IP packet that the network takes, headers included; at least 576.
    pub mtu: u16,
    /// Peers towards which it takes less.
    pub narrow: NarrowPaths,
    /// TTL and hop limit of outer headers.
    pub hop_limit: u8,
    /// The host's own addresses, until a [`Host`] says otherwise; so for `mtu` and `narrow`.
    pub addresses: HostAddresses,
    /// UDP ports at which whole IP packets may hold ESP (RFC 3948: 4500). Socket payloads are peeled at any port.
    pub encap_ports: Vec<u16>,
    /// How what was found out about flows is remembered.
    pub cache: Caches,
    /// How much may wait for states.
    pub patience: Patience,
    /// Which `pcpu-num` is this worker's (RFC 9611); different in every worker.
    pub cpu: Cpu,
    /// Seed of outer IPv4 ids, IPv6 fragment ids and flow caches; different in every worker.
    pub seed: u64,
    /// The source ports that inner flows have of their own.
    pub source_ports: SourcePorts,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            headers: WireHeaders::default(),
            host: HostPort::default(),
            mtu: 1500,
            narrow: NarrowPaths::new(),
            hop_limit: 64,
            addresses: HostAddresses::default(),
            encap_ports: vec![4500],
            cache: Caches::default(),
            patience: Patience::default(),
            cpu: Cpu(0),
            seed: 0,
            source_ports: SourcePorts::default(),
        }
    }
}

impl Settings {
    /// Bytes of the largest IP packet that the network takes towards `peer`.
    #[must_use]
    pub fn mtu_to(&self, peer: IpAddr) -> u16 {
        self.narrow.get(&peer).map_or(self.mtu, |narrow| self.mtu.min(*narrow))
    }

    /// Bytes of the largest plain packet that is sent as it is. The kernel's raw sockets cut none that is longer than its link takes, and tell nobody; whoever
    /// else sends knows each packet's way.
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
pub struct Host {
    /// Its own addresses.
    pub addresses: HostAddresses,
    /// Bytes of the largest IP packet that the network takes, headers included; at least 576.
    pub mtu: u16,
    /// Peers towards which it takes less.
    pub narrow: NarrowPaths,
}

/// What the network takes towards some peers, in bytes of IP packet: less than towards all others, as routers on the way have said.
pub type NarrowPaths = BTreeMap<IpAddr, u16>;

/// What every path is held to take, whatever routers and links say: `net.ipv4.route.min_pmtu`, and RFC 8200 §5.
#[must_use]
pub const fn least_path(to: IpAddr) -> u16 {
    match to {
        IpAddr::V4(_) => 552,
        IpAddr::V6(_) => 1280,
    }
}
