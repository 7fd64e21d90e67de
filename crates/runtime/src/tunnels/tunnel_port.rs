//! The host side of a tunnel: its TUN, packets for it, and the path MTU.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use uxfrm_engine::Moment;
use uxfrm_io::{PathMtu, Port};
use uxfrm_packet::{Batch, Checksum, Coalescer, IpPacket, PacketBuf, Protocol, Segments, Version};
use uxfrm_tunnel::{
    Egress, Tunnel,
    counters::{TunnelDrops, TunnelTraffic},
};

/// `net.ipv4.route.min_pmtu`.
const MIN_PMTU_V4: usize = 552;
/// RFC 8200 §5.
const MIN_PMTU_V6: usize = 1280;
/// `net.ipv4.route.mtu_expires`: ten minutes in nanoseconds.
pub(super) const PMTU_LIFETIME: u64 = 600_000_000_000;

/// A tunnel's interface.
#[derive(Debug)]
pub struct TunnelInterface {
    /// The TUN; its name is the tunnel's.
    pub port: Box<dyn Port>,
    /// Its tunnel and path.
    pub route: TunnelRoute,
    /// Counters, for other threads.
    pub counts: Arc<TunnelCounts>,
}

/// A path MTU learned from ICMP, below the initial one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LearnedPmtu {
    /// Bytes.
    pub path_mtu: usize,
    /// Until when.
    pub until: Moment,
}

/// A tunnel and the path to its other end.
#[derive(Clone, Debug)]
pub struct TunnelRoute {
    /// The tunnel; its name is the interface's.
    pub tunnel: Arc<Tunnel>,
    /// Our address, if the tunnel does not name it.
    pub local: IpAddr,
    /// Path MTU as known so far, MTU of the TUN, and source ports.
    pub egress: Egress,
}

/// Counters of a tunnel, written by the loop.
#[derive(Debug, Default)]
pub struct TunnelCounts {
    /// Inner packets and bytes.
    pub traffic: TunnelTraffic,
    /// Outbound: all drops. Inbound: packets that its TUN refused; the tunnel of other drops is
    /// unknown.
    pub drops: TunnelDrops,
    gone: AtomicBool,
}

impl TunnelCounts {
    /// Whether somebody else deleted the TUN.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}

/// An interface and packets for it.
#[derive(Debug)]
pub(super) struct TunnelPort {
    pub(super) interface: TunnelInterface,
    pub(super) token: Option<u8>,
    pub(super) coalescer: Coalescer,
    pub(super) to_tun: Batch,
    /// The path MTU at the start.
    initial_pmtu: usize,
    /// When the learned path MTU expires.
    pmtu_expires: Option<Moment>,
}

impl TunnelPort {
    pub(super) fn new(interface: TunnelInterface, token: Option<u8>) -> Self {
        let initial_pmtu = interface.route.egress.path_mtu;
        let (coalescer, to_tun) = (Coalescer::new(), Batch::new());
        Self { interface, token, coalescer, to_tun, initial_pmtu, pmtu_expires: None }
    }

    /// The route with its initial path MTU, and the learned one if there is one.
    pub(super) fn portray(&self) -> (TunnelRoute, Option<LearnedPmtu>) {
        let mut route = self.interface.route.clone();
        let path_mtu = std::mem::replace(&mut route.egress.path_mtu, self.initial_pmtu);
        (route, self.pmtu_expires.map(|until| LearnedPmtu { path_mtu, until }))
    }

    /// Restores a predecessor's path MTU.
    pub(super) fn restore_pmtu(&mut self, LearnedPmtu { path_mtu, until }: LearnedPmtu) {
        self.interface.route.egress.path_mtu = path_mtu.min(self.initial_pmtu);
        self.pmtu_expires = Some(until);
    }

    pub(super) fn name(&self) -> &str {
        self.interface.route.tunnel.name()
    }

    /// Replaces its tunnel by another one of the same name.
    pub(super) fn replace_route(&mut self, route: TunnelRoute) {
        self.initial_pmtu = route.egress.path_mtu;
        self.pmtu_expires = None;
        self.interface.route = route;
    }

    /// Records that the TUN is gone.
    pub(super) fn mark_gone(&self) {
        self.interface.counts.gone.store(true, Ordering::Relaxed);
    }

    /// Marks a packet too long for one as joined by GRO. A raw socket does not tell the segment
    /// size: segments are as long as the TUN's MTU, should the host have to split them.
    pub(super) fn mark_gro(&self, packet: &mut PacketBuf) {
        let Checksum::Partial { start, .. } = packet.checksum else { return };
        let mtu = self.interface.route.egress.device_mtu;
        let is_tcp = |ip: IpPacket| ip.protocol == Protocol::TCP;
        if packet.len() <= mtu || !IpPacket::parse(packet.bytes()).is_ok_and(is_tcp) {
            return;
        }
        let offset = packet.bytes().get(usize::from(start) + 12).map_or(0, |byte| byte >> 4);
        let headers = usize::from(start) + usize::from(offset) * 4;
        match u16::try_from(mtu.saturating_sub(headers)) {
            Ok(0) | Err(_) => {}
            Ok(mss) => packet.segments = Segments::Tcp { mss },
        }
    }

    /// Lowers the path MTU for a while, but not below the minimum.
    pub(super) fn lower_pmtu(&mut self, told: u32, now: Moment) {
        let least = match self.interface.route.tunnel.config().kind.outer() {
            Version::V4 => MIN_PMTU_V4,
            Version::V6 => MIN_PMTU_V6,
        };
        let told = usize::try_from(told).unwrap_or(usize::MAX).max(least);
        let path_mtu = &mut self.interface.route.egress.path_mtu;
        if told < *path_mtu {
            *path_mtu = told;
            self.pmtu_expires = Some(Moment(now.0 + PMTU_LIFETIME));
        }
    }

    /// Learns the path MTU from a send that the kernel refused.
    pub(super) fn learn_pmtu(&mut self, narrow: Option<PathMtu>, now: Moment) {
        let Some(PathMtu { to, mtu }) = narrow else { return };
        let remote = self.interface.route.tunnel.config().remote;
        if remote == to || remote.is_unspecified() {
            self.lower_pmtu(mtu, now);
        }
    }

    /// Returns to the initial path MTU when the learned one has expired.
    pub(super) fn expire_pmtu(&mut self, now: Moment) {
        if self.pmtu_expires.is_some_and(|until| now >= until) {
            self.pmtu_expires = None;
            self.interface.route.egress.path_mtu = self.initial_pmtu;
        }
    }
}
