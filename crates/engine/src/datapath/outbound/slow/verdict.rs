//! 4 Verdict: what becomes of a packet by the policies that are for it, and the bundle that it leaves in.

use crate::bundle::{Deciding, Resolution};
use crate::datapath::context::Bench;
use crate::flow_cache::Known;
use crate::{Action, AnswerId, Direction, DropReason, FlowKey, Ruling, Spi};

use crate::datapath::outbound::Outbound;

/// What the policies say.
pub(crate) enum Verdict {
    Pass,
    Drop(DropReason),
    Bundle(u32),
    /// Wait for a state.
    Wait,
}

impl Outbound {
    /// 3 Look up, 4 Verdict; of one packet that comes again.
    pub(crate) fn look_up(&mut self, flow: &FlowKey, bench: &mut Bench<'_>) -> Verdict {
        let spd = &bench.snapshot.spd;
        let answer = self.policies.lookup(spd, Direction::Out, flow, Spi(0));
        self.rule(flow, Known::only(answer), bench)
    }

    /// 4 Verdict.
    #[inline(always)]
    pub(crate) fn rule(&mut self, flow: &FlowKey, known: Known, bench: &mut Bench<'_>) -> Verdict {
        match known.answer.ruling() {
            Ruling::Default => match bench.snapshot.spd.defaults().outbound {
                Action::Allow => Verdict::Pass,
                Action::Block => Verdict::Drop(DropReason::OutDefaultBlock),
            },
            Ruling::Block => Verdict::Drop(self.why_blocked(known.answer)),
            Ruling::Pass => Verdict::Pass,
            Ruling::Protect => match known.bundle() {
                Some(place) if self.is_working(place, bench) => Verdict::Bundle(place),
                Some(_) | None => self.resolve(flow, known.answer, bench),
            },
        }
    }

    /// Which kind of block it is that packets of an answer meet.
    #[cold]
    fn why_blocked(&self, answer: AnswerId) -> DropReason {
        let deciding = self.policies.answer(answer).iter();
        let mut blocks = deciding.filter(|entry| entry.action() == Action::Block).peekable();
        if blocks.peek().is_some() && blocks.all(|entry| entry.is_held()) {
            DropReason::OutHeld
        } else {
            DropReason::OutPolicyBlock
        }
    }

    /// Whether all states of a known bundle work; neighbours often leave by the same.
    #[inline(always)]
    pub(crate) fn is_working(&mut self, place: u32, bench: &Bench<'_>) -> bool {
        if self.working == Some(place) {
            return true;
        }
        let works = self.cache.works(place, bench.now);
        if works {
            self.working = Some(place);
        }
        works
    }

    /// The verdict of a flow whose bundle is not known; only one with layers is.
    #[inline(never)]
    fn resolve(&mut self, flow: &FlowKey, answer: AnswerId, bench: &mut Bench<'_>) -> Verdict {
        let deciding: Deciding<'_> = self.policies.answer(answer).iter().collect();
        // An answer outlives its policies nowhere; if it did, nothing would leave plain for that.
        if deciding.is_empty() {
            return Verdict::Drop(DropReason::OutNoState);
        }
        let cache = &mut self.cache;
        let resolution = cache.resolve(bench.snapshot, &deciding, flow, bench.settings, bench.now);
        drop(deciding);
        match resolution {
            Resolution::Bundle(place) => self.verdict(flow, answer, place),
            Resolution::Asking(place) => {
                self.ask_for_optional(flow, bench);
                self.verdict(flow, answer, place)
            }
            Resolution::Refused(reason) => Verdict::Drop(reason),
            Resolution::Missing => Verdict::Wait,
        }
    }

    /// That of a bundle, which the flow's next packets find without asking.
    fn verdict(&mut self, flow: &FlowKey, answer: AnswerId, place: u32) -> Verdict {
        if self.cache.bundle(place).layers.is_empty() {
            return Verdict::Pass;
        }
        self.policies.teach(flow, answer, place);
        Verdict::Bundle(place)
    }
}
