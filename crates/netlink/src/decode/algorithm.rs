//! Algorithms and keys of a state: `verify_aead`, `verify_auth_trunc`, `verify_one_alg`, then
//! `attach_*`. Keys go straight into [`KeyMaterial`].

use uxfrm_crypto::{KeyMaterial, Transform};
use uxfrm_engine::SaTransform;
use zerocopy::FromBytes as _;

use crate::{
    attribute::{AttributeType, Attributes},
    layout::{RawAlgorithm, RawSizedAlgorithm},
    refusal::{NetlinkError, number},
};

/// An algorithm as an attribute names it.
struct Algorithm<'a> {
    name: &'a str,
    key_bits: u32,
    icv_bits: u32,
    key: &'a [u8],
}

/// The transform that the attributes ask for; which of them may be together is known to be right.
pub(crate) fn transform(attributes: &Attributes<'_>) -> Result<SaTransform, NetlinkError> {
    if let Some(aead) = sized(attributes, AttributeType::AlgAead) {
        let transform = Transform::aead(aead.name, aead.bits(), aead.icv_bits);
        return Ok(SaTransform {
            transform: transform.map_err(refused)?,
            encryption_key: KeyMaterial::new(aead.key),
            authentication_key: KeyMaterial::empty(),
        });
    }
    // `auth-trunc` wins when both are there, as both are in the kernel's own dumps.
    let auth = sized(attributes, AttributeType::AlgAuthTrunc);
    let auth = auth.map(|auth| (auth, true));
    let auth = auth.or_else(|| plain(attributes, AttributeType::AlgAuth).map(|auth| (auth, false)));
    let cipher = plain(attributes, AttributeType::AlgCrypt);
    let auth_words = auth
        .as_ref()
        .map(|(auth, truncated)| (auth.name, auth.bits(), truncated.then_some(auth.icv_bits)));
    // First alone, for of two wrong ones the kernel names the authentication algorithm.
    Transform::cipher_auth(None, auth_words).map_err(refused)?;
    let cipher_words = cipher.as_ref().map(|cipher| (cipher.name, cipher.bits()));
    let transform = Transform::cipher_auth(cipher_words, auth_words).map_err(refused)?;
    let key = |algorithm: Option<&Algorithm<'_>>| {
        algorithm.map_or_else(KeyMaterial::empty, |algorithm| KeyMaterial::new(algorithm.key))
    };
    Ok(SaTransform {
        transform,
        encryption_key: key(cipher.as_ref()),
        authentication_key: key(auth.as_ref().map(|(auth, _)| auth)),
    })
}

/// Whether each key is as long as it says.
pub(crate) fn check_lengths(attributes: &Attributes<'_>) -> Result<(), NetlinkError> {
    use AttributeType as Type;
    let whole = |kind, found: fn(&Attributes<'_>, Type) -> bool, text| {
        if attributes.has(kind) && !found(attributes, kind) {
            return Err(NetlinkError::invalid(text));
        }
        Ok(())
    };
    let is_sized: fn(&Attributes<'_>, Type) -> bool =
        |attributes, kind| sized(attributes, kind).is_some();
    let is_plain: fn(&Attributes<'_>, Type) -> bool =
        |attributes, kind| plain(attributes, kind).is_some();
    whole(Type::AlgAead, is_sized, "Invalid AEAD attribute length")?;
    whole(Type::AlgAuthTrunc, is_sized, "Invalid AUTH_TRUNC attribute length")?;
    [Type::AlgAuth, Type::AlgCrypt, Type::AlgComp]
        .into_iter()
        .try_for_each(|kind| whole(kind, is_plain, "Invalid AUTH/CRYPT/COMP attribute length"))
}

impl Algorithm<'_> {
    fn bits(&self) -> usize {
        // 64-bit machines only; a longer key than the address space is not there anyway.
        usize::try_from(self.key_bits).unwrap_or(usize::MAX)
    }
}

fn sized<'a>(attributes: &Attributes<'a>, kind: AttributeType) -> Option<Algorithm<'a>> {
    let bytes = attributes.value(kind)?;
    let (raw, key) = RawSizedAlgorithm::read_from_prefix(bytes).ok()?;
    let name = name(bytes.get(..NAME_LEN)?);
    Some(Algorithm {
        name,
        key_bits: raw.key_bits,
        icv_bits: raw.icv_bits,
        key: key.get(..key_len(raw.key_bits))?,
    })
}

fn plain<'a>(attributes: &Attributes<'a>, kind: AttributeType) -> Option<Algorithm<'a>> {
    let bytes = attributes.value(kind)?;
    let (raw, key) = RawAlgorithm::read_from_prefix(bytes).ok()?;
    let name = name(bytes.get(..NAME_LEN)?);
    Some(Algorithm {
        name,
        key_bits: raw.key_bits,
        icv_bits: 0,
        key: key.get(..key_len(raw.key_bits))?,
    })
}

const NAME_LEN: usize = 64;

fn key_len(bits: u32) -> usize {
    usize::try_from(bits.div_ceil(8)).unwrap_or(usize::MAX)
}

/// As far as the zero; the last byte counts as one. No algorithm's name is anything but ASCII.
fn name(bytes: &[u8]) -> &str {
    let end = bytes.iter().take(NAME_LEN - 1).position(|byte| *byte == 0).unwrap_or(NAME_LEN - 1);
    std::str::from_utf8(&bytes[..end.min(bytes.len())]).unwrap_or("\u{fffd}")
}

fn refused(error: uxfrm_crypto::Error) -> NetlinkError {
    uxfrm_engine::Error::from(error).into()
}

/// `comp`, which only IPComp has: the engine knows none.
pub(crate) const fn compression_not_found() -> NetlinkError {
    NetlinkError::new(number::ENOSYS, "Requested COMP algorithm not found")
}
