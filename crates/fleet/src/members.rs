//! The gateways of a pool, and which of them have children.
//!
//! One record says it for the whole pool, and its serial number is the **epoch**: who has which
//! child follows from this record and the pool's tunnels ([`Placement`]). A gateway is lost, comes
//! back or drains by one transaction on this record. All that gateways write of numbers holds only
//! under the epoch that they knew ([`numbers`](crate::numbers), [`edges`](crate::edges)).

use std::{collections::BTreeMap, net::SocketAddr};

use serde::{Deserialize, Serialize};

use crate::{
    edges::Reach,
    names::{ChildId, GatewayName},
    placement::{Placement, PlacementTarget},
};

/// The gateways of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Members {
    /// All that joined and did not leave.
    pub gateways: BTreeMap<GatewayName, Member>,
}

/// A gateway of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Its share of the children, compared to others'.
    pub weight: u32,
    /// How many children it takes.
    pub capacity: u32,
    /// Whether it has any.
    pub duty: Duty,
    /// Where it takes heartbeats, and packets that others hand on to it.
    pub address: SocketAddr,
}

/// Whether a gateway has children.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Duty {
    /// It has its share.
    Active,
    /// It gives its children to others, one after the other, before maintenance.
    Draining,
    /// It is lost: others have its children, and know up to where it accepted packets. It comes
    /// back by its own will alone.
    Down(Reach),
}

impl Members {
    /// Those that have children.
    pub fn active(&self) -> impl Iterator<Item = (&GatewayName, &Member)> {
        self.gateways.iter().filter(|(_, member)| member.duty == Duty::Active)
    }

    /// Where the children of the pool are to be.
    #[must_use]
    pub fn owners<'a>(&'a self, children: &[ChildId]) -> Vec<Option<&'a GatewayName>> {
        let candidate = |(name, member): (&'a GatewayName, &Member)| PlacementTarget {
            name,
            weight: member.weight,
            capacity: member.capacity,
        };
        let candidates: Vec<_> = self.active().map(candidate).collect();
        let placement = Placement::of(children, &candidates);
        placement.iter().map(|place| Some(candidates[place?].name)).collect()
    }

    /// How many votes take a gateway's children from it: those of more than half of the gateways
    /// that `live`, itself among them. None where they are one or two: then only the end of its
    /// lease does.
    #[must_use]
    pub const fn votes_needed(live: usize) -> Option<usize> {
        if live < 3 { None } else { Some(live / 2 + 1) }
    }

    /// The same, with another duty of one gateway; none where it has that already.
    #[must_use]
    pub fn with_duty(&self, gateway: &GatewayName, duty: Duty) -> Option<Self> {
        let mut changed = self.clone();
        let member = changed.gateways.get_mut(gateway)?;
        (member.duty != duty).then(|| member.duty = duty)?;
        Some(changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(duty: Duty) -> Member {
        Member { weight: 1, capacity: 10, duty, address: "192.0.2.1:4600".parse().unwrap() }
    }

    fn members(duties: &[(&str, Duty)]) -> Members {
        let gateways = duties.iter().map(|(name, duty)| (name.parse().unwrap(), member(*duty)));
        Members { gateways: gateways.collect() }
    }

    #[test]
    fn only_active_gateways_have_children() {
        let members =
            members(&[("a", Duty::Active), ("b", Duty::Draining), ("c", Duty::Down(Reach::Near))]);
        let child = |index| ChildId { tunnel: "t".parse().unwrap(), index };
        let owners = members.owners(&[child(0), child(1)]);
        assert!(owners.iter().all(|owner| owner.unwrap().as_str() == "a"), "{owners:?}");
    }

    #[test]
    fn votes_by_table() {
        for (live, needed) in [
            (0, None),
            (1, None),
            (2, None),
            (3, Some(2)),
            (4, Some(3)),
            (5, Some(3)),
            (9, Some(5)),
        ] {
            assert_eq!(Members::votes_needed(live), needed, "{live}");
        }
    }

    #[test]
    fn a_duty_changes_once() {
        let before = members(&[("a", Duty::Active)]);
        let (a, b) = ("a".parse().unwrap(), "b".parse().unwrap());
        let after = before.with_duty(&a, Duty::Down(Reach::Far)).unwrap();
        assert_eq!(after.gateways[&a].duty, Duty::Down(Reach::Far));
        assert_eq!(after.with_duty(&a, Duty::Down(Reach::Far)), None);
        assert_eq!(after.with_duty(&b, Duty::Down(Reach::Far)), None);
    }
}
