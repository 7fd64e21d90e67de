//! The corpus of the fuzzer for netlink requests, replayed; see `fuzz/README.md`.
#![expect(clippy::unwrap_used, reason = "a test ends where it is wrong")]

mod requests;

use uxfrm_testkit::fuzz::{Corpus, replay};

#[test]
fn netlink() {
    replay("netlink", requests::netlink);
}

/// Without libFuzzer: inputs of the corpus joined and damaged, the same each time; `UXFRM_ROUNDS`
/// sets how many.
#[test]
fn damaged_request_does_not_panic() {
    let rounds = std::env::var("UXFRM_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    let seeds = seeds_of_iproute2();
    let mut random = 1_u64;
    let mut below = |limit: usize| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(random >> 33).unwrap() % limit
    };
    for _ in 0..rounds.unwrap_or(2000) {
        let mut input = Vec::new();
        for _ in 0..=below(12) {
            let mut seed = seeds[below(seeds.len())].clone();
            for _ in 0..below(6) {
                let place = 2 + below(seed.len() - 2);
                match below(4) {
                    0 => seed[place] = u8::try_from(below(256)).unwrap(),
                    1 => seed[place] ^= 1 << below(8),
                    2 => seed[place] = [0, 1, 2, 4, 16, 255][below(6)],
                    _ => seed[6] = u8::try_from(0x10 + below(0x1b)).unwrap(),
                }
            }
            input.extend(seed);
        }
        requests::netlink(&input);
    }
}

/// What the corpus began with: what iproute2 sends, one request each, and all of them in one go.
#[test]
#[ignore = "writes fuzz/corpus: for `make fuzz-seeds`"]
fn seeds() {
    let corpus = Corpus::of("netlink");
    let all = seeds_of_iproute2();
    for (number, input) in all.iter().enumerate() {
        corpus.add(&format!("seed-{number:02}"), input);
    }
    corpus.add("seed-all", &all.concat());
}

/// Each request behind its length.
fn seeds_of_iproute2() -> Vec<Vec<u8>> {
    let lines = include_str!("protocol/iproute2.txt").lines();
    let requests = lines.filter_map(|line| line.split_once('\t'));
    let input = |(_, hex): (&str, &str)| {
        let bytes = (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16));
        let bytes: Vec<u8> = bytes.map(Result::unwrap).collect();
        [&u16::try_from(bytes.len()).unwrap().to_le_bytes()[..], &bytes].concat()
    };
    requests.map(input).collect()
}
