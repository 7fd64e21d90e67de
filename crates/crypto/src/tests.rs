//! Tests of the whole crate: published vectors, backends against each other, forgeries.

mod agreement;
mod forgery;
mod secrets;
mod vectors;

use crate::*;

/// Bytes of hexadecimal text; white space is skipped.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| c.to_digit(16).unwrap() as u8)
        .collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// Every backend of this machine, and `Auto`.
fn backends() -> Vec<Backend> {
    let mut all = Backend::available().to_vec();
    all.push(Backend::Auto);
    all
}

fn aead(name: &str, key_bits: usize, icv_bits: u32) -> Transform {
    Transform::aead(name, key_bits, icv_bits).unwrap()
}

fn pair(cipher: Option<(&str, usize)>, auth: Option<(&str, usize, Option<u32>)>) -> Transform {
    Transform::cipher_auth(cipher, auth).unwrap()
}

/// Every AEAD with each of its key sizes and ICV lengths; a third of all pairs, with every cipher,
/// authentication algorithm and key size.
fn transforms() -> Vec<Transform> {
    let key_lengths = || (0..=64).map(|bytes| bytes * 8);
    let mut all = vec![pair(None, None)];
    for name in AEAD_NAMES {
        for key_bits in key_lengths() {
            all.extend([64, 96, 128].iter().flat_map(|icv| Transform::aead(name, key_bits, *icv)));
        }
    }
    let named = AUTH_NAMES.iter().flat_map(|name| [128, 192, 256].map(|key| (*name, key, None)));
    let auths: Vec<_> = [
        ("hmac(sha1)", 0, Some(32)),
        ("hmac(sha1)", 160, Some(160)),
        ("hmac(sha256)", 256, Some(128)),
        ("hmac(sha512)", 512, Some(512)),
        ("hmac(sha512)", 2000, None),
        ("xcbc(aes)", 128, Some(128)),
        ("cmac(aes)", 256, Some(128)),
    ]
    .into_iter()
    .chain(named)
    .filter(|auth| Transform::cipher_auth(None, Some(*auth)).is_ok())
    .collect();
    let ciphers = CIPHER_NAMES.iter().flat_map(|name| key_lengths().map(|key| (*name, key)));
    let ciphers = ciphers.filter(|cipher| Transform::cipher_auth(Some(*cipher), None).is_ok());
    for (i, cipher) in ciphers.enumerate() {
        all.extend(auths.iter().skip(i % 3).step_by(3).map(|auth| pair(Some(cipher), Some(*auth))));
    }
    all
}

/// Keys that differ with `seed`.
fn key(transform: &Transform, seed: u8, backend: Backend) -> SaKey {
    let bytes = |len: usize, step: u8| -> KeyMaterial {
        KeyMaterial::from(
            (0..len).map(|i| (i as u8).wrapping_mul(step).wrapping_add(seed)).collect::<Vec<u8>>(),
        )
    };
    SaKey::new(
        transform,
        &bytes(transform.key_len(), 7),
        &bytes(transform.auth_key_len(), 11),
        backend,
    )
    .unwrap()
}

/// SPI, sequence number, then room for IV, `text` and ICV.
fn packet(transform: &Transform, sequence: u32, text: &[u8]) -> Vec<u8> {
    let mut esp = vec![0; transform.overhead() + text.len()];
    esp[..4].copy_from_slice(&0x0102_0304u32.to_be_bytes());
    esp[4..8].copy_from_slice(&sequence.to_be_bytes());
    let start = 8 + transform.iv_len();
    esp[start..start + text.len()].copy_from_slice(text);
    esp
}

fn text_of<'e>(transform: &Transform, esp: &'e [u8]) -> &'e [u8] {
    &esp[8 + transform.iv_len()..esp.len() - transform.icv_len()]
}

fn seal_one(
    crypter: &mut Crypter,
    key: &SaKey,
    seq_high: SeqHigh,
    iv: Iv,
    esp: &mut [u8],
) -> SealStatus {
    let mut jobs = [SealJob::in_place(key, seq_high, iv, esp)];
    crypter.seal(&mut jobs);
    jobs[0].status
}

fn open_one(crypter: &mut Crypter, key: &SaKey, seq_high: SeqHigh, esp: &mut [u8]) -> OpenStatus {
    let mut jobs = [OpenJob::in_place(key, seq_high, esp)];
    crypter.open(&mut jobs);
    jobs[0].status
}
