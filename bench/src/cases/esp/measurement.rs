//! The measurement of one row, and the baseline beside it.

use anyhow::ensure;
use uxfrm_crypto::{Crypter, Iv, OpenJob, OpenStatus, SaKey, SealJob, SeqHigh, Transform};
use uxfrm_engine::{Stage, StageWatch};
use uxfrm_packet::{Batch, PacketBuf};

use super::ends::{EndWorker, NOW, WorkerPair};
use super::plan::{EspCase, EspSetup};
use crate::direction::TestDirection;

use crate::clock::TscClock;
use crate::report::{Row, Samples};
use crate::ring::{ROOM, Ring};

/// Packets of one call of the crypto library, as the engine makes them.
const CALL: usize = 64;

/// The crypto library alone, with the same keys.
pub(super) struct Baseline {
    crypter: Crypter,
    /// The SAs' keys in their order.
    keys: Vec<SaKey>,
    /// Targets of copies, for the null transform.
    copies: Vec<[u8; 2048]>,
}

/// What becomes of all packets of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketFate {
    Passed,
    Dropped,
}

pub(super) struct Measurement {
    esp_case: EspCase,
    fate: PacketFate,
    stages: Option<Stages>,
    incoming: Ring,
    outgoing: Ring,
    batch: Batch,
    /// IV counter of the baseline, beyond those that SAs use.
    counter: u64,
    sample: Samples,
    floor: Samples,
}

/// Cycles of each stage since `last`, over all batches.
struct Stages {
    last: u64,
    sums: [u64; Stage::ALL.len()],
    receive: u64,
    transmit: u64,
    packets: usize,
}

impl Baseline {
    pub(super) fn new(setup: &EspSetup) -> anyhow::Result<Self> {
        let (crypter, keys) = (Crypter::new()?, setup.keys()?);
        Ok(Self { crypter, keys, copies: vec![[1; 2048]; ROOM] })
    }
}

impl Measurement {
    pub(super) fn new(esp_case: EspCase) -> Self {
        let mut incoming = Ring::new();
        let mut pool = uxfrm_packet::Pool::new();
        for _ in 0..ROOM {
            incoming.push(pool.take(uxfrm_packet::SizeClass::Packet));
        }
        Self {
            esp_case,
            fate: PacketFate::Passed,
            stages: None,
            incoming,
            outgoing: Ring::new(),
            batch: Batch::new(),
            counter: 1 << 62,
            sample: Samples::default(),
            floor: Samples::default(),
        }
    }

    /// All packets have to come to this.
    pub(super) fn expecting(esp_case: EspCase, fate: PacketFate) -> Self {
        Self { fate, ..Self::new(esp_case) }
    }

    /// Also measures each stage.
    pub(super) fn by_stages(esp_case: EspCase) -> Self {
        Self { stages: Some(Stages::new()), ..Self::new(esp_case) }
    }

    pub(super) const fn direction(&self) -> TestDirection {
        self.esp_case.direction
    }

    /// Discards the samples of the warm-up.
    pub(super) fn forget(&mut self) {
        (self.sample, self.floor) = (Samples::default(), Samples::default());
        self.stages = self.stages.take().map(|_| Stages::new());
    }

    /// Passes `steps` times [`ROOM`] packets, and measures the floor after each.
    pub(super) fn round(
        &mut self,
        pair: &mut WorkerPair,
        baseline: &mut Baseline,
        steps: usize,
    ) -> anyhow::Result<()> {
        let (mut path, mut floor) = (Samples::default(), Samples::default());
        pair.rewind();
        for step in 0..steps {
            self.feed(pair);
            path.push(match self.esp_case.direction {
                TestDirection::Out => self.pass(&mut pair.sender, TestDirection::Out),
                TestDirection::In => self.pass(&mut pair.receiver, TestDirection::In),
            });
            floor.push(self.floor(baseline, step * ROOM)?);
            self.take_back()?;
        }
        self.sample.push(path.median());
        self.floor.push(floor.median());
        Ok(())
    }

    /// Feeds `packets` packets, [`ROOM`] at a time, and calls `pass` with the end that processes
    /// them.
    pub(super) fn walk(
        &mut self,
        pair: &mut WorkerPair,
        packets: usize,
        mut pass: impl FnMut(&mut Self, &mut EndWorker),
    ) -> anyhow::Result<()> {
        for _ in 0..packets / ROOM {
            self.feed(pair);
            let end = match self.esp_case.direction {
                TestDirection::Out => &mut pair.sender,
                TestDirection::In => &mut pair.receiver,
            };
            pass(self, end);
            match self.fate {
                PacketFate::Passed => self.take_back()?,
                PacketFate::Dropped => self.replace_dropped(end)?,
            }
        }
        Ok(())
    }

    /// Returns the packets to the incoming port; all that went in must have come out.
    fn take_back(&mut self) -> anyhow::Result<()> {
        ensure!(self.outgoing.len() == ROOM, "{} of {ROOM} packets came out", self.outgoing.len());
        for packet in self.outgoing.drain() {
            self.incoming.push(packet);
        }
        Ok(())
    }

    /// Fills the incoming port anew from where dropped buffers went; none may have come out.
    fn replace_dropped(&mut self, end: &mut EndWorker) -> anyhow::Result<()> {
        ensure!(self.outgoing.len() == 0, "{} of {ROOM} packets came out", self.outgoing.len());
        for _ in 0..ROOM {
            self.incoming.push(end.pool.take(uxfrm_packet::SizeClass::Packet));
        }
        Ok(())
    }

    pub(super) fn row(self, hz: f64) -> Row {
        let Self { esp_case, stages, sample, floor, .. } = self;
        let mut row = Row::of_packets(esp_case.case, &sample, esp_case.bytes, hz);
        row.figure("floor_cycles", floor.median(), 1);
        row.figure("floor_min", floor.quantile(0.0), 1);
        row.figure("over_floor", sample.median() - floor.median(), 1);
        if let Some(stages) = stages {
            for (name, cycles) in stages.figures() {
                row.figure(&name, cycles, 1);
            }
        }
        row
    }

    /// Fills the port with plain packets, or with the sender's ESP packets if inbound is measured.
    fn feed(&mut self, pair: &mut WorkerPair) {
        let bytes = self.esp_case.bytes as usize;
        for packet in self.incoming.packets() {
            pair.fill(packet, bytes);
        }
        if self.esp_case.direction == TestDirection::In {
            self.incoming.receive(ROOM, &mut self.batch);
            let EndWorker { worker, pool, out, .. } = &mut pair.sender;
            worker.outbound(&mut self.batch, NOW, pool, out);
            self.incoming.transmit(&mut out.wire);
        }
    }

    /// Cycles per packet from port to port.
    pub(super) fn pass(&mut self, end: &mut EndWorker, direction: TestDirection) -> f64 {
        let count = self.incoming.len();
        match self.stages.take() {
            None => {
                let from = TscClock::now();
                self.batches(end, direction, &mut ());
                TscClock::per_packet(from, count)
            }
            Some(mut stages) => {
                let from = TscClock::now();
                stages.last = from;
                self.batches(end, direction, &mut stages);
                stages.packets += count;
                self.stages = Some(stages);
                TscClock::per_packet(from, count)
            }
        }
    }

    #[inline]
    fn batches(
        &mut self,
        end: &mut EndWorker,
        direction: TestDirection,
        watch: &mut impl PortWatch,
    ) {
        let EndWorker { worker, pool, out, .. } = end;
        while self.incoming.receive(self.esp_case.batch, &mut self.batch) > 0 {
            watch.received();
            match direction {
                TestDirection::Out => {
                    worker.outbound_watched(&mut self.batch, NOW, pool, out, watch);
                    self.outgoing.transmit(&mut out.wire);
                }
                TestDirection::In => {
                    worker.inbound_watched(&mut self.batch, NOW, pool, out, watch);
                    self.outgoing.transmit(&mut out.host);
                }
            }
            watch.transmitted();
        }
    }

    /// Cycles per packet of the crypto library alone, on the buffers that the path put out.
    /// Inbound, packets are first sealed again in place, which is not measured.
    fn floor(&mut self, baseline: &mut Baseline, first: usize) -> anyhow::Result<f64> {
        let EspCase { transform, bytes, batch, mode, direction, .. } = &self.esp_case;
        let packets = self.outgoing.packets();
        if transform.iv_len() == 0 && !transform.authenticates() {
            return Ok(copies(packets, &mut baseline.copies, *bytes as usize));
        }
        let call = CALL.min(*batch);
        let len = esp_len(transform, *bytes as usize, *mode);
        let mut room: Vec<&mut [u8]> = Vec::with_capacity(packets.len());
        for packet in packets {
            // The same offset as in the path, in either direction.
            packet.reset();
            packet.push(transform.iv_len() + 8);
            packet.trim(0);
            room.extend(packet.append(len));
        }
        let Baseline { crypter, keys, .. } = baseline;
        let key = |at: usize| &keys[(first + at) % keys.len()];
        let mut jobs: Vec<SealJob<'_>> = Vec::with_capacity(room.len());
        for (at, esp) in room.iter_mut().enumerate() {
            self.counter += 1;
            jobs.push(SealJob::in_place(key(at), SeqHigh::None, Iv::Counter(self.counter), esp));
        }
        let mut sealed = true;
        let from = TscClock::now();
        jobs.chunks_mut(call).for_each(|jobs| sealed &= crypter.seal(jobs));
        let sealing = TscClock::per_packet(from, jobs.len());
        ensure!(sealed, "a packet was not sealed");
        if *direction == TestDirection::Out {
            return Ok(sealing);
        }
        drop(jobs);
        let mut jobs: Vec<OpenJob<'_>> = Vec::with_capacity(room.len());
        for (at, esp) in room.iter_mut().enumerate() {
            jobs.push(OpenJob::in_place(key(at), SeqHigh::None, esp));
        }
        let from = TscClock::now();
        jobs.chunks_mut(call).for_each(|jobs| crypter.open(jobs));
        let opening = TscClock::per_packet(from, jobs.len());
        ensure!(
            jobs.iter().all(|job| job.status == OpenStatus::Authentic),
            "a packet was not opened"
        );
        Ok(opening)
    }
}

/// Bytes from SPI to ICV around a packet of `bytes` bytes.
fn esp_len(transform: &Transform, bytes: usize, mode: super::EspMode) -> usize {
    let ip = if mode.is_ipv6() { 40 } else { 20 };
    let text = if mode.is_tunnel() { bytes } else { bytes - ip };
    transform.overhead() + (text + 2).next_multiple_of(transform.block_len().max(4))
}

/// Cycles per packet of copying the plain packets.
fn copies(packets: &[PacketBuf], targets: &mut [[u8; 2048]], bytes: usize) -> f64 {
    let from = TscClock::now();
    for (packet, target) in packets.iter().zip(targets) {
        target[..bytes].copy_from_slice(&packet.bytes()[..bytes]);
    }
    TscClock::per_packet(from, packets.len())
}

/// A [`StageWatch`] that also sees the ports.
trait PortWatch: StageWatch {
    fn received(&mut self);
    fn transmitted(&mut self);
}

impl PortWatch for () {
    #[inline(always)]
    fn received(&mut self) {}
    #[inline(always)]
    fn transmitted(&mut self) {}
}

impl StageWatch for Stages {
    #[inline]
    fn stage_done(&mut self, stage: Stage) {
        self.sums[stage as usize] += self.lap();
    }
}

impl PortWatch for Stages {
    #[inline]
    fn received(&mut self) {
        self.receive += self.lap();
    }

    #[inline]
    fn transmitted(&mut self) {
        self.transmit += self.lap();
    }
}

impl Stages {
    fn new() -> Self {
        Self { last: 0, sums: [0; Stage::ALL.len()], receive: 0, transmit: 0, packets: 0 }
    }

    #[inline]
    fn lap(&mut self) -> u64 {
        let now = TscClock::now();
        now.wrapping_sub(std::mem::replace(&mut self.last, now))
    }

    /// Mean cycles per packet of each stage that took any.
    fn figures(&self) -> Vec<(String, f64)> {
        let stages = Stage::ALL.iter().zip(self.sums);
        let named = stages.map(|(stage, cycles)| (format!("stage_{}", stage.name()), cycles));
        let ports = [("stage_port_in", self.receive), ("stage_port_out", self.transmit)];
        let ports = ports.map(|(name, cycles)| (name.to_owned(), cycles));
        let all = ports[..1].iter().cloned().chain(named).chain(ports[1..].iter().cloned());
        #[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
        let mean = |cycles: u64| cycles as f64 / self.packets.max(1) as f64;
        all.filter(|(_, cycles)| *cycles > 0).map(|(name, cycles)| (name, mean(cycles))).collect()
    }
}
