//! Two workers of one database, each with a part of each SA's packets, and with replays of the
//! other's.

use std::collections::BTreeMap;
use std::thread;

use uxfrm_engine::sa::config::SaFlags;
use uxfrm_engine::{
    Direction, DropReason, Event, LifetimeLimits, Mark, Moment, Output, Settings, SoftHardLimit,
    TrafficCounters, Worker,
};
use uxfrm_packet::{Batch, PacketBuf, Pool};
use uxfrm_testkit::{EspSuite, IpsecSetup, PairDirection, Rng, TestGateway, packets};

use super::copy;

/// One of several workers.
struct TestWorker {
    worker: Worker,
    pool: Pool,
    out: Output,
    events: Vec<Event>,
}

impl TestWorker {
    fn of(gateway: &TestGateway, seed: u64) -> Self {
        let addresses =
            [IpsecSetup::tunnel4().gateways(PairDirection::LeftToRight).1].into_iter().collect();
        let settings = Settings { seed, addresses, ..Settings::default() };
        let worker = Worker::new(settings, &gateway.database.published()).unwrap();
        Self { worker, pool: Pool::new(), out: Output::default(), events: Vec::new() }
    }

    /// The numbers of packets that passed.
    fn take(&mut self, packets: Vec<PacketBuf>, now: Moment) -> Vec<u64> {
        let mut batch: Batch = packets.into_iter().collect();
        self.worker.inbound(&mut batch, now, &mut self.pool, &mut self.out);
        self.events.append(&mut self.out.events);
        let TrafficCounters { received, sent, dropped, absorbed, held, .. } = self.worker.inward();
        assert_eq!(received, sent + dropped + absorbed + held);
        let by_reason: u64 = DropReason::ALL.iter().map(|why| self.drops(*why)).sum();
        assert_eq!(by_reason, dropped);
        self.out.host.drain().map(|packet| number_in(packet.bytes())).collect()
    }

    fn drops(&self, reason: DropReason) -> u64 {
        self.worker.drops().of(reason)
    }

    fn reasons(&self) -> Vec<(DropReason, u64)> {
        let all = DropReason::ALL.iter().map(|reason| (*reason, self.drops(*reason)));
        all.filter(|(_, count)| *count > 0).collect()
    }
}

fn number_in(packet: &[u8]) -> u64 {
    u64::from_be_bytes(*packet.last_chunk().unwrap())
}

fn numbered(number: u64) -> PacketBuf {
    packets::udp("10.1.0.1:7", "10.2.0.1:9", &[&[7; 12], &number.to_be_bytes()[..]].concat())
}

/// Packets sealed by these SAs in turn; numbers begin behind `sent`.
fn sealed(setup: &IpsecSetup, spis: &[u32], seed: u64, sent: u64, each: u64) -> Vec<PacketBuf> {
    let mut by_state: Vec<_> = (0..)
        .zip(spis)
        .map(|(at, spi)| {
            let mut left = TestGateway::new(Settings { seed: 9, ..Settings::default() });
            left.add_policy(setup.policy(Direction::Out, PairDirection::LeftToRight));
            let mut state = setup.sa(PairDirection::LeftToRight, *spi);
            state.transform = setup.suite.with_keys(seed + u64::from(*spi));
            state.replay.sent = sent;
            left.add_sa(state);
            let plain = (0..each).map(|number| numbered(at * each + number)).collect();
            left.outbound(plain).0.into_iter()
        })
        .collect();
    let mut all = Vec::new();
    for _ in 0..each {
        all.extend(by_state.iter_mut().map(|packets| packets.next().unwrap()));
    }
    all
}

fn receiver(setup: &IpsecSetup, spis: &[u32], seed: u64, received: u64) -> TestGateway {
    let mut right = TestGateway::new(Settings::default());
    right.add_policy(setup.policy(Direction::Forward, PairDirection::LeftToRight));
    for spi in spis {
        right.add_sa(state(setup, *spi, seed, received));
    }
    right
}

fn state(setup: &IpsecSetup, spi: u32, seed: u64, received: u64) -> uxfrm_engine::SaConfig {
    let mut state = setup.sa(PairDirection::LeftToRight, spi);
    state.transform = setup.suite.with_keys(seed + u64::from(spi));
    state.replay.received = received;
    state
}

fn esn(window: u32, suite: EspSuite) -> IpsecSetup {
    IpsecSetup { flags: SaFlags::ESN, window, suite, ..IpsecSetup::tunnel4() }
}

/// Packets moved by fewer places than `reach`.
fn shuffled(packets: Vec<PacketBuf>, reach: usize, rng: &mut Rng) -> Vec<PacketBuf> {
    let mut keyed: Vec<_> = packets
        .into_iter()
        .enumerate()
        .map(|(at, packet)| (at + rng.below(reach), packet))
        .collect();
    keyed.sort_by_key(|(key, _)| *key);
    keyed.into_iter().map(|(_, packet)| packet).collect()
}

fn count(passed: &mut BTreeMap<u64, u64>, numbers: Vec<u64>) {
    for number in numbers {
        *passed.entry(number).or_default() += 1;
    }
}

/// All packets in some order among two workers, and replayed later to the other one, in the same
/// batches and in later ones.
fn each_passes_once(window: u32, spis: &[u32], suite: EspSuite, rng: &mut Rng) {
    const EACH: u64 = 1500;
    let setup = esn(window, suite);
    let before = (1 << 32) - EACH / 2;
    let right = receiver(&setup, spis, 0, before);
    let mut workers = [TestWorker::of(&right, 1), TestWorker::of(&right, 2)];
    let sent = sealed(&setup, spis, 0, before, EACH);
    let all = sent.len() as u64;
    // No packet is later than half of the window, batches included.
    let reach = (window as usize / 4 * spis.len()).max(1);
    let mut rest = shuffled(sent, reach, rng).into_iter().peekable();
    let mut passed = BTreeMap::new();
    let mut earlier: Vec<PacketBuf> = Vec::new();
    let mut given = 0;
    while rest.peek().is_some() {
        let index = rng.below(2);
        let most = 1 + rng.below((window as usize / 4 * spis.len()).min(150));
        let mut batch: Vec<_> = rest.by_ref().take(most).collect();
        let first: Vec<_> = batch.iter().map(copy).collect();
        for _ in 0..rng.below(3) * most / 2 {
            let replayed = match earlier.len() {
                0 => copy(&batch[0]),
                known => copy(&earlier[known - 1 - rng.below(known.min(300))]),
            };
            batch.insert(rng.below(batch.len()), replayed);
        }
        for packet in first.iter().filter(|_| rng.permille(300)) {
            batch.push(copy(packet));
        }
        given += batch.len() as u64;
        count(&mut passed, workers[index].take(batch, right.now));
        if rng.permille(500) {
            let again: Vec<_> = first.iter().map(copy).collect();
            given += again.len() as u64;
            count(&mut passed, workers[1 - index].take(again, right.now));
        }
        earlier.extend(first);
    }
    for worker in &mut workers {
        given += earlier.len() as u64;
        let again = worker.take(earlier.iter().map(copy).collect(), right.now);
        assert_eq!(again, [0_u64; 0], "all were replays");
    }
    let twice: Vec<_> = passed.iter().filter(|(_, times)| **times != 1).collect();
    assert_eq!(twice, [], "window {window}");
    assert_eq!(
        passed.len() as u64,
        all,
        "window {window} {:?}",
        workers.map(|worker| worker.reasons())
    );
    let refused: u64 = workers.iter().map(|worker| worker.worker.inward().dropped).sum();
    assert_eq!(refused, given - all);
    // A number that is far too old is taken for one of the next 2^32, whose ICV differs.
    let old = |worker: &TestWorker| {
        worker.drops(DropReason::InReplay)
            + worker.drops(DropReason::InTooOld)
            + worker.drops(DropReason::InForged)
    };
    assert_eq!(workers.iter().map(old).sum::<u64>(), refused);
}

#[test]
fn two_workers_accept_each_packet_once_across_32_bits() {
    let mut rng = Rng::new(11);
    for window in [32, 64, 4096] {
        for spis in
            [&[0x1000][..], &[0x1000, 0x1001, 0x2000], &(0x1000..0x1028).collect::<Vec<_>>()]
        {
            each_passes_once(window, spis, EspSuite::Gcm128, &mut rng);
        }
        each_passes_once(window, &[0x1000, 0x1001], EspSuite::NullSha1, &mut rng);
    }
}

/// Both get all packets at the same time.
#[test]
fn two_threads_with_same_packets_pass_each_once() {
    for (window, spis) in
        [(64, &[0x1000][..]), (4096, &[0x1000]), (4096, &[0x1000, 0x1001, 0x2002])]
    {
        let setup = esn(window, EspSuite::Gcm128);
        let before = (1 << 32) - 3000;
        let right = receiver(&setup, spis, 0, before);
        let sent = sealed(&setup, spis, 0, before, 6000);
        let (sent, now) = (&sent, right.now);
        let workers = [1, 2].map(|seed| (TestWorker::of(&right, seed), seed));
        let passed = thread::scope(|scope| {
            let threads = workers.map(|(mut worker, seed)| {
                scope.spawn(move || {
                    let (mut rng, mut rest, mut passed) = (Rng::new(seed), &sent[..], Vec::new());
                    while !rest.is_empty() {
                        let (batch, behind) = rest.split_at((1 + rng.below(64)).min(rest.len()));
                        rest = behind;
                        passed.extend(worker.take(batch.iter().map(copy).collect(), now));
                    }
                    passed
                })
            });
            threads.map(|thread| thread.join().unwrap())
        });
        let mut by_number = BTreeMap::new();
        passed.into_iter().for_each(|numbers| count(&mut by_number, numbers));
        assert!(by_number.values().all(|times| *times == 1));
        // Each packet was accepted by one of the two.
        if window == 4096 || spis.len() == 1 {
            assert_eq!(by_number.len(), sent.len());
        }
    }
}

/// An SA is replaced by one with the same SPI and other keys, while both workers have the old one
/// cached.
#[test]
fn readded_sa_accepts_no_old_packet() {
    for spis in [&[0x1000][..], &(0x1000..0x1020).collect::<Vec<_>>()] {
        let setup = esn(64, EspSuite::Gcm128);
        let mut right = receiver(&setup, spis, 0, 0);
        let mut workers = [TestWorker::of(&right, 1), TestWorker::of(&right, 2)];
        let mut rng = Rng::new(5);
        let each = 200;
        for generation in 0..6_u64 {
            let sent = sealed(&setup, spis, 1000 * generation, 0, each);
            let half = sent.len() / 2;
            let mut passed = BTreeMap::new();
            let mut give = |workers: &mut [TestWorker; 2], packets: &[PacketBuf], now| {
                let mut rest = packets;
                while !rest.is_empty() {
                    let (batch, behind) = rest.split_at((1 + rng.below(100)).min(rest.len()));
                    rest = behind;
                    let index = rng.below(2);
                    count(&mut passed, workers[index].take(batch.iter().map(copy).collect(), now));
                }
                passed.len()
            };
            assert_eq!(give(&mut workers, &sent[..half], right.now), half);
            let next = 1000 * (generation + 1);
            right.database.apply(right.now, |change| {
                for spi in spis {
                    change
                        .delete_sa(setup.sa(PairDirection::LeftToRight, *spi).id, Mark::default())
                        .unwrap();
                    if generation % 2 == 0 {
                        change.add_sa(state(&setup, *spi, next, 0)).unwrap();
                    }
                }
            });
            assert_eq!(give(&mut workers, &sent, right.now), half, "of states that are gone");
            if generation % 2 == 1 {
                spis.iter().for_each(|spi| right.add_sa(state(&setup, *spi, next, 0)));
            }
            assert_eq!(give(&mut workers, &sent, right.now), half, "of states that are gone");
        }
        for worker in workers {
            let known = [DropReason::InForged, DropReason::InNoState];
            assert!(
                worker.reasons().iter().all(|(why, _)| known.contains(why)),
                "{:?}",
                worker.reasons()
            );
        }
    }
}

/// Old and new SA at once, in any mixture.
#[test]
fn both_sas_pass_during_rekey_on_both_workers() {
    let setup = esn(64, EspSuite::Gcm128);
    let mut rng = Rng::new(6);
    let mut right = receiver(&setup, &[0x1000], 0, 0);
    let mut workers = [TestWorker::of(&right, 1), TestWorker::of(&right, 2)];
    let mut old = sealed(&setup, &[0x1000], 0, 0, 300);
    for round in 1..20_u32 {
        let spi = 0x1000 + round * 0x10;
        right.add_sa(state(&setup, spi, 0, 0));
        let new = sealed(&setup, &[spi], 0, 0, 600);
        let (first, later) = new.split_at(300);
        let mut mixture: Vec<_> = old.into_iter().chain(first.iter().map(copy)).collect();
        mixture = shuffled(mixture, 30, &mut rng);
        let (half, all) = (mixture.len() / 2, mixture.len());
        let mut batch = Vec::new();
        let mut passed = 0;
        for (at, packet) in mixture.into_iter().enumerate() {
            batch.push(packet);
            if batch.len() > rng.below(60) || at == half || at + 1 == all {
                passed += workers[rng.below(2)].take(std::mem::take(&mut batch), right.now).len();
            }
        }
        assert_eq!(passed, all, "{:?}", workers.map(|worker| worker.reasons()));
        let id = setup.sa(PairDirection::LeftToRight, spi - 0x10).id;
        right.database.apply(right.now, |change| change.delete_sa(id, Mark::default())).unwrap();
        old = later.iter().map(copy).collect();
    }
}

/// A hard limit that two workers reach together: in turn, and at the same time.
#[test]
fn two_workers_share_hard_limit() {
    let each = 500;
    for spis in [&[0x1000][..], &(0x1000..0x1018).collect::<Vec<_>>()] {
        for hard in [1, 63, 64, 130, 499] {
            for bytes in [false, true] {
                // 20 of IP, 8 of UDP, 20 of payload.
                let (hard_packets, hard_bytes) =
                    if bytes { (u64::MAX, hard * 48) } else { (hard, u64::MAX) };
                let limits = LifetimeLimits {
                    packets: SoftHardLimit { soft: u64::MAX, hard: hard_packets },
                    bytes: SoftHardLimit { soft: u64::MAX, hard: hard_bytes },
                    ..LifetimeLimits::default()
                };
                let setup = IpsecSetup { limits, ..esn(4096, EspSuite::Gcm128) };
                let unlimited = esn(4096, EspSuite::Gcm128);
                let sent = sealed(&unlimited, spis, 0, 0, each);
                for at_once in [false, true] {
                    let right = receiver(&setup, spis, 0, 0);
                    let workers = [TestWorker::of(&right, 1), TestWorker::of(&right, 2)];
                    let (passed, workers) = if at_once {
                        halves_at_once(workers, &sent, right.now)
                    } else {
                        in_turn(workers, &sent, right.now)
                    };
                    let wanted = hard * spis.len() as u64;
                    assert_eq!(
                        passed,
                        wanted,
                        "{hard} bytes {bytes} at once {at_once} {}",
                        spis.len()
                    );
                    let expired: u64 =
                        workers.iter().map(|worker| worker.drops(DropReason::InStateExpired)).sum();
                    assert_eq!(expired, sent.len() as u64 - wanted);
                    let told = workers.iter().flat_map(|worker| &worker.events);
                    let told = told.filter(|event| matches!(event, Event::SaHardLimit(_))).count();
                    assert_eq!(told, spis.len());
                }
            }
        }
    }
}

fn in_turn(
    mut workers: [TestWorker; 2],
    sent: &[PacketBuf],
    now: Moment,
) -> (u64, [TestWorker; 2]) {
    let (mut rng, mut rest, mut passed) = (Rng::new(3), sent, 0);
    while !rest.is_empty() {
        let (batch, behind) = rest.split_at((1 + rng.below(100)).min(rest.len()));
        rest = behind;
        passed += workers[rng.below(2)].take(batch.iter().map(copy).collect(), now).len();
    }
    (passed as u64, workers)
}

fn halves_at_once(
    workers: [TestWorker; 2],
    sent: &[PacketBuf],
    now: Moment,
) -> (u64, [TestWorker; 2]) {
    let mut passed = 0;
    let workers = thread::scope(|scope| {
        let mut parity = 0;
        let threads = workers.map(|mut worker| {
            let mine: Vec<_> =
                sent.chunks(20).skip(parity).step_by(2).flatten().map(copy).collect();
            parity = 1;
            scope.spawn(move || {
                let (mut rng, mut rest) = (Rng::new(8), mine.into_iter().peekable());
                let mut passed = 0;
                while rest.peek().is_some() {
                    let batch: Vec<_> = rest.by_ref().take(1 + rng.below(64)).collect();
                    passed += worker.take(batch, now).len();
                }
                (worker, passed)
            })
        });
        threads.map(|thread| {
            let (worker, more) = thread.join().unwrap();
            passed += more;
            worker
        })
    });
    (passed as u64, workers)
}
