//! States as Wireshark reads them: lines of its file `esp_sa`, by which it decrypts ESP.
//!
//! A line has eight fields in quotes: version of IP, source, destination, SPI, cipher and its key
//! with the salt, authentication and its key (Wireshark's `epan/dissectors/packet-ipsec.c`, the
//! table "ESP SAs"). Later releases have more fields behind these, with defaults.

use std::fmt::Write as _;

use uxfrm_crypto::KeyMaterial;
use uxfrm_engine::{Family, SaConfig, SaFlags, SaTransform};
use zeroize::Zeroizing;

/// No line is longer: two keys of 512 bytes. Within this the text does not move.
const LONGEST: usize = 4096;

/// Why Wireshark cannot decrypt a state's packets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Wireshark does not know {0}")]
pub struct UnknownToWireshark(String);

/// The line of a state, with its end. It has the keys.
///
/// # Errors
/// When Wireshark does not know the algorithms.
pub fn line(config: &SaConfig) -> Result<Zeroizing<String>, UnknownToWireshark> {
    let SaTransform { transform, encryption_key, authentication_key } = &config.transform;
    let (name, icv_bits) = (transform.name(), transform.icv_len() * 8);
    let unknown = || UnknownToWireshark(name.clone());
    let (cipher, auth) = match name.split_once('/') {
        None => (aead(&name, icv_bits).ok_or_else(unknown)?, "NULL"),
        Some((cipher, auth)) => (
            self::cipher(cipher).ok_or_else(unknown)?,
            authentication(auth, icv_bits).ok_or_else(unknown)?,
        ),
    };
    let destination = config.id.destination;
    let version = match Family::of(destination) {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    };
    let source = match config.source {
        any if any.is_unspecified() => "*".to_owned(),
        source => source.to_string(),
    };
    let mut line = Zeroizing::new(String::with_capacity(LONGEST));
    // Writing to a string does not fail.
    let _ = write!(
        line,
        "\"{version}\",\"{source}\",\"{destination}\",\"{}\",\"{cipher}\",",
        config.id.spi
    );
    push_key(&mut line, encryption_key);
    let _ = write!(line, ",\"{auth}\",");
    let shown = if auth.starts_with("ANY") { &KeyMaterial::empty() } else { authentication_key };
    push_key(&mut line, shown);
    line.push('\n');
    Ok(line)
}

/// What Wireshark does not do for a state whose line it has.
#[must_use]
pub fn remark(config: &SaConfig) -> Option<&'static str> {
    let name = config.transform.transform.name();
    if name == CHACHA {
        return Some("Wireshark decrypts it from release 4.2 on");
    }
    config.flags.contains(SaFlags::ESN).then_some(
        "it has extended sequence numbers: older releases of Wireshark call its ICVs wrong",
    )
}

/// ChaCha20-Poly1305 by the kernel's name.
const CHACHA: &str = "rfc7539esp(chacha20,poly1305)";

fn aead(name: &str, icv_bits: usize) -> Option<&'static str> {
    match (name, icv_bits) {
        ("rfc4106(gcm(aes))", 64) => Some("AES-GCM with 8 octet ICV [RFC4106]"),
        ("rfc4106(gcm(aes))", 96) => Some("AES-GCM with 12 octet ICV [RFC4106]"),
        ("rfc4106(gcm(aes))", 128) => Some("AES-GCM with 16 octet ICV [RFC4106]"),
        (CHACHA, 128) => Some("ChaCha20 with Poly1305 [RFC7634]"),
        // CCM has no name there, and GMAC's IV would be taken for the packet.
        _ => None,
    }
}

fn cipher(name: &str) -> Option<&'static str> {
    match name {
        "cbc(aes)" => Some("AES-CBC [RFC3602]"),
        "rfc3686(ctr(aes))" => Some("AES-CTR [RFC3686]"),
        "ecb(cipher_null)" => Some("NULL"),
        _ => None,
    }
}

/// Where Wireshark does not know how to authenticate, it is told the ICV's length alone.
fn authentication(name: &str, icv_bits: usize) -> Option<&'static str> {
    match (name, icv_bits) {
        (_, 0) => Some("NULL"),
        ("hmac(md5)", 96) => Some("HMAC-MD5-96 [RFC2403]"),
        ("hmac(sha1)", 96) => Some("HMAC-SHA-1-96 [RFC2404]"),
        ("hmac(sha256)", 96) => Some("HMAC-SHA-256-96 [draft-ietf-ipsec-ciph-sha-256-00]"),
        ("hmac(sha256)", 128) => Some("HMAC-SHA-256-128 [RFC4868]"),
        ("hmac(sha384)", 192) => Some("HMAC-SHA-384-192 [RFC4868]"),
        ("hmac(sha512)", 256) => Some("HMAC-SHA-512-256 [RFC4868]"),
        (_, 64) => Some("ANY 64 bit authentication [no checking]"),
        (_, 96) => Some("ANY 96 bit authentication [no checking]"),
        (_, 128) => Some("ANY 128 bit authentication [no checking]"),
        (_, 192) => Some("ANY 192 bit authentication [no checking]"),
        (_, 256) => Some("ANY 256 bit authentication [no checking]"),
        _ => None,
    }
}

fn push_key(line: &mut String, key: &KeyMaterial) {
    line.push('"');
    if !key.is_empty() {
        line.push_str("0x");
    }
    for byte in key.expose() {
        // Writing to a string does not fail.
        let _ = write!(line, "{byte:02x}");
    }
    line.push('"');
}

#[cfg(test)]
mod tests {
    use uxfrm_crypto::Transform;
    use uxfrm_engine::{SaId, SaProtocol, Spi};

    use super::*;

    fn state(transform: SaTransform) -> SaConfig {
        let id =
            SaId { destination: [10, 8, 0, 2].into(), spi: Spi(0x1001), protocol: SaProtocol::Esp };
        SaConfig::new(id, [10, 9, 0, 1].into(), transform)
    }

    fn key(len: u8) -> KeyMaterial {
        KeyMaterial::new(&(0..len).collect::<Vec<_>>())
    }

    fn aead(name: &str, len: u8, icv_bits: u32) -> SaConfig {
        state(SaTransform::aead(name, key(len), icv_bits).unwrap())
    }

    fn pair(cipher: &str, auth: (&str, u8, u32)) -> SaConfig {
        let (encryption_key, authentication_key) = (key(16), key(auth.1));
        let bits = usize::from(auth.1) * 8;
        let auth = Some((auth.0, bits, Some(auth.2)));
        let transform = Transform::cipher_auth(Some((cipher, 128)), auth).unwrap();
        state(SaTransform { transform, encryption_key, authentication_key })
    }

    #[test]
    fn line_has_ends_algorithms_and_keys() {
        let gcm = aead("rfc4106(gcm(aes))", 20, 128);
        assert_eq!(
            *line(&gcm).unwrap(),
            "\"IPv4\",\"10.9.0.1\",\"10.8.0.2\",\"0x00001001\",\"AES-GCM with 16 octet ICV \
             [RFC4106]\",\"0x000102030405060708090a0b0c0d0e0f10111213\",\"NULL\",\"\"\n"
        );
        let any = SaConfig { source: [0; 4].into(), ..pair("cbc(aes)", ("hmac(sha256)", 32, 128)) };
        let text = line(&any).unwrap();
        assert!(text.starts_with("\"IPv4\",\"*\",\"10.8.0.2\","), "{}", text.len());
        assert!(text.contains("\"AES-CBC [RFC3602]\",\"0x000102030405060708090a0b0c0d0e0f\""));
        assert!(text.contains("\"HMAC-SHA-256-128 [RFC4868]\",\"0x0001"));
    }

    #[test]
    fn unchecked_authentication_has_no_key() {
        let text = line(&pair("cbc(aes)", ("xcbc(aes)", 16, 96))).unwrap();
        assert!(text.ends_with("\"ANY 96 bit authentication [no checking]\",\"\"\n"));
    }

    #[test]
    fn what_wireshark_does_not_know_is_said() {
        let ccm = aead("rfc4309(ccm(aes))", 19, 128);
        assert_eq!(
            line(&ccm).unwrap_err().to_string(),
            "Wireshark does not know rfc4309(ccm(aes))"
        );
        assert!(line(&aead("rfc4543(gcm(aes))", 20, 128)).is_err());
        let chacha = aead(CHACHA, 36, 128);
        assert!(line(&chacha).unwrap().contains("ChaCha20 with Poly1305 [RFC7634]"));
        assert!(remark(&chacha).unwrap().contains("4.2"));
        let gcm = aead("rfc4106(gcm(aes))", 36, 64);
        assert_eq!(remark(&gcm), None);
        assert!(remark(&SaConfig { flags: SaFlags::ESN, ..gcm }).unwrap().contains("extended"));
    }
}
