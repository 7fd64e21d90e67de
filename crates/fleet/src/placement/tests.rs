use std::collections::{BTreeMap, HashSet};

use proptest::prelude::*;

use super::{score::score, *};

/// Gateways by name, weight and capacity.
type Gateways = BTreeMap<GatewayName, (u32, u32)>;

fn gateways(count: usize, weight: u32, capacity: u32) -> Gateways {
    (0..count).map(|number| (gateway(number), (weight, capacity))).collect()
}

fn gateway(number: usize) -> GatewayName {
    format!("gw-{number}").parse().unwrap()
}

fn children(tunnels: usize, each: u16) -> Vec<ChildId> {
    let tunnel = |number: usize| format!("tunnel-{number}").parse().unwrap();
    let ids = |number| (0..each).map(move |index| ChildId { tunnel: tunnel(number), index });
    (0..tunnels).flat_map(ids).collect()
}

fn candidates(gateways: &Gateways) -> Vec<PlacementTarget<'_>> {
    let candidate = |(name, (weight, capacity)): (_, &(u32, u32))| PlacementTarget {
        name,
        weight: *weight,
        capacity: *capacity,
    };
    gateways.iter().map(candidate).collect()
}

fn placed(children: &[ChildId], gateways: &Gateways) -> BTreeMap<ChildId, GatewayName> {
    let candidates = candidates(gateways);
    let placement = Placement::of(children, &candidates);
    let at = |(child, place): (&ChildId, Option<usize>)| {
        Some((child.clone(), candidates[place?].name.clone()))
    };
    children.iter().zip(placement.iter()).filter_map(at).collect()
}

fn moved(
    before: &BTreeMap<ChildId, GatewayName>,
    after: &BTreeMap<ChildId, GatewayName>,
) -> Vec<ChildId> {
    let differs = |(child, at): (&ChildId, &GatewayName)| {
        (after.get(child) != Some(at)).then(|| child.clone())
    };
    before.iter().filter_map(differs).collect()
}

#[test]
fn only_the_children_of_a_lost_gateway_move() {
    let (children, mut gateways) = (children(2_000, 1), gateways(10, 1, u32::MAX));
    let before = placed(&children, &gateways);
    gateways.remove(&gateway(3));
    let after = placed(&children, &gateways);
    let lost: Vec<_> = before.iter().filter(|(_, at)| **at == gateway(3)).collect();
    assert_eq!(moved(&before, &after).len(), lost.len());
    assert!(moved(&before, &after).iter().all(|child| before[child] == gateway(3)));
    assert!((100..300).contains(&lost.len()), "{}", lost.len());
}

#[test]
fn shares_follow_weights() {
    let (children, mut gateways) = (children(6_000, 1), gateways(3, 1, u32::MAX));
    gateways.insert(gateway(0), (4, u32::MAX));
    gateways.insert(gateway(1), (0, u32::MAX));
    let placed = placed(&children, &gateways);
    let share = |number| placed.values().filter(|at| **at == gateway(number)).count();
    assert_eq!(share(1), 0);
    // 4,800 expected, with a standard deviation of 31.
    assert!((4_600..5_000).contains(&share(0)), "{}", share(0));
}

#[test]
fn full_gateways_displace_few() {
    // A tenth of room is left: each child that moves may displace another, at most some times.
    let (children, mut gateways) = (children(1_000, 1), gateways(11, 1, 100));
    let before = placed(&children, &gateways);
    assert_eq!(before.len(), 1_000);
    let lost = before.values().filter(|at| **at == gateway(5)).count();
    gateways.remove(&gateway(5));
    let after = placed(&children, &gateways);
    assert_eq!(after.len(), 1_000);
    let moved = moved(&before, &after).len();
    assert!(moved >= lost && moved < 6 * lost, "{moved} moved, {lost} lost their gateway");
}

#[test]
fn what_finds_no_room_is_told() {
    let (children, gateways) = (children(30, 1), gateways(2, 1, 10));
    assert_eq!(placed(&children, &gateways).len(), 20);
    assert!(placed(&children, &Gateways::new()).is_empty());
}

#[test]
fn children_of_a_tunnel_are_together_only_where_gateways_are_few() {
    let few = placed(&children(10, 5), &gateways(3, 1, u32::MAX));
    assert_eq!(few.len(), 50);
    for tunnel in 0..10 {
        let own =
            few.iter().filter(|(child, _)| child.tunnel.as_str() == format!("tunnel-{tunnel}"));
        assert_eq!(own.map(|(_, at)| at).collect::<HashSet<_>>().len(), 3);
    }
}

/// Tunnels with their children, and gateways; small, so that gateways are full or too few.
fn cases() -> impl Strategy<Value = (Vec<ChildId>, Gateways)> {
    let tunnels = proptest::collection::vec(1_u16..4, 0..12);
    let gateways = proptest::collection::vec((0_u32..4, 0_u32..6), 0..6);
    (tunnels, gateways).prop_map(|(tunnels, gateways)| {
        let of = |(number, each): (usize, &u16)| {
            let tunnel: crate::names::TunnelName = format!("t{number}").parse().unwrap();
            (0..*each).map(move |index| ChildId { tunnel: tunnel.clone(), index })
        };
        let children = tunnels.iter().enumerate().flat_map(of).collect();
        (children, (0..).map(gateway).zip(gateways).collect())
    })
}

proptest! {
    #[test]
    fn no_gateway_has_more_than_it_takes((children, gateways) in cases()) {
        let placed = placed(&children, &gateways);
        for (name, (weight, capacity)) in &gateways {
            let own = placed.values().filter(|at| *at == name).count();
            prop_assert!(own <= usize::try_from(*capacity).unwrap());
            prop_assert!(*weight > 0 || own == 0);
        }
        let room: usize = gateways.values().filter(|(weight, _)| *weight > 0)
            .map(|(_, capacity)| usize::try_from(*capacity).unwrap()).sum();
        prop_assert_eq!(placed.len(), room.min(children.len()));
    }

    #[test]
    fn the_order_of_arguments_is_nothing((children, gateways) in cases(), turn in 0_usize..10) {
        let mut turned = children.clone();
        if !turned.is_empty() {
            let by = turn % turned.len();
            turned.rotate_left(by);
        }
        prop_assert_eq!(placed(&children, &gateways), placed(&turned, &gateways));
    }

    #[test]
    fn no_pair_would_rather_be_together((children, gateways) in cases()) {
        let candidates = candidates(&gateways);
        let placement = Placement::of(&children, &candidates);
        let places: Vec<_> = placement.iter().collect();
        // Where children are together as gateways are too few, the rest has no such rule.
        let alone = |child: usize| !(0..children.len()).any(|other| {
            other != child
                && children[other].tunnel == children[child].tunnel
                && places[other].is_some()
                && places[other] == places[child]
        });
        prop_assume!((0..children.len()).all(alone));
        for (child, id) in children.iter().enumerate() {
            for (at, candidate) in candidates.iter().enumerate() {
                if candidate.weight == 0 || candidate.capacity == 0 {
                    continue;
                }
                let wish = score(id, candidate);
                let is_dearer = places[child].is_none_or(|place| {
                    wish > score(id, &candidates[place])
                });
                let held: Vec<_> = (0..children.len()).filter(|other| places[*other] == Some(at))
                    .collect();
                let sibling = held.iter().find(|other| children[**other].tunnel == id.tunnel);
                let full = held.len() >= usize::try_from(candidate.capacity).unwrap();
                let would = match sibling {
                    Some(sibling) => wish > score(&children[*sibling], candidate),
                    None if !full => true,
                    None => held.iter().any(|other| wish > score(&children[*other], candidate)),
                };
                prop_assert!(!(is_dearer && would), "{id} and {}", candidate.name);
            }
        }
    }
}
