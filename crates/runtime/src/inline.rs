//! The worker loop of inline mode: forwards between two ports past the host's stack.
//!
//! ```text
//!   protected ─▶ TTL - 1 ─▶ outbound ─▶ next hop ─▶ out
//!   host's TUN ───────────▶ outbound ─▶ next hop ─▶ out
//!   wire ─▶ inbound ─┬─▶ own address ─▶ host's TUN
//!                    └─▶ TTL - 1 ─▶ next hop ─┬─▶ protected ─▶ out
//!                                             └─▶ wire ─▶ outbound ─▶ next hop ─▶ out
//! ```
//!
//! **All that leaves by the wire has passed the `out` policies, whoever sent it**; so has all that
//! came by the protected port. What leaves by the protected port came from there, or has passed the
//! `fwd` policies and any SAs they demand. Both hold by construction: only output of
//! [`Worker::outbound`] becomes `ForwardStage::Outbound` (`inline/forwarding.rs`).
//!
//! 1 wait until a port is readable → 2 next-hop updates, and packets that waited for them → 3 a
//! batch from the host → 4 from the protected port → 5 from the wire and from the host's sockets →
//! 6 packets that wait for SAs → 7 once a second housekeeping → 8 send all frames of the turn → 1.
//!
//! Packets that are not for the gateway to forward ([`router`]) are dropped here, as
//! the host's stack has its own copy. The caller must keep the host's stack away from all others.

mod forwarding;
mod icmp_error;
mod ingress;
mod nested_gso;
mod next_hop_queue;
mod router;

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering, fence},
    },
    time::Duration,
};

use uxfrm_engine::{
    CapturePoint, DropReason, IcmpRateLimit, Moment, Output, PacketWay, ReceivedPacket, TracePort,
    Worker,
};
use uxfrm_io::{
    FramePort, Frames, Port, Transmitted, clock,
    ike::IkeDaemonQueue,
    poll::{Poller, Ready, Waker},
};
use uxfrm_packet::{Batch, PacketBuf, Pool, ethernet::MacAddr};

use self::next_hop_queue::NextHopQueue;
use crate::{
    DevicePorts, Error, Events, PortTraffic, SharedWorkerFigures,
    device_ports::{Backpressure, LostPackets, PortSlot, set_polled},
    next_hops::{NextHops, ResolverEnds},
    refused,
    worker_figures::FiguresWriter,
};

/// Longest wait.
const IDLE: Duration = Duration::from_millis(100);

/// Longest wait while SAs and policies have uncommitted counts.
const SETTLE: Duration = Duration::from_millis(10);

/// Longest wait while a port keeps frames that its device had no room for.
const RETRY: Duration = Duration::from_micros(50);

/// Interval of housekeeping.
const PERIOD: Duration = Duration::from_secs(1);

/// Poll tokens; sockets follow.
const HOST: u8 = 0;
const PROTECTED: u8 = 1;
const WIRE: u8 = 2;
const SOCKETS: u8 = 3;

/// Ports of an inline worker.
#[derive(Debug)]
pub struct InlinePorts {
    /// The host's TUN: packets to protected destinations, and packets for the host. Must accept
    /// every kind of buffer.
    pub host: Box<dyn Port>,
    /// The protected side, and the port's MAC address.
    pub protected: (Box<dyn FramePort>, MacAddr),
    /// The side of other gateways, and the port's MAC address.
    pub wire: (Box<dyn FramePort>, MacAddr),
    /// Receive-only sockets of the host's stack: ESP in UDP that the stack reassembles, and ESP
    /// that reaches it by other ways, as in FOU.
    pub sockets: Vec<Box<dyn Port>>,
    /// Receivers of IKE messages at ESP-in-UDP ports.
    pub daemons: Vec<IkeDaemonQueue>,
}

/// One inline worker with its ports.
#[derive(Debug)]
pub struct InlineLoop {
    poller: Poller,
    ports: InlinePorts,
    /// Whether all ports can be polled; ports in memory are read in turn.
    polled: bool,
    worker: Worker,
    pool: Pool,
    batch: Batch,
    /// Spare batch for filtering.
    spare: Batch,
    /// Plain packets towards the wire that must pass the `out` policies.
    requeued: Batch,
    /// ICMP errors for senders behind the wire, which leave protected or not at all.
    icmp_errors: Batch,
    out: Output,
    to_host: Batch,
    frames: [Frames; 2],
    next_hops: NextHops,
    next_hop_queue: NextHopQueue,
    budget: IcmpRateLimit,
    events: Events,
    devices: Option<PortSlot>,
    /// Directions without room at a device: ports that feed them are not read.
    backpressure: Backpressure,
    received: Vec<ReceivedPacket>,
    sealed: Vec<PacketBuf>,
    /// Whether somebody watches packets in this turn.
    is_watched: bool,
    /// Whether SYNs are changed.
    clamps_mss: bool,
    /// The port that the outbound batch came by.
    came_by: TracePort,
    /// Number of buffers that wait for SAs, for other threads.
    held: Arc<AtomicUsize>,
    last_periodic: Moment,
    now: Moment,
    ident: u32,
    /// Whether a port keeps frames that its device had no room for.
    has_backlog: bool,
    traffic: PortsTraffic,
    figures: FiguresWriter,
}

/// What each kind of port carried, in the order of [`PORTS`].
#[derive(Clone, Copy, Debug, Default)]
struct PortsTraffic {
    host: PortTraffic,
    protected: PortTraffic,
    wire: PortTraffic,
    sockets: PortTraffic,
}

/// What ports are called in a worker's figures.
const PORTS: [&str; 4] = ["tun", "protected", "wire", "sockets"];

impl InlineLoop {
    /// A loop between `ports`; `guide` resolves next hops, and `events` takes the engine's events.
    ///
    /// # Errors
    /// When a port can't be polled.
    pub fn new(
        ports: InlinePorts,
        guide: ResolverEnds,
        worker: Worker,
        events: Events,
    ) -> Result<Self, Error> {
        let poller = Poller::new().map_err(Error::Poll)?;
        let named = [
            (HOST, ports.host.descriptor()),
            (PROTECTED, ports.protected.0.descriptor()),
            (WIRE, ports.wire.0.descriptor()),
        ];
        let sockets = (SOCKETS..).zip(ports.sockets.iter().map(|socket| socket.descriptor()));
        let mut polled = true;
        for (token, descriptor) in named.into_iter().chain(sockets) {
            match descriptor {
                Some(descriptor) => poller.add(descriptor, token).map_err(Error::Poll)?,
                None => polled = false,
            }
        }
        let macs = [ports.protected.1, ports.wire.1];
        let ident = fold(worker.settings().seed);
        let clamps_mss = worker.clamps_mss();
        Ok(Self {
            poller,
            ports,
            polled,
            worker,
            pool: Pool::new(),
            batch: Batch::new(),
            spare: Batch::new(),
            requeued: Batch::new(),
            icmp_errors: Batch::new(),
            out: Output::default(),
            to_host: Batch::new(),
            frames: [Frames::new(), Frames::new()],
            next_hops: NextHops::new(guide, macs),
            next_hop_queue: NextHopQueue::new(),
            budget: IcmpRateLimit::new(),
            events,
            devices: None,
            backpressure: Backpressure::default(),
            received: Vec::new(),
            sealed: Vec::new(),
            is_watched: false,
            clamps_mss,
            came_by: TracePort::Host,
            held: Arc::default(),
            last_periodic: Moment(0),
            now: Moment(0),
            ident,
            has_backlog: false,
            traffic: PortsTraffic::default(),
            figures: FiguresWriter::new(PORTS.map(str::to_owned)),
        })
    }

    /// Attaches offload devices, including later ones. They have to send by the
    /// [worker](crate::DeviceEgress::Worker).
    #[must_use]
    pub fn with_devices(mut self, device_ports: &DevicePorts) -> Self {
        self.devices = Some(device_ports.add_worker(self.poller.waker()));
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

    /// Commits pending counts of SAs and policies.
    pub(crate) fn settle(&mut self) {
        self.worker.settle();
    }

    pub(crate) fn save_state(&mut self) {
        self.ports.protected.0.save_state();
        self.ports.wire.0.save_state();
    }

    pub(crate) fn restore_state(&mut self) -> io::Result<()> {
        self.ports.protected.0.restore_state()?;
        self.ports.wire.0.restore_state()?;
        // The first turn finds out whether it does.
        self.has_backlog = true;
        Ok(())
    }

    /// Number of buffers that wait for SAs.
    pub(crate) fn held(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.held)
    }

    /// Runs the loop once.
    ///
    /// # Errors
    /// When polling fails or a port is gone.
    pub fn turn(&mut self) -> Result<(), Error> {
        self.apply_backpressure()?;
        self.figures.turns += 1;
        // 1 wait
        let timeout = match (self.polled, self.has_backlog, self.worker.has_deferred()) {
            (false, ..) => Duration::ZERO,
            (true, true, _) => RETRY,
            (true, false, true) => SETTLE,
            (true, false, false) => IDLE,
        };
        let ready = self.poller.wait(Some(timeout)).map_err(Error::Poll)?;
        if ready.is_empty() {
            self.worker.settle();
        }
        self.now = Moment(clock::boot_nanoseconds());
        self.is_watched = self.worker.is_watched();
        if let Some(devices) = &mut self.devices {
            devices.refresh_devices(&mut self.pool);
        }
        // 2 next-hop updates
        if self.next_hops.apply_updates(self.now) || self.next_hop_queue.is_due(self.now) {
            self.retry_queued();
        }
        // 3 from the host
        let Backpressure { outward, inward } = self.backpressure;
        if self.is_ready(ready, HOST) && !outward {
            let host = &mut self.ports.host;
            let count = host.receive(&mut self.pool, &mut self.batch).map_err(Error::Host)?;
            self.traffic.host.count_received(count);
            self.came_by = TracePort::Host;
            self.outbound();
        }
        // 4 from the protected port
        if self.is_ready(ready, PROTECTED) && !outward {
            let port = &mut self.ports.protected.0;
            let count = port.receive(&mut self.pool, &mut self.batch).map_err(Error::Link)?;
            self.traffic.protected.count_received(count);
            self.filter_protected();
            self.came_by = TracePort::Protected;
            self.outbound();
        }
        // 5 from the wire
        if self.is_ready(ready, WIRE) && !inward {
            let port = &mut self.ports.wire.0;
            let count = port.receive(&mut self.pool, &mut self.batch).map_err(Error::Link)?;
            self.traffic.wire.count_received(count);
            self.filter_wire();
            self.inbound();
        }
        self.receive_from_sockets(ready);
        self.receive_from_devices();
        // 6 packets that wait for SAs
        self.retry_waiting();
        // 7 housekeeping
        self.run_periodic();
        // 8 send
        self.transmit();
        Ok(())
    }

    /// Pushes what waits for devices; while some stays blocked, the ports that feed it are not
    /// polled.
    fn apply_backpressure(&mut self) -> Result<(), Error> {
        let Some(devices) = &mut self.devices else { return Ok(()) };
        let (backpressure, lost) = devices.retry(&mut self.pool);
        self.count_lost(lost);
        let before = std::mem::replace(&mut self.backpressure, backpressure);
        let InlinePorts { host, protected, wire, .. } = &self.ports;
        if before.outward != backpressure.outward {
            set_polled(&self.poller, HOST, host.descriptor(), backpressure.outward)?;
            set_polled(&self.poller, PROTECTED, protected.0.descriptor(), backpressure.outward)?;
        }
        if before.inward != backpressure.inward {
            set_polled(&self.poller, WIRE, wire.0.descriptor(), backpressure.inward)?;
        }
        Ok(())
    }

    fn is_ready(&self, ready: Ready, token: u8) -> bool {
        !self.polled || ready.has(token)
    }

    /// Sends the batch through the `out` policies and on, as long as that leads to more for the
    /// wire.
    fn outbound(&mut self) {
        loop {
            self.protect(Self::send_out);
            self.came_by = TracePort::Wire;
            if !self.requeued.is_empty() {
                std::mem::swap(&mut self.batch, &mut self.requeued);
            } else if !self.icmp_errors.is_empty() {
                std::mem::swap(&mut self.batch, &mut self.icmp_errors);
                self.protect(Self::send_if_protected);
            } else {
                return;
            }
        }
    }

    /// Sends the batch through the `out` policies, and their output to `send`.
    fn protect(&mut self, send: fn(&mut Self, PacketBuf)) {
        let Self { worker, batch, now, pool, out, .. } = self;
        if self.clamps_mss {
            worker.clamp_outbound(batch.as_mut_slice());
        }
        if self.is_watched {
            worker.show(CapturePoint::Plain(PacketWay::Out), batch.as_slice(), *now);
            worker.outbound_traced(batch, self.came_by, *now, pool, out);
            worker.show(CapturePoint::Wire(PacketWay::Out), out.wire.as_slice(), *now);
        } else {
            worker.outbound(batch, *now, pool, out);
        }
        let mut wire = std::mem::take(&mut self.out.wire);
        for packet in wire.drain() {
            send(self, packet);
        }
        self.out.wire = wire;
        // ICMP errors of the engine; a sender may be behind the wire.
        let mut answers = std::mem::take(&mut self.out.host);
        for answer in answers.drain() {
            self.send_too_big(answer);
        }
        self.out.host = answers;
        if !self.out.offloaded.is_empty() {
            let lost = match &mut self.devices {
                Some(devices) => devices.hand_over(&mut self.out.offloaded, &mut self.pool),
                None => LostPackets::without_device(&mut self.out.offloaded, &mut self.pool),
            };
            self.count_lost(lost);
        }
        self.events.send(&mut self.out.events);
    }

    /// Decrypts and checks the batch, and forwards what passes; devices decrypt packets of their
    /// SAs.
    fn inbound(&mut self) {
        if self.is_watched {
            self.worker.show(CapturePoint::Wire(PacketWay::In), self.batch.as_slice(), self.now);
        }
        if let Some(devices) = self.devices.as_mut().filter(|devices| !devices.is_empty()) {
            let lost = devices.dispatch_offloaded(&mut self.batch, &mut self.pool);
            self.count_lost(lost);
        }
        let Self { worker, batch, now, pool, out, .. } = self;
        if self.is_watched {
            worker.inbound_traced(batch, *now, pool, out);
        } else {
            worker.inbound(batch, *now, pool, out);
        }
        self.forward_all();
    }

    /// 5a sends what devices sealed, 5b checks what they decrypted.
    fn receive_from_devices(&mut self) {
        let Some(devices) = &self.devices else { return };
        let mut sealed = std::mem::take(&mut self.sealed);
        devices.receive_sealed(&mut sealed, &mut self.pool);
        if devices.receive(&mut self.received, &mut self.pool) {
            let Self { worker, received, now, pool, out, .. } = self;
            worker.inbound_from_device(received, *now, pool, out);
            self.forward_all();
        }
        if self.is_watched {
            self.worker.show(CapturePoint::Wire(PacketWay::Out), &sealed, self.now);
        }
        for packet in sealed.drain(..) {
            self.send_out(packet);
        }
        self.sealed = sealed;
    }

    fn count_lost(&mut self, LostPackets { no_room, no_device }: LostPackets) {
        self.worker.count_dropped(no_room, DropReason::PortFull, self.now);
        self.worker.count_dropped(no_device, DropReason::OutDeviceGone, self.now);
    }

    /// Forwards what passed the engine.
    fn forward_all(&mut self) {
        let mut plain = std::mem::take(&mut self.out.host);
        if self.clamps_mss {
            self.worker.clamp_inbound(plain.as_mut_slice());
        }
        if self.is_watched {
            self.worker.show(CapturePoint::Plain(PacketWay::In), plain.as_slice(), self.now);
        }
        for packet in plain.drain() {
            self.forward(packet);
        }
        self.out.host = plain;
        self.events.send(&mut self.out.events);
        self.flush_requeued();
    }

    /// Sends what was requeued for the wire.
    fn flush_requeued(&mut self) {
        if !self.requeued.is_empty() || !self.icmp_errors.is_empty() {
            std::mem::swap(&mut self.batch, &mut self.requeued);
            self.outbound();
        }
    }

    fn receive_from_sockets(&mut self, ready: Ready) {
        for index in 0..self.ports.sockets.len() {
            let token = u8::try_from(index).map_or(u8::MAX, |index| SOCKETS.saturating_add(index));
            if !self.is_ready(ready, token) {
                continue;
            }
            match self.ports.sockets[index].receive(&mut self.pool, &mut self.batch) {
                Ok(0) => {}
                Ok(count) => {
                    self.traffic.sockets.count_received(count);
                    self.inbound();
                }
                Err(error) => tracing::warn!(%error, "a socket of ESP failed"),
            }
        }
    }

    /// Retries packets that waited for SAs, as [`WorkerLoop`](crate::WorkerLoop) does.
    fn retry_waiting(&mut self) {
        let before = self.worker.waiting();
        if before == 0 {
            return;
        }
        self.held.store(before, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.outbound();
        self.held.store(self.worker.waiting(), Ordering::Relaxed);
    }

    fn run_periodic(&mut self) {
        let now = self.now;
        if now.since(self.last_periodic) < PERIOD {
            return;
        }
        self.last_periodic = now;
        let InlinePorts { host, protected, wire, sockets, .. } = &mut self.ports;
        let queues = protected.0.lost() + wire.0.lost();
        let lost = queues + sockets.iter_mut().map(|socket| socket.overflowed()).sum::<u64>();
        self.worker.count_dropped(lost, DropReason::InPortFull, now);
        self.worker.count_dropped(host.overflowed(), DropReason::OutPortFull, now);
        self.worker.refresh();
        self.inbound();
        let PortsTraffic { host, protected, wire, sockets } = self.traffic;
        let worker = &self.worker;
        let traffic = (worker.outward(), worker.inward());
        self.figures.publish(traffic, worker.waiting(), [host, protected, wire, sockets]);
    }

    /// Sends all frames of this turn.
    fn transmit(&mut self) {
        let Self { ports, frames, to_host, pool, has_backlog, traffic, .. } = self;
        let mut total = Transmitted::default();
        let kept = std::mem::take(has_backlog);
        let sides = [
            (&mut ports.protected.0, &mut traffic.protected),
            (&mut ports.wire.0, &mut traffic.wire),
        ];
        for ((port, traffic), frames) in sides.into_iter().zip(frames) {
            if !frames.is_empty() || kept {
                let sent = port.transmit(frames, pool);
                traffic.count_sent(&sent);
                total += sent;
                *has_backlog |= port.has_backlog();
            }
        }
        if !to_host.is_empty() {
            let sent = ports.host.transmit(to_host, pool);
            traffic.host.count_sent(&sent);
            total += sent;
        }
        let refused = total.refused;
        if refused.packets() > 0 {
            refused::count(&mut self.worker, &refused, self.now);
        }
        self.next_hops.wake_resolver();
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a seed is random in all its bits")]
fn fold(seed: u64) -> u32 {
    (seed ^ seed >> 32) as u32
}

#[cfg(test)]
mod tests;
