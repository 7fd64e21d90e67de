use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// A kernel's table.
#[derive(Debug, Default)]
struct Table(BTreeMap<Destination, Option<IpAddr>>);

impl Table {
    /// The source of the route that a packet to `address` takes.
    fn route(&self, address: IpAddr) -> Option<Option<IpAddr>> {
        longest(self.0.iter().map(|(at, source)| (*at, *source)), address).map(|(_, source)| source)
    }

    /// Takes the steps one by one; no address of `kept` is ever without a route.
    fn take(&mut self, steps: Steps, kept: &[IpAddr]) {
        let all_kept = |table: &Self| kept.iter().all(|kept| table.route(*kept).is_some());
        for (at, source) in steps.put {
            self.0.insert(at, source);
            assert!(all_kept(self));
        }
        for at in steps.delete {
            assert!(self.0.remove(&at).is_some(), "{at:?} was not there");
            assert!(all_kept(self));
        }
    }
}

fn longest(
    all: impl Iterator<Item = (Destination, Option<IpAddr>)>,
    address: IpAddr,
) -> Option<(Destination, Option<IpAddr>)> {
    all.filter(|((net, len), _)| cut(address, *len) == *net).max_by_key(|((_, len), _)| *len)
}

/// `address` without what is behind its first `len` bits; a net of the other family is another one.
fn cut(address: IpAddr, len: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => (len + 1..=32).fold(v4, |v4, bit| v4.cleared(bit)).into(),
        IpAddr::V6(v6) => (len + 1..=128).fold(v6, |v6, bit| v6.cleared(bit)).into(),
    }
}

fn other_half(address: IpAddr, len: u8) -> IpAddr {
    let other = |set: IpAddr, cleared: IpAddr| if set == address { cleared } else { set };
    match address {
        IpAddr::V4(v4) => other(v4.set(len).into(), v4.cleared(len).into()),
        IpAddr::V6(v6) => other(v6.set(len).into(), v6.cleared(len).into()),
    }
}

fn v4(last: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, last).into()
}

fn v6(last: u8) -> IpAddr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into()).into()
}

/// Sixteen addresses of each family, and prefixes that hold from one to all of them.
fn destination() -> impl Strategy<Value = Destination> {
    (0_u8..16, 0_u8..6, any::<bool>()).prop_map(|(last, shorter, four)| {
        let len = if four { 32 - shorter } else { 128 - shorter };
        (cut(if four { v4(last) } else { v6(last) }, len), len)
    })
}

fn source() -> impl Strategy<Value = Option<IpAddr>> {
    prop_oneof![8 => Just(None), 2 => Just(Some(v4(200))), 1 => Just(Some(v4(201)))]
}

#[derive(Clone, Debug)]
enum Event {
    Comes(Destination, Option<IpAddr>),
    Goes(prop::sample::Index),
    StartsOver,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        12 => (destination(), source()).prop_map(|(at, source)| Event::Comes(at, source)),
        8 => any::<prop::sample::Index>().prop_map(Event::Goes),
        1 => Just(Event::StartsOver),
    ];
    prop::collection::vec(event, 1..150)
}

proptest! {
    #[test]
    fn routes_follow_longest_prefix_policy(events in events()) {
        let all: Vec<IpAddr> = (0..32).map(v4).chain((0..32).map(v6)).collect();
        let (mut destinations, mut table) = (Destinations::default(), Table::default());
        let mut wishes: Vec<(Destination, Option<IpAddr>)> = Vec::new();
        for event in events {
            let joins = matches!(event, Event::StartsOver);
            let before: Vec<_> = all.iter().filter(|address| table.route(**address).is_some()).copied().collect();
            match event {
                Event::Comes(at, source) => {
                    destinations.count_in(at, source);
                    wishes.push((at, source));
                }
                Event::Goes(which) if !wishes.is_empty() => {
                    let (at, source) = wishes.swap_remove(which.index(wishes.len()));
                    destinations.count_out(at, source);
                }
                Event::Goes(_) => {}
                Event::StartsOver => {
                    destinations.clear_demand();
                    wishes.iter().for_each(|(at, source)| destinations.count_in(*at, *source));
                    destinations.join();
                }
            }
            let wanted = |address: IpAddr| longest(wishes.iter().copied(), address);
            let kept: Vec<_> = before.into_iter().filter(|address| wanted(*address).is_some()).collect();
            table.take(destinations.take_steps(), &kept);

            for address in &all {
                let (wanted, route) = (wanted(*address), table.route(*address));
                prop_assert_eq!(wanted.is_some(), route.is_some(), "{}", address);
                if let (Some((at, _)), Some(route)) = (wanted, route) {
                    prop_assert!(wishes.contains(&(at, route)), "{} by {:?}", address, route);
                }
            }
            for ((address, len), source) in table.0.iter().filter(|_| joins) {
                let beside = table.0.get(&(other_half(*address, *len), *len));
                prop_assert!(beside != Some(source), "{}/{}", address, len);
            }
        }
        for (at, source) in wishes {
            destinations.count_out(at, source);
        }
        table.take(destinations.take_steps(), &[]);
        prop_assert!(table.0.is_empty());
        prop_assert!(destinations.four.nodes.is_empty() && destinations.six.nodes.is_empty());
    }
}

#[test]
fn pool_has_one_route_minus_leaving_client() {
    let (mut destinations, mut table) = (Destinations::default(), Table::default());
    let client = |number: u32| (IpAddr::from(Ipv4Addr::from_bits(10 << 24 | number)), 32);
    (0..4096).for_each(|number| destinations.count_in(client(number), None));
    destinations.join();
    table.take(destinations.take_steps(), &[]);
    assert_eq!(table.0.keys().collect::<Vec<_>>(), [&(v4(0), 20)]);

    destinations.count_out(client(77), None);
    table.take(destinations.take_steps(), &[client(76).0, client(4095).0]);
    assert_eq!((table.0.len(), table.route(client(77).0)), (12, None));

    // It comes back, and is joined with the others at the next start.
    destinations.count_in(client(77), None);
    table.take(destinations.take_steps(), &[client(76).0]);
    assert_eq!((table.0.len(), table.route(client(77).0)), (13, Some(None)));
    destinations.clear_demand();
    (0..4096).for_each(|number| destinations.count_in(client(number), None));
    destinations.join();
    table.take(destinations.take_steps(), &[client(77).0]);
    assert_eq!(table.0.len(), 1);
}

#[test]
fn unverified_route_is_remade_or_deleted() {
    let mut destinations = Destinations::default();
    let [this, that] = [(v4(4), 32), (v4(6), 32)];
    destinations.count_in(this, None);
    destinations.count_in(that, None);
    assert_eq!(destinations.take_steps().put.len(), 2);
    destinations.mark_unverified(this);
    destinations.count_out(that, None);
    destinations.take_steps();
    destinations.mark_unverified(that);
    destinations.clear_demand();
    destinations.count_in(this, None);
    let steps = destinations.take_steps();
    assert_eq!((steps.put, steps.delete), (vec![(this, None)], vec![that]));
}

#[test]
fn million_prefixes_take_bounded_memory() {
    assert_eq!(
        [size_of::<((Ipv4Addr, u8), Node)>(), size_of::<((Ipv6Addr, u8), Node)>()],
        [28, 40]
    );
}

/// Any address will do for a policy that names none of the host's: the one that needs a certain one
/// gets it, whichever is counted in first.
#[test]
fn needed_source_precedes_none() {
    for wishes in [[None, Some(v4(200))], [Some(v4(200)), None]] {
        let mut destinations = Destinations::default();
        destinations.clear_demand();
        wishes.iter().for_each(|source| destinations.count_in((v4(0), 24), *source));
        destinations.join();
        assert_eq!(destinations.take_steps().put, [((v4(0), 24), Some(v4(200)))], "{wishes:?}");
    }
}

#[test]
fn destinations_memory_is_released() {
    let mut destinations = Destinations::default();
    let all = || (0..10_000).map(|number| (Ipv4Addr::from_bits(number << 4).into(), 28));
    all().for_each(|at| destinations.count_in(at, None));
    assert_eq!(destinations.take_steps().put.len(), 10_000);
    assert!(destinations.four.nodes.capacity() >= 10_000);
    all().for_each(|at| destinations.count_out(at, None));
    assert_eq!(destinations.take_steps().delete.len(), 10_000);
    assert_eq!(destinations.four.nodes.capacity(), 0);
}
