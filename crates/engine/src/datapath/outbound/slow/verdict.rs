//! Stage 4: the verdict of the policies, and the bundle by which a packet leaves.

use super::acquire_queue::acquire_optional;
use crate::bundle::{BundleCache, Deciding, Resolution};
use crate::datapath::context::BatchContext;
use crate::datapath::look_up_step::look_up_step;
use crate::flow_cache::CachedVerdict;
use crate::{
    Action, Direction, DropReason, FlowKey, Moment, PolicyCache, PolicyOutcome, Settings, Spi,
    TraceStep, VerdictId,
};

/// What becomes of a packet by the verdict of its policies.
pub(crate) enum TxAction {
    Pass,
    Drop(DropReason),
    Bundle(u32),
    /// Wait for an SA.
    Wait,
}

/// Packets with one verdict that are not yet counted for its policies.
#[derive(Debug)]
struct PolicyTally {
    answer: VerdictId,
    packets: u32,
    bytes: u64,
}

/// Stages 3 and 4.
#[derive(Debug)]
pub(crate) struct PolicyDecider {
    pub(in crate::datapath::outbound) policies: PolicyCache,
    /// Packets not yet counted for their policies.
    tally: Option<PolicyTally>,
    /// The latest bundle that was found usable in this batch.
    usable_bundle: Option<u32>,
}

impl PolicyDecider {
    pub(crate) fn new(settings: &Settings) -> Self {
        let policies = PolicyCache::new(settings.cache.outbound, settings.seed);
        Self { policies, tally: None, usable_bundle: None }
    }

    /// Before a batch, once changed SAs have invalidated bundles.
    #[inline(always)]
    pub(crate) fn begin_batch(&mut self) {
        self.usable_bundle = None;
    }

    /// Stages 3 and 4 of a packet that is retried.
    pub(crate) fn look_up_again(
        &mut self,
        flow: &FlowKey,
        cache: &mut BundleCache,
        ctx: &mut BatchContext<'_>,
    ) -> TxAction {
        let spd = &ctx.snapshot.spd;
        let answer = self.policies.lookup(spd, Direction::Out, flow, Spi(0));
        self.decide(flow, CachedVerdict::without_bundle(answer), cache, ctx)
    }

    /// Stage 4.
    #[inline(always)]
    pub(crate) fn decide(
        &mut self,
        flow: &FlowKey,
        known: CachedVerdict,
        cache: &mut BundleCache,
        ctx: &mut BatchContext<'_>,
    ) -> TxAction {
        match known.verdict.outcome() {
            PolicyOutcome::Default => match ctx.snapshot.spd.defaults().outbound {
                Action::Allow => TxAction::Pass,
                Action::Block => TxAction::Drop(DropReason::OutDefaultBlock),
            },
            PolicyOutcome::Block => TxAction::Drop(self.block_reason(known.verdict)),
            PolicyOutcome::Bypass => TxAction::Pass,
            PolicyOutcome::Protect => match known.bundle() {
                Some(place) if self.is_usable(place, cache, ctx.now) => TxAction::Bundle(place),
                Some(_) | None => self.resolve(flow, known.verdict, cache, ctx),
            },
        }
    }

    /// The drop reason of a verdict that blocks.
    #[cold]
    fn block_reason(&self, answer: VerdictId) -> DropReason {
        let deciding = self.policies.policies(answer).iter();
        let mut blocks = deciding.filter(|entry| entry.action() == Action::Block).peekable();
        if blocks.peek().is_some() && blocks.all(|entry| entry.is_held()) {
            DropReason::OutHeld
        } else {
            DropReason::OutPolicyBlock
        }
    }

    /// Whether all SAs of a cached bundle are usable; remembers the latest, as consecutive packets
    /// often share it.
    #[inline(always)]
    pub(crate) fn is_usable(&mut self, place: u32, cache: &BundleCache, now: Moment) -> bool {
        if self.usable_bundle == Some(place) {
            return true;
        }
        let works = cache.works(place, now);
        if works {
            self.usable_bundle = Some(place);
        }
        works
    }

    /// Resolves a flow without cached bundle; bundles without layers are not cached.
    #[inline(never)]
    fn resolve(
        &mut self,
        flow: &FlowKey,
        answer: VerdictId,
        cache: &mut BundleCache,
        ctx: &mut BatchContext<'_>,
    ) -> TxAction {
        let deciding: Deciding<'_> = self.policies.policies(answer).iter().collect();
        // Verdicts are invalidated before their policies go. Should one slip through, nothing
        // leaves in plaintext.
        if deciding.is_empty() {
            return TxAction::Drop(DropReason::OutPolicyGone);
        }
        let resolution = cache.resolve(ctx.snapshot, &deciding, flow, ctx.settings, ctx.now);
        drop(deciding);
        let place = match resolution {
            Resolution::Bundle(place) => place,
            Resolution::Asking(place) => {
                acquire_optional(&cache.missing, flow, ctx);
                place
            }
            Resolution::Refused(reason) => return TxAction::Drop(reason),
            Resolution::Missing => return TxAction::Wait,
        };
        if cache.bundle(place).layers.is_empty() {
            return TxAction::Pass;
        }
        self.policies.set_bundle(flow, answer, place);
        TxAction::Bundle(place)
    }

    /// What the policies say, for a trace.
    pub(crate) fn look_up_step(&self, known: CachedVerdict) -> TraceStep {
        look_up_step(&self.policies, Direction::Out, known.verdict)
    }

    /// Counts packets for the policies of a verdict, consecutive ones together.
    #[inline(always)]
    pub(crate) fn tally_policy(&mut self, answer: VerdictId, packets: u32, bytes: u64) {
        match &mut self.tally {
            Some(tally) if tally.answer == answer => {
                tally.packets += packets;
                tally.bytes += bytes;
            }
            Some(_) | None => {
                self.flush_tally();
                self.tally = Some(PolicyTally { answer, packets, bytes });
            }
        }
    }

    #[inline(always)]
    pub(crate) fn flush_tally(&mut self) {
        if let Some(PolicyTally { answer, packets, bytes }) = self.tally.take() {
            self.policies.count(answer, packets, bytes);
        }
    }
}
