//! Outbound numbers: none twice, none before its IV's prefix, none above what a closed counter
//! tells.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use crate::Model;
use crate::engine::sequence::Sequence;

pub(crate) const MODELS: &[Model] = &[
    ("sequence: two workers share numbers", || shared(Sequence::new(0, 5))),
    ("sequence: two workers share the last numbers", || {
        shared(Sequence::new((1 << 63) + 5, (1 << 63) + 8));
    }),
    ("sequence: two workers where the counter changes its manner", || {
        shared(Sequence::new((1 << 63) - 1, u64::MAX));
    }),
    ("sequence: a prefix is there before its numbers", prefix),
    ("sequence: a closed counter tells its last number", closed),
];

/// Takes twice.
fn take(sequence: &Sequence) -> Vec<u64> {
    [2, 1]
        .into_iter()
        .filter_map(|count| sequence.take(count).ok())
        .flat_map(|block| block.numbers().collect::<Vec<_>>())
        .collect()
}

fn assert_unique(mut numbers: Vec<u64>) {
    let count = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), count, "a number twice");
}

fn shared(sequence: Sequence) {
    let sequence = Arc::new(sequence);
    let other = Arc::clone(&sequence);
    let worker = thread::spawn(move || take(&other));
    let mut numbers = take(&sequence);
    numbers.extend(worker.join().unwrap());
    let limit = sequence.last();
    assert!(numbers.iter().all(|number| *number <= limit));
    assert_unique(numbers);
}

/// `Sa::set_iv_prefix`, then `Sequence::reserve`; a worker takes a number, then `Sa::iv_prefix`.
fn prefix() {
    let sequence = Sequence::new(0, 100);
    sequence.reserve(1);
    let shared = Arc::new((sequence, AtomicU64::new(0)));
    let other = Arc::clone(&shared);
    let owner = thread::spawn(move || {
        other.1.store(7, Ordering::Relaxed);
        other.0.reserve(5);
    });
    for block in [1, 2].into_iter().filter_map(|count| shared.0.take(count).ok()) {
        if block.numbers().any(|number| number > 1) {
            assert_eq!(shared.1.load(Ordering::Relaxed), 7, "a number before its prefix");
        }
    }
    owner.join().unwrap();
}

fn closed() {
    let sequence = Sequence::new(0, 100);
    sequence.reserve(10);
    let sequence = Arc::new(sequence);
    let workers = [(), ()].map(|()| {
        let other = Arc::clone(&sequence);
        thread::spawn(move || take(&other))
    });
    let last = sequence.close();
    assert!(sequence.take(1).is_err());
    let numbers: Vec<u64> = workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect();
    assert!(numbers.iter().all(|number| *number <= last), "{numbers:?} after {last}");
    assert_unique(numbers);
}
