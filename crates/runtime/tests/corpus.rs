//! The corpus of the fuzzer for inline mode, replayed; see `fuzz/README.md`.
#![expect(clippy::unwrap_used, reason = "a test ends where it is wrong")]

mod router;

use uxfrm_packet::PacketBuf;
use uxfrm_testkit::fuzz::{Corpus, replay};
use uxfrm_testkit::{IpsecSetup, TestGatewayPair, packets};

#[test]
fn inline() {
    replay("inline", router::inline);
}

/// Seeds of the corpus: plain packets and ESP, both ways, in frames, and frames that are no
/// packets.
#[test]
#[ignore = "writes fuzz/corpus: for `make fuzz-seeds`"]
fn seeds() {
    let corpus = Corpus::of("inline");
    let plain = || packets::udp("10.1.0.2:7", "10.2.0.2:9", b"SECRET-PLAINTEXT");
    let esp = || {
        let mut pair = TestGatewayPair::new(&IpsecSetup::tunnel4());
        pair.right.outbound(vec![packets::udp("10.2.0.2:7", "10.1.0.2:9", &[7; 40])]).0.remove(0)
    };
    let elsewhere = || packets::udp("10.1.0.2:7", "10.9.0.2:9", b"plain");
    let v6 = || packets::udp("[fd00:1::2]:7", "[fd00:2::2]:9", b"plain");
    let large = || packets::dont_fragment(packets::udp("10.1.0.2:7", "10.2.0.2:9", &[5; 1460]));
    let own = || packets::udp("10.2.0.2:7", "192.0.2.1:9", b"own");
    for (name, pieces) in [
        ("plain", vec![(2, plain())]),
        ("esp", vec![(3, esp())]),
        ("both", vec![(2, plain()), (2, elsewhere()), (7, esp()), (3, own())]),
        ("v6", vec![(2, v6()), (3, v6())]),
        ("large", vec![(2, large()), (6, large())]),
        ("super", vec![(10, packets::tcp_super("10.1.0.2:7", "10.2.0.2:9", &[3; 400], 100))]),
        ("frame", vec![(0, PacketBuf::from_slice(&[2; 60])), (1, PacketBuf::from_slice(&[8; 14]))]),
    ] {
        corpus.add(&format!("seed-{name}"), &pieces.iter().flat_map(piece).collect::<Vec<_>>());
    }
}

fn piece((flags, packet): &(u8, PacketBuf)) -> Vec<u8> {
    let length = u16::try_from(packet.len()).unwrap();
    [&[*flags][..], &length.to_le_bytes(), packet.bytes()].concat()
}
