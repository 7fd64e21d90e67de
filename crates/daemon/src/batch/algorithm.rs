//! Turns the algorithms of a state into its transform. No error shows a key.

use uxfrm_crypto::{
    AEAD_NAMES, AUTH_NAMES, CIPHER_NAMES, Error as CryptoError, KeyMaterial, Transform,
};
use uxfrm_engine::SaTransform;
use uxfrm_xfrm::grammar::{Algorithm, AlgorithmKind, Error, Position, SyntaxError, one_of};

/// The transform, if crypto knows the names and takes keys of these lengths. What is wrong with the
/// pair is wrong at `end`.
pub(super) fn transform(
    algorithms: Vec<Algorithm>,
    end: Position,
) -> Result<SaTransform, SyntaxError> {
    let (mut aead, mut cipher, mut auth) = (None, None, None);
    for algorithm in algorithms {
        match algorithm.kind {
            AlgorithmKind::Aead => aead = Some(algorithm),
            AlgorithmKind::Enc => cipher = Some(algorithm),
            AlgorithmKind::Auth | AlgorithmKind::AuthTrunc => auth = Some(algorithm),
            AlgorithmKind::Comp => {} // only with IPComp, of which the databases refuse every state
        }
    }
    match aead {
        Some(aead) => aead_transform(aead),
        None => pair_transform(cipher, auth, end),
    }
}

fn aead_transform(aead: Algorithm) -> Result<SaTransform, SyntaxError> {
    let icv_bits = aead.bits.unwrap_or_default();
    let transform = Transform::aead(aead.name(), aead.key_bits(), icv_bits)
        .map_err(|error| refused(&error, &aead))?;
    Ok(SaTransform {
        transform,
        encryption_key: aead.key,
        authentication_key: KeyMaterial::empty(),
    })
}

fn pair_transform(
    cipher: Option<Algorithm>,
    auth: Option<Algorithm>,
    end: Position,
) -> Result<SaTransform, SyntaxError> {
    // One after the other, so that a refusal names the right word.
    let cipher_name = cipher.as_ref().map(|cipher| (cipher.name(), cipher.key_bits()));
    if let Some(cipher) = &cipher {
        Transform::cipher_auth(cipher_name, None).map_err(|error| refused(&error, cipher))?;
    }
    let auth_name = auth.as_ref().map(|auth| (auth.name(), auth.key_bits(), auth.bits));
    let transform =
        Transform::cipher_auth(cipher_name, auth_name).map_err(|error| match &auth {
            Some(auth) => refused(&error, auth),
            None => SyntaxError { at: end, error: Error::Rule(error.to_string()) },
        })?;
    let key = |algorithm: Option<Algorithm>| {
        algorithm.map_or_else(KeyMaterial::empty, |algorithm| algorithm.key)
    };
    Ok(SaTransform { transform, encryption_key: key(cipher), authentication_key: key(auth) })
}

fn refused(error: &CryptoError, algorithm: &Algorithm) -> SyntaxError {
    let detail = match error {
        // The name may be a key whose algorithm was forgotten.
        CryptoError::AeadNotFound { icv_bits, .. } => {
            format!("{} with an ICV of {icv_bits} bits", algorithm.shown_name())
        }
        CryptoError::CipherNotFound { .. }
        | CryptoError::AuthNotFound { .. }
        | CryptoError::AuthTruncNotFound { .. } => algorithm.shown_name().to_string(),
        CryptoError::TruncatedIcv { .. }
        | CryptoError::KeyLength { .. }
        | CryptoError::KeyMismatch { .. }
        | CryptoError::BackendUnavailable(_)
        | CryptoError::Library(_)
        | _ => error.detail(),
    };
    let error = Error::Algorithm {
        what: error.to_string(),
        detail,
        algorithm: algorithm.kind.name(),
        expected: one_of(known(algorithm.kind)),
    };
    SyntaxError { at: algorithm.at, error }
}

const fn known(kind: AlgorithmKind) -> &'static [&'static str] {
    match kind {
        AlgorithmKind::Aead => AEAD_NAMES,
        AlgorithmKind::Enc => CIPHER_NAMES,
        AlgorithmKind::Auth | AlgorithmKind::AuthTrunc => AUTH_NAMES,
        AlgorithmKind::Comp => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What errors offer, crypto takes.
    #[test]
    fn algorithm_names_in_errors_are_accepted() {
        for name in AEAD_NAMES {
            assert!(
                [160, 152, 288].iter().any(|bits| Transform::aead(name, *bits, 128).is_ok()),
                "{name}"
            );
        }
        for name in CIPHER_NAMES {
            assert!(
                [0, 128, 160]
                    .iter()
                    .any(|bits| Transform::cipher_auth(Some((name, *bits)), None).is_ok()),
                "{name}"
            );
        }
        for name in AUTH_NAMES {
            assert!(Transform::cipher_auth(None, Some((name, 128, None))).is_ok(), "{name}");
        }
    }
}
