//! Keys leave no trace.

use super::*;
use crate::secret::witness;

#[test]
fn every_expanded_key_is_wiped_on_drop() {
    for transform in transforms() {
        for backend in backends() {
            let has_key = transform.key_len() + transform.auth_key_len() > 0;
            witness::taken();
            drop(key(&transform, 0x11, backend));
            let wiped = witness::taken();
            let written: usize = wiped.iter().map(|(before, _)| before).sum();
            assert!(!has_key || written >= 16, "{}: {wiped:?}", transform.name());
            assert!(wiped.iter().all(|(_, after)| *after == 0), "{}: {wiped:?}", transform.name());
        }
    }
}

/// The hash states of a worker depend on keys, too.
#[test]
fn a_workers_scratch_is_wiped_on_drop() {
    let transform = pair(None, Some(("hmac(sha1)", 160, None)));
    let key = key(&transform, 5, Backend::Portable);
    let mut crypter = Crypter::new().unwrap();
    seal_one(&mut crypter, &key, SeqHigh::None, Iv::InPacket, &mut packet(&transform, 1, &[1; 20]));
    witness::taken();
    drop(crypter);
    assert!(witness::taken().iter().any(|(before, after)| *before > 0 && *after == 0));
}

#[test]
fn debug_shows_no_key() {
    for transform in transforms() {
        for backend in backends() {
            let key = key(&transform, 0x11, backend);
            let mut esp = packet(&transform, 1, &[0x5a; 32]);
            assert_eq!(format!("{key:?}"), format!("SaKey({}, redacted)", transform.name()));
            let job = SealJob::in_place(&key, SeqHigh::None, Iv::Counter(1), &mut esp);
            let len = transform.overhead() + 32;
            let shown =
                format!("SealJob(SaKey({}, redacted), {len} bytes, Pending)", transform.name());
            assert_eq!(format!("{job:?}"), shown);
        }
    }
}

#[test]
fn keys_of_the_wrong_length_are_refused() {
    for transform in transforms() {
        let (enc, auth) = (transform.key_len(), transform.auth_key_len());
        for (enc, auth) in [(enc + 1, auth), (enc, auth + 1), (enc.saturating_sub(1), auth)] {
            if (enc, auth) == (transform.key_len(), transform.auth_key_len()) {
                continue;
            }
            let (enc, auth) = (KeyMaterial::from(vec![1; enc]), KeyMaterial::from(vec![1; auth]));
            let refused = SaKey::new(&transform, &enc, &auth, Backend::Auto);
            assert!(matches!(refused, Err(Error::KeyMismatch { .. })), "{}", transform.name());
        }
    }
}

/// A CBC IV is not guessable from the counter, and differs with it and with the key (NIST SP
/// 800-38A, appendix C).
#[test]
fn cbc_ivs_are_the_encrypted_counter() {
    let transform = pair(Some(("cbc(aes)", 128)), None);
    let enc = KeyMaterial::new(&hex("000102030405060708090a0b0c0d0e0f"));
    for backend in backends() {
        let key = SaKey::new(&transform, &enc, &KeyMaterial::empty(), backend).unwrap();
        let mut esp = packet(&transform, 1, &[0; 16]);
        let counter = 0x8899_aabb_ccdd_eeff;
        seal_one(&mut Crypter::new().unwrap(), &key, SeqHigh::None, Iv::Counter(counter), &mut esp);
        // OpenSSL: AES-128-ECB of 0000000000000000 8899aabbccddeeff, then of that again.
        assert_eq!(esp[8..24], hex(IV)[..]);
        assert_eq!(esp[24..40], hex(TEXT)[..]);
    }
}

const IV: &str = "19147768d40d48acf49c7b921732c927";
const TEXT: &str = "ec094181d332d9d51f36fbc6add5699e";

#[test]
fn a_crypter_moves_between_threads() {
    fn is_send<T: Send>() {}
    fn is_shared<T: Send + Sync>() {}
    is_send::<Crypter>();
    is_shared::<SaKey>();
    is_shared::<KeyMaterial>();
}
