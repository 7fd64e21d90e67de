//! The portable backend, on aws-lc. One packet at a time; the ICV is verified before anything is
//! decrypted, or decrypted text is wiped. Also the reference for tests of the other backend.

mod aead;
mod aes;
mod ccm;
mod gmac;
mod mac;

use zeroize::Zeroize;

use crate::error::Error;
use crate::icv;
use crate::job::{EspParts, Iv, OpenJob, OpenStatus, SealJob, SealStatus, SeqHigh};
use crate::material::KeyMaterial;
use crate::transform::{Aead, Auth, Cipher, HEADER_LEN, Kind, MAX_ICV_LEN, Transform};

pub(crate) use self::mac::shortened_hmac_key;

/// An SA's expanded key.
#[derive(Debug)]
pub(crate) enum PortableKey {
    Aead(aead::AeadKey),
    Ccm(ccm::CcmKey),
    Gmac(aead::AeadKey),
    Pair(CipherKey, AuthKey),
}

#[derive(Debug)]
pub(crate) enum CipherKey {
    Null,
    Cbc(aes::CbcKey),
    Ctr(aes::CtrKey),
}

#[derive(Debug)]
pub(crate) enum AuthKey {
    Null,
    Hmac(mac::HmacKey),
    CbcMac(mac::CbcMacKey),
}

/// A worker's buffers, so that no packet allocates.
#[derive(Debug)]
pub(crate) struct Scratch {
    ccm: ccm::Contexts,
    hmac: mac::HmacScratch,
    gmac: gmac::Scratch,
}

impl Scratch {
    pub(crate) fn new() -> Result<Self, Error> {
        Ok(Self {
            ccm: ccm::Contexts::new()?,
            hmac: mac::HmacScratch::new(),
            gmac: gmac::Scratch::default(),
        })
    }
}

impl PortableKey {
    /// Key lengths match the transform: `SaKey::new` has checked.
    pub(crate) fn new(
        transform: &Transform,
        enc: &KeyMaterial,
        auth: &KeyMaterial,
    ) -> Result<Self, Error> {
        let icv_len = transform.icv_len();
        Ok(match transform.kind {
            Kind::Aead(Aead::Ccm(size)) => Self::Ccm(ccm::CcmKey::new(size, enc.expose(), icv_len)),
            Kind::Aead(gmac @ Aead::Gmac(_)) => {
                Self::Gmac(aead::AeadKey::new(gmac, enc.expose(), icv_len)?)
            }
            Kind::Aead(aead) => Self::Aead(aead::AeadKey::new(aead, enc.expose(), icv_len)?),
            Kind::Pair(cipher, mac) => {
                Self::Pair(CipherKey::new(cipher, enc.expose())?, AuthKey::new(mac, auth.expose())?)
            }
        })
    }

    /// A block under the CBC cipher's key.
    pub(crate) fn encrypt_block(&self, block: &[u8; 16]) -> Option<[u8; 16]> {
        let Self::Pair(CipherKey::Cbc(key), _) = self else { return None };
        Some(key.encrypt_block(block))
    }

    /// Seals one packet; `text_len` is from the job.
    pub(crate) fn seal(&self, scratch: &mut Scratch, job: &mut SealJob<'_>, text_len: usize) {
        if let Self::Pair(CipherKey::Null, AuthKey::Null) = self {
            copy_in(job.plain, &mut job.esp[HEADER_LEN..]);
            job.status = SealStatus::Sealed;
            return;
        }
        let transform = job.key.transform;
        if let Self::Pair(cipher, auth) = self {
            let covered = job.esp.len() - transform.icv_len();
            cipher.encrypt(job, transform.iv_len());
            let signed = auth.sign(scratch, job.seq_high, job.esp, covered);
            job.status = if signed { SealStatus::Sealed } else { refused(job.esp) };
            return;
        }
        write_counter(job.iv, &mut job.esp[HEADER_LEN..HEADER_LEN + 8]);
        let aad = Aad::of(job.esp, job.seq_high);
        let parts = EspParts::of(job.esp, transform.iv_len(), text_len);
        let sealed = match self {
            Self::Aead(key) => key.seal(aad.bytes(), parts, job.plain),
            Self::Ccm(key) => key.seal(&mut scratch.ccm, aad.bytes(), parts, job.plain),
            Self::Gmac(key) => {
                copy_in(job.plain, parts.text);
                gmac::seal(key, &mut scratch.gmac, &aad, parts)
            }
            Self::Pair(..) => true,
        };
        job.status = if sealed { SealStatus::Sealed } else { refused(job.esp) };
    }

    /// Opens one packet; `text_len` is from the job.
    pub(crate) fn open(&self, scratch: &mut Scratch, job: &mut OpenJob<'_>, text_len: usize) {
        if let Self::Pair(CipherKey::Null, AuthKey::Null) = self {
            let plain = job.plain.as_deref_mut().map(|plain| &mut plain[..text_len]);
            copy_out(&job.esp[HEADER_LEN..], plain);
            job.status = OpenStatus::Authentic;
            return;
        }
        let transform = job.key.transform;
        if let Self::Pair(cipher, auth) = self {
            let covered = job.esp.len() - transform.icv_len();
            let authentic = auth.verify(scratch, job.seq_high, job.esp, covered);
            if authentic {
                cipher.decrypt(job, transform.iv_len(), text_len);
            }
            job.status = open_status(authentic);
            return;
        }
        let aad = Aad::of(job.esp, job.seq_high);
        let parts = EspParts::of(job.esp, transform.iv_len(), text_len);
        let plain = job.plain.as_deref_mut().map(|plain| &mut plain[..text_len]);
        let authentic = match self {
            Self::Aead(key) => key.open(aad.bytes(), parts, plain),
            Self::Ccm(key) => key.open(&mut scratch.ccm, aad.bytes(), parts, plain),
            Self::Gmac(key) => {
                let authentic = gmac::verify(key, &mut scratch.gmac, &aad, &parts);
                if authentic {
                    copy_out(parts.text, plain);
                }
                authentic
            }
            Self::Pair(..) => false,
        };
        job.status = open_status(authentic);
    }
}

impl CipherKey {
    fn new(cipher: Cipher, key: &[u8]) -> Result<Self, Error> {
        Ok(match cipher {
            Cipher::Null => Self::Null,
            Cipher::Cbc(_) => Self::Cbc(aes::CbcKey::new(key)?),
            Cipher::Ctr(_) => Self::Ctr(aes::CtrKey::new(key)?),
        })
    }

    /// Writes IV and ciphertext.
    fn encrypt(&self, job: &mut SealJob<'_>, iv_len: usize) {
        let end = job.esp.len() - job.key.transform.icv_len();
        let (iv, text) = job.esp[HEADER_LEN..end].split_at_mut(iv_len);
        match (self, job.iv, job.plain) {
            (Self::Null, _, plain) => copy_in(plain, text),
            (Self::Cbc(key), Iv::Counter(counter), None) => {
                // Encrypting the counter block in front of the text under a zero IV makes it the IV
                // and chains on.
                iv.copy_from_slice(&counter_block(counter));
                key.encrypt(&[0; 16], None, &mut job.esp[HEADER_LEN..end]);
            }
            (Self::Cbc(key), Iv::Counter(counter), plain @ Some(_)) => {
                let block = key.encrypt_block(&counter_block(counter));
                iv.copy_from_slice(&block);
                key.encrypt(&block, plain, text);
            }
            (Self::Cbc(key), Iv::InPacket, plain) => key.encrypt(&array(iv), plain, text),
            (Self::Ctr(key), source, plain) => {
                write_counter(source, iv);
                key.apply(&array(iv), plain, text);
            }
        }
    }

    fn decrypt(&self, job: &mut OpenJob<'_>, iv_len: usize, text_len: usize) {
        let (header_iv, rest) = job.esp.split_at_mut(HEADER_LEN + iv_len);
        let (iv, text) = (&header_iv[HEADER_LEN..], &mut rest[..text_len]);
        let plain = job.plain.as_deref_mut().map(|plain| &mut plain[..text_len]);
        match self {
            Self::Null => copy_out(text, plain),
            Self::Cbc(key) => key.decrypt(&array(iv), text, plain),
            Self::Ctr(key) => match plain {
                Some(plain) => key.apply(&array(iv), Some(text), plain),
                None => key.apply(&array(iv), None, text),
            },
        }
    }
}

impl AuthKey {
    fn new(auth: Auth, key: &[u8]) -> Result<Self, Error> {
        Ok(match auth {
            Auth::Null => Self::Null,
            Auth::Hmac(digest, _) => Self::Hmac(mac::HmacKey::new(digest, key)?),
            Auth::Xcbc => Self::CbcMac(mac::CbcMacKey::xcbc(key)?),
            Auth::Cmac(_) => Self::CbcMac(mac::CbcMacKey::cmac(key)?),
        })
    }

    fn tag(&self, scratch: &mut Scratch, message: &[u8]) -> Option<[u8; MAX_ICV_LEN]> {
        match self {
            Self::Null => Some([0; MAX_ICV_LEN]),
            Self::Hmac(key) => key.tag(&mut scratch.hmac, message),
            Self::CbcMac(key) => Some(key.tag(message)),
        }
    }

    /// Writes the ICV behind `esp[..covered]`; `false` if the library refuses.
    #[must_use]
    fn sign(
        &self,
        scratch: &mut Scratch,
        seq_high: SeqHigh,
        esp: &mut [u8],
        covered: usize,
    ) -> bool {
        let end = append_seq_high(seq_high, esp, covered);
        let Some(tag) = self.tag(scratch, &esp[..end]) else { return false };
        let icv = &mut esp[covered..];
        icv.copy_from_slice(&tag[..icv.len()]);
        true
    }

    /// Verifies the ICV behind `esp[..covered]`; leaves the packet unchanged.
    fn verify(
        &self,
        scratch: &mut Scratch,
        seq_high: SeqHigh,
        esp: &mut [u8],
        covered: usize,
    ) -> bool {
        let received = ReceivedIcv::take(esp, covered);
        let end = append_seq_high(seq_high, esp, covered);
        let tag = self.tag(scratch, &esp[..end]);
        received.restore(esp, covered);
        tag.is_some_and(|tag| received.matches(&tag))
    }
}

/// A copy of the received ICV, whose place holds the ESN's high half meanwhile.
#[derive(Clone, Copy)]
pub(crate) struct ReceivedIcv {
    icv: [u8; MAX_ICV_LEN],
    len: usize,
}

impl ReceivedIcv {
    pub(crate) const NONE: Self = Self { icv: [0; MAX_ICV_LEN], len: 0 };

    pub(crate) fn take(esp: &[u8], covered: usize) -> Self {
        let mut received = Self::NONE;
        received.len = esp.len() - covered;
        received.icv[..received.len].copy_from_slice(&esp[covered..]);
        received
    }

    pub(crate) fn restore(&self, esp: &mut [u8], covered: usize) {
        esp[covered..].copy_from_slice(&self.icv[..self.len]);
    }

    /// In constant time.
    pub(crate) fn matches(&self, tag: &[u8]) -> bool {
        icv::matches(&self.icv[..self.len], tag)
    }
}

/// With ESN, `seq_high` follows the text in the authenticated message (RFC 4303 §2.8): it is
/// written where the ICV will be, so that the message is contiguous. Every ICV has at least 4
/// bytes. Returns the message's end.
pub(crate) fn append_seq_high(seq_high: SeqHigh, esp: &mut [u8], covered: usize) -> usize {
    match seq_high {
        SeqHigh::Esn(high) if esp.len() - covered >= 4 => {
            esp[covered..covered + 4].copy_from_slice(&high.to_be_bytes());
            covered + 4
        }
        SeqHigh::Esn(_) | SeqHigh::None => covered,
    }
}

/// Associated data of an AEAD: SPI | sequence number, or SPI | high half | sequence number (RFC
/// 4106 §5).
#[derive(Clone, Copy)]
pub(crate) struct Aad {
    bytes: [u8; 12],
    len: usize,
}

impl Aad {
    pub(crate) const EMPTY: Self = Self { bytes: [0; 12], len: 0 };

    pub(crate) fn of(esp: &[u8], seq_high: SeqHigh) -> Self {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&esp[..4]);
        let len = match seq_high {
            SeqHigh::None => {
                bytes[4..8].copy_from_slice(&esp[4..8]);
                8
            }
            SeqHigh::Esn(high) => {
                bytes[4..8].copy_from_slice(&high.to_be_bytes());
                bytes[8..].copy_from_slice(&esp[4..8]);
                12
            }
        };
        Self { bytes, len }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Writes the counter as the 8-byte IV; leaves an IV of another length (the null cipher's) alone.
pub(crate) fn write_counter(iv: Iv, place: &mut [u8]) {
    match iv {
        Iv::Counter(counter) if place.len() == 8 => place.copy_from_slice(&counter.to_be_bytes()),
        Iv::Counter(_) | Iv::InPacket => {}
    }
}

/// The counter as a block, for CBC.
pub(crate) fn counter_block(counter: u64) -> [u8; 16] {
    u128::from(counter).to_be_bytes()
}

pub(crate) fn copy_in(plain: Option<&[u8]>, text: &mut [u8]) {
    if let Some(plain) = plain {
        text.copy_from_slice(plain);
    }
}

pub(crate) fn copy_out(text: &[u8], plain: Option<&mut [u8]>) {
    if let Some(plain) = plain {
        plain.copy_from_slice(text);
    }
}

/// Zeroes a packet that could not be sealed.
pub(crate) fn refused(esp: &mut [u8]) -> SealStatus {
    esp.zeroize();
    SealStatus::Malformed
}

pub(crate) fn open_status(authentic: bool) -> OpenStatus {
    if authentic { OpenStatus::Authentic } else { OpenStatus::Forged }
}

/// The first N bytes; the slice has them.
pub(crate) fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[..N]);
    array
}
