//! Stage 4: the verdict of the policies, and the bundle by which a packet leaves.

use crate::bundle::{Deciding, Resolution};
use crate::datapath::context::BatchCtx;
use crate::flow_cache::CachedVerdict;
use crate::{Action, Direction, DropReason, FlowKey, PolicyOutcome, Spi, VerdictId};

use crate::datapath::outbound::Outbound;

/// Verdict of the policies.
pub(crate) enum Verdict {
    Pass,
    Drop(DropReason),
    Bundle(u32),
    /// Wait for an SA.
    Wait,
}

impl Outbound {
    /// Stages 3 and 4 of a packet that is retried.
    pub(crate) fn look_up_again(&mut self, flow: &FlowKey, ctx: &mut BatchCtx<'_>) -> Verdict {
        let spd = &ctx.snapshot.spd;
        let answer = self.policies.lookup(spd, Direction::Out, flow, Spi(0));
        self.decide(flow, CachedVerdict::without_bundle(answer), ctx)
    }

    /// Stage 4.
    #[inline(always)]
    pub(crate) fn decide(
        &mut self,
        flow: &FlowKey,
        known: CachedVerdict,
        ctx: &mut BatchCtx<'_>,
    ) -> Verdict {
        match known.verdict.outcome() {
            PolicyOutcome::Default => match ctx.snapshot.spd.defaults().outbound {
                Action::Allow => Verdict::Pass,
                Action::Block => Verdict::Drop(DropReason::OutDefaultBlock),
            },
            PolicyOutcome::Block => Verdict::Drop(self.block_reason(known.verdict)),
            PolicyOutcome::Bypass => Verdict::Pass,
            PolicyOutcome::Protect => match known.bundle() {
                Some(place) if self.is_usable(place, ctx) => Verdict::Bundle(place),
                Some(_) | None => self.resolve(flow, known.verdict, ctx),
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
    pub(crate) fn is_usable(&mut self, place: u32, ctx: &BatchCtx<'_>) -> bool {
        if self.usable_bundle == Some(place) {
            return true;
        }
        let works = self.cache.works(place, ctx.now);
        if works {
            self.usable_bundle = Some(place);
        }
        works
    }

    /// Resolves a flow without cached bundle; bundles without layers are not cached.
    #[inline(never)]
    fn resolve(&mut self, flow: &FlowKey, answer: VerdictId, ctx: &mut BatchCtx<'_>) -> Verdict {
        let deciding: Deciding<'_> = self.policies.policies(answer).iter().collect();
        // Verdicts are invalidated before their policies go. Should one slip through, nothing
        // leaves in plaintext.
        if deciding.is_empty() {
            return Verdict::Drop(DropReason::OutNoState);
        }
        let cache = &mut self.cache;
        let resolution = cache.resolve(ctx.snapshot, &deciding, flow, ctx.settings, ctx.now);
        drop(deciding);
        match resolution {
            Resolution::Bundle(place) => self.verdict(flow, answer, place),
            Resolution::Asking(place) => {
                self.acquire_optional(flow, ctx);
                self.verdict(flow, answer, place)
            }
            Resolution::Refused(reason) => Verdict::Drop(reason),
            Resolution::Missing => Verdict::Wait,
        }
    }

    /// Verdict of a resolved bundle, which is cached for the flow's next packets.
    fn verdict(&mut self, flow: &FlowKey, answer: VerdictId, place: u32) -> Verdict {
        if self.cache.bundle(place).layers.is_empty() {
            return Verdict::Pass;
        }
        self.policies.set_bundle(flow, answer, place);
        Verdict::Bundle(place)
    }
}
