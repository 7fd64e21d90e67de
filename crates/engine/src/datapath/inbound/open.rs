//! Stages 5 to 7: decrypts a batch in place, advances replay windows and charges SAs.

use arrayvec::ArrayVec;
use uxfrm_crypto::{Crypter, OpenJob, OpenStatus, SeqHigh};
use uxfrm_packet::PacketBuf;

use super::inner_template::strip_same_flow;
use super::rx_cache::{RxEntry, RxTally};
use super::slow::decap::{report_nat_remaps, strip};
use super::slow::device::Opener;
use super::{Fate, RxBatch, SealedEsp};
use crate::datapath::account::{LimitCheck, charge};
use crate::datapath::context::BatchContext;
use crate::sa::replay::UncheckedSeq;
use crate::{DropReason, Sa};

/// Enough for the library's bursts, small enough for the stack and the L1 cache.
const CHUNK: usize = 64;

/// Stages 5 to 7.
#[derive(Debug)]
pub(super) struct EspOpener {
    /// Results of the crypto library, by place in the list of packets to open.
    pub(super) statuses: Vec<OpenStatus>,
}

impl EspOpener {
    pub(super) fn new() -> Self {
        Self { statuses: Vec::with_capacity(uxfrm_packet::BATCH) }
    }

    /// Stage 5.
    pub(super) fn open(&mut self, rx: &mut RxBatch, ctx: &mut BatchContext<'_>) {
        let RxBatch { sealed, buffers, rx_cache, .. } = rx;
        let statuses = &mut self.statuses;
        statuses.clear();
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
                    run(ctx.crypter, &mut jobs, statuses);
                }
                let esp = buffers.cut(packet);
                let (Opener::Engine, Some(esp)) = (packet.params.opener, esp) else {
                    // Keeps the statuses in order.
                    run(ctx.crypter, &mut jobs, statuses);
                    statuses.push(packet.params.opener.status().unwrap_or(OpenStatus::TooShort));
                    continue;
                };
                jobs.push(OpenJob::in_place(key, state.high_of(packet.number), esp));
            }
        }
        run(ctx.crypter, &mut jobs, statuses);
    }

    /// Stages 6 and 7, then charges the SAs. Returns whether some packets may contain more ESP.
    pub(super) fn accept(&self, rx: &mut RxBatch, ctx: &mut BatchContext<'_>) -> bool {
        let mut sealed = std::mem::take(&mut rx.sealed);
        let more = accept_all(&mut sealed, &self.statuses, rx, ctx);
        charge_sas(&mut sealed, rx, ctx);
        if !rx.nat_remaps.is_empty() {
            report_nat_remaps(&sealed, rx, ctx);
        }
        sealed.clear();
        rx.sealed = sealed;
        more
    }
}

/// Processes runs of one SA together, as far as the replay window takes them.
fn accept_all(
    sealed: &mut [SealedEsp],
    statuses: &[OpenStatus],
    rx: &mut RxBatch,
    ctx: &mut BatchContext<'_>,
) -> bool {
    let Some(first) = sealed.first() else { return false };
    let mut tally = rx.rx_cache.tally(first.entry);
    let (mut at, mut more) = (0, false);
    while at < sealed.len().min(statuses.len()) {
        if sealed[at].entry != tally.entry {
            rx.rx_cache.commit(&tally);
            tally = rx.rx_cache.tally(sealed[at].entry);
        }
        let sa = &rx.rx_cache[tally.entry as usize].sa;
        let accepted = match statuses[at] {
            OpenStatus::Authentic => accept_first(sa, &sealed[at..], &statuses[at..]),
            OpenStatus::Forged => Err(explain(sa, &sealed[at], DropReason::InForged)),
            OpenStatus::TooShort | OpenStatus::Pending => Err(DropReason::InRunt),
        };
        let next = at + accepted.unwrap_or(1);
        match accepted {
            Ok(_) => more |= strip_run_of_sa(&mut sealed[at..next], &mut tally, rx, ctx),
            Err(reason) => reject(&sealed[at], reason, rx, ctx),
        }
        at = next;
    }
    rx.rx_cache.commit(&tally);
    more
}

/// A sequence number from before a restart is taken for one of the next upper half, for which no
/// ICV is right.
#[cold]
fn explain(sa: &Sa, sealed: &SealedEsp, reason: DropReason) -> DropReason {
    #[expect(clippy::cast_possible_truncation, reason = "the half that the packet has")]
    let low = sealed.number.number() as u32;
    sa.replay().explain(low, reason)
}

/// Advances the window by the first packet, which is authentic, and if possible by authentic
/// packets of the same SA behind it. Returns how many.
#[inline(always)]
fn accept_first(
    sa: &Sa,
    sealed: &[SealedEsp],
    statuses: &[OpenStatus],
) -> Result<usize, DropReason> {
    match sealed {
        [first, second, ..] if second.entry == first.entry => {
            accept_run_of_sa(sa, sealed, statuses)
        }
        [first, ..] => sa.replay().accept(first.number).map(|()| 1),
        [] => Ok(1),
    }
}

/// Like [`accept_first`], for a run.
#[inline(never)]
fn accept_run_of_sa(
    sa: &Sa,
    sealed: &[SealedEsp],
    statuses: &[OpenStatus],
) -> Result<usize, DropReason> {
    let SealedEsp { entry, number, .. } = sealed[0];
    let window = sa.replay();
    let run = sealed
        .iter()
        .zip(statuses)
        .take_while(|(packet, status)| packet.entry == entry && **status == OpenStatus::Authentic);
    match window.accept_some(run.map(|(packet, _)| packet.number)) {
        0 => window.accept(number).map(|()| 1),
        taken => Ok(taken),
    }
}

/// Stage 7 for accepted packets of one SA. Returns whether some may contain more ESP.
#[inline]
fn strip_run_of_sa(
    run: &mut [SealedEsp],
    tally: &mut RxTally,
    rx: &mut RxBatch,
    ctx: &mut BatchContext<'_>,
) -> bool {
    let (mut rest, mut more) = (run, false);
    loop {
        let matched = strip_same_flow(rest, tally, rx);
        let [packet, behind @ ..] = &mut rest[matched..] else { return more };
        match strip(packet, tally, rx, ctx) {
            Ok(fate) => {
                more |= fate == Fate::New;
                rx.items[packet.item as usize].fate = fate;
            }
            Err(reason) => reject(packet, reason, rx, ctx),
        }
        rest = behind;
    }
}

/// Drops a packet that its SA does not accept, and counts the failure.
#[cold]
fn reject(packet: &SealedEsp, reason: DropReason, rx: &mut RxBatch, ctx: &mut BatchContext<'_>) {
    rx.rx_cache[packet.entry as usize].sa.count_failure(reason);
    rx.drop_of_sa(packet.item as usize, packet.entry, reason, ctx);
}

/// Charges each SA once for all its packets, or one by one if a limit lies between them.
fn charge_sas(sealed: &mut [SealedEsp], rx: &mut RxBatch, ctx: &mut BatchContext<'_>) {
    let mut all_pass = true;
    rx.rx_cache.for_each_seen(&mut |entry| {
        if entry.packets > 0 {
            all_pass &= entry.charge(ctx) == LimitCheck::Pass;
        }
    });
    if all_pass {
        return;
    }
    for packet in sealed {
        let entry = &rx.rx_cache[packet.entry as usize];
        if packet.carried.is_none_or(|bytes| entry.may_pass(bytes, ctx)) {
            continue;
        }
        packet.carried = None;
        if rx.items[packet.item as usize].fate != Fate::Gone {
            let place = packet.item as usize;
            rx.drop_of_sa(place, packet.entry, DropReason::InStateExpired, ctx);
        }
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
    pub(super) fn charge(&mut self, ctx: &mut BatchContext<'_>) -> LimitCheck {
        let (packets, bytes) = (std::mem::take(&mut self.packets), std::mem::take(&mut self.bytes));
        self.limit_check = charge(&self.sa, packets, bytes, ctx);
        self.limit_check
    }

    /// Whether a packet of so many bytes is within the SA's limits.
    pub(super) fn may_pass(&self, bytes: u32, ctx: &mut BatchContext<'_>) -> bool {
        self.limit_check.lets_pass(&self.sa, bytes, ctx)
    }
}

/// Opens the jobs and appends their statuses.
fn run(
    crypter: &mut Crypter,
    jobs: &mut ArrayVec<OpenJob<'_>, CHUNK>,
    statuses: &mut Vec<OpenStatus>,
) {
    if jobs.is_empty() {
        return;
    }
    crypter.open(jobs);
    statuses.extend(jobs.iter().map(|job| job.status));
    jobs.clear();
}

pub(super) fn upper_half(number: u64) -> u32 {
    (number >> 32) as u32
}
