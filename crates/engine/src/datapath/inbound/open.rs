//! Stages 5 to 7: decrypts a batch in place, advances replay windows and charges SAs.

use arrayvec::ArrayVec;
use uxfrm_crypto::{Crypter, OpenJob, OpenStatus, SeqHigh};
use uxfrm_packet::PacketBuf;

use super::rx_cache::{RxEntry, RxTally};
use super::slow::device::Opener;
use super::{Fate, Inbound, SealedEsp};
use crate::DropReason;
use crate::datapath::account::{LimitCheck, charge};
use crate::datapath::context::BatchCtx;
use crate::sa::replay::UncheckedSeq;

/// Enough for the library's bursts, small enough for the stack and the L1 cache.
const CHUNK: usize = 64;

impl Inbound {
    /// Stage 5.
    pub(super) fn open(&mut self, ctx: &mut BatchCtx<'_>) {
        let Self { sealed, buffers, rx_cache, verdicts, .. } = self;
        verdicts.clear();
        let mut jobs: ArrayVec<OpenJob<'_>, CHUNK> = ArrayVec::new();
        let mut buffers = BufferCursor::of(buffers);
        let mut rest = sealed.as_slice();
        while let Some(first) = rest.first() {
            let state = &rx_cache[first.entry as usize];
            let key = state.sa.key();
            // Consecutive packets often have the same SA.
            while let [packet, behind @ ..] = rest
                && packet.entry == first.entry
            {
                rest = behind;
                if jobs.is_full() {
                    run(ctx.crypter, &mut jobs, verdicts);
                }
                let esp = buffers.cut(packet);
                let (Opener::Engine, Some(esp)) = (packet.params.opener, esp) else {
                    // Keeps the verdicts in order.
                    run(ctx.crypter, &mut jobs, verdicts);
                    verdicts.push(packet.params.opener.verdict().unwrap_or(OpenStatus::TooShort));
                    continue;
                };
                jobs.push(OpenJob::in_place(key, state.high_of(packet.number), esp));
            }
        }
        run(ctx.crypter, &mut jobs, verdicts);
    }

    /// Stages 6 and 7, then charges the SAs. Returns whether some packets may contain more ESP.
    pub(super) fn accept(&mut self, ctx: &mut BatchCtx<'_>) -> bool {
        let mut sealed = std::mem::take(&mut self.sealed);
        let verdicts = std::mem::take(&mut self.verdicts);
        let more = self.accept_all(&mut sealed, &verdicts, ctx);
        self.verdicts = verdicts;
        self.charge(&mut sealed, ctx);
        if !self.nat_remaps.is_empty() {
            self.report_nat_remaps(&sealed, ctx);
        }
        sealed.clear();
        self.sealed = sealed;
        more
    }

    /// Processes runs of one SA together, as far as the replay window takes them.
    fn accept_all(
        &mut self,
        sealed: &mut [SealedEsp],
        verdicts: &[OpenStatus],
        ctx: &mut BatchCtx<'_>,
    ) -> bool {
        let Some(first) = sealed.first() else { return false };
        let mut tally = self.rx_cache.tally(first.entry);
        let (mut at, mut more) = (0, false);
        while at < sealed.len().min(verdicts.len()) {
            if sealed[at].entry != tally.entry {
                self.rx_cache.commit(&tally);
                tally = self.rx_cache.tally(sealed[at].entry);
            }
            let accepted = match verdicts[at] {
                OpenStatus::Authentic => self.accept_first(&sealed[at..], &verdicts[at..]),
                OpenStatus::Forged => Err(self.explain(&sealed[at], DropReason::InForged)),
                OpenStatus::TooShort | OpenStatus::Pending => Err(DropReason::InRunt),
            };
            let next = at + accepted.unwrap_or(1);
            match accepted {
                Ok(_) => more |= self.strip_run_of_sa(&mut sealed[at..next], &mut tally, ctx),
                Err(reason) => self.reject(&sealed[at], reason, ctx),
            }
            at = next;
        }
        self.rx_cache.commit(&tally);
        more
    }

    /// A sequence number from before a restart is taken for one of the next upper half, for which
    /// no ICV is right.
    #[cold]
    fn explain(&self, sealed: &SealedEsp, reason: DropReason) -> DropReason {
        let window = self.rx_cache[sealed.entry as usize].sa.replay();
        #[expect(clippy::cast_possible_truncation, reason = "the half that the packet has")]
        let low = sealed.number.number() as u32;
        window.explain(low, reason)
    }

    /// Advances the window by the first packet, which is authentic, and if possible by authentic
    /// packets of the same SA behind it. Returns how many.
    #[inline(always)]
    fn accept_first(
        &self,
        sealed: &[SealedEsp],
        verdicts: &[OpenStatus],
    ) -> Result<usize, DropReason> {
        match sealed {
            [first, second, ..] if second.entry == first.entry => {
                self.accept_run_of_sa(sealed, verdicts)
            }
            [first, ..] => {
                self.rx_cache[first.entry as usize].sa.replay().accept(first.number).map(|()| 1)
            }
            [] => Ok(1),
        }
    }

    /// Like [`accept_first`](Self::accept_first), for a run.
    #[inline(never)]
    fn accept_run_of_sa(
        &self,
        sealed: &[SealedEsp],
        verdicts: &[OpenStatus],
    ) -> Result<usize, DropReason> {
        let SealedEsp { entry, number, .. } = sealed[0];
        let window = self.rx_cache[entry as usize].sa.replay();
        let run = sealed.iter().zip(verdicts).take_while(|(packet, verdict)| {
            packet.entry == entry && **verdict == OpenStatus::Authentic
        });
        match window.accept_some(run.map(|(packet, _)| packet.number)) {
            0 => window.accept(number).map(|()| 1),
            taken => Ok(taken),
        }
    }

    /// Stage 7 for accepted packets of one SA. Returns whether some may contain more ESP.
    #[inline]
    fn strip_run_of_sa(
        &mut self,
        run: &mut [SealedEsp],
        tally: &mut RxTally,
        ctx: &mut BatchCtx<'_>,
    ) -> bool {
        let (mut rest, mut more) = (run, false);
        loop {
            let matched = self.strip_same_flow(rest, tally);
            let [packet, behind @ ..] = &mut rest[matched..] else { return more };
            match self.strip(packet, tally, ctx) {
                Ok(fate) => {
                    more |= fate == Fate::New;
                    self.items[packet.item as usize].fate = fate;
                }
                Err(reason) => self.reject(packet, reason, ctx),
            }
            rest = behind;
        }
    }

    /// Drops a packet that its SA does not accept, and counts the failure.
    #[cold]
    fn reject(&mut self, packet: &SealedEsp, reason: DropReason, ctx: &BatchCtx<'_>) {
        self.rx_cache[packet.entry as usize].sa.count_failure(reason);
        self.drop(packet.item as usize, reason, ctx);
    }

    /// Charges each SA once for all its packets, or one by one if a limit lies between them.
    fn charge(&mut self, sealed: &mut [SealedEsp], ctx: &mut BatchCtx<'_>) {
        let mut all_pass = true;
        self.rx_cache.for_each_seen(&mut |entry| {
            if entry.packets > 0 {
                all_pass &= entry.charge(ctx) == LimitCheck::Pass;
            }
        });
        if all_pass {
            return;
        }
        for packet in sealed {
            let passes = |bytes| self.may_pass(packet.entry, bytes, ctx);
            if packet.carried.is_none_or(passes) {
                continue;
            }
            packet.carried = None;
            if self.items[packet.item as usize].fate != Fate::Gone {
                self.drop(packet.item as usize, DropReason::InStateExpired, ctx);
            }
        }
    }

    /// Whether a packet of so many bytes is within the SA's limits.
    pub(super) fn may_pass(&self, entry: u32, bytes: u32, ctx: &mut BatchCtx<'_>) -> bool {
        let entry = &self.rx_cache[entry as usize];
        entry.limit_check.lets_pass(&entry.sa, bytes, ctx)
    }
}

/// Yields the ESP parts of buffers, in order.
struct BufferCursor<'a> {
    buffers: std::slice::IterMut<'a, Option<PacketBuf>>,
    /// Index of the first of `buffers`.
    next: u32,
    /// Bytes of the previous buffer from `from` on.
    rest: &'a mut [u8],
    from: u32,
}

impl<'a> BufferCursor<'a> {
    fn of(buffers: &'a mut [Option<PacketBuf>]) -> Self {
        Self { buffers: buffers.iter_mut(), next: 0, rest: &mut [], from: 0 }
    }

    /// The bytes of a packet, which must lie behind all earlier ones; otherwise `None`.
    #[inline(always)]
    fn cut(&mut self, packet: &SealedEsp) -> Option<&'a mut [u8]> {
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

impl RxEntry {
    /// Upper half of an extended sequence number.
    #[inline(always)]
    pub(super) fn high_of(&self, number: UncheckedSeq) -> SeqHigh {
        match self.extended {
            true => SeqHigh::Esn(upper_half(number.number())),
            false => SeqHigh::None,
        }
    }

    /// Charges the SA for its packets of this round.
    #[inline]
    pub(super) fn charge(&mut self, ctx: &mut BatchCtx<'_>) -> LimitCheck {
        let (packets, bytes) = (std::mem::take(&mut self.packets), std::mem::take(&mut self.bytes));
        self.limit_check = charge(&self.sa, packets, bytes, ctx);
        self.limit_check
    }
}

/// Opens the jobs and appends their verdicts.
fn run(
    crypter: &mut Crypter,
    jobs: &mut ArrayVec<OpenJob<'_>, CHUNK>,
    verdicts: &mut Vec<OpenStatus>,
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
