//! Inbound packets of any kind, by any number of workers, against a reference policy check in the
//! test.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

mod coalesced;
mod malformed;
mod templates;
mod workers;

use std::net::IpAddr;

use uxfrm_crypto::{KeyMaterial, Transform};
use uxfrm_engine::SaTransform;
use uxfrm_packet::{PacketBuf, Protocol};
use uxfrm_testkit::packets;

/// Without encryption and authentication, so that changed bytes reach the code behind.
fn open() -> SaTransform {
    SaTransform {
        transform: Transform::cipher_auth(None, None).unwrap(),
        encryption_key: KeyMaterial::empty(),
        authentication_key: KeyMaterial::empty(),
    }
}

/// ESP for such an SA, with padding.
fn esp(spi: u32, sequence: u32, payload: &[u8], next_header: Protocol) -> Vec<u8> {
    let padding = u8::try_from((4 - (payload.len() + 2) % 4) % 4).unwrap();
    let trailer: Vec<u8> = (1..=padding).chain([padding, next_header.0]).collect();
    [&spi.to_be_bytes()[..], &sequence.to_be_bytes(), payload, &trailer].concat()
}

fn tunnelled(ends: (IpAddr, IpAddr), spi: u32, sequence: u32, inner: &[u8]) -> Vec<u8> {
    let next_header = if inner[0] >> 4 == 4 { Protocol::IPIP } else { Protocol::IPV6 };
    packets::ip(ends.0, ends.1, Protocol::ESP, &esp(spi, sequence, inner, next_header))
}

fn copy(packet: &PacketBuf) -> PacketBuf {
    let mut copy = PacketBuf::from_slice(packet.bytes());
    copy.inherit(packet);
    copy
}
