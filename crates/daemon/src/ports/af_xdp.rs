//! ESP past the kernel's network stack in host mode: a device's queues, and who tells the workers
//! their ways.
//!
//! ```text
//!   device ─▶ ESP to the host: AF_XDP ─▶ worker ─▶ TUN     all else ─▶ the host's stack
//!   TUN ─▶ worker ─┬─▶ ESP whose next hop is by the device: AF_XDP
//!                  └─▶ all else: the kernel's sockets
//! ```
//!
//! When uxfrm ends, however it does, the program leaves the device, and the kernel has all packets
//! again.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::Context as _;
use uxfrm_engine::Cpu;
use uxfrm_io::{
    Rtnetlink,
    xdp::{FrameSelection, Program},
};
use uxfrm_runtime as runtime;

use crate::{
    config::Config,
    descriptor_store::DescriptorStore,
    ports::{
        ethernet::{Device, DeviceConfigKey},
        next_hops::{Links, NextHopResolver, ResolverChannel},
    },
};

/// The device.
#[derive(Debug)]
pub(crate) struct AfXdpDevice {
    device: Device,
}

impl AfXdpDevice {
    /// Makes the device of a name ready to take ESP to one of `own`, or goes on where the gateway
    /// before has.
    ///
    /// # Errors
    /// When it is not there, is no Ethernet, or its driver can't.
    pub(crate) fn find(
        config: &Config,
        name: &str,
        own: &[IpAddr],
        descriptors: &mut DescriptorStore,
    ) -> anyhow::Result<Self> {
        let mut device = Device::find(&mut Rtnetlink::open()?, name, DeviceConfigKey::EXPRESS)?;
        let workers = config.runtime.workers.count().get();
        device.attach(FrameSelection::OwnEsp, workers, descriptors)?;
        let af_xdp = Self { device };
        af_xdp.follow(own).context("can't tell AF_XDP the host's addresses")?;
        Ok(af_xdp)
    }

    /// The host's addresses have changed.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn follow(&self, own: &[IpAddr]) -> io::Result<()> {
        self.device.know_host(own)
    }

    /// The program at the device.
    pub(crate) fn program(&self) -> Option<Arc<Program>> {
        self.device.program()
    }

    /// Who tells workers the ways that lead by the device.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn resolver(&self, config: &Config) -> anyhow::Result<NextHopResolver> {
        let links = Links { protected: None, wire: self.device.identity() };
        NextHopResolver::open(config.wire.mark.get(), links)
    }

    /// A worker's queue, where the device has one for it.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn open(
        &self,
        worker: Cpu,
        resolver: &NextHopResolver,
        descriptors: &mut DescriptorStore,
    ) -> anyhow::Result<Option<(runtime::AfXdpEsp, ResolverChannel)>> {
        let Some((port, address)) = self.device.open_ring(worker, descriptors)? else {
            return Ok(None);
        };
        let (guide, talk) = resolver.talk();
        Ok(Some((runtime::AfXdpEsp::new(port, address, guide), talk)))
    }

    /// Has the device gather frames, once all queues are open.
    pub(crate) fn gather(&self, config: &Config, resolver: &mut NextHopResolver) {
        resolver.keep(self.device.gather(config.wire.gather));
    }
}
