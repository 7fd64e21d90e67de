//! Steps for what this host's packet filter may do to a packet that the gateway lets pass.

use std::io;

use uxfrm_status::explanation::{FlowStep, StepResult};

use crate::packet_filter::{DroppingChain, FilterHook, ForeignChains};

const STAGE: &str = "own filter";

/// A packet, or the ESP that it is in, at the filter's hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Passage {
    /// The packet in words.
    pub(crate) what: &'static str,
    pub(crate) hook: FilterHook,
    pub(crate) is_ipv4: bool,
    /// What a rule that is for it alone asks for, as `iifname "uxfrm0"`.
    pub(crate) condition: String,
}

/// The packet filter, if it could be read.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnFilter(Option<ForeignChains>);

impl OwnFilter {
    /// Of this network namespace.
    pub(crate) fn read() -> Self {
        Self::of(ForeignChains::read())
    }

    fn of(read: io::Result<ForeignChains>) -> Self {
        Self(read.ok())
    }

    /// A step for each chain that may drop the packet at these places; without any, one that says
    /// what can't be seen.
    pub(crate) fn steps(&self, passages: &[Passage]) -> Vec<FlowStep> {
        let Some(filter) = &self.0 else {
            return vec![FlowStep::new(STAGE, UNREAD)];
        };
        let steps = passages.iter().flat_map(|passage| {
            let chains = filter.at(passage.hook, passage.is_ipv4);
            chains.map(move |chain| step(chain, passage))
        });
        let mut steps: Vec<_> = steps.collect();
        if steps.is_empty() {
            let hooks: Vec<_> = passages.iter().map(|passage| passage.hook.to_string()).collect();
            let hooks = hooks.join(" or ");
            let text = format!(
                "no chain at hook {hooks} has policy drop; single rules may still drop it: `nft \
                 list ruleset`"
            );
            steps.push(FlowStep::new(STAGE, text));
        }
        let legacy = filter.legacy.iter().map(|program| {
            format!("{program} has rules too, which `nft` does not show: `{program} -S`")
        });
        steps.last_mut().into_iter().for_each(|step| step.notes.extend(legacy.clone()));
        steps
    }

    /// The same where nothing is said if no chain may drop the packet.
    pub(crate) fn doubts(&self, passages: &[Passage]) -> Vec<FlowStep> {
        let mut steps = self.steps(passages);
        steps.retain(|step| step.result != StepResult::Passes);
        steps
    }
}

fn step(chain: &DroppingChain, passage: &Passage) -> FlowStep {
    let what = passage.what;
    let (result, text) = match chain.is_closed() {
        true => (StepResult::Fails, format!("{chain}, has no rules: {what} is dropped")),
        false if chain.accepts(&passage.condition) => {
            let rule = &passage.condition;
            let text = format!("{chain}: its rule `{rule} accept` lets {what} pass");
            return FlowStep::new(STAGE, text);
        }
        false => (
            StepResult::Doubtful,
            format!("{chain}: {what} may be dropped, unless a rule there accepts it"),
        ),
    };
    FlowStep::new(STAGE, text).with_result(result).with_notes(vec![chain.rule(&passage.condition)])
}

const UNREAD: &str = "a packet filter of this host may still drop it: `sudo nft list ruleset`; rules \
                      with `iifname` have to let the TUN's packets pass";

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(hook: FilterHook, rules: u32) -> DroppingChain {
        let (table, chain) = ("filter".to_owned(), "FORWARD".to_owned());
        let accepted = Vec::new();
        DroppingChain { family: "ip", table, chain, hook, rules, accepted }
    }

    fn told(read: io::Result<ForeignChains>) -> Vec<(StepResult, String, Vec<String>)> {
        let passage = Passage {
            what: "the packet",
            hook: FilterHook::Forward,
            is_ipv4: true,
            condition: "oifname \"uxfrm0\"".to_owned(),
        };
        let filter = OwnFilter::of(read);
        let steps = filter.steps(std::slice::from_ref(&passage));
        let doubts = steps.iter().filter(|step| step.result != StepResult::Passes).count();
        assert_eq!(filter.doubts(&[passage]).len(), doubts);
        steps.into_iter().map(|step| (step.result, step.text, step.notes)).collect()
    }

    #[test]
    fn chains_that_may_drop_are_named_with_a_rule_that_mends_it() {
        let filter = |chains, legacy| Ok(ForeignChains { chains, legacy });
        let rule = "nft insert rule ip filter FORWARD oifname \"uxfrm0\" accept".to_owned();
        let name = "table ip filter, chain FORWARD (hook forward, policy drop)";
        let open = filter(vec![chain(FilterHook::Forward, 2)], Vec::new());
        let may = format!("{name}: the packet may be dropped, unless a rule there accepts it");
        assert_eq!(told(open), [(StepResult::Doubtful, may, vec![rule.clone()])]);
        let mut accepting = chain(FilterHook::Forward, 2);
        accepting.accepted = vec!["oifname \"uxfrm0\"".to_owned()];
        let lets = format!("{name}: its rule `oifname \"uxfrm0\" accept` lets the packet pass");
        let accepting = filter(vec![accepting], Vec::new());
        assert_eq!(told(accepting), [(StepResult::Passes, lets, vec![])]);
        let closed = filter(vec![chain(FilterHook::Forward, 0)], Vec::new());
        let does = format!("{name}, has no rules: the packet is dropped");
        assert_eq!(told(closed), [(StepResult::Fails, does, vec![rule])]);
        let other = filter(vec![chain(FilterHook::Input, 0)], vec!["iptables-legacy"]);
        let [(StepResult::Passes, text, notes)] = &told(other)[..] else { panic!() };
        assert!(text.starts_with("no chain at hook forward has policy drop"), "{text}");
        assert!(notes[0].starts_with("iptables-legacy has rules too"), "{notes:?}");
        let [(StepResult::Passes, text, _)] = &told(Err(io::ErrorKind::Other.into()))[..] else {
            panic!()
        };
        assert!(text.contains("sudo nft list ruleset"), "{text}");
    }
}
