//! One row in the making.

use anyhow::ensure;
use uxfrm_crypto::{Authenticity, Crypter, Iv, OpenJob, SaKey, SealJob, SeqHigh, Transform};
use uxfrm_engine::{Stage, Watch};
use uxfrm_packet::{Batch, PacketBuf};

use super::gateways::{Gateway, Gateways, NOW};
use super::plan::{Scene, Variant, Way};

use crate::clock::TscClock;
use crate::report::{Row, Sample};
use crate::ring::{ROOM, Ring};

/// Packets of one call of the crypto library, as the engine makes them.
const CALL: usize = 64;

/// What the floor is measured with.
pub(super) struct Yardstick {
    crypter: Crypter,
    /// Those of the states, in their order.
    keys: Vec<SaKey>,
    /// Where copies go.
    copies: Vec<[u8; 2048]>,
}

pub(super) struct Trial {
    variant: Variant,
    stages: Option<Stages>,
    incoming: Ring,
    outgoing: Ring,
    batch: Batch,
    /// IV counters of the floor: never one that an SA has used.
    counter: u64,
    sample: Sample,
    floor: Sample,
}

/// Cycles of each stage since `last`, over all batches.
struct Stages {
    last: u64,
    sums: [u64; Stage::ALL.len()],
    receive: u64,
    transmit: u64,
    packets: usize,
}

impl Yardstick {
    pub(super) fn new(scene: &Scene) -> anyhow::Result<Self> {
        let (crypter, keys) = (Crypter::new()?, scene.keys()?);
        Ok(Self { crypter, keys, copies: vec![[1; 2048]; ROOM] })
    }
}

impl Trial {
    pub(super) fn new(variant: Variant) -> Self {
        let mut incoming = Ring::new();
        let mut pool = uxfrm_packet::Pool::new();
        for _ in 0..ROOM {
            incoming.push(pool.take(uxfrm_packet::SizeClass::Packet));
        }
        Self {
            variant,
            stages: None,
            incoming,
            outgoing: Ring::new(),
            batch: Batch::new(),
            counter: 1 << 62,
            sample: Sample::default(),
            floor: Sample::default(),
        }
    }

    /// One that also tells what each stage takes.
    pub(super) fn by_stages(variant: Variant) -> Self {
        Self { stages: Some(Stages::new()), ..Self::new(variant) }
    }

    pub(super) const fn way(&self) -> Way {
        self.variant.way
    }

    /// Forgets what was measured while all was cold.
    pub(super) fn forget(&mut self) {
        (self.sample, self.floor) = (Sample::default(), Sample::default());
        self.stages = self.stages.take().map(|_| Stages::new());
    }

    /// `steps` times [`ROOM`] packets, and the floor of each.
    pub(super) fn round(
        &mut self,
        gateways: &mut Gateways,
        yardstick: &mut Yardstick,
        steps: usize,
    ) -> anyhow::Result<()> {
        let (mut path, mut floor) = (Sample::default(), Sample::default());
        gateways.rewind();
        for step in 0..steps {
            self.feed(gateways);
            path.push(match self.variant.way {
                Way::Out => self.pass(&mut gateways.sender, Way::Out),
                Way::In => self.pass(&mut gateways.receiver, Way::In),
            });
            floor.push(self.floor(yardstick, step * ROOM)?);
            self.take_back()?;
        }
        self.sample.push(path.median());
        self.floor.push(floor.median());
        Ok(())
    }

    /// `packets` packets, each [`ROOM`] of which `pass` has the gateway of their way work on.
    pub(super) fn walk(
        &mut self,
        gateways: &mut Gateways,
        packets: usize,
        mut pass: impl FnMut(&mut Self, &mut Gateway),
    ) -> anyhow::Result<()> {
        for _ in 0..packets / ROOM {
            self.feed(gateways);
            pass(
                self,
                match self.variant.way {
                    Way::Out => &mut gateways.sender,
                    Way::In => &mut gateways.receiver,
                },
            );
            self.take_back()?;
        }
        Ok(())
    }

    /// All packets that went in must have come out.
    fn take_back(&mut self) -> anyhow::Result<()> {
        ensure!(self.outgoing.len() == ROOM, "{} of {ROOM} packets came out", self.outgoing.len());
        for packet in self.outgoing.drain() {
            self.incoming.push(packet);
        }
        Ok(())
    }

    pub(super) fn row(self, hz: f64) -> Row {
        let Self { variant, stages, sample, floor, .. } = self;
        let mut row = Row::of_packets(variant.case, &sample, variant.bytes, hz);
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

    /// Plain packets, or those that the sender made of them, into the port.
    fn feed(&mut self, gateways: &mut Gateways) {
        let bytes = self.variant.bytes as usize;
        for packet in self.incoming.packets() {
            gateways.fill(packet, bytes);
        }
        if self.variant.way == Way::In {
            self.incoming.receive(ROOM, &mut self.batch);
            let Gateway { worker, pool, out, .. } = &mut gateways.sender;
            worker.outbound(&mut self.batch, NOW, pool, out);
            self.incoming.transmit(&mut out.wire);
        }
    }

    /// Cycles per packet from port to port.
    pub(super) fn pass(&mut self, gateway: &mut Gateway, way: Way) -> f64 {
        let count = self.incoming.len();
        match self.stages.take() {
            None => {
                let from = TscClock::now();
                self.batches(gateway, way, &mut ());
                TscClock::per_packet(from, count)
            }
            Some(mut stages) => {
                let from = TscClock::now();
                stages.last = from;
                self.batches(gateway, way, &mut stages);
                stages.packets += count;
                self.stages = Some(stages);
                TscClock::per_packet(from, count)
            }
        }
    }

    #[inline]
    fn batches(&mut self, gateway: &mut Gateway, way: Way, watch: &mut impl PortWatch) {
        let Gateway { worker, pool, out, .. } = gateway;
        while self.incoming.receive(self.variant.batch, &mut self.batch) > 0 {
            watch.received();
            match way {
                Way::Out => {
                    worker.outbound_watched(&mut self.batch, NOW, pool, out, watch);
                    self.outgoing.transmit(&mut out.wire);
                }
                Way::In => {
                    worker.inbound_watched(&mut self.batch, NOW, pool, out, watch);
                    self.outgoing.transmit(&mut out.host);
                }
            }
            watch.transmitted();
        }
    }

    /// Cycles per packet of the crypto library alone, with what the path has put out. For the way in it is what the sender made of that: packets
    /// are sealed once more where they lie, which is not measured.
    fn floor(&mut self, yardstick: &mut Yardstick, first: usize) -> anyhow::Result<f64> {
        let Variant { transform, bytes, batch, shape, way, .. } = &self.variant;
        let packets = self.outgoing.packets();
        if transform.iv_len() == 0 && !transform.authenticates() {
            return Ok(copies(packets, &mut yardstick.copies, *bytes as usize));
        }
        let call = CALL.min(*batch);
        let len = esp_len(transform, *bytes as usize, *shape);
        let mut room: Vec<&mut [u8]> = Vec::with_capacity(packets.len());
        for packet in packets {
            // The same place as in the path, whichever way it went.
            packet.reset();
            packet.push(transform.iv_len() + 8);
            packet.trim(0);
            room.extend(packet.append(len));
        }
        let Yardstick { crypter, keys, .. } = yardstick;
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
        if *way == Way::Out {
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
            jobs.iter().all(|job| job.verdict == Authenticity::Authentic),
            "a packet was not opened"
        );
        Ok(opening)
    }
}

/// Bytes from SPI to ICV around a packet of `bytes` bytes.
fn esp_len(transform: &Transform, bytes: usize, shape: super::Shape) -> usize {
    let ip = if shape.is_ipv6() { 40 } else { 20 };
    let text = if shape.is_tunnel() { bytes } else { bytes - ip };
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

/// Told of the ports too.
trait PortWatch: Watch {
    fn received(&mut self);
    fn transmitted(&mut self);
}

impl PortWatch for () {
    #[inline(always)]
    fn received(&mut self) {}
    #[inline(always)]
    fn transmitted(&mut self) {}
}

impl Watch for Stages {
    #[inline]
    fn passed(&mut self, stage: Stage) {
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

    /// Mean cycles per packet of each stage that there was.
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
