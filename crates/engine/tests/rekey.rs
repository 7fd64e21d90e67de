//! An hour of fake time, a rekey every second, on a wire that loses, doubles and swaps packets.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

use std::time::Duration;

use uxfrm_engine::sa::config::SaFlags;
use uxfrm_engine::{DropReason, Mark, UdpEncapKind, WireHeaders};
use uxfrm_packet::{IpPacket, PacketBuf};
use uxfrm_testkit::{FIRST_SPI, Listener, LossyWire, Pair, Rng, Troubles, Way, Wrapping, packets};

const MARKER: &[u8] = b"never-seen-on-the-wire:";
const SECONDS: u32 = 3600;
const TROUBLES: Troubles = Troubles { dropped: 50, doubled: 50, delayed: 100 };

/// Numbered packets of one way, and which of them arrived.
struct Stream {
    way: Way,
    wire: LossyWire,
    listener: Listener,
    arrived: Vec<bool>,
}

impl Stream {
    fn new(way: Way) -> Self {
        let wire = LossyWire::new(TROUBLES, way as u64);
        Self { way, wire, listener: Listener::new(MARKER), arrived: Vec::new() }
    }

    /// A second's packets: some at once, some alone.
    fn send(&mut self, pair: &mut Pair, rng: &mut Rng) {
        for _ in 0..4 {
            let burst = 1 + rng.below(9);
            let sent = (0..burst).map(|_| self.next_packet()).collect();
            let from = match self.way {
                Way::Right => &mut pair.left,
                Way::Left => &mut pair.right,
            };
            let (wire, host) = from.outbound(sent);
            assert!(host.is_empty());
            self.listener.listen(&wire);
            let there = self.wire.carry(wire);
            self.receive(pair, there);
        }
    }

    fn receive(&mut self, pair: &mut Pair, packets: Vec<PacketBuf>) {
        let to = match self.way {
            Way::Right => &mut pair.right,
            Way::Left => &mut pair.left,
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
            Way::Right => ("10.1.0.1:7", "10.2.0.1:9"),
            Way::Left => ("10.2.0.1:9", "10.1.0.1:7"),
        };
        packets::udp(source, destination, &payload)
    }
}

fn an_hour(wrapping: &Wrapping) {
    let mut pair = Pair::new(wrapping);
    let mut rng = Rng::new(42);
    let mut streams = [Stream::new(Way::Right), Stream::new(Way::Left)];
    for second in 1..=SECONDS {
        pair.wait(Duration::from_secs(1));
        for stream in &mut streams {
            stream.send(&mut pair, &mut rng);
        }
        rekey(&mut pair, wrapping, FIRST_SPI + 2 * second, &mut streams, &mut rng);
        // What is on the way still belongs to states that are no longer the newest.
        for stream in &mut streams {
            let late = stream.wire.drain();
            stream.receive(&mut pair, late);
        }
        retire(&mut pair, wrapping, FIRST_SPI + 2 * (second - 1));
    }
    for stream in &streams {
        let arrived = stream.arrived.iter().filter(|arrived| **arrived).count() as u64;
        assert_eq!(stream.listener.seen, 0, "nothing leaves plain");
        assert_eq!(arrived + stream.wire.lost, stream.arrived.len() as u64, "only the wire loses");
        assert!(stream.wire.lost > 1000 && stream.wire.doubled > 1000, "the wire is bad");
    }
    let [right, left] = &streams;
    assert_eq!(pair.right.reasons(), [(DropReason::InReplay, right.wire.doubled)]);
    assert_eq!(pair.left.reasons(), [(DropReason::InReplay, left.wire.doubled)]);
    pair.assert_accounts();
}

/// As IKE does it: the one who was asked has both states first, and traffic goes on in between.
fn rekey(pair: &mut Pair, wrapping: &Wrapping, spi: u32, streams: &mut [Stream; 2], rng: &mut Rng) {
    pair.right.add_sa(wrapping.sa(Way::Right, spi));
    streams[0].send(pair, rng);
    pair.left.add_sa(wrapping.sa(Way::Left, spi + 1));
    pair.left.add_sa(wrapping.sa(Way::Right, spi));
    streams[0].send(pair, rng);
    streams[1].send(pair, rng);
    pair.right.add_sa(wrapping.sa(Way::Left, spi + 1));
}

fn retire(pair: &mut Pair, wrapping: &Wrapping, spi: u32) {
    for gateway in [&mut pair.left, &mut pair.right] {
        for (way, spi) in [(Way::Right, spi), (Way::Left, spi + 1)] {
            let id = wrapping.sa(way, spi).id;
            gateway
                .database
                .apply(gateway.now, |change| change.delete_sa(id, Mark::default()))
                .unwrap();
        }
    }
}

#[test]
fn a_rekey_every_second_for_an_hour_loses_and_doubles_nothing() {
    an_hour(&Wrapping { flags: SaFlags::ESN, window: 128, ..Wrapping::tunnel4() });
}

#[test]
fn so_it_is_behind_udp_sockets() {
    let mut wrapping = Wrapping { window: 128, ..Wrapping::tunnel4() };
    wrapping.encap = Some(UdpEncapKind::Esp);
    wrapping.settings.headers = WireHeaders::UdpSocket;
    an_hour(&wrapping);
}
