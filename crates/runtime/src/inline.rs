//! One worker of a gateway that forwards between two ports past the host's stack.
//!
//! ```text
//!   protected ─▶ one hop less ─▶ outbound ─▶ next hop ─▶ out
//!   host's TUN ────────────────▶ outbound ─▶ next hop ─▶ out
//!   wire ─▶ inbound ─┬─▶ own address ─▶ host's TUN
//!                    └─▶ one hop less ─▶ next hop ─┬─▶ protected ─▶ out
//!                                                  └─▶ wire ─▶ outbound ─▶ next hop ─▶ out
//! ```
//!
//! **What leaves by the wire has been through the policies `out`, whoever sent it**; so has all that came by the protected port. What leaves
//! by the protected port came from there, or has been through the policies `fwd` and, where they want it, through states. Both
//! hold by construction: [`Lane::leave`] is for what [`Worker::outbound`] put out, and [`Lane::route`] never sends by the wire itself.
//!
//! 1 wait until a port is readable → 2 take in news of ways, and let packets go that waited for them → 3 one batch from the host → 4 one from the
//! protected port → 5 one from the wire, and from the sockets of fragmented ESP in UDP → 6 what waits for states → 7 once a second let the
//! engine forget → 8 send all frames of the turn → 1.
//!
//! What is not for the gateway to forward ([`router`](self::router)) the host's stack has already: it is dropped here. All else the host's stack
//! must be kept from by whoever runs the lane.

mod router;
mod trouble;
mod waiting;
mod ways;

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering, fence},
    },
    time::Duration,
};

use uxfrm_engine::{Cut, DropReason, ErrorBudget, Moment, Output, Received, Worker, split};
use uxfrm_io::{
    FramePort, Frames, Port, Transmitted, clock,
    poll::{Poller, Ready, Waker},
    wire_packets,
};
use uxfrm_packet::{
    Batch, IpPacket, PacketBuf, Pool, Protocol, SegmentPlan, Segments, SizeClass, Version,
    checksum,
    ethernet::{EthernetHeader, MacAddr},
    ipv4::Ipv4,
};

use self::{
    router::{Claim, claim, claim_on_wire, is_link_local, take_hop, train},
    trouble::Trouble,
    waiting::{Stage, Waiting},
    ways::{Way, Ways},
};
use crate::{
    Bay, Error, Events,
    bay::{Berth, Lost},
};

pub use ways::{Answer, Guide, News, NextHop, Question, Side};

/// How long a lane waits at the most.
const IDLE: Duration = Duration::from_millis(100);

/// How long what is no longer needed may stay.
const FORGET: Duration = Duration::from_secs(1);

/// Tokens of the poller; sockets follow.
const HOST: u8 = 0;
const PROTECTED: u8 = 1;
const WIRE: u8 = 2;
const SOCKETS: u8 = 3;

/// What a lane is connected to.
#[derive(Debug)]
pub struct InlinePorts {
    /// The host: what it sends to protected destinations, and what comes for it. Has to take every kind of buffer.
    pub host: Box<dyn Port>,
    /// Towards those who are protected, and the port's own address.
    pub protected: (Box<dyn FramePort>, MacAddr),
    /// Towards other gateways, and the port's own address.
    pub wire: (Box<dyn FramePort>, MacAddr),
    /// Sockets of ESP in UDP, for datagrams that the host's stack puts together. Only received from.
    pub sockets: Vec<Box<dyn Port>>,
}

/// One worker with its ports.
#[derive(Debug)]
pub struct InlineLane {
    poller: Poller,
    ports: InlinePorts,
    /// Whether all ports can be polled; in memory they are asked in turn.
    polled: bool,
    worker: Worker,
    pool: Pool,
    batch: Batch,
    /// Room for what is kept of a batch.
    kept: Batch,
    /// Plain packets for the wire, to go through the policies `out`.
    again: Batch,
    /// ICMP errors for senders behind the wire, which leave protected or not at all.
    answers: Batch,
    out: Output,
    to_host: Batch,
    frames: [Frames; 2],
    ways: Ways,
    waiting: Waiting,
    budget: ErrorBudget,
    events: Events,
    devices: Option<Berth>,
    received: Vec<Received>,
    sealed: Vec<PacketBuf>,
    /// Buffers that wait for states, for others to see.
    held: Arc<AtomicUsize>,
    forgot: Moment,
    now: Moment,
    ident: u32,
}

impl InlineLane {
    /// A lane between `ports`, which asks `guide` for ways; its engine's events go to `events`.
    ///
    /// # Errors
    /// When a port can't be polled.
    pub fn new(
        ports: InlinePorts,
        guide: Guide,
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
        Ok(Self {
            poller,
            ports,
            polled,
            worker,
            pool: Pool::new(),
            batch: Batch::new(),
            kept: Batch::new(),
            again: Batch::new(),
            answers: Batch::new(),
            out: Output::default(),
            to_host: Batch::new(),
            frames: [Frames::new(), Frames::new()],
            ways: Ways::new(guide, macs),
            waiting: Waiting::new(),
            budget: ErrorBudget::new(),
            events,
            devices: None,
            received: Vec::new(),
            sealed: Vec::new(),
            held: Arc::default(),
            forgot: Moment(0),
            now: Moment(0),
            ident,
        })
    }

    /// The same lane with the devices of a bay beside its engine; those that come later as well. They have to send by the [lane](crate::Exit::Lane).
    #[must_use]
    pub fn behind(mut self, bay: &Bay) -> Self {
        self.devices = Some(bay.enter(self.poller.waker()));
        self
    }

    /// Ends the current [`turn`](Self::turn)'s wait, or the next one's.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.poller.waker()
    }

    /// The engine, to read its counters from.
    #[must_use]
    pub fn worker(&self) -> &Worker {
        &self.worker
    }

    /// Buffers that wait for states.
    pub(crate) fn held(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.held)
    }

    /// One turn of the loop.
    ///
    /// # Errors
    /// When polling fails or a port is gone.
    pub fn turn(&mut self) -> Result<(), Error> {
        // 1 wait
        let patience = if self.polled { IDLE } else { Duration::ZERO };
        let ready = self.poller.wait(Some(patience)).map_err(Error::Poll)?;
        self.now = Moment(clock::boot_nanoseconds());
        if let Some(devices) = &mut self.devices {
            devices.look();
        }
        // 2 news of ways
        if self.ways.hear(self.now) || self.waiting.is_late(self.now) {
            self.resume();
        }
        // 3 from the host
        if self.is_ready(ready, HOST) {
            self.ports.host.receive(&mut self.pool, &mut self.batch).map_err(Error::Host)?;
            self.outbound();
        }
        // 4 from the protected port
        if self.is_ready(ready, PROTECTED) {
            let port = &mut self.ports.protected.0;
            port.receive(&mut self.pool, &mut self.batch).map_err(Error::Link)?;
            self.admit();
            self.outbound();
        }
        // 5 from the wire
        if self.is_ready(ready, WIRE) {
            let port = &mut self.ports.wire.0;
            port.receive(&mut self.pool, &mut self.batch).map_err(Error::Link)?;
            self.admit_from_wire();
            self.inbound();
        }
        self.receive_from_sockets(ready);
        self.receive_from_devices();
        // 6 what waits for states
        self.attend_to_waiting();
        // 7 forget
        self.forget();
        // 8 send
        self.transmit();
        Ok(())
    }

    fn is_ready(&self, ready: Ready, token: u8) -> bool {
        !self.polled || ready.has(token)
    }

    /// Keeps of a batch from the protected port what is to be forwarded, one hop less.
    fn admit(&mut self) {
        let kept = std::mem::take(&mut self.kept);
        let mut batch = std::mem::replace(&mut self.batch, kept);
        for mut packet in batch.drain() {
            let Some(ip) = self.checked(&packet) else {
                self.discard(packet, DropReason::ForwardMalformed);
                continue;
            };
            match claim(&ip, &self.worker.settings().addresses) {
                Claim::Host | Claim::Protected => self.pool.give(packet),
                Claim::Martian => self.discard(packet, DropReason::ForwardMalformed),
                Claim::Passing if ip.ttl <= 1 => self.expire(packet, &ip),
                Claim::Passing => {
                    take_hop(&mut packet);
                    self.batch.push(packet);
                }
            }
        }
        self.kept = batch;
    }

    /// Keeps of a batch from the wire what is ESP for the gateway or passes, in single packets and trains, with checksums.
    fn admit_from_wire(&mut self) {
        let kept = std::mem::take(&mut self.kept);
        let mut batch = std::mem::replace(&mut self.batch, kept);
        for packet in batch.drain() {
            let Ok(ip) = IpPacket::parse(packet.bytes()) else {
                self.discard(packet, DropReason::InMalformed);
                continue;
            };
            let settings = self.worker.settings();
            let (own, ports) = (&settings.addresses, &settings.encap_ports);
            match claim_on_wire(&ip, packet.bytes(), own, ports) {
                Claim::Host => self.pool.give(packet),
                Claim::Martian => self.discard(packet, DropReason::ForwardMalformed),
                Claim::Protected | Claim::Passing if packet.segments == Segments::One => {
                    self.admit_one(packet);
                }
                Claim::Protected => match train(packet, &ip) {
                    Ok(train) => self.batch.push(train),
                    Err(packet) => self.cut(packet),
                },
                Claim::Passing => self.cut(packet),
            }
        }
        self.kept = batch;
    }

    fn admit_one(&mut self, mut packet: PacketBuf) {
        match checksum::complete(&mut packet) {
            Ok(()) => self.batch.push(packet),
            Err(_outside) => self.discard(packet, DropReason::InMalformed),
        }
    }

    /// Takes a super-packet apart: the policies are asked about packets.
    fn cut(&mut self, packet: PacketBuf) {
        let Ok(plan) = SegmentPlan::new(&packet) else {
            return self.discard(packet, DropReason::InMalformed);
        };
        for k in 0..plan.count() {
            let mut piece = self.pool.take(SizeClass::holding(plan.len(k)));
            let room = piece.append(plan.len(k));
            if room.and_then(|room| plan.write(k, packet.bytes(), room)).is_some() {
                self.batch.push(piece);
            } else {
                self.discard(piece, DropReason::InMalformed);
            }
        }
        self.pool.give(packet);
    }

    /// A packet's header, if a router may go by it.
    fn checked(&self, packet: &PacketBuf) -> Option<IpPacket> {
        let bytes = packet.bytes();
        let ip = IpPacket::parse(bytes).ok()?;
        let is_right = match ip.version {
            Version::V4 => Ipv4::parse(bytes).is_ok_and(|packet| packet.checksum_is_right()),
            Version::V6 => true,
        };
        is_right.then_some(ip)
    }

    /// Sends the batch through the policies `out`, and on; so long as that leads to more for the wire.
    fn outbound(&mut self) {
        loop {
            self.protect(Self::leave);
            if !self.again.is_empty() {
                std::mem::swap(&mut self.batch, &mut self.again);
            } else if !self.answers.is_empty() {
                std::mem::swap(&mut self.batch, &mut self.answers);
                self.protect(Self::leave_protected);
            } else {
                return;
            }
        }
    }

    /// Sends the batch through the policies `out`, and what they let go to `leave`.
    fn protect(&mut self, leave: fn(&mut Self, PacketBuf)) {
        self.worker.outbound(&mut self.batch, self.now, &mut self.pool, &mut self.out);
        let mut wire = std::mem::take(&mut self.out.wire);
        for packet in wire.drain() {
            leave(self, packet);
        }
        self.out.wire = wire;
        // What the engine says to senders, one of which may be behind the wire.
        let mut answers = std::mem::take(&mut self.out.host);
        for answer in answers.drain() {
            self.answer(answer);
        }
        self.out.host = answers;
        if !self.out.handed.is_empty() {
            let lost = match &mut self.devices {
                Some(devices) => devices.hand_over(&mut self.out.handed, &mut self.pool),
                None => Lost::all(&mut self.out.handed, &mut self.pool),
            };
            self.count_lost(lost);
        }
        self.events.send(&mut self.out.events);
    }

    /// Opens the batch, checks it, and sends on what may pass; what devices have states for is theirs to open.
    fn inbound(&mut self) {
        if let Some(devices) = self.devices.as_mut().filter(|devices| !devices.is_empty()) {
            let lost = devices.arrive_among_others(&mut self.batch, &mut self.pool);
            self.count_lost(lost);
        }
        self.worker.inbound(&mut self.batch, self.now, &mut self.pool, &mut self.out);
        self.pass();
    }

    /// 5a What devices sealed leaves, 5b what they opened is checked.
    fn receive_from_devices(&mut self) {
        let Some(devices) = &self.devices else { return };
        let mut sealed = std::mem::take(&mut self.sealed);
        devices.sealed(&mut sealed, &mut self.pool);
        if devices.receive(&mut self.received, &mut self.pool) {
            let Self { worker, received, now, pool, out, .. } = self;
            worker.inbound_from_device(received, *now, pool, out);
            self.pass();
        }
        for packet in sealed.drain(..) {
            self.leave(packet);
        }
        self.sealed = sealed;
    }

    fn count_lost(&self, Lost { full, nowhere }: Lost) {
        let drops = self.worker.drops();
        drops.add(DropReason::PortFull, full);
        drops.add(DropReason::PortRefused, nowhere);
    }

    /// Sends on what the engine let pass.
    fn pass(&mut self) {
        let mut plain = std::mem::take(&mut self.out.host);
        for packet in plain.drain() {
            self.forward(packet);
        }
        self.out.host = plain;
        self.events.send(&mut self.out.events);
        self.go_on();
    }

    /// Sends what has come up for the wire meanwhile.
    fn go_on(&mut self) {
        if !self.again.is_empty() || !self.answers.is_empty() {
            std::mem::swap(&mut self.batch, &mut self.again);
            self.outbound();
        }
    }

    /// A packet that the policies `in` or `fwd` let pass.
    fn forward(&mut self, mut packet: PacketBuf) {
        let Ok(ip) = IpPacket::parse(packet.bytes()) else {
            return self.discard(packet, DropReason::ForwardMalformed);
        };
        if self.worker.settings().addresses.holds(ip.destination) {
            return self.to_host.push(packet);
        }
        if is_link_local(ip.destination) || is_link_local(ip.source) {
            return self.discard(packet, DropReason::ForwardNoRoute);
        }
        if ip.ttl <= 1 {
            return self.expire(packet, &ip);
        }
        take_hop(&mut packet);
        self.route(packet);
    }

    /// A packet that may go to the protected side as it is, or to the wire by the policies `out`.
    fn route(&mut self, packet: PacketBuf) {
        let Some(destination) = destination(&packet) else {
            return self.discard(packet, DropReason::ForwardMalformed);
        };
        if self.worker.settings().addresses.holds(destination) {
            return self.to_host.push(packet);
        }
        match self.ways.to(destination, self.now) {
            Way::By { side: Side::Protected, header, mtu } => {
                self.queue(Side::Protected, header, mtu, packet);
            }
            Way::By { side: Side::Wire, .. } => self.again.push(packet),
            Way::Asked => self.hold(packet, destination, Stage::Checked),
            // It went through the policies as one to be forwarded; the host has a new address, and its neighbours are told soon.
            Way::Local | Way::Nowhere => {
                self.refuse(packet, Trouble::NoRoute, DropReason::ForwardNoRoute);
            }
            Way::Gone => {
                self.refuse(packet, Trouble::NoNeighbour, DropReason::ForwardNoNeighbour);
            }
        }
    }

    /// An ICMP error of ours.
    fn answer(&mut self, packet: PacketBuf) {
        let Some(destination) = destination(&packet) else {
            return self.discard(packet, DropReason::ForwardMalformed);
        };
        if self.worker.settings().addresses.holds(destination) {
            return self.to_host.push(packet);
        }
        match self.ways.to(destination, self.now) {
            Way::By { side: Side::Protected, header, mtu } => {
                self.queue(Side::Protected, header, mtu, packet);
            }
            Way::By { side: Side::Wire, .. } => self.answers.push(packet),
            Way::Asked => self.hold(packet, destination, Stage::Answer),
            Way::Local | Way::Nowhere => self.discard(packet, DropReason::ForwardNoRoute),
            Way::Gone => self.discard(packet, DropReason::ForwardNoNeighbour),
        }
    }

    /// An ICMP error that the policies `out` let go: only if they made something else of it.
    fn leave_protected(&mut self, packet: PacketBuf) {
        let is_plain = IpPacket::parse(packet.bytes())
            .is_ok_and(|ip| matches!(ip.protocol, Protocol::ICMP | Protocol::ICMPV6));
        if is_plain {
            return self.discard(packet, DropReason::ForwardUnprotected);
        }
        self.leave(packet);
    }

    /// A packet that the policies `out` let go, protected or not.
    fn leave(&mut self, packet: PacketBuf) {
        let Some(destination) = destination(&packet) else {
            return self.discard(packet, DropReason::ForwardMalformed);
        };
        match self.ways.to(destination, self.now) {
            Way::By { side, header, mtu } => self.queue(side, header, mtu, packet),
            Way::Asked => self.hold(packet, destination, Stage::Leaving),
            Way::Local | Way::Nowhere => {
                self.refuse(packet, Trouble::NoRoute, DropReason::ForwardNoRoute);
            }
            Way::Gone => {
                self.refuse(packet, Trouble::NoNeighbour, DropReason::ForwardNoNeighbour);
            }
        }
    }

    /// Puts a packet among the frames of a port, in fragments where it has to be.
    #[inline]
    fn queue(&mut self, side: Side, header: EthernetHeader, mtu: u16, packet: PacketBuf) {
        if packet.len() <= usize::from(mtu) || longest(&packet) <= usize::from(mtu) {
            return self.frames[side as usize].push(header, packet);
        }
        self.queue_large(side, header, mtu, packet);
    }

    #[cold]
    fn queue_large(&mut self, side: Side, header: EthernetHeader, mtu: u16, packet: PacketBuf) {
        let Ok(ip) = IpPacket::parse(packet.bytes()) else {
            return self.discard(packet, DropReason::ForwardMalformed);
        };
        if ip.dont_fragment || ip.version == Version::V6 || packet.segments != Segments::One {
            return self.refuse(packet, Trouble::TooBig(mtu), DropReason::ForwardTooBig);
        }
        let mut packet = packet;
        if checksum::complete(&mut packet).is_err() {
            return self.discard(packet, DropReason::ForwardMalformed);
        }
        self.ident = self.ident.wrapping_add(1);
        let cut = Cut {
            version: ip.version,
            place: ip.header_len,
            next_header_at: ip.next_header_at,
            mtu: mtu.into(),
            ident: self.ident,
        };
        let mut pieces = Batch::new();
        let whole = &packet.bytes()[..ip.total_len];
        split(whole, &cut, packet.mark, &mut self.pool, &mut pieces);
        for piece in pieces.drain() {
            self.frames[side as usize].push(header, piece);
        }
        self.pool.give(packet);
    }

    fn hold(&mut self, packet: PacketBuf, destination: IpAddr, stage: Stage) {
        if let Err(packet) = self.waiting.push(packet, destination, stage, self.now) {
            self.discard(packet, DropReason::ForwardNoNeighbour);
        }
    }

    /// Lets go what waited for ways, or waited too long.
    fn resume(&mut self) {
        let now = self.now;
        for (packet, stage) in self.waiting.take(now, &mut self.ways) {
            match stage {
                Ok(Stage::Checked) => self.route(packet),
                Ok(Stage::Answer) => self.answer(packet),
                Ok(Stage::Leaving) => self.leave(packet),
                Err(_late) => {
                    self.refuse(packet, Trouble::NoNeighbour, DropReason::ForwardNoNeighbour);
                }
            }
        }
        self.go_on();
    }

    fn expire(&mut self, packet: PacketBuf, ip: &IpPacket) {
        self.tell(&packet, ip, Trouble::TimeExceeded);
        self.discard(packet, DropReason::ForwardHops);
    }

    /// Drops a packet and tells its sender why.
    fn refuse(&mut self, packet: PacketBuf, trouble: Trouble, reason: DropReason) {
        if let Ok(ip) = IpPacket::parse(packet.bytes()) {
            self.tell(&packet, &ip, trouble);
        }
        self.discard(packet, reason);
    }

    /// Sends an ICMP error. Senders behind the wire are answered by the policies `out`; we ourselves need no answer.
    fn tell(&mut self, packet: &PacketBuf, ip: &IpPacket, trouble: Trouble) {
        let own = &self.worker.settings().addresses;
        if own.holds(ip.source) || !self.budget.take(self.now) {
            return;
        }
        let from = self.ways.source(ip.source, ip.destination, self.now);
        let Some(from) = from.or_else(|| own.like(ip.source)) else { return };
        if let Some(answer) = trouble.about(packet.bytes(), ip, from, &mut self.pool) {
            self.answer(answer);
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
                Ok(_count) => self.inbound(),
                Err(error) => tracing::warn!(%error, "a socket of ESP in UDP failed"),
            }
        }
    }

    /// Lets go what waited for states, if there is news; see [`Lane`](crate::Lane), which does the same.
    fn attend_to_waiting(&mut self) {
        let before = self.worker.waiting();
        if before == 0 {
            return;
        }
        self.held.store(before, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.outbound();
        self.held.store(self.worker.waiting(), Ordering::Relaxed);
    }

    fn forget(&mut self) {
        let now = self.now;
        if now.since(self.forgot) < FORGET {
            return;
        }
        self.forgot = now;
        self.worker.refresh();
        self.inbound();
    }

    /// Sends what the turn has made.
    fn transmit(&mut self) {
        let Self { ports, frames: [protected, wire], to_host, pool, .. } = self;
        let mut total = Transmitted::default();
        if !protected.is_empty() {
            total += ports.protected.0.transmit(protected, pool);
        }
        if !wire.is_empty() {
            total += ports.wire.0.transmit(wire, pool);
        }
        if !to_host.is_empty() {
            total += ports.host.transmit(to_host, pool);
        }
        let refused = total.refused;
        if refused.packets() > 0 {
            let drops = self.worker.drops();
            drops.add(DropReason::PortFull, refused.busy);
            drops.add(DropReason::PortTooBig, refused.too_big);
            drops.add(DropReason::PortRefused, refused.unsupported + refused.failed);
        }
        self.ways.send();
    }

    fn discard(&mut self, packet: PacketBuf, reason: DropReason) {
        self.worker.drops().add(reason, wire_packets(&packet));
        self.pool.give(packet);
    }
}

/// Where a whole packet goes.
#[inline]
fn destination(packet: &PacketBuf) -> Option<IpAddr> {
    let bytes = packet.bytes();
    match bytes.first()? >> 4 {
        4 => Some(IpAddr::from(*bytes.get(16..20)?.first_chunk::<4>()?)),
        6 => Some(IpAddr::from(*bytes.get(24..40)?.first_chunk::<16>()?)),
        _ => None,
    }
}

/// The longest IP packet that a buffer becomes on the wire.
fn longest(packet: &PacketBuf) -> usize {
    match packet.segments {
        Segments::One => packet.len(),
        Segments::Train { stride } => stride.into(),
        Segments::Tcp { .. } | Segments::Udp { .. } => {
            SegmentPlan::new(packet).map_or(usize::MAX, |plan| plan.len(0))
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a seed is random in all its bits")]
fn fold(seed: u64) -> u32 {
    (seed ^ seed >> 32) as u32
}

#[cfg(test)]
mod tests;
