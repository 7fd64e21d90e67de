//! Packets that wait for a state, by the state that they want.
//!
//! A packet whose required template has no state waits here while key managers make one, at most for as long as the larval state lives;
//! Linux does the same where `net.core.xfrm_larval_drop` is 0 (`net/xfrm/xfrm_policy.c: xdst_queue_output`), and drops otherwise.
//! Released packets go through the policies again, in order of arrival for each state, and before all that come after them. What waits is
//! bounded by [`Patience`], so that an unanswered acquire holds neither all buffers nor all memory; the newest is dropped when
//! there is no room, as in Linux. Without a state that is missing, a batch pays one look at an empty map.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use uxfrm_packet::{Batch, PacketBuf};

use crate::datapath::context::Bench;
use crate::datapath::outbound::{Head, Outbound, Verdict};
use crate::events::acquire::Missing;
use crate::{Acquires, DropReason, Event, FlowKey, KeyManagers, Moment, Patience, Wanted};

/// All packets that wait.
#[derive(Debug)]
pub(crate) struct Waiting {
    queues: BTreeMap<Wanted, Queue>,
    patience: Patience,
    buffers: usize,
    bytes: usize,
    /// When the first queue's time is over.
    until: Moment,
    /// What of the snapshot was seen last: only news can release.
    generation: u64,
    acquires: Arc<Acquires>,
    /// What is not waited for any longer, while its packets have their last chance.
    given_up: Option<Wanted>,
}

#[derive(Debug)]
struct Queue {
    held: VecDeque<Held>,
    /// Bytes of whole buffers.
    bytes: usize,
    until: Moment,
    answer: Answer,
}

/// One packet, or the packets of a super-packet.
#[derive(Debug)]
pub(crate) struct Held {
    packet: PacketBuf,
    count: usize,
    /// Bytes of the longest of the pieces that it came in, if it did.
    longest: Option<usize>,
}

/// A packet that waits for a state, as it passes from one worker to another.
#[derive(Debug)]
pub struct WaitingPacket {
    /// The packet, or super-packet.
    pub packet: PacketBuf,
    /// How many packets it is.
    pub count: usize,
    /// Bytes of the longest of the pieces that it came in, if it did.
    pub longest: Option<usize>,
}

/// Whether the acquire was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// It is on its way.
    Unheard,
    /// There is a larval state; when it goes, nobody will make a real one.
    Pending,
}

/// Larval states that are told apart at the most. Beyond that, packets are dropped and nobody is asked.
const MOST_WANTED: usize = 4096;

impl Waiting {
    pub(crate) fn new(patience: Patience) -> Self {
        Self {
            queues: BTreeMap::new(),
            patience,
            buffers: 0,
            bytes: 0,
            until: Moment(u64::MAX),
            generation: 0,
            acquires: Arc::default(),
            given_up: None,
        }
    }

    /// Buffers that wait.
    pub(crate) fn len(&self) -> usize {
        self.buffers
    }

    /// Makes sure that there is a queue for what is wanted; a new one asks. An error when it is not to be waited for.
    fn open(
        &mut self,
        missing: &Missing,
        flow: &FlowKey,
        bench: &mut Bench<'_>,
    ) -> Result<Wanted, DropReason> {
        let wanted = missing.wanted;
        if bench.snapshot.acquires.is_refused(&wanted, bench.now) {
            return Err(DropReason::OutDeviceRefused);
        }
        if self.given_up == Some(wanted) {
            return Err(DropReason::OutNoState);
        }
        if !self.queues.contains_key(&wanted) {
            if self.queues.len() >= MOST_WANTED {
                return Err(DropReason::OutNoState);
            }
            let answer = ask(missing, flow, bench).ok_or(DropReason::OutNoState)?;
            let queue = Queue::new(answer, &wanted, bench);
            self.until = self.until.min(queue.until);
            self.queues.insert(wanted, queue);
        }
        Ok(wanted)
    }

    /// Whether anything happened for which packets wait, or the time of some is over.
    fn is_due(&mut self, bench: &Bench<'_>) -> bool {
        let snapshot = bench.snapshot;
        let news = self.generation != snapshot.generation
            || !Arc::ptr_eq(&self.acquires, &snapshot.acquires);
        if news {
            self.generation = snapshot.generation;
            self.acquires = Arc::clone(&snapshot.acquires);
        }
        news || bench.now >= self.until
    }

    /// Takes all queues out.
    fn take(&mut self) -> BTreeMap<Wanted, Queue> {
        (self.buffers, self.bytes, self.until) = (0, 0, Moment(u64::MAX));
        std::mem::take(&mut self.queues)
    }

    /// Puts an emptied queue back, if there is still something to wait for.
    fn go_on(&mut self, wanted: Wanted, queue: &Queue, now: Moment) {
        self.given_up = None;
        match queue.outlook(&wanted, &self.acquires, now) {
            None => self.given_up = Some(wanted),
            Some((answer, until)) => {
                self.until = self.until.min(until);
                let empty = Queue { held: VecDeque::new(), bytes: 0, until, answer };
                self.queues.insert(wanted, empty);
            }
        }
    }

    /// Adds a packet to its queue, or gives it back.
    fn push(&mut self, wanted: &Wanted, held: Held) -> Result<(), Held> {
        let Patience { buffers_each, bytes_each, buffers, bytes } = self.patience;
        let size = held.packet.capacity();
        let Some(queue) = self.queues.get_mut(wanted) else { return Err(held) };
        let has_room = queue.held.len() < buffers_each
            && queue.bytes + size <= bytes_each
            && self.buffers < buffers
            && self.bytes + size <= bytes;
        if !has_room {
            return Err(held);
        }
        queue.bytes += size;
        queue.held.push_back(held);
        self.bytes += size;
        self.buffers += 1;
        Ok(())
    }
}

impl Held {
    pub(crate) const fn new(packet: PacketBuf, count: usize) -> Self {
        Self { packet, count, longest: None }
    }

    /// A datagram that the host has cut.
    pub(crate) const fn cut(packet: PacketBuf, longest: usize) -> Self {
        Self { packet, count: 1, longest: Some(longest) }
    }
}

impl Queue {
    fn new(answer: Answer, wanted: &Wanted, bench: &Bench<'_>) -> Self {
        let acquires = &bench.snapshot.acquires;
        let until = acquires.pending.get(wanted).copied();
        let until = until.unwrap_or_else(|| bench.now.plus(acquires.lifetime));
        Self { held: VecDeque::new(), bytes: 0, until, answer }
    }

    /// Whether its state may still come, and until when; `None` when not.
    fn outlook(
        &self,
        wanted: &Wanted,
        acquires: &Acquires,
        now: Moment,
    ) -> Option<(Answer, Moment)> {
        if acquires.is_refused(wanted, now) {
            return None;
        }
        let (answer, until) = match (acquires.pending.get(wanted), self.answer) {
            (Some(until), _) => (Answer::Pending, *until),
            (None, Answer::Pending) => return None,
            (None, Answer::Unheard) => match acquires.key_managers {
                KeyManagers::Absent => return None,
                KeyManagers::Listening => (Answer::Unheard, self.until),
            },
        };
        (now < until).then_some((answer, until))
    }
}

impl Outbound {
    /// Copies of all that waits for states; for each state in order.
    pub(crate) fn portray_waiting(&self) -> Vec<WaitingPacket> {
        let copy = |held: &Held| {
            let mut packet = PacketBuf::from_slice(held.packet.bytes());
            *packet = *held.packet;
            WaitingPacket { packet, count: held.count, longest: held.longest }
        };
        self.waiting.queues.values().flat_map(|queue| queue.held.iter().map(copy)).collect()
    }

    /// Goes on with what waited with another worker, where it was counted.
    pub(crate) fn wait_with(&mut self, waiting: Vec<WaitingPacket>, bench: &mut Bench<'_>) {
        self.policies.begin(&bench.snapshot.spd);
        self.refresh(bench.snapshot);
        for WaitingPacket { packet, count, longest } in waiting {
            self.traffic.received += count as u64;
            self.traffic.received_bytes += packet.len() as u64;
            self.traffic.held += count as u64;
            self.again(Held { packet, count, longest }, bench);
        }
        self.run(&mut Batch::new(), bench, &mut ());
    }

    /// Lets packets go whose states have come, and drops those for which none came in time.
    #[inline]
    pub(crate) fn resume(&mut self, bench: &mut Bench<'_>) {
        if !self.waiting.queues.is_empty() && self.waiting.is_due(bench) {
            self.release(bench);
        }
    }

    #[inline(never)]
    fn release(&mut self, bench: &mut Bench<'_>) {
        for (wanted, queue) in self.waiting.take() {
            self.waiting.go_on(wanted, &queue, bench.now);
            for held in queue.held {
                self.again(held, bench);
            }
        }
        self.waiting.given_up = None;
    }

    /// A packet waits for what the latest resolution missed.
    pub(crate) fn wait(&mut self, held: Held, flow: &FlowKey, bench: &mut Bench<'_>) {
        let count = held.count;
        let required = match self.request(flow, bench) {
            Ok(required) => required,
            Err(reason) => return self.discard(held.packet, count, reason, bench),
        };
        match self.waiting.push(&required, held) {
            Ok(()) => self.traffic.held += count as u64,
            Err(held) => self.discard(held.packet, count, DropReason::OutWaitFull, bench),
        }
    }

    /// Asks for the optional states that the latest resolution did without.
    pub(crate) fn ask_for_optional(&self, flow: &FlowKey, bench: &mut Bench<'_>) {
        for missing in &self.cache.missing {
            ask(missing, flow, bench);
        }
    }

    /// Asks for all that is missing; the last of it, which is required, if it may be waited for.
    fn request(&mut self, flow: &FlowKey, bench: &mut Bench<'_>) -> Result<Wanted, DropReason> {
        let missing = self.cache.missing.split_last();
        let (required, optional) = missing.ok_or(DropReason::OutNoState)?;
        for missing in optional {
            ask(missing, flow, bench);
        }
        self.waiting.open(required, flow, bench)
    }

    /// A packet that has waited: it was counted when it came, by its policies too.
    fn again(&mut self, held: Held, bench: &mut Bench<'_>) {
        self.traffic.held -= held.count as u64;
        let (packet, count) = (&held.packet, held.count);
        let Ok((plan, ip)) = crate::datapath::outbound::parsed(packet) else {
            return self.discard(held.packet, count, DropReason::OutMalformed, bench);
        };
        let flow = FlowKey::of(packet, &ip, packet.bytes());
        match self.look_up(&flow, bench) {
            // Its policy went or changed meanwhile. What was to be protected never leaves plain (`xfrm_policy_kill`).
            Verdict::Pass => self.discard(held.packet, count, DropReason::OutNoState, bench),
            Verdict::Drop(reason) => self.discard(held.packet, count, reason, bench),
            Verdict::Bundle(place) => {
                let head = Head::of(&ip);
                match held.longest {
                    None => self.enter(held.packet, plan.as_ref(), (&head, &flow), place, bench),
                    Some(longest) => {
                        self.enter_cut(held.packet, longest, (head, &flow), place, bench);
                    }
                }
            }
            Verdict::Wait => self.wait(held, &flow, bench),
        }
    }
}

/// Asks key managers for a state, if anybody listens and it is not asked for already.
fn ask(missing: &Missing, flow: &FlowKey, bench: &mut Bench<'_>) -> Option<Answer> {
    let acquires = &bench.snapshot.acquires;
    if acquires.pending.contains_key(&missing.wanted) {
        return Some(Answer::Pending);
    }
    if acquires.is_refused(&missing.wanted, bench.now) {
        return None;
    }
    match acquires.key_managers {
        KeyManagers::Absent => None,
        KeyManagers::Listening => {
            let Missing { policy, template, wanted } = *missing;
            bench.tell(Event::Acquire { policy, template, wanted, flow: *flow });
            Some(Answer::Unheard)
        }
    }
}
