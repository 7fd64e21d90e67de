//! Seals ESP packets as another gateway would, each with its own sequence number.

use std::net::Ipv4Addr;

use anyhow::ensure;
use uxfrm_crypto::{
    Backend, Crypter, Iv, KeyMaterial, SaKey, SealJob, SealStatus, SeqHigh, Transform,
};
use uxfrm_packet::Protocol;
use uxfrm_packet::ipv4::{self, Ipv4Header};
use zerocopy::IntoBytes;

/// The sending end of an SA.
#[derive(Debug)]
pub(super) struct EspSealer {
    key: SaKey,
    crypter: Crypter,
    spi: u32,
    sequence: u32,
}

/// SPI and sequence number, IV, ICV of AES-GCM (RFC 4303 §2, RFC 4106).
const LEAD: usize = 8 + 8;
const ICV: usize = 16;

impl EspSealer {
    /// AES-GCM with this key and salt.
    pub(super) fn new(spi: u32, material: &[u8; 20]) -> anyhow::Result<Self> {
        let none = KeyMaterial::from(Vec::new());
        let material = KeyMaterial::from(material.to_vec());
        let transform = Transform::aead("rfc4106(gcm(aes))", 160, 128)?;
        let key = SaKey::new(&transform, &material, &none, Backend::Auto)?;
        Ok(Self { key, crypter: Crypter::new()?, spi, sequence: 0 })
    }

    /// Bytes of the ESP packet around an inner packet of `inner` bytes.
    pub(super) const fn around(inner: usize) -> usize {
        ipv4::HEADER_LEN + LEAD + (inner + 2).next_multiple_of(4) + ICV
    }

    /// Fills `packet`, as long as [`around`](Self::around) returns; `write` writes the inner
    /// packet.
    pub(super) fn seal(
        &mut self,
        packet: &mut [u8],
        inner: usize,
        (source, destination): (Ipv4Addr, Ipv4Addr),
        write: impl FnOnce(&mut [u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.sequence += 1;
        let mut ip = Ipv4Header::new(source, destination, Protocol::ESP, packet.len().try_into()?);
        ip.fill_checksum();
        let (header, esp) = packet.split_at_mut(ipv4::HEADER_LEN);
        header.copy_from_slice(ip.as_bytes());
        esp[..4].copy_from_slice(&self.spi.to_be_bytes());
        esp[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        let text = LEAD..esp.len() - ICV;
        write(&mut esp[LEAD..LEAD + inner])?;
        let padding = text.len() - inner - 2;
        for (byte, number) in esp[LEAD + inner..].iter_mut().zip(1..).take(padding) {
            *byte = number;
        }
        let trailer = [u8::try_from(padding)?, Protocol::IPIP.0];
        esp[text.end - 2..text.end].copy_from_slice(&trailer);
        let iv = Iv::Counter(self.sequence.into());
        let mut job = [SealJob::in_place(&self.key, SeqHigh::None, iv, esp)];
        self.crypter.seal(&mut job);
        ensure!(job[0].status == SealStatus::Sealed, "a packet was not sealed");
        Ok(())
    }
}
