//! A worker whose ports report how long packets waited.

use std::time::Instant;

use super::*;

/// A memory port whose packets have all waited for this long.
#[derive(Debug)]
struct Slow {
    port: Box<Ready>,
    waited: Duration,
}

impl Port for Slow {
    fn receive(&mut self, pool: &mut Pool, into: &mut Batch) -> io::Result<usize> {
        self.port.receive(pool, into)
    }

    fn transmit(&mut self, batch: &mut Batch, pool: &mut Pool) -> Transmitted {
        self.port.transmit(batch, pool)
    }

    fn accepts(&self) -> Accepts {
        self.port.accepts()
    }

    fn waited(&self) -> Duration {
        self.waited
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.port.descriptor()
    }
}

/// Waiting times at the host's port and at the wire's.
struct Waits {
    host: Duration,
    wire: Duration,
}

const TARGET: Duration = Duration::from_millis(5);
/// Two packets of this size are no queue; those of `FLOWS` flows are one.
const SEGMENT: &[u8] = &[7; 1300];
const FLOWS: usize = 3;
/// Too long at the host's port as well.
const LONG: Duration = Duration::from_millis(15);

/// A worker, the far ends of its ports, and the other gateway.
struct Place {
    lane: WorkerLoop,
    host: Memory,
    wire: Memory,
    right: TestGateway,
    pool: Pool,
}

impl Place {
    fn new(waits: Waits) -> Self {
        let settings = Settings { headers: WireHeaders::UdpSocket, ..Settings::default() };
        let TestGatewayPair { left, right, .. } =
            TestGatewayPair::new(&IpsecSetup { settings, ..IpsecSetup::tunnel4() });
        let ((near_host, host), (near_wire, wire)) = (Ready::pair(), Ready::pair());
        let other = || Box::new(Memory::pair(1).0);
        let slow_wire = Slow { port: near_wire, waited: waits.wire };
        let wires = WirePorts::new(Box::new(slow_wire), other(), Vec::new());
        let events = Events::new(mpsc::channel().0, Poller::new().unwrap().waker());
        let slow_host = Slow { port: near_host, waited: waits.host };
        let lane = WorkerLoop::new(Box::new(slow_host), wires, left.worker, events).unwrap();
        Self { lane, host, wire, right, pool: Pool::new() }
    }

    /// Sends a TCP packet each way in each flow; returns what arrived on the wire, decrypted, and
    /// on the host.
    fn exchange(&mut self, flows: usize) -> (Vec<PacketBuf>, Vec<PacketBuf>) {
        let all = |from: &str, to: &str| -> Vec<_> {
            let ports = (9..).take(flows).map(|port| format!("{to}:{port}"));
            ports.map(|to| packets::tcp(from, &to, 1, SEGMENT)).collect()
        };
        let sealed = self.right.outbound(all("10.2.0.1:9", "10.1.0.1")).0;
        let mut batch: Batch = sealed.into_iter().collect();
        assert_eq!(self.wire.transmit(&mut batch, &mut self.pool).packets, flows as u64);
        let mut batch: Batch = all("10.1.0.1:7", "10.2.0.1").into_iter().collect();
        assert_eq!(self.host.transmit(&mut batch, &mut self.pool).packets, flows as u64);
        self.lane.turn().unwrap();
        self.wire.receive(&mut self.pool, &mut batch).unwrap();
        let out = self.right.inbound(batch.drain().collect());
        self.host.receive(&mut self.pool, &mut batch).unwrap();
        (out, batch.drain().collect())
    }

    fn told(&self) -> [u64; 2] {
        [DropReason::OutQueueStands, DropReason::InQueueStands]
            .map(|reason| self.lane.worker().drops().of(reason))
    }
}

#[test]
fn standing_queue_signals_only_its_own_senders() {
    for (host, wire) in [(LONG, Duration::ZERO), (Duration::ZERO, LONG)] {
        let mut place = Place::new(Waits { host, wire });
        place.lane = place.lane.with_queue_delay(TARGET);
        let (mut sent, mut out, mut back) = (0, 0, 0);
        let deadline = Instant::now() + Duration::from_secs(20);
        while place.told().iter().sum::<u64>() < 3 {
            assert!(Instant::now() < deadline, "{:?}", place.told());
            let arrived = place.exchange(FLOWS);
            sent += FLOWS as u64;
            out += arrived.0.len() as u64;
            back += arrived.1.len() as u64;
        }
        let expected = if host == LONG { [3, 0] } else { [0, 3] };
        assert_eq!(place.told(), expected);
        assert_eq!([sent - out, sent - back], expected, "each that is missing was counted");
    }
}

#[test]
fn host_port_tolerates_longer_queue_delay() {
    let waits = LONG - Duration::from_millis(1);
    let mut place = Place::new(Waits { host: waits, wire: waits });
    place.lane = place.lane.with_queue_delay(TARGET);
    let deadline = Instant::now() + Duration::from_secs(20);
    while place.told() == [0, 0] {
        assert!(Instant::now() < deadline);
        place.exchange(FLOWS);
    }
    assert_eq!(place.told(), [0, 1]);
}

#[test]
fn no_congestion_signal_unless_configured() {
    exchange_without_a_sign(Place::new(Waits { host: LONG, wire: LONG }), FLOWS);
}

#[test]
fn two_packets_are_no_standing_queue() {
    let mut place = Place::new(Waits { host: LONG, wire: LONG });
    place.lane = place.lane.with_queue_delay(TARGET);
    exchange_without_a_sign(place, 2);
}

fn exchange_without_a_sign(mut place: Place, flows: usize) {
    let end = Instant::now() + Duration::from_millis(30);
    while Instant::now() < end {
        let (out, back) = place.exchange(flows);
        assert_eq!((out.len(), back.len()), (flows, flows));
    }
    assert_eq!(place.told(), [0, 0]);
}
