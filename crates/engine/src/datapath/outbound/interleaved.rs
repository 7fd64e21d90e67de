//! Packets of many flows in turn, to each of which nothing is done but that a state puts IPv4 around it: each is held against one cache line of its
//! [bundle's](Exit), and wrapped and sealed where it lies, as on the [express](super::run) way. Each state is charged once.
//!
//! Wherever one turns out to be otherwise, it goes on the long way from there, and some behind it too: none overtakes another.

use std::vec::Drain;

use arrayvec::ArrayVec;
use uxfrm_packet::{FlowWords, PacketBuf};

use super::pre_parsed::is_untouched;
use super::seal_jobs::{CHUNK, Jobs};
use super::{BYTES_AHEAD, NOTES_AHEAD, Numbering, Outbound, fold_half, narrow};
use crate::bundle::{BundleCache, Grant};
use crate::datapath::back_off::Pause;
use crate::datapath::context::Bench;
use crate::esp::headers::Stamp;
use crate::flow_cache::{Known, Trail};
use crate::{AnswerId, Ruling, Stage, Watch};

/// Fewer are not worth it: a crypto library wants many at once.
const WORTH: usize = 16;
/// Packets that go the long way where one is otherwise.
pub(super) const FEW: usize = 4;
/// So many may go another way before as many must have gone this one: one that is otherwise, and too few before it.
const CREDIT: usize = WORTH + FEW;
/// Neighbours of one flow, of which there are more than so many on the average, go another way.
const IN_A_ROW: usize = 4;
/// Packets whose states are asked for together.
const PIECE: usize = 64;

/// What is known of packets on this way, by their places among them.
#[derive(Debug, Default)]
pub(super) struct Mixed {
    /// Whether packets of late were of many flows in turn.
    expected: bool,
    claims: Vec<Claim>,
    shares: Vec<Share>,
    /// By account.
    places: Vec<Places>,
    /// Packets of other policies than their share's, with their bytes.
    others: Vec<(AnswerId, u32)>,
    /// Flows that were looked for; and of all that went this way in this batch.
    flows: usize,
    runs: usize,
    /// Where most turned out to be otherwise.
    pause: Pause,
}

/// Where an account's share of this batch is, if it has one, and where what its state is yet to count.
#[derive(Clone, Copy, Debug, Default)]
struct Places {
    share: u32,
    debt: u32,
}

/// What became of packets that were to go this way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    /// So many did.
    pub(super) together: usize,
    /// So many of those that are left could have, but are too few for it.
    pub(super) first: usize,
}

/// Where bundles and states are, mostly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Distance {
    /// At hand.
    Near,
    /// In memory: they are asked for before they are needed.
    Far,
}

/// By which bundle a packet leaves, and the share that it has its number from.
#[derive(Clone, Copy, Debug)]
struct Claim {
    bundle: u32,
    share: u32,
}

/// What one state is to carry, and what it gave for that.
#[derive(Clone, Copy, Debug)]
struct Share {
    account: u32,
    bundle: u32,
    answer: AnswerId,
    /// Packets and bytes, and those of them that the policies of `answer` met.
    packets: u32,
    bytes: u64,
    met: u32,
    met_bytes: u64,
    grant: Grant,
}

/// A packet that may go this way, as far as itself says; and what is known of its flow, if that was looked for already.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    trail: Trail,
    len: usize,
    known: Option<Known>,
}

/// A packet of a flow of which all is known.
#[derive(Clone, Copy, Debug)]
struct Found {
    answer: AnswerId,
    bundle: u32,
    len: usize,
}

impl Mixed {
    /// Whether packets are to be looked at for this way first.
    #[inline(always)]
    pub(super) fn is_expected(&mut self) -> bool {
        self.expected && self.pause.is_over()
    }

    /// Tells of a batch that went another way how many runs of one flow there were in it.
    #[inline(always)]
    pub(super) fn expect(&mut self, packets: usize, runs: usize) {
        self.expected = is_worth(packets) && runs * IN_A_ROW > packets;
    }

    /// Tells of a batch in which they were expected how many went this way, and how many another one.
    pub(super) fn judge(&mut self, together: usize, others: usize) {
        if together < others {
            self.pause.begin();
        }
        self.expected = std::mem::take(&mut self.runs) * IN_A_ROW > together;
    }

    fn begin(&mut self, accounts: usize) {
        self.claims.clear();
        self.shares.clear();
        self.others.clear();
        self.flows = 0;
        if self.places.len() < accounts {
            self.places.resize(accounts, Places::default());
        }
    }

    /// Adds a packet to what the state of this account is to carry, by the place of its share; a state that begins to carry must work.
    #[inline(always)]
    fn share(&mut self, account: u32, found: &Found, works: impl Fn() -> bool) -> Option<u32> {
        let Places { share: place, .. } = self.places.get_mut(account as usize)?;
        if self.shares.get(*place as usize).is_none_or(|share| share.account != account) {
            if !works() {
                return None;
            }
            *place = narrow(self.shares.len());
            self.shares.push(Share::new(account, found));
        }
        let share = &mut self.shares[*place as usize];
        share.packets += 1;
        share.bytes += found.len as u64;
        if share.answer == found.answer {
            share.met += 1;
            share.met_bytes += found.len as u64;
        } else {
            self.others.push((found.answer, narrow(found.len)));
        }
        Some(*place)
    }
}

impl Distance {
    #[inline(always)]
    fn of(cache: &BundleCache) -> Self {
        if cache.is_far() { Self::Far } else { Self::Near }
    }
}

impl Share {
    #[inline(always)]
    fn new(account: u32, found: &Found) -> Self {
        let Found { answer, bundle, .. } = *found;
        let grant = Grant::NOTHING;
        Self { account, bundle, answer, packets: 0, bytes: 0, met: 0, met_bytes: 0, grant }
    }
}

impl Outbound {
    /// 1 Receive to 10 Transmit, of the packets that `rest` begins with, as far as all is known of each. Nothing is done if they are few.
    #[inline(never)]
    pub(super) fn send_mixed(
        &mut self,
        rest: &mut Drain<'_, PacketBuf>,
        bench: &mut Bench<'_>,
        watch: &mut impl Watch,
    ) -> Sent {
        self.mixed.begin(self.cache.accounts());
        self.claim_all(rest.as_slice());
        watch.passed(Stage::LookUp);
        let claimed = self.mixed.claims.len();
        if !is_worth(claimed) {
            return Sent { together: 0, first: claimed };
        }
        self.send_left(bench, watch);
        self.together.extend(rest.take(claimed));
        self.receive_mixed(bench);
        watch.passed(Stage::Frame);
        self.numbering = self.grant_mixed(bench);
        watch.passed(Stage::Number);
        match self.numbering {
            Numbering::Whole => self.seal_mixed(bench, watch),
            Numbering::Short => self.seal_mixed_short(bench, watch),
        }
        Sent { together: claimed, first: 0 }
    }

    /// 2 Flow key to 5 PMTU: by which bundle each of the first packets leaves, up to one that is otherwise.
    #[inline(never)]
    fn claim_all(&mut self, packets: &[PacketBuf]) {
        packets.iter().take(NOTES_AHEAD).for_each(PacketBuf::prefetch);
        packets.iter().take(BYTES_AHEAD).for_each(PacketBuf::prefetch_bytes);
        let distance = Distance::of(&self.cache);
        // Filled in where they lie: to hand so many over copies them.
        let (mut candidates, mut found) = (ArrayVec::new(), ArrayVec::new());
        let mut first = 0;
        while first < packets.len() {
            let packets = &packets[first..];
            self.candidates(packets, distance, &mut candidates);
            if distance == Distance::Far {
                self.find_at_home(&mut candidates);
            }
            self.find_all(&candidates, &mut found);
            if distance == Distance::Far {
                self.fetch_exits(&found);
            }
            let claimed =
                found.iter().zip(packets).take_while(|(found, packet)| self.claim(found, packet));
            let claimed = claimed.count();
            first += claimed;
            if claimed < PIECE {
                break;
            }
        }
    }

    /// The first packets that may go this way, up to one that may not.
    #[inline(always)]
    fn candidates(
        &mut self,
        packets: &[PacketBuf],
        distance: Distance,
        candidates: &mut ArrayVec<Candidate, PIECE>,
    ) {
        candidates.clear();
        for (at, packet) in packets.iter().take(PIECE).enumerate() {
            packets.get(at + NOTES_AHEAD).inspect(|packet| packet.prefetch());
            packets.get(at + BYTES_AHEAD).inspect(|packet| packet.prefetch_bytes());
            let words = FlowWords::of(packet.bytes()).filter(|_| is_untouched(packet));
            let Some(words) = words else { break };
            let trail = self.policies.trail(&words, packet);
            if distance == Distance::Far {
                self.policies.fetch_trail(&trail);
            }
            candidates.push(Candidate { trail, len: words.len, known: None });
        }
    }

    /// What is known of their flows, as far as they are where they are likely to be; asks for what these lead to, and for those that are not there.
    #[inline(always)]
    fn find_at_home(&self, candidates: &mut [Candidate]) {
        for Candidate { trail, known, .. } in candidates {
            *known = self.policies.follow(trail);
            match known {
                Some(known) => self.fetch_ahead(*known),
                None => self.policies.fetch_far(trail),
            }
        }
    }

    /// Asks for what a flow leaves by and is counted in.
    #[inline(always)]
    fn fetch_ahead(&self, known: Known) {
        known.bundle().inspect(|bundle| self.cache.fetch_exit(*bundle));
        self.policies.fetch(known.answer);
    }

    /// What is known of their flows, up to one of which too little is.
    #[inline(always)]
    fn find_all(&mut self, candidates: &[Candidate], all: &mut ArrayVec<Found, PIECE>) {
        all.clear();
        let mut before = None;
        for Candidate { trail, len, known } in candidates {
            // Neighbours of one flow are looked for once.
            let found = match (before, all.last()) {
                (Some(before), Some(latest)) if before == trail => Found { len: *len, ..*latest },
                _ => {
                    let known = known.or_else(|| self.policies.follow(trail));
                    let known = known.or_else(|| self.policies.follow_far(trail));
                    let Some(known) = known else { break };
                    let Some(bundle) = known.bundle() else { break };
                    debug_assert_eq!(known.answer.ruling(), Ruling::Protect, "by its bundle");
                    self.mixed.flows += 1;
                    Found { answer: known.answer, bundle, len: *len }
                }
            };
            before = Some(trail);
            all.push(found);
        }
    }

    /// Asks for all that the packets' states have, step by step, before the first is waited for.
    #[inline(always)]
    fn fetch_exits(&self, found: &[Found]) {
        let exits = || found.iter().filter_map(|found| self.cache.exit(found.bundle));
        exits().for_each(|exit| {
            exit.sa.fetch_to_send();
            exit.key.prefetch_head();
        });
        exits().for_each(|exit| exit.sa.fetch_usage());
    }

    #[inline(always)]
    fn claim(&mut self, found: &Found, packet: &PacketBuf) -> bool {
        let exit = self.cache.exit(found.bundle).filter(|exit| exit.takes(packet, found.len));
        let share = exit.and_then(|exit| self.mixed.share(exit.account, found, || exit.works()));
        let claim = share.map(|share| Claim { bundle: found.bundle, share });
        self.mixed.claims.extend(claim);
        claim.is_some()
    }

    /// 1 Receive: counts.
    #[inline(never)]
    fn receive_mixed(&mut self, bench: &Bench<'_>) {
        let Self { mixed, policies, traffic, together, .. } = self;
        mixed.runs += mixed.flows;
        traffic.received += together.len() as u64;
        traffic.received_bytes += together.iter().map(|packet| packet.len() as u64).sum::<u64>();
        policies.count_followed(&bench.snapshot.spd, mixed.flows);
        for share in &mixed.shares {
            policies.count(share.answer, share.met, share.met_bytes);
        }
        for (answer, bytes) in mixed.others.drain(..) {
            policies.count(answer, 1, bytes.into());
        }
    }

    /// 6 Number.
    #[inline(never)]
    fn grant_mixed(&mut self, bench: &mut Bench<'_>) -> Numbering {
        let Self { mixed, cache, arrears, .. } = self;
        let Mixed { claims, shares, places, .. } = mixed;
        fetch_keys(cache, claims, 0);
        let mut numbering = Numbering::Whole;
        for share in shares {
            // Both were there when it was claimed.
            let Some(exit) = cache.exit(share.bundle) else { continue };
            let Some(Places { debt, .. }) = places.get_mut(share.account as usize) else {
                continue;
            };
            share.grant = if arrears.note(debt, &exit.sa, share.packets, share.bytes) {
                Grant::of_noted(&exit.sa, share.packets)
            } else {
                Grant::of(&exit.sa, share.packets, share.bytes, bench)
            };
            if share.grant.left < share.packets {
                numbering = Numbering::Short;
            }
        }
        numbering
    }

    /// 7 Wrap to 10 Transmit.
    #[inline(always)]
    fn seal_mixed(&mut self, bench: &mut Bench<'_>, watch: &mut impl Watch) {
        self.wrap_mixed(bench);
        watch.passed(Stage::Seal);
        self.send_together(bench);
        watch.passed(Stage::Transmit);
    }

    /// 7 Wrap, 8 Seal.
    #[inline(never)]
    fn wrap_mixed(&mut self, bench: &mut Bench<'_>) {
        let Self { mixed, cache, together, failed, ident, traffic, .. } = self;
        let Mixed { claims, shares, .. } = mixed;
        let mut jobs = Jobs::new(bench.crypter, failed);
        for (place, (packet, claim)) in together.iter_mut().zip(&*claims).enumerate() {
            if place % CHUNK == 0 {
                fetch_keys(cache, claims, place + CHUNK);
            }
            let grant = &mut shares[claim.share as usize].grant;
            *ident = ident.wrapping_add(1);
            let stamp = Stamp { sequence: grant.hand_out(1), id: fold_half(*ident) };
            let exit = cache.exit(claim.bundle);
            match exit.and_then(|exit| Some((exit, exit.wrap(packet, stamp)?))) {
                Some((exit, (len, esp))) => {
                    traffic.sent_bytes += len as u64;
                    jobs.push(place, &exit.key, exit.counted(stamp.sequence), esp);
                }
                None => jobs.failed.push(place),
            }
        }
        jobs.run();
    }

    /// Where some get no number each is an item after all.
    #[cold]
    fn seal_mixed_short(&mut self, bench: &mut Bench<'_>, watch: &mut impl Watch) {
        for share in &self.mixed.shares {
            self.cache
                .account(share.account)
                .into_iter()
                .for_each(|account| account.grant = share.grant);
        }
        let mut packets = std::mem::take(&mut self.together);
        let claims = std::mem::take(&mut self.mixed.claims);
        for (packet, claim) in packets.drain(..).zip(&claims) {
            self.admit_granted(packet, claim.bundle, bench);
        }
        (self.together, self.mixed.claims) = (packets, claims);
        self.send_short(bench);
        watch.passed(Stage::Transmit);
    }
}

/// Whether so many packets are worth it.
#[inline(always)]
const fn is_worth(packets: usize) -> bool {
    packets >= WORTH
}

/// Whether the next packets of a batch, of which so many are left, are to be looked at for this way, when so many went it and so many another one.
#[inline(always)]
pub(super) const fn pays(together: usize, others: usize, left: usize) -> bool {
    together + CREDIT > others && is_worth(left)
}

/// Asks for the keys that seal the packets from `first` on next, if they are far away; what leads there is at hand already.
#[inline(always)]
fn fetch_keys(cache: &BundleCache, claims: &[Claim], first: usize) {
    if cache.is_far() {
        let claims = claims.iter().skip(first).take(CHUNK);
        claims.filter_map(|claim| cache.exit(claim.bundle)).for_each(|exit| exit.key.prefetch());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_otherwise_sends_no_batch_another_way_wherever_it_stands() {
        for before in 0..WORTH {
            assert!(pays(0, before + FEW, 64), "too few went together before it: {before}");
        }
        assert!(pays(64, FEW, 64), "many did");
        assert!(!pays(0, WORTH + FEW, 64), "several were otherwise, and none went together");
        assert!(!pays(64, FEW, WORTH - 1), "too few are left");
    }
}
