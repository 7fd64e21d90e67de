//! Decrypting a batch in place, and what a state has to say about each packet afterwards.

use arrayvec::ArrayVec;
use uxfrm_crypto::{Authenticity, Crypter, OpenJob, SeqHigh};

use super::used::{Standing, Used};
use super::{Fate, Inbound, Sealed};
use crate::worker::Bench;
use crate::{Charge, DropReason, Event};

/// Enough for the library's bursts, little enough for the stack and the first-level cache.
const CHUNK: usize = 64;

impl Inbound {
    /// 5 Open.
    pub(super) fn open(&mut self, bench: &mut Bench<'_>) {
        self.verdicts.clear();
        let mut jobs: ArrayVec<OpenJob<'_>, CHUNK> = ArrayVec::new();
        let mut sealed = self.sealed.as_slice();
        let mut latest = None;
        for (place, buffer) in self.buffers.iter_mut().enumerate() {
            let Some(buffer) = buffer else { continue };
            let (mut rest, mut passed) = (buffer.bytes_mut(), 0);
            while let [next, others @ ..] = sealed
                && next.buffer as usize == place
            {
                sealed = others;
                let (at, len) = (next.at as usize, next.len as usize);
                let (_, from) = std::mem::take(&mut rest).split_at_mut(at - passed);
                let (esp, behind) = from.split_at_mut(len);
                (rest, passed) = (behind, at + len);
                let verdict = next.opener.verdict();
                // Verdicts are in order.
                if jobs.is_full() || verdict.is_some() && !jobs.is_empty() {
                    run(bench.crypter, &mut jobs, &mut self.verdicts);
                }
                if let Some(verdict) = verdict {
                    self.verdicts.push(verdict);
                    continue;
                }
                // Neighbours often are of one state.
                let (key, extended) = match latest {
                    Some((used, key, extended)) if used == next.used => (key, extended),
                    Some(_) | None => {
                        let used = &self.used[next.used as usize];
                        let (key, extended) = (used.sa.key(), used.extended);
                        latest = Some((next.used, key, extended));
                        (key, extended)
                    }
                };
                let high = if extended {
                    SeqHigh::Esn(upper_half(next.number.number()))
                } else {
                    SeqHigh::None
                };
                jobs.push(OpenJob::in_place(key, high, esp));
            }
        }
        run(bench.crypter, &mut jobs, &mut self.verdicts);
    }

    /// 6 Replay advance, 7 Strip; and the states are charged. Whether there may be more ESP in some.
    pub(super) fn accept(&mut self, bench: &mut Bench<'_>) -> bool {
        let mut sealed = std::mem::take(&mut self.sealed);
        let verdicts = std::mem::take(&mut self.verdicts);
        let more = self.accept_each(&mut sealed, &verdicts, bench);
        self.verdicts = verdicts;
        self.charge(&mut sealed, bench);
        if !self.movers.is_empty() {
            self.tell_of_moves(&sealed, bench);
        }
        sealed.clear();
        self.sealed = sealed;
        more
    }

    /// Packet by packet; of neighbours that came by one state its window takes the numbers together.
    fn accept_each(
        &mut self,
        sealed: &mut [Sealed],
        verdicts: &[Authenticity],
        bench: &mut Bench<'_>,
    ) -> bool {
        let Some(first) = sealed.first() else { return false };
        let mut load = self.used.load(first.used);
        // Of how many of the next authentic packets the numbers are taken already.
        let (mut fresh, mut more) = (0, false);
        for at in 0..sealed.len().min(verdicts.len()) {
            if sealed[at].used != load.used {
                self.used.note(&load);
                load = self.used.load(sealed[at].used);
            }
            let accepted = match verdicts[at] {
                Authenticity::Authentic if fresh > 0 => Ok(fresh - 1),
                Authenticity::Authentic => self.accept_next(sealed, verdicts, at),
                Authenticity::Forged => Err(DropReason::InForged),
                Authenticity::Runt | Authenticity::Pending => Err(DropReason::InRunt),
            };
            let outcome = accepted.and_then(|left| {
                fresh = left;
                self.strip(&mut sealed[at], &mut load, bench)
            });
            let item = sealed[at].item as usize;
            match outcome {
                Ok(fate) => {
                    more |= fate == Fate::New;
                    self.items[item].fate = fate;
                }
                Err(reason) => {
                    self.used[load.used as usize].sa.count_failure(reason);
                    self.drop(item, reason, bench);
                }
            }
        }
        self.used.note(&load);
        more
    }

    /// Has its window take the number of an authentic packet, with those of authentic neighbours if it can. Of these, how many.
    #[inline(never)]
    fn accept_next(
        &self,
        sealed: &[Sealed],
        verdicts: &[Authenticity],
        at: usize,
    ) -> Result<usize, DropReason> {
        let Sealed { used, number, .. } = sealed[at];
        let window = self.used[used as usize].sa.replay();
        let of_same = |packet: &&Sealed| packet.used == used;
        if sealed.get(at + 1).as_ref().is_some_and(of_same) {
            let run = sealed[at..].iter().take_while(of_same).zip(&verdicts[at..]);
            let received = run.filter(|(_, verdict)| **verdict == Authenticity::Authentic);
            let taken = window.accept_some(received.map(|(packet, _)| packet.number));
            if let Some(neighbours) = taken.checked_sub(1) {
                return Ok(neighbours);
            }
        }
        window.accept(number).map(|()| 0)
    }

    /// Charges each state once for all its packets, and one by one where a limit lies between them.
    fn charge(&mut self, sealed: &mut [Sealed], bench: &mut Bench<'_>) {
        let mut all_pass = true;
        self.used.each_met(&mut |used| {
            if used.packets > 0 {
                all_pass &= used.charge(bench) == Standing::Good;
            }
        });
        if all_pass {
            return;
        }
        for packet in sealed {
            let passes = |bytes| self.may_pass(packet, bytes, bench);
            if packet.carried.is_none_or(passes) {
                continue;
            }
            packet.carried = None;
            if self.items[packet.item as usize].fate != Fate::Gone {
                self.drop(packet.item as usize, DropReason::InStateExpired, bench);
            }
        }
    }

    /// Whether a packet with so many bytes passes where not all do.
    fn may_pass(&self, packet: &Sealed, bytes: u32, bench: &mut Bench<'_>) -> bool {
        let used = &self.used[packet.used as usize];
        let id = used.sa.id();
        match used.standing {
            Standing::Good => true,
            Standing::Expired => false,
            Standing::OneByOne => match used.sa.charge(1, bytes.into(), bench.now) {
                Charge::Ok => true,
                Charge::SoftLimit => {
                    bench.tell(Event::SaSoftLimit(id));
                    true
                }
                Charge::HardLimit => {
                    bench.tell(Event::SaHardLimit(id));
                    false
                }
                Charge::Crossing | Charge::Expired => false,
            },
        }
    }
}

impl Used {
    /// Charges it for what its packets of this round carried.
    #[inline]
    fn charge(&mut self, bench: &mut Bench<'_>) -> Standing {
        let (packets, bytes) = (std::mem::take(&mut self.packets), std::mem::take(&mut self.bytes));
        self.standing = match self.sa.charge(packets, bytes, bench.now) {
            Charge::Ok => Standing::Good,
            Charge::SoftLimit => {
                bench.tell(Event::SaSoftLimit(self.sa.id()));
                Standing::Good
            }
            Charge::Crossing => Standing::OneByOne,
            Charge::HardLimit => {
                bench.tell(Event::SaHardLimit(self.sa.id()));
                Standing::Expired
            }
            Charge::Expired => Standing::Expired,
        };
        self.standing
    }
}

/// Opens and forgets what one call of the library takes, and notes what became of it.
fn run(
    crypter: &mut Crypter,
    jobs: &mut ArrayVec<OpenJob<'_>, CHUNK>,
    verdicts: &mut Vec<Authenticity>,
) {
    crypter.open(jobs);
    verdicts.extend(jobs.iter().map(|job| job.verdict));
    jobs.clear();
}

fn upper_half(number: u64) -> u32 {
    (number >> 32) as u32
}
