//! Counts by subject and budgets of records, under floods.

use std::time::Duration;

use uxfrm_engine::{DropReason, DropSubject, DropTallies, MAX_TALLIES, Moment, RECORDS_KEPT, Spi};
use uxfrm_packet::PacketBuf;
use uxfrm_testkit::{FIRST_SPI, IpsecSetup, PairDirection, Rng, TestGateway, TestGatewayPair};

use crate::outbound::datagram;

/// Sums over all subjects are the totals.
fn assert_adds_up(gateway: &mut TestGateway) {
    gateway.worker.refresh();
    let tallies = gateway.worker.drop_tallies().read();
    for reason in DropReason::ALL {
        let mine = tallies.tallies().iter().filter(|tally| tally.reason == *reason);
        let known: u64 = mine.map(|tally| tally.packets).sum();
        let all = known + tallies.other(*reason) + tallies.none(*reason);
        assert_eq!((all, tallies.total(*reason)), (gateway.drops(*reason), all), "{reason:?}");
    }
    let by_sa: u64 = tallies.by(|subject| subject.sa).values().sum();
    let without = tallies.tallies().iter().filter(|tally| tally.subject.sa.is_none());
    let all: u64 = tallies.tallies().iter().map(|tally| tally.packets).sum();
    assert_eq!(by_sa + without.map(|tally| tally.packets).sum::<u64>(), all);
}

/// ESP of many states, each of its own, damaged or not.
fn mixed(rng: &mut Rng, states: u32) -> Vec<PacketBuf> {
    let (source, destination) = IpsecSetup::tunnel4().gateways(PairDirection::LeftToRight);
    let esp = |spi: u32, number: u32| {
        let esp = [&spi.to_be_bytes()[..], &number.to_be_bytes(), &[7; 40]].concat();
        let protocol = uxfrm_packet::Protocol::ESP;
        PacketBuf::from_slice(&uxfrm_testkit::packets::ip(source, destination, protocol, &esp))
    };
    let spi = |rng: &mut Rng| FIRST_SPI + u32::try_from(rng.below(states as usize + 9)).unwrap();
    (0..64)
        .map(|_| match rng.below(4) {
            0 => datagram(),
            1 => PacketBuf::from_slice(b"\x45 no IP"),
            2 => esp(spi(rng), 0),
            _ => esp(spi(rng), 5),
        })
        .collect()
}

fn gateway(states: u32) -> TestGateway {
    let setup = IpsecSetup::tunnel4();
    let mut right = TestGatewayPair::without_sas(&setup).right;
    for state in 0..states {
        right.add_sa(setup.sa(PairDirection::LeftToRight, FIRST_SPI + state));
    }
    right
}

#[test]
fn counts_by_subject_add_up_to_counts_by_reason() {
    let (mut rng, mut right) = (Rng::new(3), gateway(40));
    for _ in 0..200 {
        right.inbound(mixed(&mut rng, 40));
        right.now = right.now.plus(Duration::from_millis(10));
    }
    assert_adds_up(&mut right);
    let tallies = right.worker.drop_tallies().read();
    let by_sa = tallies.by(|subject| subject.sa.map(|sa| sa.id.spi));
    let forged = (FIRST_SPI..FIRST_SPI + 40)
        .filter(|spi| by_sa.contains_key(&(Spi(*spi), DropReason::InForged)));
    assert_eq!(forged.count(), 40, "each state's own");
    assert_eq!(tallies.other(DropReason::InForged), 0);
    assert_eq!(tallies.none(DropReason::InForged), 0);
    let plain = right.drops(DropReason::InUnprotected);
    let by_policy: Vec<u64> = tallies.by(|subject| subject.policy).into_values().collect();
    assert_eq!(by_policy, [plain], "one policy drops what comes plain");
    let none = tallies.none(DropReason::InMalformed);
    assert_eq!(none, right.drops(DropReason::InMalformed), "nobody's");
}

/// More keys than there is room for count as others; those of states that are gone make room.
#[test]
fn memory_is_bounded_and_states_that_go_make_room() {
    let most = u32::try_from(MAX_TALLIES).unwrap();
    let mut right = gateway(most + 500);
    let (source, destination) = IpsecSetup::tunnel4().gateways(PairDirection::LeftToRight);
    let forged = |spi: u32| {
        let esp = [&spi.to_be_bytes()[..], &[0, 0, 0, 9], &[7; 40]].concat();
        let protocol = uxfrm_packet::Protocol::ESP;
        PacketBuf::from_slice(&uxfrm_testkit::packets::ip(source, destination, protocol, &esp))
    };
    for spi in 0..most + 500 {
        right.inbound(vec![forged(FIRST_SPI + spi)]);
    }
    assert_adds_up(&mut right);
    let tallies = right.worker.drop_tallies().read();
    assert_eq!(tallies.tallies().len(), MAX_TALLIES);
    assert_eq!(tallies.other(DropReason::InForged), 500);
    assert!(tallies.bytes() < 1 << 20, "{}", tallies.bytes());
    // The first thousand states are gone.
    let gone: Vec<_> = (0..1000)
        .map(|n| IpsecSetup::tunnel4().sa(PairDirection::LeftToRight, FIRST_SPI + n))
        .collect();
    right.database.apply(right.now, |change| {
        gone.iter().for_each(|config| {
            change.delete_sa(config.id, config.mark).unwrap();
        });
    });
    let beyond = FIRST_SPI + most;
    right.inbound(vec![forged(beyond)]);
    right.worker.refresh();
    right.inbound(vec![forged(beyond)]);
    assert_adds_up(&mut right);
    let tallies = right.worker.drop_tallies().read();
    assert_eq!(tallies.tallies().len(), MAX_TALLIES - 1000 + 1);
    assert_eq!(tallies.other(DropReason::InForged), 500 + 1 + 1000);
}

#[test]
fn flood_of_one_reason_leaves_records_of_others() {
    let mut right = gateway(1);
    let records = right.worker.drop_records();
    for _ in 0..1000 {
        right.inbound((0..64).map(|_| datagram()).collect());
        right.now = Moment(right.now.0 + 1_000_000);
    }
    right.inbound(vec![PacketBuf::from_slice(b"\x45 no IP")]);
    let taken = records.take();
    let of = |reason| taken.iter().filter(move |record| record.reason == reason);
    assert_eq!(of(DropReason::InMalformed).count(), 1);
    let flood = of(DropReason::InUnprotected).count();
    assert!((16..=33).contains(&flood), "sixteen at once and sixteen a second: {flood}");
    let stands_for: u64 = of(DropReason::InUnprotected).map(|record| record.packets).sum();
    assert!(stands_for <= 64_000 && stands_for > 64_000 * 9 / 10, "{stands_for}");
    assert_eq!(records.lost(), 0);
}

/// Nobody takes them: the worker loses records, never waits, and counts on.
#[test]
fn records_are_bounded_without_a_reader() {
    let mut right = gateway(1);
    let records = right.worker.drop_records();
    for _ in 0..1000 {
        right.inbound(vec![datagram()]);
        right.now = right.now.plus(Duration::from_secs(1));
    }
    assert_eq!(right.drops(DropReason::InUnprotected), 1000);
    assert_eq!(records.take().len(), RECORDS_KEPT);
    assert_eq!(records.lost(), 1000 - RECORDS_KEPT as u64);
}

#[test]
fn sum_over_workers_has_the_counts_of_each() {
    let mut workers = [gateway(3), gateway(3)];
    for right in &mut workers {
        right.inbound(mixed(&mut Rng::new(9), 3));
        right.worker.refresh();
    }
    let read = workers.each_ref().map(|right| right.worker.drop_tallies().read());
    let sum = DropTallies::sum(read.iter().map(|tallies| &**tallies));
    let one = read[0].by(|subject| Some(*subject));
    assert!(!one.is_empty() && !one.contains_key(&(DropSubject::NOBODY, DropReason::InForged)));
    for (key, packets) in one {
        assert_eq!(sum.by(|subject| Some(*subject))[&key], 2 * packets, "{key:?}");
    }
}
