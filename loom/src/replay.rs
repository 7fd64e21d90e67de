//! The inbound window that workers share: no number accepted twice, nor above the reserved edge,
//! and what is handed on knows them all.

use loom::sync::Arc;
use loom::thread;

use crate::Model;
use crate::engine::kept_window;
use crate::engine::replay::{FIRST_RESERVED, ReplayWindow, SeqWidth};

pub(crate) const MODELS: &[Model] = &[
    ("replay: a number that two workers have", || twice([5, 5], [5, 6])),
    ("replay: numbers beyond a lap of the ring", || twice([5, 5], [69, 5])),
    ("replay: numbers of one block", || twice([5, 7], [6, 7])),
    ("replay: neighbours and one of them", neighbours),
    ("replay: a window that ends", ended),
    ("replay: a window that learns from a device", learned),
    ("replay: an edge that moves", edge),
];

fn accept(window: &ReplayWindow, number: u32) -> Option<u64> {
    let candidate = window.check(number).ok()?;
    window.accept(candidate).ok().map(|()| u64::from(number))
}

fn assert_unique(mut numbers: Vec<u64>) {
    let count = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), count, "a number was accepted twice");
}

fn twice(left: [u32; 2], right: [u32; 2]) {
    let window = Arc::new(ReplayWindow::new(32, SeqWidth::Bits32, 0));
    let other = Arc::clone(&window);
    let worker = thread::spawn(move || {
        left.into_iter().filter_map(|n| accept(&other, n)).collect::<Vec<_>>()
    });
    let mut accepted: Vec<_> = right.into_iter().filter_map(|n| accept(&window, n)).collect();
    accepted.extend(worker.join().unwrap());
    let highest = accepted.iter().copied().max();
    assert!(highest.is_none_or(|highest| window.highest() >= highest));
    assert_unique(accepted);
}

fn neighbours() {
    let window = Arc::new(ReplayWindow::new(32, SeqWidth::Bits32, 0));
    let other = Arc::clone(&window);
    let worker = thread::spawn(move || {
        let run = [3, 4, 5].map(|number| other.check(number));
        let run: Vec<_> = run.into_iter().map_while(Result::ok).collect();
        let count = other.accept_some(run.iter().copied());
        run[..count].iter().map(|candidate| candidate.number()).collect::<Vec<_>>()
    });
    let mut accepted: Vec<_> = [4, 6].into_iter().filter_map(|n| accept(&window, n)).collect();
    accepted.extend(worker.join().unwrap());
    assert_unique(accepted);
}

/// As when a state gives way to another one with its key: the new window knows all that the old one
/// accepted.
fn ended() {
    let old = Arc::new(ReplayWindow::new(32, SeqWidth::Bits32, 0));
    let other = Arc::clone(&old);
    let worker = thread::spawn(move || {
        [5, 69].into_iter().filter_map(|n| accept(&other, n)).collect::<Vec<_>>()
    });
    let (highest, received) = old.end();
    let new = ReplayWindow::new(32, SeqWidth::Bits32, 0);
    new.mark_received(highest, received);
    let mut accepted: Vec<_> = [5, 69].into_iter().filter_map(|n| accept(&new, n)).collect();
    accepted.extend(worker.join().unwrap());
    assert_unique(accepted);
}

fn learned() {
    let window = Arc::new(ReplayWindow::new(32, SeqWidth::Bits32, 0));
    let other = Arc::clone(&window);
    let device = thread::spawn(move || other.mark_received(70, [69, 70]));
    let accepted: Vec<_> = [69, 69].into_iter().filter_map(|n| accept(&window, n)).collect();
    device.join().unwrap();
    assert_unique(accepted);
    assert!(accept(&window, 70).is_none() && accept(&window, 69).is_none(), "the device had them");
}

/// The owner moves the edge once; whoever accepts a number finds an edge that is not below it.
fn edge() {
    let window = Arc::new(kept_window(32));
    let owner = Arc::clone(&window);
    let first = u32::try_from(FIRST_RESERVED).unwrap();
    let owner = thread::spawn(move || owner.reserve(FIRST_RESERVED + 2));
    for number in [first - 1, first + 1, first + 3] {
        if let Some(number) = accept(&window, number) {
            assert!(number <= window.reserved(), "{number} is above the edge");
        }
    }
    owner.join().unwrap();
    assert!(window.highest() <= FIRST_RESERVED + 2);
}
