//! Decrypting a batch in place, and what a state has to say about each packet afterwards.

use arrayvec::ArrayVec;
use uxfrm_crypto::{Authenticity, Crypter, OpenJob, SeqHigh};
use uxfrm_packet::PacketBuf;

use super::rx_cache::{Load, Standing, Used};
use super::slow::device::Opener;
use super::{Fate, Inbound, Sealed};
use crate::datapath::context::Bench;
use crate::sa::replay::Candidate;
use crate::{Charge, DropReason, Event, Sa};

/// Enough for the library's bursts, little enough for the stack and the first-level cache.
const CHUNK: usize = 64;

impl Inbound {
    /// 5 Open.
    pub(super) fn open(&mut self, bench: &mut Bench<'_>) {
        let Self { sealed, buffers, used, verdicts, .. } = self;
        verdicts.clear();
        let mut jobs: ArrayVec<OpenJob<'_>, CHUNK> = ArrayVec::new();
        let mut buffers = Rests::of(buffers);
        let mut rest = sealed.as_slice();
        while let Some(first) = rest.first() {
            let state = &used[first.used as usize];
            let key = state.sa.key();
            // Neighbours often are of one state.
            while let [packet, behind @ ..] = rest
                && packet.used == first.used
            {
                rest = behind;
                if jobs.is_full() {
                    run(bench.crypter, &mut jobs, verdicts);
                }
                let esp = buffers.cut(packet);
                let (Opener::Engine, Some(esp)) = (packet.manner.opener, esp) else {
                    // Verdicts are in order.
                    run(bench.crypter, &mut jobs, verdicts);
                    verdicts.push(packet.manner.opener.verdict().unwrap_or(Authenticity::Runt));
                    continue;
                };
                jobs.push(OpenJob::in_place(key, state.high_of(packet.number), esp));
            }
        }
        run(bench.crypter, &mut jobs, verdicts);
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

    /// Neighbours that came by one state are looked at together, as far as its window takes their numbers together.
    fn accept_each(
        &mut self,
        sealed: &mut [Sealed],
        verdicts: &[Authenticity],
        bench: &mut Bench<'_>,
    ) -> bool {
        let Some(first) = sealed.first() else { return false };
        let mut load = self.used.load(first.used);
        let (mut at, mut more) = (0, false);
        while at < sealed.len().min(verdicts.len()) {
            if sealed[at].used != load.used {
                self.used.note(&load);
                load = self.used.load(sealed[at].used);
            }
            let accepted = match verdicts[at] {
                Authenticity::Authentic => self.accept_first(&sealed[at..], &verdicts[at..]),
                Authenticity::Forged => Err(self.explain(&sealed[at], DropReason::InForged)),
                Authenticity::Runt | Authenticity::Pending => Err(DropReason::InRunt),
            };
            let next = at + accepted.unwrap_or(1);
            match accepted {
                Ok(_) => more |= self.strip_each(&mut sealed[at..next], &mut load, bench),
                Err(reason) => self.refuse(&sealed[at], reason, bench),
            }
            at = next;
        }
        self.used.note(&load);
        more
    }

    /// A number from before a restart passes for one of the next upper half, with which no ICV is right.
    #[cold]
    fn explain(&self, sealed: &Sealed, reason: DropReason) -> DropReason {
        let window = self.used[sealed.used as usize].sa.replay();
        #[expect(clippy::cast_possible_truncation, reason = "the half that the packet has")]
        let low = sealed.number.number() as u32;
        window.explain(low, reason)
    }

    /// Has its window take the number of the first packet, which is authentic, with those of authentic neighbours behind it if it can. Of how many.
    #[inline(always)]
    fn accept_first(
        &self,
        sealed: &[Sealed],
        verdicts: &[Authenticity],
    ) -> Result<usize, DropReason> {
        match sealed {
            [first, second, ..] if second.used == first.used => self.accept_some(sealed, verdicts),
            [first, ..] => {
                self.used[first.used as usize].sa.replay().accept(first.number).map(|()| 1)
            }
            [] => Ok(1),
        }
    }

    /// As [`accept_first`](Self::accept_first), of one that may have neighbours.
    #[inline(never)]
    fn accept_some(
        &self,
        sealed: &[Sealed],
        verdicts: &[Authenticity],
    ) -> Result<usize, DropReason> {
        let Sealed { used, number, .. } = sealed[0];
        let window = self.used[used as usize].sa.replay();
        let run = sealed.iter().zip(verdicts).take_while(|(packet, verdict)| {
            packet.used == used && **verdict == Authenticity::Authentic
        });
        match window.accept_some(run.map(|(packet, _)| packet.number)) {
            0 => window.accept(number).map(|()| 1),
            taken => Ok(taken),
        }
    }

    /// 7 Strip of neighbours that came by one state and are accepted. Whether there may be more ESP in some.
    #[inline]
    fn strip_each(&mut self, run: &mut [Sealed], load: &mut Load, bench: &mut Bench<'_>) -> bool {
        let (mut rest, mut more) = (run, false);
        loop {
            let alike = self.strip_alike(rest, load);
            let [packet, behind @ ..] = &mut rest[alike..] else { return more };
            match self.strip(packet, load, bench) {
                Ok(fate) => {
                    more |= fate == Fate::New;
                    self.items[packet.item as usize].fate = fate;
                }
                Err(reason) => self.refuse(packet, reason, bench),
            }
            rest = behind;
        }
    }

    /// Drops a packet that its state does not accept.
    #[cold]
    fn refuse(&mut self, packet: &Sealed, reason: DropReason, bench: &Bench<'_>) {
        self.used[packet.used as usize].sa.count_failure(reason);
        self.drop(packet.item as usize, reason, bench);
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
            let passes = |bytes| self.may_pass(packet.used, bytes, bench);
            if packet.carried.is_none_or(passes) {
                continue;
            }
            packet.carried = None;
            if self.items[packet.item as usize].fate != Fate::Gone {
                self.drop(packet.item as usize, DropReason::InStateExpired, bench);
            }
        }
    }

    /// Whether a state lets a packet with so many bytes pass, where not all do.
    pub(super) fn may_pass(&self, used: u32, bytes: u32, bench: &mut Bench<'_>) -> bool {
        let used = &self.used[used as usize];
        used.standing.lets_pass(&used.sa, bytes, bench)
    }
}

impl Standing {
    /// Whether a state with it lets a packet with so many bytes pass.
    pub(super) fn lets_pass(self, sa: &Sa, bytes: u32, bench: &mut Bench<'_>) -> bool {
        match self {
            Self::Good => true,
            Self::Expired => false,
            Self::OneByOne => match sa.charge(1, bytes.into(), bench.now) {
                Charge::Ok => true,
                Charge::SoftLimit => {
                    bench.tell(Event::SaSoftLimit(sa.id()));
                    true
                }
                Charge::HardLimit => {
                    bench.tell(Event::SaHardLimit(sa.id()));
                    false
                }
                Charge::Crossing | Charge::Expired => false,
            },
        }
    }
}

/// What has not been cut off yet of buffers, in their order.
struct Rests<'a> {
    buffers: std::slice::IterMut<'a, Option<PacketBuf>>,
    /// The place of the first of `buffers`.
    next: u32,
    /// Of the buffer before that, the bytes from `from` on.
    rest: &'a mut [u8],
    from: u32,
}

impl<'a> Rests<'a> {
    fn of(buffers: &'a mut [Option<PacketBuf>]) -> Self {
        Self { buffers: buffers.iter_mut(), next: 0, rest: &mut [], from: 0 }
    }

    /// The bytes of a packet, which lies behind all that were cut off before. `None` if it does not, or is not there.
    #[inline(always)]
    fn cut(&mut self, packet: &Sealed) -> Option<&'a mut [u8]> {
        let earlier = std::mem::take(&mut self.rest);
        let (rest, from) = if packet.buffer == self.next {
            self.next += 1;
            (self.buffers.next()?.as_mut()?.bytes_mut(), 0)
        } else if packet.buffer > self.next {
            let skipped = packet.buffer - self.next;
            self.next = packet.buffer + 1;
            (self.buffers.nth(skipped as usize)?.as_mut()?.bytes_mut(), 0)
        } else {
            (earlier, self.from)
        };
        let rest = rest.get_mut(packet.at.checked_sub(from)? as usize..)?;
        let (esp, behind) = rest.split_at_mut_checked(packet.len as usize)?;
        (self.rest, self.from) = (behind, packet.at + packet.len);
        Some(esp)
    }
}

impl Used {
    /// What of a packet's number is not in the packet.
    #[inline(always)]
    pub(super) fn high_of(&self, number: Candidate) -> SeqHigh {
        match self.extended {
            true => SeqHigh::Esn(upper_half(number.number())),
            false => SeqHigh::None,
        }
    }

    /// Charges it for what its packets of this round carried.
    #[inline]
    pub(super) fn charge(&mut self, bench: &mut Bench<'_>) -> Standing {
        let (packets, bytes) = (std::mem::take(&mut self.packets), std::mem::take(&mut self.bytes));
        self.standing = charge(&self.sa, packets, bytes, bench);
        self.standing
    }
}

/// Charges a state for packets together.
#[inline]
pub(super) fn charge(sa: &Sa, packets: u32, bytes: u64, bench: &mut Bench<'_>) -> Standing {
    match sa.charge(packets, bytes, bench.now) {
        Charge::Ok => Standing::Good,
        Charge::SoftLimit => {
            bench.tell(Event::SaSoftLimit(sa.id()));
            Standing::Good
        }
        Charge::Crossing => Standing::OneByOne,
        Charge::HardLimit => {
            bench.tell(Event::SaHardLimit(sa.id()));
            Standing::Expired
        }
        Charge::Expired => Standing::Expired,
    }
}

/// Opens and forgets what one call of the library takes, and notes what became of it.
fn run(
    crypter: &mut Crypter,
    jobs: &mut ArrayVec<OpenJob<'_>, CHUNK>,
    verdicts: &mut Vec<Authenticity>,
) {
    if jobs.is_empty() {
        return;
    }
    crypter.open(jobs);
    verdicts.extend(jobs.iter().map(|job| job.verdict));
    jobs.clear();
}

pub(super) fn upper_half(number: u64) -> u32 {
    (number >> 32) as u32
}
