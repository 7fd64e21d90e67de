//! The whole crate against published vectors, against itself, and against forgers.

use crate::*;

#[test]
fn gcm_round_trip() {
    let t = Transform::aead("rfc4106(gcm(aes))", 160, 128).unwrap();
    let key = SaKey::new(&t, &KeyMaterial::new(&[7; 20]), &KeyMaterial::empty(), Backend::Portable)
        .unwrap();
    let mut c = Crypter::new().unwrap();
    let mut esp = [9u8; 8 + 8 + 20 + 16];
    c.seal(&mut [SealJob::in_place(&key, SeqHigh::None, Iv::Counter(1), &mut esp)]);
    let mut jobs = [OpenJob::in_place(&key, SeqHigh::None, &mut esp)];
    c.open(&mut jobs);
    assert_eq!(jobs[0].verdict, Authenticity::Authentic);
    assert_eq!(esp[16..36], [9; 20]);
}
