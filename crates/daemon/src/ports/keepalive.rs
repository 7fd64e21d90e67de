//! Sends NAT keepalives: whole IP packets by raw sockets, as the kernel does, so that their UDP
//! ports are the states' whoever has them.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use uxfrm_engine::Keepalive;
use uxfrm_io::{Port as _, Raw, RawOptions};
use uxfrm_packet::{Batch, Pool, Version};

/// The sockets, opened when they are needed first: there may be no IPv6. Nobody waits for a
/// keepalive: one that can't leave is said and done without, and the next one comes.
#[derive(Debug)]
pub(crate) struct Keepalives {
    /// So that what is sent does not come back by the TUN.
    mark: u32,
    ip4: Option<KeepaliveSocket>,
    ip6: Option<KeepaliveSocket>,
    pool: Pool,
}

#[derive(Debug)]
struct KeepaliveSocket {
    port: Raw,
    batch: Batch,
}

/// Bytes of kernel buffer; a keepalive has 29 or 49.
const BUFFER: usize = 1 << 16;

impl Keepalives {
    /// For keepalives with this mark.
    pub(crate) fn new(mark: u32) -> Self {
        Self { mark, ip4: None, ip6: None, pool: Pool::new() }
    }

    /// Sends those that are due.
    pub(crate) fn send(&mut self, due: impl Iterator<Item = Keepalive>) {
        for keepalive in due {
            if let Err(error) = self.send_one(&keepalive) {
                tracing::warn!(%error, ?keepalive, "a keepalive did not leave");
            }
        }
    }

    fn send_one(&mut self, keepalive: &Keepalive) -> io::Result<()> {
        let Some(packet) = keepalive.packet() else { return Ok(()) };
        let (slot, version, loopback) = match keepalive.destination.ip() {
            IpAddr::V4(_) => (&mut self.ip4, Version::V4, IpAddr::from(Ipv4Addr::LOCALHOST)),
            IpAddr::V6(_) => (&mut self.ip6, Version::V6, IpAddr::from(Ipv6Addr::LOCALHOST)),
        };
        let exit = match slot {
            Some(exit) => exit,
            None => slot.insert(open(self.mark, version, loopback)?),
        };
        exit.batch.push(packet);
        let sent = exit.port.transmit(&mut exit.batch, &mut self.pool);
        match sent.packets {
            0 => Err(io::Error::other("the kernel refused it")),
            _ => Ok(()),
        }
    }
}

/// Bound to an address at which no ESP comes, the sockets get no copies of what is for others.
fn open(mark: u32, version: Version, loopback: IpAddr) -> io::Result<KeepaliveSocket> {
    let options = RawOptions { mark, buffer: BUFFER, ..RawOptions::new(version) };
    let bound = Raw::open(&RawOptions { local: Some(loopback), ..options.clone() });
    let port = bound.or_else(|_| Raw::open(&options))?;
    Ok(KeepaliveSocket { port, batch: Batch::new() })
}
