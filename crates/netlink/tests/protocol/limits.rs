//! Workers' counters in answers, and notifications of limits as key managers expect them.

use std::time::Duration;

use uxfrm_engine::{Event, Output, Settings, Worker};
use uxfrm_netlink::Outbox;
use uxfrm_packet::{Batch, Pool};
use uxfrm_testkit::packets;

use crate::{
    acquire::{Words, by_spi},
    stage::{Answer, EPOCH, Stage, golden, take_apart},
};

const GET_SA: u16 = 0x12;
const EXPIRE: u16 = 0x18;
const SPI: u32 = 0x1000;

/// A worker of the stage's databases.
struct Hand {
    worker: Worker,
    pool: Pool,
    out: Output,
}

impl Hand {
    fn new(stage: &Stage) -> Self {
        let worker = Worker::new(Settings::default(), &stage.database.published()).unwrap();
        Self { worker, pool: Pool::new(), out: Output::default() }
    }

    /// Sends packets of 128 bytes; how many left, and what happened.
    fn send(&mut self, count: usize, stage: &Stage) -> (usize, Vec<Event>) {
        let packet = || packets::udp("10.0.0.1:7", "10.1.0.5:9", &[0; 100]);
        let mut batch: Batch = std::iter::repeat_with(packet).take(count).collect();
        self.worker.outbound(&mut batch, stage.now, &mut self.pool, &mut self.out);
        (self.out.wire.drain().count(), self.out.events.drain(..).collect())
    }
}

/// A tunnel, its state with limits of packets.
fn limited(soft: u64, hard: u64) -> Stage {
    let mut stage = Stage::prepared(&Words::tunnel());
    let start = "ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1000";
    let found = golden().into_iter().find(|(command, _)| command.starts_with(start));
    let mut add = found.unwrap().1;
    add[16 + 112..16 + 120].copy_from_slice(&soft.to_ne_bytes());
    add[16 + 120..16 + 128].copy_from_slice(&hard.to_ne_bytes());
    add[16 + 208..16 + 212].copy_from_slice(&7_u32.to_ne_bytes());
    assert_eq!(stage.ask(&add)[0].verdict(), Some((0, String::new())));
    stage.heard.clear();
    stage
}

/// As the gateway does it: takes effect, then is told.
fn tell(stage: &mut Stage, events: &[Event]) -> Vec<Answer> {
    let before = stage.database.snapshot();
    events.iter().for_each(|event| stage.database.observe(event));
    let mut out = Outbox::default();
    for event in events {
        stage.server.announce(event, &before, &mut stage.database, stage.now, &mut out);
    }
    stage.sort(&mut out);
    std::mem::take(&mut stage.heard).iter().flat_map(|bytes| take_apart(bytes)).collect()
}

/// `struct xfrm_lifetime_cur` of a `struct xfrm_usersa_info`: bytes, packets, added, used.
fn usage(body: &[u8]) -> [u64; 4] {
    [160, 168, 176, 184].map(|at| u64::from_ne_bytes(body[at..at + 8].try_into().unwrap()))
}

/// charon takes the first use from the clock to know how long a state has been idle.
#[test]
fn times_follow_a_clock_step() {
    let mut stage = limited(u64::MAX, u64::MAX);
    stage.now = stage.now.plus(Duration::from_secs(4));
    assert_eq!(Hand::new(&stage).send(1, &stage).0, 1);
    let mut times = |epoch| {
        stage.server.set_epoch(epoch);
        usage(&stage.ask(&by_spi(GET_SA, SPI))[0].body)[2..].to_vec()
    };
    let second = 1_000_000_000;
    let day = 24 * 60 * 60;
    assert_eq!(times((EPOCH + day) * second), [EPOCH + day + 1, EPOCH + day + 5]);
    assert_eq!(times((EPOCH - day) * second), [EPOCH - day + 1, EPOCH - day + 5]);
    let read_a_little_later = times((EPOCH - day) * second - 1000);
    assert_eq!(read_a_little_later, [EPOCH - day + 1, EPOCH - day + 5]);
}

#[test]
fn getsa_sums_counters_of_all_workers() {
    let mut stage = limited(u64::MAX, u64::MAX);
    let mut hands = [Hand::new(&stage), Hand::new(&stage)];
    stage.now = stage.now.plus(Duration::from_secs(4));
    assert_eq!(hands[0].send(3, &stage).0 + hands[1].send(4, &stage).0, 7);
    let answer = stage.ask(&by_spi(GET_SA, SPI));
    assert_eq!(usage(&answer[0].body), [7 * 128, 7, EPOCH + 1, EPOCH + 5]);
    assert_eq!(hands[1].send(1, &stage).0, 1);
    assert_eq!(usage(&stage.ask(&by_spi(GET_SA, SPI))[0].body)[..2], [8 * 128, 8], "at once");
}

#[test]
fn soft_limit_expires_once_and_hard_limit_deletes_the_state() {
    let mut stage = limited(5, 10);
    let mut hands = [Hand::new(&stage), Hand::new(&stage)];
    let (mut left, mut told) = (0, Vec::new());
    for round in 0..10 {
        let (sent, events) = hands[round % 2].send(2, &stage);
        left += sent;
        told.extend(tell(&mut stage, &events));
    }
    assert_eq!(left, 10, "exactly, whoever sends");
    let words: Vec<_> = told.iter().map(|answer| (answer.kind, answer.body[224])).collect();
    assert_eq!(words, [(EXPIRE, 0), (EXPIRE, 1), (0x17, words[2].1)], "and then a packet asks");
    assert_eq!(told[0].body[72..76], SPI.to_be_bytes());
    assert_eq!(usage(&told[0].body)[1], 6, "as in the kernel, with the first packet past it");
    assert_eq!(usage(&told[1].body)[..2], [10 * 128, 10]);
    assert_eq!(stage.ask(&by_spi(GET_SA, SPI))[0].verdict(), Some((3, String::new())));
}
