//! A bare relay at each end: the cost of any tunnel in user space on this machine, without
//! cryptography, policies or other work on a packet.
//!
//! ```text
//!   TUN ─▶ packet as read, in chunks of the wire's length ─▶ wire ─▶ reassembled ─▶ TUN
//! ```
//!
//! It moves packets through the same ports as a gateway, super-packets included. It adds a header
//! and tags ([`chunks`]) so that the other end can reassemble a packet, and writes nothing else to
//! its TUN when a chunk is lost.

mod chunks;
mod forwarder;
mod reassembler;
#[cfg(test)]
mod tests;

use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};

use anyhow::{Context, anyhow};
use nix::unistd::gettid;
use uxfrm_io::Namespace;
use uxfrm_io::poll::Waker;

use crate::pair::processor::CpuTask;
use crate::pair::{A, B, GatewaySite, Topology};
use forwarder::{Forwarder, LossCounts};

/// The encapsulation of chunks on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RelayEncap {
    /// UDP datagrams, in segment bursts (`UDP_SEGMENT`).
    Udp,
    /// IPv4 packets of ESP's protocol, through raw sockets.
    Esp,
}

impl RelayEncap {
    /// Its `path` in rows.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Udp => "relay-udp",
            Self::Esp => "relay-esp",
        }
    }

    /// Bytes of a chunk on a wire of 1500: less 20 of IPv4, and 8 of UDP.
    const fn chunk_len(self) -> u16 {
        match self {
            Self::Udp => 1472,
            Self::Esp => 1480,
        }
    }

    /// The MTU of ESP tunnel mode with AES-GCM on that wire (`net/xfrm/xfrm_state.c:
    /// __xfrm_state_mtu`), so that TCP's segments have the same size as through a gateway.
    const fn tun_mtu(self) -> u32 {
        match self {
            Self::Udp => 1438,
            Self::Esp => 1446,
        }
    }
}

/// A relay at each end. When dropped, they end, and TUNs and routes go with them.
#[derive(Debug)]
pub(crate) struct Relays {
    ends: [Relay; 2],
}

/// One end's thread.
#[derive(Debug)]
struct Relay {
    name: &'static str,
    waker: Waker,
    tid: u32,
    thread: Option<JoinHandle<anyhow::Result<LossCounts>>>,
}

impl Relays {
    /// Starts both, each with a route to the other's network.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn start(encap: RelayEncap, topology: &Topology) -> anyhow::Result<Self> {
        let start = |namespace, here, there| Relay::start(encap, namespace, (here, there));
        Ok(Self { ends: [start(&topology.a, &A, &B)?, start(&topology.b, &B, &A)?] })
    }

    /// Their threads.
    pub(crate) fn threads(&self) -> [CpuTask; 2] {
        self.ends.each_ref().map(|relay| CpuTask::Thread(relay.tid))
    }

    /// Ends them and returns `measured`, with their loss counts if it is an error.
    ///
    /// # Errors
    /// `measured`, or a relay's own.
    pub(crate) fn stop(self, measured: anyhow::Result<()>) -> anyhow::Result<()> {
        self.ends.into_iter().fold(measured, |measured, relay| {
            let name = relay.name;
            match (measured, relay.stop().with_context(|| format!("relay {name} failed"))) {
                (Ok(()), ended) => ended.map(drop),
                (Err(error), Ok(losses)) => Err(error.context(format!("relay {name} {losses}"))),
                (Err(error), Err(ended)) => Err(error.context(format!("{ended:#}"))),
            }
        })
    }
}

impl Relay {
    fn start(
        encap: RelayEncap,
        namespace: &Namespace,
        ends: (&'static GatewaySite, &GatewaySite),
    ) -> anyhow::Result<Self> {
        let name = ends.0.name;
        let forwarder = namespace
            .enter(|| Forwarder::open(encap, ends))?
            .with_context(|| format!("cannot start relay {name}"))?;
        let waker = forwarder.waker();
        let (tell, told) = channel();
        let run = move || {
            // `start` waits for this.
            let _ = tell.send(gettid().as_raw().unsigned_abs());
            forwarder.run()
        };
        let thread = thread::Builder::new().name(format!("relay {name}")).spawn(run)?;
        let tid = told.recv().with_context(|| format!("relay {name} did not begin"))?;
        Ok(Self { name, waker, tid, thread: Some(thread) })
    }

    fn stop(mut self) -> anyhow::Result<LossCounts> {
        self.end().unwrap_or_else(|| Ok(LossCounts::default()))
    }

    /// Ends the thread, unless that has been done.
    fn end(&mut self) -> Option<anyhow::Result<LossCounts>> {
        let thread = self.thread.take()?;
        self.waker.wake();
        Some(thread.join().unwrap_or_else(|_| Err(anyhow!("it panicked"))))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // After `stop` there is nothing to report; else another error is already on its way.
        let _ = self.end();
    }
}
