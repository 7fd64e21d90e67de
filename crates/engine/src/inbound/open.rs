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
        let mut sealed = self.sealed.iter().peekable();
        let mut latest = None;
        for (place, buffer) in self.buffers.iter_mut().enumerate() {
            let Some(buffer) = buffer else { continue };
            let (mut rest, mut passed) = (buffer.bytes_mut(), 0);
            while let Some(next) = sealed.next_if(|next| next.buffer as usize == place) {
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
                        latest = Some((next.used, used.sa.key(), used.extended));
                        (used.sa.key(), used.extended)
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

    /// 6 Replay advance, 7 Strip; and the states are charged.
    pub(super) fn accept(&mut self, bench: &mut Bench<'_>) {
        let mut sealed = std::mem::take(&mut self.sealed);
        let verdicts = std::mem::take(&mut self.verdicts);
        let mut rest = verdicts.as_slice();
        for run in sealed.chunk_by_mut(|a, b| a.used == b.used) {
            let (these, behind) = rest.split_at(run.len());
            rest = behind;
            self.accept_run(run, these, bench);
        }
        self.verdicts = verdicts;
        self.charge(&mut sealed, bench);
        if !self.movers.is_empty() {
            self.tell_of_moves(&sealed, bench);
        }
        sealed.clear();
        self.sealed = sealed;
    }

    /// Neighbours that came by one state: its window takes their numbers together.
    fn accept_run(&mut self, run: &mut [Sealed], verdicts: &[Authenticity], bench: &mut Bench<'_>) {
        let mut fresh = 0;
        for at in 0..run.len().min(verdicts.len()) {
            let outcome = match verdicts[at] {
                Authenticity::Authentic => {
                    if fresh == 0 {
                        fresh = self.accept_some(&run[at..], &verdicts[at..]);
                    }
                    match fresh.checked_sub(1) {
                        Some(left) => {
                            fresh = left;
                            self.strip(&mut run[at], bench)
                        }
                        None => self.accept_one(&mut run[at], bench),
                    }
                }
                Authenticity::Forged => Err(DropReason::InForged),
                Authenticity::Runt | Authenticity::Pending => Err(DropReason::InRunt),
            };
            let packet = &run[at];
            match outcome {
                Ok(fate) => self.items[packet.item as usize].fate = fate,
                Err(reason) => {
                    self.used[packet.used as usize].sa.count_failure(reason);
                    self.drop(packet.item as usize, reason, bench);
                }
            }
        }
    }

    /// How many of the first packets that are authentic their window took. All are of one state.
    #[inline]
    fn accept_some(&self, run: &[Sealed], verdicts: &[Authenticity]) -> usize {
        let Some(first) = run.first() else { return 0 };
        let authentic = |verdict: &Authenticity| *verdict == Authenticity::Authentic;
        let received = run.iter().zip(verdicts).filter(|(_, verdict)| authentic(verdict));
        let window = self.used[first.used as usize].sa.replay();
        window.accept_some(received.map(|(packet, _)| packet.number))
    }

    /// A number that can't be taken together with others.
    #[cold]
    fn accept_one(
        &mut self,
        packet: &mut Sealed,
        bench: &mut Bench<'_>,
    ) -> Result<Fate, DropReason> {
        self.used[packet.used as usize].sa.replay().accept(packet.number)?;
        self.strip(packet, bench)
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
