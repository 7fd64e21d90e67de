//! The rule that looks up the table of destinations.

use uxfrm_io::rtnetlink::{self, FirewallMark, RoutingRule, Rtnetlink, RuleAction, RuleOrigin};
use uxfrm_packet::Version;

use super::{forgive_absent, versions};

/// Its priority where destinations lead alone: before the main table's 32766, behind anything that
/// an administrator numbers by hand.
pub(super) const FIRST: u32 = 32_700;

/// The same where packets are marked: behind the default table's 32767.
pub(super) const FALLBACK: u32 = 33_000;

/// How packets find the TUN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DivertMode {
    /// A mark that the packet filter gives them, or the plan.
    Marks,
    /// Routes to their destinations alone.
    Destinations,
}

/// The rule of each family to one table, for all packets without the gateway's own mark.
#[derive(Debug)]
pub(super) struct LookupRule {
    pub(super) table: u32,
    pub(super) mark: u32,
    pub(super) by: DivertMode,
}

impl LookupRule {
    /// Has them lead to the table, and no others; how many were not there.
    pub(super) fn alone(&self, rtnetlink: &mut Rtnetlink) -> Result<usize, rtnetlink::Error> {
        let mut missing = 0;
        for version in versions() {
            missing += usize::from(self.rule_alone(rtnetlink, version)?);
        }
        Ok(missing)
    }

    /// Has what an earlier run refuses refused still, whichever way it led there.
    pub(super) fn keep(&self, rtnetlink: &mut Rtnetlink) -> Result<(), rtnetlink::Error> {
        for version in versions() {
            let all = rtnetlink.rules(version)?;
            if !all.iter().any(|rule| rule.table() == Some(self.table)) {
                self.rule_alone(rtnetlink, version)?;
            }
        }
        Ok(())
    }

    fn rule_alone(
        &self,
        rtnetlink: &mut Rtnetlink,
        version: Version,
    ) -> Result<bool, rtnetlink::Error> {
        let ours = self.rule(version);
        let was_missing = match rtnetlink.add_rule(&ours) {
            Ok(()) => true,
            Err(rtnetlink::Error::Exists { .. }) => false,
            Err(error) => return Err(error),
        };
        let all = rtnetlink.rules(version)?;
        let is_ours = |rule: &&RoutingRule| rule.table() == Some(self.table);
        let others = all.iter().filter(is_ours).filter(|rule| **rule != ours);
        others.copied().try_for_each(|rule| forgive_absent(rtnetlink.delete_rule(&rule)))?;
        Ok(was_missing)
    }

    /// That of one family.
    pub(super) fn rule(&self, version: Version) -> RoutingRule {
        RoutingRule {
            version,
            mark: FirewallMark::IsNot(self.mark, u32::MAX),
            sender: RuleOrigin::Any,
            source: None,
            destination: None,
            action: RuleAction::Lookup(self.table),
            priority: match self.by {
                DivertMode::Marks => FALLBACK,
                DivertMode::Destinations => FIRST,
            },
            suppress_prefix_length: None,
        }
    }
}
