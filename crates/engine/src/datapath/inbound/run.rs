//! Many neighbours that look as the latest state's packets do, outside and inside, and may pass: they are opened and framed where they lie, and what
//! holds for all of them is looked at once.
//!
//! Wherever one turns out to be otherwise, it goes on the long way from there, and all behind it with it: none overtakes another.

use std::vec::Drain;

use arrayvec::ArrayVec;
use uxfrm_crypto::{Authenticity, OpenJob};
use uxfrm_packet::{Checksum, PacketBuf, Protocol, Segments};

use super::deliver::{is_train, joins};
use super::inner_template::{Bare, Inner};
use super::outer_template::{Claimed, Known};
use super::rx_cache::{Standing, UsedStates};
use super::{BYTES_AHEAD, Fate, Inbound, Item, NOTES_AHEAD, PIECE, narrow};
use crate::datapath::back_off::Pause;
use crate::datapath::context::Bench;
use crate::{AnswerId, DropReason, Mode, Stage, Watch};

/// Fewer are not worth it: a crypto library wants many at once.
pub(super) const WORTH: usize = 16;

/// Neighbours of one state, by their places in their batch.
#[derive(Debug)]
pub(super) struct Together {
    packets: Vec<PacketBuf>,
    claims: Vec<Claimed>,
    /// Of those that were opened and are as they should be.
    bares: Vec<Bare>,
    /// Where most turned out to be otherwise.
    pause: Pause,
}

impl Inbound {
    /// 1 Receive to 10 Transmit, of the packets that `rest` begins with, as far as they look as the latest state's do. False, with nothing done, if
    /// they are not many.
    #[inline]
    pub(super) fn run_express(
        &mut self,
        rest: &mut Drain<'_, PacketBuf>,
        bench: &mut Bench<'_>,
        watch: &mut impl Watch,
    ) -> bool {
        if rest.len() < WORTH || !self.marks.is_empty() || !self.together.pause.is_over() {
            return false;
        }
        self.used.begin(bench.snapshot);
        let run = self.resume().filter(|used| self.claim_run(*used, rest.as_slice()) >= WORTH);
        let answer = run.and_then(|used| Some((used, self.passing(used, bench)?)));
        if let Some((used, answer)) = answer {
            self.together.packets.extend(rest.take(self.together.claims.len()));
            self.carry_run(used, answer, bench, watch);
        }
        self.finish_some();
        answer.is_some()
    }

    /// 2 Peel, 3 State, 4 Replay check: what is to be opened of the first packets, up to one that looks otherwise. Of how many.
    #[inline(never)]
    fn claim_run(&mut self, used: u32, packets: &[PacketBuf]) -> usize {
        let claims = &mut self.together.claims;
        claims.clear();
        let Some(known) = Known::of(&self.used, used).filter(|_| inner(&self.used, used).is_some())
        else {
            return 0;
        };
        packets.iter().take(NOTES_AHEAD).for_each(PacketBuf::prefetch);
        for (at, packet) in packets.iter().take(PIECE).enumerate() {
            packets.get(at + NOTES_AHEAD).inspect(|packet| packet.prefetch());
            packets.get(at + BYTES_AHEAD).inspect(|packet| packet.prefetch_bytes());
            let claimed = known.look(packet.bytes(), packet.mark, packet.udp.as_ref());
            let Some(claimed) = claimed.filter(|_| !is_train(packet)) else { break };
            claims.push(claimed);
        }
        claims.len()
    }

    /// 8 Check: the policies under which packets pass that look inside as an earlier one of this state; `None` if that is not known.
    #[inline]
    fn passing(&mut self, used: u32, bench: &Bench<'_>) -> Option<AnswerId> {
        let state = &self.used[used as usize];
        let Inner { flow, direction, .. } = inner(&self.used, used)?;
        let known = self.policies.know(&bench.snapshot.spd, *direction, flow, state.around.spi);
        state.lets_pass(known).then_some(known.answer)
    }

    /// 5 Open to 10 Transmit.
    #[inline(always)]
    fn carry_run(
        &mut self,
        used: u32,
        answer: AnswerId,
        bench: &mut Bench<'_>,
        watch: &mut impl Watch,
    ) {
        self.traffic.received += self.together.claims.len() as u64;
        watch.passed(Stage::Peel);
        self.open_run(used, bench);
        watch.passed(Stage::Open);
        self.strip_run(used);
        self.accept_run(used);
        let all_pass = self.charge_run(used, bench);
        watch.passed(Stage::Accept);
        let is_all = self.together.bares.len() == self.together.claims.len();
        if !is_all {
            self.leave(used);
        }
        if !all_pass {
            self.drop_some(used, bench);
        }
        // A policy that nothing met was not used.
        if !self.together.bares.is_empty() {
            self.deliver_run(used, answer, bench);
        }
        watch.passed(Stage::Deliver);
        if !is_all {
            self.go_on_opened(bench, watch);
        }
    }

    /// 5 Open: the verdicts.
    #[inline(never)]
    fn open_run(&mut self, used: u32, bench: &mut Bench<'_>) {
        let Self { together, used: states, verdicts, traffic, .. } = self;
        let state = &states[used as usize];
        let key = state.sa.key();
        let mut jobs: ArrayVec<OpenJob<'_>, PIECE> = ArrayVec::new();
        let mut received = 0;
        for (packet, claimed) in together.packets.iter_mut().zip(&together.claims) {
            received += packet.len();
            // It was read to its end before.
            let Some((_, esp)) = packet.bytes_mut().split_at_mut_checked(claimed.at as usize)
            else {
                break;
            };
            let Some((esp, _)) = esp.split_at_mut_checked(claimed.len as usize) else { break };
            jobs.push(OpenJob::in_place(key, state.high_of(claimed.number), esp));
        }
        traffic.received_bytes += received as u64;
        bench.crypter.open(&mut jobs);
        verdicts.clear();
        verdicts.extend(jobs.iter().map(|job| job.verdict));
    }

    /// 7 Strip, of packets that are authentic and look inside as an earlier one of their state, up to the first that is not so.
    #[inline(never)]
    fn strip_run(&mut self, used: u32) {
        let Together { packets, claims, bares, .. } = &mut self.together;
        bares.clear();
        let Some(inner) = inner(&self.used, used) else { return };
        let around = self.used[used as usize].around;
        let opened = packets.iter().zip(claims).zip(&self.verdicts);
        for ((packet, Claimed { at, len, tos, .. }), verdict) in opened {
            if *verdict != Authenticity::Authentic {
                break;
            }
            let Some(bare) = inner.bare(&around, (*at, *len, *tos), packet.mark, packet) else {
                break;
            };
            bares.push(bare);
        }
    }

    /// 6 Replay advance, of these, up to the first that is not to be taken.
    #[inline(never)]
    fn accept_run(&mut self, used: u32) {
        let window = self.used[used as usize].sa.replay();
        let Together { claims, bares, .. } = &mut self.together;
        let (claims, mut accepted) = (&claims[..bares.len()], 0);
        while let [first, ..] = &claims[accepted..] {
            let numbers = claims[accepted..].iter().map(|claimed| claimed.number);
            accepted += match window.accept_some(numbers) {
                0 if window.accept(first.number).is_err() => break,
                0 => 1,
                taken => taken,
            };
        }
        bares.truncate(accepted);
    }

    /// Charges the state for these. Whether all pass.
    #[inline(always)]
    fn charge_run(&mut self, used: u32, bench: &mut Bench<'_>) -> bool {
        let (bares, state) = (&self.together.bares, &mut self.used[used as usize]);
        state.packets = narrow(bares.len());
        state.bytes = bares.iter().map(|bare| u64::from(bare.carried)).sum();
        bares.is_empty() || state.charge(bench) == Standing::Good
    }

    /// Makes items of the others, which were opened: the first of them is not as an earlier one was.
    #[inline(never)]
    fn leave(&mut self, used: u32) {
        let Self { together, used: states, items, sealed, buffers, verdicts, .. } = self;
        let Together { packets, claims, bares, pause } = together;
        let accepted = bares.len();
        if accepted < claims.len() / 2 {
            pause.begin();
        }
        verdicts.drain(..accepted);
        let known = Known::of(states, used);
        for ((packet, claimed), place) in
            packets.drain(accepted..).zip(&claims[accepted..]).zip(0..)
        {
            let item = Item::new(place, 0, packet.len(), packet.mark);
            // It was known when they were claimed.
            sealed.extend(known.map(|known| known.sealed(claimed, place, &item)));
            items.push(Item { fate: Fate::Sealed, ..item });
            buffers.push(Some(packet));
        }
    }

    /// Drops those of these packets that are beyond their state's limits.
    #[cold]
    fn drop_some(&mut self, used: u32, bench: &mut Bench<'_>) {
        let packets = std::mem::take(&mut self.together.packets);
        let bares = std::mem::take(&mut self.together.bares);
        for (packet, bare) in packets.into_iter().zip(bares) {
            if self.may_pass(used, bare.carried, bench) {
                self.together.packets.push(packet);
                self.together.bares.push(bare);
            } else {
                self.discard(packet, DropReason::InStateExpired, bench);
            }
        }
    }

    /// 9 Coalesce, 10 Transmit.
    #[inline(never)]
    fn deliver_run(&mut self, used: u32, answer: AnswerId, bench: &mut Bench<'_>) {
        let Together { packets, bares, .. } = &mut self.together;
        let mut bytes = 0;
        for (packet, bare) in packets.iter_mut().zip(&*bares) {
            bytes += u64::from(bare.len);
            bare.frame(packet);
        }
        self.policies.count_first(answer, narrow(bares.len()), bytes);
        self.traffic.sent += bares.len() as u64;
        self.traffic.sent_bytes += bytes;
        // A run is let in with a look inside only.
        let protocol = inner(&self.used, used).map_or(0, |inner| inner.flow.protocol);
        if !joins(bench.settings.host, Protocol(protocol)) {
            return bench.out.host.append(packets);
        }
        for packet in packets.drain(..) {
            self.coalescer.offer(packet, bench.pool, &mut bench.out.host);
        }
    }
}

/// How a tunnel's packets look inside.
#[inline(always)]
fn inner(states: &UsedStates, used: u32) -> Option<&Inner> {
    let looks = states.looks(used)?.inner.as_ref();
    looks.filter(|_| states[used as usize].around.mode == Mode::Tunnel)
}

impl Together {
    pub(super) fn new() -> Self {
        Self {
            packets: Vec::with_capacity(PIECE),
            claims: Vec::with_capacity(PIECE),
            bares: Vec::with_capacity(PIECE),
            pause: Pause::default(),
        }
    }
}

impl Bare {
    /// Its buffer has nothing but the packet in it and on it from now on.
    #[inline(always)]
    pub(super) fn frame(&self, packet: &mut PacketBuf) {
        packet.frame(self.at as usize, self.len as usize);
        (packet.segments, packet.udp, packet.mark) = (Segments::One, None, self.mark);
        packet.checksum = Checksum::AsIs;
    }
}
