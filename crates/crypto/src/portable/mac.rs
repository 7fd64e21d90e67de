//! HMAC by aws-lc, and the two CBC-MACs of ESP. AES-CMAC and AES-XCBC differ only in the derivation
//! of their three keys; the library lacks XCBC, and its CMAC contexts cannot be shared or copied
//! without allocating, so both are built on its CBC encryption.

use core::ptr;

use aws_lc_sys as aws;
use zeroize::{Zeroize, Zeroizing};

use super::aes;
use crate::error::Error;
use crate::secret::{Flat, Secret};
use crate::transform::{Digest, MAX_ICV_LEN};

/// A context initialised with the key: the template of each packet's.
#[derive(Debug)]
pub(crate) struct HmacKey(Secret<HmacContext>);

/// A worker's working copy.
#[derive(Debug)]
pub(crate) struct HmacScratch(Secret<HmacContext>);

#[repr(C)]
struct HmacContext(aws::HMAC_CTX);

// SAFETY: hash states and pointers to static method tables; `HMAC_CTX_copy_ex` itself copies the
// bytes.
unsafe impl Flat for HmacContext {}

impl HmacScratch {
    pub(super) fn new() -> Self {
        Self(Secret::zeroed())
    }
}

impl HmacKey {
    pub(super) fn new(digest: Digest, key: &[u8]) -> Result<Self, Error> {
        let mut context = Secret::<HmacContext>::zeroed();
        // A null pointer would select the previous key, so an empty key must not be one.
        let start = if key.is_empty() { ptr::dangling() } else { key.as_ptr() };
        // SAFETY: a zeroed context is an empty one; the key is as long as said; no engine.
        let done = unsafe {
            aws::HMAC_Init_ex(
                &raw mut context.0,
                start.cast(),
                key.len(),
                function(digest),
                ptr::null_mut(),
            )
        };
        if done == 1 { Ok(Self(context)) } else { Err(Error::Library("HMAC")) }
    }

    /// `None` if the library refuses: a partial or zero tag must neither be sent nor compared.
    pub(super) fn tag(
        &self,
        scratch: &mut HmacScratch,
        message: &[u8],
    ) -> Option<[u8; MAX_ICV_LEN]> {
        let mut tag = [0; MAX_ICV_LEN];
        let working = &raw mut scratch.0.0;
        // SAFETY: the template was initialised; the copy is this worker's own; the longest digest
        // fits the tag.
        let done = unsafe {
            aws::HMAC_CTX_copy_ex(working, &raw const self.0.0) == 1
                && aws::HMAC_Update(working, message.as_ptr(), message.len()) == 1
                && aws::HMAC_Final(working, tag.as_mut_ptr(), ptr::null_mut()) == 1
        };
        done.then_some(tag)
    }
}

fn function(digest: Digest) -> *const aws::EVP_MD {
    // SAFETY: these return pointers to static tables.
    unsafe {
        match digest {
            Digest::Md5 => aws::EVP_md5(),
            Digest::Sha1 => aws::EVP_sha1(),
            Digest::Sha256 => aws::EVP_sha256(),
            Digest::Sha384 => aws::EVP_sha384(),
            Digest::Sha512 => aws::EVP_sha512(),
        }
    }
}

/// The key, hashed if it is longer than a block and padded with zeroes to one (RFC 2104 §2).
pub(crate) fn shortened_hmac_key(digest: Digest, key: &[u8]) -> Zeroizing<[u8; 128]> {
    let mut block = Zeroizing::new([0; 128]);
    if key.len() <= digest.block_len() {
        block[..key.len()].copy_from_slice(key);
    } else {
        // SAFETY: the longest digest is 64 bytes; the key is as long as said; no engine.
        unsafe {
            let (out, engine) = (block.as_mut_ptr(), ptr::null_mut());
            aws::EVP_Digest(
                key.as_ptr().cast(),
                key.len(),
                out,
                ptr::null_mut(),
                function(digest),
                engine,
            );
        }
    }
    block
}

/// A CBC-MAC whose last block is masked by one of two further keys.
#[derive(Debug)]
pub(crate) struct CbcMacKey(Secret<CbcMacKeys>);

#[repr(C)]
struct CbcMacKeys {
    chain: aws::AES_KEY,
    whole: [u8; 16],
    padded: [u8; 16],
}

// SAFETY: arrays of integers.
unsafe impl Flat for CbcMacKeys {}

impl CbcMacKey {
    /// RFC 4493 §2.3: the masks are the encrypted zero block, doubled once and twice.
    pub(super) fn cmac(key: &[u8]) -> Result<Self, Error> {
        let mut keys = Secret::<CbcMacKeys>::zeroed();
        aes::expand(key, &mut keys.chain)?;
        let zero = Zeroizing::new(aes::encrypt_block(&keys.chain, &[0; 16]));
        keys.whole = doubled(&zero);
        keys.padded = doubled(&keys.whole);
        Ok(Self(keys))
    }

    /// RFC 3566 §4: chain key and masks are three constants under the key.
    pub(super) fn xcbc(key: &[u8]) -> Result<Self, Error> {
        let mut keys = Secret::<CbcMacKeys>::zeroed();
        let mut outer = Secret::<CbcMacKeys>::zeroed();
        aes::expand(key, &mut outer.chain)?;
        let first = Zeroizing::new(aes::encrypt_block(&outer.chain, &[1; 16]));
        aes::expand(&*first, &mut keys.chain)?;
        keys.whole = aes::encrypt_block(&outer.chain, &[2; 16]);
        keys.padded = aes::encrypt_block(&outer.chain, &[3; 16]);
        Ok(Self(keys))
    }

    pub(super) fn tag(&self, message: &[u8]) -> [u8; MAX_ICV_LEN] {
        let split = message.len().saturating_sub(1) / 16 * 16;
        let (whole, last) = message.split_at(split);
        let mut chain = self.chained(whole);
        let mut block = [0; 16];
        block[..last.len()].copy_from_slice(last);
        if last.len() < 16 {
            block[last.len()] = 0x80;
        }
        let mask = if last.len() == 16 { &self.0.whole } else { &self.0.padded };
        for (c, (b, m)) in chain.iter_mut().zip(block.iter().zip(mask)) {
            *c ^= b ^ m;
        }
        let mut tag = [0; MAX_ICV_LEN];
        tag[..16].copy_from_slice(&aes::encrypt_block(&self.0.chain, &chain));
        block.zeroize();
        tag
    }

    /// The chaining value after whole blocks; the ciphertext is discarded.
    fn chained(&self, whole: &[u8]) -> [u8; 16] {
        let mut chain = [0; 16];
        let mut discarded = [0; 512];
        for piece in whole.chunks(discarded.len()) {
            // SAFETY: a piece is whole blocks and at most as long as the buffer; they are apart.
            unsafe {
                let (key, out) = (&raw const self.0.chain, discarded.as_mut_ptr());
                aws::AES_cbc_encrypt(
                    piece.as_ptr(),
                    out,
                    piece.len(),
                    key,
                    chain.as_mut_ptr(),
                    aws::AES_ENCRYPT,
                );
            }
        }
        chain
    }
}

/// Multiplication by x in GF(2^128), big-endian (RFC 4493 §2.3), without a branch on the secret.
fn doubled(block: &[u8; 16]) -> [u8; 16] {
    let value = u128::from_be_bytes(*block);
    let carry = (value >> 127) * 0x87;
    ((value << 1) ^ carry).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3566 §4.6, cases 1 and 2, and RFC 4493 §4, example 1: too short for an ESP packet.
    #[test]
    fn short_messages() {
        let xcbc =
            CbcMacKey::xcbc(&0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f_u128.to_be_bytes()).unwrap();
        assert_eq!(
            xcbc.tag(&[])[..16],
            0x75f0_251d_528a_c01c_4573_dfd5_84d7_9f29_u128.to_be_bytes()
        );
        assert_eq!(
            xcbc.tag(&[0, 1, 2])[..16],
            0x5b37_6580_ae2f_19af_e721_9cee_f172_756f_u128.to_be_bytes()
        );
        let key = 0x2b7e_1516_28ae_d2a6_abf7_1588_09cf_4f3c_u128.to_be_bytes();
        let cmac = CbcMacKey::cmac(&key).unwrap();
        assert_eq!(
            cmac.tag(&[])[..16],
            0xbb1d_6929_e959_3728_7fa3_7d12_9b75_6746_u128.to_be_bytes()
        );
    }

    /// A context without a key, which no caller can create: the library refuses, and there is no
    /// tag.
    #[test]
    fn refused_hmac_gives_no_tag() {
        let broken = HmacKey(Secret::zeroed());
        assert_eq!(broken.tag(&mut HmacScratch::new(), b"Hi There"), None);
    }

    /// RFC 2202 and RFC 4231, case 1, in full: too short for an ESP packet.
    #[test]
    fn short_hmac_message() {
        let cases: [(Digest, usize, &str); 5] = [
            (Digest::Md5, 16, "9294727a3638bb1c13f48ef8158bfc9d"),
            (Digest::Sha1, 20, "b617318655057264e28bc0b6fb378c8ef146be00"),
            (
                Digest::Sha256,
                20,
                "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
            ),
            (
                Digest::Sha384,
                20,
                "afd03944d84895626b0825f4ab46907f15f9dadbe4101ec682aa034c7cebc59c\
                 faea9ea9076ede7f4af152e8b2fa9cb6",
            ),
            (
                Digest::Sha512,
                20,
                "87aa7cdea5ef619d4ff0b4241a1d6cb02379f4e2ce4ec2787ad0b30545e17cde\
                 daa833b7d6b8a702038b274eaea3f4e4be9d914eeb61f1702e696c203a126854",
            ),
        ];
        for (digest, key_len, expected) in cases {
            let key = HmacKey::new(digest, &vec![0x0b; key_len]).unwrap();
            let tag = key.tag(&mut HmacScratch::new(), b"Hi There").unwrap();
            let shown: String = tag.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(shown[..expected.len()], *expected, "{digest:?}");
        }
    }
}
