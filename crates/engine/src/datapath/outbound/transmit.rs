//! What leaves, in the shape that the wire's port wants.

use std::net::{IpAddr, Ipv4Addr};

use uxfrm_packet::{Checksum, IpPacket, PacketBuf, Segments, UdpPath, Version, ipv4, ipv6, udp};

use super::slow::device::Sealer;
use super::slow::segment::train_of;
use super::{Item, Outbound};
use crate::Mark;
use crate::bundle::Bundle;
use crate::datapath::context::Bench;
use crate::esp::encap::{Inside, Layer, Outside, Wrap};
use crate::fragments::split::{Cut, split};

impl Outbound {
    /// 10 Transmit.
    #[inline(always)]
    pub(super) fn transmit(&mut self, bench: &mut Bench<'_>) {
        let mut items = std::mem::take(&mut self.items);
        // Neighbours often leave by the same bundle.
        let mut latest: Option<(u32, Option<Mark>, u32)> = None;
        for item in items.drain(..) {
            let (mark, mtu) = match latest {
                Some((bundle, mark, mtu)) if bundle == item.bundle => (mark, mtu),
                Some(_) | None => {
                    let bundle = self.cache.bundle(item.bundle);
                    let (mark, mtu) = (bundle.mark_of_packet(), bundle.mtu.into());
                    latest = Some((item.bundle, mark, mtu));
                    (mark, mtu)
                }
            };
            match mark {
                Some(mark) if item.is_single() && item.stride <= mtu => {
                    self.send_single(item.packet, mark, bench);
                }
                Some(_) | None if item.count == 0 => bench.pool.give(item.packet),
                Some(_) | None => self.send(item, bench),
            }
        }
        self.items = items;
    }

    /// A whole packet that the network takes.
    #[inline(always)]
    fn send_single(&mut self, mut packet: PacketBuf, mark: Mark, bench: &mut Bench<'_>) {
        packet.mark = mark.applied_to(packet.mark);
        packet.checksum = Checksum::AsIs;
        packet.segments = Segments::One;
        self.traffic.sent += 1;
        self.traffic.sent_bytes += packet.len() as u64;
        bench.out.wire.push(packet);
    }

    #[inline(never)]
    fn send(&mut self, mut item: Item, bench: &mut Bench<'_>) {
        let bundle = self.cache.bundle(item.bundle);
        // Without a layer it is still plain.
        let Some(last) = bundle.layers.last() else { return bench.pool.give(item.packet) };
        for layer in &bundle.layers {
            item.packet.mark = layer.output_mark.applied_to(item.packet.mark);
        }
        if let (Sealer::Device | Sealer::Cutter, Some(device)) = (item.sealer, bundle.device) {
            return self.hand_sealed(item, device, bench);
        }
        item.packet.checksum = Checksum::AsIs;
        item.packet.segments = train_of(item.count as usize, item.stride as usize);
        self.traffic.sent += u64::from(item.count);
        let (inside, mtu) = (item.inside, bundle.mtu);
        let packet = match last.outside {
            Outside::SocketPayload => payload(item, last, mtu),
            Outside::Packet => {
                // A frame may be shorter than the first one, if it is the last.
                if item.stride <= u32::from(mtu) {
                    self.traffic.sent_bytes += item.packet.len() as u64;
                    return bench.out.wire.push(item.packet);
                }
                item.packet
            }
        };
        self.traffic.sent_bytes += packet.len() as u64;
        if packet.udp.is_some() || frame_len(&packet) <= mtu.into() {
            return bench.out.wire.push(packet);
        }
        self.fragment(packet, &inside, mtu, bench);
    }

    /// Fragments of packets that are larger than the network takes and that nobody may be told about.
    fn fragment(&mut self, packet: PacketBuf, inside: &Inside, mtu: u16, bench: &mut Bench<'_>) {
        for whole in packet.bytes().chunks(frame_len(&packet)) {
            self.ident = self.ident.wrapping_add(1);
            let cut = Cut {
                version: inside.version,
                place: inside.esp_offset(),
                next_header_at: inside.next_header_at(),
                mtu: mtu.into(),
                ident: self.ident,
            };
            split(whole, &cut, packet.mark, bench.pool, &mut bench.out.wire);
        }
        bench.pool.give(packet);
    }
}

impl Bundle {
    /// What its one state lays over the marks of the whole packets that leave by it; `None` where more is to be done.
    fn mark_of_packet(&self) -> Option<Mark> {
        match &*self.layers {
            [only] if only.outside == Outside::Packet => Some(only.output_mark),
            _ => None,
        }
    }
}

impl Item {
    #[inline(always)]
    fn is_single(&self) -> bool {
        self.count == 1 && self.sealer == Sealer::Engine
    }
}

fn frame_len(packet: &PacketBuf) -> usize {
    match packet.segments {
        Segments::Train { stride } => stride.into(),
        Segments::One | Segments::Tcp { .. } | Segments::Udp { .. } => packet.len().max(1),
    }
}

/// Ends that nobody asks for.
const UNKNOWN: (IpAddr, IpAddr) =
    (IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED));

/// UDP payload for a socket: without the IP header, which in transport mode is there still. What is longer than the network takes and was let in all the
/// same, as its sender may not be told to send less (RFC 8200 §5), is the kernel's to cut.
#[inline(never)]
fn payload(mut item: Item, layer: &Layer, mtu: u16) -> PacketBuf {
    let ends = match layer.wrap {
        // Where they are still.
        Wrap::Transport => {
            IpPacket::parse(item.packet.bytes()).map_or(UNKNOWN, |ip| (ip.source, ip.destination))
        }
        Wrap::Tunnel(_) => UNKNOWN,
    };
    let kept = layer.kept(&item.inside);
    if item.count > 1 && kept > 0 {
        close_up(&mut item, kept);
    } else {
        item.packet.pull(kept);
    }
    let datagram = item.stride as usize - kept + udp::HEADER_LEN + header_len(item.inside.version);
    item.packet.udp = layer.udp_path(&item.inside, ends).map(|path| UdpPath {
        dont_fragment: path.dont_fragment && datagram <= mtu.into(),
        ..path
    });
    item.packet
}

/// Bytes of the header that the kernel writes.
const fn header_len(version: Version) -> usize {
    match version {
        Version::V4 => ipv4::HEADER_LEN,
        Version::V6 => ipv6::HEADER_LEN,
    }
}

/// Leaves out the first `kept` bytes of every frame.
fn close_up(item: &mut Item, kept: usize) {
    let (stride, len) = (item.stride as usize, item.packet.len());
    let bytes = item.packet.bytes_mut();
    let mut end = 0;
    for start in (0..len).step_by(stride) {
        let frame = (start + stride).min(len);
        bytes.copy_within(start + kept..frame, end);
        end += frame - start - kept;
    }
    item.packet.trim(end);
    item.packet.segments = train_of(item.count as usize, stride - kept);
}
