//! One gateway in memory: database, one worker, its buffers and its clock.

use uxfrm_crypto::Backend;
use uxfrm_engine::{
    AcquireView, CapturePoint, Database, DropReason, Event, KeyManagers, Moment, OffloadedPacket,
    Output, PacketWay, Policy, ReceivedPacket, SaConfig, SaRequest, Settings, TracePort, Worker,
};
use uxfrm_packet::{Batch, PacketBuf, Pool};

/// A gateway without ports: tests pass packets in and get packets out.
#[derive(Debug)]
pub struct TestGateway {
    /// States and policies.
    pub database: Database,
    /// The data path.
    pub worker: Worker,
    /// Its buffers.
    pub pool: Pool,
    /// Its clock.
    pub now: Moment,
    /// Events that key managers would have received.
    pub events: Vec<Event>,
    /// Packets handed to devices since this was last emptied.
    pub handed: Vec<OffloadedPacket>,
    output: Output,
}

impl TestGateway {
    /// A gateway without states and policies.
    ///
    /// # Panics
    /// When the crypto library does not start.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let database = Database::new(Backend::Auto, 1);
        let worker = Worker::new(settings, &database.published()).expect("crypto library");
        Self {
            database,
            worker,
            pool: Pool::new(),
            now: Moment::from_secs(1),
            events: Vec::new(),
            handed: Vec::new(),
            output: Output::default(),
        }
    }

    /// Adds a state.
    ///
    /// # Panics
    /// When the database refuses it.
    pub fn add_sa(&mut self, config: SaConfig) {
        self.database.apply(self.now, |change| change.add_sa(config)).expect("a valid state");
    }

    /// Adds a policy.
    ///
    /// # Panics
    /// When the database refuses it.
    pub fn add_policy(&mut self, policy: Policy) {
        self.database.apply(self.now, |change| change.add_policy(policy)).expect("a valid policy");
    }

    /// Pretends that key managers listen and have larval SAs for these acquires, each until its
    /// moment.
    pub fn listen(&mut self, pending: impl IntoIterator<Item = (SaRequest, Moment)>) {
        let pending = std::sync::Arc::new(pending.into_iter().collect());
        let key_managers = KeyManagers::Listening;
        self.database.set_acquires(AcquireView { key_managers, pending, ..AcquireView::default() });
    }

    /// As a loop of the runtime does it while somebody watches: shows packets at both sides and
    /// traces those that are wanted. Returns what [`TestGateway::outbound`] does.
    pub fn outbound_watched(
        &mut self,
        packets: Vec<PacketBuf>,
    ) -> (Vec<PacketBuf>, Vec<PacketBuf>) {
        let Self { worker, pool, output, now, .. } = self;
        let mut batch: Batch = packets.into_iter().collect();
        worker.show(CapturePoint::Plain(PacketWay::Out), batch.as_slice(), *now);
        worker.outbound_traced(&mut batch, TracePort::Host, *now, pool, output);
        worker.show(CapturePoint::Wire(PacketWay::Out), output.wire.as_slice(), *now);
        self.collect()
    }

    /// The same for packets from the wire. Returns what [`TestGateway::inbound`] does.
    pub fn inbound_watched(&mut self, packets: Vec<PacketBuf>) -> Vec<PacketBuf> {
        let Self { worker, pool, output, now, .. } = self;
        let mut batch: Batch = packets.into_iter().collect();
        worker.show(CapturePoint::Wire(PacketWay::In), batch.as_slice(), *now);
        worker.inbound_traced(&mut batch, *now, pool, output);
        worker.show(CapturePoint::Plain(PacketWay::In), output.host.as_slice(), *now);
        self.collect().1
    }

    /// Processes packets from the host; returns packets to the wire, and packets back to the host
    /// (ICMP errors).
    pub fn outbound(&mut self, packets: Vec<PacketBuf>) -> (Vec<PacketBuf>, Vec<PacketBuf>) {
        let mut batch: Batch = packets.into_iter().collect();
        self.worker.outbound(&mut batch, self.now, &mut self.pool, &mut self.output);
        self.collect()
    }

    /// Processes packets from the wire; returns packets to the host.
    pub fn inbound(&mut self, packets: Vec<PacketBuf>) -> Vec<PacketBuf> {
        let mut batch: Batch = packets.into_iter().collect();
        self.worker.inbound(&mut batch, self.now, &mut self.pool, &mut self.output);
        self.collect().1
    }

    /// Processes packets from a device; returns packets to the host.
    pub fn inbound_from_device(&mut self, mut received: Vec<ReceivedPacket>) -> Vec<PacketBuf> {
        let Self { worker, pool, output, now, .. } = self;
        worker.inbound_from_device(&mut received, *now, pool, output);
        self.collect().1
    }

    /// Packets that the worker dropped for a reason.
    #[must_use]
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.worker.drops().of(reason)
    }

    /// All reasons with drops, and their counts.
    #[must_use]
    pub fn reasons(&self) -> Vec<(DropReason, u64)> {
        let all = DropReason::ALL.iter().map(|reason| (*reason, self.drops(*reason)));
        all.filter(|(_, count)| *count > 0).collect()
    }

    /// Checks that every packet came out, is held, or was dropped under one reason.
    ///
    /// # Panics
    /// If one did not.
    pub fn assert_packets_accounted(&self) {
        let (outward, inward) = (self.worker.outward(), self.worker.inward());
        for traffic in [outward, inward] {
            let known = traffic.sent + traffic.dropped + traffic.absorbed + traffic.held;
            assert_eq!(traffic.received, known, "{traffic:?}");
        }
        let by_reason: u64 = self.reasons().iter().map(|(_, count)| count).sum();
        assert_eq!(by_reason, outward.dropped + inward.dropped);
    }

    fn collect(&mut self) -> (Vec<PacketBuf>, Vec<PacketBuf>) {
        self.worker.settle();
        for event in self.output.events.drain(..) {
            self.database.observe(&event);
            self.events.push(event);
        }
        self.handed.append(&mut self.output.offloaded);
        (self.output.wire.drain().collect(), self.output.host.drain().collect())
    }
}

/// Passes the fragments or the whole of one packet from the wire: it comes out, or is dropped under
/// one reason.
///
/// # Errors
/// The drop reason.
///
/// # Panics
/// If the counters show neither.
pub fn inbound_outcome(
    mut gateway: TestGateway,
    packets: Vec<PacketBuf>,
) -> Result<(), DropReason> {
    let count = gateway.inbound(packets).len();
    gateway.assert_packets_accounted();
    match gateway.reasons().as_slice() {
        [] if count == 1 => Ok(()),
        [(reason, 1)] if count == 0 => Err(*reason),
        other => panic!("{count} passed, {other:?}"),
    }
}
