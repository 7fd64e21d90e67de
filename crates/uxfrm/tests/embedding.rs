//! The code of `docs/embedding.md` does what the guide says.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

/// A database and its sequence numbers.
mod sent_numbers {
    use std::collections::{HashMap, HashSet};
    use std::net::IpAddr;
    use std::sync::{Arc, atomic::AtomicU64};

    use uxfrm::packet::ipv4::fill_checksum;
    use uxfrm::{
        Backend, Batch, Direction, DropReason, Family, KeyMaterial, Moment, Output, PacketBuf,
        Policy, Pool, Prefix, ReplayKeeper, ReplayStore, SaConfig, SaTransform, Settings, Spi,
        Template, Worker,
    };

    include!("embedding/sent_numbers.rs");

    const NOW: Moment = Moment::from_secs(1);

    #[derive(Debug)]
    struct NoMemory;

    impl ReplayStore for NoMemory {
        fn claim(&self, _: &Sa) -> Option<&'static AtomicU64> {
            None
        }

        fn release(&self, _: &'static AtomicU64) {}

        fn wake(&self) {}
    }

    #[derive(Default)]
    struct Table {
        ceilings: HashMap<SaId, u64>,
        writes: usize,
        is_full: bool,
        drawn: u32,
    }

    impl SentStore for Table {
        fn ceiling(&self, state: SaId) -> u64 {
            self.ceilings.get(&state).copied().unwrap_or(0)
        }

        fn write(&mut self, state: SaId, ceiling: u64) -> io::Result<()> {
            if self.is_full {
                return Err(io::ErrorKind::StorageFull.into());
            }
            assert!(self.ceiling(state) <= ceiling, "a ceiling never falls");
            self.writes += 1;
            self.ceilings.insert(state, ceiling);
            Ok(())
        }

        fn random(&mut self) -> NonZeroU32 {
            self.drawn += 1;
            NonZeroU32::new(self.drawn).unwrap()
        }
    }

    fn start(keeper: Option<ReplayKeeper>) -> (Database, Worker, Arc<Sa>) {
        let (left, right): (IpAddr, IpAddr) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let mut database = Database::new(Backend::Auto, 1);
        match keeper {
            Some(keeper) => database.track_changes_with(keeper),
            None => database.track_changes(),
        }
        let keys = SaTransform::aes_gcm(KeyMaterial::new(&[7; 20])).unwrap();
        let config = SaConfig::esp_tunnel(left, right, Spi(0x1001), keys).with_esn();
        let any = Prefix::any(Family::V4);
        let policy = Policy::protect(Direction::Out, any, any, Template::esp_tunnel(left, right));
        let sa = database.apply(NOW, |change| {
            change.add_policy(policy)?;
            change.add_sa(config)
        });
        let worker = Worker::new(Settings::default(), &database.published()).unwrap();
        (database, worker, sa.unwrap())
    }

    /// The IVs of packets that were sent together.
    fn send(worker: &mut Worker, packets: usize) -> Vec<u64> {
        let mut plain = *b"\x45\0\0\x14\0\0\0\0\x40\xfd\0\0\x0a\x01\0\x01\x0a\x02\0\x01";
        fill_checksum(&mut plain).unwrap();
        let mut batch: Batch = (0..packets).map(|_| PacketBuf::from_slice(&plain)).collect();
        let mut out = Output::default();
        worker.outbound(&mut batch, NOW, &mut Pool::new(), &mut out);
        let iv = |packet: &PacketBuf| packet.bytes()[28..36].try_into().map(u64::from_be_bytes);
        out.wire.drain().map(|packet| iv(&packet).unwrap()).collect()
    }

    #[test]
    fn state_that_ran_dry_sends_again_after_renewal() {
        let (mut database, mut worker, sa) = start(None);
        let mut store = Table::default();
        publish(&mut database, &mut store).unwrap();
        sa.sequence().skip_to(AHEAD - 10);
        for _ in 0..3 {
            send(&mut worker, 64);
        }
        assert!(sa.sequence().last() > sa.sequence().reserved(), "it ran dry");
        assert!(worker.drops().of(DropReason::OutSequenceReserve) > 0);
        renew(&database, &mut store).unwrap();
        assert_eq!(send(&mut worker, 64).len(), 64);
        renew(&database, &mut store).unwrap();
        assert_eq!(store.writes, 2, "half is left");
    }

    /// With a store of received numbers, as without one.
    #[test]
    fn state_sends_past_2_to_the_32() {
        for keeper in [None, Some(ReplayKeeper::new(Arc::new(NoMemory)))] {
            let (mut database, mut worker, sa) = start(keeper);
            let mut store = Table::default();
            store.ceilings.insert(sa.id(), (1 << 32) - AHEAD / 4);
            publish(&mut database, &mut store).unwrap();
            let mut sent = HashSet::new();
            for start in [(1 << 32) - 100, (2 << 32) - 100] {
                sa.sequence().skip_to(start);
                renew(&database, &mut store).unwrap();
                for packets in [1, 1, 64, 64, 64] {
                    let ivs = send(&mut worker, packets);
                    assert_eq!(ivs.len(), packets);
                    ivs.into_iter().for_each(|iv| assert!(sent.insert(iv), "an IV repeats"));
                }
                assert!(sa.sequence().last() > start + 100, "it is past the half's end");
            }
        }
    }

    /// A full disk at the first publication; then there is room.
    #[test]
    fn state_never_begins_below_the_stored_ceiling() {
        let (mut database, mut worker, sa) = start(None);
        let mut store = Table::default();
        store.ceilings.insert(sa.id(), 5000);
        store.is_full = true;
        assert!(publish(&mut database, &mut store).is_err());
        assert!(renew(&database, &mut store).is_err());
        store.is_full = false;
        renew(&database, &mut store).unwrap();
        publish(&mut database, &mut store).unwrap();
        assert_eq!(send(&mut worker, 1).len(), 1);
        assert_eq!(sa.sequence().last(), 5001);
    }
}

/// A tunnel's states and policies.
mod tunnel {
    use uxfrm::Backend;

    include!("embedding/tunnel.rs");

    const NOW: Moment = Moment::from_secs(1);

    #[test]
    fn refused_tunnel_leaves_nothing_behind() {
        let mut database = Database::new(Backend::Auto, 1);
        let (own, peer) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let here = Prefix::new([10, 1, 0, 0].into(), 16).unwrap();
        let there = Prefix::new([10, 2, 0, 0].into(), 16).unwrap();
        let key = |spi: u32| (Spi(spi), KeyMaterial::new(&spi.to_be_bytes().repeat(5)));
        let in_the_way = Policy::bypass(Direction::Forward, there, here);
        let entry = database.apply(NOW, |change| change.add_policy(in_the_way)).unwrap();
        let add = |database: &mut Database| {
            add_tunnel(database, NOW, (own, peer), (here, there), (key(0x1001), key(0x1002)))
        };
        assert_eq!(add(&mut database), Err(Error::Exists));
        assert!(database.snapshot().sad.is_empty());
        assert_eq!(database.snapshot().spd.len(), 1);

        database.apply(NOW, |change| change.delete_policy(&entry.key())).unwrap();
        assert_eq!(add(&mut database), Ok(()));
        let snapshot = database.snapshot();
        assert_eq!((snapshot.sad.len(), snapshot.spd.len()), (2, 3));
        assert!(observe(&mut database, NOW, Vec::new()).is_empty());
    }
}

#[test]
fn guide_shows_the_code_that_these_tests_run() {
    let guide = include_str!("../../../docs/embedding.md");
    for code in [include_str!("embedding/tunnel.rs"), include_str!("embedding/sent_numbers.rs")] {
        assert!(guide.contains(&format!("```rust\n{code}```")), "it is not in the guide:\n{code}");
    }
}
