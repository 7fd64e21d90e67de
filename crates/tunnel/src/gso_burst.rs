//! GSO and GRO of tunnels: a super-packet becomes a burst for one `UDP_SEGMENT` call, and a burst
//! that `UDP_GRO` joined is split and its inner packets are joined again.
//!
//! The kernel does the first by `fou_build_header`'s GSO types (`SKB_GSO_UDP_TUNNEL`), the second
//! by `fou_gro_receive`.

use std::ops::Range;
use std::sync::Arc;

use uxfrm_packet::{Batch, PacketBuf, Pool, SegmentPlan, Segments, SizeClass, SliceMeta};

use crate::decapsulate::{Decapsulated, version_of};
use crate::encapsulate::{Egress, EncapPlan};
use crate::outer::narrow;
use crate::tunnels::kinds;
use crate::udp_decap::Arrival;
use crate::{DecapPorts, DropReason, EncapRefused, Outer, Tunnel, Tunnels, decapsulate_udp};

/// The largest UDP payload over IPv6; over IPv4 20 bytes more would fit.
const BURST_BYTES: usize = 65_487;

/// An inner packet of a burst.
#[derive(Clone, Copy, Debug)]
pub struct InnerPacket<'t, 'b> {
    /// The tunnel that it came out of.
    pub tunnel: &'t Arc<Tunnel>,
    /// The packet.
    pub bytes: &'b [u8],
    /// Its metadata, for [`Coalescer::offer_slice`](uxfrm_packet::Coalescer::offer_slice).
    pub notes: SliceMeta,
}

/// Content of a burst's datagram.
#[derive(Clone, Copy, Debug)]
pub enum BurstPart<'t, 'b> {
    /// A tunnel's packet.
    InnerPacket(InnerPacket<'t, 'b>),
    /// A protocol without tunnels: the datagram, for [`Tunnels::receive`].
    Other(&'b [u8]),
    /// Dropped.
    Dropped(DropReason),
}

impl Tunnel {
    /// Encapsulates a super-packet: looked up and checked once, segmented straight into a burst of
    /// UDP payload.
    ///
    /// Each segment gets its own headers, with GRE's sequence and checksum; the outer headers are
    /// common, and all segments of an inner flow have one source port. Bursts beyond a UDP socket's
    /// limit become several, in order, at the end of `out`. Each has a
    /// [`UdpPath`](uxfrm_packet::UdpPath) and [`Segments::Burst`] (or [`Segments::One`]).
    ///
    /// # Errors
    /// As [`Tunnel::encapsulate`]; [`DropReason::OutSuper`] for super-packets that cannot be
    /// segmented, and for tunnels that no UDP socket can send (without UDP, or with an
    /// encapsulation limit): segment those first. Nothing is added to `out` then.
    pub fn encapsulate_super(
        &self,
        packet: &PacketBuf,
        egress: &Egress,
        pool: &mut Pool,
        out: &mut Batch,
    ) -> Result<Outer, EncapRefused> {
        let config = self.config();
        if config.udp.is_none() || config.encap_limit.is_some() {
            return Err(DropReason::OutSuper.into());
        }
        let plan = SegmentPlan::new(packet).map_err(|_| DropReason::OutSuper)?;
        let encap = self.plan_encap(packet.bytes(), plan.len(0), egress)?;
        let stride = self.frame_len(None) + plan.len(0);
        let most = (BURST_BYTES / stride).max(1);
        let (mut first, sent_before) = (0, out.len());
        while first < plan.count() {
            let segments = first..plan.count().min(first + most);
            first = segments.end;
            let mut burst = pool.take(SizeClass::holding(stride * segments.len()));
            burst.inherit(packet);
            let filled = self.fill_burst(&plan, segments, packet.bytes(), &encap, &mut burst);
            if filled.is_err() || !encap.outer.datagram(&mut burst) {
                debug_assert!(out.len() == sent_before, "each burst has the same room");
                pool.give(burst);
                return Err(DropReason::OutNoRoom.into());
            }
            out.push(burst);
        }
        Ok(encap.outer)
    }

    /// Writes `segments` consecutively, each behind its own headers.
    fn fill_burst(
        &self,
        plan: &SegmentPlan,
        segments: Range<usize>,
        source: &[u8],
        encap: &EncapPlan,
        burst: &mut PacketBuf,
    ) -> Result<(), DropReason> {
        let before = self.frame_len(None);
        let stride = before + plan.len(segments.start);
        burst.segments = match segments.len() {
            1 => Segments::One,
            _ => Segments::Burst { stride: narrow(stride)? },
        };
        for k in segments {
            let out = burst.append(before + plan.len(k)).ok_or(DropReason::OutNoRoom)?;
            plan.write(k, source, &mut out[before..]).ok_or(DropReason::OutNoRoom)?;
            self.write_frame(out, encap, None)?;
        }
        Ok(())
    }
}

impl Tunnels {
    /// Splits a burst from a UDP socket, as [`Tunnels::receive`] does with a packet; `each` gets
    /// the datagrams' contents in order.
    ///
    /// Open checksums are completed.
    pub fn receive_burst<'t>(
        &'t self,
        burst: &mut PacketBuf,
        device: u32,
        ports: &DecapPorts,
        mut each: impl FnMut(BurstPart<'t, '_>),
    ) {
        let stride = match burst.segments {
            Segments::Burst { stride } => usize::from(stride.max(1)),
            Segments::One | Segments::Tcp { .. } | Segments::Udp { .. } => burst.len().max(1),
        };
        let (arrival, notes) = (Arrival::of(burst, device), SliceMeta::of(burst));
        for bytes in burst.bytes_mut().chunks_mut(stride) {
            each(self.part_of(bytes, arrival, notes, ports));
        }
    }

    fn part_of<'t, 'b>(
        &'t self,
        bytes: &'b mut [u8],
        arrival: Arrival,
        notes: SliceMeta,
        ports: &DecapPorts,
    ) -> BurstPart<'t, 'b> {
        let mut decapped = match decapsulate_udp(bytes, arrival, ports) {
            Ok(decapped) => decapped,
            Err(reason) => return BurstPart::Dropped(reason),
        };
        if kinds(decapped.protocol, version_of(decapped.source)).is_empty() {
            return BurstPart::Other(bytes);
        }
        decapped.fill(bytes);
        match self.decapsulate(bytes, &decapped) {
            Ok(Decapsulated { tunnel, span, checksum }) => {
                let notes = SliceMeta { checksum, ..notes };
                BurstPart::InnerPacket(InnerPacket { tunnel, bytes: &bytes[span], notes })
            }
            Err(reason) => BurstPart::Dropped(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use uxfrm_packet::{Coalescer, UdpPath};
    use uxfrm_testkit::packets;

    use super::*;
    use crate::config::{
        GreField, GreOptions, TunnelConfig, TunnelKind, TunnelUdpEncap, UdpFraming,
    };
    use crate::{ALL_PORTS, DecapPort, HashSeed, PortRequest};

    fn ends(kind: TunnelKind, framing: UdpFraming) -> (Tunnel, Tunnels, DecapPorts) {
        let [left, right] = match kind.outer() {
            uxfrm_packet::Version::V4 => ["192.0.2.1", "192.0.2.2"],
            uxfrm_packet::Version::V6 => ["2001:db8::1", "2001:db8::2"],
        }
        .map(|end| end.parse().unwrap());
        let mut config = TunnelConfig::new(kind, left, right);
        config.encap_limit = None;
        config.udp = Some(TunnelUdpEncap::new(framing, NonZeroU16::new(5555).unwrap()));
        if kind.is_gre() {
            let all =
                GreOptions { key: Some(1), sequence: GreField::With, checksum: GreField::With };
            (config.input, config.output) = (all, all);
        }
        let far = TunnelConfig { local: right, remote: left, ..config.clone() };
        let mut tunnels = Tunnels::new();
        tunnels.add(Tunnel::new("far", far).unwrap()).unwrap();
        let mut ports = DecapPorts::new();
        let request = PortRequest {
            family: Some(if left.is_ipv4() { 2 } else { 10 }),
            port: 5555,
            kind: framing.properties().number,
            protocol: if kind.is_gre() { 47 } else { 4 },
            ..PortRequest::default()
        };
        ports.add(DecapPort::of(&request).unwrap()).unwrap();
        (Tunnel::new("near", config).unwrap(), tunnels, ports)
    }

    fn egress() -> Egress {
        Egress { path_mtu: 1500, device_mtu: 1400, seed: HashSeed(1), source_ports: ALL_PORTS }
    }

    #[test]
    fn super_packet_leaves_in_bursts_and_returns_whole() {
        for kind in [TunnelKind::Ipip, TunnelKind::Gre, TunnelKind::Ip6tnl, TunnelKind::Ip6gre] {
            for framing in UdpFraming::ALL {
                let (near, tunnels, ports) = ends(kind, framing);
                let (mut pool, mut out) = (Pool::new(), Batch::new());
                let payload: Vec<u8> = (0..60_000_u32).map(|n| n.to_le_bytes()[0]).collect();
                let packet = packets::tcp_super("10.0.0.1:1", "10.0.0.2:2", &payload, 1300);
                near.encapsulate_super(&packet, &egress(), &mut pool, &mut out).unwrap();
                let (mut coalescer, mut joined) = (Coalescer::new(), Batch::new());
                let (mut count, mut tcp) = (0, Vec::new());
                for mut burst in out.drain() {
                    let path = burst.udp.unwrap();
                    burst.udp = Some(UdpPath { local: path.remote, remote: path.local, ..path });
                    tunnels.receive_burst(&mut burst, 0, &ports, |part| {
                        let BurstPart::InnerPacket(inner) = part else { panic!("{part:?}") };
                        count += 1;
                        coalescer.offer_slice(inner.bytes, inner.notes, &mut pool, &mut joined);
                    });
                }
                coalescer.flush(&mut joined);
                assert_eq!(count, 60_000_usize.div_ceil(1300));
                for packet in joined.as_slice() {
                    tcp.extend_from_slice(&packet.bytes()[40..]);
                }
                assert_eq!(tcp, payload, "{kind:?} {framing:?}");
                assert!(joined.len() <= 2, "{} pieces", joined.len());
            }
        }
    }

    #[test]
    fn burst_parts_without_tunnel_differ_from_drops() {
        let mut ports = DecapPorts::new();
        let request = PortRequest { port: 5556, protocol: 50, kind: 1, ..PortRequest::default() };
        ports.add(DecapPort::of(&request).unwrap()).unwrap();
        for (local, expected) in
            [("192.0.2.1:5556", [Some(40), Some(7)]), ("192.0.2.1:1", [None; 2])]
        {
            let mut burst = PacketBuf::from_slice(&[9; 47]);
            burst.segments = Segments::Burst { stride: 40 };
            burst.udp = Some(UdpPath {
                local: local.parse().unwrap(),
                remote: "192.0.2.2:7".parse().unwrap(),
                tos: 0,
                dont_fragment: false,
            });
            let mut lengths = Vec::new();
            Tunnels::new().receive_burst(&mut burst, 0, &ports, |part| {
                lengths.push(match part {
                    BurstPart::Other(bytes) => Some(bytes.len()),
                    BurstPart::Dropped(reason) => {
                        assert_eq!(reason, DropReason::InNoPort);
                        None
                    }
                    BurstPart::InnerPacket(_) => panic!("{part:?}"),
                });
            });
            assert_eq!(lengths, expected);
        }
    }

    #[test]
    fn burst_that_no_socket_sends_is_refused() {
        let (mut pool, mut out) = (Pool::new(), Batch::new());
        let (near, _, _) = ends(TunnelKind::Gre, UdpFraming::Fou);
        let mut refused = |tunnel: &Tunnel, packet: &PacketBuf| {
            let made = tunnel.encapsulate_super(packet, &egress(), &mut pool, &mut out);
            assert!(out.is_empty());
            made.unwrap_err().reason
        };
        let good = packets::tcp_super("10.0.0.1:1", "10.0.0.2:2", &[0; 5000], 1000);
        let bare =
            Tunnel::new("bare", TunnelConfig { udp: None, ..near.config().clone() }).unwrap();
        assert_eq!(refused(&bare, &good), DropReason::OutSuper);
        let plain = packets::udp("10.0.0.1:1", "10.0.0.2:2", b"one");
        assert_eq!(refused(&near, &plain), DropReason::OutSuper);
        let mut large = packets::tcp_super("10.0.0.1:1", "10.0.0.2:2", &[0; 5000], 1460);
        large.bytes_mut()[6] = 0x40;
        assert_eq!(refused(&near, &large), DropReason::OutTooBig);
    }
}
