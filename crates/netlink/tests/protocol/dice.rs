//! Random policies and packets from few values, so that they match, for tests against the kernel.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use uxfrm_engine::Family;

use crate::stage::{attribute, message};

const NEW_POLICY: u16 = 0x13;
const UPD_POLICY: u16 = 0x19;
const NEW_SPD_INFO: u16 = 0x24;

/// Numbers that are the same in every run, and what is drawn with them.
pub(crate) struct Dice {
    state: u64,
    family: Family,
}

/// A policy as a client names and adds it.
#[derive(Clone)]
pub(crate) struct Candidate {
    /// `struct xfrm_userpolicy_info`.
    pub(crate) info: Vec<u8>,
    /// `XFRMA_MARK`: value and mask.
    pub(crate) mark: (u32, u32),
    /// `XFRMA_IF_ID`.
    pub(crate) if_id: u32,
    /// `XFRMA_POLICY_TYPE`: 0 is main, 1 sub.
    pub(crate) kind: u8,
}

impl Dice {
    pub(crate) const fn new(family: Family, seed: u64) -> Self {
        Self { state: seed, family }
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.state =
            self.state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        usize::try_from(self.state >> 33).unwrap() % end
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// One of a dozen addresses of this host.
    pub(crate) fn address(&mut self) -> IpAddr {
        let (net, subnet, host) = (self.pick(&[1, 2]), self.pick(&[0, 1]), self.pick(&[1, 2, 129]));
        address(self.family, net, subnet, host)
    }

    pub(crate) fn port(&mut self) -> u16 {
        self.pick(&[5001, 5002, 5017, 6001])
    }

    pub(crate) fn socket_address(&mut self) -> SocketAddr {
        SocketAddr::new(self.address(), self.port())
    }

    /// What packets of this mark are asked with.
    pub(crate) fn mark(&mut self) -> u32 {
        self.pick(&[0, 0, 1, 3])
    }

    pub(crate) fn candidate(&mut self) -> Candidate {
        Candidate {
            info: self.info(),
            // 0x101 under 0xff is 1, and the same policy (Linux from 6.15 on, and its stable
            // releases of 2025).
            mark: self.pick(&[
                (0, 0),
                (0, 0),
                (0, 0),
                (0, 0),
                (0, 0),
                (1, 1),
                (1, 0xff),
                (0x101, 0xff),
                (2, 3),
            ]),
            if_id: self.pick(&[0, 0, 0, 0, 0, 0, 0, 7]),
            kind: self.pick(&[0, 0, 0, 0, 0, 0, 1]),
        }
    }

    /// NEWSPDINFO: the prefix lengths from which policies are hashed, local and remote.
    pub(crate) fn thresholds(&mut self) -> Vec<u8> {
        let (kind, lens) = match self.family {
            Family::V4 => (3, [0, 8, 16, 24, 31, 32]),
            Family::V6 => (4, [0, 16, 32, 96, 127, 128]),
        };
        let sides = [self.pick(&lens), self.pick(&lens)];
        message(NEW_SPD_INFO, 5, &[vec![0; 4], attribute(kind, &sides)].concat())
    }

    fn info(&mut self) -> Vec<u8> {
        let mut info = vec![0; 168];
        for at in [0, 16] {
            match self.address() {
                IpAddr::V4(address) => info[at..at + 4].copy_from_slice(&address.octets()),
                IpAddr::V6(address) => info[at..at + 16].copy_from_slice(&address.octets()),
            }
        }
        for at in [32, 36] {
            let mask = self.pick(&[0, 0, u16::MAX, 0xfff0]);
            info[at..at + 2].copy_from_slice(&(self.port() & mask).to_be_bytes());
            info[at + 2..at + 4].copy_from_slice(&mask.to_be_bytes());
        }
        let (family, destinations, sources): (u8, [u8; 8], [u8; 6]) = match self.family {
            Family::V4 => (2, [0, 8, 16, 24, 25, 31, 32, 32], [0, 0, 8, 16, 24, 32]),
            Family::V6 => (10, [0, 16, 32, 96, 121, 127, 128, 128], [0, 0, 16, 32, 112, 128]),
        };
        info[40] = family;
        info[42] = self.pick(&destinations);
        info[43] = self.pick(&sources);
        info[44] = self.pick(&[0, 17, 17, 6]);
        info[152] = self.pick(&[1, 2, 3]);
        info[160] = self.pick(&[0, 1]);
        info[161] = self.pick(&[0, 1, 1]);
        info
    }
}

impl Candidate {
    pub(crate) fn direction(&self) -> u8 {
        self.info[160]
    }

    /// NEWPOLICY.
    pub(crate) fn add(&self) -> Vec<u8> {
        message(NEW_POLICY, 5, &[self.info.clone(), self.attributes()].concat())
    }

    /// UPDPOLICY with the other action, and another priority perhaps.
    pub(crate) fn update(&mut self, dice: &mut Dice) -> Vec<u8> {
        self.info[161] ^= 1;
        self.info[152] = dice.pick(&[self.info[152], self.info[152], 1, 2, 3]);
        message(UPD_POLICY, 5, &[self.info.clone(), self.attributes()].concat())
    }

    /// What tells policies of one selector from each other.
    pub(crate) fn attributes(&self) -> Vec<u8> {
        let (value, mask) = self.mark;
        let mark = [value.to_ne_bytes(), mask.to_ne_bytes()].concat();
        let mut attributes = attribute(16, &[self.kind, 0, 0, 0, 0, 0]);
        if mask != 0 {
            attributes.extend(attribute(21, &mark));
        }
        if self.if_id != 0 {
            attributes.extend(attribute(31, &self.if_id.to_ne_bytes()));
        }
        attributes
    }
}

/// All addresses that packets have.
pub(crate) fn addresses(family: Family) -> impl Iterator<Item = IpAddr> {
    let subnets = [1, 2].into_iter().flat_map(|net| [(net, 0), (net, 1)]);
    subnets
        .flat_map(move |(net, subnet)| [1, 2, 129].map(|host| address(family, net, subnet, host)))
}

fn address(family: Family, net: u8, subnet: u8, host: u8) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(127, net, subnet, host).into(),
        Family::V6 => {
            Ipv6Addr::new(0xfd00, net.into(), 0, 0, 0, 0, subnet.into(), host.into()).into()
        }
    }
}
