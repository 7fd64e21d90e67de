//! Room for each packet and all its headers: in place for single packets, side by side for the pieces of a super-packet.

use uxfrm_packet::{IpPacket, PacketBuf, Pool, SegmentPlan, Segments, SizeClass};

use super::device::Sealer;
use crate::DropReason;
use crate::bundle::{Bundle, Frame};
use crate::datapath::context::Bench;
use crate::datapath::outbound::{Item, Outbound, narrow};
use crate::esp::encap::{Inside, Outside};

/// Datagrams of one train at the most (`UDP_MAX_SEGMENTS` of kernels before 6.9).
const MAX_DATAGRAMS: usize = 64;
/// Bytes of one train at the most: below 65,535 less IPv6 and UDP headers.
const MAX_TRAIN: usize = 65_000;

/// Some segments of a plan, to go into one buffer.
pub(crate) struct Cut {
    from: usize,
    count: usize,
    frame: Frame,
    /// Bytes of the last frame.
    last: usize,
}

impl Outbound {
    /// Gives the packet its frame, or each piece of a super-packet its own.
    #[inline(always)]
    pub(crate) fn place(
        &mut self,
        packet: PacketBuf,
        plan: Option<&SegmentPlan>,
        inside: Inside,
        (place, sealer): (u32, Sealer),
        bench: &mut Bench<'_>,
    ) {
        let bundle = self.cache.bundle(place);
        let len = plan.map_or(packet.len(), |plan| plan.len(0));
        let Some(frame) = bundle.frame(len, &inside) else {
            let count = plan.map_or(1, SegmentPlan::count);
            return self.discard(packet, count, DropReason::OutNoRoom, bench);
        };
        self.deepest = self.deepest.max(bundle.layers.len());
        match plan {
            None => match widened(packet, frame, bench.pool) {
                Ok(packet) => {
                    self.admit(Item { sealer, ..Item::new(packet, place, frame, inside, len) });
                }
                Err(packet) => self.discard(packet, 1, DropReason::OutNoRoom, bench),
            },
            Some(plan) => {
                let first = self.items.len();
                self.cut(packet, plan, frame, inside, place, bench);
                self.items[first..].iter_mut().for_each(|item| item.sealer = sealer);
            }
        }
    }

    /// Cuts a super-packet straight into its frames.
    fn cut(
        &mut self,
        packet: PacketBuf,
        plan: &SegmentPlan,
        frame: Frame,
        inside: Inside,
        place: u32,
        bench: &mut Bench<'_>,
    ) {
        let first = self.items.len();
        for cut in self.cache.bundle(place).cuts(plan, frame, &inside) {
            let count = u32::try_from(cut.count).unwrap_or(u32::MAX);
            let last_len = narrow(plan.len(cut.from + cut.count - 1));
            match cut.write(plan, &packet, bench.pool) {
                Some(train) => {
                    // The last cut may be one segment, shorter than the others are.
                    let item = Item::new(train, place, frame, inside, plan.len(cut.from));
                    self.items.push(Item { count, last_len, ..item });
                }
                None => bench.refuse(&mut self.traffic, count.into(), DropReason::OutNoRoom),
            }
        }
        bench.pool.give(packet);
        self.want_for(first);
    }

    /// A packet that leaves as it is; a super-packet is cut all the same.
    pub(crate) fn pass(
        &mut self,
        packet: PacketBuf,
        plan: Option<&SegmentPlan>,
        bench: &mut Bench<'_>,
    ) {
        let longest = plan.map_or(packet.len(), |plan| plan.len(0));
        if longest > bench.settings.plain_limit() {
            return self.pass_large(packet, plan, bench);
        }
        let Some(plan) = plan else {
            self.traffic.sent += 1;
            self.traffic.sent_bytes += packet.len() as u64;
            return bench.out.wire.push(packet);
        };
        let frame = Frame { prefix: 0, total: plan.len(0) };
        for cut in cuts(plan, frame, MAX_TRAIN / frame.total, |len| len) {
            let Some(mut train) = cut.write(plan, &packet, bench.pool) else {
                bench.refuse(&mut self.traffic, cut.count as u64, DropReason::OutNoRoom);
                continue;
            };
            train.segments = train_of(cut.count, frame.total);
            self.traffic.sent += cut.count as u64;
            self.traffic.sent_bytes += train.len() as u64;
            bench.out.wire.push(train);
        }
        bench.pool.give(packet);
    }
}

impl Outbound {
    /// A packet that the host's interface has taken and the network does not: its sender is told, or it is cut (`net/ipv4/ip_output.c: ip_fragment`).
    #[cold]
    fn pass_large(&mut self, packet: PacketBuf, plan: Option<&SegmentPlan>, bench: &mut Bench<'_>) {
        let limit = bench.settings.plain_limit();
        let Ok(ip) = IpPacket::parse(packet.bytes()) else {
            let count = plan.map_or(1, SegmentPlan::count);
            return self.discard(packet, count, DropReason::OutMalformed, bench);
        };
        let inside = Inside::of(&ip);
        match plan {
            _ if ip.dont_fragment => self.refuse_size(packet, plan, limit, bench),
            None => self.pass_cut(packet, limit, &inside, bench),
            Some(plan) => {
                for k in 0..plan.count() {
                    let frame = Frame { prefix: 0, total: plan.len(k) };
                    match Cut::one(k, frame).write(plan, &packet, bench.pool) {
                        Some(segment) => self.pass_cut(segment, limit, &inside, bench),
                        None => bench.refuse(&mut self.traffic, 1, DropReason::OutNoRoom),
                    }
                }
                bench.pool.give(packet);
            }
        }
    }
}

impl Bundle {
    fn cuts(&self, plan: &SegmentPlan, frame: Frame, inside: &Inside) -> impl Iterator<Item = Cut> {
        let by_size = MAX_TRAIN / frame.total;
        let most = match self.layers.last().map(|layer| layer.outside) {
            Some(Outside::SocketPayload) => by_size.min(MAX_DATAGRAMS),
            Some(Outside::Packet) | None => by_size,
        };
        // A shorter piece needs no longer a frame than the first one has.
        cuts(plan, frame, most, move |len| {
            self.frame(len, inside).map_or(frame.total, |last| last.total)
        })
    }
}

impl Item {
    /// One packet of `len` bytes in its frame.
    #[inline(always)]
    pub(crate) fn new(
        packet: PacketBuf,
        bundle: u32,
        frame: Frame,
        inside: Inside,
        len: usize,
    ) -> Self {
        Self {
            packet,
            sequence: 0,
            bundle,
            count: 1,
            at: narrow(frame.prefix),
            len: narrow(len),
            last_len: narrow(len),
            stride: narrow(frame.total),
            inside,
            sealer: Sealer::Engine,
        }
    }
}

/// Parts of a plan, `most` segments each; `total` says how long the frame of a segment is.
fn cuts(
    plan: &SegmentPlan,
    frame: Frame,
    most: usize,
    total: impl Fn(usize) -> usize,
) -> impl Iterator<Item = Cut> {
    let most = most.max(1);
    (0..plan.count()).step_by(most).map(move |from| {
        let count = most.min(plan.count() - from);
        Cut { from, count, frame, last: total(plan.len(from + count - 1)) }
    })
}

impl Cut {
    /// One segment.
    pub(crate) const fn one(k: usize, frame: Frame) -> Self {
        Self { from: k, count: 1, frame, last: frame.total }
    }

    /// The segments in a buffer of their own, with room around each.
    pub(crate) fn write(
        &self,
        plan: &SegmentPlan,
        source: &PacketBuf,
        pool: &mut Pool,
    ) -> Option<PacketBuf> {
        let Frame { prefix, total: stride } = self.frame;
        let total = stride * (self.count - 1) + self.last;
        let mut train = pool.take(SizeClass::holding(total));
        (train.mark, train.if_id) = (source.mark, source.if_id);
        let written = train.append(total).and_then(|room| {
            room.chunks_mut(stride).enumerate().try_for_each(|(k, frame)| {
                plan.write(self.from + k, source.bytes(), &mut frame[prefix..]).map(|_| ())
            })
        });
        if written.is_none() {
            pool.give(train);
            return None;
        }
        Some(train)
    }
}

/// What a buffer of `count` frames holds.
pub(crate) fn train_of(count: usize, stride: usize) -> Segments {
    match u16::try_from(stride) {
        Ok(stride) if count > 1 => Segments::Train { stride },
        Ok(_) | Err(_) => Segments::One,
    }
}

/// The same packet with its frame around it: in place where there is room, else in a larger buffer; back if that has none either.
#[inline(always)]
fn widened(mut packet: PacketBuf, frame: Frame, pool: &mut Pool) -> Result<PacketBuf, PacketBuf> {
    if !packet.has_room(frame.prefix, frame.total) {
        return moved(packet, frame, pool);
    }
    packet.reframe(frame.prefix, frame.total);
    Ok(packet)
}

/// The same packet in the middle of a larger buffer.
#[cold]
fn moved(packet: PacketBuf, frame: Frame, pool: &mut Pool) -> Result<PacketBuf, PacketBuf> {
    let mut larger = pool.take(SizeClass::Super);
    larger.inherit(&packet);
    let Some(room) = larger.append(frame.total) else {
        pool.give(larger);
        return Err(packet);
    };
    room[frame.prefix..frame.prefix + packet.len()].copy_from_slice(packet.bytes());
    pool.give(packet);
    Ok(larger)
}
