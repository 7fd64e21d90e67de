//! Forgeries and noise: no bit may change unnoticed, no plaintext may leave, nothing may panic.

use proptest::prelude::*;

use super::*;

const TEXT: [u8; 32] = *b"thirty-two bytes of plain text..";

/// Every bit of a small packet, and of the ESN's high half, in batches that fill bursts.
#[test]
fn a_flipped_bit_is_refused() {
    let mut crypter = Crypter::new().unwrap();
    for transform in transforms().iter().filter(|transform| transform.authenticates()) {
        for backend in backends() {
            for seq_high in [SeqHigh::None, SeqHigh::Esn(9)] {
                let key = key(transform, 3, backend);
                let mut genuine = packet(transform, 77, &TEXT);
                seal_one(&mut crypter, &key, seq_high, Iv::Counter(5), &mut genuine);
                let mut forged: Vec<Vec<u8>> = (0..genuine.len() * 8)
                    .map(|bit| {
                        let mut esp = genuine.clone();
                        esp[bit / 8] ^= 1 << (bit % 8);
                        esp
                    })
                    .collect();
                let received = forged.clone();
                let mut jobs: Vec<OpenJob<'_>> =
                    forged.iter_mut().map(|esp| OpenJob::in_place(&key, seq_high, esp)).collect();
                crypter.open(&mut jobs);
                for (bit, job) in jobs.iter().enumerate() {
                    assert_eq!(
                        job.status,
                        OpenStatus::Forged,
                        "{} {backend:?} bit {bit}",
                        transform.name()
                    );
                }
                drop(jobs);
                for (esp, received) in forged.iter().zip(&received) {
                    let (left, was) = (text_of(transform, esp), text_of(transform, received));
                    assert!(
                        left == was || left.iter().all(|byte| *byte == 0),
                        "{}",
                        transform.name()
                    );
                    if transform.encrypts() {
                        assert!(
                            left.windows(8)
                                .all(|window| !TEXT.windows(8).any(|plain| plain == window))
                        );
                    }
                }
                assert_eq!(
                    open_one(&mut crypter, &key, seq_high, &mut genuine),
                    OpenStatus::Authentic
                );
            }
        }
    }
}

#[test]
fn a_flipped_bit_of_the_high_half_is_refused() {
    let mut crypter = Crypter::new().unwrap();
    for transform in transforms().iter().filter(|transform| transform.authenticates()) {
        for backend in backends() {
            let key = key(transform, 3, backend);
            let mut genuine = packet(transform, 77, &TEXT);
            seal_one(&mut crypter, &key, SeqHigh::Esn(9), Iv::Counter(5), &mut genuine);
            for bit in 0..32 {
                let mut esp = genuine.clone();
                let status = open_one(&mut crypter, &key, SeqHigh::Esn(9 ^ 1 << bit), &mut esp);
                assert_eq!(
                    status,
                    OpenStatus::Forged,
                    "{} {backend:?} bit {bit}",
                    transform.name()
                );
            }
            assert_eq!(
                open_one(&mut crypter, &key, SeqHigh::None, &mut genuine),
                OpenStatus::Forged
            );
        }
    }
}

/// Forged and genuine packets in one burst: each gets its own status, and out of place no forged
/// text remains.
#[test]
fn forgery_leaves_other_packets_of_burst() {
    let mut crypter = Crypter::new().unwrap();
    for transform in transforms().iter().filter(|transform| transform.authenticates()) {
        for backend in backends() {
            let key = key(transform, 3, backend);
            let mut packets = vec![packet(transform, 77, &TEXT); 40];
            for (i, esp) in packets.iter_mut().enumerate() {
                seal_one(&mut crypter, &key, SeqHigh::Esn(1), Iv::Counter(i as u64), esp);
                let last = esp.len() - 1;
                esp[last] ^= u8::from(i % 3 == 0);
            }
            let mut plains = vec![[0xee; TEXT.len() + 5]; packets.len()];
            let mut jobs: Vec<OpenJob<'_>> = packets
                .iter_mut()
                .zip(&mut plains)
                .map(|(esp, plain)| OpenJob::out_of_place(&key, SeqHigh::Esn(1), esp, plain))
                .collect();
            crypter.open(&mut jobs);
            for (i, job) in jobs.iter().enumerate() {
                let expected = if i % 3 == 0 { OpenStatus::Forged } else { OpenStatus::Authentic };
                assert_eq!(job.status, expected, "{} {backend:?} packet {i}", transform.name());
            }
            drop(jobs);
            for (i, plain) in plains.iter().enumerate() {
                let text = &plain[..TEXT.len()];
                if i % 3 == 0 {
                    assert!(
                        text.iter().all(|byte| *byte == 0xee) || text.iter().all(|byte| *byte == 0)
                    );
                } else {
                    assert_eq!(text, TEXT);
                }
                assert_eq!(plain[TEXT.len()..], [0xee; 5], "no byte behind the text is written");
            }
        }
    }
}

/// Jobs with wrong lengths are reported, and a malformed packet does not keep its plaintext.
#[test]
fn shapes_are_checked() {
    let mut crypter = Crypter::new().unwrap();
    for transform in transforms() {
        for backend in backends() {
            let key = key(&transform, 3, backend);
            for len in 0..transform.overhead() + 40 {
                let text = len.checked_sub(transform.overhead());
                let fits = text.is_some_and(|text| text >= 2 && text % transform.block_len() == 0);
                let mut esp = vec![0xaa; len];
                let opened = open_one(&mut crypter, &key, SeqHigh::None, &mut esp);
                assert_eq!(opened == OpenStatus::TooShort, !fits, "{} {len}", transform.name());
                let mut esp = vec![0xaa; len];
                let sealed = seal_one(&mut crypter, &key, SeqHigh::None, Iv::Counter(1), &mut esp);
                assert_eq!(sealed == SealStatus::Malformed, !fits, "{} {len}", transform.name());
                assert!(fits || esp.iter().all(|byte| *byte == 0));
            }
        }
    }
}

/// A short packet among many, in any position, and none: with one transform, and with different
/// ones.
#[test]
fn seal_reports_whether_any_was_refused() {
    let mut crypter = Crypter::new().unwrap();
    let transforms = transforms();
    let mut says = |keys: &[SaKey], short: Option<usize>| {
        let mut packets: Vec<Vec<u8>> =
            keys.iter().map(|key| packet(key.transform(), 1, &TEXT)).collect();
        short.into_iter().for_each(|at| packets[at].truncate(1));
        let jobs = keys.iter().zip(&mut packets);
        let mut jobs: Vec<SealJob<'_>> = jobs
            .map(|(key, esp)| SealJob::in_place(key, SeqHigh::None, Iv::Counter(1), esp))
            .collect();
        let all = crypter.seal(&mut jobs);
        assert_eq!(all, jobs.iter().all(|job| job.status == SealStatus::Sealed));
        all
    };
    for backend in backends() {
        let mixed: Vec<SaKey> =
            transforms.iter().map(|transform| key(transform, 3, backend)).collect();
        let alike = |transform| (0..20).map(|_| key(transform, 3, backend)).collect();
        let batches = transforms.iter().map(alike).chain([mixed]);
        for keys in batches {
            assert!(says(&keys, None));
            assert!(!says(&keys, Some(0)));
            assert!(!says(&keys, Some(keys.len() - 1)));
        }
    }
}

#[test]
fn out_of_place_lengths_are_checked() {
    let mut crypter = Crypter::new().unwrap();
    for transform in transforms() {
        let key = key(&transform, 3, Backend::Auto);
        for plain_len in [0, 31, 33] {
            let mut esp = packet(&transform, 1, &TEXT);
            let plain = vec![1; plain_len];
            let mut jobs =
                [SealJob::out_of_place(&key, SeqHigh::None, Iv::Counter(1), &mut esp, &plain)];
            crypter.seal(&mut jobs);
            assert_eq!(jobs[0].status, SealStatus::Malformed);
        }
        let mut esp = packet(&transform, 1, &TEXT);
        let mut plain = [0; 31];
        let mut jobs = [OpenJob::out_of_place(&key, SeqHigh::None, &mut esp, &mut plain)];
        crypter.open(&mut jobs);
        assert_eq!(jobs[0].status, OpenStatus::TooShort);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Noise is never authentic and never panics, alone or in a batch.
    #[test]
    fn noise_is_refused(
        packets in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 1..40),
        pick in proptest::collection::vec(any::<prop::sample::Index>(), 40),
        esn in any::<Option<u32>>(),
    ) {
        let transforms: Vec<Transform> = transforms().into_iter().filter(Transform::authenticates).collect();
        let seq_high = esn.map_or(SeqHigh::None, SeqHigh::Esn);
        for backend in backends() {
            let keys: Vec<SaKey> = pick.iter().map(|pick| key(pick.get(&transforms), 1, backend)).collect();
            let mut packets = packets.clone();
            let mut jobs: Vec<OpenJob<'_>> =
                packets.iter_mut().zip(&keys).map(|(esp, key)| OpenJob::in_place(key, seq_high, esp)).collect();
            Crypter::new().unwrap().open(&mut jobs);
            for job in &jobs {
                // A 32-bit ICV is guessed once in four thousand million times.
                prop_assert!(matches!(job.status, OpenStatus::Forged | OpenStatus::TooShort));
            }
        }
    }
}
