//! Packets whose state a device has: how they get there ([`crate::device::contract`] has the contract).
//!
//! Mirrors `net/xfrm/xfrm_device.c: xfrm_dev_offload_ok` and `net/xfrm/xfrm_output.c: xfrm_output`: kind *crypto* is done in software where the
//! device would not take a packet, kind *packet* never.

use uxfrm_packet::{Checksum, PacketBuf, SegmentPlan};

use super::segment::{Cut, train_of};
use crate::bundle::{Bundle, Frame};
use crate::datapath::context::Bench;
use crate::datapath::outbound::{Head, Item, Outbound};
use crate::esp::encap::{Inside, Layer};
use crate::esp::headers::{self, Stamp};
use crate::{Attachment, DropReason, Handed, Handover, OffloadKind, Segmentation, Task};

/// Who does the work of a packet's outermost layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sealer {
    /// The crypto library.
    Engine,
    /// The device that the bundle names.
    Device,
    /// That device, which cuts and wraps as well: the item is a super-packet still.
    Cutter,
}

impl Outbound {
    /// 5 PMTU, of a packet that is for a device.
    #[inline(never)]
    pub(crate) fn enter_device(
        &mut self,
        packet: PacketBuf,
        plan: Option<&SegmentPlan>,
        head: &Head,
        place: u32,
        (device, bench): (Attachment, &mut Bench<'_>),
    ) {
        // A device cuts nothing that came to be longer than the network takes.
        let most = self.cache.bundle(place).inner_mtu;
        let fits = plan.map_or(packet.len(), |plan| plan.len(0)) <= most;
        if !fits | head.fragment | head.options {
            return self.enter_untaken(packet, plan, head, place, (device, bench));
        }
        if device.kind == OffloadKind::Packet {
            return self.hand_plain(packet, plan, place, (device, bench));
        }
        let cuts = device.segmentation == Segmentation::Device;
        match plan.filter(|_| cuts && self.is_single(place)) {
            Some(plan) => self.enter_whole(packet, plan, head.inside, place),
            None => self.place(packet, plan, head.inside, (place, Sealer::Device), bench),
        }
    }

    /// 5 PMTU, of a packet that the device would not take.
    #[cold]
    fn enter_untaken(
        &mut self,
        packet: PacketBuf,
        plan: Option<&SegmentPlan>,
        head: &Head,
        place: u32,
        (device, bench): (Attachment, &mut Bench<'_>),
    ) {
        let bundle = self.cache.bundle(place);
        let limit = bundle.limit(head.inside.version);
        let count = plan.map_or(1, SegmentPlan::count);
        let fits = plan.map_or(packet.len(), |plan| plan.len(0)) <= limit;
        if head.fragment && bundle.is_transport() {
            return self.discard(packet, count, DropReason::OutModeMismatch, bench);
        }
        if !fits && head.inside.dont_fragment {
            return self.refuse_size(packet, plan, limit, bench);
        }
        match device.kind {
            OffloadKind::Packet => {
                self.discard(packet, count, DropReason::OutDeviceUnfit, bench);
            }
            OffloadKind::Crypto => {
                self.place(packet, plan, head.inside, (place, Sealer::Engine), bench);
            }
        }
    }

    /// Whether a bundle has one state: others inside would have to wrap before the device cuts.
    fn is_single(&self, place: u32) -> bool {
        self.cache.bundle(place).layers.len() == 1
    }

    /// A super-packet of kind *crypto* that the device cuts: numbered and charged like its segments.
    fn enter_whole(&mut self, packet: PacketBuf, plan: &SegmentPlan, inside: Inside, place: u32) {
        let count = plan.count();
        self.deepest = self.deepest.max(1);
        let frame = Frame { prefix: 0, total: packet.len() };
        let item = Item::new(packet, place, frame, inside, plan.len(0));
        self.admit(Item {
            count: u32::try_from(count).unwrap_or(u32::MAX),
            last_len: crate::datapath::outbound::narrow(plan.len(count - 1)),
            sealer: Sealer::Cutter,
            ..item
        });
    }

    /// A plain packet of kind *packet*; a super-packet whole if the device cuts it.
    fn hand_plain(
        &mut self,
        mut packet: PacketBuf,
        plan: Option<&SegmentPlan>,
        place: u32,
        (device, bench): (Attachment, &mut Bench<'_>),
    ) {
        let mark = self.cache.bundle(place).mark(packet.mark);
        packet.mark = mark;
        match plan {
            Some(plan) if device.segmentation == Segmentation::Engine => {
                for k in 0..plan.count() {
                    let frame = Frame { prefix: 0, total: plan.len(k) };
                    match Cut::one(k, frame).write(plan, &packet, bench.pool) {
                        Some(piece) => self.hand(piece, 1, device.over(Task::Protect), bench),
                        None => bench.refuse(&mut self.traffic, 1, DropReason::OutNoRoom),
                    }
                }
                bench.pool.give(packet);
            }
            Some(plan) => {
                self.hand(packet, plan.count() as u64, device.over(Task::Protect), bench);
            }
            None => self.hand(packet, 1, device.over(Task::Protect), bench),
        }
    }

    /// 10 Transmit, of an item that only lacks its outermost encryption, or the outermost state's headers too.
    pub(crate) fn hand_sealed(&mut self, item: Item, device: Attachment, bench: &mut Bench<'_>) {
        let (sequence, count) = (item.sequence, item.count);
        let mut packet = item.packet;
        let task = if item.sealer == Sealer::Cutter {
            Task::Segment { sequence, count }
        } else {
            packet.checksum = Checksum::AsIs;
            packet.segments = train_of(count as usize, item.stride as usize);
            Task::Encrypt { sequence }
        };
        let over = device.over(task);
        self.hand(packet, count.into(), over, bench);
    }

    #[inline(always)]
    pub(crate) fn hand(
        &mut self,
        packet: PacketBuf,
        count: u64,
        handover: Handover,
        bench: &mut Bench<'_>,
    ) {
        self.traffic.sent += count;
        self.traffic.sent_bytes += packet.len() as u64;
        bench.out.handed.push(Handed { packet, handover });
    }
}

impl Item {
    /// 7 Wrap, but for the encryption, if the device does not do that too; `ident` counts outer headers.
    #[inline(never)]
    pub(crate) fn wrap_for_device(&mut self, layer: &Layer, ident: &mut u32) {
        if self.sealer == Sealer::Cutter {
            return;
        }
        let inside = self.inside;
        let after = layer.after(&inside);
        self.inside = after;
        self.at -= crate::datapath::outbound::narrow(layer.front());
        let around = (&inside, &after);
        let (at, first) = (self.at as usize, self.sequence);
        if self.count == 1 {
            *ident = ident.wrapping_add(1);
            let stamp = Stamp { sequence: first, id: crate::datapath::outbound::fold_half(*ident) };
            let (room, len) = (&mut self.packet.bytes_mut()[at..], self.len as usize);
            self.len = crate::datapath::outbound::narrow(
                headers::wrap(room, len, layer, around, stamp).end,
            );
            self.last_len = self.len;
            return;
        }
        let (mut len, mut last_len) = (0, 0);
        for (k, (frame, plain)) in (0..).zip(self.frames()) {
            *ident = ident.wrapping_add(1);
            let stamp =
                Stamp { sequence: first + k, id: crate::datapath::outbound::fold_half(*ident) };
            last_len = headers::wrap(&mut frame[at..], plain, layer, around, stamp).end;
            len = if k == 0 { last_len } else { len };
        }
        (self.len, self.last_len) =
            (crate::datapath::outbound::narrow(len), crate::datapath::outbound::narrow(last_len));
    }
}

impl Bundle {
    /// What its states lay over a packet's mark.
    pub(crate) fn mark(&self, mark: u32) -> u32 {
        self.layers.iter().fold(mark, |mark, layer| layer.output_mark.applied_to(mark))
    }
}
