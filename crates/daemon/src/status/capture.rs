//! A client's capture: taken from the workers, annotated, and told.

use uxfrm_engine::{
    CapturePoint, CaptureReader, CaptureRequest, CaptureSides, EspStart, PacketHeaders, PacketWay,
    TappedPacket,
};
use uxfrm_status::{
    capture::{CaptureInterface, CaptureQuery, CaptureReport, CaptureSide, CapturedPacketStatus},
    drops::EspStatus,
    explanation::FlowWay,
    gateway::GatewayIdentity,
    packet_bytes::PacketBytes,
};

use super::{
    annotation::{Annotation, Annotator},
    board::Posted,
    drops,
    watch::{PacketSource, filter},
};
use crate::clock::epoch;

/// Packets of one answer.
const PACKETS: usize = 1024;
/// Their bytes, as far as one packet does not pass it.
const BYTES: usize = 2 << 20;
/// Bytes of a packet at the most, whatever is asked for.
const SNAPLEN: u32 = CaptureQuery::DEFAULT_SNAPLEN;

/// A capture.
#[derive(Debug)]
pub(super) struct CaptureSession {
    query: CaptureQuery,
    reader: CaptureReader,
    annotator: Annotator,
}

impl CaptureSession {
    /// Begins to capture.
    pub(super) fn new(query: &CaptureQuery, source: PacketSource<'_>) -> Self {
        let request = CaptureRequest {
            sides: CaptureSides {
                plain: query.wants(CaptureSide::Plain),
                wire: query.wants(CaptureSide::Wire),
                drops: query.wants(CaptureSide::Drops),
            },
            filter: filter(&query.filter),
            snaplen: query.snaplen.unwrap_or(SNAPLEN).min(SNAPLEN) as usize,
            per_second: query.rate.unwrap_or(CaptureQuery::DEFAULT_RATE).into(),
        };
        let reader = CaptureReader::new(source.taps, request);
        Self { query: query.clone(), reader, annotator: Annotator::default() }
    }

    /// Whether it is the capture that a request asks for.
    pub(super) fn is_for(&self, query: &CaptureQuery) -> bool {
        self.query == *query
    }

    /// What has come since the last report.
    pub(super) fn report(&mut self, source: PacketSource<'_>, posted: &Posted) -> CaptureReport {
        let snapshot = source.published.load_full();
        self.annotator.begin(&snapshot, source.settings);
        let (mut packets, mut bytes, mut more) = (Vec::new(), 0, false);
        while let Some(packet) = self.reader.take() {
            bytes += packet.bytes.len();
            let annotation = self.annotator.annotate(&snapshot, &packet);
            if self.is_wanted(&packet, &annotation) {
                packets.push(status(&packet, annotation, posted));
            }
            if packets.len() == PACKETS || bytes >= BYTES {
                more = true;
                break;
            }
        }
        let interfaces = CaptureSide::ALL.into_iter().filter(|side| self.query.wants(*side));
        CaptureReport {
            interfaces: interfaces.map(|side| interface(side, source.identity)).collect(),
            packets,
            more,
            lost: self.reader.lost(),
            over_rate: self.reader.over_rate(),
        }
    }

    /// Of plain packets it is known here alone in which ESP they leave or came.
    fn is_wanted(&self, packet: &TappedPacket, annotation: &Annotation) -> bool {
        let filter = &self.reader.request().filter;
        match packet.point {
            CapturePoint::Plain(_) if filter.names_esp() => annotation
                .states
                .iter()
                .any(|sa| filter.selects_esp(sa.source, sa.id.destination, sa.id.spi)),
            CapturePoint::Plain(_) | CapturePoint::Wire(_) | CapturePoint::Drop(_) => true,
        }
    }
}

fn status(packet: &TappedPacket, annotation: Annotation, posted: &Posted) -> CapturedPacketStatus {
    let Annotation { verdict, reason, policy, states } = annotation;
    let side = match packet.point {
        CapturePoint::Plain(_) => CaptureSide::Plain,
        CapturePoint::Wire(_) => CaptureSide::Wire,
        CapturePoint::Drop(_) => CaptureSide::Drops,
    };
    let device = packet.drop.and_then(|note| note.device);
    // Of several states, as after a rekey, it is not known which one it was.
    let state = if let [only] = &states[..] { Some(drops::state(only)) } else { None };
    CapturedPacketStatus {
        at_ns: epoch() + packet.at.0,
        side,
        way: way(packet.point.way()),
        worker: packet.worker,
        length: packet.len as u64,
        bytes: PacketBytes::from(&*packet.bytes),
        flow: packet.headers.flow.as_ref().map(drops::flow_status),
        esp: esp(&packet.headers),
        segment: packet.segment,
        verdict,
        reason: reason.map(|reason| reason.as_str().to_owned()),
        packets: packet.drop.map(|note| note.packets).filter(|packets| *packets > 1),
        state,
        policy: policy.map(|index| index.0),
        device: device.map(|number| drops::device(number, posted)),
    }
}

/// The way in the words of the protocol.
pub(super) const fn way(way: PacketWay) -> FlowWay {
    match way {
        PacketWay::Out => FlowWay::Out,
        PacketWay::In => FlowWay::In,
    }
}

/// The ESP header of a packet, with its outer addresses.
pub(super) fn esp(headers: &PacketHeaders) -> Option<EspStatus> {
    let (EspStart { spi, sequence }, outer) = (headers.esp?, headers.flow?);
    let ports = (outer.source_port, outer.destination_port);
    Some(EspStatus {
        spi: spi.to_string(),
        source: outer.source,
        destination: outer.destination,
        ports: (ports != (0, 0)).then_some(ports),
        sequence: Some(sequence),
    })
}

fn interface(side: CaptureSide, identity: &GatewayIdentity) -> CaptureInterface {
    let GatewayIdentity { tun, udp_ports, interfaces, .. } = identity;
    let ports: Vec<_> = udp_ports.iter().map(ToString::to_string).collect();
    let ports = ports.join(" ");
    let (name, description) = match (side, &interfaces[..]) {
        (CaptureSide::Plain, [protected, _]) => {
            (protected.clone(), format!("plain side: {protected}, and the host's TUN {tun}"))
        }
        (CaptureSide::Plain, _) => (tun.clone(), format!("plain side: the TUN {tun}")),
        (CaptureSide::Wire, [_, wire]) => {
            (wire.clone(), format!("wire side: {wire}, and sockets of UDP {ports}"))
        }
        (CaptureSide::Wire, devices) => {
            let devices = devices.join(" ");
            let express = if devices.is_empty() { devices } else { format!(", AF_XDP {devices}") };
            ("wire".to_owned(), format!("wire side: raw ESP, UDP {ports}{express}"))
        }
        (CaptureSide::Drops, _) => ("drops".to_owned(), "dropped packets".to_owned()),
    };
    CaptureInterface { side, name, description }
}
