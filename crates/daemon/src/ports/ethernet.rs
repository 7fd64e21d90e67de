//! An Ethernet device that uxfrm reads and writes itself by packet sockets or AF_XDP.

use std::net::IpAddr;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use std::time::Duration;

use anyhow::Context as _;
use uxfrm_engine::Cpu;
use uxfrm_io::{
    FramePort, PacketSocket, PacketSocketOptions, Rtnetlink, Xdp,
    napi::NapiDeferral,
    rtnetlink::Link,
    xdp::{FrameSelection, Program, ProgramOptions, ProgramParts, Queue, QueueParts, XdpError},
};
use uxfrm_packet::ethernet::MacAddr;

use crate::{
    clock::now,
    config::{By, Gather},
    descriptor_store::DescriptorStore,
    ports::napi_batching::NapiBatching,
};

/// How long a device gathers frames that the kernel has to copy, where nobody says otherwise.
const GATHERS: Duration = Duration::from_micros(100);

/// The configuration key that names a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceConfigKey {
    /// Its name.
    name: &'static str,
    /// The wish that it is read by `AF_XDP`.
    af_xdp: &'static str,
}

impl DeviceConfigKey {
    /// Inline mode's, towards those who are protected.
    pub(crate) const PROTECTED: Self =
        Self { name: "`protected` in [inline]", af_xdp: "`protected_by = \"af-xdp\"` in [inline]" };
    /// Inline mode's, towards other gateways.
    pub(crate) const WIRE: Self =
        Self { name: "`wire` in [inline]", af_xdp: "`wire_by = \"af-xdp\"` in [inline]" };
    /// Host mode's.
    pub(crate) const EXPRESS: Self =
        Self { name: "`af_xdp` in [wire]", af_xdp: "`af_xdp` in [wire]" };
}

/// A device, with the configuration key that names it.
#[derive(Debug)]
pub(crate) struct Device {
    place: DeviceConfigKey,
    pub(crate) name: String,
    pub(crate) index: u32,
    mac: MacAddr,
    mtu: u32,
    /// At the device, if it is read by `AF_XDP`.
    program: Option<Arc<Program>>,
    /// Whether program and queues are those of the gateway before.
    is_taken_over: bool,
    /// Whether the kernel copies frames between the driver and any of the queues.
    is_copied: AtomicBool,
}

impl Device {
    /// Looks for a device that is named at a place of the configuration.
    ///
    /// # Errors
    /// When it is not there, or no Ethernet.
    pub(crate) fn find(
        rtnetlink: &mut Rtnetlink,
        name: &str,
        place: DeviceConfigKey,
    ) -> anyhow::Result<Self> {
        let link = rtnetlink
            .link(name)
            .with_context(|| format!("{}: there is no device {name}", place.name))?;
        let mac = ethernet_address(&link)
            .with_context(|| format!("{}: {name} is no Ethernet device", place.name))?;
        if !link.is_up {
            tracing::warn!(device = name, "the device is down; nothing passes until it is up");
        }
        let Link { index, name, mtu, .. } = link;
        let is_copied = AtomicBool::new(false);
        Ok(Self { place, name, index, mac, mtu, program: None, is_taken_over: false, is_copied })
    }

    /// Makes it ready to be read as the configuration says, by so many workers.
    ///
    /// # Errors
    /// When its driver can't.
    pub(crate) fn prepare(
        &mut self,
        by: By,
        takes: FrameSelection,
        workers: usize,
        descriptors: &mut DescriptorStore,
    ) -> anyhow::Result<()> {
        match by {
            By::AfPacket => Ok(()),
            By::AfXdp => self.attach(takes, workers, descriptors),
        }
    }

    /// Puts a program at it, for the queues of so many workers, or makes one for the place where
    /// that of the gateway before is.
    ///
    /// # Errors
    /// When its driver can't.
    pub(crate) fn attach(
        &mut self,
        takes: FrameSelection,
        workers: usize,
        descriptors: &mut DescriptorStore,
    ) -> anyhow::Result<()> {
        let queues = u32::try_from(workers).context("workers are at most 1024")?;
        let (link, mac, mtu) = (self.index, self.mac, self.mtu);
        let options = ProgramOptions { link, mac, mtu, selection: takes, queues };
        let [at_device, sockets, own] = ["program", "sockets", "own"].map(|part| self.part(part));
        let [a, b, c] = [&at_device, &sockets, &own].map(|name| descriptors.take(name));
        let program = match (a, b, c) {
            (Some(at_device), Some(sockets), Some(own)) => {
                self.is_taken_over = true;
                Program::of_parts(options, ProgramParts { at_device, sockets, own })
            }
            _none => Program::attach(options),
        };
        let program = program.with_context(|| self.wish())?;
        let parts = program.parts();
        descriptors.keep(&at_device, parts.at_device)?;
        descriptors.keep(&sockets, parts.sockets)?;
        descriptors.keep(&own, parts.own)?;
        self.program = Some(program);
        Ok(())
    }

    /// What a part of `AF_XDP` is called in the descriptor store.
    fn part(&self, what: &str) -> String {
        format!("xdp {} {what}", self.index)
    }

    /// The program at it.
    pub(crate) fn program(&self) -> Option<Arc<Program>> {
        self.program.clone()
    }

    /// Has it gather frames while many come, if it is read by `AF_XDP`: for as long as is wished,
    /// or where nobody says for how long only if the kernel copies them and it pays. To be called
    /// when all queues are open.
    pub(crate) fn gather(&self, wish: Option<Gather>) -> Option<NapiBatching> {
        let program = Arc::clone(self.program.as_ref()?);
        match wish {
            Some(wish) => Some(NapiBatching::always(self.gathering(wish.span())?, program, now())),
            None if self.is_copied.load(Ordering::Relaxed) => {
                Some(NapiBatching::if_it_pays(self.gathering(GATHERS)?, program, now()))
            }
            None => None,
        }
    }

    fn gathering(&self, span: Duration) -> Option<NapiDeferral> {
        if span.is_zero() {
            return None;
        }
        let device = &self.name;
        let start = NapiDeferral::start(self.index, span);
        start
            .inspect(|_| tracing::info!(device, ?span, "AF_XDP: frames are gathered while many come"))
            .inspect_err(|error| {
                tracing::warn!(device, %error, "the kernel does not let the device gather frames (Linux 6.13 does): AF_XDP may be slower");
            })
            .ok()
    }

    /// Tells the program, if there is one, the host's addresses.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn know_host(&self, own: &[IpAddr]) -> std::io::Result<()> {
        self.program.iter().try_for_each(|program| program.set_host_addresses(own))
    }

    /// Its index and address.
    pub(crate) fn identity(&self) -> (u32, MacAddr) {
        (self.index, self.mac)
    }

    /// A port for a worker, which is one of several or alone, or that of the gateway before; and
    /// the device's address.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn open(
        &self,
        worker: Cpu,
        workers: usize,
        descriptors: &mut DescriptorStore,
    ) -> anyhow::Result<(Box<dyn FramePort>, MacAddr)> {
        // Numbers of groups are per network namespace; the device's own tells ours apart.
        let fanout = (workers > 1).then(|| u16::try_from(self.index % 65_536).unwrap_or(0));
        let options = PacketSocketOptions { fanout, ..PacketSocketOptions::new(self.index) };
        let name = format!("packet {} {}", self.index, worker.0);
        let socket = descriptors
            .take(&name)
            .map_or_else(|| PacketSocket::open(&options), PacketSocket::of_socket)
            .with_context(|| {
                format!("can't open a packet socket on {} (needs CAP_NET_RAW)", self.name)
            })?;
        socket.descriptor().into_iter().try_for_each(|kept| descriptors.keep(&name, kept))?;
        let port: Box<dyn FramePort> = match self.open_queue(worker, descriptors)? {
            Some(queue) => Box::new(Xdp::new(queue, socket)?),
            None => Box::new(socket),
        };
        Ok((port, self.mac))
    }

    /// The queue of a worker's number alone, and the device's address; `None` for workers beyond
    /// the device's queues.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn open_ring(
        &self,
        worker: Cpu,
        descriptors: &mut DescriptorStore,
    ) -> anyhow::Result<Option<(Box<dyn FramePort>, MacAddr)>> {
        let boxed = |queue| -> (Box<dyn FramePort>, MacAddr) { (Box::new(queue), self.mac) };
        Ok(self.open_queue(worker, descriptors)?.map(boxed))
    }

    /// The queue of a worker's number, where the device is read by `AF_XDP` and has one; a gateway
    /// that goes on has those that the one before had.
    fn open_queue(
        &self,
        Cpu(number): Cpu,
        descriptors: &mut DescriptorStore,
    ) -> anyhow::Result<Option<Queue>> {
        let Some(program) = &self.program else { return Ok(None) };
        let device = &self.name;
        let names = ["socket", "sender", "memory"];
        let names = names.map(|part| self.part(&format!("{number} {part}")));
        let [socket, sender, memory] = names.each_ref().map(|name| descriptors.take(name));
        let opened = match (socket, sender, memory) {
            (Some(socket), Some(sender), Some(memory)) => {
                Queue::of_parts(program, QueueParts { socket, sender, memory })
            }
            _none if self.is_taken_over => return Ok(None),
            _none => Queue::open(program, number),
        };
        match opened {
            Ok(queue) => {
                let QueueParts { socket, sender, memory } = queue.parts();
                let parts = names.iter().zip([socket, sender, memory]);
                parts.into_iter().try_for_each(|(name, part)| descriptors.keep(name, part))?;
                let is_copied = !queue.is_zero_copy()?;
                self.is_copied.fetch_or(is_copied, Ordering::Relaxed);
                let from = if is_copied { "kernel" } else { "driver" };
                tracing::info!(device, queue = number, "AF_XDP: frames come from the {from}");
                Ok(Some(queue))
            }
            Err(XdpError::Queue(..)) if number > 0 => {
                tracing::warn!(
                    device,
                    queue = number,
                    "the device has no such queue for AF_XDP: this worker has sockets alone"
                );
                Ok(None)
            }
            Err(error) => Err(error).with_context(|| self.wish()),
        }
    }

    /// What the configuration asks for, when it can't be.
    fn wish(&self) -> String {
        format!("{}: {}", self.place.af_xdp, self.name)
    }
}

fn ethernet_address(link: &Link) -> Option<MacAddr> {
    link.mac.filter(|_| !link.is_loopback)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_device_is_reported_once() {
        let mut rtnetlink = Rtnetlink::open().unwrap();
        let error = Device::find(&mut rtnetlink, "nonesuch", DeviceConfigKey::EXPRESS).unwrap_err();
        assert_eq!(
            format!("{error:#}"),
            "`af_xdp` in [wire]: there is no device nonesuch: link nonesuch: no such thing (No such device (os error 19))"
        );
    }
}
