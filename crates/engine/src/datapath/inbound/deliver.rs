//! What the policies let pass goes to the host, coalesced where the host takes that.

use uxfrm_packet::{Batch, Checksum, Notes, PacketBuf, Pool, Protocol, Segments, SizeClass};

use super::slow::icmp_flow::reported;
use super::slow::policy_check::{Arrival, SecPath, check};
use super::{Fate, Inbound, Item, Questions};
use crate::datapath::context::Bench;
use crate::{AnswerId, DropReason, Family, HostPort, Ruling, Selector, Stage, UdpSuper, Watch};

impl Inbound {
    /// 8 Check, 9 Coalesce, 10 Transmit.
    pub(super) fn deliver(&mut self, bench: &mut Bench<'_>, watch: &mut impl Watch) {
        self.look_up(bench);
        watch.passed(Stage::LookUp);
        self.hand_on_all(bench);
    }

    /// 8 Check to 10 Transmit, of packets about which the policies have answered.
    pub(super) fn hand_on_all(&mut self, bench: &mut Bench<'_>) {
        let mut rest = 0..self.items.len();
        while let Some(place) = rest.next() {
            match self.items[place].fate {
                Fate::Gone => {}
                // A layer was taken off in the last round, and there is one more.
                Fate::New | Fate::Sealed => self.drop(place, DropReason::InTooDeep, bench),
                Fate::Plain(question) => match self.check(place, question, bench) {
                    Ok(()) => self.hand_on(place, question as usize, bench),
                    Err(reason) => self.drop(place, reason, bench),
                },
            }
            if !rest.is_empty() {
                rest.start = self.hand_on_alike(rest.start, bench);
            }
        }
        self.count_passed();
        self.questions.clear();
        self.items.clear();
        while let Some(left) = self.buffers.pop() {
            left.into_iter().for_each(|buffer| bench.pool.give(buffer));
        }
    }

    /// 8 Check: the policies of all plain packets, found together.
    fn look_up(&mut self, bench: &Bench<'_>) {
        let Questions { flows, spis, directions, known, .. } = &mut self.questions;
        let spd = &bench.snapshot.spd;
        if let ([flow], [spi], [direction]) = (&**flows, &**spis, &**directions) {
            return known.push(self.policies.know(spd, *direction, flow, *spi));
        }
        let mut from = 0;
        for run in directions.chunk_by(|a, b| a == b) {
            let these = from..from + run.len();
            let (flows, spis) = (&flows[these.clone()], &spis[these.clone()]);
            self.policies.know_each(spd, run[0], flows, spis, known);
            from = these.end;
        }
    }

    /// 8 Check of one packet. One that passes is counted as sent.
    #[inline(always)]
    fn check(&mut self, place: usize, question: u32, bench: &Bench<'_>) -> Result<(), DropReason> {
        let item = &self.items[place];
        let bytes = u64::from(item.len);
        let passes = match *item.path.as_slice() {
            [only] => self.passed.by == Some((question, only)) || self.passes_by(only, question),
            _ => false,
        };
        if !passes {
            self.check_path(place, question as usize, bench)?;
            self.traffic.sent += 1;
            self.traffic.sent_bytes += bytes;
            return Ok(());
        }
        self.passed.packets += 1;
        self.passed.bytes += bytes;
        Ok(())
    }

    /// Whether it is known that packets of a flow pass that came by a state alone. If so, they are counted from now on.
    #[inline]
    fn passes_by(&mut self, only: u32, question: u32) -> bool {
        let (used, known) = (&self.used[only as usize], self.questions.known[question as usize]);
        let answer = known.answer;
        if !used.lets_pass(known) {
            return false;
        }
        if self.passed.answer != Some(answer) {
            self.count_passed();
            self.passed.answer = Some(answer);
        }
        self.passed.by = Some((question, only));
        true
    }

    /// Counts neighbours that passed under one answer, and notes them for its policy.
    #[inline]
    fn count_passed(&mut self) {
        let Passed { answer, packets, bytes, .. } = std::mem::take(&mut self.passed);
        self.traffic.sent += u64::from(packets);
        self.traffic.sent_bytes += bytes;
        if let Some(answer) = answer {
            self.policies.count_first(answer, packets, bytes);
        }
    }

    /// Hands on packets that may pass as the latest one did, one to a buffer, from `start` on up to the first that is not so. Says which that is.
    #[inline(never)]
    fn hand_on_alike(&mut self, start: usize, bench: &mut Bench<'_>) -> usize {
        let Self { items, buffers, marks, passed, .. } = self;
        let Some((question, only)) = passed.by else { return start };
        if !marks.is_empty() || bench.settings.host != HostPort::Packets {
            return start;
        }
        let (mut packets, mut bytes) = (0, 0);
        for item in &items[start..] {
            if item.fate != Fate::Plain(question) || !matches!(*item.path, [by] if by == only) {
                break;
            }
            let slot = &mut buffers[item.buffer as usize];
            let Some(packet) = slot.take_if(|buffer| !is_train(buffer)) else { break };
            bench.out.host.push(item.released(packet));
            packets += 1;
            bytes += u64::from(item.len);
        }
        passed.packets += packets;
        passed.bytes += bytes;
        start + packets as usize
    }

    /// Whatever a packet came through. What does not hang on the packet is remembered for those of the same flow, what does not hang on the flow for
    /// those that come by the same state.
    #[inline(never)]
    fn check_path(
        &mut self,
        place: usize,
        question: usize,
        bench: &Bench<'_>,
    ) -> Result<(), DropReason> {
        let item = &self.items[place];
        let Some(buffer) = &self.buffers[item.buffer as usize] else {
            return Err(DropReason::InUnexpected);
        };
        let bytes = item.bytes(buffer);
        let path: SecPath<'_> =
            item.path.iter().map(|used| &*self.used[*used as usize].sa).collect();
        let (flow, direction) =
            (self.questions.flows[question], self.questions.directions[question]);
        let answer = self.questions.known[question].answer;
        // An answer is for one family.
        let family = Selector::any(Family::of(flow.source));
        let any_flow = path.iter().all(|sa| sa.config().selector.is_none_or(|own| own == family));
        let reported = reported(bytes, &flow);
        let bytes = bytes.len();
        let arrival = Arrival { direction, flow, reported, path, bytes, answer };
        check(bench.snapshot, &mut self.policies, &arrival, bench.now)?;
        drop(arrival);
        let [only] = *item.path.as_slice() else { return Ok(()) };
        if answer.ruling() == Ruling::Default {
            return Ok(());
        }
        let used = &mut self.used[only as usize];
        if any_flow {
            used.passes = Some(answer);
        }
        if reported.is_none() {
            self.policies.teach_passing(direction, &flow, answer, &used.sa);
        }
        Ok(())
    }

    #[inline(always)]
    fn hand_on(&mut self, place: usize, question: usize, bench: &mut Bench<'_>) {
        let item = &self.items[place];
        let Some(buffer) = &self.buffers[item.buffer as usize] else { return };
        if is_train(buffer) || bench.settings.host != HostPort::Packets {
            return self.hand_on_joined(place, question, bench);
        }
        if let Some(packet) = self.release(place) {
            bench.out.host.push(packet);
        }
    }

    /// A packet of a train, or one that may become part of a super-packet.
    fn hand_on_joined(&mut self, place: usize, question: usize, bench: &mut Bench<'_>) {
        let item = &self.items[place];
        let protocol = Protocol(self.questions.flows[question].protocol);
        let joins = joins(bench.settings.host, protocol);
        let Some(buffer) = &self.buffers[item.buffer as usize] else { return };
        if is_train(buffer) {
            let notes = Notes { mark: item.mark, if_id: buffer.if_id, checksum: item.checksum() };
            let bytes = item.bytes(buffer);
            if joins {
                self.coalescer.offer_slice(bytes, notes, bench.pool, &mut bench.out.host);
            } else {
                single(bytes, notes, bench.pool, &mut bench.out.host);
            }
            return;
        }
        let Some(packet) = self.release(place) else { return };
        if joins {
            self.coalescer.offer(packet, bench.pool, &mut bench.out.host);
        } else {
            bench.out.host.push(packet);
        }
    }

    /// The item's buffer, with nothing but the packet in it and on it. It is no train.
    #[inline(always)]
    fn release(&mut self, place: usize) -> Option<PacketBuf> {
        if !self.marks.is_empty() {
            self.believe_device(place);
        }
        let item = &self.items[place];
        self.buffers[item.buffer as usize].take().map(|packet| item.released(packet))
    }
}

impl Item {
    #[inline(always)]
    const fn checksum(&self) -> Checksum {
        if self.is_verified { Checksum::Verified } else { Checksum::AsIs }
    }

    /// Its buffer, with nothing but the packet in it and on it.
    #[inline(always)]
    pub(super) fn released(&self, mut packet: PacketBuf) -> PacketBuf {
        packet.frame(self.start as usize, self.len as usize);
        packet.segments = Segments::One;
        packet.udp = None;
        (packet.mark, packet.checksum) = (self.mark, self.checksum());
        packet
    }
}

/// Neighbours that passed under one answer, not yet counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Passed {
    /// The question and the state of the latest.
    by: Option<(u32, u32)>,
    answer: Option<AnswerId>,
    packets: u32,
    bytes: u64,
}

/// Whether packets of a protocol may become parts of super-packets.
pub(super) fn joins(host: HostPort, protocol: Protocol) -> bool {
    match host {
        HostPort::Packets => false,
        HostPort::SuperPackets { udp: UdpSuper::Taken } => true,
        HostPort::SuperPackets { udp: UdpSuper::Refused } => protocol != Protocol::UDP,
    }
}

#[inline(always)]
pub(super) fn is_train(buffer: &PacketBuf) -> bool {
    matches!(buffer.segments, Segments::Train { .. })
}

fn single(bytes: &[u8], notes: Notes, pool: &mut Pool, host: &mut Batch) {
    let mut packet = copy(bytes, pool);
    (packet.mark, packet.if_id, packet.checksum) = (notes.mark, notes.if_id, notes.checksum);
    host.push(packet);
}

/// A packet in a buffer of its own.
pub(super) fn copy(bytes: &[u8], pool: &mut Pool) -> PacketBuf {
    let mut copy = pool.take(SizeClass::holding(bytes.len()));
    match copy.append(bytes.len()) {
        Some(room) => room.copy_from_slice(bytes),
        None => copy = PacketBuf::from_slice(bytes),
    }
    copy
}
