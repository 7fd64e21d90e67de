//! Two gateways in one process: a packet goes plain -> ESP -> plain.
//! `cargo run -p uxfrm --example two_gateways`
#![allow(clippy::print_stdout, reason = "it shows what happens")]

use std::{error::Error, net::IpAddr};

use uxfrm::packet::ipv4::fill_checksum;
use uxfrm::{
    Backend, Batch, Database, Direction, KeyMaterial, Moment, Output, PacketBuf, Policy, Pool,
    Prefix, SaConfig, SaTransform, Settings, Spi, Template, Worker,
};

/// One gateway: its outer address, and the network behind it.
type Site = (IpAddr, Prefix);

/// A real program has a clock, and random seeds and keys.
const NOW: Moment = Moment::from_secs(1);

fn state(from: Site, to: Site, spi: u32) -> Result<SaConfig, uxfrm::Error> {
    let key = KeyMaterial::new(&spi.to_be_bytes().repeat(5));
    Ok(SaConfig::esp_tunnel(from.0, to.0, Spi(spi), SaTransform::aes_gcm(key)?))
}

fn gateway(own: Site, peer: Site, (out, back): (u32, u32)) -> Result<Worker, Box<dyn Error>> {
    let seed = out.into();
    let mut database = Database::new(Backend::Auto, seed);
    database.apply(NOW, |change| {
        change.add_sa(state(own, peer, out)?)?;
        change.add_sa(state(peer, own, back)?)?;
        let (tunnel_out, tunnel_back) =
            (Template::esp_tunnel(own.0, peer.0), Template::esp_tunnel(peer.0, own.0));
        change.add_policy(Policy::protect(Direction::Out, own.1, peer.1, tunnel_out))?;
        change.add_policy(Policy::protect(Direction::Forward, peer.1, own.1, tunnel_back))
    })?;
    let addresses = [own.0].into_iter().collect();
    let settings = Settings { addresses, seed, ..Settings::default() };
    Ok(Worker::new(settings, &database.published())?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let left = ([192, 0, 2, 1].into(), Prefix::new([10, 1, 0, 0].into(), 16)?);
    let right = ([192, 0, 2, 2].into(), Prefix::new([10, 2, 0, 0].into(), 16)?);
    let mut sender = gateway(left, right, (0x1001, 0x1002))?;
    let mut receiver = gateway(right, left, (0x1002, 0x1001))?;
    let (mut pool, mut out) = (Pool::new(), Output::default());

    // 25 bytes of IPv4 from 10.1.0.1 to 10.2.0.1, protocol 253.
    let mut plain = b"\x45\0\0\x19\0\0\0\0\x40\xfd\0\0\x0a\x01\0\x01\x0a\x02\0\x01hello".to_vec();
    fill_checksum(&mut plain)?;
    let mut batch: Batch = [PacketBuf::from_slice(&plain)].into_iter().collect();
    sender.outbound(&mut batch, NOW, &mut pool, &mut out);
    println!("sender   {:?}", sender.outward());

    let mut wire: Batch = out.wire.drain().collect();
    println!("on the wire: {} bytes of ESP", wire.as_slice()[0].len());
    assert!(!wire.as_slice()[0].bytes().windows(5).any(|bytes| bytes == b"hello"));
    receiver.inbound(&mut wire, NOW, &mut pool, &mut out);
    println!("receiver {:?}", receiver.inward());
    assert_eq!(out.host.as_slice()[0].bytes(), plain);
    Ok(())
}

#[test]
fn packet_leaves_as_esp_and_arrives_unchanged() {
    main().expect("both gateways take each other's packets");
}
