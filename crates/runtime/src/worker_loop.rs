//! One worker's loop: poll, receive, process, transmit.
//!
//! ```text
//!   host port ─▶ outbound ─▶ wire        wire ─▶ inbound ─▶ host port
//! ```
//!
//! 1 wait until a port is readable, and apply [next-hop updates](crate::NextHopUpdate) → 2 a batch
//! from the host through the engine to the wire → 3 a batch from each readable wire port through
//! the engine to the host → 4 packets from devices through the engine to the host → 5 packets that
//! wait for SAs → 6 once a second housekeeping → 1.
//!
//! A port with more packets is readable again at once, so a busy port cannot starve the others. In
//! 2 and 3 a standing queue slows a TCP sender down ([`Codel`]), and SYNs may announce less. With
//! [devices](DevicePorts), packets that the engine hands over go to their threads, and so do whole
//! packets from the network, before the engine sees them.

use std::{
    io, slice,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering, fence},
    },
    time::Duration,
};

use uxfrm_engine::{
    CapturePoint, DropReason, IcmpErrorWay, Moment, Output, PacketWay, ReceivedPacket, TracePort,
    WaitingPacket, Worker,
};
use uxfrm_io::{
    PathMtu, Port, RefusedPacket, clock,
    icmp_sender::IcmpSender,
    poll::{Poller, Waker},
};
use uxfrm_packet::{Batch, Pool, congestion::CongestionSignal};

use crate::{
    DevicePorts, Events, PortTraffic, SharedWorkerFigures, WirePorts,
    codel::Codel,
    device_ports::{Backpressure, LostPackets, PortSlot, set_polled},
    refused,
    worker_figures::FiguresWriter,
};

/// Ends a loop. The kernel's error is in the text; as a source it would be printed twice.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A port can't be polled.
    #[error("polling failed: {0}")]
    Poll(io::Error),
    /// The host's port is gone (the TUN was deleted).
    #[error("the TUN is gone: {0}")]
    Host(io::Error),
    /// A network device of inline mode is gone.
    #[error("a network device is gone: {0}")]
    Link(io::Error),
    /// A loop polls at most 256 ports.
    #[error("one loop waits for 256 interfaces and sockets of tunnels at the most")]
    TooManyPorts,
    /// Nobody can apply a change.
    #[error("the worker has ended, or does not answer")]
    Ended,
}

/// Longest wait between checks of the engine's timeouts.
const IDLE: Duration = Duration::from_millis(100);

/// Longest wait while SAs and policies have uncommitted counts.
const SETTLE: Duration = Duration::from_millis(10);

/// Longest wait while a device has no room for outgoing packets.
const RETRY: Duration = Duration::from_micros(50);

/// Interval of housekeeping.
const PERIOD: Duration = Duration::from_secs(1);

/// Packets may wait this many times longer at the host's port: a TUN's waiting time includes whole
/// turns.
const HOST_TARGET_FACTOR: u32 = 3;

const HOST: u8 = 0;

/// One worker with its ports.
#[derive(Debug)]
pub struct WorkerLoop {
    poller: Poller,
    host: Box<dyn Port>,
    /// Receive queue of the host port, if it is monitored.
    queue: Option<Codel>,
    wire: WirePorts,
    worker: Worker,
    pool: Pool,
    batch: Batch,
    out: Output,
    events: Events,
    devices: Option<PortSlot>,
    /// Directions without room at a device: ports that feed them are not polled.
    backpressure: Backpressure,
    received: Vec<ReceivedPacket>,
    /// Whether somebody watches packets in this turn.
    is_watched: bool,
    /// Whether SYNs are changed.
    clamps_mss: bool,
    /// Sends the engine's ICMP errors, where they may come from an own address.
    icmp: Option<Arc<IcmpSender>>,
    /// Number of buffers that wait for SAs, for other threads.
    waiting: Arc<AtomicUsize>,
    last_periodic: Moment,
    host_traffic: PortTraffic,
    figures: FiguresWriter,
}

impl WorkerLoop {
    /// A loop between `host` and `wire`; `events` takes the engine's events.
    ///
    /// # Errors
    /// When a port can't be polled.
    pub fn new(
        host: Box<dyn Port>,
        wire: WirePorts,
        worker: Worker,
        events: Events,
    ) -> Result<Self, Error> {
        let poller = Poller::new().map_err(Error::Poll)?;
        if let Some(descriptor) = host.descriptor() {
            poller.add(descriptor, HOST).map_err(Error::Poll)?;
        }
        for port in 0..wire.len() {
            if let Some(descriptor) = wire.descriptor(port) {
                poller.add(descriptor, token(port)).map_err(Error::Poll)?;
            }
        }
        let figures = FiguresWriter::new(["tun".to_owned()].into_iter().chain(wire.names()));
        let clamps_mss = worker.clamps_mss();
        Ok(Self {
            poller,
            host,
            queue: None,
            wire,
            worker,
            pool: Pool::new(),
            batch: Batch::new(),
            out: Output::default(),
            events,
            devices: None,
            backpressure: Backpressure::default(),
            received: Vec::new(),
            is_watched: false,
            clamps_mss,
            icmp: None,
            waiting: Arc::default(),
            last_periodic: Moment(0),
            host_traffic: PortTraffic::default(),
            figures,
        })
    }

    /// Attaches offload devices between engine and wire, including later ones.
    #[must_use]
    pub fn with_devices(mut self, device_ports: &DevicePorts) -> Self {
        self.devices = Some(device_ports.add_worker(self.poller.waker()));
        self
    }

    /// Senders hear of packets that are too big from an address of the host, where no policy is for
    /// such a message. Else, or without this, by the host's port, from their packet's destination.
    #[must_use]
    pub fn with_icmp_sender(mut self, icmp: Arc<IcmpSender>) -> Self {
        self.icmp = Some(icmp);
        self
    }

    /// Signals congestion to TCP senders once packets wait for `target` in a wire port's queue, or
    /// three times as long in the host port's: by an ECN mark, or without ECN by the loss of a
    /// segment.
    #[must_use]
    pub fn with_queue_delay(mut self, target: Duration) -> Self {
        self.queue = Some(Codel::new(target * HOST_TARGET_FACTOR));
        self.wire.watch(target);
        self
    }

    /// Ends the current [`turn`](Self::turn)'s wait, or the next one's.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.poller.waker()
    }

    /// What it does, for any thread.
    #[must_use]
    pub fn figures(&self) -> Arc<SharedWorkerFigures> {
        self.figures.shared()
    }

    /// The engine, for its counters.
    #[must_use]
    pub fn worker(&self) -> &Worker {
        &self.worker
    }

    pub(crate) fn save_state(&mut self) {
        self.wire.save_state();
    }

    pub(crate) fn restore_state(&mut self) -> io::Result<()> {
        self.wire.restore_state()
    }

    /// Runs the loop once.
    ///
    /// # Errors
    /// When polling fails or the host's port is gone. A broken wire port does not end the loop.
    pub fn turn(&mut self) -> Result<(), Error> {
        self.apply_backpressure()?;
        self.figures.turns += 1;
        // 1 wait
        let timeout = match (self.wire.has_backlog(), self.worker.has_deferred()) {
            (true, _) => RETRY,
            (false, true) => SETTLE,
            (false, false) => IDLE,
        };
        let ready = self.poller.wait(Some(timeout)).map_err(Error::Poll)?;
        if ready.is_empty() {
            self.worker.settle();
        }
        if let Some(devices) = &mut self.devices {
            devices.refresh_devices(&mut self.pool);
        }
        let sent = self.wire.poll_af_xdp(now, &mut self.pool);
        self.count(&sent.refused);
        self.is_watched = self.worker.is_watched();
        // 2 host to wire
        if ready.has(HOST) {
            let host = &mut self.host;
            let count = host.receive(&mut self.pool, &mut self.batch).map_err(Error::Host)?;
            self.host_traffic.count_received(count);
            self.signal_host_congestion();
            self.outbound();
            self.deliver();
        }
        // 3 wire to host
        for port in 0..self.wire.len() {
            if ready.has(token(port)) && self.receive(port) {
                self.inbound(port);
            }
        }
        // 4 devices to host
        self.inbound_from_devices();
        // 5 packets that wait for SAs
        self.retry_waiting();
        // 6 housekeeping
        self.run_periodic();
        Ok(())
    }

    /// Pushes what waits for devices; while some stays blocked, the ports that feed it are not
    /// polled.
    fn apply_backpressure(&mut self) -> Result<(), Error> {
        let Some(devices) = &mut self.devices else { return Ok(()) };
        let (backpressure, lost) = devices.retry(&mut self.pool);
        self.count_lost(lost);
        let before = std::mem::replace(&mut self.backpressure, backpressure);
        if before.outward != backpressure.outward {
            set_polled(&self.poller, HOST, self.host.descriptor(), backpressure.outward)?;
        }
        if before.inward != backpressure.inward {
            for port in 0..self.wire.len() {
                set_polled(
                    &self.poller,
                    token(port),
                    self.wire.descriptor(port),
                    backpressure.inward,
                )?;
            }
        }
        Ok(())
    }

    /// Slows down a sender on the host if the host port's queue stands.
    fn signal_host_congestion(&mut self) {
        let Some(queue) = &mut self.queue else { return };
        let told =
            queue.signal_congestion(self.host.waited(), now(), &mut self.batch, &mut self.pool);
        self.count_signalled(told, DropReason::OutQueueStands);
    }

    /// Passes a batch from the host through the engine.
    fn outbound(&mut self) {
        let Self { worker, batch, pool, out, .. } = self;
        if self.clamps_mss {
            worker.clamp_outbound(batch.as_mut_slice());
        }
        if self.is_watched {
            worker.show(CapturePoint::Plain(PacketWay::Out), batch.as_slice(), now());
            worker.outbound_traced(batch, TracePort::Host, now(), pool, out);
        } else {
            worker.outbound(batch, now(), pool, out);
        }
        self.answer_senders();
    }

    /// Sends the ICMP errors of an outbound batch from an own address, where that can be; the
    /// others stay for the host's port.
    fn answer_senders(&mut self) {
        let Some(icmp) = self.icmp.as_ref().filter(|_| !self.out.host.is_empty()) else { return };
        let Self { worker, pool, out, .. } = self;
        let mut rest = Batch::new();
        for answer in out.host.drain() {
            match worker.icmp_error_way(&answer) {
                IcmpErrorWay::FromHost if icmp.send(&answer).is_ok() => {}
                IcmpErrorWay::FromHost | IcmpErrorWay::ThroughHostPort => {
                    rest.push(answer);
                    continue;
                }
                IcmpErrorWay::Withheld => {
                    pool.give(answer);
                    continue;
                }
            }
            if self.is_watched {
                worker.show(CapturePoint::Plain(PacketWay::In), slice::from_ref(&answer), now());
            }
            pool.give(answer);
        }
        out.host = rest;
    }

    /// Passes a batch from a wire port to devices, or through the engine to the host. Of UDP
    /// payloads devices get those of their SAs.
    fn inbound(&mut self, port: usize) {
        if self.is_watched {
            self.worker.show(CapturePoint::Wire(PacketWay::In), self.batch.as_slice(), now());
        }
        if let Some(devices) = self.devices.as_mut().filter(|devices| !devices.is_empty()) {
            let lost = if self.wire.is_raw(port) {
                devices.dispatch_all(&mut self.batch, &mut self.pool)
            } else {
                devices.dispatch_offloaded(&mut self.batch, &mut self.pool)
            };
            self.count_lost(lost);
            if self.batch.is_empty() {
                return;
            }
        }
        let Self { worker, batch, pool, out, .. } = self;
        if self.is_watched {
            worker.inbound_traced(batch, now(), pool, out);
        } else {
            worker.inbound(batch, now(), pool, out);
        }
        let told = self.wire.signal_congestion(port, now(), &mut self.out.host, &mut self.pool);
        self.count_signalled(told, DropReason::InQueueStands);
        self.deliver();
    }

    /// Counts a packet dropped as a congestion signal.
    fn count_signalled(&mut self, told: Option<CongestionSignal>, reason: DropReason) {
        match told {
            Some(CongestionSignal::ByShortening | CongestionSignal::ByLoss) => {
                self.worker.count_dropped(1, reason, now());
            }
            Some(CongestionSignal::ByMark) | None => {}
        }
    }

    /// Passes packets from devices to the host.
    fn inbound_from_devices(&mut self) {
        let Some(devices) = &self.devices else { return };
        if devices.receive(&mut self.received, &mut self.pool) {
            let received = &mut self.received;
            self.worker.inbound_from_device(received, now(), &mut self.pool, &mut self.out);
            self.deliver();
        }
    }

    /// Continues with packets that waited in a predecessor, before the first turn.
    pub fn wait_with(&mut self, waiting: Vec<WaitingPacket>) {
        self.worker.adopt_waiting(waiting, now(), &mut self.pool, &mut self.out);
        self.deliver();
        self.waiting.store(self.worker.waiting(), Ordering::Relaxed);
    }

    /// Commits pending counts of SAs and policies.
    pub(crate) fn settle(&mut self) {
        self.worker.settle();
    }

    /// Continues with packets in memory, to or from devices; whether there were any. Full ports are
    /// not waited for.
    pub(crate) fn drain(&mut self) -> bool {
        let Some(devices) = &mut self.devices else { return false };
        devices.refresh_devices(&mut self.pool);
        let had_some = devices.has_pending();
        let (_full, lost) = devices.retry(&mut self.pool);
        self.count_lost(lost);
        self.inbound_from_devices();
        self.worker.settle();
        had_some
    }

    /// Number of buffers that wait for SAs.
    pub(crate) fn waiting(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.waiting)
    }

    /// Retries waiting packets after a change. A publisher reads the count after it publishes, and
    /// this loop writes the count before it looks: one of the two sees the other.
    fn retry_waiting(&mut self) {
        let before = self.worker.waiting();
        if before == 0 {
            return;
        }
        self.waiting.store(before, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.worker.outbound(&mut self.batch, now(), &mut self.pool, &mut self.out);
        self.answer_senders();
        self.deliver();
        self.waiting.store(self.worker.waiting(), Ordering::Relaxed);
    }

    /// Counts lost packets, and drops keys of deleted SAs and incomplete fragments, also without
    /// traffic.
    fn run_periodic(&mut self) {
        let now = now();
        if now.since(self.last_periodic) < PERIOD {
            return;
        }
        self.last_periodic = now;
        self.worker.count_dropped(self.wire.lost(), DropReason::InPortFull, now);
        self.worker.count_dropped(self.host.overflowed(), DropReason::OutPortFull, now);
        self.worker.refresh();
        self.worker.inbound(&mut self.batch, now, &mut self.pool, &mut self.out);
        self.deliver();
        let ports = [self.host_traffic].into_iter().chain(self.wire.traffic());
        let worker = &self.worker;
        let traffic = (worker.outward(), worker.inward());
        self.figures.publish(traffic, worker.waiting(), ports);
    }

    /// Receives from a wire port; whether anything came.
    fn receive(&mut self, port: usize) -> bool {
        match self.wire.receive(port, &mut self.pool, &mut self.batch) {
            Ok(count) => count > 0,
            Err(error) => {
                tracing::warn!(%error, "a wire port failed");
                false
            }
        }
    }

    /// Transmits the engine's output and sends its events.
    fn deliver(&mut self) {
        if self.clamps_mss {
            self.worker.clamp_inbound(self.out.host.as_mut_slice());
        }
        if self.is_watched {
            let Output { wire, host, .. } = &self.out;
            self.worker.show(CapturePoint::Wire(PacketWay::Out), wire.as_slice(), now());
            self.worker.show(CapturePoint::Plain(PacketWay::In), host.as_slice(), now());
        }
        if !self.out.offloaded.is_empty() {
            self.hand_over();
        }
        if !self.out.wire.is_empty() {
            let sent = self.wire.transmit(&mut self.out.wire, &mut self.pool);
            self.count(&sent.refused);
        }
        if !self.out.host.is_empty() {
            let sent = self.host.transmit(&mut self.out.host, &mut self.pool);
            self.host_traffic.count_sent(&sent);
            self.count(&sent.refused);
        }
        self.events.send(&mut self.out.events);
    }

    /// Passes packets of offloaded SAs to their devices.
    fn hand_over(&mut self) {
        let lost = match &mut self.devices {
            Some(devices) => devices.hand_over(&mut self.out.offloaded, &mut self.pool),
            None => LostPackets::without_device(&mut self.out.offloaded, &mut self.pool),
        };
        self.count_lost(lost);
    }

    fn count_lost(&mut self, LostPackets { no_room, no_device }: LostPackets) {
        if no_room + no_device > 0 {
            self.worker.count_dropped(no_room, DropReason::PortFull, now());
            self.worker.count_dropped(no_device, DropReason::OutDeviceGone, now());
        }
    }

    fn count(&mut self, refused: &RefusedPacket) {
        if let Some(PathMtu { to, mtu }) = refused.path {
            self.worker.learn_path_mtu(to, mtu, &mut self.out.events);
        }
        if refused.packets() > 0 {
            refused::count(&mut self.worker, refused, now());
        }
    }
}

fn now() -> Moment {
    Moment(clock::boot_nanoseconds())
}

/// Poll token of a wire port; 0 is the host's.
fn token(port: usize) -> u8 {
    u8::try_from(port + 1).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests;
