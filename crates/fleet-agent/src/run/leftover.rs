//! Children that the gateway has from an earlier agent.
//!
//! The new agent installs those that are its own, and they go on. What it has not installed some
//! time after it knows its place goes.

use std::collections::BTreeSet;

use uxfrm_fleet::{
    agent::{GatewayOrder, Millis},
    names::ChildId,
};

/// How long the agent has to install its own children, once it knows the pool: etcd may be slow.
const PATIENCE: Millis = 10_000;

/// What is left of an earlier agent.
#[derive(Debug, Default)]
pub(super) struct Leftover {
    children: BTreeSet<ChildId>,
    /// When the agent knew the pool.
    known_at: Option<Millis>,
}

impl Leftover {
    /// The gateway has these.
    pub(super) fn found(&mut self, children: Vec<ChildId>) {
        self.children.extend(children);
    }

    /// The agent orders something.
    pub(super) fn note(&mut self, order: &GatewayOrder, now: Millis) {
        match order {
            GatewayOrder::Base(_) => {
                self.known_at.get_or_insert(now);
            }
            GatewayOrder::Install(child, _) | GatewayOrder::Remove(child) => {
                self.children.remove(child);
            }
            GatewayOrder::Open { .. }
            | GatewayOrder::Limit(..)
            | GatewayOrder::Numbers(..)
            | GatewayOrder::Freeze(_)
            | GatewayOrder::Deadline(_) => {}
        }
    }

    /// What is to be ordered beside.
    pub(super) fn due(&mut self, now: Millis) -> Vec<GatewayOrder> {
        let is_due = self.known_at.is_some_and(|known_at| now >= known_at + PATIENCE);
        if !is_due || self.children.is_empty() {
            return Vec::new();
        }
        let gone = std::mem::take(&mut self.children).into_iter();
        gone.map(GatewayOrder::Remove).collect()
    }
}

#[cfg(test)]
mod tests {
    use uxfrm_fleet::desired::Lines;

    use super::*;

    fn child(index: u16) -> ChildId {
        ChildId { tunnel: "t".parse().unwrap(), index }
    }

    #[test]
    fn what_is_not_installed_again_goes() {
        let mut leftover = Leftover::default();
        leftover.found(vec![child(0), child(1)]);
        assert_eq!(leftover.due(1_000_000), [], "before the pool is known");
        leftover.note(&GatewayOrder::Base(Lines::default()), 5_000);
        leftover.note(&GatewayOrder::Install(child(0), Vec::new()), 5_100);
        leftover.note(&GatewayOrder::Base(Lines::default()), 14_000);
        assert_eq!(leftover.due(5_000 + PATIENCE - 1), []);
        assert_eq!(leftover.due(5_000 + PATIENCE), [GatewayOrder::Remove(child(1))]);
        assert_eq!(leftover.due(1_000_000), []);
    }
}
