//! SAs for tests.

use std::net::IpAddr;

use uxfrm_crypto::{KeyMaterial, Transform};

use crate::{Family, Mode, ReplayConfig, Reqid, SaConfig, SaId, SaProtocol, SaTransform, Spi};

/// An ESP tunnel with AES-GCM from 10.0.0.1 to `destination`, for tests.
pub(crate) fn sample(destination: &str, spi: u32) -> SaConfig {
    let destination: IpAddr = destination.parse().unwrap();
    let source = match Family::of(destination) {
        Family::V4 => "10.0.0.1",
        Family::V6 => "fd00::1",
    };
    SaConfig {
        mode: Mode::Tunnel,
        reqid: Reqid(1),
        replay: ReplayConfig { window: 32, sent: 0, received: 0 },
        ..SaConfig::new(
            SaId { destination, spi: Spi(spi), protocol: SaProtocol::Esp },
            source.parse().unwrap(),
            SaTransform {
                transform: Transform::aead("rfc4106(gcm(aes))", 160, 128).unwrap(),
                encryption_key: KeyMaterial::new(&[7; 20]),
                authentication_key: KeyMaterial::empty(),
            },
        )
    }
}
