//! Replays the corpora of the fuzzers for packets, gateways and crypto; see `fuzz/README.md`.

use uxfrm_testkit::fuzz::{self, Corpus, replay};

#[test]
fn packet_corpus_replays() {
    replay("packet", fuzz::packet);
}

#[test]
fn inbound_corpus_replays() {
    replay("inbound", fuzz::inbound);
}

#[test]
fn outbound_corpus_replays() {
    replay("outbound", fuzz::outbound);
}

#[test]
fn open_corpus_replays() {
    replay("open", fuzz::open);
}

/// Writes the initial inputs of the corpora.
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
