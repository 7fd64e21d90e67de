//! Requests of programs to one gateway, and their view of it from its answers.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::IpAddr,
};

use uxfrm_engine::{Direction, Family, OffloadKind, Prefix, Selector};
use uxfrm_netlink::{
    AttributeType, MessageType, NetlinkFlags,
    client::{self, NetlinkRequest, RawMigration, RawOffload, RawPolicyId, raw},
};
use uxfrm_xfrm::{grammar, request};

use super::names::{Name, Net, PolicyName, PolicySide};

/// Connections: the IKE daemon's, which listens to acquires and expiries, and a script's.
pub(super) const IKE: u32 = 1;
pub(super) const SCRIPT: u32 = 2;
/// The groups of acquires and expiries.
pub(super) const GROUPS: u32 = 3;

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// An SPI for one end of a child.
    Spi { child: usize, end: usize },
    /// A state of a child.
    Install { child: usize, name: Name },
    /// An update of a state.
    Change { name: Name },
    /// Deletion of a state.
    Delete { name: Name },
    /// A static state.
    AddStatic { name: Name },
    /// A policy, added or updated.
    Policy(PolicyName),
    /// Deletion of a policy.
    DeletePolicy(PolicyName),
    /// A migration of a child's state.
    Migrate { child: usize, old: Name, new: Name },
    /// Deletion of all states.
    Flush,
    /// A dump of states.
    Dump,
}

/// A request that is not sent yet.
#[derive(Debug)]
struct Ask {
    from: u32,
    request: NetlinkRequest,
    purpose: Purpose,
}

/// The programs of one gateway.
#[derive(Debug, Default)]
pub(super) struct Clients {
    last: u32,
    queue: VecDeque<Ask>,
    /// Requests without an answer, by sequence number.
    asked: BTreeMap<u32, Purpose>,
    /// States that the gateway has acknowledged.
    pub(super) states: BTreeSet<Name>,
    /// Policies that it has acknowledged.
    pub(super) policies: BTreeSet<PolicyName>,
    /// States of the dump that is under way.
    pub(super) shown: BTreeSet<Name>,
}

impl Clients {
    /// Queues the request of a line of `ip xfrm`.
    pub(super) fn ask(&mut self, from: u32, line: &str, purpose: Purpose) {
        self.ask_with(from, line, None, purpose);
    }

    /// The same, with offload to a device.
    pub(super) fn ask_with(
        &mut self,
        from: u32,
        line: &str,
        device: Option<RawOffload>,
        purpose: Purpose,
    ) {
        let command = grammar::line(line, None).unwrap_or_else(|fault| panic!("{line}: {fault:?}"));
        let (mut request, _) = request::request(&command.unwrap()).unwrap();
        if let Some(device) = device {
            request.attribute(AttributeType::OffloadDev, &device);
        }
        request.ask(if purpose == Purpose::Dump {
            NetlinkFlags::empty()
        } else {
            NetlinkFlags::ACK
        });
        self.put(from, request, purpose);
    }

    fn put(&mut self, from: u32, request: NetlinkRequest, purpose: Purpose) {
        self.queue.push_back(Ask { from, request, purpose });
    }

    /// MIGRATE of one policy.
    pub(super) fn migrate(
        &mut self,
        (side, from, to): PolicyName,
        reqid: u32,
        [old, new]: [(IpAddr, IpAddr); 2],
        purpose: Purpose,
    ) {
        let selector = Selector { source: prefix(from), destination: prefix(to), ..any() };
        let direction = match side {
            PolicySide::Out => Direction::Out,
            PolicySide::In => Direction::In,
        };
        let id = RawPolicyId {
            selector: client::selector(&selector),
            index: 0,
            direction: client::policy_direction(direction),
            pad: [0; 3],
        };
        let migration = RawMigration {
            old_destination: raw(old.1),
            old_source: raw(old.0),
            new_destination: raw(new.1),
            new_source: raw(new.0),
            protocol: 50,
            mode: 1,
            reserved: 0,
            reqid,
            old_family: client::INET,
            new_family: client::INET,
        };
        let mut request = NetlinkRequest::new(MessageType::Migrate, NetlinkFlags::ACK).body(&id);
        request.attribute(AttributeType::Migrate, &migration);
        self.put(IKE, request, purpose);
    }

    /// The next requests of all clients. A dump is one by itself: it shows nothing that comes after
    /// it began.
    pub(super) fn take(&mut self, most: usize) -> Vec<(u32, Purpose, Vec<u8>)> {
        let before_dump = self.queue.iter().take_while(|ask| ask.purpose != Purpose::Dump).count();
        let count = most.min(self.queue.len()).min(before_dump.max(1));
        let mut taken = Vec::new();
        for mut ask in self.queue.drain(..count) {
            self.last += 1;
            ask.request.number(self.last);
            self.asked.insert(self.last, ask.purpose);
            taken.push((ask.from, ask.purpose, ask.request.bytes().to_vec()));
        }
        taken
    }

    /// The purpose of the request that this message answers finally.
    pub(super) fn answered(&mut self, seq: u32) -> Option<Purpose> {
        self.asked.remove(&seq)
    }

    /// The purpose of the request that this message answers.
    pub(super) fn purpose(&self, seq: u32) -> Option<Purpose> {
        self.asked.get(&seq).copied()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn are_all_answered(&self) -> bool {
        self.asked.is_empty()
    }

    /// The gateway has ended.
    pub(super) fn forget(&mut self) {
        let last = self.last;
        *self = Self { last, ..Self::default() };
    }
}

/// The offload attribute of a state (`XFRM_OFFLOAD_INBOUND`, `_PACKET`).
pub(super) fn offload(ifindex: u32, kind: OffloadKind, is_inbound: bool) -> RawOffload {
    let packet = match kind {
        OffloadKind::Crypto => 0,
        OffloadKind::Packet => 4,
    };
    RawOffload { ifindex, flags: packet | u8::from(is_inbound) << 1, pad: [0; 3] }
}

fn prefix((site, net): Net) -> Prefix {
    let address = super::names::inner(site, net);
    Prefix::new((u32::from(address) & 0xffff_ff00).into_address(), 24).unwrap()
}

fn any() -> Selector {
    let all = Prefix::any(Family::V4);
    let port = uxfrm_engine::PortMask::default();
    Selector {
        source: all,
        destination: all,
        protocol: 0,
        source_port: port,
        destination_port: port,
        ifindex: 0,
        user: 0,
    }
}

trait IntoAddress {
    fn into_address(self) -> IpAddr;
}

impl IntoAddress for u32 {
    fn into_address(self) -> IpAddr {
        std::net::Ipv4Addr::from(self).into()
    }
}

/// A network as `ip xfrm` writes it.
pub(super) fn words((site, net): Net) -> String {
    format!("10.{}.{net}.0/24", site + 1)
}

/// The line of a state.
pub(super) fn state(
    verb: &str,
    source: IpAddr,
    (to, spi): Name,
    key: &[u8; 20],
    rest: &str,
) -> String {
    let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "state {verb} src {source} dst {to} proto esp spi {spi:#x} {rest} mode tunnel \
         aead rfc4106(gcm(aes)) 0x{key} 128"
    )
}

/// The line of a policy that protects.
pub(super) fn policy(
    verb: &str,
    (side, from, to): PolicyName,
    (source, destination): (IpAddr, IpAddr),
    reqid: u32,
) -> String {
    let direction = match side {
        PolicySide::Out => "out",
        PolicySide::In => "in",
    };
    format!(
        "policy {verb} dir {direction} src {} dst {} tmpl src {source} dst {destination} proto esp reqid {reqid} mode tunnel",
        words(from),
        words(to)
    )
}
