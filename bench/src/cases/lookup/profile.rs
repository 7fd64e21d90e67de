//! Policy sets of seven profiles, and flows that match them. The shapes follow published statistics
//! of such sets; they contain no data of others.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use anyhow::bail;
use uxfrm_engine::{
    Action, Direction, Family, FlowKey, IfId, LifetimeLimits, Mark, Mode, Policy, PolicyFlags,
    PolicyIndex, PolicyKind, PortMask, Prefix, Priority, Reqid, SaProtocol, Selector, Spi,
    Template, TemplateLevel,
};

use super::random::Random;

/// The shape of a policy set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyProfile {
    /// A site's network to many others: destinations that do not overlap, /24 to /32 (/48 to /128).
    Tunnels,
    /// One host to another.
    Hosts,
    /// Nested destinations behind a hub, six lengths.
    Hub,
    /// Fifty shapes of all fields, overlapping at random.
    Mix,
    /// Access lists: narrow on both sides, services by destination port.
    Acl,
    /// Firewalls: wide on one side, port blocks.
    Fw,
    /// Chains of a packet filter: hosts and networks, both ports.
    Ipc,
}

impl PolicyProfile {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Tunnels, Self::Hosts, Self::Hub, Self::Mix, Self::Acl, Self::Fw, Self::Ipc];

    /// `count` policies with distinct selectors and random priorities, some of them equal.
    #[must_use]
    pub fn policies(
        self,
        family: Family,
        direction: Direction,
        count: usize,
        random: &mut Random,
    ) -> Vec<Policy> {
        let nets = SiteNetworks::new(family, count, random);
        let mut seen = std::collections::HashSet::with_capacity(count);
        let mut policies = Vec::with_capacity(count);
        for serial in 0_u32.. {
            if policies.len() == count {
                break;
            }
            let selector = self.selector(serial, &nets, random);
            if seen.insert(selector) {
                let priority = random.below(count * 2 + 1);
                policies.push(policy(direction, selector, u32::try_from(priority).unwrap_or(0)));
            }
        }
        policies
    }

    fn selector(self, serial: u32, nets: &SiteNetworks, random: &mut Random) -> Selector {
        let family = nets.family;
        let v4 = family == Family::V4;
        let mut selector = Selector::any(family);
        match self {
            Self::Tunnels => {
                let lens: &[(usize, u8)] = if v4 {
                    &[(40, 24), (8, 25), (8, 26), (8, 27), (10, 28), (6, 29), (6, 30), (14, 32)]
                } else {
                    &[(35, 48), (25, 56), (30, 64), (10, 128)]
                };
                selector.source = nets.own();
                selector.destination = nets.apart(serial, random.weighted(lens), random);
            }
            Self::Hosts => {
                let host = family.bits();
                selector.source = nets.within(host, random);
                selector.destination = nets.within(host, random);
            }
            Self::Hub => {
                let lens: &[(usize, u8)] = if v4 {
                    &[(1, 12), (4, 16), (10, 20), (45, 24), (20, 28), (20, 32)]
                } else {
                    &[(1, 32), (4, 40), (10, 48), (45, 56), (20, 64), (20, 128)]
                };
                selector.destination = nets.within(random.weighted(lens), random);
            }
            Self::Mix => {
                let (source, destination, ports, protocol) =
                    nets.mixes[random.below(nets.mixes.len())];
                selector.source = nets.within(source, random);
                selector.destination = nets.within(destination, random);
                selector.source_port =
                    PortMask { value: random.short() & ports[0], mask: ports[0] };
                selector.destination_port =
                    PortMask { value: random.short() & ports[1], mask: ports[1] };
                selector.protocol = if protocol { random.pick(&[6, 17, 17, 132]) } else { 0 };
            }
            Self::Acl | Self::Fw | Self::Ipc => self.filter(&mut selector, nets, random),
        }
        selector
    }

    /// The three shapes of packet filters.
    fn filter(self, selector: &mut Selector, nets: &SiteNetworks, random: &mut Random) {
        let wide = |nets: &SiteNetworks| if nets.family == Family::V4 { 1 } else { 4 };
        let unit = wide(nets);
        let acl: &[(usize, u8)] =
            &[(50, 32), (10, 31), (6, 30), (6, 28), (4, 27), (10, 24), (6, 22), (4, 16), (4, 0)];
        let firewall: &[(usize, u8)] =
            &[(35, 0), (25, 32), (10, 24), (6, 28), (6, 29), (5, 27), (5, 16), (5, 21), (3, 8)];
        let chains: &[(usize, u8)] =
            &[(40, 32), (15, 24), (10, 0), (8, 31), (8, 27), (7, 26), (6, 20), (6, 16)];
        let (sources, destinations) = match self {
            Self::Acl => (acl, acl),
            Self::Fw => (firewall, firewall),
            Self::Ipc | Self::Tunnels | Self::Hosts | Self::Hub | Self::Mix => (chains, chains),
        };
        selector.source = nets.within(random.weighted(sources) * unit, random);
        selector.destination = nets.within(random.weighted(destinations) * unit, random);
        selector.protocol = random.weighted(&[(60, 6), (25, 17), (8, 1), (4, 47), (3, 0)]);
        match selector.protocol {
            6 | 17 => self.ports(selector, random),
            1 => {
                selector.source_port = PortMask::exactly(random.pick(&[0, 3, 8, 11]));
                if random.below(4) == 0 {
                    selector.destination_port = PortMask::exactly(random.pick(&[0, 1, 4]));
                }
            }
            47 if random.below(2) == 0 => {
                selector.source_port = PortMask::exactly(0);
                selector.destination_port = PortMask::exactly(random.short() % 64);
            }
            _ if selector.source.is_any() && selector.destination.is_any() => {
                selector.destination = nets.within(24 * unit, random);
            }
            _ => {}
        }
    }

    fn ports(self, selector: &mut Selector, random: &mut Random) {
        let service = |random: &mut Random| {
            let port = random.pick(&[22, 25, 53, 80, 123, 161, 443, 1521, 3306, 5060, 8080]);
            PortMask::exactly(if random.below(3) == 0 { random.short() } else { port })
        };
        let block = |random: &mut Random| {
            let mask = u16::MAX << random.pick(&[1, 2, 3, 4, 6, 8, 10]);
            PortMask { value: random.short() & mask, mask }
        };
        let any = PortMask::default();
        let (source, destination) = match self {
            Self::Acl => ([0, 0, 100], [75, 15, 10]),
            Self::Fw => ([10, 10, 80], [50, 30, 20]),
            Self::Ipc | Self::Tunnels | Self::Hosts | Self::Hub | Self::Mix => {
                ([30, 10, 60], [50, 15, 35])
            }
        };
        let draw = |parts: [usize; 3], random: &mut Random| match random.weighted(&[
            (parts[0], 0),
            (parts[1], 1),
            (parts[2], 2),
        ]) {
            0 => service(random),
            1 => block(random),
            _ => any,
        };
        selector.source_port = draw(source, random);
        selector.destination_port = draw(destination, random);
    }
}

/// A flow that matches a policy; fields that the selector leaves open are random.
#[must_use]
pub fn matching_flow(policy: &Policy, random: &mut Random) -> FlowKey {
    let selector = &policy.selector;
    let port =
        |mask: PortMask, random: &mut Random| mask.value & mask.mask | random.short() & !mask.mask;
    FlowKey {
        source: inside(selector.source, random),
        destination: inside(selector.destination, random),
        protocol: match selector.protocol {
            0 => random.pick(&[6, 6, 17, 17, 1]),
            protocol => protocol,
        },
        source_port: port(selector.source_port, random),
        destination_port: port(selector.destination_port, random),
        mark: policy.mark.value & policy.mark.mask | random.word() & !policy.mark.mask,
        if_id: policy.if_id.0,
        ifindex: match selector.ifindex {
            0 => random.word() % 4,
            ifindex => ifindex,
        },
    }
}

/// A flow that no policy of any profile matches.
#[must_use]
pub fn unmatched_flow(family: Family, random: &mut Random) -> FlowKey {
    let net = match family {
        Family::V4 => Prefix::new(Ipv4Addr::new(240, 0, 0, 0).into(), 4),
        Family::V6 => Prefix::new(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0).into(), 8),
    };
    let net = net.unwrap_or_else(|_| Prefix::any(family));
    FlowKey {
        source: inside(net, random),
        destination: inside(net, random),
        protocol: 253,
        source_port: 0,
        destination_port: 0,
        mark: 0,
        if_id: 0,
        ifindex: 0,
    }
}

fn inside(prefix: Prefix, random: &mut Random) -> std::net::IpAddr {
    let free = |bits: u32| u128::MAX.checked_shr(128 - bits).unwrap_or(0);
    let noise = random.wide() & free(u32::from(prefix.family().bits() - prefix.prefix_len()));
    with_bits(prefix.family(), number(prefix) | noise)
}

/// The address without host bits.
fn number(prefix: Prefix) -> u128 {
    let (bits, width) = match prefix.address() {
        std::net::IpAddr::V4(v4) => (u128::from(v4.to_bits()), 32),
        std::net::IpAddr::V6(v6) => (v6.to_bits(), 128),
    };
    let host = width - u32::from(prefix.prefix_len());
    bits.checked_shr(host).and_then(|net| net.checked_shl(host)).unwrap_or(0)
}

fn with_bits(family: Family, bits: u128) -> std::net::IpAddr {
    match family {
        Family::V4 => Ipv4Addr::from_bits(u32::try_from(bits & 0xffff_ffff).unwrap_or(0)).into(),
        Family::V6 => Ipv6Addr::from_bits(bits).into(),
    }
}

/// The networks of a set's addresses: policies share them, so that prefixes nest.
struct SiteNetworks {
    family: Family,
    sites: Vec<u128>,
    mixes: Vec<(u8, u8, [u16; 2], bool)>,
}

impl SiteNetworks {
    fn new(family: Family, count: usize, random: &mut Random) -> Self {
        let sites = (count / 16).clamp(4, 65_536);
        let site = |random: &mut Random| match family {
            // Nothing above 223.255.255.255, so that some flows match no policy.
            Family::V4 => u128::from(((random.word() % 0xdf00_0000) & 0xffff_0000) | 0x0100_0000),
            Family::V6 => 0x20 << 120 | random.wide() >> 8 & !(u128::MAX >> 40),
        };
        let sites = (0..sites).map(|_| site(random)).collect();
        let lens: &[u8] = match family {
            Family::V4 => &[0, 8, 12, 16, 20, 24, 28, 32],
            Family::V6 => &[0, 16, 32, 40, 48, 56, 64, 128],
        };
        let mix = |random: &mut Random| {
            let ports =
                [0, 0, 0, 0xffff, 0xff00].map(|_| random.pick(&[0_u16, 0, 0, 0xffff, 0xff00]));
            (random.pick(lens), random.pick(&lens[1..]), [ports[0], ports[1]], random.below(2) == 0)
        };
        let mixes = (0..50).map(|_| mix(random)).collect();
        Self { family, sites, mixes }
    }

    /// This site's network.
    fn own(&self) -> Prefix {
        match self.family {
            Family::V4 => prefix(self.family, 10 << 24, 8),
            Family::V6 => prefix(self.family, 0x2001_0db8 << 96, 32),
        }
    }

    /// A network that overlaps with none of another serial number.
    fn apart(&self, serial: u32, len: u8, random: &mut Random) -> Prefix {
        // Multiplying by an odd number permutes the blocks.
        let block = u128::from(serial.wrapping_mul(0x9e37_79b1) & 0x00ff_ffff);
        let noise = random.wide();
        match self.family {
            Family::V4 => prefix(
                self.family,
                (0x0b00_0000 + ((block % 0xd0_0000) << 8)) | (noise & 0xff),
                len,
            ),
            Family::V6 => {
                prefix(self.family, 0x20 << 120 | block << 80 | noise & (u128::MAX >> 48), len)
            }
        }
    }

    /// A network at one of the sites.
    fn within(&self, len: u8, random: &mut Random) -> Prefix {
        let site = self.sites[random.below(self.sites.len())];
        let noise = random.wide();
        match self.family {
            Family::V4 => prefix(self.family, site | noise & 0xffff, len),
            Family::V6 => prefix(self.family, site | noise & (u128::MAX >> 40), len),
        }
    }
}

fn prefix(family: Family, bits: u128, len: u8) -> Prefix {
    let host = u32::from(family.bits() - len.min(family.bits()));
    let net = bits.checked_shr(host).and_then(|net| net.checked_shl(host)).unwrap_or(0);
    Prefix::new(with_bits(family, net), len).unwrap_or_else(|_| Prefix::any(family))
}

/// A policy without templates.
#[must_use]
pub fn policy(direction: Direction, selector: Selector, priority: u32) -> Policy {
    Policy {
        direction,
        kind: PolicyKind::Main,
        index: PolicyIndex(0),
        selector,
        priority: Priority(priority),
        action: Action::Allow,
        templates: Vec::new(),
        mark: Mark::default(),
        if_id: IfId(0),
        flags: PolicyFlags::empty(),
        limits: LifetimeLimits::default(),
        offload: None,
    }
}

/// Adds a tunnel to the first address of the destination network, with its own reqid.
#[must_use]
pub(super) fn with_own_template(policy: Policy) -> Policy {
    let peer = number(policy.selector.destination);
    with_template_to(peer, policy)
}

/// Adds a tunnel to a peer whose address has no byte in common with the destination network, and no
/// zeros.
#[must_use]
pub(super) fn with_unlike_template(policy: Policy) -> Policy {
    // Multiplying by an odd number keeps addresses distinct.
    const ODD: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
    let peer = number(policy.selector.destination).wrapping_mul(ODD) ^ ODD;
    with_template_to(peer, policy)
}

fn with_template_to(peer: u128, policy: Policy) -> Policy {
    let family = policy.selector.destination.family();
    let serial = (number(policy.selector.destination) >> (family.bits() / 3)).to_le_bytes();
    let template = Template {
        source: with_bits(family, 0xac10_0001),
        destination: with_bits(family, peer),
        protocol: SaProtocol::Esp,
        spi: Spi(0),
        mode: Mode::Tunnel,
        reqid: Reqid(u32::from_le_bytes([serial[0], serial[1], serial[2], serial[3]])),
        level: TemplateLevel::Required,
    };
    Policy { templates: vec![template], ..policy }
}

impl fmt::Display for PolicyProfile {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Tunnels => "tunnels",
            Self::Hosts => "hosts",
            Self::Hub => "hub",
            Self::Mix => "mix",
            Self::Acl => "acl",
            Self::Fw => "fw",
            Self::Ipc => "ipc",
        })
    }
}

impl FromStr for PolicyProfile {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> anyhow::Result<Self> {
        match Self::ALL.into_iter().find(|profile| profile.to_string() == name) {
            Some(profile) => Ok(profile),
            None => bail!("no profile \"{name}\": there are tunnels hosts hub mix acl fw ipc"),
        }
    }
}
