//! One of the two devices: what is known of it, and how it is read and written.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::Context as _;
use uxfrm_engine::Cpu;
use uxfrm_io::{
    FramePort, PacketSocket, PacketSocketOptions, Rtnetlink, Xdp,
    rtnetlink::Link,
    xdp::{Program, ProgramOptions, Queue, Takes, XdpError},
};
use uxfrm_packet::ethernet::MacAddr;

use crate::config::By;

/// A device, and where it stands in `[inline]`.
#[derive(Debug)]
pub(crate) struct Device {
    key: &'static str,
    pub(crate) name: String,
    pub(crate) index: u32,
    mac: MacAddr,
    mtu: u32,
    /// At the device, if it is read by `AF_XDP`.
    program: Option<Arc<Program>>,
}

impl Device {
    /// Looks for a device that a key of `[inline]` names.
    ///
    /// # Errors
    /// When it is not there, or no Ethernet.
    pub(crate) fn find(
        rtnetlink: &mut Rtnetlink,
        name: &str,
        key: &'static str,
    ) -> anyhow::Result<Self> {
        let link = rtnetlink
            .link(name)
            .with_context(|| format!("`{key}` in [inline]: there is no device {name}"))?;
        let mac = ethernet_address(&link).with_context(|| {
            format!("`{key}` in [inline]: {name} is no Ethernet device; inline mode needs two")
        })?;
        if !link.is_up {
            tracing::warn!(device = name, "the device is down; nothing passes until it is up");
        }
        let Link { index, name, mtu, .. } = link;
        Ok(Self { key, name, index, mac, mtu, program: None })
    }

    /// Makes it ready to be read as the configuration says, by so many workers.
    ///
    /// # Errors
    /// When its driver can't.
    pub(crate) fn prepare(&mut self, by: By, takes: Takes, workers: usize) -> anyhow::Result<()> {
        match by {
            By::AfPacket => return Ok(()),
            By::AfXdp => {}
        }
        let queues = u32::try_from(workers).context("workers are at most 1024")?;
        let (link, mac, mtu) = (self.index, self.mac, self.mtu);
        let options = ProgramOptions { link, mac, mtu, takes, queues };
        self.program = Some(Program::attach(options).with_context(|| self.wish())?);
        Ok(())
    }

    /// Lets the program, if there is one, leave to the kernel what is for the host itself.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn know_host(&self, before: &[IpAddr], now: &[IpAddr]) -> std::io::Result<()> {
        self.program.iter().try_for_each(|program| program.know_host(before, now))
    }

    /// A port for a worker, which is one of several or alone; and the device's address.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn open(
        &self,
        worker: Cpu,
        workers: usize,
    ) -> anyhow::Result<(Box<dyn FramePort>, MacAddr)> {
        // Numbers of groups are per network namespace; the device's own tells ours apart.
        let fanout = (workers > 1).then(|| u16::try_from(self.index % 65_536).unwrap_or(0));
        let options = PacketSocketOptions { fanout, ..PacketSocketOptions::new(self.index) };
        let socket = PacketSocket::open(&options).with_context(|| {
            format!("can't open a packet socket on {} (needs CAP_NET_RAW)", self.name)
        })?;
        let port = match &self.program {
            None => Box::new(socket),
            Some(program) => self.open_queue(program, worker, socket)?,
        };
        Ok((port, self.mac))
    }

    /// The queue of the worker's number. Workers beyond the device's queues do with a packet socket.
    fn open_queue(
        &self,
        program: &Arc<Program>,
        Cpu(number): Cpu,
        others: PacketSocket,
    ) -> anyhow::Result<Box<dyn FramePort>> {
        let device = &self.name;
        match Queue::open(program, number) {
            Ok(queue) => {
                let from = if queue.is_zero_copy()? { "driver" } else { "kernel" };
                tracing::info!(device, queue = number, "AF_XDP: frames come from the {from}");
                Ok(Box::new(Xdp::new(queue, others)?))
            }
            Err(XdpError::Queue(..)) if number > 0 => {
                tracing::warn!(
                    device,
                    queue = number,
                    "the device has no such queue for AF_XDP: this worker has a packet socket alone"
                );
                Ok(Box::new(others))
            }
            Err(error) => Err(error).with_context(|| self.wish()),
        }
    }

    /// What the configuration asks for, when it can't be.
    fn wish(&self) -> String {
        format!("`{}_by = \"af-xdp\"` in [inline]: {}", self.key, self.name)
    }
}

fn ethernet_address(link: &Link) -> Option<MacAddr> {
    link.mac.filter(|_| !link.is_loopback)
}
