//! Backends against each other, in place against out of place, on mixed batches.

use proptest::prelude::*;

use super::*;

/// What one packet of a batch is.
#[derive(Debug, Clone)]
struct Case {
    transform: Transform,
    seed: u8,
    text: Vec<u8>,
    esn: Option<u32>,
    counter: u64,
}

impl Case {
    fn seq_high(&self) -> SeqHigh {
        self.esn.map_or(SeqHigh::None, SeqHigh::Esn)
    }
}

fn case(longest: usize) -> impl Strategy<Value = Case> {
    let transform = proptest::sample::select(transforms());
    let text = proptest::collection::vec(any::<u8>(), 2..longest);
    (transform, 0..4u8, text, any::<Option<u32>>(), any::<u64>()).prop_map(
        |(transform, seed, mut text, esn, counter)| {
            text.resize(text.len().next_multiple_of(transform.block_len()), 0x5a);
            Case { transform, seed, text, esn, counter }
        },
    )
}

/// Seals every case in one batch.
fn seal_all(cases: &[Case], backend: Backend, in_place: bool) -> Vec<Vec<u8>> {
    let keys: Vec<SaKey> =
        cases.iter().map(|case| key(&case.transform, case.seed, backend)).collect();
    let mut packets: Vec<Vec<u8>> = cases
        .iter()
        .map(|case| {
            let shown = if in_place { case.text.clone() } else { vec![0xee; case.text.len()] };
            packet(&case.transform, case.seed.into(), &shown)
        })
        .collect();
    let mut jobs: Vec<SealJob<'_>> = Vec::new();
    for ((case, key), esp) in cases.iter().zip(&keys).zip(&mut packets) {
        let iv = Iv::Counter(case.counter);
        jobs.push(match in_place {
            true => SealJob::in_place(key, case.seq_high(), iv, esp),
            false => SealJob::out_of_place(key, case.seq_high(), iv, esp, &case.text),
        });
    }
    Crypter::new().unwrap().seal(&mut jobs);
    assert!(jobs.iter().all(|job| job.status == SealStatus::Sealed));
    drop(jobs);
    packets
}

/// Opens every packet in one batch; the texts.
fn open_all(
    cases: &[Case],
    packets: &[Vec<u8>],
    backend: Backend,
    in_place: bool,
) -> Vec<(OpenStatus, Vec<u8>)> {
    let keys: Vec<SaKey> =
        cases.iter().map(|case| key(&case.transform, case.seed, backend)).collect();
    let mut packets = packets.to_vec();
    let mut plains: Vec<Vec<u8>> = cases.iter().map(|case| vec![0xee; case.text.len()]).collect();
    let mut jobs: Vec<OpenJob<'_>> = Vec::new();
    for (((case, key), esp), plain) in cases.iter().zip(&keys).zip(&mut packets).zip(&mut plains) {
        jobs.push(match in_place {
            true => OpenJob::in_place(key, case.seq_high(), esp),
            false => OpenJob::out_of_place(key, case.seq_high(), esp, plain),
        });
    }
    Crypter::new().unwrap().open(&mut jobs);
    let statuses: Vec<OpenStatus> = jobs.iter().map(|job| job.status).collect();
    drop(jobs);
    let texts = cases.iter().zip(&packets).zip(&plains).map(|((case, esp), plain)| {
        if in_place { text_of(&case.transform, esp).to_vec() } else { plain.clone() }
    });
    statuses.into_iter().zip(texts).collect()
}

fn check(cases: &[Case]) {
    let reference = seal_all(cases, Backend::Portable, true);
    for backend in backends() {
        for in_place in [true, false] {
            let sealed = seal_all(cases, backend, in_place);
            for ((case, ours), theirs) in cases.iter().zip(&sealed).zip(&reference) {
                assert_eq!(
                    ours,
                    theirs,
                    "{} {backend:?} in place {in_place}",
                    case.transform.name()
                );
            }
            for (case, (status, text)) in
                cases.iter().zip(open_all(cases, &reference, backend, in_place))
            {
                let what = format!("{} {backend:?} in place {in_place}", case.transform.name());
                assert_eq!(status, OpenStatus::Authentic, "{what}");
                assert_eq!(text, case.text, "{what}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn backends_agree_on_mixed_batches(cases in proptest::collection::vec(case(300), 1..200)) {
        check(&cases);
    }

    #[test]
    fn backends_agree_on_large_packets(cases in proptest::collection::vec(case(9000), 1..12)) {
        check(&cases);
    }
}

/// Every text length of a few blocks, a whole burst and more of one lane, and lengths beyond what a
/// burst takes.
#[test]
fn backends_agree_on_every_length() {
    for transform in transforms() {
        let of = |len: usize| Case {
            transform,
            seed: 1,
            text: (0..len.next_multiple_of(transform.block_len())).map(|i| i as u8).collect(),
            esn: (len % 2 == 1).then_some(7),
            counter: len as u64,
        };
        check(&(2..150).map(of).collect::<Vec<_>>());
        check(&[9000, 16_384, 59_900, 60_100, 65_000].map(of));
    }
}

/// What ipsec-mb does, but for a key size.
const DONE: [&str; 12] = [
    "rfc4106(gcm(aes))",
    "rfc4309(ccm(aes))",
    "rfc4543(gcm(aes))",
    "rfc7539esp(chacha20,poly1305)",
    "cbc(aes)",
    "rfc3686(ctr(aes))",
    "ecb(cipher_null)",
    "hmac(sha1)",
    "hmac(sha256)",
    "hmac(sha384)",
    "hmac(sha512)",
    "digest_null",
];

#[test]
fn ipsec_mb_handles_supported_transforms() {
    if !Backend::available().contains(&Backend::IpsecMb) {
        let refused = SaKey::new(
            &pair(None, None),
            &KeyMaterial::empty(),
            &KeyMaterial::empty(),
            Backend::IpsecMb,
        );
        assert!(matches!(refused, Err(Error::BackendUnavailable("ipsec-mb"))));
        assert!(
            std::env::var_os("CI").is_none(),
            "CI has libipsec-mb-dev; this build did not find it"
        );
        println!("not run: this build has no ipsec-mb");
        return;
    }
    for transform in transforms() {
        let (name, key_bits) = (transform.name(), transform.key_len() * 8);
        let is_portable = key(&transform, 0, Backend::IpsecMb).backend() == Backend::Portable;
        let lacking = ["rfc4309(ccm(aes)) 216", "ecb(cipher_null)/digest_null 0"];
        if lacking.contains(&format!("{name} {key_bits}").as_str()) || name.contains("md5") {
            assert!(is_portable, "{name} {key_bits}: done by ipsec-mb");
        } else if name.split('/').all(|algorithm| DONE.contains(&algorithm)) {
            assert!(!is_portable, "{name} {key_bits}: not done by ipsec-mb");
        }
    }
}
