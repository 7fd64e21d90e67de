//! Records that only who has the fleet's key can read or write.
//!
//! Whoever can write etcd, its administrator or a thief of its disk, can put there what he likes:
//! none of it opens. A record is bound to its key in etcd and to its serial number, so it passes
//! for no other record. An older record with its older number does open: who reads it compares the
//! number to the highest that he saw ([`Serial`]).
//!
//! The cipher is XChaCha20-Poly1305, as its nonces of 192 bits may be drawn at random for as long
//! as the fleet lives.

use std::fmt;

use chacha20poly1305::{
    KeyInit, XChaCha20Poly1305, XNonce,
    aead::{Aead, Payload},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

/// The form of sealed records; others are refused.
const FORM: u8 = 1;
const KEY_ID: usize = 8;
const NONCE: usize = 24;
const TAG: usize = 16;
/// Form, key id, serial number, nonce.
const HEAD: usize = 1 + KEY_ID + 8 + NONCE;

/// The number of a record under its key in etcd: the next one there has a higher number.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Serial(pub u64);

/// Random bits for one record.
#[derive(Clone, Copy)]
pub struct SealNonce(pub [u8; NONCE]);

/// A key that all gateways of a fleet have by file.
#[derive(Clone)]
pub struct FleetKey {
    id: FleetKeyId,
    bytes: Zeroizing<[u8; 32]>,
}

/// Names a key, and tells nothing about it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FleetKeyId([u8; KEY_ID]);

/// The keys of a fleet: the first seals, all open. Two while keys change.
#[derive(Clone, Debug)]
pub struct Keyring {
    keys: Vec<FleetKey>,
}

/// A record, opened.
#[derive(PartialEq, Eq)]
pub struct OpenedRecord {
    /// Its number under its key in etcd.
    pub serial: Serial,
    /// What was sealed.
    pub text: Zeroizing<Vec<u8>>,
}

/// Why a record does not open.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// It is no sealed record, or one of a later version.
    #[error("it is no record of this version of uxfrm")]
    Form,
    /// None of the keys here sealed it.
    #[error("it is sealed under the key {0}, which is not here")]
    UnknownKey(FleetKeyId),
    /// It was changed, or is another key's in etcd.
    #[error("it is not authentic: whoever wrote it does not have the fleet's key, or moved it")]
    NotAuthentic,
}

impl FleetKey {
    /// Of 32 random bytes.
    #[must_use]
    pub fn new(bytes: Zeroizing<[u8; 32]>) -> Self {
        let digest = Sha256::new().chain_update(b"uxfrm fleet key id").chain_update(*bytes);
        let mut id = [0; KEY_ID];
        id.copy_from_slice(&digest.finalize()[..KEY_ID]);
        Self { id: FleetKeyId(id), bytes }
    }

    /// Its name.
    #[must_use]
    pub const fn id(&self) -> FleetKeyId {
        self.id
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new((&*self.bytes).into())
    }
}

impl Keyring {
    /// Of a key that seals, and others that open as well.
    #[must_use]
    pub fn new(sealing: FleetKey, others: impl IntoIterator<Item = FleetKey>) -> Self {
        Self { keys: std::iter::once(sealing).chain(others).collect() }
    }

    /// Seals a record for its key in etcd.
    #[must_use]
    pub fn seal(&self, path: &str, serial: Serial, text: &[u8], nonce: SealNonce) -> Vec<u8> {
        // A keyring has a key.
        let key = &self.keys[0];
        let mut record = Vec::with_capacity(HEAD + text.len() + TAG);
        record.push(FORM);
        record.extend_from_slice(&key.id.0);
        record.extend_from_slice(&serial.0.to_be_bytes());
        record.extend_from_slice(&nonce.0);
        let bound = bound_to(path, &record);
        let payload = Payload { msg: text, aad: &bound };
        let sealed = key.cipher().encrypt(&XNonce::from(nonce.0), payload);
        // It fails for texts of 256 GiB alone.
        record.extend_from_slice(&sealed.unwrap_or_default());
        record
    }

    /// Opens what etcd has under a key.
    ///
    /// # Errors
    /// Where nobody with one of these keys sealed it for this key in etcd.
    pub fn open(&self, path: &str, record: &[u8]) -> Result<OpenedRecord, OpenError> {
        let head = SealedHead::of(record)?;
        let key = self.keys.iter().find(|key| key.id == head.key);
        let key = key.ok_or(OpenError::UnknownKey(head.key))?;
        let bound = bound_to(path, &record[..HEAD]);
        let payload = Payload { msg: &record[HEAD..], aad: &bound };
        let text = key.cipher().decrypt(&XNonce::from(head.nonce), payload);
        let text = text.map_err(|_| OpenError::NotAuthentic)?;
        Ok(OpenedRecord { serial: head.serial, text: Zeroizing::new(text) })
    }
}

/// What stands before the sealed text.
struct SealedHead {
    key: FleetKeyId,
    serial: Serial,
    nonce: [u8; NONCE],
}

impl SealedHead {
    fn of(record: &[u8]) -> Result<Self, OpenError> {
        let (form, rest) = record.split_first().ok_or(OpenError::Form)?;
        let (key, rest) = rest.split_first_chunk().ok_or(OpenError::Form)?;
        let (serial, rest) = rest.split_first_chunk().ok_or(OpenError::Form)?;
        let (nonce, _) = rest.split_first_chunk().ok_or(OpenError::Form)?;
        if *form != FORM {
            return Err(OpenError::Form);
        }
        let serial = Serial(u64::from_be_bytes(*serial));
        Ok(Self { key: FleetKeyId(*key), serial, nonce: *nonce })
    }
}

/// What is authenticated beside the text. The head has one length, so nothing runs into the path.
fn bound_to(path: &str, head: &[u8]) -> Vec<u8> {
    [head, path.as_bytes()].concat()
}

impl fmt::Display for FleetKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for FleetKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FleetKeyId({self})")
    }
}

impl fmt::Debug for FleetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FleetKey").field("id", &self.id).finish_non_exhaustive()
    }
}

impl fmt::Debug for SealNonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealNonce")
    }
}

impl fmt::Debug for OpenedRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenedRecord").field("serial", &self.serial).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
