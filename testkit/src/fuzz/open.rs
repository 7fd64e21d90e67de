//! Any bytes as an ESP packet under every transform: no forgery is authentic, no genuine packet is
//! refused.

use std::sync::LazyLock;

use uxfrm_crypto::{
    AEAD_NAMES, AUTH_NAMES, Backend, CIPHER_NAMES, Crypter, Iv, KeyMaterial, OpenJob, OpenStatus,
    SaKey, SealJob, SealStatus, SeqHigh, Transform,
};

/// Every AEAD with each of its key sizes and ICV lengths, and every pair of a cipher and an
/// authentication algorithm.
static TRANSFORMS: LazyLock<Vec<Transform>> = LazyLock::new(|| {
    let mut all = Vec::new();
    for name in AEAD_NAMES {
        for key_bits in (0..=512).step_by(8) {
            all.extend([64, 96, 128].iter().flat_map(|icv| Transform::aead(name, key_bits, *icv)));
        }
    }
    for cipher in CIPHER_NAMES {
        for key_bits in [0, 128, 160, 256, 288] {
            for auth in AUTH_NAMES {
                let auths = [(*auth, 128, None), (*auth, 256, Some(128))];
                all.extend(auths.iter().flat_map(|auth| {
                    Transform::cipher_auth(Some((cipher, key_bits)), Some(*auth))
                }));
            }
        }
    }
    all
});

fn keys(transform: &Transform, backend: Backend) -> SaKey {
    let key = |len| KeyMaterial::from(vec![0x5a; len]);
    SaKey::new(transform, &key(transform.key_len()), &key(transform.auth_key_len()), backend)
        .expect("keys of the transform's lengths")
}

/// The first byte selects transform and extended sequence numbers, the second how many packets are
/// opened at once. The rest is the packet, which every backend opens in place and out of place, and
/// seals.
///
/// # Panics
/// If an opened packet does not seal to the same bytes, backends disagree, or plaintext of a
/// forgery is returned.
pub fn open(bytes: &[u8]) {
    let [choice, count, esp @ ..] = bytes else { return };
    let transform = &TRANSFORMS[usize::from(choice & 0x7f) % TRANSFORMS.len()];
    let seq_high = if choice & 0x80 == 0 { SeqHigh::None } else { SeqHigh::Esn(9) };
    let mut crypter = Crypter::new().expect("crypto library");
    let mut statuses = Vec::new();
    for backend in Backend::available() {
        let key = keys(transform, *backend);
        let count = usize::from(count % 20) + 1;
        statuses.push(opened(&mut crypter, &key, seq_high, esp, count));
        if let Some(Some(plain)) = statuses.last() {
            assert_seals_again(&mut crypter, &key, seq_high, esp, plain);
        }
        sealed_and_opened(&mut crypter, &key, seq_high, esp);
    }
    assert!(statuses.windows(2).all(|pair| pair[0] == pair[1]), "backends disagree");
}

/// The plaintext of an authentic packet, checked to be the same in place and out of place, in any
/// batch.
fn opened(
    crypter: &mut Crypter,
    key: &SaKey,
    seq_high: SeqHigh,
    esp: &[u8],
    count: usize,
) -> Option<Vec<u8>> {
    let mut packets = vec![esp.to_vec(); count];
    let mut plains = vec![vec![0xee; esp.len()]; count];
    let mut jobs = Vec::new();
    for (number, (packet, plain)) in packets.iter_mut().zip(&mut plains).enumerate() {
        jobs.push(match number % 2 {
            0 => OpenJob::in_place(key, seq_high, packet),
            _ => OpenJob::out_of_place(key, seq_high, packet, plain),
        });
    }
    crypter.open(&mut jobs);
    let status = jobs[0].status;
    assert!(jobs.iter().all(|job| job.status == status), "one packet, several statuses");
    drop(jobs);
    let transform = key.transform();
    let text =
        |bytes: &[u8]| bytes[8 + transform.iv_len()..bytes.len() - transform.icv_len()].to_vec();
    match status {
        OpenStatus::Authentic => {
            let plain = text(&packets[0]);
            for (number, (packet, out)) in packets.iter().zip(&plains).enumerate() {
                let given =
                    if number % 2 == 0 { text(packet) } else { out[..plain.len()].to_vec() };
                assert_eq!(given, plain);
            }
            Some(plain)
        }
        OpenStatus::Forged => {
            let left = text(&packets[0]);
            assert!(left == text(esp) || left.iter().all(|byte| *byte == 0), "plaintext got out");
            None
        }
        OpenStatus::TooShort => {
            assert_eq!(packets[0], esp, "a runt was touched");
            None
        }
        OpenStatus::Pending => panic!("a job was left over"),
    }
}

fn assert_seals_again(
    crypter: &mut Crypter,
    key: &SaKey,
    seq_high: SeqHigh,
    esp: &[u8],
    plain: &[u8],
) {
    let mut again = esp.to_vec();
    let mut jobs = [SealJob::out_of_place(key, seq_high, Iv::InPacket, &mut again, plain)];
    crypter.seal(&mut jobs);
    assert_eq!(jobs[0].status, SealStatus::Sealed);
    assert_eq!(again, esp, "what opened does not seal to the same");
}

/// Seals the bytes as a plain packet: it is malformed, or opens again.
fn sealed_and_opened(crypter: &mut Crypter, key: &SaKey, seq_high: SeqHigh, esp: &[u8]) {
    let mut packet = esp.to_vec();
    let mut jobs = [SealJob::in_place(key, seq_high, Iv::Counter(7), &mut packet)];
    crypter.seal(&mut jobs);
    match jobs[0].status {
        SealStatus::Sealed => {
            let transform = key.transform();
            let plain = opened(crypter, key, seq_high, &packet, 1).expect("our own packet");
            assert_eq!(plain, esp[8 + transform.iv_len()..esp.len() - transform.icv_len()]);
        }
        SealStatus::Malformed => assert!(packet.iter().all(|byte| *byte == 0), "plaintext leaves"),
        SealStatus::Pending => panic!("a job was left over"),
    }
}

/// Genuine packets of every transform.
#[must_use]
pub fn open_seeds() -> Vec<Vec<u8>> {
    let mut crypter = Crypter::new().expect("crypto library");
    let mut seeds = Vec::new();
    for (number, transform) in (0_u8..).zip(&*TRANSFORMS) {
        let esn = number % 2 * 0x80;
        let seq_high = if esn == 0 { SeqHigh::None } else { SeqHigh::Esn(9) };
        let mut esp = vec![number; transform.overhead() + 32];
        let key = keys(transform, Backend::Portable);
        let mut jobs = [SealJob::in_place(&key, seq_high, Iv::Counter(3), &mut esp)];
        crypter.seal(&mut jobs);
        assert_eq!(jobs[0].status, SealStatus::Sealed);
        seeds.push([&[esn | number, number % 20][..], &esp].concat());
    }
    seeds
}
