//! From the wire to the host.
//!
//! 1. Receive packets, while the link is up.
//! 2. Find the state of what is ESP; what has none goes to the host as it came.
//! 3. Check the replay window (kind *packet*).
//! 4. Open all.
//! 5. Advance the window, strip, charge (kind *packet*).
//! 6. Ask the device's own policies (kind *packet*).
//! 7. Check the transport checksum.
//! 8. Steer by what is inside; kind *crypto* by the state if no rule fits, so that the packets of a state keep their order.
//! 9. Deliver with a mark, in order.

use std::ops::Range;

use arrayvec::ArrayVec;
use uxfrm_crypto::{Authenticity, OpenJob};
use uxfrm_engine::{
    Candidate, DeviceMark, DeviceStatus, Direction, FlowKey, Handle, Moment, OffloadKind, Received,
    Reqid, Spi, decapsulate,
};
use uxfrm_packet::checksum::{self, Verification};
use uxfrm_packet::{Batch, Checksum, IpPacket, PacketBuf, Pool, Protocol};

use super::association::{Association, upper_half};
use super::edge::Approach;
use super::envelope::{Envelope, inside_of, plain_tuple};
use super::flex::LinkHeader;
use super::policies::Ruling;
use super::transmit::Spent;
use super::{FunctionId, Link, ModelNic, NicDrop, Queues, segment};
use crate::NicEvent;
use crate::steering::{Queue, Steering, target::Target, tuple::Tuple};

/// A packet on its way through the device.
#[derive(Debug)]
pub(super) struct Arrival {
    packet: PacketBuf,
    link: LinkHeader,
    sealed: Option<Sealed>,
}

/// ESP that a state of the device is to open.
#[derive(Clone, Debug)]
struct Sealed {
    handle: Handle,
    kind: OffloadKind,
    esp: Range<usize>,
    spi: Spi,
    number: Number,
    verdict: Authenticity,
}

/// The number of a packet, all 64 bits.
#[derive(Clone, Copy, Debug)]
enum Number {
    /// Kind *packet*: the window has not seen it.
    Unseen(Candidate),
    /// Kind *crypto*: what the stack told of suggests it.
    Nearest(u64),
}

/// What goes to the host, and where.
#[derive(Debug)]
pub(super) struct Delivery {
    function: FunctionId,
    queue: Queue,
    received: Received,
}

const CHUNK: usize = 64;

impl ModelNic {
    /// Takes packets from the wire and puts them into receive queues, which are [`ModelNic::queues`] of this device: those that came by a state
    /// on the device with its mark, the others as they came. `packets` is empty afterwards.
    pub fn receive(
        &mut self,
        packets: &mut Batch,
        now: Moment,
        pool: &mut Pool,
        queues: &mut Queues,
    ) {
        let mut arrivals = std::mem::take(&mut self.arrivals);
        for packet in packets.drain() {
            self.received.received += segment::count(&packet);
            self.received.received_bytes += packet.len() as u64;
            for packet in segment::apart(packet, pool) {
                match self.arrive(packet) {
                    Ok(arrival) => arrivals.push(arrival),
                    Err((packet, reason)) => self.refuse_received(packet, reason, pool),
                }
            }
        }
        self.open(&mut arrivals);
        for arrival in arrivals.drain(..) {
            match self.strip(arrival, now) {
                Ok(delivery) => self.to_host.push(delivery, now),
                Err((packet, reason)) => self.refuse_received(packet, reason, pool),
            }
        }
        self.arrivals = arrivals;
        self.complete_receiving(now, queues);
    }

    /// 9 Deliver.
    pub(super) fn complete_receiving(&mut self, now: Moment, queues: &mut Queues) {
        while let Some(Delivery { function, queue, received }) = self.to_host.pop(now) {
            self.received.sent += 1;
            self.received.sent_bytes += received.packet.len() as u64;
            if let Some(count) = self.queued.get_mut(usize::from(queue.0))
                && function == FunctionId::PHYSICAL
            {
                *count += 1;
            }
            queues.push(function, queue, received);
        }
    }

    fn refuse_received(&mut self, packet: PacketBuf, reason: NicDrop, pool: &mut Pool) {
        self.received.dropped += 1;
        self.drops.add(reason, 1);
        pool.give(packet);
    }

    /// 1 Receive, 2 State, 3 Replay check.
    fn arrive(&mut self, mut packet: PacketBuf) -> Result<Arrival, (PacketBuf, NicDrop)> {
        if self.link == Link::Down {
            return Err((packet, NicDrop::RxLinkDown));
        }
        let Some(link) = LinkHeader::take(&mut packet, self.framing) else {
            return Err((packet, NicDrop::RxNotIp));
        };
        match self.claim(&mut packet) {
            Ok(sealed) => Ok(Arrival { packet, link, sealed }),
            Err(reason) => Err((packet, reason)),
        }
    }

    /// What a state of the device is to open; nothing else is touched.
    fn claim(&mut self, packet: &mut PacketBuf) -> Result<Option<Sealed>, NicDrop> {
        let Some(envelope) = Envelope::of(packet.bytes()) else { return Ok(None) };
        let found = self.states.receiving(envelope.destination, envelope.spi);
        let Some(association) = found.filter(|found| envelope.is_of(found)) else {
            return Ok(None);
        };
        if self.link_of(association.function) == Link::Down {
            return Err(NicDrop::RxLinkDown);
        }
        let (handle, kind) = (association.handle, association.kind);
        let number = match kind {
            OffloadKind::Crypto => Number::Nearest(association.nearest(envelope.sequence)),
            OffloadKind::Packet => {
                let checked = association.sa.replay().check(envelope.sequence);
                checked.map(Number::Unseen).map_err(|reason| {
                    association.sa.count_failure(reason);
                    NicDrop::of(association.edge.explain(envelope.sequence, reason))
                })?
            }
        };
        // Behind its own length there is only padding of the link.
        packet.trim(envelope.esp.end);
        if self.wrong_decryptions > 0 {
            self.wrong_decryptions -= 1;
            if let Some(last) = packet.bytes_mut().last_mut() {
                *last ^= 1;
            }
        }
        let verdict = Authenticity::Pending;
        let (esp, spi) = (envelope.esp, envelope.spi);
        Ok(Some(Sealed { handle, kind, esp, spi, number, verdict }))
    }

    /// 4 Open.
    fn open(&mut self, arrivals: &mut [Arrival]) {
        let mut jobs: ArrayVec<OpenJob<'_>, CHUNK> = ArrayVec::new();
        let mut verdicts = Vec::with_capacity(arrivals.len());
        for Arrival { packet, sealed, .. } in arrivals.iter_mut() {
            let Some(sealed) = sealed else { continue };
            let Some(association) = self.states.of(sealed.handle) else { continue };
            if jobs.is_full() {
                self.crypter.open(&mut jobs);
                verdicts.extend(jobs.drain(..).map(|job| job.verdict));
            }
            let esp = &mut packet.bytes_mut()[sealed.esp.clone()];
            jobs.push(association.open_job(sealed.number.value(), esp));
        }
        self.crypter.open(&mut jobs);
        verdicts.extend(jobs.drain(..).map(|job| job.verdict));
        drop(jobs);
        let sealed = arrivals.iter_mut().filter_map(|arrival| arrival.sealed.as_mut());
        for (sealed, verdict) in sealed.zip(verdicts) {
            sealed.verdict = verdict;
        }
    }

    /// 5 Strip, 6 Policies, 7 Checksum, 8 Steer.
    fn strip(&mut self, arrival: Arrival, now: Moment) -> Result<Delivery, (PacketBuf, NicDrop)> {
        let Arrival { mut packet, link, sealed } = arrival;
        let outcome = match &sealed {
            None => Ok(None),
            Some(sealed) if sealed.kind == OffloadKind::Crypto => Ok(self.judge(sealed, now)),
            Some(sealed) => self.unwrap(&mut packet, sealed, now),
        };
        let mark = match outcome {
            Ok(mark) => mark,
            Err(reason) => return Err((packet, reason)),
        };
        let tuple = self.tuple(&packet, &link, sealed.as_ref());
        let ordered = sealed.as_ref().and_then(|sealed| self.group(&packet, sealed));
        if sealed.as_ref().is_none_or(|sealed| sealed.kind == OffloadKind::Packet) {
            self.check_sum(&mut packet);
        }
        let function = match sealed.and_then(|sealed| self.states.of(sealed.handle)) {
            Some(association) => association.function,
            None => self.function_at(&packet),
        };
        if self.link_of(function) == Link::Down {
            return Err((packet, NicDrop::RxLinkDown));
        }
        let target = match (&self.steering, &tuple) {
            (Some(steering), Some(tuple)) => match ordered {
                Some(group) => steering.steer_among(tuple, &group),
                None => steering.steer(tuple),
            },
            (Some(_) | None, _) => Target::Queue(Queue(0)),
        };
        match target {
            Target::Drop => Err((packet, NicDrop::RxFlowRule)),
            Target::Queue(queue) => {
                Ok(Delivery { function, queue, received: Received { packet, mark } })
            }
        }
    }

    /// Kind *crypto*: the stack hears how it went.
    fn judge(&self, sealed: &Sealed, now: Moment) -> Option<DeviceMark> {
        let association = self.states.of(sealed.handle)?;
        let status = match sealed.verdict {
            Authenticity::Authentic => {
                // Without limits on the device: this only counts.
                let _ = association.sa.charge(1, sealed.esp.len() as u64, now);
                DeviceStatus::Success
            }
            Authenticity::Forged => {
                association.sa.count_failure(uxfrm_engine::DropReason::InForged);
                DeviceStatus::AuthFailed
            }
            Authenticity::Runt => DeviceStatus::InvalidSyntax,
            Authenticity::Pending => DeviceStatus::GenericError,
        };
        let extended = association.sa.extended();
        let high = if extended { upper_half(sealed.number.value()) } else { 0 };
        let mark = self.mark(sealed.handle, OffloadKind::Crypto, status)?;
        Some(DeviceMark { high, ..mark })
    }

    /// Kind *packet*: back to the plain packet.
    fn unwrap(
        &mut self,
        packet: &mut PacketBuf,
        sealed: &Sealed,
        now: Moment,
    ) -> Result<Option<DeviceMark>, NicDrop> {
        let handle = sealed.handle;
        self.hold_to_edge(sealed)?;
        let Some(association) = self.states.of(handle) else { return Ok(None) };
        let sa = &association.sa;
        let reqid = sa.reqid();
        let before = sa.highest_received();
        let accepted = accept(association, sealed);
        let stripped = accepted.and_then(|()| {
            decapsulate(packet.bytes_mut(), sealed.esp.clone(), sa).map_err(NicDrop::of)
        })?;
        if upper_half(before) != upper_half(sa.highest_received()) {
            self.tell_of(handle, |state| NicEvent::SequenceWrap { handle, state });
        }
        self.charge(handle, stripped.charged, now).map_err(|Spent| NicDrop::RxHardLimit)?;
        packet.trim(stripped.plain.end);
        packet.pull(stripped.plain.start);
        let ip = IpPacket::parse(packet.bytes()).map_err(|_| NicDrop::RxInner)?;
        packet.trim(ip.total_len);
        if stripped.renewed {
            packet.checksum = Checksum::Verified;
        }
        self.admit_by_policy(packet, &ip, reqid)?;
        Ok(self.mark(handle, OffloadKind::Packet, DeviceStatus::Success))
    }

    /// 5 Advance the window, no further than numbers are reserved.
    fn hold_to_edge(&mut self, sealed: &Sealed) -> Result<(), NicDrop> {
        let (Authenticity::Authentic, Number::Unseen(candidate)) = (sealed.verdict, sealed.number)
        else {
            return Ok(());
        };
        let Some(association) = self.states.of_mut(sealed.handle) else { return Ok(()) };
        let approach = association.edge.approach(candidate.number());
        self.runs_short |= approach != Approach::Far;
        if approach == Approach::Beyond { Err(NicDrop::RxReplayReserve) } else { Ok(()) }
    }

    /// 6 Policies: one that allows must want the state that the packet came by.
    fn admit_by_policy(
        &mut self,
        packet: &PacketBuf,
        ip: &IpPacket,
        reqid: Reqid,
    ) -> Result<(), NicDrop> {
        let flow = FlowKey::of(packet, ip, packet.bytes());
        match self.policies.ruling(Direction::In, &flow) {
            Ruling::Block => Err(NicDrop::RxPolicyBlock),
            Ruling::Allow(wanted) if wanted != Reqid(0) && wanted != reqid => {
                Err(NicDrop::RxPolicyMismatch)
            }
            Ruling::Allow(_) | Ruling::None => Ok(()),
        }
    }

    fn mark(&self, handle: Handle, kind: OffloadKind, status: DeviceStatus) -> Option<DeviceMark> {
        let device = self.device_of(self.states.of(handle)?.function)?;
        let handle = Some(handle).filter(|_| self.profile().marks_received);
        Some(DeviceMark { device, handle, kind, status, high: 0 })
    }

    /// 7 Checksum: what is right need not be looked at again; what is wrong is the host's to find.
    fn check_sum(&self, packet: &mut PacketBuf) {
        if !self.profile().checksums || packet.checksum == Checksum::Verified {
            return;
        }
        let Ok(ip) = IpPacket::parse(packet.bytes()) else { return };
        if checksum::verify(&ip, packet.bytes()) == Verification::Right {
            packet.checksum = Checksum::Verified;
        }
    }

    /// The virtual function to which a packet without a state is addressed, else the device itself.
    fn function_at(&self, packet: &PacketBuf) -> FunctionId {
        let to_virtual = || {
            let ip = IpPacket::parse(packet.bytes()).ok()?;
            let place = self.functions.iter().position(|one| one.holds(ip.destination))?;
            u16::try_from(place).ok().map(FunctionId::of_virtual)
        };
        if self.functions.is_empty() {
            return FunctionId::PHYSICAL;
        }
        to_virtual().unwrap_or(FunctionId::PHYSICAL)
    }

    /// Kind *crypto*: the engine has the window, so all packets of a state go one way, in the order in which they came. They are told by their SPI.
    fn group(&self, packet: &PacketBuf, sealed: &Sealed) -> Option<Tuple> {
        let has_window = |found: &&Association| found.sa.config().window > 0;
        self.states.of(sealed.handle).filter(has_window)?;
        if sealed.kind == OffloadKind::Packet {
            return None;
        }
        let [a, b, c, d] = sealed.spi.0.to_be_bytes();
        let (source_port, destination_port) =
            (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        // The hash takes in ports of protocols that have some.
        let protocol = Protocol::UDP.0;
        Some(Tuple { protocol, source_port, destination_port, ..plain_tuple(packet.bytes())? })
    }

    /// What rules and hash see: the packet inside, also where ESP is still around it.
    fn tuple(
        &self,
        packet: &PacketBuf,
        link: &LinkHeader,
        sealed: Option<&Sealed>,
    ) -> Option<Tuple> {
        let bytes = packet.bytes();
        let inside = match sealed {
            Some(sealed)
                if sealed.kind == OffloadKind::Crypto
                    && sealed.verdict == Authenticity::Authentic =>
            {
                inside_of(bytes, &sealed.esp, self.states.of(sealed.handle)?)
            }
            Some(_) | None => plain_tuple(bytes),
        };
        let flex_offset = self.steering.as_ref().and_then(Steering::flex_offset);
        Some(Tuple {
            spi: match sealed {
                Some(sealed) => Some(sealed.spi.0),
                None => Envelope::of(bytes).map(|envelope| envelope.spi.0),
            },
            vlan: link.vlan,
            flex: flex_offset.and_then(|offset| link.flex(bytes, offset)),
            ..inside?
        })
    }
}

impl Number {
    const fn value(self) -> u64 {
        match self {
            Self::Unseen(candidate) => candidate.number(),
            Self::Nearest(number) => number,
        }
    }
}

/// 5 Advance the window, if the packet is authentic.
fn accept(association: &Association, sealed: &Sealed) -> Result<(), NicDrop> {
    let sa = &association.sa;
    let outcome = match (sealed.verdict, sealed.number) {
        (Authenticity::Authentic, Number::Unseen(candidate)) => sa.replay().accept(candidate),
        (Authenticity::Authentic, Number::Nearest(_)) => Ok(()),
        (Authenticity::Forged, _) => {
            sa.count_failure(uxfrm_engine::DropReason::InForged);
            return Err(NicDrop::RxAuthFailed);
        }
        (Authenticity::Runt | Authenticity::Pending, _) => return Err(NicDrop::RxRunt),
    };
    outcome.map_err(|reason| {
        sa.count_failure(reason);
        NicDrop::of(reason)
    })
}
