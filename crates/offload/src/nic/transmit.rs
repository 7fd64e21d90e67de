//! Transmit path, from the host to the wire.
//!
//! 1. Take packets handed over, while the link is up.
//! 2. Find the SA; another device's, a deleted or a larval one drops the packet.
//! 3. Segment super-packets, complete checksums (kind *packet*; kind *crypto* where the engine left
//!    that to the device).
//! 4. Check the device's policies (kind *packet*).
//! 5. Count and assign a sequence number (kind *packet*).
//! 6. Encapsulate (kind *packet*, and segments), or locate ESP in the engine's packet (kind
//!    *crypto*).
//! 7. Encrypt all.
//! 8. Transmit, in order.

use std::ops::Range;

use arrayvec::ArrayVec;
use uxfrm_crypto::{SealJob, SealStatus};
use uxfrm_engine::{
    ChargeOutcome, Direction, DropReason, EncapPlan, FlowKey, Handle, Moment, OffloadKind,
    OffloadOrder, OffloadTask, OffloadedPacket,
};
use uxfrm_packet::checksum::{self, Sum};
use uxfrm_packet::esp::Esp;
use uxfrm_packet::{
    Batch, Checksum, IpPacket, PacketBuf, Pool, Protocol, SegmentPlan, Segments, Version, udp,
};

use super::association::Association;
use super::policies::PolicyVerdict;
use super::{FunctionId, LinkState, ModelNic, NicDrop, segment};
use crate::NicEvent;

/// A buffer to be encrypted: one packet, or a burst of equal frames.
#[derive(Debug)]
pub(super) struct TxPacket {
    packet: PacketBuf,
    handle: Handle,
    /// Sequence number of the first frame.
    sequence: u64,
    /// Offset of ESP in each frame.
    esp: usize,
    measured: Option<EncapPlan>,
    sealed: bool,
}

/// Enough for the library's bursts, small enough for the stack.
const CHUNK: usize = 64;

impl ModelNic {
    /// Sends packets that the engine handed over: encrypts them (kind *crypto*), or processes them
    /// entirely (kind *packet*). `handed` is empty afterwards.
    pub fn transmit(
        &mut self,
        handed: &mut Vec<OffloadedPacket>,
        now: Moment,
        pool: &mut Pool,
        wire: &mut Batch,
    ) {
        for OffloadedPacket { packet, handover } in handed.drain(..) {
            self.sent.received += match handover.task {
                OffloadTask::Segment { count, .. } => count.into(),
                OffloadTask::Encrypt { .. } | OffloadTask::Protect => segment::count(&packet),
            };
            self.sent.received_bytes += packet.len() as u64;
            self.take(packet, handover, now, pool);
        }
        self.seal();
        self.depart(now, pool);
        self.complete_sending(now, wire);
    }

    /// Sends other packets: plain ones, or those encrypted by the engine. `packets` is empty
    /// afterwards.
    pub fn forward(&mut self, packets: &mut Batch, now: Moment, pool: &mut Pool, wire: &mut Batch) {
        for packet in packets.drain() {
            self.sent.received += segment::count(&packet);
            self.sent.received_bytes += packet.len() as u64;
            match self.link {
                LinkState::Up => self.send(FunctionId::PHYSICAL, packet, now),
                LinkState::Down => self.refuse_sending(packet, NicDrop::TxLinkDown, pool),
            }
        }
        self.complete_sending(now, wire);
    }

    /// 8 Transmit.
    pub(super) fn complete_sending(&mut self, now: Moment, wire: &mut Batch) {
        while let Some((_, packet)) = self.to_wire.pop(now) {
            self.sent.sent += segment::count(&packet);
            self.sent.sent_bytes += packet.len() as u64;
            wire.push(packet);
        }
    }

    pub(super) fn refuse_sending(&mut self, packet: PacketBuf, reason: NicDrop, pool: &mut Pool) {
        let packets = segment::count(&packet);
        self.refuse_so_many(packet, packets, reason, pool);
    }

    fn refuse_so_many(
        &mut self,
        packet: PacketBuf,
        packets: u64,
        reason: NicDrop,
        pool: &mut Pool,
    ) {
        self.sent.dropped += packets;
        self.drops.add(reason, packets);
        pool.give(packet);
    }

    /// Steps 1 and 2.
    fn take(&mut self, packet: PacketBuf, handover: OffloadOrder, now: Moment, pool: &mut Pool) {
        let outcome = match self.find(&handover) {
            Err(reason) => Err((packet, reason)),
            Ok(handle) => match handover.task {
                OffloadTask::Encrypt { sequence } => self.admit(packet, handle, sequence),
                OffloadTask::Segment { sequence, count } => {
                    self.segment(packet, handle, sequence..sequence + u64::from(count), pool)
                }
                OffloadTask::Protect => self.protect(packet, handle, now, pool),
            },
        };
        if let Err((packet, reason)) = outcome {
            let packets = match handover.task {
                OffloadTask::Segment { count, .. } => count.into(),
                OffloadTask::Encrypt { .. } | OffloadTask::Protect => segment::count(&packet),
            };
            self.refuse_so_many(packet, packets, reason, pool);
        }
    }

    /// The SA of a packet.
    fn find(&self, handover: &OffloadOrder) -> Result<Handle, NicDrop> {
        let function = self.function_of(handover.device).ok_or(NicDrop::TxWrongDevice)?;
        if self.link_of(function) == LinkState::Down {
            return Err(NicDrop::TxLinkDown);
        }
        let association = self.states.of(handover.handle).ok_or(NicDrop::TxNoState)?;
        if association.function != function {
            return Err(NicDrop::TxWrongDevice);
        }
        if !association.serves(Direction::Out, handover.task.kind()) {
            return Err(NicDrop::TxNoState);
        }
        Ok(association.handle)
    }

    /// 6 locates ESP, of kind *crypto*.
    fn admit(
        &mut self,
        packet: PacketBuf,
        handle: Handle,
        sequence: u64,
    ) -> Result<(), (PacketBuf, NicDrop)> {
        if matches!(packet.segments, Segments::Tcp { .. } | Segments::Udp { .. }) {
            return Err((packet, NicDrop::TxUnsupported));
        }
        let bytes = packet.bytes();
        let first = &bytes[..segment::stride(&packet).min(bytes.len())];
        let esp = self.states.of(handle).and_then(|association| esp_of(first, association));
        let Some(esp) = esp else { return Err((packet, NicDrop::TxMalformed)) };
        let departure = TxPacket { packet, handle, sequence, esp, measured: None, sealed: false };
        self.departures.push(departure);
        Ok(())
    }

    /// 3 segments, of kind *crypto*: as many segments as there are numbers.
    fn segment(
        &mut self,
        packet: PacketBuf,
        handle: Handle,
        numbers: Range<u64>,
        pool: &mut Pool,
    ) -> Result<(), (PacketBuf, NicDrop)> {
        if !self.profile().segmentation {
            return Err((packet, NicDrop::TxUnsupported));
        }
        let plan = match SegmentPlan::new(&packet) {
            Ok(plan) if plan.count() as u64 >= numbers.end - numbers.start => plan,
            Ok(_) | Err(_) => return Err((packet, NicDrop::TxMalformed)),
        };
        for (k, number) in (0..plan.count()).zip(numbers) {
            let Some(segment) = segment::cut(&plan, k, &packet, pool) else {
                self.sent.dropped += 1;
                self.drops.add(NicDrop::TxNoRoom, 1);
                continue;
            };
            let outcome = match self.measured(&segment, handle) {
                Ok(measured) => {
                    self.wrap_as(segment, handle, measured, TxNumber::Given(number), pool)
                }
                Err(reason) => Err((segment, reason)),
            };
            if let Err((segment, reason)) = outcome {
                self.refuse_sending(segment, reason, pool);
            }
        }
        pool.give(packet);
        Ok(())
    }

    /// 3 segments, of kind *packet*.
    fn protect(
        &mut self,
        mut packet: PacketBuf,
        handle: Handle,
        now: Moment,
        pool: &mut Pool,
    ) -> Result<(), (PacketBuf, NicDrop)> {
        match packet.segments {
            Segments::One => {
                if matches!(packet.checksum, Checksum::Partial { .. }) {
                    if !self.profile().checksums {
                        return Err((packet, NicDrop::TxUnsupported));
                    }
                    if checksum::complete(&mut packet).is_err() {
                        return Err((packet, NicDrop::TxMalformed));
                    }
                }
                self.wrap(packet, handle, now, pool)
            }
            Segments::Burst { .. } => Err((packet, NicDrop::TxUnsupported)),
            Segments::Tcp { .. } | Segments::Udp { .. } if !self.profile().segmentation => {
                Err((packet, NicDrop::TxUnsupported))
            }
            Segments::Tcp { .. } | Segments::Udp { .. } => {
                let Ok(plan) = SegmentPlan::new(&packet) else {
                    return Err((packet, NicDrop::TxMalformed));
                };
                for k in 0..plan.count() {
                    self.protect_segment(&plan, k, &packet, handle, now, pool);
                }
                pool.give(packet);
                Ok(())
            }
        }
    }

    fn protect_segment(
        &mut self,
        plan: &SegmentPlan,
        k: usize,
        source: &PacketBuf,
        handle: Handle,
        now: Moment,
        pool: &mut Pool,
    ) {
        let Some(segment) = segment::cut(plan, k, source, pool) else {
            self.sent.dropped += 1;
            return self.drops.add(NicDrop::TxNoRoom, 1);
        };
        if let Err((segment, reason)) = self.wrap(segment, handle, now, pool) {
            self.refuse_sending(segment, reason, pool);
        }
    }

    /// Steps 4 to 6.
    fn wrap(
        &mut self,
        packet: PacketBuf,
        handle: Handle,
        now: Moment,
        pool: &mut Pool,
    ) -> Result<(), (PacketBuf, NicDrop)> {
        let measured = match self.measure(&packet, handle) {
            Ok(measured) => measured,
            Err(reason) => return Err((packet, reason)),
        };
        self.wrap_as(packet, handle, measured, TxNumber::Own(now), pool)
    }

    /// Steps 5 and 6.
    fn wrap_as(
        &mut self,
        packet: PacketBuf,
        handle: Handle,
        measured: EncapPlan,
        number: TxNumber,
        pool: &mut Pool,
    ) -> Result<(), (PacketBuf, NicDrop)> {
        let behind = measured.total() - measured.before() - packet.len();
        let mut packet = segment::with_room(packet, measured.before(), behind, pool)
            .map_err(|packet| (packet, NicDrop::TxNoRoom))?;
        let number = match number {
            TxNumber::Given(number) => Ok(number),
            TxNumber::Own(now) => self.number(handle, &measured, now),
        };
        let sequence = match number {
            Ok(sequence) => sequence,
            Err(reason) => return Err((packet, reason)),
        };
        self.ident = self.ident.wrapping_add(1);
        let encapsulation = self.states.of(handle).and_then(|found| found.encapsulation.as_ref());
        let Some(encapsulation) = encapsulation else {
            return Err((packet, NicDrop::TxNoState));
        };
        let Range { start, .. } =
            encapsulation.wrap(&measured, packet.bytes_mut(), sequence, self.ident);
        (packet.segments, packet.checksum) = (Segments::One, Checksum::AsIs);
        let measured = Some(measured);
        self.departures.push(TxPacket {
            packet,
            handle,
            sequence,
            esp: start,
            measured,
            sealed: false,
        });
        Ok(())
    }

    /// Lengths of the encapsulated packet, if it may leave.
    fn measure(&mut self, packet: &PacketBuf, handle: Handle) -> Result<EncapPlan, NicDrop> {
        let ip = IpPacket::parse(packet.bytes()).map_err(|_| NicDrop::TxMalformed)?;
        if ip.is_fragment() || ip.has_options {
            return Err(NicDrop::TxUnsupported);
        }
        let flow = FlowKey::of(packet, &ip, packet.bytes());
        if self.policies.verdict(Direction::Out, &flow) == PolicyVerdict::Block {
            return Err(NicDrop::TxPolicyBlock);
        }
        self.measured(packet, handle)
    }

    fn measured(&self, packet: &PacketBuf, handle: Handle) -> Result<EncapPlan, NicDrop> {
        let encapsulation = self.states.of(handle).and_then(|found| found.encapsulation.as_ref());
        let encapsulation = encapsulation.ok_or(NicDrop::TxNoState)?;
        encapsulation.measure(packet.bytes()).map_err(NicDrop::of)
    }

    /// 5 counts and numbers.
    fn number(
        &mut self,
        handle: Handle,
        measured: &EncapPlan,
        now: Moment,
    ) -> Result<u64, NicDrop> {
        self.charge(handle, measured.charged(), now)
            .map_err(|HardLimitPassed| NicDrop::TxHardLimit)?;
        let association = self.states.of_mut(handle).ok_or(NicDrop::TxNoState)?;
        let outcome = association.next_number();
        // Numbers not reserved yet are not exhausted.
        let ended = matches!(outcome, Err(DropReason::OutSequenceOverflow)) && !association.ended;
        association.ended |= ended;
        if ended {
            self.tell_of(handle, |state| NicEvent::SequenceEnd { handle, state });
        }
        let (number, wrapped) = outcome.map_err(NicDrop::of)?;
        if wrapped {
            self.tell_of(handle, |state| NicEvent::SequenceWrap { handle, state });
        }
        Ok(number)
    }

    /// Counts one packet of an SA against its limits, and reports each limit once.
    pub(super) fn charge(
        &mut self,
        handle: Handle,
        bytes: usize,
        now: Moment,
    ) -> Result<(), HardLimitPassed> {
        let Some(association) = self.states.of(handle) else { return Err(HardLimitPassed) };
        match association.sa.charge(1, bytes as u64, now) {
            ChargeOutcome::Ok => Ok(()),
            ChargeOutcome::SoftLimit => {
                self.tell_of(handle, |state| NicEvent::SoftLimit { handle, state });
                Ok(())
            }
            ChargeOutcome::HardLimit => {
                self.tell_of(handle, |state| NicEvent::HardLimit { handle, state });
                Err(HardLimitPassed)
            }
            // A single packet cannot cross a limit.
            ChargeOutcome::Expired | ChargeOutcome::NeedsPerPacket => Err(HardLimitPassed),
        }
    }

    /// 7 Seal.
    fn seal(&mut self) {
        let mut jobs: ArrayVec<SealJob<'_>, CHUNK> = ArrayVec::new();
        let mut sealed = Vec::with_capacity(self.departures.len());
        let mut statuses = |jobs: &mut ArrayVec<SealJob<'_>, CHUNK>| {
            sealed.extend(jobs.drain(..).map(|job| job.status == SealStatus::Sealed));
        };
        for departure in &mut self.departures {
            let Some(association) = self.states.of(departure.handle) else { continue };
            let stride = segment::stride(&departure.packet);
            for (frame, number) in
                departure.packet.bytes_mut().chunks_mut(stride).zip(departure.sequence..)
            {
                if jobs.is_full() {
                    self.crypter.seal(&mut jobs);
                    statuses(&mut jobs);
                }
                let at = departure.esp.min(frame.len());
                jobs.push(association.seal_job(number, &mut frame[at..]));
            }
        }
        self.crypter.seal(&mut jobs);
        statuses(&mut jobs);
        drop(jobs);
        let mut sealed = sealed.into_iter();
        for departure in &mut self.departures {
            let frames = departure.packet.len().div_ceil(segment::stride(&departure.packet));
            let failed = sealed.by_ref().take(frames).filter(|sealed| !sealed).count();
            departure.sealed = failed == 0;
        }
    }

    /// Completes checksums over encrypted bytes, and queues the packets.
    fn depart(&mut self, now: Moment, pool: &mut Pool) {
        let mut departures = std::mem::take(&mut self.departures);
        for mut departure in departures.drain(..) {
            let Some(association) = self.states.of(departure.handle).filter(|_| departure.sealed)
            else {
                self.refuse_sending(departure.packet, NicDrop::TxCrypto, pool);
                continue;
            };
            departure.finish(association, now);
            let function = association.function;
            self.encrypted += segment::count(&departure.packet);
            self.send(function, departure.packet, now);
        }
        self.departures = departures;
    }

    fn send(&mut self, function: FunctionId, packet: PacketBuf, now: Moment) {
        self.to_wire.push((function, packet), now);
    }
}

/// Who numbers and counts a packet.
#[derive(Clone, Copy, Debug)]
enum TxNumber {
    /// The engine.
    Given(u64),
    /// The device, at this time.
    Own(Moment),
}

/// The SA has passed its hard limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct HardLimitPassed;

impl TxPacket {
    fn finish(&mut self, association: &Association, now: Moment) {
        if association.kind == OffloadKind::Crypto {
            // Without limits on the device this only counts.
            let frames = u32::try_from(segment::count(&self.packet)).unwrap_or(u32::MAX);
            let _ = association.sa.charge(frames, self.packet.len() as u64, now);
        }
        let stride = segment::stride(&self.packet);
        match (&self.measured, &association.encapsulation) {
            (Some(measured), Some(encapsulation)) => {
                encapsulation.finish(measured, self.packet.bytes_mut());
            }
            (Some(_), None) | (None, _) => {
                self.packet.bytes_mut().chunks_mut(stride).for_each(fill_udp_checksum);
            }
        }
    }
}

/// Offset of ESP in a packet that the engine encapsulated for an SA.
fn esp_of(packet: &[u8], association: &Association) -> Option<usize> {
    debug_assert!(association.kind == OffloadKind::Crypto, "the other kind is wrapped here");
    let ip = IpPacket::parse(packet).ok()?;
    let encap = association.sa.config().encap.map(|encap| encap.kind);
    let at = match (ip.protocol, encap) {
        (Protocol::ESP, None) => ip.header_len,
        (Protocol::UDP, Some(kind)) => {
            ip.header_len + udp::HEADER_LEN + kind.properties().marker.len()
        }
        (Protocol(_), _) => return None,
    };
    let esp = Esp::parse(packet.get(at..)?).ok()?;
    (esp.header.spi.get() == association.id().spi.0).then_some(at)
}

/// UDP checksum over IPv6, which covers the bytes just encrypted.
fn fill_udp_checksum(packet: &mut [u8]) {
    let Ok(ip) = IpPacket::parse(packet) else { return };
    if ip.version == Version::V4 || ip.protocol != Protocol::UDP {
        return;
    }
    let datagram = &mut packet[ip.header_len..ip.total_len];
    let Some(field) = datagram.get_mut(6..8) else { return };
    field.fill(0);
    let len = u32::try_from(datagram.len()).unwrap_or(u32::MAX);
    let pseudo = Sum::of_pseudo(ip.source, ip.destination, Protocol::UDP, len);
    let checksum = pseudo.plus_bytes(datagram).nonzero_checksum();
    datagram[6..8].copy_from_slice(&checksum.to_be_bytes());
}
