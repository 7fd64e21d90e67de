//! Many neighbours that look as the latest state's packets do, outside and inside, and may pass: they are opened and framed where they lie, and what
//! holds for all of them is looked at once.
//!
//! Wherever one turns out to be otherwise, it goes on the long way from there, and all behind it with it: none overtakes another.

use std::vec::Drain;

use arrayvec::ArrayVec;
use uxfrm_crypto::{Authenticity, OpenJob};
use uxfrm_packet::{Checksum, PacketBuf, Protocol, Segments};

use super::deliver::is_train;
use super::inner::{Bare, Inner};
use super::outer::{Claimed, Known};
use super::used::Standing;
use super::{BYTES_AHEAD, Fate, Inbound, Item, NOTES_AHEAD, PIECE, narrow};
use crate::worker::Bench;
use crate::{AnswerId, DropReason, HostPort, Mode, Stage, UdpSuper, Watch};

/// Fewer are not worth it: a crypto library wants many at once.
const WORTH: usize = 16;

/// For so many batches it is not tried again where most turned out to be of other flows, or to be dropped.
const RESTS: u32 = 16;

type Claims = ArrayVec<Claimed, PIECE>;
type Bares = ArrayVec<Bare, PIECE>;

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
        if rest.len() < WORTH || !self.marks.is_empty() {
            return false;
        }
        if self.rests > 0 {
            self.rests -= 1;
            return false;
        }
        self.used.begin(bench.snapshot);
        let claims = self.resume().map(|used| (used, self.claim_run(used, rest.as_slice())));
        let run = claims.filter(|(_, claims)| claims.len() >= WORTH).and_then(|(used, claims)| {
            let answer = self.passing(used, bench)?;
            Some((used, claims, answer))
        });
        let is_run = run.is_some();
        if let Some((used, claims, answer)) = run {
            self.together.extend(rest.take(claims.len()));
            self.carry_run(used, &claims, answer, bench, watch);
        }
        self.finish_some();
        is_run
    }

    /// 2 Peel, 3 State, 4 Replay check: what is to be opened of the first packets, up to one that looks otherwise.
    #[inline(never)]
    fn claim_run(&self, used: u32, packets: &[PacketBuf]) -> Claims {
        let mut claims = Claims::new();
        let Some(known) = Known::of(&self.used, used).filter(|_| self.inner(used).is_some()) else {
            return claims;
        };
        packets.iter().take(NOTES_AHEAD).for_each(PacketBuf::prefetch);
        for (at, packet) in packets.iter().take(PIECE).enumerate() {
            packets.get(at + NOTES_AHEAD).inspect(|packet| packet.prefetch());
            packets.get(at + BYTES_AHEAD).inspect(|packet| packet.prefetch_bytes());
            let claimed = known.look(packet.bytes(), packet.mark, packet.udp.as_ref());
            let Some(claimed) = claimed.filter(|_| !is_train(packet)) else { break };
            claims.push(claimed);
        }
        claims
    }

    /// How a tunnel's packets look inside.
    #[inline(always)]
    fn inner(&self, used: u32) -> Option<&Inner> {
        let looks = self.used.looks(used)?.inner.as_ref();
        looks.filter(|_| self.used[used as usize].around.mode == Mode::Tunnel)
    }

    /// 8 Check: the policies under which packets pass that look inside as an earlier one of this state; `None` if that is not known.
    #[inline]
    fn passing(&mut self, used: u32, bench: &Bench<'_>) -> Option<AnswerId> {
        let state = &self.used[used as usize];
        let Inner { flow, direction, .. } = self.used.looks(used)?.inner.as_ref()?;
        let known = self.policies.know(&bench.snapshot.spd, *direction, flow, state.around.spi);
        state.lets_pass(known).then_some(known.answer)
    }

    /// 5 Open to 10 Transmit.
    #[inline(always)]
    fn carry_run(
        &mut self,
        used: u32,
        claims: &Claims,
        answer: AnswerId,
        bench: &mut Bench<'_>,
        watch: &mut impl Watch,
    ) {
        self.traffic.received += claims.len() as u64;
        watch.passed(Stage::Peel);
        self.open_run(used, claims, bench);
        watch.passed(Stage::Open);
        let bares = self.strip_run(used, claims);
        let accepted = self.accept_run(used, &claims[..bares.len()]);
        let bares = &bares[..accepted];
        let all_pass = self.charge_run(used, bares, bench);
        watch.passed(Stage::Accept);
        let left = accepted < claims.len();
        if left {
            self.leave(used, claims, accepted);
        }
        if all_pass {
            self.deliver_run(used, bares, answer, bench);
        } else {
            self.deliver_some(used, bares, answer, bench);
        }
        watch.passed(Stage::Deliver);
        if left {
            self.go_on_opened(bench, watch);
        }
    }

    /// 5 Open: the verdicts.
    #[inline(never)]
    fn open_run(&mut self, used: u32, claims: &Claims, bench: &mut Bench<'_>) {
        let Self { together, used: states, verdicts, traffic, .. } = self;
        let state = &states[used as usize];
        let key = state.sa.key();
        let mut jobs: ArrayVec<OpenJob<'_>, PIECE> = ArrayVec::new();
        let mut received = 0;
        for (packet, claimed) in together.iter_mut().zip(claims) {
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
    fn strip_run(&self, used: u32, claims: &Claims) -> Bares {
        let mut bares = Bares::new();
        let Some(inner) = self.inner(used) else { return bares };
        let around = self.used[used as usize].around;
        let opened = self.together.iter().zip(claims).zip(&self.verdicts);
        for ((packet, Claimed { at, len, tos, .. }), verdict) in opened {
            if *verdict != Authenticity::Authentic {
                break;
            }
            let Some(bare) = inner.bare(&around, (*at, *len, *tos), packet.mark, packet) else {
                break;
            };
            bares.push(bare);
        }
        bares
    }

    /// 6 Replay advance, of authentic packets, up to the first that is not to be taken. Says how many.
    #[inline(never)]
    fn accept_run(&self, used: u32, claims: &[Claimed]) -> usize {
        let window = self.used[used as usize].sa.replay();
        let mut accepted = 0;
        while let [first, ..] = &claims[accepted..] {
            accepted +=
                match window.accept_some(claims[accepted..].iter().map(|claimed| claimed.number)) {
                    0 if window.accept(first.number).is_err() => break,
                    0 => 1,
                    taken => taken,
                };
        }
        accepted
    }

    /// Charges the state for all of them. Whether all pass.
    #[inline(always)]
    fn charge_run(&mut self, used: u32, bares: &[Bare], bench: &mut Bench<'_>) -> bool {
        let state = &mut self.used[used as usize];
        state.packets = narrow(bares.len());
        state.bytes = bares.iter().map(|bare| u64::from(bare.carried)).sum();
        bares.is_empty() || state.charge(bench) == Standing::Good
    }

    /// 9 Coalesce, 10 Transmit.
    #[inline(never)]
    fn deliver_run(&mut self, used: u32, bares: &[Bare], answer: AnswerId, bench: &mut Bench<'_>) {
        let joins = self.joins(used, bench.settings.host);
        let mut bytes = 0;
        for (packet, bare) in self.together.iter_mut().zip(bares) {
            bytes += u64::from(bare.len);
            bare.frame(packet);
        }
        let packets = narrow(bares.len());
        self.policies.count_first(answer, packets, bytes);
        self.traffic.sent += u64::from(packets);
        self.traffic.sent_bytes += bytes;
        if !joins {
            return bench.out.host.append(&mut self.together);
        }
        for packet in self.together.drain(..) {
            self.coalescer.offer(packet, bench.pool, &mut bench.out.host);
        }
    }

    /// Whether packets that look inside as an earlier one of this state may become parts of super-packets.
    fn joins(&self, used: u32, host: HostPort) -> bool {
        match host {
            HostPort::Packets => false,
            HostPort::SuperPackets { udp: UdpSuper::Taken } => true,
            HostPort::SuperPackets { udp: UdpSuper::Refused } => {
                self.inner(used).is_some_and(|inner| Protocol(inner.flow.protocol) != Protocol::UDP)
            }
        }
    }

    /// The same, where not all pass because of their state's limits.
    #[cold]
    fn deliver_some(&mut self, used: u32, bares: &[Bare], answer: AnswerId, bench: &mut Bench<'_>) {
        let packets = std::mem::take(&mut self.together);
        let mut passing = Bares::new();
        for (packet, bare) in packets.into_iter().zip(bares) {
            if self.may_pass(used, bare.carried, bench) {
                self.together.push(packet);
                passing.push(*bare);
            } else {
                self.discard(packet, DropReason::InStateExpired, bench);
            }
        }
        self.deliver_run(used, &passing, answer, bench);
    }

    /// Makes items of packets that were opened, from the first on that is not as an earlier one was.
    #[inline(never)]
    fn leave(&mut self, used: u32, claims: &Claims, accepted: usize) {
        let Self { together, used: states, items, sealed, buffers, verdicts, rests, .. } = self;
        if accepted < claims.len() / 2 {
            *rests = RESTS;
        }
        verdicts.drain(..accepted);
        let known = Known::of(states, used);
        for ((packet, claimed), place) in
            together.drain(accepted..).zip(&claims[accepted..]).zip(0..)
        {
            let item = Item::new(place, 0, packet.len(), packet.mark);
            // It was known when they were claimed.
            sealed.extend(known.map(|known| known.sealed(claimed, place, &item)));
            items.push(Item { fate: Fate::Sealed, ..item });
            buffers.push(Some(packet));
        }
    }
}

impl Bare {
    /// Its buffer has nothing but the packet in it and on it from now on.
    #[inline(always)]
    fn frame(&self, packet: &mut PacketBuf) {
        packet.frame(self.at as usize, self.len as usize);
        (packet.segments, packet.udp, packet.mark) = (Segments::One, None, self.mark);
        packet.checksum = Checksum::AsIs;
    }
}
