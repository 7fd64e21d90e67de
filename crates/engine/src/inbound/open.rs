//! Decrypting a batch in place, and what a state has to say about each packet afterwards.

use arrayvec::ArrayVec;
use uxfrm_crypto::{Authenticity, OpenJob, SeqHigh};

use super::strip::is_ip;
use super::{Fate, Inbound, Sealed, Standing};
use crate::worker::Bench;
use crate::{Charge, DropReason, Event, Mode};

/// Enough for the library's bursts, little enough for the stack and the first-level cache.
const CHUNK: usize = 64;

impl Inbound {
    /// 5 Open.
    pub(super) fn open(&mut self, bench: &mut Bench<'_>) {
        self.verdicts.clear();
        let mut jobs: ArrayVec<OpenJob<'_>, CHUNK> = ArrayVec::new();
        let mut sealed = self.sealed.iter().peekable();
        for (place, buffer) in self.buffers.iter_mut().enumerate() {
            let Some(buffer) = buffer else { continue };
            let (mut rest, mut passed) = (buffer.bytes_mut(), 0);
            let here = |sealed: &&Sealed| self.items[sealed.item as usize].buffer as usize == place;
            while let Some(next) = sealed.next_if(here) {
                let (_, from) = std::mem::take(&mut rest).split_at_mut(next.at - passed);
                let (esp, behind) = from.split_at_mut(next.envelope.len);
                (rest, passed) = (behind, next.at + next.envelope.len);
                if jobs.is_full() {
                    bench.crypter.open(&mut jobs);
                    self.verdicts.extend(jobs.drain(..).map(|job| job.verdict));
                }
                let sa = &self.used[next.used as usize].sa;
                let high = if sa.extended() {
                    SeqHigh::Esn(upper_half(next.number.number()))
                } else {
                    SeqHigh::None
                };
                jobs.push(OpenJob::in_place(sa.key(), high, esp));
            }
        }
        bench.crypter.open(&mut jobs);
        self.verdicts.extend(jobs.drain(..).map(|job| job.verdict));
    }

    /// 6 Replay advance; and lengths are taken, by which the states are charged.
    pub(super) fn accept(&mut self, bench: &mut Bench<'_>) {
        let mut sealed = std::mem::take(&mut self.sealed);
        let verdicts = std::mem::take(&mut self.verdicts);
        for (packet, verdict) in sealed.iter_mut().zip(&verdicts) {
            let sa = &self.used[packet.used as usize].sa;
            let accepted = match verdict {
                Authenticity::Authentic => sa.replay().accept(packet.number),
                Authenticity::Forged => Err(DropReason::InForged),
                Authenticity::Runt | Authenticity::Pending => Err(DropReason::InRunt),
            };
            if let Err(reason) = accepted {
                sa.count_failure(reason);
                self.drop(packet.item as usize, reason, bench);
                continue;
            }
            if let Err(reason) = self.measure(packet) {
                self.drop(packet.item as usize, reason, bench);
            }
        }
        self.verdicts = verdicts;
        self.charge(&mut sealed, bench);
        self.sealed = sealed;
    }

    /// Takes padding and trailer off, and notes what the state carried.
    fn measure(&mut self, packet: &mut Sealed) -> Result<(), DropReason> {
        packet.stripped = self.text(packet)?;
        let used = &mut self.used[packet.used as usize];
        if used.sa.config().mode == Mode::Tunnel && !is_ip(packet.stripped.next_header) {
            return Err(DropReason::InModeMismatch);
        }
        used.packets += 1;
        used.bytes += packet.stripped.len as u64;
        Ok(())
    }

    /// Charges each state once for all its packets, and one by one where a limit lies between them.
    fn charge(&mut self, sealed: &mut [Sealed], bench: &mut Bench<'_>) {
        for used in self.used.iter_mut().filter(|used| used.packets > 0) {
            let id = used.sa.id();
            used.standing = match used.sa.charge(used.packets, used.bytes, bench.now) {
                Charge::Ok => Standing::Good,
                Charge::SoftLimit => {
                    bench.tell(Event::SaSoftLimit(id));
                    Standing::Good
                }
                Charge::Crossing => Standing::OneByOne,
                Charge::HardLimit => {
                    bench.tell(Event::SaHardLimit(id));
                    Standing::Expired
                }
                Charge::Expired => Standing::Expired,
            };
            (used.packets, used.bytes) = (0, 0);
        }
        for packet in sealed {
            let alive = self.items[packet.item as usize].fate == Fate::Sealed;
            if alive && !self.may_pass(packet, bench) {
                self.drop(packet.item as usize, DropReason::InStateExpired, bench);
            }
        }
    }

    fn may_pass(&self, packet: &Sealed, bench: &mut Bench<'_>) -> bool {
        let used = &self.used[packet.used as usize];
        let id = used.sa.id();
        match used.standing {
            Standing::Good => true,
            Standing::Expired => false,
            Standing::OneByOne => match used.sa.charge(1, packet.stripped.len as u64, bench.now) {
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

fn upper_half(number: u64) -> u32 {
    (number >> 32) as u32
}
