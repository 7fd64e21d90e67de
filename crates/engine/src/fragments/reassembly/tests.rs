use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use uxfrm_packet::{IpPacket, Pool};

use super::*;

/// A fragment of the model; offsets and lengths are multiples of 8.
#[derive(Clone, Copy, Debug)]
struct Bit {
    is_v6: bool,
    seq: u64,
    ident: u8,
    offset: u8,
    units: u8,
    is_last: bool,
    salt: u8,
}

impl Bit {
    fn range(self) -> std::ops::Range<usize> {
        let start = usize::from(self.offset) * 8;
        start..start + usize::from(self.units) * 8
    }

    fn payload(self) -> Vec<u8> {
        self.range().map(|at| u8::try_from(at).unwrap() ^ self.ident ^ self.salt).collect()
    }

    fn origin(self) -> FragmentOrigin {
        origin(self.seq)
    }

    fn packet(self) -> Vec<u8> {
        let payload = self.payload();
        let field = (u16::from(self.offset) << 3 | u16::from(!self.is_last)).to_be_bytes();
        if self.is_v6 {
            let len = (u16::try_from(payload.len()).unwrap() + 8).to_be_bytes();
            let mut bytes = vec![0x60, 0, 0, 0, len[0], len[1], 44, 64];
            bytes.extend([1; 16]);
            bytes.extend([2; 16]);
            bytes.extend([17, 0, field[0], field[1], 0, 0, 0, self.ident]);
            bytes.extend(payload);
            return bytes;
        }
        let len = (u16::try_from(payload.len()).unwrap() + 20).to_be_bytes();
        let field = (u16::from(self.offset) | u16::from(!self.is_last) << 13).to_be_bytes();
        let mut bytes = vec![0x45, 0, len[0], len[1], 0, self.ident, field[0], field[1], 64, 17];
        bytes.extend([0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        bytes.extend(payload);
        bytes
    }
}

/// A datagram of the model: each byte, and the fragments that brought them.
#[derive(Debug, Default)]
struct CachedVerdict {
    since: u64,
    bytes: BTreeMap<usize, u8>,
    seen: BTreeSet<(usize, usize)>,
    total: Option<usize>,
}

/// Outcome of a fragment.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    Held,
    Whole(Vec<u8>),
    /// With so many fragments of its datagram, itself included.
    Refused(u64),
}

/// Reference implementation without limits of memory and time, byte by byte.
#[derive(Debug, Default)]
struct Model(BTreeMap<u64, Vec<(Ident, CachedVerdict)>>);

/// Whether it is IPv6, and the identification.
type Ident = (bool, u8);

impl Model {
    fn add(&mut self, bit: Bit, now: u64) -> (Said, u64) {
        let (key, shelf) = ((bit.is_v6, bit.ident), self.0.entry(bit.seq).or_default());
        let mut evicted = 0;
        if !shelf.iter().any(|(other, _)| *other == key) {
            if shelf.len() == MAX_DATAGRAMS {
                evicted = shelf.remove(0).1.seen.len() as u64;
            }
            shelf.push((key, CachedVerdict { since: now, ..CachedVerdict::default() }));
        }
        let place = shelf.iter().position(|(other, _)| *other == key).unwrap();
        let (known, range) = (&mut shelf[place].1, bit.range());
        if known.seen.contains(&(range.start, range.end)) {
            return (Said::Refused(1), evicted);
        }
        let overlaps = range.clone().any(|at| known.bytes.contains_key(&at));
        let total = if bit.is_last { Some(range.end) } else { known.total };
        let furthest = known.bytes.keys().next_back().map_or(0, |at| at + 1).max(range.end);
        let contradicts = known.total.is_some_and(|known| total != Some(known))
            || total.is_some_and(|total| furthest > total);
        if overlaps || contradicts {
            let pieces = known.seen.len() as u64 + 1;
            shelf.remove(place);
            return (Said::Refused(pieces), evicted);
        }
        known.total = total;
        known.seen.insert((range.start, range.end));
        known.bytes.extend(range.zip(bit.payload()));
        if known.total != Some(known.bytes.len()) {
            return (Said::Held, evicted);
        }
        (Said::Whole(shelf.remove(place).1.bytes.into_values().collect()), evicted)
    }

    fn expire(&mut self, now: u64) -> u64 {
        let mut late = 0;
        for shelf in self.0.values_mut() {
            shelf.retain(|(_, known)| {
                let stays = now - known.since < REASSEMBLY_TIMEOUT.as_secs();
                late += if stays { 0 } else { known.seen.len() as u64 };
                stays
            });
        }
        late
    }

    fn held(&self) -> u64 {
        self.0.values().flatten().map(|(_, known)| known.seen.len() as u64).sum()
    }
}

/// Origin of one SA.
fn origin(seq: u64) -> FragmentOrigin {
    let (kin, insertion_seqs) = (vec![SaFamily::alone(seq)], [seq, 0, 0, 0, 0, 0]);
    FragmentOrigin { kin, insertion_seqs, last: None }
}

fn at(seconds: u64) -> Moment {
    Moment::from_secs(seconds)
}

fn add(
    reassembly: &mut Reassembly,
    bytes: &[u8],
    origin: FragmentOrigin,
    now: u64,
    pool: &mut Pool,
) -> Reassembled {
    let mut packet = pool.take(SizeClass::holding(bytes.len()));
    packet.append(bytes.len()).unwrap().copy_from_slice(bytes);
    let ip = IpPacket::parse(packet.bytes()).unwrap();
    reassembly.add(packet, &ip, &origin, at(now), pool)
}

fn said(outcome: Reassembled, lost: u64, is_v6: bool, pool: &mut Pool) -> Said {
    match outcome {
        Reassembled::Held => Said::Held,
        Reassembled::Refused => Said::Refused(lost),
        Reassembled::Whole { packet, .. } => {
            let ip = IpPacket::parse(packet.bytes()).unwrap();
            assert!(!ip.is_fragment());
            let payload = packet.bytes()[if is_v6 { 40 } else { 20 }..].to_vec();
            pool.give(packet);
            Said::Whole(payload)
        }
    }
}

fn bits(idents: u8) -> impl Strategy<Value = (Bit, u64)> {
    let bit = (any::<bool>(), 0..3_u64, 0..idents, 0..5_u8, 1..4_u8, any::<bool>(), 0..4_u8);
    let bit = bit.prop_map(|(is_v6, seq, ident, offset, units, is_last, salt)| Bit {
        is_v6,
        seq,
        ident,
        offset,
        units,
        // In IPv4 the only fragment cannot be the last one.
        is_last: is_last && (is_v6 || offset > 0),
        salt: if salt == 0 { 0x55 } else { 0 },
    });
    (bit, prop_oneof![9 => Just(0_u64), 1 => 0..12_u64])
}

proptest! {
    /// Overlaps, duplicates, any order, several SAs, too many datagrams, and time-outs.
    #[test]
    fn reassembly_agrees_with_model(
        few in prop::collection::vec(bits(3), 0..400),
        many in prop::collection::vec(bits(120), 0..800),
    ) {
        for all in [few, many] {
            let (mut reassembly, mut model) = (Reassembly::default(), Model::default());
            let (mut pool, mut now) = (Pool::new(), 0);
            for (bit, later) in all {
                now += later;
                let late = reassembly.expire(at(now));
                prop_assert_eq!(late, model.expire(now));
                let outcome = add(&mut reassembly, &bit.packet(), bit.origin(), now, &mut pool);
                let (expected, evicted) = model.add(bit, now);
                let lost = reassembly.take_lost().len() as u64 - late - evicted;
                prop_assert_eq!(lost > 0, matches!(outcome, Reassembled::Refused));
                let said = said(outcome, lost, bit.is_v6, &mut pool);
                prop_assert_eq!(said, expected, "{:?}", bit);
                prop_assert_eq!(reassembly.held(), model.held());
                let datagrams: usize = reassembly.queues.values().map(|shelf| shelf.waiting.len()).sum();
                prop_assert_eq!(reassembly.datagrams(), datagrams);
                let by_bytes = reassembly.queues.values().map(|shelf| {
                    let room: usize = shelf.waiting.iter().map(PartialDatagram::room).sum();
                    assert_eq!(shelf.room, room);
                    room
                });
                prop_assert_eq!(reassembly.room, by_bytes.sum::<usize>());
            }
        }
    }
}

/// A first fragment without successors, of nearly maximal length.
fn long(ident: u16) -> Vec<u8> {
    let mut bytes = vec![0; 60_020];
    let [high, low] = ident.to_be_bytes();
    let len = 60_020_u16.to_be_bytes();
    bytes[..10].copy_from_slice(&[0x45, 0, len[0], len[1], high, low, 0x20, 0, 64, 17]);
    bytes[15] = 1;
    bytes[19] = 2;
    bytes
}

#[test]
fn flood_fills_only_its_own_queue() {
    let (mut reassembly, mut pool) = (Reassembly::default(), Pool::new());
    let piece = |offset, is_last| Bit {
        is_v6: false,
        seq: 7,
        ident: 9,
        offset,
        units: 1,
        is_last,
        salt: 0,
    };
    let first = piece(0, false);
    add(&mut reassembly, &first.packet(), first.origin(), 0, &mut pool);
    for ident in 0..2000 {
        // Plain, and by another peer's SA.
        for origin in [FragmentOrigin::default(), origin(8)] {
            add(&mut reassembly, &long(ident), origin, 0, &mut pool);
            assert!(reassembly.queues.values().all(|shelf| shelf.room <= MAX_BYTES));
            assert!(reassembly.datagrams() <= 2 * MAX_DATAGRAMS + 1);
        }
    }
    let last = piece(1, true);
    let outcome = add(&mut reassembly, &last.packet(), last.origin(), 0, &mut pool);
    assert!(matches!(outcome, Reassembled::Whole { .. }), "{outcome:?}");
}

#[test]
fn total_memory_is_bounded_for_many_sas() {
    let (mut reassembly, mut pool) = (Reassembly::default(), Pool::new());
    let small =
        Bit { is_v6: false, seq: 1, ident: 9, offset: 0, units: 1, is_last: false, salt: 0 };
    add(&mut reassembly, &small.packet(), small.origin(), 0, &mut pool);
    for seq in 2..20 {
        for ident in 0..200 {
            add(&mut reassembly, &long(ident), origin(seq), 0, &mut pool);
            assert!(reassembly.room <= MAX_TOTAL_BYTES);
        }
    }
    assert!(reassembly.room > MAX_TOTAL_BYTES / 2, "{}", reassembly.room);
    let last = Bit { offset: 1, is_last: true, ..small };
    let outcome = add(&mut reassembly, &last.packet(), last.origin(), 0, &mut pool);
    assert!(matches!(outcome, Reassembled::Whole { .. }), "the fullest shelf gives: {outcome:?}");
}

/// The cost is counted in visited queues.
#[test]
fn eviction_visits_few_queues() {
    let (mut reassembly, mut pool) = (Reassembly::default(), Pool::new());
    let states = 1200;
    for seq in 1..=states {
        add(&mut reassembly, &long(1), origin(seq), seq, &mut pool);
    }
    assert!(reassembly.room > MAX_TOTAL_BYTES / 2, "{}", reassembly.room);
    let before = reassembly.looked_at;
    reassembly.take_lost();
    for seq in 1..=states {
        let outcome = add(&mut reassembly, &long(2), origin(states + seq), states, &mut pool);
        assert!(matches!(outcome, Reassembled::Held) && reassembly.take_lost().len() == 1);
    }
    assert!(reassembly.looked_at - before <= 3 * states, "{}", reassembly.looked_at - before);
    let (before, waiting) = (reassembly.looked_at, reassembly.datagrams() as u64);
    for second in 0..=states {
        reassembly.expire(at(second).plus(REASSEMBLY_TIMEOUT));
    }
    assert_eq!(reassembly.datagrams(), 0);
    assert!(reassembly.looked_at - before <= waiting, "{}", reassembly.looked_at - before);
}
