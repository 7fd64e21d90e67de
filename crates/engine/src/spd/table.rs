//! The security policy database as workers see it: immutable; which policy decides over a packet.

use std::sync::Arc;

use crate::{Action, Direction, FlowKey, PolicyEntry, PolicyKind};

/// All policies of one generation, and what happens to packets that match none.
#[derive(Clone, Debug, Default)]
pub struct Spd {
    lists: [[Arc<[Arc<PolicyEntry>]>; 2]; 3],
    defaults: Defaults,
}

/// `ip xfrm policy setdefault`: what happens to packets that match no policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defaults {
    /// For packets to this host.
    pub inbound: Action,
    /// For packets through this host.
    pub forward: Action,
    /// For packets leaving.
    pub outbound: Action,
}

/// The answer to [`Spd::lookup`].
#[derive(Clone, Copy, Debug)]
pub enum Lookup<'a> {
    /// The policy that decides.
    Policy(&'a Arc<PolicyEntry>),
    /// None matches; this is the default of the direction.
    Default(Action),
}

impl Spd {
    /// The policy that decides: the first match among sub policies, else among main ones (`xfrm_policy_lookup`). To a sub policy that
    /// allows belongs the main one as well: [`Spd::lookup_kind`] finds it (`xfrm_expand_policies`).
    #[must_use]
    pub fn lookup(&self, direction: Direction, flow: &FlowKey) -> Lookup<'_> {
        let sub = self.lookup_kind(PolicyKind::Sub, direction, flow);
        match sub.or_else(|| self.lookup_kind(PolicyKind::Main, direction, flow)) {
            Some(entry) => Lookup::Policy(entry),
            None => Lookup::Default(self.defaults.of(direction)),
        }
    }

    /// The first match among policies of one kind: offloaded ones, then by priority, then the older.
    #[must_use]
    pub fn lookup_kind(
        &self,
        kind: PolicyKind,
        direction: Direction,
        flow: &FlowKey,
    ) -> Option<&Arc<PolicyEntry>> {
        self.list(kind, direction).iter().find(|entry| entry.matches(flow))
    }

    /// All policies of a kind and direction, in the order of looking.
    #[must_use]
    pub fn list(&self, kind: PolicyKind, direction: Direction) -> &[Arc<PolicyEntry>] {
        &self.lists[direction as usize][kind as usize]
    }

    /// All policies.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<PolicyEntry>> {
        self.lists.iter().flatten().flat_map(|list| list.iter())
    }

    /// What happens to packets that match none.
    #[must_use]
    pub const fn defaults(&self) -> Defaults {
        self.defaults
    }

    pub(crate) fn set_defaults(&mut self, defaults: Defaults) {
        self.defaults = defaults;
    }

    pub(crate) fn set_list(
        &mut self,
        kind: PolicyKind,
        direction: Direction,
        list: Arc<[Arc<PolicyEntry>]>,
    ) {
        self.lists[direction as usize][kind as usize] = list;
    }
}

impl Defaults {
    /// The default of a direction.
    #[must_use]
    pub const fn of(self, direction: Direction) -> Action {
        match direction {
            Direction::In => self.inbound,
            Direction::Forward => self.forward,
            Direction::Out => self.outbound,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
