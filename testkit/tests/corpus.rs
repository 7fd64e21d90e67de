//! The corpora of the fuzzers for packets, gateways and crypto, replayed; see `fuzz/README.md`.

use uxfrm_testkit::fuzz::{self, Corpus, replay};

#[test]
fn packet() {
    replay("packet", fuzz::packet);
}

#[test]
fn inbound() {
    replay("inbound", fuzz::inbound);
}

#[test]
fn outbound() {
    replay("outbound", fuzz::outbound);
}

#[test]
fn open() {
    replay("open", fuzz::open);
}

/// What the corpora began with.
#[test]
#[ignore = "writes fuzz/corpus: for `make fuzz-seeds`"]
fn seeds() {
    for (target, seeds) in [
        ("packet", fuzz::packet_seeds()),
        ("inbound", fuzz::inbound_seeds()),
        ("outbound", fuzz::outbound_seeds()),
        ("open", fuzz::open_seeds()),
    ] {
        for (number, seed) in seeds.iter().enumerate() {
            Corpus::of(target).add(&format!("seed-{number:02}"), seed);
        }
    }
}
