//! How the host is set, as far as rules ask: read before they run, so that they stay functions.

use std::{collections::HashSet, fs, net::IpAddr};

use nix::errno::Errno;
use uxfrm_engine::Snapshot;
use uxfrm_io::rtnetlink::{self, Rtnetlink};

/// Peers whose routes are asked for; those behind them are taken for reachable.
const ASKED: usize = 1024;

/// How the host is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostSettings {
    /// `net.ipv4.ip_forward`
    pub(crate) forwards_v4: bool,
    /// `net.ipv6.conf.all.forwarding`
    pub(crate) forwards_v6: bool,
    /// Its addresses; `None` where they can't be read, or do not matter.
    pub(crate) addresses: Option<HashSet<IpAddr>>,
    /// Ends of states that no route leads to.
    pub(crate) unreachable: HashSet<IpAddr>,
}

impl HostSettings {
    /// What the rules are told of an inline gateway's host: it forwards by itself, and its states'
    /// ends need not be addresses of the host.
    pub(crate) fn inline() -> Self {
        Self { forwards_v4: true, forwards_v6: true, addresses: None, unreachable: HashSet::new() }
    }

    /// Of this network namespace, with routes to the ends of the states of `snapshot`.
    pub(crate) fn read(snapshot: &Snapshot) -> Self {
        let is_on = |path| fs::read_to_string(path).is_ok_and(|text| text.trim() != "0");
        let mut rtnetlink = Rtnetlink::open().ok();
        let addresses = rtnetlink.as_mut().and_then(|rtnetlink| rtnetlink.addresses().ok());
        let addresses = addresses.map(|all| all.iter().map(|own| own.prefix.address()).collect());
        Self {
            forwards_v4: is_on("/proc/sys/net/ipv4/ip_forward"),
            forwards_v6: is_on("/proc/sys/net/ipv6/conf/all/forwarding"),
            unreachable: rtnetlink.map_or_else(HashSet::new, |mut rtnetlink| {
                unreachable(snapshot, addresses.as_ref(), &mut rtnetlink)
            }),
            addresses,
        }
    }
}

fn unreachable(
    snapshot: &Snapshot,
    own: Option<&HashSet<IpAddr>>,
    rtnetlink: &mut Rtnetlink,
) -> HashSet<IpAddr> {
    let ends = snapshot.sad.iter().flat_map(|sa| [sa.source(), sa.id().destination]);
    let others: HashSet<_> = ends
        .filter(|end| !end.is_unspecified() && own.is_some_and(|own| !own.contains(end)))
        .collect();
    let without_route = |end: &IpAddr| match rtnetlink.route_to(*end, 0) {
        Err(rtnetlink::Error::Refused { kernel, .. }) => {
            let errno = kernel.raw_os_error().map(Errno::from_raw);
            matches!(errno, Some(Errno::ENETUNREACH | Errno::EHOSTUNREACH))
        }
        Ok(_) | Err(_) => false,
    };
    others.into_iter().take(ASKED).filter(without_route).collect()
}
