//! Whether flows come again while a cache stands aside, and how much room they would take.
//!
//! It watches spells of several lengths, in the long ones some flows only, chosen by what is cheap to read. What it notes of a flow is
//! found again with the flow's next packet if that comes within the spell, so a long spell finds many flows and a short one soon finds
//! few. A scan leaves notes that nothing asks for again. Between spells it rests, where even a glance at each packet counts.

use std::net::IpAddr;

use crate::FlowKey;

/// What a cache does while it stands aside.
#[derive(Debug, Default)]
pub(crate) struct Lookout {
    /// By a flow's hash.
    notes: Box<[Note]>,
    /// Chooses other flows in each spell.
    salt: u32,
    /// Flows whose number is above are not chosen: one of 2^`rarity` is.
    limit: u32,
    rarity: u32,
    /// Packets until the spell ends, and before it begins.
    left: usize,
    rests: usize,
    /// Spells so far: each second one is of the shortest, each fourth of the next length, and so on.
    spells: u32,
    /// Packets of chosen flows in this block, and those that had a note.
    asked: u32,
    found: u32,
    /// Flows noted in this spell.
    noted: usize,
}

/// A packet of a flow that is watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Note {
    /// A part of its hash; 0 for none.
    hash: u16,
    /// The policies' epoch.
    policies: u16,
}

/// How to look out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Orders {
    /// Flows that there may be room for.
    pub(crate) most: usize,
    /// Of a hundred packets so many must have come before.
    pub(crate) come: u32,
    /// It rests for so many spells after each.
    pub(crate) rest: usize,
}

const NOTES: usize = 8192;
/// Packets of the shortest spell, of which all are noted, and as many of each longer one.
const SHORTEST: usize = 4096;
/// Each longer one is 2^`GROWTH` times as long.
const GROWTH: u32 = 3;
/// It is judged after so many packets of chosen flows.
const BLOCK: u32 = 128;

impl Lookout {
    /// Room for each flow.
    pub(crate) const ROOM: usize = 4;

    /// Begins anew: looks out when so many packets have passed.
    pub(crate) fn begin(&mut self, rests: usize) {
        if self.notes.is_empty() {
            self.notes = vec![Note::default(); NOTES].into();
        }
        self.spells = 0;
        self.rests = rests;
        self.prepare(0);
    }

    /// Whether these packets are not even looked at.
    #[inline]
    pub(crate) fn rests(&mut self, packets: usize) -> bool {
        let rests = self.rests > 0;
        self.rests = self.rests.saturating_sub(packets);
        rests
    }

    /// Whether a flow is one of those that are watched.
    #[inline]
    pub(crate) fn chooses(&self, flow: &FlowKey) -> bool {
        let ports = u32::from(flow.source_port) << 16 | u32::from(flow.destination_port);
        let ends = fold(flow.source).rotate_left(7) ^ fold(flow.destination);
        (ends ^ ports ^ flow.mark).wrapping_mul(self.salt) <= self.limit
    }

    /// Notes a packet of a flow that is watched, in an epoch of policies. If what a cache would have held of it since another epoch is outdated, it comes
    /// for the first time.
    #[expect(clippy::cast_possible_truncation, reason = "parts of a hash")]
    pub(crate) fn note(&mut self, hash: u64, policies: u16, outdated: impl Fn(u16) -> bool) {
        let note = Note { hash: (hash >> 32) as u16 | 1, policies };
        let Some(noted) = self.notes.get_mut(hash as usize % NOTES) else { return };
        self.asked += 1;
        self.found += u32::from(noted.hash == note.hash && !outdated(noted.policies));
        self.noted += usize::from(noted.hash == 0);
        *noted = note;
    }

    /// What there should be room for, if it is time to come back. To be asked after so many packets.
    pub(crate) fn report(&mut self, packets: usize, orders: Orders) -> Option<usize> {
        let flows = self.noted << self.rarity;
        let come = self.asked >= BLOCK && self.found * 100 >= self.asked * orders.come;
        if come && flows <= orders.most {
            // So that hardly any flow has to stay away from home.
            return Some(Self::ROOM * flows);
        }
        if self.asked >= BLOCK {
            (self.asked, self.found) = (0, 0);
        }
        self.left = self.left.saturating_sub(packets);
        if self.left == 0 {
            self.rests = (SHORTEST << self.rarity) * orders.rest;
            self.spells = self.spells.wrapping_add(1);
            // Flows that there is room for come again within so many packets, or else too rarely.
            let longest = (4 * orders.most / SHORTEST).max(1).ilog2() / GROWTH;
            self.prepare((self.spells + 1).trailing_zeros().min(longest));
        }
        None
    }

    pub(crate) fn memory(&self) -> usize {
        size_of_val(&*self.notes)
    }

    fn prepare(&mut self, length: u32) {
        self.notes.fill(Note::default());
        self.salt = self.salt.wrapping_mul(0x9e37_79b1).wrapping_add(0x7f4a_7c15) | 1;
        self.rarity = GROWTH * length;
        self.left = SHORTEST << self.rarity;
        self.limit = u32::MAX >> self.rarity;
        (self.asked, self.found, self.noted) = (0, 0, 0);
    }
}

/// All bits of an address in a word.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "all parts are used")]
fn fold(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(v4) => v4.to_bits(),
        IpAddr::V6(v6) => {
            let bits = v6.to_bits();
            let halves = (bits >> 64) as u64 ^ bits as u64;
            (halves >> 32) as u32 ^ halves as u32
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::spd::classifier::ternary::mix;

    const ORDERS: Orders = Orders { most: 1 << 20, come: 60, rest: 0 };

    fn report(flows: u32, orders: Orders, packets: u32) -> Option<(u32, usize)> {
        report_beside(u32::MAX, flows, orders, packets)
    }

    /// After how many packets it reports, and what, when they are of so many flows turn by turn, and policies change after so many of them.
    fn report_beside(
        changes: u32,
        flows: u32,
        orders: Orders,
        packets: u32,
    ) -> Option<(u32, usize)> {
        let mut lookout = Lookout::default();
        lookout.begin(0);
        (0..packets).find_map(|serial| {
            let [a, b, c, d] = (serial % flows).to_be_bytes();
            let source = IpAddr::from([10 + a, b, c, d]);
            let flow = FlowKey::between(source, IpAddr::from([10, 0, 0, 1]));
            if lookout.rests(1) {
                return None;
            }
            if lookout.chooses(&flow) {
                let hash = mix(u64::from(serial % flows) ^ 0x1234_5678_9abc, !0x9e37_79b9);
                let epoch = u16::try_from(serial / changes).unwrap_or(0);
                lookout.note(hash, epoch, |since| since < epoch);
            }
            lookout.report(1, orders).map(|room| (serial, room))
        })
    }

    #[test]
    fn flows_that_come_again_are_seen_and_counted() {
        for flows in [100, 1000, 16_384, 200_000] {
            let (packets, room) = report(flows, ORDERS, 8_000_000).expect("they come again");
            assert!(packets < 20 * flows.max(4096), "{flows} flows after {packets}");
            let flows = flows as usize;
            assert!((2 * flows..8 * flows).contains(&room), "room for {room} of {flows} flows");
        }
    }

    #[test]
    fn few_flows_are_seen_at_once() {
        for flows in 1..9 {
            assert!(report(flows, ORDERS, 5000).is_some(), "{flows}");
        }
    }

    #[test]
    fn a_scan_is_not_taken_for_flows() {
        assert_eq!(report(u32::MAX, ORDERS, 4_000_000), None);
    }

    #[test]
    fn more_flows_than_there_may_be_room_for_are_left_alone() {
        assert_eq!(report(100_000, Orders { most: 16_384, ..ORDERS }, 4_000_000), None);
    }

    #[test]
    fn flows_that_come_again_only_after_policies_changed_are_left_alone() {
        for (changes, flows) in [(100, 16_384), (10_000, 16_384), (10_000, 50_000)] {
            assert_eq!(report_beside(changes, flows, ORDERS, 4_000_000), None, "{changes}");
        }
        assert!(report_beside(1000, 16, ORDERS, 10_000).is_some());
    }
}
