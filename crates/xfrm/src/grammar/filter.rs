//! Which states and policies `list` and `deleteall` are about. What is not named fits all.

use std::net::IpAddr;

use uxfrm_engine::{
    Action, Direction, Family, Mode, Policy, PolicyFlags, PolicyIndex, PolicyKind, Prefix,
    Priority, Reqid, SaConfig, SaFlags, SaProtocol, Spi,
};

pub use super::selector::SelectorFilter;

/// Of states (`ip/xfrm_state.c: xfrm_state_filter_match`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateFilter {
    /// Family of the outer header.
    pub family: Option<Family>,
    /// Source lies in it.
    pub source: Option<Prefix>,
    /// Destination lies in it.
    pub destination: Option<Prefix>,
    /// Exactly this protocol.
    pub protocol: Option<SaProtocol>,
    /// Exactly this SPI.
    pub spi: Option<Spi>,
    /// Exactly this mode.
    pub mode: Option<Mode>,
    /// Exactly this request id.
    pub reqid: Option<Reqid>,
    /// At least one of these flags.
    pub flags: Option<SaFlags>,
}

/// Of policies (`ip/xfrm_policy.c: xfrm_policy_filter_match`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyFilter {
    /// In, out or forward.
    pub direction: Option<Direction>,
    /// Its selector's prefixes lie in these and its other fields are these.
    pub selector: SelectorFilter,
    /// Exactly this index.
    pub index: Option<PolicyIndex>,
    /// Main or sub.
    pub kind: Option<PolicyKind>,
    /// Allow or block.
    pub action: Option<Action>,
    /// Exactly this priority.
    pub priority: Option<Priority>,
    /// At least one of these flags.
    pub flags: Option<PolicyFlags>,
    /// `nosock`: none of those that sockets have.
    pub no_sockets: bool,
}

impl StateFilter {
    /// Whether a state is meant.
    #[must_use]
    pub fn fits(&self, state: &SaConfig) -> bool {
        fits_prefix(self.source, state.source)
            && fits_prefix(self.destination, state.id.destination)
            && self.family.is_none_or(|family| family == state.family())
            && self.protocol.is_none_or(|protocol| protocol == state.id.protocol)
            && self.spi.is_none_or(|spi| spi == state.id.spi)
            && self.mode.is_none_or(|mode| mode == state.mode)
            && self.reqid.is_none_or(|reqid| reqid == state.reqid)
            && self.flags.is_none_or(|flags| flags.intersects(state.flags))
    }
}

impl PolicyFilter {
    /// Whether a policy is meant.
    #[must_use]
    pub fn fits(&self, policy: &Policy, index: PolicyIndex) -> bool {
        self.direction.is_none_or(|direction| direction == policy.direction)
            && self.selector.fits(&policy.selector)
            && self.index.is_none_or(|wanted| wanted == index)
            && self.kind.is_none_or(|kind| kind == policy.kind)
            && self.action.is_none_or(|action| action == policy.action)
            && self.priority.is_none_or(|priority| priority == policy.priority)
            && self.flags.is_none_or(|flags| flags.intersects(policy.flags))
    }
}

/// Whether an address lies in a prefix, if one was named.
fn fits_prefix(named: Option<Prefix>, address: IpAddr) -> bool {
    named.is_none_or(|prefix| prefix.contains(address))
}

#[cfg(test)]
mod tests {
    use uxfrm_engine::Selector;

    use super::*;

    #[test]
    fn filter_without_field_matches_all() {
        let selector = Selector {
            source: Prefix::new("10.1.0.0".parse().unwrap(), 16).unwrap(),
            ..Selector::any(Family::V4)
        };
        assert!(SelectorFilter::default().fits(&selector));
        let named = |net: &str, len| {
            let source = Prefix::new(net.parse().unwrap(), len).ok();
            SelectorFilter { source, ..SelectorFilter::default() }.fits(&selector)
        };
        assert!(named("10.0.0.0", 8) && named("10.1.0.0", 16));
        assert!(!named("10.2.0.0", 16) && !named("10.1.2.0", 24) && !named("::", 0));
    }
}
