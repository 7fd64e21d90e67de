//! Policies of a device in match order: lower priority first, then older.
//!
//! As in hardware there are few: they are compared one by one, except for later packets of a flow.

use uxfrm_engine::{Action, Direction, FlowKey, Handle, Policy, Priority, Reqid};

/// The policies of a device.
#[derive(Debug, Default)]
pub(super) struct PolicyTable {
    rows: Vec<Row>,
    /// The last flow of each direction, and its verdict.
    latest: [Option<(FlowKey, PolicyVerdict)>; 2],
}

/// Verdict of the device's policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PolicyVerdict {
    /// No match.
    None,
    /// Block.
    Block,
    /// Allow, through SAs of this reqid; 0 is any.
    Allow(Reqid),
}

#[derive(Debug)]
struct Row {
    priority: Priority,
    handle: Handle,
    policy: Policy,
}

impl PolicyTable {
    pub(super) fn insert(&mut self, handle: Handle, policy: Policy) {
        let priority = policy.priority;
        let place = self.rows.partition_point(|row| row.priority.0 <= priority.0);
        self.rows.insert(place, Row { priority, handle, policy });
        self.latest = [None; 2];
    }

    pub(super) fn delete(&mut self, handle: Handle) {
        self.rows.retain(|row| row.handle != handle);
        self.latest = [None; 2];
    }

    /// Verdict of the first match. Forward policies are left to the stack, which alone knows what
    /// is forwarded.
    pub(super) fn verdict(&mut self, direction: Direction, flow: &FlowKey) -> PolicyVerdict {
        if self.rows.is_empty() {
            return PolicyVerdict::None;
        }
        let latest = usize::from(direction == Direction::Out);
        match &self.latest[latest] {
            Some((known, verdict)) if known == flow => return *verdict,
            Some(_) | None => {}
        }
        let found = self.rows.iter().find(|row| row.matches(direction, flow));
        let verdict = found.map_or(PolicyVerdict::None, Row::verdict);
        self.latest[latest] = Some((*flow, verdict));
        verdict
    }
}

impl Row {
    fn matches(&self, direction: Direction, flow: &FlowKey) -> bool {
        let Policy { mark, if_id, selector, .. } = &self.policy;
        self.policy.direction == direction
            && mark.fits(flow.mark)
            && flow.if_id == if_id.0
            && selector.family() == uxfrm_engine::Family::of(flow.destination)
            && selector.matches(flow)
    }

    fn verdict(&self) -> PolicyVerdict {
        match self.policy.action {
            Action::Block => PolicyVerdict::Block,
            Action::Allow => {
                let template = self.policy.templates.first();
                PolicyVerdict::Allow(template.map_or(Reqid(0), |template| template.reqid))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use uxfrm_testkit::{IpsecSetup, PairDirection};

    use super::*;

    fn flow() -> FlowKey {
        let (source, destination) = IpsecSetup::tunnel4().hosts(PairDirection::LeftToRight);
        FlowKey {
            source,
            destination,
            protocol: 17,
            source_port: 1,
            destination_port: 2,
            mark: 0,
            if_id: 0,
            ifindex: 0,
        }
    }

    fn policy(priority: u32, action: Action) -> Policy {
        let policy = IpsecSetup::tunnel4().policy(Direction::In, PairDirection::LeftToRight);
        Policy { priority: Priority(priority), action, ..policy }
    }

    #[test]
    fn lower_priority_goes_first_then_the_older() {
        let mut table = PolicyTable::default();
        assert_eq!(table.verdict(Direction::In, &flow()), PolicyVerdict::None);
        table.insert(Handle(1), policy(20, Action::Allow));
        assert_eq!(table.verdict(Direction::In, &flow()), PolicyVerdict::Allow(Reqid(1)));
        table.insert(Handle(2), policy(20, Action::Block));
        assert_eq!(
            table.verdict(Direction::In, &flow()),
            PolicyVerdict::Allow(Reqid(1)),
            "the older"
        );
        table.insert(Handle(3), policy(10, Action::Block));
        assert_eq!(table.verdict(Direction::In, &flow()), PolicyVerdict::Block);
        assert_eq!(table.verdict(Direction::Out, &flow()), PolicyVerdict::None);
        table.delete(Handle(3));
        assert_eq!(table.verdict(Direction::In, &flow()), PolicyVerdict::Allow(Reqid(1)));
        table.delete(Handle(1));
        assert_eq!(table.verdict(Direction::In, &flow()), PolicyVerdict::Block);
        let elsewhere = FlowKey { destination: [10, 3, 0, 1].into(), ..flow() };
        assert_eq!(table.verdict(Direction::In, &elsewhere), PolicyVerdict::None);
    }
}
