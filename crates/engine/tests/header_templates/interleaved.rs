//! Packets of many SAs in turn are opened in place: a packet that differs takes the slow path, in
//! order.

use uxfrm_engine::{
    Action, Direction, DropReason, Event, HostPort, LifetimeLimits, Mark, Mode, Moment, Output,
    Policy, SaConfig, Settings, SoftHardLimit, UdpSuper,
};
use uxfrm_packet::{Batch, PacketBuf};
use uxfrm_testkit::{
    EspSuite, IpsecSetup, PairDirection, Rng, TestGateway, TestGatewayPair, packets,
};

use crate::runs::numbers;
use crate::{Shape, Three, next, shapes};

/// A batch of tunnels' packets in turn, of which about `often` in a thousand are otherwise in each
/// of some ways.
fn batch(
    size: usize,
    sequences: &mut [(Shape, [u32; 4])],
    often: usize,
    rng: &mut Rng,
) -> Vec<PacketBuf> {
    let next = |_| {
        let which = rng.below(sequences.len());
        let (shape, sequence) = &mut sequences[which];
        next(shape, sequence, often, rng)
    };
    (0..size).map(next).collect()
}

fn tunnels() -> Vec<(Shape, [u32; 4])> {
    let tunnels = shapes().into_iter().filter(|shape| shape.setup.mode == Mode::Tunnel);
    tunnels.map(|shape| (shape, [0; 4])).collect()
}

#[test]
fn mixed_sas_agree_with_single_packets() {
    let mut rng = Rng::new(37);
    let mut passed = 0;
    for often in [1, 1, 5, 20] {
        for round in 0..10 {
            let (mut three, mut sequences) = (Three::new(), tunnels());
            for number in 0..12 {
                let size = [16, 40, 64, 150, 256][rng.below(5)];
                let packets = batch(size, &mut sequences, often, &mut rng);
                passed += three.take(packets, &format!("{often} {round} {number}")).len();
            }
            three.assert_same_counts();
        }
    }
    assert!(passed > 30_000, "{passed} passed");
}

/// More states than stay at hand, and more than have a batch's place each.
#[test]
fn hundreds_of_sas_agree_with_single_packets() {
    let shape = &shapes()[0];
    let mut three = Three::new();
    for gateway in [&mut three.together, &mut three.in_turn, &mut three.alone] {
        gateway
            .database
            .apply(gateway.now, |to| {
                (0..700).try_for_each(|spi| {
                    let mut state = shape.state(0);
                    state.id.spi.0 = 0x9000_0000 + 0x101 * spi;
                    to.add_sa(state).map(|_| ())
                })
            })
            .unwrap();
    }
    let mut rng = Rng::new(38);
    for round in 1..12 {
        let first = rng.below(400);
        let batch = (0..300).map(|at| {
            let spi = 0x9000_0000 + 0x101 * u32::try_from(first + at).unwrap();
            let port = if rng.permille(3) { 9999 } else { 9 };
            let sequence = if rng.permille(3) { 1 } else { round };
            shape.wrapped(spi, sequence, &shape.plain(port))
        });
        let batch = batch.collect();
        assert!(three.take(batch, &format!("round {round}")).len() > 250);
    }
    three.assert_same_counts();
}

/// Gateways each of which sends by a state of its own, and the one that has all of these.
struct Hub {
    senders: Vec<TestGateway>,
    receiver: TestGateway,
}

impl Hub {
    fn new(setup: &IpsecSetup, senders: u32) -> Self {
        Self::with_limits(setup, &vec![LifetimeLimits::default(); senders as usize])
    }

    /// As many senders, whose packets are limited so at the receiver.
    fn with_limits(setup: &IpsecSetup, limits: &[LifetimeLimits]) -> Self {
        let pairs = || TestGatewayPair::without_sas(setup);
        let mut receiver = pairs().right;
        let sender = |(number, limits): (u32, &LifetimeLimits)| {
            let mut sender = pairs().left;
            let state = || setup.sa(PairDirection::LeftToRight, 0x1000 + number);
            sender.add_sa(state());
            receiver.add_sa(SaConfig { limits: *limits, ..state() });
            sender
        };
        let senders = (0..).zip(limits).map(sender).collect();
        Self { senders, receiver }
    }

    /// Numbered packets of all senders in turn.
    fn wire(&mut self, packets: usize) -> Vec<PacketBuf> {
        let senders = self.senders.len();
        let sent = (0..packets).flat_map(|number| {
            let datagram = packets::udp("10.1.0.1:7", "10.2.0.1:9", &number.to_be_bytes());
            let datagram = packets::dont_fragment(datagram);
            self.senders[number % senders].outbound(vec![datagram]).0
        });
        sent.collect()
    }
}

/// Nothing in it is encrypted, so that they look right inside and are forged all the same.
#[test]
fn interleaved_forged_packets_are_dropped_alone() {
    for suite in [EspSuite::NullSha1, EspSuite::Gcm128, EspSuite::CbcSha1] {
        let setup = IpsecSetup { suite, ..IpsecSetup::tunnel4() };
        let mut hub = Hub::new(&setup, 4);
        for forged in [&[][..], &[], &[], &[39], &[20, 21], &[0], &[]] {
            let mut wire = hub.wire(40);
            forged.iter().for_each(|at| *wire[*at].bytes_mut().last_mut().unwrap() ^= 1);
            let expected: Vec<_> = (0..40).filter(|at| !forged.contains(at)).collect();
            assert_eq!(numbers(&hub.receiver.inbound(wire)), expected, "{suite:?} {forged:?}");
        }
        assert_eq!(hub.receiver.reasons(), [(DropReason::InForged, 4)]);
        hub.receiver.assert_packets_accounted();
    }
}

#[test]
fn interleaved_replays_are_dropped_alone() {
    let mut hub = Hub::new(&IpsecSetup::tunnel4(), 4);
    for _ in 0..6 {
        let mut wire = hub.wire(40);
        let again = PacketBuf::from_slice(wire[10].bytes());
        wire.insert(20, again);
        assert_eq!(numbers(&hub.receiver.inbound(wire)), (0..40).collect::<Vec<_>>());
    }
    assert_eq!(hub.receiver.reasons(), [(DropReason::InReplay, 6)]);
    hub.receiver.assert_packets_accounted();
}

/// A limit within a batch is exact for each SA, and its event is raised once.
#[test]
fn interleaved_limits_are_exact() {
    let packets = SoftHardLimit { soft: 50, hard: 75 };
    let limits = LifetimeLimits { packets, ..LifetimeLimits::default() };
    let mut hub = Hub::with_limits(&IpsecSetup::tunnel4(), &[limits; 2]);
    let arrived = [(); 5].map(|()| {
        let wire = hub.wire(40);
        hub.receiver.inbound(wire).len()
    });
    assert_eq!(arrived, [40, 40, 40, 30, 0]);
    let reasons: Vec<_> = hub.receiver.reasons();
    assert_eq!(reasons, [(DropReason::InNoState, 40), (DropReason::InStateExpired, 10)]);
    let soft = |event: &&Event| matches!(event, Event::SaSoftLimit(_));
    let events = &hub.receiver.events;
    assert_eq!((events.len(), events.iter().filter(soft).count()), (4, 2));
    hub.receiver.assert_packets_accounted();
}

/// Where one state's packets do not all pass, another's that once did not either are charged once
/// all the same.
#[test]
fn crossed_limit_is_not_charged_again() {
    let limits = [(50, 1000), (90, 95)].map(|(soft, hard)| LifetimeLimits {
        packets: SoftHardLimit { soft, hard },
        ..LifetimeLimits::default()
    });
    let mut hub = Hub::with_limits(&IpsecSetup::tunnel4(), &limits);
    let arrived = [(); 5].map(|()| {
        let wire = hub.wire(40);
        hub.receiver.inbound(wire).len()
    });
    assert_eq!(arrived, [40, 40, 40, 40, 35]);
    let snapshot = hub.receiver.database.snapshot();
    // The other one is gone with its last packet.
    let counted: Vec<_> = snapshot.sad.iter().map(|sa| sa.usage().packets()).collect();
    assert_eq!(counted, [100]);
    hub.receiver.assert_packets_accounted();
}

/// Shared counters are written per batch, except for an SA with limits.
#[test]
fn interleaved_counters_are_deferred_and_complete() {
    let packets = SoftHardLimit { soft: 1000, hard: 2000 };
    let limits =
        [LifetimeLimits::default(), LifetimeLimits { packets, ..LifetimeLimits::default() }];
    let setup = IpsecSetup::tunnel4();
    let mut hub = Hub::with_limits(&setup, &limits);
    let counted = |hub: &Hub| {
        let snapshot = hub.receiver.database.snapshot();
        let mut counted: Vec<_> = snapshot.sad.iter().map(|sa| sa.usage().packets()).collect();
        counted.sort_unstable();
        counted
    };
    let after = |hub: &mut Hub, microseconds: u64| {
        hub.receiver.now = Moment(hub.receiver.now.0 + microseconds * 1000);
        let wire = hub.wire(40);
        let mut batch: Batch = wire.into_iter().collect();
        let TestGateway { worker, pool, now, .. } = &mut hub.receiver;
        worker.inbound(&mut batch, *now, pool, &mut Output::default());
        counted(hub)
    };
    // Until all is known of both.
    (0..4).for_each(|_| drop(after(&mut hub, 0)));
    let counts = [0, 99].map(|more| after(&mut hub, more));
    let [before, at_once] = counts[1][..] else { panic!("{counts:?}") };
    assert_eq!(counts[0], [before, at_once - 20], "one of them is not counted");
    assert_eq!(after(&mut hub, 100), [at_once + 20, at_once + 20], "there is time");
    after(&mut hub, 0);
    hub.receiver.worker.settle();
    assert_eq!(counted(&hub), [at_once + 40, at_once + 40]);
    assert_eq!(after(&mut hub, 0), [at_once + 40, at_once + 60]);
    hub.receiver.add_sa(setup.sa(PairDirection::LeftToRight, 0x2000));
    let counts = [0, at_once + 60, at_once + 80];
    assert_eq!(after(&mut hub, 0), counts, "nothing is owed from before a change");
}

/// What was found out about a state ends with the next change of policies or states.
#[test]
fn policy_change_applies_to_next_packet_of_each_sa() {
    let setup = IpsecSetup::tunnel4();
    let mut hub = Hub::new(&setup, 4);
    let arrives = |hub: &mut Hub| {
        let wire = hub.wire(40);
        hub.receiver.inbound(wire).len()
    };
    assert_eq!([(); 3].map(|()| arrives(&mut hub)), [40; 3]);
    let policy =
        |action| Policy { action, ..setup.policy(Direction::In, PairDirection::LeftToRight) };
    let now = hub.receiver.now;
    let decide = |hub: &mut Hub, action| {
        hub.receiver.database.apply(now, |to| to.update_policy(policy(action))).unwrap();
    };
    decide(&mut hub, Action::Block);
    assert_eq!([(); 2].map(|()| arrives(&mut hub)), [0; 2]);
    decide(&mut hub, Action::Allow);
    assert_eq!([(); 3].map(|()| arrives(&mut hub)), [40; 3]);
    let gone = setup.sa(PairDirection::LeftToRight, 0x1002).id;
    hub.receiver.database.apply(now, |to| to.delete_sa(gone, Mark::default())).unwrap();
    assert_eq!([(); 3].map(|()| arrives(&mut hub)), [30; 3]);
    let reasons = hub.receiver.reasons();
    assert_eq!(reasons, [(DropReason::InNoState, 30), (DropReason::InPolicyBlock, 80)]);
    hub.receiver.assert_packets_accounted();
}

/// One of another kind now and then does not keep the others from being opened together, nor does
/// it overtake them.
#[test]
fn plain_packets_keep_their_order() {
    let mut hub = Hub::new(&IpsecSetup::tunnel4(), 4);
    for _ in 0..8 {
        let mut wire = hub.wire(250);
        let plain =
            |number: usize| packets::udp("192.0.2.1:7", "192.0.2.2:9", &number.to_be_bytes());
        let places = [20, 21, 100, 200];
        places.iter().for_each(|at| wire.insert(*at, plain(1000 + at)));
        let mut expected: Vec<_> = (0..250).collect();
        places.iter().for_each(|at| expected.insert(*at, 1000 + at));
        assert_eq!(numbers(&hub.receiver.inbound(wire)), expected);
    }
    hub.receiver.assert_packets_accounted();
}

#[test]
fn interleaved_packets_are_coalesced() {
    for (udp, datagrams) in [(UdpSuper::Taken, 1), (UdpSuper::Refused, 40)] {
        let settings = Settings { host: HostPort::SuperPackets { udp }, ..Settings::default() };
        let setup = IpsecSetup { settings, ..IpsecSetup::tunnel4() };
        let mut hub = Hub::new(&setup, 4);
        for round in 0..6 {
            let wire = hub.wire(40);
            let arrived = hub.receiver.inbound(wire);
            assert_eq!(arrived.len(), datagrams, "{udp:?}, round {round}");
        }
        hub.receiver.assert_packets_accounted();
    }
}
