//! Keeps the host's stack away from packets that inline mode takes.
//!
//! A packet socket sees a copy of each frame; the host's stack goes on with the original. It would
//! forward it in the clear, answer with ICMP errors, or say that nobody takes ESP. So a table of
//! the kernel's packet filter drops, before routing, all that came by the two devices and is not
//! for the host: the same packets that `uxfrm_runtime`'s router claims.
//!
//! ```text
//!   by the protected port: own address, multicast, link-local → the host's · all else: drop
//!   by the wire:           own address: ESP, ESP in UDP: drop, all else the host's
//!                          multicast, link-local → the host's · all else: drop
//! ```
//!
//! It stays after a crash: then nothing passes between the devices, protected or not.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use anyhow::Context as _;
use uxfrm_io::{
    nftables::{
        Chain, Condition, Error, Hook, Nftables, PacketFilter as _, Rule, RuleVerdict, Table,
    },
    rtnetlink::RoutePrefix,
};
use uxfrm_packet::Version;

use crate::descriptor_store::DescriptorStore;
use crate::inline::InlineDevices;

const ESP: u8 = 50;
const UDP: u8 = 17;

/// The table's name: not one that a TUN's guard could have.
const NAME: &str = "uxfrm_inline";

/// What the packet filter's socket, which owns the table, is called in the descriptor store.
const FILTER: &str = "nftables inline";

/// The table, and what its rules depend on.
#[derive(Debug)]
pub(crate) struct HostBypass {
    nftables: Nftables,
    devices: Arc<InlineDevices>,
    udp_ports: Vec<u16>,
    own: Vec<IpAddr>,
    /// Whether the kernel may have other rules than it was told.
    is_doubted: bool,
}

impl HostBypass {
    /// Keeps the host's stack out from now on, but for packets to `own`. In the place of what an
    /// earlier run left.
    ///
    /// # Errors
    /// The kernel's. Inline mode can't do without.
    pub(crate) fn put_up(
        devices: &Arc<InlineDevices>,
        udp_ports: Vec<u16>,
        own: &[IpAddr],
        descriptors: &mut DescriptorStore,
    ) -> anyhow::Result<Self> {
        let before = descriptors.take(FILTER);
        let put_up = || -> Result<Nftables, Error> {
            let mut nftables =
                before.map_or_else(Nftables::open, |socket| Ok(Nftables::of_socket(socket)))?;
            nftables.install(&devices.table(&udp_ports, own))?;
            Ok(nftables)
        };
        let nftables =
            put_up().context("can't keep the host's stack out of inline mode's packets")?;
        descriptors.keep(FILTER, nftables.socket())?;
        let (devices, own) = (Arc::clone(devices), own.to_vec());
        Ok(Self { nftables, devices, udp_ports, own, is_doubted: false })
    }

    /// Another process may have told the kernel other rules: they are told again the next time.
    pub(crate) fn mark_unverified(&mut self) {
        self.is_doubted = true;
    }

    /// Takes away what a killed gateway left, where there is no inline mode any more. Otherwise the
    /// host would get neither ESP nor what it is to forward.
    pub(crate) fn sweep() {
        let sweep = || -> Result<(), Error> {
            let mut nftables = Nftables::open()?;
            if nftables.has(NAME)? {
                nftables.remove(NAME)?;
                tracing::info!(
                    "the host's stack has again what an earlier run in inline mode kept from it"
                );
            }
            Ok(())
        };
        match sweep() {
            Ok(()) | Err(Error::Unsupported { .. }) => {}
            Err(error) => tracing::error!(
                %error,
                table = NAME,
                "what an earlier run in inline mode kept from the host's stack may still be kept from it"
            ),
        }
    }

    /// Lets the rules follow the host's addresses, and what is read by `AF_XDP`.
    ///
    /// # Errors
    /// The kernel's; the old rules stay.
    pub(crate) fn follow(&mut self, own: &[IpAddr]) -> anyhow::Result<()> {
        if own == self.own && !self.is_doubted {
            return Ok(());
        }
        self.devices.know_host(own)?;
        self.nftables.replace_rules(&self.devices.table(&self.udp_ports, own))?;
        self.own = own.to_vec();
        self.is_doubted = false;
        Ok(())
    }

    /// Lets the host's stack have all packets again.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn take_down(mut self) -> anyhow::Result<()> {
        self.nftables.remove(NAME).context("can't take down inline mode's rules")
    }
}

impl InlineDevices {
    fn table(&self, udp_ports: &[u16], own: &[IpAddr]) -> Table {
        let inline_devices = [(&self.protected, "protected"), (&self.wire, "wire")];
        let arriving =
            inline_devices.map(|(device, chain)| came_by(&device.name, device.index, chain));
        table(arriving.into_iter().flatten().collect(), udp_ports, own)
    }
}

/// By its index, as a device may get another name while its sockets stay with it; and by its name,
/// as one that was made anew after a crash has another index.
fn came_by(name: &str, index: u32, chain: &'static str) -> [Rule; 2] {
    [Condition::came_by_index(index), Condition::came_by(name)]
        .map(|condition| rule(vec![condition], RuleVerdict::Goto(chain)))
}

fn table(arriving: Vec<Rule>, udp_ports: &[u16], own: &[IpAddr]) -> Table {
    let chain = |name, hook, rules| Chain { name, hook, rules };
    Table {
        name: NAME.to_owned(),
        counters: Vec::new(),
        sets: Vec::new(),
        chains: vec![
            chain("own", None, esp(udp_ports).collect()),
            chain("protected", None, sorted(own, RuleVerdict::Accept)),
            chain("wire", None, sorted(own, RuleVerdict::Goto("own"))),
            chain("arriving", Some(Hook::Prerouting), arriving),
        ],
    }
}

/// To own addresses: the verdict. What no router passes on: the host's. All else is kept from it.
fn sorted(own: &[IpAddr], verdict: RuleVerdict) -> Vec<Rule> {
    let to_own = own.iter().filter(|own| !own.is_loopback() && !is_link_local(**own));
    let to_own = to_own.map(|own| rule(to(RoutePrefix::host(*own)), verdict));
    let to_many = NOT_ROUTED.into_iter().filter_map(|(network, length)| {
        let prefix = RoutePrefix::new(network, length)?;
        Some([rule(to(prefix), RuleVerdict::Accept)].into_iter().chain(from_link(prefix)))
    });
    let kept_out = rule(Vec::new(), RuleVerdict::Drop);
    to_own.chain(to_many.flatten()).chain([kept_out]).collect()
}

/// Multicast, the limited broadcast, and IPv6's link-local addresses.
const NOT_ROUTED: [(IpAddr, u8); 4] = [
    (IpAddr::V4(Ipv4Addr::new(224, 0, 0, 0)), 4),
    (IpAddr::V4(Ipv4Addr::BROADCAST), 32),
    (IpAddr::V6(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0)), 8),
    (LINK_LOCAL, 10),
];

const LINK_LOCAL: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0));

/// A neighbour's link-local source is not passed on either.
fn from_link(prefix: RoutePrefix) -> Option<Rule> {
    let conditions = vec![Condition::version(Version::V6), Condition::source(prefix)];
    (prefix.address() == LINK_LOCAL).then(|| rule(conditions, RuleVerdict::Accept))
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// ESP, and what is at a port of ESP in UDP without IKE's marker, in one piece.
fn esp(udp_ports: &[u16]) -> impl Iterator<Item = Rule> {
    let in_udp = |port: u16, version: [Condition; 2]| {
        let port = Condition::upper_pair(2, port, u16::MAX);
        let [version, whole] = version;
        let udp = Condition::protocol(UDP);
        let marked = Condition::upper_word_is_not_zero(8);
        rule(vec![version, whole, udp, port, marked], RuleVerdict::Drop)
    };
    let ports = udp_ports.iter().flat_map(move |port| {
        let v4 = [Condition::version(Version::V4), Condition::whole_ipv4()];
        let v6 = [Condition::version(Version::V6), Condition::network_byte(6, UDP)];
        [in_udp(*port, v4), in_udp(*port, v6)]
    });
    std::iter::once(rule(vec![Condition::protocol(ESP)], RuleVerdict::Drop)).chain(ports)
}

fn to(prefix: RoutePrefix) -> Vec<Condition> {
    let version = if prefix.address().is_ipv4() { Version::V4 } else { Version::V6 };
    vec![Condition::version(version), Condition::destination(prefix)]
}

fn rule(conditions: Vec<Condition>, verdict: RuleVerdict) -> Rule {
    Rule { conditions, set_lookup: None, counter: None, verdict }
}
