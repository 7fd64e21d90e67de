//! Which words a policy has for itself, so that its other words are the same as many others' and kept once for all of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use arrayvec::ArrayVec;

use crate::{Direction, Family, Policy, PortMask, Reqid, Selector, Template};

/// What each of some policies says for itself beside protocol and lengths of prefixes. All else is in their terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    pub(super) direction: Direction,
    pub(super) family: Family,
    ports: Ports,
    /// Of the addresses of its traffic.
    pub(super) traffic: Ends,
    /// Of its first template, with the request id.
    tunnel: Option<(Family, Ends)>,
}

/// Whether any port is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Ports {
    Any,
    Some,
}

/// Which addresses. A gateway has few of its own, and many peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Ends {
    /// That of the other side; this side's is in the terms.
    Far,
    /// Those of both sides.
    Both,
}

/// The words of one policy.
pub(super) type Bytes = ArrayVec<u8, MOST>;
/// From the one that leaves most to the terms on.
pub(super) type Forms = ArrayVec<Form, 6>;

/// Ports, four addresses of IPv6, a request id.
const MOST: usize = 4 + 4 * 16 + 4;

impl Form {
    /// That which leaves as little to the terms as there is for a policy.
    pub(super) fn least(policy: &Policy) -> Self {
        let tunnel = tunnel_family(policy).map(|family| (family, Ends::Both));
        Self { tunnel, ..Self::plain(policy, Ends::Both) }
    }

    /// Those that leave more, the most first. What takes no less memory for that, as words have `room`, is left out.
    pub(super) fn sharing(policy: &Policy, room: usize) -> Forms {
        let mut forms = Forms::new();
        let traffic: &[Ends] = match policy.selector.family() {
            Family::V4 => &[Ends::Both],
            Family::V6 => &[Ends::Far, Ends::Both],
        };
        for traffic in traffic {
            let plain = Self::plain(policy, *traffic);
            forms.push(plain);
            if let Some(family) = tunnel_family(policy) {
                let tunnel = |ends| Self { tunnel: Some((family, ends)), ..plain };
                forms.extend([Ends::Far, Ends::Both].map(tunnel));
            }
        }
        forms.sort_by_key(|form| form.len());
        let fitting = forms.iter().take_while(|form| form.len() <= room).count();
        forms.drain(..fitting.saturating_sub(1));
        forms.pop();
        forms
    }

    fn plain(policy: &Policy, traffic: Ends) -> Self {
        let Selector { source_port, destination_port, .. } = policy.selector;
        let any = PortMask::default();
        let ports =
            if [source_port, destination_port] == [any; 2] { Ports::Any } else { Ports::Some };
        let (direction, family) = (policy.direction, policy.selector.family());
        Self { direction, family, ports, traffic, tunnel: None }
    }

    /// Bytes of a policy's own words.
    fn len(self) -> usize {
        let ports = if self.ports == Ports::Some { 4 } else { 0 };
        let addresses = |family: Family, ends| {
            let each = usize::from(family.bits() / 8);
            if ends == Ends::Far { each } else { 2 * each }
        };
        let tunnel = self.tunnel.map_or(0, |(family, ends)| 4 + addresses(family, ends));
        ports + addresses(self.family, self.traffic) + tunnel
    }

    /// A policy's own words.
    pub(super) fn bytes(self, policy: &Policy) -> Bytes {
        let mut bytes = Bytes::new();
        let Selector { source, destination, source_port, destination_port, .. } = policy.selector;
        if self.ports == Ports::Some {
            bytes.extend(source_port.value.to_ne_bytes());
            bytes.extend(destination_port.value.to_ne_bytes());
        }
        self.put(self.traffic, [source.address(), destination.address()], &mut bytes);
        if let (Some((_, ends)), Some(template)) = (self.tunnel, policy.templates.first()) {
            self.put(ends, [template.source, template.destination], &mut bytes);
            bytes.extend(template.reqid.0.to_ne_bytes());
        }
        bytes
    }

    fn put(self, ends: Ends, addresses: [IpAddr; 2], bytes: &mut Bytes) {
        let far = 1 - near(self.direction);
        for (end, address) in addresses.into_iter().enumerate() {
            if ends == Ends::Both || end == far {
                match address {
                    IpAddr::V4(v4) => bytes.extend(v4.octets()),
                    IpAddr::V6(v6) => bytes.extend(v6.octets()),
                }
            }
        }
    }

    /// What stands in a policy's own words, the ports' masks and the addresses of its traffic on this side being `masks` and `near`.
    pub(super) fn traffic(
        self,
        bytes: &[u8],
        masks: [u16; 2],
        near: IpAddr,
    ) -> ([IpAddr; 2], [PortMask; 2]) {
        let mut words = Words(bytes);
        let [source, destination] = self.port_values(&mut words);
        let source = PortMask { value: source, mask: masks[0] };
        let destination = PortMask { value: destination, mask: masks[1] };
        let near = [near; 2];
        (self.take(self.traffic, self.family, near, &mut words), [source, destination])
    }

    /// A policy's first template, of which its terms say the rest.
    pub(super) fn template(self, bytes: &[u8], rest: &Template) -> Template {
        let Some((family, ends)) = self.tunnel else { return *rest };
        let mut words = Words(bytes);
        self.port_values(&mut words);
        self.take(self.traffic, self.family, [self.family.unspecified(); 2], &mut words);
        let others = [rest.source, rest.destination];
        let [source, destination] = self.take(ends, family, others, &mut words);
        let reqid = Reqid(u32::from_ne_bytes(words.take()));
        Template { source, destination, reqid, ..*rest }
    }

    /// A policy's first template without what the policy has for itself.
    pub(super) fn rest(self, template: &Template) -> Template {
        let Some((family, ends)) = self.tunnel else { return *template };
        let mut addresses = [family.unspecified(); 2];
        if ends == Ends::Far {
            let near = near(self.direction);
            addresses[near] = [template.source, template.destination][near];
        }
        let [source, destination] = addresses;
        Template { source, destination, reqid: Reqid(0), ..*template }
    }

    /// The address of its traffic on this side that a policy leaves to its terms.
    pub(super) fn near(self, selector: &Selector) -> IpAddr {
        let addresses = [selector.source.address(), selector.destination.address()];
        match self.traffic {
            Ends::Both => self.family.unspecified(),
            Ends::Far => addresses[near(self.direction)],
        }
    }

    fn port_values(self, words: &mut Words<'_>) -> [u16; 2] {
        match self.ports {
            Ports::Any => [0; 2],
            Ports::Some => [0; 2].map(|_| u16::from_ne_bytes(words.take())),
        }
    }

    /// Both addresses, `others` in place of those that are not among the words.
    fn take(
        self,
        ends: Ends,
        family: Family,
        others: [IpAddr; 2],
        words: &mut Words<'_>,
    ) -> [IpAddr; 2] {
        let mut addresses = others;
        let far = 1 - near(self.direction);
        for (end, address) in addresses.iter_mut().enumerate() {
            if ends == Ends::Both || end == far {
                *address = words.address(family);
            }
        }
        addresses
    }
}

/// Bytes that are yet to be read.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    /// The next ones; the form says how many there are.
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let Some((next, others)) = self.0.split_first_chunk() else { return [0; N] };
        self.0 = others;
        *next
    }

    fn address(&mut self, family: Family) -> IpAddr {
        match family {
            Family::V4 => Ipv4Addr::from(self.take::<4>()).into(),
            Family::V6 => Ipv6Addr::from(self.take::<16>()).into(),
        }
    }
}

/// Which of source and destination is this side's.
const fn near(direction: Direction) -> usize {
    match direction {
        Direction::Out => 0,
        Direction::In | Direction::Forward => 1,
    }
}

/// The family of a policy's first template, if both of its addresses have the same.
fn tunnel_family(policy: &Policy) -> Option<Family> {
    let template = policy.templates.first()?;
    let families = [template.source, template.destination].map(Family::of);
    (families[0] == families[1]).then_some(families[0])
}
