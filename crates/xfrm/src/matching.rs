//! Filters a dump for `list` by bytes, as iproute2 does after the server's filter.

use uxfrm_engine::{PortMask, Prefix};
use uxfrm_netlink::client::{self, RawAddress, RawPolicy, RawSa, RawSelector};

use crate::{
    grammar::{PolicyFilter, SelectorFilter, StateFilter},
    text::SOCKET,
};

impl StateFilter {
    /// Whether a state is meant (`ip/xfrm_state.c: xfrm_state_filter_match`).
    #[must_use]
    pub fn means(&self, state: &RawSa) -> bool {
        self.family.is_none_or(|family| client::family_number(family) == state.family)
            && begins(self.source, state.source)
            && begins(self.destination, state.id.destination)
            && self.protocol.is_none_or(|one| one.number() == state.id.protocol)
            && self.spi.is_none_or(|spi| spi.0 == state.id.spi.get())
            && self.mode.is_none_or(|mode| client::mode_number(mode) == state.mode)
            && self.reqid.is_none_or(|reqid| reqid.0 == state.reqid)
            && self.flags.is_none_or(|flags| flags.bits() & state.flags != 0)
    }
}

impl PolicyFilter {
    /// Whether a policy of type `kind` is meant (`ip/xfrm_policy.c: xfrm_policy_filter_match`).
    #[must_use]
    pub fn means(&self, policy: &RawPolicy, kind: u8) -> bool {
        let direction = self.direction.map(client::policy_direction);
        direction.is_none_or(|direction| direction == policy.direction)
            && !(self.no_sockets && policy.direction >= SOCKET)
            && self.kind.is_none_or(|wanted| client::kind_number(wanted) == kind)
            && self.selector.means(&policy.selector)
            && self.index.is_none_or(|index| index.0 == policy.index)
            && self.action.is_none_or(|action| client::action_number(action) == policy.action)
            && self.priority.is_none_or(|priority| priority.0 == policy.priority)
            && self.flags.is_none_or(|flags| flags.bits() & policy.flags != 0)
    }
}

impl SelectorFilter {
    fn means(&self, selector: &RawSelector) -> bool {
        let port = |wanted: Option<PortMask>, port: u16| wanted.is_none_or(|one| one.value == port);
        self.family.is_none_or(|family| client::family_number(family) == selector.family)
            && begins(self.source, selector.source)
            && begins(self.destination, selector.destination)
            && self.ifindex.is_none_or(|ifindex| ifindex == selector.ifindex)
            && self.protocol.is_none_or(|protocol| protocol == selector.protocol)
            && port(self.source_port, selector.source_port.get())
            && port(self.destination_port, selector.destination_port.get())
    }
}

/// Only the bits of the prefix count, whatever the address is the beginning of.
fn begins(prefix: Option<Prefix>, address: RawAddress) -> bool {
    prefix.is_none_or(|prefix| {
        client::matches(client::raw(prefix.address()), address, prefix.prefix_len())
    })
}
