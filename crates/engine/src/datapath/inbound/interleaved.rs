//! Neighbours of many states each of which looks as its state's packets do, and may pass: they are opened and framed where they lie, as on the
//! [express](super::run) way, and each state is charged once.
//!
//! Wherever one turns out to be otherwise, it goes on the long way from there, and all behind it too: none overtakes another.

use std::vec::Drain;

use arrayvec::ArrayVec;
use uxfrm_crypto::{Authenticity, OpenJob};
use uxfrm_packet::{PacketBuf, Protocol, Version};

use super::deliver::{is_train, joins};
use super::inner_template::{Bare, Inner};
use super::open::charge;
use super::outer_template::{Claimed, Known};
use super::run::WORTH;
use super::rx_cache::Standing;
use super::rx_record::Regular;
use super::slow::outer;
use super::{BYTES_AHEAD, Fate, Inbound, Item, NOTES_AHEAD, PIECE, narrow};
use crate::datapath::back_off::Pause;
use crate::datapath::context::Bench;
use crate::{AnswerId, DropReason, HostPort, Stage, Watch};

/// Neighbours of many states, by their places in what is taken of a batch.
#[derive(Debug)]
pub(super) struct Mixed {
    packets: Vec<PacketBuf>,
    /// Of those that are opened together.
    claims: Vec<Claim>,
    /// Of all that were opened and accepted, with the place of the state's tally.
    bares: Vec<(Bare, u32)>,
    tallies: Vec<Tally>,
    /// Where most turned out to be otherwise.
    pause: Pause,
}

/// What is to be opened, of the state in a place.
#[derive(Clone, Copy, Debug)]
struct Claim {
    used: u32,
    tally: u32,
    claimed: Claimed,
}

/// What one state carried, and what of it passes.
#[derive(Clone, Copy, Debug)]
struct Tally {
    used: u32,
    answer: AnswerId,
    version: Version,
    standing: Standing,
    packets: u32,
    carried: u64,
    bytes: u64,
}

impl Mixed {
    pub(super) fn new() -> Self {
        Self {
            packets: Vec::with_capacity(uxfrm_packet::BATCH),
            claims: Vec::with_capacity(PIECE),
            bares: Vec::with_capacity(uxfrm_packet::BATCH),
            tallies: Vec::with_capacity(uxfrm_packet::BATCH),
            pause: Pause::default(),
        }
    }
}

impl Inbound {
    /// 1 Receive to 10 Transmit, of the packets that `rest` begins with, as far as each looks as its state's do. False, with nothing done, if
    /// they are not many.
    #[inline(never)]
    pub(super) fn run_mixed(
        &mut self,
        rest: &mut Drain<'_, PacketBuf>,
        bench: &mut Bench<'_>,
        watch: &mut impl Watch,
    ) -> bool {
        if rest.len() < WORTH || !self.marks.is_empty() || !self.mixed.pause.is_over() {
            return false;
        }
        self.used.begin(bench.snapshot);
        self.mixed.tallies.clear();
        self.mixed.bares.clear();
        let mut claimed = self.claim_mixed(rest.as_slice(), bench);
        let worth = claimed >= WORTH;
        let mut all = true;
        while worth && all && claimed > 0 {
            self.mixed.packets.extend(rest.take(claimed));
            watch.passed(Stage::Peel);
            self.open_mixed(bench);
            watch.passed(Stage::Open);
            all = self.accept_mixed();
            watch.passed(Stage::Accept);
            claimed = if all { self.claim_mixed(rest.as_slice(), bench) } else { 0 };
        }
        if worth {
            self.deliver_mixed(bench, watch);
        }
        self.finish_some();
        worth
    }

    /// Charges the states, and lets pass what they let. What was opened and not accepted goes the long way.
    fn deliver_mixed(&mut self, bench: &mut Bench<'_>, watch: &mut impl Watch) {
        let is_all = self.leave_mixed();
        if !self.charge_mixed(bench) {
            self.drop_mixed(bench);
        }
        watch.passed(Stage::Accept);
        self.hand_on_mixed(bench);
        watch.passed(Stage::Deliver);
        if !is_all {
            self.go_on_opened(bench, watch);
        }
    }

    /// 2 Peel, 3 State, 4 Replay check: what is to be opened of the first packets, up to one that looks otherwise. Of how many.
    #[inline(never)]
    fn claim_mixed(&mut self, packets: &[PacketBuf], bench: &Bench<'_>) -> usize {
        self.mixed.claims.clear();
        let packets = &packets[..packets.len().min(PIECE)];
        packets.iter().take(NOTES_AHEAD).for_each(PacketBuf::prefetch);
        if self.used.are_far() {
            self.fetch_mixed(packets);
        }
        for (at, packet) in packets.iter().enumerate() {
            packets.get(at + NOTES_AHEAD).inspect(|packet| packet.prefetch());
            packets.get(at + BYTES_AHEAD).inspect(|packet| packet.prefetch_bytes());
            let Some(claim) = self.claim_regular(packet, bench) else { break };
            self.mixed.claims.push(claim);
        }
        self.mixed.claims.len()
    }

    #[inline(always)]
    fn claim_regular(&mut self, packet: &PacketBuf, bench: &Bench<'_>) -> Option<Claim> {
        if is_train(packet) {
            return None;
        }
        let used = self.used.once_of_spi(outer::header_at_a_glance(packet)?.0)?;
        if !self.used.is_regular(used) {
            self.introduce(used, bench)?;
        }
        let regular = self.used.regular_mut(used)?;
        let claimed = regular.look(packet.bytes(), packet.mark, packet.udp.as_ref())?;
        let tally = tally(&mut self.mixed.tallies, used, regular)?;
        Some(Claim { used, tally, claimed })
    }

    /// Asks for all that the packets' states have, step by step, before the first is waited for.
    #[inline(never)]
    fn fetch_mixed(&self, packets: &[PacketBuf]) {
        let Self { used, policies, .. } = self;
        let mut headers: ArrayVec<(u32, u32), PIECE> = ArrayVec::new();
        for (at, packet) in packets.iter().enumerate() {
            packets.get(at + NOTES_AHEAD).inspect(|packet| packet.prefetch());
            packets.get(at + BYTES_AHEAD).inspect(|packet| packet.prefetch_bytes());
            let Some((spi, low)) = outer::header_at_a_glance(packet) else { continue };
            used.prefetch_name(spi);
            headers.push((spi, low));
        }
        let mut places: ArrayVec<(u32, u32), PIECE> = ArrayVec::new();
        for &(spi, low) in &headers {
            let Some(place) = used.once_of_spi(spi) else { continue };
            used.prefetch_regular(place);
            places.push((place, low));
        }
        let mut regulars: ArrayVec<(&Regular, u32), PIECE> = ArrayVec::new();
        for &(place, low) in &places {
            let Some(regular) = used.regular(place) else { continue };
            regular.sa.fetch_active();
            regular.key.prefetch_head();
            policies.fetch(regular.answer);
            regulars.push((regular, low));
        }
        regulars.iter().for_each(|(regular, _)| regular.sa.fetch_live());
        regulars.iter().for_each(|(regular, low)| {
            regular.sa.fetch_window(*low);
            regular.key.prefetch();
        });
    }

    /// Makes a state a regular one, or one again, if all is known for that.
    #[cold]
    fn introduce(&mut self, place: u32, bench: &Bench<'_>) -> Option<()> {
        if self.used.is_regular_still(place) {
            return Some(());
        }
        self.used.doubt(place);
        let used = &self.used[place as usize];
        let looks = self.used.looks(place)?;
        let Inner { flow, direction, .. } = looks.inner.as_ref()?;
        let spi = used.around.spi;
        let known = self.policies.know(&bench.snapshot.spd, *direction, flow, spi);
        if !used.lets_pass(known) {
            return None;
        }
        if self.used.is_regular_again(place, known.answer) {
            return Some(());
        }
        let regular =
            Regular::of(&self.used[place as usize], self.used.looks(place)?, known.answer)?;
        self.used.note_regular(place, regular);
        Some(())
    }

    /// 5 Open: the verdicts.
    #[inline(never)]
    fn open_mixed(&mut self, bench: &mut Bench<'_>) {
        let Self { mixed, used, verdicts, traffic, .. } = self;
        let Mixed { packets, claims, .. } = mixed;
        let mut jobs: ArrayVec<OpenJob<'_>, PIECE> = ArrayVec::new();
        let (first, mut received) = (packets.len() - claims.len(), 0);
        for (packet, claim) in packets[first..].iter_mut().zip(&*claims) {
            received += packet.len();
            let Claimed { at, len, number, .. } = claim.claimed;
            // It was read to its end before, and is a regular state's.
            let places = at as usize..(at + len) as usize;
            let Some(esp) = packet.bytes_mut().get_mut(places) else { break };
            let Some(regular) = used.regular(claim.used) else { break };
            jobs.push(OpenJob::in_place(&regular.key, regular.high_of(number), esp));
        }
        traffic.received += claims.len() as u64;
        traffic.received_bytes += received as u64;
        bench.crypter.open(&mut jobs);
        verdicts.clear();
        verdicts.extend(jobs.iter().map(|job| job.verdict));
    }

    /// 7 Strip, 6 Replay advance, of packets that are authentic and look inside as their state's do, up to the first that is not so. Whether all are.
    #[inline(never)]
    fn accept_mixed(&mut self) -> bool {
        let Self { mixed, used, verdicts, .. } = self;
        let Mixed { packets, claims, bares, tallies, .. } = mixed;
        let (first, before) = (packets.len() - claims.len(), bares.len());
        let opened = packets[first..].iter().zip(&*claims).zip(&*verdicts);
        for ((packet, Claim { used: place, tally, claimed }), verdict) in opened {
            let Some(regular) = used.regular(*place) else { break };
            let bare = regular.bare(claimed, packet);
            let Some(bare) = bare.filter(|_| *verdict == Authenticity::Authentic) else { break };
            if regular.sa.replay().accept(claimed.number).is_err() {
                break;
            }
            tallies[*tally as usize].add(&bare);
            bares.push((bare, *tally));
        }
        bares.len() - before == claims.len()
    }

    /// Makes items of those that were opened and not accepted: the first of them is not as others of its state are. Whether there are none.
    #[inline(never)]
    fn leave_mixed(&mut self) -> bool {
        let Self { mixed, used, items, sealed, buffers, verdicts, .. } = self;
        let Mixed { packets, claims, bares, pause, .. } = mixed;
        let left = packets.len() - bares.len();
        if left == 0 {
            return true;
        }
        if bares.len() < left {
            pause.begin();
        }
        let accepted = claims.len() - left;
        verdicts.drain(..accepted);
        for ((packet, claim), place) in
            packets.drain(bares.len()..).zip(&claims[accepted..]).zip(0..)
        {
            let item = Item::new(place, 0, packet.len(), packet.mark);
            used.meet(claim.used);
            // It was known when they were claimed.
            let known = Known::of(used, claim.used);
            sealed.extend(known.map(|known| known.sealed(&claim.claimed, place, &item)));
            items.push(Item { fate: Fate::Sealed, ..item });
            buffers.push(Some(packet));
        }
        false
    }

    /// Charges each state for what it carried. Whether all of that passes.
    #[inline(never)]
    fn charge_mixed(&mut self, bench: &mut Bench<'_>) -> bool {
        let Self { mixed, used, arrears, .. } = self;
        let mut all_pass = true;
        for tally in mixed.tallies.iter_mut().filter(|tally| tally.packets > 0) {
            let Some(Regular { sa, debt, .. }) = used.regular_mut(tally.used) else { continue };
            if arrears.note(debt, sa, tally.packets, tally.carried) {
                continue;
            }
            tally.standing = charge(sa, tally.packets, tally.carried, bench);
            all_pass &= tally.standing == Standing::Good;
        }
        all_pass
    }

    /// Drops those of these packets that are beyond their state's limits.
    #[cold]
    fn drop_mixed(&mut self, bench: &mut Bench<'_>) {
        let packets = std::mem::take(&mut self.mixed.packets);
        let bares = std::mem::take(&mut self.mixed.bares);
        for (packet, (bare, place)) in packets.into_iter().zip(bares) {
            let tally = &mut self.mixed.tallies[place as usize];
            let sa = &self.used[tally.used as usize].sa;
            if tally.standing.lets_pass(sa, bare.carried, bench) {
                self.mixed.packets.push(packet);
                self.mixed.bares.push((bare, place));
            } else {
                tally.remove(&bare);
                self.discard(packet, DropReason::InStateExpired, bench);
            }
        }
    }

    /// 8 Check, as it was found out before; 9 Coalesce, 10 Transmit.
    #[inline(never)]
    fn hand_on_mixed(&mut self, bench: &mut Bench<'_>) {
        let Self { mixed, policies, traffic, .. } = self;
        let Mixed { packets, bares, tallies, .. } = mixed;
        for (packet, (bare, _)) in packets.iter_mut().zip(&*bares) {
            bare.frame(packet);
        }
        for tally in tallies.iter().filter(|tally| tally.packets > 0) {
            policies.know_again(tally.version);
            policies.count_first(tally.answer, tally.packets, tally.bytes);
            traffic.sent_bytes += tally.bytes;
        }
        traffic.sent += packets.len() as u64;
        if bench.settings.host == HostPort::Packets {
            return bench.out.host.append(packets);
        }
        self.coalesce_mixed(bench);
    }

    /// 9 Coalesce.
    #[inline(never)]
    fn coalesce_mixed(&mut self, bench: &mut Bench<'_>) {
        let Self { mixed, used, coalescer, .. } = self;
        let Mixed { packets, bares, tallies, .. } = mixed;
        for (packet, (_, tally)) in packets.drain(..).zip(&*bares) {
            let regular = used.regular(tallies[*tally as usize].used);
            let protocol = Protocol(regular.map_or(0, |regular| regular.protocol));
            if joins(bench.settings.host, protocol) {
                coalescer.offer(packet, bench.pool, &mut bench.out.host);
            } else {
                bench.out.host.push(packet);
            }
        }
    }
}

/// The tally of a regular state, which begins with its first packet in a batch, if it receives.
#[inline(always)]
fn tally(tallies: &mut Vec<Tally>, used: u32, regular: &mut Regular) -> Option<u32> {
    if tallies.get(regular.tally as usize).is_none_or(|tally| tally.used != used) {
        regular.sa.receives().ok()?;
        regular.tally = narrow(tallies.len());
        tallies.push(Tally::of(used, regular));
    }
    Some(regular.tally)
}

impl Tally {
    /// Nothing yet.
    #[inline(always)]
    fn of(used: u32, regular: &Regular) -> Self {
        Self {
            used,
            answer: regular.answer,
            version: regular.version(),
            standing: Standing::Good,
            packets: 0,
            carried: 0,
            bytes: 0,
        }
    }

    #[inline(always)]
    fn add(&mut self, bare: &Bare) {
        self.packets += 1;
        self.carried += u64::from(bare.carried);
        self.bytes += u64::from(bare.len);
    }

    fn remove(&mut self, bare: &Bare) {
        self.packets -= 1;
        self.carried -= u64::from(bare.carried);
        self.bytes -= u64::from(bare.len);
    }
}
