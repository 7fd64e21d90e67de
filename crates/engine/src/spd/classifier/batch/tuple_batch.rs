//! Many packets go through a sieve together: each asks all tiers, then goes where the first rank is, and then to all other tiers that may have
//! something to better what it found there. What is behind the tiers comes first of all, or after the first tier.

use arrayvec::ArrayVec;
use uxfrm_packet::{Steps, Told};

use super::{Batch, CUT, EMPTY, WAYS, Way, kind, unless_behind};
use crate::spd::classifier::TOGETHER;
use crate::spd::classifier::node::Node;
use crate::spd::classifier::rule::Best;
use crate::spd::classifier::ternary::{Key, Words};
use crate::spd::classifier::tuple_space::{Beginning, Part, Sieve};

/// Packets and the parts that they go to.
type Parts<'a, W> = ArrayVec<(usize, &'a Part<W>), WAYS>;

/// Considers the first policy that fits, of each key, of which there are [`TOGETHER`] at the most. A function of its own, as it takes pages of stack that
/// others need not.
#[inline(never)]
pub(in crate::spd::classifier) fn sift<'a, W: Words>(
    sieve: &'a Sieve<W>,
    keys: &[Key<W>],
    bests: &mut [Best<'a>; TOGETHER],
) {
    let mut batch = Batch::of(keys, bests);
    if sieve.beginning() == Beginning::Last {
        batch.end(sieve.last());
    }
    let (mut told, mut steps) = (Told::default(), Steps::default());
    let mut columns = W::Columns::default();
    W::columns(batch.keys, &mut columns);
    let count = batch.keys.len();
    sieve.tiers().iter().for_each(|tier| told.ask(tier.slots(), columns.as_ref()));
    told.firsts(count, &batch.levels(sieve), &mut steps);
    batch.look(sieve, &told, &steps);
    if sieve.beginning() == Beginning::Tiers {
        batch.look_behind(sieve.last());
    }
    told.others(count, &batch.levels(sieve), &mut steps);
    batch.look(sieve, &told, &steps);
}

impl<'a, W: Words> Batch<'a, '_, W> {
    /// What may better that which each packet has found.
    fn levels(&self, sieve: &Sieve<W>) -> [u32; TOGETHER] {
        std::array::from_fn(|at| sieve.level(self.bests[at].rank()))
    }

    /// At what is behind all tiers, for packets that have found nothing that stands before all of it. Where they are nearly all, it is quicker for
    /// all than to pick them.
    #[inline(never)]
    fn look_behind(&mut self, last: &'a Node<W>) {
        let first = last.first_rank();
        let (mut packets, mut count) = ([0; TOGETHER], 0);
        for (packet, best) in self.bests[..self.keys.len()].iter().enumerate() {
            packets[count % TOGETHER] = packet;
            count += usize::from(!best.stands_before(first));
        }
        if 4 * count > 3 * self.keys.len() {
            return self.end(last);
        }
        let packets = &packets[..count];
        let keys: ArrayVec<_, TOGETHER> = packets.iter().map(|packet| self.keys[*packet]).collect();
        let mut bests = [Best::NONE; TOGETHER];
        packets.iter().zip(&mut bests).for_each(|(packet, best)| *best = self.bests[*packet]);
        Batch::of(&keys, &mut bests).end(last);
        packets.iter().zip(&bests).for_each(|(packet, best)| self.bests[*packet] = *best);
    }

    /// At the parts of tiers that packets go to. All are fetched before the first is read, and then all that is behind them.
    #[inline(never)]
    fn look(&mut self, sieve: &'a Sieve<W>, told: &Told, steps: &Steps) {
        let mut parts = Parts::new();
        self.reach(sieve, told, steps, &mut parts);
        // Which kind a part is nobody could foretell, so that it is no branch: numbers of strips from the front, of all others from the back.
        let mut order = [0; WAYS];
        let (mut strips, mut others) = (0, 0);
        for (number, (_, part)) in (0_u8..).zip(&parts) {
            part.strip().prefetch();
            order[strips % WAYS] = number;
            order[(WAYS - 1 - others) % WAYS] = number;
            strips += usize::from(part.is_strip());
            others += usize::from(!part.is_strip());
        }
        self.here.iter_mut().for_each(ArrayVec::clear);
        for number in &order[WAYS - others..] {
            let Some((packet, part)) = parts.get(usize::from(*number)) else { continue };
            part.deep().prefetch();
            // No list is longer than `parts`.
            self.here[kind(part.deep())].push(Way { packet: *packet, node: part.deep() });
        }
        self.compare_strips(&parts, &order[..strips]);
        if others > 0 {
            self.go_on();
        }
    }

    /// Fetches the parts, and lists them.
    #[inline(always)]
    fn reach(&mut self, sieve: &'a Sieve<W>, told: &Told, steps: &Steps, parts: &mut Parts<'a, W>) {
        for (tier, packet) in steps.each() {
            let slot = told.slot(tier, packet);
            if let Some(part) = sieve.tiers().get(tier).and_then(|tier| tier.part(slot)) {
                uxfrm_packet::prefetch(part);
                if parts.try_push((packet, part)).is_err()
                    && let Some(key) = self.keys.get(packet)
                {
                    part.find(key, &mut self.bests[packet % TOGETHER]);
                }
            }
        }
    }

    /// With the strips that those of some parts are which have these numbers.
    #[inline(never)]
    fn compare_strips(&mut self, parts: &[(usize, &'a Part<W>)], numbers: &[u8]) {
        let Self { keys, bests, .. } = self;
        let none = Key { words: W::NOTHING, extra: 0 };
        let key = |packet: usize| keys.get(packet).unwrap_or(&none);
        let some = numbers.iter().filter_map(|number| parts.get(usize::from(*number)));
        let pairs = some.clone().map(|(packet, part)| (part.strip().block(), &key(*packet).words));
        let mut fits = [0; WAYS];
        W::fit_each(pairs, &mut fits);
        for ((packet, part), fits) in some.zip(&fits) {
            part.strip().consider(*fits, key(*packet), &mut bests[packet % TOGETHER]);
        }
    }

    /// Down the trees of the parts that are too large.
    #[inline(never)]
    fn go_on(&mut self) {
        self.here[EMPTY].clear();
        if !self.here[CUT].is_empty() {
            self.descend_to_the_end(unless_behind);
            self.fetch();
        }
        self.compare();
    }
}
