//! What threads share without locks, in all orders that a bounded number of preemptions can bring
//! about, and with all values that the memory model lets a load see. `make loom`; see `README.md`.

mod control;
mod engine;
mod mailbox;
mod replay;
mod sequence;

/// What the sources say `crate::sync` for.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
}

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

pub(crate) use engine::drop_reason::DropReason;

/// A thread loses the processor so often at the most where it did not give it away.
const PREEMPTIONS: usize = 3;

type Model = (&'static str, fn());

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let all = [sequence::MODELS, replay::MODELS, mailbox::MODELS].concat();
    for (name, model) in all {
        if wanted.is_empty() || wanted.iter().any(|wanted| name.contains(wanted.as_str())) {
            explore(name, model);
        }
    }
}

fn explore(name: &str, model: fn()) {
    static ORDERS: AtomicUsize = AtomicUsize::new(0);
    ORDERS.store(0, Ordering::Relaxed);
    let begun = Instant::now();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    println!("{name} …");
    builder.check(move || {
        ORDERS.fetch_add(1, Ordering::Relaxed);
        model();
    });
    println!(
        "{name}: {} orders in {:.1} s",
        ORDERS.load(Ordering::Relaxed),
        begun.elapsed().as_secs_f32()
    );
}
