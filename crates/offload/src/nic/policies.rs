//! The policies on a device, in the order in which packets meet them: lower priority first, then the older one.
//!
//! As in hardware there are few. They are compared one by one, but for the packets of a flow behind its first.

use uxfrm_engine::{Action, Direction, FlowKey, Handle, Policy, Priority, Reqid};

/// The policies of a device.
#[derive(Debug, Default)]
pub(super) struct PolicyTable {
    rows: Vec<Row>,
    /// The flow that asked last of each direction, and what it was told.
    latest: [Option<(FlowKey, Ruling)>; 2],
}

/// What a policy on the device says of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ruling {
    /// None matches.
    None,
    /// Block.
    Block,
    /// Allow, through states of this reqid; 0 is any.
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

    /// What the first that matches says. Forwarding policies are for the stack, which alone knows what is forwarded.
    pub(super) fn ruling(&mut self, direction: Direction, flow: &FlowKey) -> Ruling {
        if self.rows.is_empty() {
            return Ruling::None;
        }
        let latest = usize::from(direction == Direction::Out);
        match &self.latest[latest] {
            Some((known, ruling)) if known == flow => return *ruling,
            Some(_) | None => {}
        }
        let found = self.rows.iter().find(|row| row.matches(direction, flow));
        let ruling = found.map_or(Ruling::None, Row::ruling);
        self.latest[latest] = Some((*flow, ruling));
        ruling
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

    fn ruling(&self) -> Ruling {
        match self.policy.action {
            Action::Block => Ruling::Block,
            Action::Allow => {
                let template = self.policy.templates.first();
                Ruling::Allow(template.map_or(Reqid(0), |template| template.reqid))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use uxfrm_testkit::{Way, Wrapping};

    use super::*;

    fn flow() -> FlowKey {
        let (source, destination) = Wrapping::tunnel4().hosts(Way::Right);
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
        let policy = Wrapping::tunnel4().policy(Direction::In, Way::Right);
        Policy { priority: Priority(priority), action, ..policy }
    }

    #[test]
    fn lower_priority_goes_first_then_the_older() {
        let mut table = PolicyTable::default();
        assert_eq!(table.ruling(Direction::In, &flow()), Ruling::None);
        table.insert(Handle(1), policy(20, Action::Allow));
        assert_eq!(table.ruling(Direction::In, &flow()), Ruling::Allow(Reqid(1)));
        table.insert(Handle(2), policy(20, Action::Block));
        assert_eq!(table.ruling(Direction::In, &flow()), Ruling::Allow(Reqid(1)), "the older");
        table.insert(Handle(3), policy(10, Action::Block));
        assert_eq!(table.ruling(Direction::In, &flow()), Ruling::Block);
        assert_eq!(table.ruling(Direction::Out, &flow()), Ruling::None);
        table.delete(Handle(3));
        assert_eq!(table.ruling(Direction::In, &flow()), Ruling::Allow(Reqid(1)));
        table.delete(Handle(1));
        assert_eq!(table.ruling(Direction::In, &flow()), Ruling::Block);
        let elsewhere = FlowKey { destination: [10, 3, 0, 1].into(), ..flow() };
        assert_eq!(table.ruling(Direction::In, &elsewhere), Ruling::None);
    }
}
