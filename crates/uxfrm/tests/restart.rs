//! What `docs/embedding.md` tells an embedder with static keys to do across restarts, in few lines;
//! `embedding.rs` runs the guide's own code.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

use std::net::IpAddr;
use std::sync::{Arc, atomic::AtomicU64};

use uxfrm::packet::ipv4::fill_checksum;
use uxfrm::{
    Backend, Batch, Database, Direction, DropReason, Family, KeyMaterial, Moment, Output,
    PacketBuf, Policy, Pool, Prefix, ReplayKeeper, ReplayStore, Sa, SaConfig, SaTransform,
    Settings, Spi, Template, Worker,
};

const NOW: Moment = Moment::from_secs(1);

/// Keeps nothing in memory: a window begins at its edge after a restart.
#[derive(Debug)]
struct NoMemory;

impl ReplayStore for NoMemory {
    fn claim(&self, _: &Sa) -> Option<&'static AtomicU64> {
        None
    }

    fn release(&self, _: &'static AtomicU64) {}

    fn wake(&self) {}
}

/// One process: databases with a static key, and a worker. `direction` is that of its policy.
struct Process {
    database: Database,
    worker: Worker,
    state: Arc<Sa>,
    out: Output,
}

fn start(direction: Direction, keeper: Option<ReplayKeeper>) -> Process {
    let (left, right): (IpAddr, IpAddr) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
    let mut database = Database::new(Backend::Auto, 1);
    match keeper {
        Some(keeper) => database.track_changes_with(keeper),
        None => database.track_changes(),
    }
    let keys = SaTransform::aes_gcm(KeyMaterial::new(&[7; 20])).unwrap();
    let config = SaConfig::esp_tunnel(left, right, Spi(0x1001), keys);
    let any = Prefix::any(Family::V4);
    let policy = Policy::protect(direction, any, any, Template::esp_tunnel(left, right));
    let add = |change: &mut uxfrm::Transaction<'_>| {
        change.add_policy(policy)?;
        change.add_sa(config)
    };
    let state = database.apply(NOW, add).unwrap();
    let worker = Worker::new(Settings::default(), &database.published()).unwrap();
    Process { database, worker, state, out: Output::default() }
}

impl Process {
    fn send(&mut self) -> Option<PacketBuf> {
        let mut plain = *b"\x45\0\0\x14\0\0\0\0\x40\xfd\0\0\x0a\x01\0\x01\x0a\x02\0\x01";
        fill_checksum(&mut plain).unwrap();
        let mut batch: Batch = [PacketBuf::from_slice(&plain)].into_iter().collect();
        self.worker.outbound(&mut batch, NOW, &mut Pool::new(), &mut self.out);
        self.out.wire.drain().next()
    }

    fn receive(&mut self, packet: &PacketBuf) -> bool {
        let mut batch: Batch = [PacketBuf::from_slice(packet.bytes())].into_iter().collect();
        self.worker.inbound(&mut batch, NOW, &mut Pool::new(), &mut self.out);
        self.out.host.drain().count() == 1
    }

    fn drops(&self, reason: DropReason) -> u64 {
        self.worker.drops().of(reason)
    }
}

/// The number in an ESP packet over IPv4.
fn number(packet: &PacketBuf) -> u32 {
    u32::from_be_bytes(packet.bytes()[24..28].try_into().unwrap())
}

#[test]
fn attended_state_sends_nothing_before_numbers_are_reserved() {
    let mut process = start(Direction::Out, None);
    process.database.publish();
    assert!(process.send().is_none());
    assert_eq!(process.drops(DropReason::OutSequenceReserve), 1);
    process.state.sequence().reserve(10);
    assert_eq!(process.send().as_ref().map(number), Some(1));
}

#[test]
fn restarted_sender_continues_above_the_stored_ceiling() {
    let mut sent = Vec::new();
    let mut stored = 0;
    for _ in 0..3 {
        let mut process = start(Direction::Out, None);
        process.state.sequence().skip_to(stored);
        stored += 100;
        process.state.sequence().reserve(stored);
        process.database.publish();
        sent.extend((0..2).map(|_| number(&process.send().unwrap())));
    }
    assert_eq!(sent, [1, 2, 101, 102, 201, 202]);
}

#[test]
fn restarted_receiver_refuses_numbers_up_to_the_stored_edge() {
    let mut sender = start(Direction::Out, None);
    sender.state.sequence().reserve(u64::MAX);
    sender.database.publish();
    let keeper = || Some(ReplayKeeper::new(Arc::new(NoMemory)));

    let mut before = start(Direction::Forward, keeper());
    let edge = before.state.reserved_to_receive();
    before.database.publish();
    let recorded = sender.send().unwrap();
    assert!(before.receive(&recorded) && !before.receive(&recorded));

    let mut after = start(Direction::Forward, keeper());
    after.state.restart_at(edge);
    assert!(after.state.reserved_to_receive() > edge);
    after.database.publish();
    assert!(!after.receive(&recorded), "accepted before the restart");
    assert_eq!(after.drops(DropReason::InBeforeRestart), 1);
    sender.state.sequence().skip_to(edge);
    assert!(after.receive(&sender.send().unwrap()));
}

#[test]
fn restarted_receiver_without_a_store_accepts_a_packet_again() {
    let mut sender = start(Direction::Out, None);
    sender.state.sequence().reserve(u64::MAX);
    sender.database.publish();
    let recorded = sender.send().unwrap();
    for _ in 0..2 {
        let mut process = start(Direction::Forward, None);
        process.database.publish();
        assert!(process.receive(&recorded), "as docs/embedding.md warns");
    }
}
