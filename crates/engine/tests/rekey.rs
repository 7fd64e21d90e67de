//! An hour of fake time with a rekey every second, on a wire that loses, duplicates and reorders
//! packets; and which of two SAs is used.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

use std::sync::Arc;
use std::time::Duration;

use uxfrm_engine::sa::config::SaFlags;
use uxfrm_engine::{Direction, DropReason, Mark, Spi, UdpEncapKind, WireHeaders};
use uxfrm_packet::{IpPacket, PacketBuf};
use uxfrm_testkit::{
    FIRST_SPI, IpsecSetup, LossyWire, PairDirection, PlaintextDetector, Rng, TestGateway,
    TestGatewayPair, WireImpairments, packets,
};

const MARKER: &[u8] = b"never-seen-on-the-wire:";
const SECONDS: u32 = 3600;
const TROUBLES: WireImpairments = WireImpairments { dropped: 50, duplicated: 50, delayed: 100 };

/// Numbered packets of one way, and which of them arrived.
struct Stream {
    way: PairDirection,
    wire: LossyWire,
    listener: PlaintextDetector,
    arrived: Vec<bool>,
}

impl Stream {
    fn new(way: PairDirection) -> Self {
        let wire = LossyWire::new(TROUBLES, way as u64);
        Self { way, wire, listener: PlaintextDetector::new(MARKER), arrived: Vec::new() }
    }

    /// A second's packets: some at once, some alone.
    fn send(&mut self, pair: &mut TestGatewayPair, rng: &mut Rng) {
        for _ in 0..4 {
            let burst = 1 + rng.below(9);
            let sent = (0..burst).map(|_| self.next_packet()).collect();
            let from = match self.way {
                PairDirection::LeftToRight => &mut pair.left,
                PairDirection::RightToLeft => &mut pair.right,
            };
            let (wire, host) = from.outbound(sent);
            assert!(host.is_empty());
            self.listener.listen(&wire);
            let there = self.wire.carry(wire);
            self.receive(pair, there);
        }
    }

    fn receive(&mut self, pair: &mut TestGatewayPair, packets: Vec<PacketBuf>) {
        let to = match self.way {
            PairDirection::LeftToRight => &mut pair.right,
            PairDirection::RightToLeft => &mut pair.left,
        };
        for packet in to.inbound(packets) {
            let ip = IpPacket::parse(packet.bytes()).unwrap();
            let payload = &ip.upper(packet.bytes())[8..];
            let number = payload.strip_prefix(MARKER).expect("the payload that was sent");
            let number: usize = std::str::from_utf8(number).unwrap().parse().unwrap();
            assert!(!std::mem::replace(&mut self.arrived[number], true), "{number} came twice");
        }
    }

    fn next_packet(&mut self) -> PacketBuf {
        let payload = [MARKER, self.arrived.len().to_string().as_bytes()].concat();
        self.arrived.push(false);
        let (source, destination) = match self.way {
            PairDirection::LeftToRight => ("10.1.0.1:7", "10.2.0.1:9"),
            PairDirection::RightToLeft => ("10.2.0.1:9", "10.1.0.1:7"),
        };
        packets::udp(source, destination, &payload)
    }
}

/// How two ends get from one pair of states to the next, with traffic in between.
type Rekey = fn(&mut TestGatewayPair, &IpsecSetup, u32, &mut [Stream; 2], &mut Rng);

fn an_hour(setup: &IpsecSetup, rekey: Rekey) {
    let mut pair = TestGatewayPair::new(setup);
    let mut rng = Rng::new(42);
    let mut streams =
        [Stream::new(PairDirection::LeftToRight), Stream::new(PairDirection::RightToLeft)];
    for second in 1..=SECONDS {
        pair.wait(Duration::from_secs(1));
        for stream in &mut streams {
            stream.send(&mut pair, &mut rng);
        }
        rekey(&mut pair, setup, FIRST_SPI + 2 * second, &mut streams, &mut rng);
        // What is on the way still belongs to states that are no longer the newest.
        for stream in &mut streams {
            let late = stream.wire.drain();
            stream.receive(&mut pair, late);
        }
        retire(&mut pair, setup, FIRST_SPI + 2 * (second - 1));
    }
    for stream in &streams {
        let arrived = stream.arrived.iter().filter(|arrived| **arrived).count() as u64;
        assert_eq!(stream.listener.seen, 0, "nothing leaves plain");
        assert_eq!(arrived + stream.wire.lost, stream.arrived.len() as u64, "only the wire loses");
        assert!(stream.wire.lost > 1000 && stream.wire.duplicated > 1000, "the wire is bad");
    }
    let [right, left] = &streams;
    assert_eq!(pair.right.reasons(), [(DropReason::InReplay, right.wire.duplicated)]);
    assert_eq!(pair.left.reasons(), [(DropReason::InReplay, left.wire.duplicated)]);
    pair.assert_accounts();
}

/// The responder gets both states first, and traffic continues in between.
fn at_once(
    pair: &mut TestGatewayPair,
    setup: &IpsecSetup,
    spi: u32,
    streams: &mut [Stream; 2],
    rng: &mut Rng,
) {
    pair.right.add_sa(setup.sa(PairDirection::LeftToRight, spi));
    streams[0].send(pair, rng);
    pair.left.add_sa(setup.sa(PairDirection::RightToLeft, spi + 1));
    pair.left.add_sa(setup.sa(PairDirection::LeftToRight, spi));
    streams[0].send(pair, rng);
    streams[1].send(pair, rng);
    pair.right.add_sa(setup.sa(PairDirection::RightToLeft, spi + 1));
}

/// As charon does it, in turn begun by either end: ALLOCSPI and UPDSA of what it receives, NEWSA of
/// what it sends, UPDPOLICY of all three, the SPI in the template for the way out, DELSA of the old
/// one. Who answers sends with the old state until the other deletes it.
fn as_charon(
    pair: &mut TestGatewayPair,
    setup: &IpsecSetup,
    spi: u32,
    streams: &mut [Stream; 2],
    rng: &mut Rng,
) {
    let ends = [
        (PairDirection::LeftToRight, PairDirection::RightToLeft),
        (PairDirection::RightToLeft, PairDirection::LeftToRight),
    ];
    let [(out, back), _] = if spi & 2 == 0 { ends } else { [ends[1], ends[0]] };
    let spi_of = |way| if way == PairDirection::LeftToRight { spi } else { spi + 1 };
    let traffic = |pair: &mut TestGatewayPair, streams: &mut [Stream; 2], rng: &mut Rng| {
        streams.iter_mut().for_each(|stream| stream.send(pair, rng));
    };
    sender(pair, back).add_sa(setup.sa(out, spi_of(out)));
    sender(pair, out).add_sa(setup.sa(back, spi_of(back)));
    traffic(pair, streams, rng);
    switch(sender(pair, out), setup, (out, back), spi_of(out));
    traffic(pair, streams, rng);
    switch(sender(pair, back), setup, (back, out), spi_of(back));
    let old = setup.sa(back, spi_of(back) - 2).id;
    let gateway = sender(pair, back);
    gateway.database.apply(gateway.now, |change| change.delete_sa(old, Mark::default())).unwrap();
    traffic(pair, streams, rng);
}

/// NEWSA of the new outbound state, and UPDPOLICY of all policies.
fn switch(
    gateway: &mut TestGateway,
    setup: &IpsecSetup,
    (out, back): (PairDirection, PairDirection),
    spi: u32,
) {
    gateway.add_sa(setup.sa(out, spi));
    let mut policy = setup.policy(Direction::Out, out);
    policy.templates[0].spi = Spi(spi);
    let others = [Direction::In, Direction::Forward].map(|way| setup.policy(way, back));
    for policy in others.into_iter().chain([policy]) {
        gateway.database.apply(gateway.now, |change| change.update_policy(policy)).unwrap();
    }
}

fn sender(pair: &mut TestGatewayPair, way: PairDirection) -> &mut TestGateway {
    match way {
        PairDirection::LeftToRight => &mut pair.left,
        PairDirection::RightToLeft => &mut pair.right,
    }
}

fn retire(pair: &mut TestGatewayPair, setup: &IpsecSetup, spi: u32) {
    for gateway in [&mut pair.left, &mut pair.right] {
        for (way, spi) in [(PairDirection::LeftToRight, spi), (PairDirection::RightToLeft, spi + 1)]
        {
            let id = setup.sa(way, spi).id;
            // Gone already where the rekeying deleted it.
            let _gone =
                gateway.database.apply(gateway.now, |change| change.delete_sa(id, Mark::default()));
        }
    }
}

/// A worker remembers the states that its batches met, and with them their keys.
#[test]
fn idle_worker_releases_removed_sas() {
    let setup = IpsecSetup::tunnel4();
    let mut pair = TestGatewayPair::new(&setup);
    assert_eq!(pair.left_to_right(vec![packets::udp("10.1.0.1:7", "10.2.0.1:9", b"hi")]).len(), 1);
    for gateway in [&mut pair.left, &mut pair.right] {
        let id = setup.sa(PairDirection::LeftToRight, FIRST_SPI).id;
        let delete =
            |change: &mut uxfrm_engine::Transaction<'_>| change.delete_sa(id, Mark::default());
        let gone = Arc::downgrade(&gateway.database.apply(gateway.now, delete).unwrap());
        assert!(gone.upgrade().is_some(), "there was no batch since");
        gateway.worker.refresh();
        let later = gateway.now.plus(Duration::from_secs(60));
        gateway.database.handle_timeout(later, &mut gateway.events);
        assert!(gone.upgrade().is_none());
    }
}

#[test]
fn rekey_every_second_loses_and_doubles_nothing() {
    an_hour(&IpsecSetup { flags: SaFlags::ESN, window: 128, ..IpsecSetup::tunnel4() }, at_once);
}

#[test]
fn charon_style_rekey_loses_nothing() {
    an_hour(&IpsecSetup { flags: SaFlags::ESN, window: 128, ..IpsecSetup::tunnel4() }, as_charon);
}

#[test]
fn rekey_behind_udp_sockets_loses_nothing() {
    let mut setup = IpsecSetup { window: 128, ..IpsecSetup::tunnel4() };
    setup.encap = Some(UdpEncapKind::Esp);
    setup.settings.headers = WireHeaders::UdpSocket;
    an_hour(&setup, at_once);
}

/// `xfrm_state_find`: the youngest, unless it is dying; what went away is not missed while another
/// is there.
#[test]
fn youngest_sa_is_used_at_once() {
    let setup = IpsecSetup::tunnel4();
    let mut pair = TestGatewayPair::new(&setup);
    let spi = |pair: &mut TestGatewayPair| {
        let packet = packets::udp("10.1.0.1:7", "10.2.0.1:9", b"which");
        let (wire, _) = pair.left.outbound(vec![packet]);
        u32::from_be_bytes(wire[0].bytes()[20..24].try_into().unwrap())
    };
    let old = FIRST_SPI;
    assert_eq!(spi(&mut pair), old);
    // Of one second and one moment the first found is the one added last, as in the kernel's
    // chains.
    for (wait, new) in [(0, 0x20), (1, 0x10), (1, 0x30)] {
        pair.wait(Duration::from_secs(wait));
        pair.left.add_sa(setup.sa(PairDirection::LeftToRight, new));
        assert_eq!(spi(&mut pair), new, "at once");
    }
    for (gone, next) in [(0x10, 0x30), (0x30, 0x20), (0x20, old)] {
        let id = setup.sa(PairDirection::LeftToRight, gone).id;
        let left = &mut pair.left;
        left.database.apply(left.now, |change| change.delete_sa(id, Mark::default())).unwrap();
        assert_eq!(spi(&mut pair), next);
    }
    assert_eq!(pair.left.reasons(), []);
}
