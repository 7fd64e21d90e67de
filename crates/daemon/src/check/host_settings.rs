//! How the host is set, as far as rules ask: read before they run, so that they stay functions.

use std::{
    collections::{HashMap, HashSet},
    fs,
    net::IpAddr,
};

use nix::errno::Errno;
use uxfrm_engine::Snapshot;
use uxfrm_host_facts::packet_filter::ForeignChains;
use uxfrm_io::rtnetlink::{self, Rtnetlink};

use crate::{
    config::{Config, Mtu},
    routes::LastingMtus,
};

/// Peers whose routes are asked for; those behind them are taken for reachable.
const ASKED: usize = 1024;
/// What a network takes of which nothing is known.
const USUAL_MTU: u16 = 1500;

/// How the host is set.
#[derive(Clone, Debug)]
pub(crate) struct HostSettings {
    /// The TUN's name; empty in inline mode.
    pub(crate) tun: String,
    /// `[host] mtu`
    pub(crate) mtu: Mtu,
    /// `net.ipv4.ip_forward`
    pub(crate) forwards_v4: bool,
    /// `net.ipv6.conf.all.forwarding`
    pub(crate) forwards_v6: bool,
    /// Its addresses; `None` where they can't be read, or do not matter.
    pub(crate) addresses: Option<HashSet<IpAddr>>,
    /// Ends of states that no route leads to.
    pub(crate) unreachable: HashSet<IpAddr>,
    /// What the network takes towards ends of states; `None` where it does not matter.
    pub(crate) paths: Option<LastingMtus>,
    /// Chains of others that drop packets; none where they can't be read.
    pub(crate) filter: ForeignChains,
}

/// What the kernel's routes to ends of states say.
struct PeerRoutes {
    unreachable: HashSet<IpAddr>,
    paths: LastingMtus,
}

impl HostSettings {
    /// What the rules are told of an inline gateway's host: it forwards by itself, and its states'
    /// ends need not be addresses of the host.
    pub(crate) fn inline() -> Self {
        Self {
            tun: String::new(),
            mtu: Mtu::Auto,
            forwards_v4: true,
            forwards_v6: true,
            addresses: None,
            unreachable: HashSet::new(),
            paths: None,
            filter: ForeignChains::default(),
        }
    }

    /// What a running gateway's rules are told, which has these addresses, and these paths to
    /// peers. Whether the host forwards, has routes and a filter may change at any time: `uxfrm
    /// check` and `why` look at that.
    pub(crate) fn running(config: &Config, own: &[IpAddr], paths: LastingMtus) -> Self {
        if config.inline.is_some() {
            return Self::inline();
        }
        Self {
            tun: config.host.tun.to_string(),
            mtu: config.host.mtu,
            addresses: Some(own.iter().copied().collect()),
            paths: Some(paths),
            ..Self::inline()
        }
    }

    /// Of this network namespace, with routes to the ends of the states of `snapshot`.
    pub(crate) fn read(config: &Config, snapshot: &Snapshot) -> Self {
        if config.inline.is_some() {
            return Self::inline();
        }
        let is_on = |path| fs::read_to_string(path).is_ok_and(|text| text.trim() != "0");
        let mut rtnetlink = Rtnetlink::open().ok();
        let addresses = rtnetlink.as_mut().and_then(|rtnetlink| rtnetlink.addresses().ok());
        let addresses: Option<HashSet<_>> =
            addresses.map(|all| all.iter().map(|own| own.prefix.address()).collect());
        let routes = match (&addresses, &mut rtnetlink) {
            (Some(own), Some(rtnetlink)) => Some(PeerRoutes::read(snapshot, own, rtnetlink)),
            (None, _) | (_, None) => None,
        };
        let (unreachable, paths) = routes.map(|routes| (routes.unreachable, routes.paths)).unzip();
        Self {
            tun: config.host.tun.to_string(),
            mtu: config.host.mtu,
            forwards_v4: is_on("/proc/sys/net/ipv4/ip_forward"),
            forwards_v6: is_on("/proc/sys/net/ipv6/conf/all/forwarding"),
            addresses,
            unreachable: unreachable.unwrap_or_default(),
            paths,
            filter: ForeignChains::read().unwrap_or_default(),
        }
    }
}

impl PeerRoutes {
    fn read(snapshot: &Snapshot, own: &HashSet<IpAddr>, rtnetlink: &mut Rtnetlink) -> Self {
        let ends = snapshot.sad.iter().flat_map(|sa| [sa.source(), sa.id().destination]);
        let others: HashSet<_> =
            ends.filter(|end| !end.is_unspecified() && !own.contains(end)).collect();
        let (mut unreachable, mut mtus) = (HashSet::new(), HashMap::new());
        for end in others.into_iter().take(ASKED) {
            match rtnetlink.route_to(end, 0) {
                Ok(way) => {
                    let lasting = |rtnetlink: &mut Rtnetlink| rtnetlink.lasting_mtu(end, 0).ok();
                    let lasting = way.expires.then(|| lasting(rtnetlink)).flatten();
                    let mtu = lasting.unwrap_or(way.mtu);
                    mtus.insert(end, u16::try_from(mtu).unwrap_or(u16::MAX));
                }
                Err(rtnetlink::Error::Refused { kernel, .. }) => {
                    let errno = kernel.raw_os_error().map(Errno::from_raw);
                    if matches!(errno, Some(Errno::ENETUNREACH | Errno::EHOSTUNREACH)) {
                        unreachable.insert(end);
                    }
                }
                Err(_) => {}
            }
        }
        let usual = mtus.values().max().copied().unwrap_or(USUAL_MTU);
        let narrow = mtus.into_iter().filter(|(_, mtu)| *mtu < usual).collect();
        Self { unreachable, paths: LastingMtus { usual, narrow } }
    }
}
