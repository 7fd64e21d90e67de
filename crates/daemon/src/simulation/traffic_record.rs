//! A record of all traffic, which asserts the promises.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::Ipv4Addr,
};

use uxfrm_packet::PacketBuf;

use super::names::{NETS, Name, Net, PolicyName, PolicySide};

/// The first bytes of each payload.
const MARKER: &[u8] = b"plain!";

/// An ESP packet, as far as anybody can read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Esp {
    pub(super) name: Name,
    pub(super) number: u32,
    iv: [u8; 8],
}

impl Esp {
    pub(super) fn read(packet: &[u8]) -> Option<Self> {
        let (head, rest) = packet.split_at_checked(20)?;
        if head[9] != 50 || rest.len() < 16 {
            return None;
        }
        let word = |at: usize| u32::from_be_bytes(rest[at..at + 4].try_into().unwrap());
        let destination = Ipv4Addr::new(head[16], head[17], head[18], head[19]);
        let iv = rest[8..16].try_into().unwrap();
        Some(Self { name: (destination.into(), word(0)), number: word(4), iv })
    }
}

/// All that was sent and received.
#[derive(Debug, Default)]
pub(super) struct TrafficRecord {
    keys: HashMap<Name, [u8; 20]>,
    ivs: HashSet<([u8; 20], [u8; 8])>,
    last: u64,
    /// Where each payload came from and went to.
    payloads: HashMap<u64, (Net, Net)>,
    /// Payloads that each host has received and may not receive again.
    delivered: BTreeMap<usize, HashSet<u64>>,
    /// Policies that each gateway has acknowledged: no plain packet passes them.
    pub(super) promised: BTreeMap<usize, BTreeSet<PolicyName>>,
    /// The last payload before each was acknowledged.
    since: BTreeMap<(usize, PolicyName), u64>,
    pub(super) total: u64,
}

impl TrafficRecord {
    /// Registers the key of a state.
    pub(super) fn learn_key(&mut self, name: Name, key: [u8; 20]) {
        self.keys.insert(name, key);
    }

    /// Registers another name of a state.
    pub(super) fn rename(&mut self, old: Name, new: Name) {
        if let Some(key) = self.keys.get(&old) {
            self.keys.insert(new, *key);
        }
    }

    /// A new payload.
    pub(super) fn payload(&mut self, from: Net, to: Net) -> Vec<u8> {
        self.last += 1;
        self.payloads.insert(self.last, (from, to));
        [MARKER, &self.last.to_be_bytes()].concat()
    }

    fn read(&self, packet: &[u8]) -> Option<(u64, (Net, Net))> {
        let at = packet.windows(MARKER.len()).position(|bytes| bytes == MARKER)?;
        let id = packet.get(at + MARKER.len()..)?.get(..8)?;
        let id = u64::from_be_bytes(id.try_into().unwrap());
        self.payloads.get(&id).map(|ends| (id, *ends))
    }

    /// Checks a packet that a gateway or its host sent to the wire.
    pub(super) fn sent(&mut self, site: usize, packet: &[u8]) {
        let Some(esp) = Esp::read(packet) else {
            let (id, (from, to)) = self.read(packet).expect("a packet that somebody sent");
            let policy = (PolicySide::Out, from, to);
            // A device may have delayed an older packet.
            let is_older = self.since.get(&(site, policy)).is_some_and(|since| id <= *since);
            let is_promised = self.is_promised(site, policy) && !is_older;
            assert!(!is_promised, "payload {id} of {from:?} to {to:?} leaves plain");
            return;
        };
        assert!(self.read(packet).is_none(), "{esp:?} can be read");
        let key = self.keys.get(&esp.name);
        let key = key.unwrap_or_else(|| panic!("{esp:?} is of a state that nobody made"));
        assert!(self.ivs.insert((*key, esp.iv)), "the IV of {esp:?} is there twice under its key");
    }

    /// A gateway has acknowledged a policy.
    pub(super) fn promise(&mut self, site: usize, policy: PolicyName) {
        if self.promised.entry(site).or_default().insert(policy) {
            self.since.insert((site, policy), self.last);
        }
    }

    pub(super) fn is_promised(&self, site: usize, policy: PolicyName) -> bool {
        self.promised.get(&site).is_some_and(|promised| promised.contains(&policy))
    }

    /// Checks a packet that a host received.
    pub(super) fn received(&mut self, site: usize, packet: &PacketBuf) -> (u64, Net) {
        let (id, (from, to)) = self.read(packet.bytes()).expect("a payload that was sent");
        assert_eq!(to.0, site, "payload {id} is another's");
        let is_new = self.delivered.entry(site).or_default().insert(id);
        assert!(is_new, "payload {id} of {from:?} to {to:?} is accepted again");
        self.total += 1;
        (id, from)
    }

    /// Checks a plain packet that the guard let in.
    pub(super) fn let_in(&self, site: usize, packet: &[u8]) {
        let Some((id, (from, to))) = self.read(packet) else { return };
        let is_promised = self.is_promised(site, (PolicySide::In, from, to));
        assert!(!is_promised, "payload {id} of {from:?} to {to:?} comes in plain");
    }

    /// What a gateway received by states with static keys may come again: its store was lost, or
    /// its states were made anew.
    pub(super) fn forget_static(&mut self, site: usize) {
        let payloads = &self.payloads;
        let is_static = |id: &u64| payloads.get(id).is_some_and(|(_, to)| to.1 == NETS - 1);
        self.delivered.entry(site).or_default().retain(|id| !is_static(id));
    }
}
