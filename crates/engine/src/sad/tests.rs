//! Which state is found.

use std::{cell::Cell, sync::Arc};

use proptest::prelude::*;
use uxfrm_crypto::Backend;

use super::page::{HashSource, Page};
use crate::{
    Cpu, Direction, DropReason, Family, FlowKey, IfId, Mark, Mode, Moment, OutboundQuery, Prefix,
    Reqid, Sa, SaConfig, SaId, SaProtocol, Sad, Selector, SharedSaConfig, Spi,
    sa::{config::SaFlags, sample, usage::Lifecycle},
};

fn sa(config: SaConfig, seconds: u64) -> Arc<Sa> {
    Sa::new(&config, words(&config), Moment::from_secs(seconds))
}

pub(super) fn words(config: &SaConfig) -> Arc<SharedSaConfig> {
    Arc::new(SharedSaConfig::of(config, Backend::Portable))
}

/// A state, changed, added at `seconds`.
fn with(sad: &mut Sad, spi: u32, seconds: u64, change: impl FnOnce(&mut SaConfig)) -> Arc<Sa> {
    let mut config = sample("10.0.0.2", spi);
    change(&mut config);
    let sa = sa(config, seconds);
    sad.insert(&sa);
    sa
}

const FLOW: FlowKey = FlowKey {
    source: std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 168, 0, 1)),
    destination: std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 168, 0, 2)),
    protocol: 6,
    source_port: 1,
    destination_port: 2,
    mark: 4,
    if_id: 0,
    ifindex: 0,
};

fn query() -> OutboundQuery<'static> {
    OutboundQuery {
        source: "10.0.0.1".parse().unwrap(),
        destination: "10.0.0.2".parse().unwrap(),
        protocol: SaProtocol::Esp,
        spi: Spi(0),
        mode: Mode::Tunnel,
        reqid: Reqid(1),
        if_id: IfId(0),
        mark: 5,
        cpu: Cpu(0),
        flow: &FLOW,
    }
}

fn chosen(sad: &Sad, query: &OutboundQuery<'_>) -> Result<u32, DropReason> {
    sad.outbound(query).map(|sa| sa.id().spi.0)
}

#[test]
fn outbound_template_field_mismatch_finds_no_sa() {
    type Row = (fn(&mut SaConfig), fn(&mut OutboundQuery<'static>), bool);
    let table: &[Row] = &[
        (|_| {}, |_| {}, true),
        (|_| {}, |query| query.spi = Spi(7), true),
        (|_| {}, |query| query.spi = Spi(8), false),
        (|_| {}, |query| query.mode = Mode::Transport, false),
        (|_| {}, |query| query.protocol = SaProtocol::Ah, false),
        (|_| {}, |query| query.reqid = Reqid(2), false),
        // 0 is a reqid like any other here; only the inbound check takes it for "any".
        (|_| {}, |query| query.reqid = Reqid(0), false),
        (|_| {}, |query| query.if_id = IfId(1), false),
        (|_| {}, |query| query.source = "10.0.0.9".parse().unwrap(), false),
        (|_| {}, |query| query.source = "0.0.0.0".parse().unwrap(), true),
        (
            |sa| sa.source = "0.0.0.0".parse().unwrap(),
            |query| query.source = "10.0.0.9".parse().unwrap(),
            true,
        ),
        (|_| {}, |query| query.destination = "10.0.0.9".parse().unwrap(), false),
        (|sa| sa.mark = Mark { value: 5, mask: 0xff }, |_| {}, true),
        // The policy's mark counts, not the packet's.
        (|sa| sa.mark = Mark { value: 4, mask: 0xff }, |_| {}, false),
        (|sa| sa.mark = Mark { value: 4, mask: 0xff }, |query| query.mark = 4, true),
        (|sa| sa.mark = Mark { value: 4, mask: 4 }, |_| {}, true),
        (|sa| sa.selector = Some(Selector::any(Family::V4)), |_| {}, true),
        (|sa| sa.selector = Some(Selector::any(Family::V6)), |_| {}, false),
        (
            |sa| sa.selector = Some(Selector { protocol: 17, ..Selector::any(Family::V4) }),
            |_| {},
            false,
        ),
        (|sa| sa.flags |= SaFlags::WILDRECV, |_| {}, false),
        (|sa| sa.pcpu = Some(Cpu(0)), |_| {}, true),
        (|sa| sa.pcpu = Some(Cpu(1)), |_| {}, false),
        (|sa| sa.pcpu = Some(Cpu(1)), |query| query.cpu = Cpu(1), true),
    ];
    for (row, (change, ask, fits)) in table.iter().enumerate() {
        let mut sad = Sad::default();
        with(&mut sad, 7, 0, change);
        let mut query = query();
        ask(&mut query);
        let expected = if *fits { Ok(7) } else { Err(DropReason::OutNoState) };
        assert_eq!(chosen(&sad, &query), expected, "row {row}");
    }
}

#[test]
fn outbound_rekey_always_finds_sa() {
    let mut sad = Sad::default();
    let old = with(&mut sad, 1, 100, |_| {});
    assert_eq!(chosen(&sad, &query()), Ok(1));
    let new = with(&mut sad, 2, 101, |_| {});
    assert_eq!(chosen(&sad, &query()), Ok(2), "the youngest as soon as it is there");
    sad.remove(&old);
    assert_eq!(chosen(&sad, &query()), Ok(2));
    with(&mut sad, 3, 101, |_| {});
    assert_eq!(chosen(&sad, &query()), Ok(3), "of one age, the one added last");
    sad.remove(&new);
    assert_eq!(chosen(&sad, &query()), Ok(3));
    assert_eq!(sad.len(), 1);
}

/// RFC 9611 §3: the fallback serves whoever has none of his own.
#[test]
fn outbound_cpu_prefers_its_sa_else_fallback() {
    let mut sad = Sad::default();
    let own = with(&mut sad, 1, 100, |sa| sa.pcpu = Some(Cpu(1)));
    with(&mut sad, 2, 200, |_| {});
    let of = |sad: &Sad, cpu| chosen(sad, &OutboundQuery { cpu: Cpu(cpu), ..query() });
    assert_eq!((of(&sad, 0), of(&sad, 1)), (Ok(2), Ok(1)), "its own, though it is older");
    own.advance(Lifecycle::Dying);
    assert_eq!(of(&sad, 1), Ok(1), "until its successor is there");
    with(&mut sad, 3, 50, |sa| sa.pcpu = Some(Cpu(1)));
    assert_eq!(of(&sad, 1), Ok(3));
    assert_eq!(of(&sad, 0), Ok(2));
}

#[test]
fn outbound_valid_sa_precedes_younger_dying_one() {
    let mut sad = Sad::default();
    with(&mut sad, 1, 100, |_| {});
    let dying = with(&mut sad, 2, 200, |_| {});
    dying.advance(Lifecycle::Dying);
    assert_eq!(chosen(&sad, &query()), Ok(1));
    dying.advance(Lifecycle::Expired);
    with(&mut sad, 3, 50, |config| config.source = "0.0.0.0".parse().unwrap());
    assert_eq!(
        chosen(&sad, &query()),
        Ok(1),
        "a wildcard source only serves when none has the source"
    );
}

#[test]
fn outbound_refuses_expired_and_inbound_sas() {
    let mut sad = Sad::default();
    let only = with(&mut sad, 1, 0, |_| {});
    only.advance(Lifecycle::Expired);
    assert_eq!(chosen(&sad, &query()), Err(DropReason::OutNoState));
    assert_eq!(only.receives(), Err(DropReason::InStateExpired));
    let inward = with(&mut sad, 2, 0, |config| config.direction = Some(Direction::In));
    assert_eq!(chosen(&sad, &query()), Err(DropReason::OutStateDirection));
    assert_eq!(inward.receives(), Ok(()));
    let outward = with(&mut sad, 3, 0, |config| config.direction = Some(Direction::Out));
    assert_eq!(outward.receives(), Err(DropReason::InStateDirection));
}

#[test]
fn inbound_lookup_uses_destination_spi_protocol_and_mark() {
    let mut sad = Sad::default();
    let plain = with(&mut sad, 9, 0, |_| {});
    let marked = with(&mut sad, 9, 0, |config| config.mark = Mark { value: 1, mask: 1 });
    let wild = with(&mut sad, 10, 0, |config| config.flags |= SaFlags::WILDRECV);
    let find = |destination: &str, spi, protocol, mark| {
        sad.inbound(destination.parse().unwrap(), Spi(spi), protocol, mark).map(Arc::as_ptr)
    };
    let esp = SaProtocol::Esp;
    assert_eq!(find("10.0.0.2", 9, esp, 0), Some(Arc::as_ptr(&plain)));
    assert_eq!(find("10.0.0.2", 9, esp, 3), Some(Arc::as_ptr(&marked)));
    assert_eq!(find("10.0.0.3", 9, esp, 0), None);
    assert_eq!(find("10.0.0.2", 8, esp, 0), None);
    assert_eq!(find("10.0.0.2", 9, SaProtocol::Ah, 0), None);
    assert_eq!(find("10.0.0.3", 10, esp, 0), Some(Arc::as_ptr(&wild)));
    assert_eq!(find("::1", 10, esp, 0), None);
}

#[test]
fn sad_older_snapshot_is_unchanged() {
    let mut sad = Sad::default();
    let one = with(&mut sad, 1, 0, |_| {});
    let before = sad.clone();
    sad.remove(&one);
    with(&mut sad, 2, 0, |_| {});
    assert_eq!((before.len(), chosen(&before, &query())), (1, Ok(1)));
    assert_eq!((sad.len(), chosen(&sad, &query())), (1, Ok(2)));
}

proptest! {
    /// Adding and removing in any order, against a list.
    #[test]
    fn sad_agrees_with_list(steps in prop::collection::vec((1_u32..6, 0_u8..3, any::<bool>()), 0..60)) {
        let mut sad = Sad::default();
        let mut model: Vec<Arc<Sa>> = Vec::new();
        for (second, (spi, host, add)) in steps.into_iter().enumerate() {
            let destination = format!("10.0.0.{host}");
            let known = model.iter().position(|sa| sa.id() == sample(&destination, spi).id);
            match known {
                None if add => {
                    let sa = sa(sample(&destination, spi), second as u64);
                    sad.insert(&sa);
                    model.push(sa);
                }
                Some(place) if !add => drop(sad.remove(&model.remove(place))),
                None | Some(_) => {}
            }
            prop_assert_eq!(sad.len(), model.len());
            prop_assert_eq!(sad.iter().count(), model.len());
            for host in 0..3 {
                let destination = format!("10.0.0.{host}").parse().unwrap();
                let youngest = model.iter().rfind(|sa| sa.id().destination == destination);
                let query = OutboundQuery { destination, ..query() };
                prop_assert_eq!(chosen(&sad, &query).ok(), youngest.map(|sa| sa.id().spi.0));
                for spi in 1..6 {
                    let known = model.iter().any(|sa| sa.id().destination == destination && sa.id().spi == Spi(spi));
                    prop_assert_eq!(sad.inbound(destination, Spi(spi), SaProtocol::Esp, 0).is_some(), known);
                }
            }
        }
    }
}

/// What decides which state is found, among few values each.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// Adds; else takes out, or updates.
    adds: bool,
    updates: bool,
    which: usize,
    spi: u32,
    host: u8,
    mark: u32,
    reqid: u32,
    if_id: u32,
    pcpu: Option<u32>,
    wild: bool,
    any_source: bool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let choice = (any::<(bool, bool, bool, bool)>(), any::<usize>());
    let words = (1_u32..5, 0_u8..3, 0_u32..3, 0_u32..2, 0_u32..2, prop::option::of(0_u32..2));
    let step = (choice, words).prop_map(|((choice, which), words)| {
        let (one, adds, wild, any_source) = choice;
        let (spi, host, mark, reqid, if_id, pcpu) = words;
        let updates = !adds && one;
        let adds = adds || one;
        Step { adds, updates, which, spi, host, mark, reqid, if_id, pcpu, wild, any_source }
    });
    prop::collection::vec(step, 0..200)
}

impl Step {
    fn config(self) -> SaConfig {
        let mut config = sample(&format!("10.0.0.{}", self.host), self.spi);
        config.mark = Mark { value: self.mark, mask: self.mark };
        config.reqid = Reqid(self.reqid);
        config.if_id = IfId(self.if_id);
        config.pcpu = self.pcpu.map(Cpu);
        config.flags.set(SaFlags::WILDRECV, self.wild);
        if self.any_source {
            config.source = "0.0.0.0".parse().unwrap();
        }
        config
    }
}

/// `xfrm_state_find` over a list, the youngest last.
fn first_outward(model: &[Arc<Sa>], query: &OutboundQuery<'_>) -> Option<*const Sa> {
    let fits = |sa: &&Arc<Sa>| {
        let config = sa.config();
        sa.id().destination == query.destination
            && sa.reqid() == query.reqid
            && config.if_id == query.if_id
            && config.pcpu.is_none_or(|cpu| cpu == query.cpu)
            && config.mark.fits(query.mark)
            && !config.flags.contains(SaFlags::WILDRECV)
    };
    let own = |sa: &&Arc<Sa>| sa.source() == query.source;
    let any = |sa: &&Arc<Sa>| sa.source().is_unspecified();
    let best = |from: &dyn Fn(&&Arc<Sa>) -> bool| {
        let of_cpu = |sa: &&Arc<Sa>| from(sa) && sa.config().pcpu == Some(query.cpu);
        let theirs = model.iter().filter(fits).rfind(of_cpu);
        theirs.or_else(|| model.iter().filter(fits).rfind(|sa| from(sa)))
    };
    best(&own).or_else(|| best(&any)).map(Arc::as_ptr)
}

/// `__xfrm_state_lookup` over a list, the youngest last.
fn first_inward(model: &[Arc<Sa>], host: u8, spi: u32, mark: u32) -> Option<*const Sa> {
    let destination: std::net::IpAddr = format!("10.0.0.{host}").parse().unwrap();
    let fits = |sa: &&Arc<Sa>| sa.id().spi == Spi(spi) && sa.config().mark.fits(mark);
    let own = model.iter().filter(fits).rfind(|sa| sa.id().destination == destination);
    let is_wild = |sa: &&Arc<Sa>| sa.config().flags.contains(SaFlags::WILDRECV);
    own.or_else(|| model.iter().filter(fits).rfind(is_wild)).map(Arc::as_ptr)
}

proptest! {
    /// All three indexes beside a list, through additions, removals and updates that move a state
    /// to another interface.
    #[test]
    fn sad_lookups_agree_with_list_for_all_fields(steps in steps()) {
        let mut sad = Sad::default();
        let mut model: Vec<Arc<Sa>> = Vec::new();
        for step in steps {
            let place = step.which.checked_rem(model.len());
            match place {
                Some(place) if step.updates => {
                    let old = &model[place];
                    let words = SharedSaConfig { if_id: IfId(step.if_id), ..old.config().clone() };
                    let new = old.renewed(Arc::new(words));
                    sad.replace(old, &new);
                    prop_assert!(sad.holds(&new) && !sad.holds(old));
                    model[place] = new;
                }
                Some(place) if !step.adds => drop(sad.remove(&model.remove(place))),
                Some(_) | None => {
                    let sa = sa(step.config(), 0);
                    sad.insert(&sa);
                    model.push(sa);
                }
            }
        }
        prop_assert_eq!(sad.len(), model.len());
        let mut shown: Vec<_> = sad.iter().map(Arc::as_ptr).collect();
        let mut known: Vec<_> = model.iter().map(Arc::as_ptr).collect();
        shown.sort_unstable();
        known.sort_unstable();
        prop_assert_eq!(shown, known);
        for host in 0..4 {
            let destination: std::net::IpAddr = format!("10.0.0.{host}").parse().unwrap();
            for (mark, other) in [0, 1, 2, 3].into_iter().flat_map(|mark| (0..5).map(move |other| (mark, other))) {
                let found = sad.inbound(destination, Spi(other), SaProtocol::Esp, mark);
                prop_assert_eq!(found.map(Arc::as_ptr), first_inward(&model, host, other, mark));
                let (reqid, if_id) = (Reqid(other % 2), IfId(other / 2 % 2));
                for cpu in [Cpu(0), Cpu(1)] {
                    let query =
                        OutboundQuery { destination, reqid, if_id, mark, cpu, ..query() };
                    let found = sad.outbound(&query).ok().map(Arc::as_ptr);
                    prop_assert_eq!(found, first_outward(&model, &query));
                }
            }
        }
    }
}

/// What a batch of packets without marks finds.
fn together(sad: &Sad, ids: &[SaId]) -> Vec<Option<*const Sa>> {
    let wanted: Vec<_> = ids.iter().map(|id| (*id, 0)).collect();
    let mut all = Vec::new();
    sad.lookup_inbound_batch(&wanted, |found| all.push(found.map(Arc::as_ptr)));
    all
}

/// Leaves split and join, forks come and go, and whoever looks on meanwhile sees what was there.
#[test]
fn sad_is_empty_after_thousands_come_and_go() {
    let mut sad = Sad::default();
    let all: Vec<_> = (0..3000)
        .map(|number| with(&mut sad, number + 1, 0, |sa| sa.reqid = Reqid(number / 100)))
        .collect();
    let ids: Vec<_> = all.iter().map(|sa| sa.id()).collect();
    let before = sad.clone();
    // 1277 and 3000 have no common divisor: each once, in no order.
    for step in 0..all.len() {
        let gone = &all[step * 1277 % all.len()];
        let some = &ids[step / 16 * 16..step];
        let alone =
            |id: &SaId| sad.inbound(id.destination, id.spi, id.protocol, 0).map(Arc::as_ptr);
        assert_eq!(together(&sad, some), some.iter().map(alone).collect::<Vec<_>>());
        assert!(sad.find(gone.id(), 0).is_some_and(|sa| Arc::ptr_eq(sa, gone)));
        sad.remove(gone);
        assert!(sad.find(gone.id(), 0).is_none());
        if step % 500 == 0 {
            assert_eq!(sad.iter().count(), sad.len());
        }
    }
    assert_eq!(format!("{sad:?}").matches("Page {").count(), 0, "nothing is left");
    assert_eq!((before.len(), before.iter().count()), (3000, 3000));
    assert!(all.iter().all(|sa| before.find(sa.id(), 0).is_some()));
}

/// More states between two peers than a list takes, and back to none.
#[test]
fn sad_many_sas_with_one_key_come_and_go() {
    let mut sad = Sad::default();
    let mut all: Vec<_> = (1..=300).map(|spi| with(&mut sad, spi, 0, |_| {})).collect();
    let before = sad.clone();
    // 7 and 300 have no common divisor: each once, in no order.
    for step in 0..300 {
        assert_eq!((sad.len(), sad.iter().count()), (all.len(), all.len()));
        let youngest = all.iter().map(|sa| sa.id().spi.0).max();
        assert_eq!(chosen(&sad, &query()).ok(), youngest, "step {step}");
        let gone = all.swap_remove(step * 7 % all.len());
        if step % 3 == 0 {
            let renewed = gone.renewed(words(&sample("10.0.0.2", gone.id().spi.0)));
            sad.replace(&gone, &renewed);
            assert!(sad.holds(&renewed) && !sad.holds(&gone));
        }
        sad.remove(&gone);
        assert!(sad.find(gone.id(), 0).is_none());
    }
    assert_eq!(chosen(&sad, &query()), Err(DropReason::OutNoState));
    assert_eq!((sad.len(), before.len(), chosen(&before, &query())), (0, 300, Ok(300)));
}

/// All have one hash.
struct Alike;

impl HashSource for Alike {
    fn hash(&self, _: &Sa) -> u64 {
        7
    }
}

/// What is asked for ahead is few, however many states there are between two peers; a look-up goes
/// through all of them.
#[test]
fn sad_prefetch_skips_same_hash_groups() {
    let mut page = Page::default();
    let seen = |page: &Page| {
        let ahead = Cell::new(0);
        page.for_each_in_buckets(7, |_| ahead.set(ahead.get() + 1));
        (ahead.get(), page.fold(7, 0, |all, _| all + 1))
    };
    let counts = (1..=100).map(|spi| {
        let sa = sa(sample("10.0.0.2", spi), 0);
        sa.set_insertion_seq(spi.into());
        page.add(7, &sa, &Alike);
        seen(&page)
    });
    let counts: Vec<_> = counts.collect();
    assert_eq!(counts[..4], [(1, 1), (2, 2), (3, 3), (4, 4)]);
    assert!(counts[4..].iter().zip(5..).all(|(seen, all)| *seen == (0, all)), "{counts:?}");
}

/// The test set-up of the Niantic slides: equal SPIs both ways, selectors with host bits.
#[test]
fn inbound_equal_spis_are_distinguished_by_destination() {
    let mut sad = Sad::default();
    let net = |host: &str| Prefix::new(host.parse().unwrap(), 24).unwrap();
    let there = sa(SaConfig { mode: Mode::Transport, ..sample("14.0.0.70", 7) }, 0);
    let back = sa(SaConfig { mode: Mode::Transport, ..sample("14.0.0.52", 7) }, 0);
    sad.insert(&there);
    sad.insert(&back);
    assert!(net("14.0.0.52").contains(there.id().destination));
    let found = sad.inbound("14.0.0.52".parse().unwrap(), Spi(7), SaProtocol::Esp, 0);
    assert!(found.is_some_and(|sa| sa.is_same(&back)));
}

/// What a reader of an older generation holds stays as it was, whatever the writer does, and what
/// is asked for ahead changes no answer.
fn check(sad: &Sad, model: &[Arc<Sa>]) -> Result<(), TestCaseError> {
    prop_assert_eq!((sad.len(), sad.iter().count()), (model.len(), model.len()));
    let ids: Vec<_> = model.iter().map(|sa| sa.id()).collect();
    prop_assert_eq!(
        together(sad, &ids),
        model.iter().map(|sa| Some(Arc::as_ptr(sa))).collect::<Vec<_>>()
    );
    sad.prefetch_outbound(model.iter().map(|sa| OutboundQuery { reqid: sa.reqid(), ..query() }));
    for sa in model {
        prop_assert!(sad.holds(sa));
        let found = sad.find(sa.id(), 0);
        prop_assert!(found.is_some_and(|found| Arc::ptr_eq(found, sa)));
        let query = OutboundQuery { reqid: sa.reqid(), ..query() };
        let youngest = model.iter().rfind(|other| other.reqid() == sa.reqid());
        let found = sad.outbound(&query).ok();
        prop_assert_eq!(found.map(Arc::as_ptr), youngest.map(Arc::as_ptr));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Hundreds of states, few and many to a peer, so that pages split and join and crowds come and
    /// go while snapshots are held.
    #[test]
    fn sad_snapshots_stay_unchanged_under_changes(
        // Towards which number of states it goes for how long, and what is kept.
        phases in prop::collection::vec((0_usize..500, 1_usize..200, any::<bool>()), 1..8),
        peers in prop::sample::select(vec![1_u32, 7, 100, 1000]),
        seed in any::<u64>(),
    ) {
        let mut state = seed | 1;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state % below as u64).unwrap()
        };
        let (mut sad, mut model): (Sad, Vec<Arc<Sa>>) = Default::default();
        // A copy, which lacks what has changed since, and takes turns with the other.
        let (mut behind, mut changed) = (Sad::default(), Vec::new());
        let (mut spi, mut held) = (0, Vec::new());
        behind.clone_from(&sad);
        for (target, changes, keeps) in phases {
            for _ in 0..changes.max(model.len().abs_diff(target)) {
                let any = random(model.len().max(1));
                match random(8) {
                    0 if !model.is_empty() => {
                        let new = model[any].renewed(words(&model[any].to_config()));
                        sad.replace(&model[any], &new);
                        changed.extend([model[any].clone(), new.clone()]);
                        model[any] = new;
                    }
                    1..4 if model.len() > target => changed.extend(sad.remove(&model.remove(any))),
                    4 if !model.is_empty() => changed.extend(sad.remove(&model.remove(any))),
                    _ if model.len() > target => {}
                    _ => {
                        spi += 1;
                        model.push(with(&mut sad, spi, 0, |sa| sa.reqid = Reqid(spi % peers)));
                        changed.extend(model.last().cloned());
                    }
                }
                if random(5) == 0 {
                    behind.sync_from(&sad, &changed);
                    changed.clear();
                    std::mem::swap(&mut sad, &mut behind);
                }
            }
            check(&sad, &model)?;
            behind.sync_from(&sad, &changed);
            changed.clear();
            check(&behind, &model)?;
            if keeps {
                held.push((sad.clone(), model.clone()));
            }
        }
        for (sad, model) in held {
            check(&sad, &model)?;
        }
    }
}

/// With a snapshot in somebody's hands, a change copies one way down each index, however many
/// states there are.
#[test]
fn sad_change_copies_one_path() {
    for (count, crowded) in [(10, 10), (1000, 1000), (20_000, 20_000), (20_000, 1)] {
        let mut sad = Sad::default();
        let all: Vec<_> = (1..=count)
            .map(|spi| with(&mut sad, spi, 0, |sa| sa.reqid = Reqid(spi % crowded)))
            .collect();
        // Each page that has a state counts on it.
        let counts = || all.iter().map(Arc::strong_count).sum::<usize>();
        let before = counts();
        let held = sad.clone();
        assert_eq!(counts(), before, "a snapshot by itself copies nothing");
        for spi in (count + 1..).take(20) {
            let before = counts();
            let new = with(&mut sad, spi, 0, |sa| sa.reqid = Reqid(spi % crowded));
            sad.remove(&new);
            let copied = counts().saturating_sub(before);
            assert!(copied <= 4 * 28, "{copied} of {count} states are copied");
        }
        assert_eq!((held.len(), sad.len()), (all.len(), all.len()));
    }
}
