//! Receive path, from the wire to the host.
//!
//! 1. Receive packets, while the link is up.
//! 2. Find the SA of ESP; packets without one go to the host unchanged.
//! 3. Check the replay window (kind *packet*).
//! 4. Decrypt all.
//! 5. Advance the window, decapsulate, count (kind *packet*).
//! 6. Check the device's policies (kind *packet*).
//! 7. Verify the transport checksum.
//! 8. Steer by the inner packet; kind *crypto* by the SA if no rule matches, so that an SA's
//!    packets keep their order.
//! 9. Deliver with metadata, in order.

use std::ops::Range;

use arrayvec::ArrayVec;
use uxfrm_crypto::{OpenJob, OpenStatus};
use uxfrm_engine::{
    DeviceMetadata, DeviceStatus, Direction, FlowKey, Handle, Moment, OffloadKind, ReceivedPacket,
    Reqid, Spi, UncheckedSeq, decapsulate,
};
use uxfrm_packet::checksum::{self, Verification};
use uxfrm_packet::{Batch, Checksum, IpPacket, PacketBuf, Pool, Protocol};

use super::association::{Association, upper_half};
use super::esp_location::{EspLocation, inside_of, plain_tuple};
use super::flex::LinkHeader;
use super::policies::PolicyVerdict;
use super::receive_limit::LimitProximity;
use super::transmit::HardLimitPassed;
use super::{FunctionId, LinkState, ModelNic, NicDrop, NicQueues, segment};
use crate::NicEvent;
use crate::steering::{RxQueueId, Steering, target::Target, tuple::Tuple};

/// A packet on its way through the device.
#[derive(Debug)]
pub(super) struct RxPacket {
    packet: PacketBuf,
    link: LinkHeader,
    sealed: Option<RxEsp>,
}

/// ESP to be decrypted by an SA of the device.
#[derive(Clone, Debug)]
struct RxEsp {
    handle: Handle,
    kind: OffloadKind,
    esp: Range<usize>,
    spi: Spi,
    number: RxNumber,
    status: OpenStatus,
}

/// Sequence number of a packet, 64 bits.
#[derive(Clone, Copy, Debug)]
enum RxNumber {
    /// Kind *packet*: not seen by the window.
    Unseen(UncheckedSeq),
    /// Kind *crypto*: inferred from the stack's last report.
    Nearest(u64),
}

/// A packet for the host, and its queue.
#[derive(Debug)]
pub(super) struct Delivery {
    function: FunctionId,
    queue: RxQueueId,
    received: ReceivedPacket,
}

const CHUNK: usize = 64;

impl ModelNic {
    /// Receives packets from the wire into receive queues, which are [`ModelNic::queues`] of this
    /// device: decrypted ones with metadata, others unchanged. `packets` is empty afterwards.
    pub fn receive(
        &mut self,
        packets: &mut Batch,
        now: Moment,
        pool: &mut Pool,
        queues: &mut NicQueues,
    ) {
        let mut arrivals = std::mem::take(&mut self.arrivals);
        for packet in packets.drain() {
            self.received.received += segment::count(&packet);
            self.received.received_bytes += packet.len() as u64;
            for packet in segment::split_burst(packet, pool) {
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
    pub(super) fn complete_receiving(&mut self, now: Moment, queues: &mut NicQueues) {
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

    /// Steps 1 to 3.
    fn arrive(&mut self, mut packet: PacketBuf) -> Result<RxPacket, (PacketBuf, NicDrop)> {
        if self.link == LinkState::Down {
            return Err((packet, NicDrop::RxLinkDown));
        }
        let Some(link) = LinkHeader::take(&mut packet, self.framing) else {
            return Err((packet, NicDrop::RxNotIp));
        };
        match self.match_esp(&mut packet) {
            Ok(sealed) => Ok(RxPacket { packet, link, sealed }),
            Err(reason) => Err((packet, reason)),
        }
    }

    /// Matches a packet with an SA of the device; leaves others untouched.
    fn match_esp(&mut self, packet: &mut PacketBuf) -> Result<Option<RxEsp>, NicDrop> {
        let Some(location) = EspLocation::of(packet.bytes()) else { return Ok(None) };
        let found = self.states.receiving(location.destination, location.spi);
        let Some(association) = found.filter(|found| location.is_of(found)) else {
            return Ok(None);
        };
        if self.link_of(association.function) == LinkState::Down {
            return Err(NicDrop::RxLinkDown);
        }
        let (handle, kind) = (association.handle, association.kind);
        let number = match kind {
            OffloadKind::Crypto => RxNumber::Nearest(association.nearest(location.sequence)),
            OffloadKind::Packet => {
                let checked = association.sa.replay().check(location.sequence);
                checked.map(RxNumber::Unseen).map_err(|reason| {
                    association.sa.count_failure(reason);
                    NicDrop::of(association.receive_limit.explain(location.sequence, reason))
                })?
            }
        };
        // Link padding follows the packet.
        packet.trim(location.esp.end);
        if self.wrong_decryptions > 0 {
            self.wrong_decryptions -= 1;
            if let Some(last) = packet.bytes_mut().last_mut() {
                *last ^= 1;
            }
        }
        let status = OpenStatus::Pending;
        let (esp, spi) = (location.esp, location.spi);
        Ok(Some(RxEsp { handle, kind, esp, spi, number, status }))
    }

    /// 4 Open.
    fn open(&mut self, arrivals: &mut [RxPacket]) {
        let mut jobs: ArrayVec<OpenJob<'_>, CHUNK> = ArrayVec::new();
        let mut statuses = Vec::with_capacity(arrivals.len());
        for RxPacket { packet, sealed, .. } in arrivals.iter_mut() {
            let Some(sealed) = sealed else { continue };
            let Some(association) = self.states.of(sealed.handle) else { continue };
            if jobs.is_full() {
                self.crypter.open(&mut jobs);
                statuses.extend(jobs.drain(..).map(|job| job.status));
            }
            let esp = &mut packet.bytes_mut()[sealed.esp.clone()];
            jobs.push(association.open_job(sealed.number.value(), esp));
        }
        self.crypter.open(&mut jobs);
        statuses.extend(jobs.drain(..).map(|job| job.status));
        drop(jobs);
        let sealed = arrivals.iter_mut().filter_map(|arrival| arrival.sealed.as_mut());
        for (sealed, status) in sealed.zip(statuses) {
            sealed.status = status;
        }
    }

    /// Steps 5 to 8.
    fn strip(&mut self, arrival: RxPacket, now: Moment) -> Result<Delivery, (PacketBuf, NicDrop)> {
        let RxPacket { mut packet, link, sealed } = arrival;
        let outcome = match &sealed {
            None => Ok(None),
            Some(sealed) if sealed.kind == OffloadKind::Crypto => {
                Ok(self.crypto_metadata(sealed, now))
            }
            Some(sealed) => self.unwrap(&mut packet, sealed, now),
        };
        let metadata = match outcome {
            Ok(metadata) => metadata,
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
        if self.link_of(function) == LinkState::Down {
            return Err((packet, NicDrop::RxLinkDown));
        }
        let target = match (&self.steering, &tuple) {
            (Some(steering), Some(tuple)) => match ordered {
                Some(group) => steering.steer_among(tuple, &group),
                None => steering.steer(tuple),
            },
            (Some(_) | None, _) => Target::Queue(RxQueueId(0)),
        };
        match target {
            Target::Drop => Err((packet, NicDrop::RxFlowRule)),
            Target::Queue(queue) => {
                Ok(Delivery { function, queue, received: ReceivedPacket { packet, metadata } })
            }
        }
    }

    /// Kind *crypto*: the result for the stack.
    fn crypto_metadata(&self, sealed: &RxEsp, now: Moment) -> Option<DeviceMetadata> {
        let association = self.states.of(sealed.handle)?;
        let status = match sealed.status {
            OpenStatus::Authentic => {
                // Without limits on the device this only counts.
                let _ = association.sa.charge(1, sealed.esp.len() as u64, now);
                DeviceStatus::Success
            }
            OpenStatus::Forged => {
                association.sa.count_failure(uxfrm_engine::DropReason::InForged);
                DeviceStatus::AuthFailed
            }
            OpenStatus::TooShort => DeviceStatus::InvalidSyntax,
            OpenStatus::Pending => DeviceStatus::GenericError,
        };
        let extended = association.sa.extended();
        let high = if extended { upper_half(sealed.number.value()) } else { 0 };
        let metadata = self.metadata(sealed.handle, OffloadKind::Crypto, status)?;
        Some(DeviceMetadata { high, ..metadata })
    }

    /// Kind *packet*: decapsulates to the plain packet.
    fn unwrap(
        &mut self,
        packet: &mut PacketBuf,
        sealed: &RxEsp,
        now: Moment,
    ) -> Result<Option<DeviceMetadata>, NicDrop> {
        let handle = sealed.handle;
        self.enforce_receive_limit(sealed)?;
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
        self.charge(handle, stripped.charged, now)
            .map_err(|HardLimitPassed| NicDrop::RxHardLimit)?;
        packet.trim(stripped.plain.end);
        packet.pull(stripped.plain.start);
        let ip = IpPacket::parse(packet.bytes()).map_err(|_| NicDrop::RxInner)?;
        packet.trim(ip.total_len);
        if stripped.renewed {
            packet.checksum = Checksum::Verified;
        }
        self.admit_by_policy(packet, &ip, reqid)?;
        Ok(self.metadata(handle, OffloadKind::Packet, DeviceStatus::Success))
    }

    /// 5 advances the window within the reservation.
    fn enforce_receive_limit(&mut self, sealed: &RxEsp) -> Result<(), NicDrop> {
        let (OpenStatus::Authentic, RxNumber::Unseen(candidate)) = (sealed.status, sealed.number)
        else {
            return Ok(());
        };
        let Some(association) = self.states.of_mut(sealed.handle) else { return Ok(()) };
        let approach = association.receive_limit.check_proximity(candidate.number());
        self.runs_short |= approach != LimitProximity::Far;
        if approach == LimitProximity::Beyond { Err(NicDrop::RxReplayReserve) } else { Ok(()) }
    }

    /// 6 checks that an allowing policy wants the packet's SA.
    fn admit_by_policy(
        &mut self,
        packet: &PacketBuf,
        ip: &IpPacket,
        reqid: Reqid,
    ) -> Result<(), NicDrop> {
        let flow = FlowKey::of(packet, ip, packet.bytes());
        match self.policies.verdict(Direction::In, &flow) {
            PolicyVerdict::Block => Err(NicDrop::RxPolicyBlock),
            PolicyVerdict::Allow(wanted) if wanted != Reqid(0) && wanted != reqid => {
                Err(NicDrop::RxPolicyMismatch)
            }
            PolicyVerdict::Allow(_) | PolicyVerdict::None => Ok(()),
        }
    }

    fn metadata(
        &self,
        handle: Handle,
        kind: OffloadKind,
        status: DeviceStatus,
    ) -> Option<DeviceMetadata> {
        let device = self.device_of(self.states.of(handle)?.function)?;
        let handle = Some(handle).filter(|_| self.profile().marks_received);
        Some(DeviceMetadata { device, handle, kind, status, high: 0 })
    }

    /// 7 marks correct checksums as verified; wrong ones are left to the host.
    fn check_sum(&self, packet: &mut PacketBuf) {
        if !self.profile().checksums || packet.checksum == Checksum::Verified {
            return;
        }
        let Ok(ip) = IpPacket::parse(packet.bytes()) else { return };
        if checksum::verify(&ip, packet.bytes()) == Verification::Right {
            packet.checksum = Checksum::Verified;
        }
    }

    /// The virtual function that a packet without SA is addressed to, else the device itself.
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

    /// Kind *crypto*: the engine has the window, so all packets of an SA use one queue, in order of
    /// arrival, by their SPI.
    fn group(&self, packet: &PacketBuf, sealed: &RxEsp) -> Option<Tuple> {
        let has_window = |found: &&Association| found.sa.config().window > 0;
        self.states.of(sealed.handle).filter(has_window)?;
        if sealed.kind == OffloadKind::Packet {
            return None;
        }
        let [a, b, c, d] = sealed.spi.0.to_be_bytes();
        let (source_port, destination_port) =
            (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        // The hash includes ports of protocols that have them.
        let protocol = Protocol::UDP.0;
        Some(Tuple { protocol, source_port, destination_port, ..plain_tuple(packet.bytes())? })
    }

    /// Tuple for rules and hash: of the inner packet, even with ESP around it.
    fn tuple(
        &self,
        packet: &PacketBuf,
        link: &LinkHeader,
        sealed: Option<&RxEsp>,
    ) -> Option<Tuple> {
        let bytes = packet.bytes();
        let inside = match sealed {
            Some(sealed)
                if sealed.kind == OffloadKind::Crypto && sealed.status == OpenStatus::Authentic =>
            {
                inside_of(bytes, &sealed.esp, self.states.of(sealed.handle)?)
            }
            Some(_) | None => plain_tuple(bytes),
        };
        let flex_offset = self.steering.as_ref().and_then(Steering::flex_offset);
        Some(Tuple {
            spi: match sealed {
                Some(sealed) => Some(sealed.spi.0),
                None => EspLocation::of(bytes).map(|location| location.spi.0),
            },
            vlan: link.vlan,
            flex: flex_offset.and_then(|offset| link.flex(bytes, offset)),
            ..inside?
        })
    }
}

impl RxNumber {
    const fn value(self) -> u64 {
        match self {
            Self::Unseen(candidate) => candidate.number(),
            Self::Nearest(number) => number,
        }
    }
}

/// 5 advances the window for an authentic packet.
fn accept(association: &Association, sealed: &RxEsp) -> Result<(), NicDrop> {
    let sa = &association.sa;
    let outcome = match (sealed.status, sealed.number) {
        (OpenStatus::Authentic, RxNumber::Unseen(candidate)) => sa.replay().accept(candidate),
        (OpenStatus::Authentic, RxNumber::Nearest(_)) => Ok(()),
        (OpenStatus::Forged, _) => {
            sa.count_failure(uxfrm_engine::DropReason::InForged);
            return Err(NicDrop::RxAuthFailed);
        }
        (OpenStatus::TooShort | OpenStatus::Pending, _) => return Err(NicDrop::RxRunt),
    };
    outcome.map_err(|reason| {
        sa.count_failure(reason);
        NicDrop::of(reason)
    })
}
