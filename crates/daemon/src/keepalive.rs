//! Sends NAT keepalives: whole IP packets by raw sockets, as the kernel does, so that their UDP ports are the states' whoever has them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::Context as _;
use uxfrm_engine::Keepalive;
use uxfrm_io::{Port as _, Raw, RawOptions};
use uxfrm_packet::{Batch, Pool, Version};

/// The sockets. Nobody waits for a keepalive: one that can't leave is said and done without, and the next one comes.
#[derive(Debug)]
pub(crate) struct Keepalives {
    ip4: Exit,
    ip6: Exit,
    pool: Pool,
}

#[derive(Debug)]
struct Exit {
    port: Raw,
    batch: Batch,
}

/// Bytes of kernel buffer; a keepalive has 29 or 49.
const BUFFER: usize = 1 << 16;

impl Keepalives {
    /// Opens the sockets; what they send has `mark`, so that it does not come back by the TUN.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn open(mark: u32) -> anyhow::Result<Self> {
        let open = |version, local: IpAddr| {
            // Nothing is received: the sockets get no copy of what comes to other addresses.
            let options =
                RawOptions { mark, buffer: BUFFER, local: Some(local), ..RawOptions::new(version) };
            let port = Raw::open(&options).context("can't open a raw socket for keepalives")?;
            anyhow::Ok(Exit { port, batch: Batch::new() })
        };
        Ok(Self {
            ip4: open(Version::V4, Ipv4Addr::LOCALHOST.into())?,
            ip6: open(Version::V6, Ipv6Addr::LOCALHOST.into())?,
            pool: Pool::new(),
        })
    }

    /// Sends those that are due.
    pub(crate) fn send(&mut self, due: impl Iterator<Item = Keepalive>) {
        for keepalive in due {
            let Some(packet) = keepalive.packet() else { continue };
            let exit = if keepalive.destination.is_ipv4() { &mut self.ip4 } else { &mut self.ip6 };
            exit.batch.push(packet);
            let sent = exit.port.transmit(&mut exit.batch, &mut self.pool);
            if sent.packets == 0 {
                tracing::debug!(?keepalive, refused = ?sent.refused, "a keepalive did not leave");
            }
        }
    }
}
