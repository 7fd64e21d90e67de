//! The corpus of the fuzzer for tunnels, replayed; see `fuzz/README.md`.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

#[path = "gateway/fuzz.rs"]
mod fuzz;
mod gateway;

use gateway::{End, Gateway};
use uxfrm_packet::PacketBuf;
use uxfrm_testkit::fuzz::{Corpus, replay};
use uxfrm_testkit::packets;

#[test]
fn tunnel() {
    replay("tunnel", fuzz::tunnel);
}

/// Seeds of the corpus: output of every tunnel, whole and as a socket's payload, and input of each.
#[test]
#[ignore = "writes fuzz/corpus: for `make fuzz-seeds`"]
fn seeds() {
    let corpus = Corpus::of("tunnel");
    let left = Gateway::new(End::Left);
    let inner = [
        packets::udp_bytes("10.0.0.1:7", "10.0.0.2:9", b"inner"),
        packets::udp_bytes("[2002:c612::1]:7", "[2002:c633:6410::2]:9", b"inner"),
    ];
    for index in 0..left.tunnels.iter().count() {
        for (number, inner) in inner.iter().enumerate() {
            let first = u8::try_from(index << 2).unwrap();
            corpus
                .add(&format!("seed-out-{index:02}-{number}"), &[&[first | 2][..], inner].concat());
            let mut packet = PacketBuf::from_slice(inner);
            if left.send(index, &mut packet).is_ok() {
                let name = format!("seed-in-{index:02}-{number}");
                corpus.add(&name, &[&[0][..], packet.bytes()].concat());
            }
            let socket = u8::try_from((index % gateway::PORTS.len()) << 2).unwrap();
            corpus.add(
                &format!("seed-socket-{index:02}-{number}"),
                &[&[socket | 1][..], inner].concat(),
            );
        }
    }
}
