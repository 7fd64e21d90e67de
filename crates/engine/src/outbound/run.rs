//! Neighbours of which the same is known: what holds for all of them is looked at once.

use std::ops::Range;
use std::vec::Drain;

use uxfrm_packet::{Checksum, PacketBuf, Segments};

use super::{Head, Item, Outbound};

use crate::Ruling;
use crate::bundle::{Bundle, Frame};
use crate::spd::flow_cache::Known;
use crate::worker::Bench;

impl Outbound {
    /// 1 Receive, 4 Verdict, 5 PMTU: of as many packets as there are heads, which are in these places.
    pub(super) fn receive_run(
        &mut self,
        packets: &mut Drain<'_, PacketBuf>,
        heads: Range<usize>,
        known: Known,
        bench: &mut Bench<'_>,
    ) {
        let mut at = heads.start;
        while at < heads.end {
            at += self.enter_run(packets, at..heads.end, known, bench);
            if at == heads.end {
                return;
            }
            let Some(packet) = packets.next() else { return };
            let head = self.ahead.heads[at];
            let flow = head.map(|head| (head, self.ahead.flows[head.flow as usize]));
            self.receive(packet, flow.as_ref(), known, bench);
            at += 1;
        }
    }

    /// Lets the first packets enter their bundle together, up to one of which more is to be seen. Says how many they are.
    fn enter_run(
        &mut self,
        packets: &mut Drain<'_, PacketBuf>,
        heads: Range<usize>,
        known: Known,
        bench: &Bench<'_>,
    ) -> usize {
        let place = match known.answer.ruling() {
            Ruling::Protect => known.bundle().filter(|place| self.is_working(*place, bench)),
            Ruling::Default | Ruling::Block | Ruling::Pass => None,
        };
        let Some(place) = place else { return 0 };
        let bundle = self.cache.bundle(place);
        let Some(innermost) = bundle.layers.first().filter(|_| bundle.is_simple()) else {
            return 0;
        };
        let mut count = 0;
        let (mut received, mut plain, mut kept) = (0, 0, 0);
        for head in &self.ahead.heads[heads] {
            let (Some(head), Some(packet)) = (head, packets.as_slice().first()) else { break };
            let Some(frame) = bundle.takes(packet, head) else { break };
            let Some(mut packet) = packets.next() else { break };
            received += packet.len();
            let len = head.total_len as usize;
            plain += len;
            kept += innermost.kept(&head.inside);
            packet.reframe(frame.prefix, frame.total);
            self.items.push(Item::new(packet, place, frame, head.inside, len));
            count += 1;
        }
        if count > 0 {
            self.deepest = self.deepest.max(bundle.layers.len());
            self.enter_together(place, known, count, (received, plain, kept));
        }
        count
    }

    /// What so many packets count for, and want of the innermost state; they have so many bytes as they came, as they say, and outside its text.
    fn enter_together(
        &mut self,
        place: u32,
        known: Known,
        count: usize,
        (received, plain, kept): (usize, usize, usize),
    ) {
        let packets = super::narrow(count);
        self.traffic.received += count as u64;
        self.traffic.received_bytes += received as u64;
        self.tally(known.answer, packets, plain as u64);
        self.want(place, packets, (plain - kept) as u64);
    }
}

impl Bundle {
    /// Whether single packets need nothing but their frame.
    fn is_simple(&self) -> bool {
        self.device.is_none() && !self.spreads
    }

    /// The frame of a single packet that fits, has room for it, and of which nothing else is to be seen. The bundle is simple.
    #[inline(always)]
    fn takes(&self, packet: &PacketBuf, head: &Head) -> Option<Frame> {
        let is_single = packet.segments == Segments::One;
        let is_left_open = matches!(packet.checksum, Checksum::Partial { .. });
        let len = head.total_len as usize;
        let fits = len <= self.limit(head.inside.version);
        if !is_single | is_left_open | head.fragment | !fits {
            return None;
        }
        let frame = self.frame(len, &head.inside)?;
        packet.has_room(frame.prefix, frame.total).then_some(frame)
    }
}
