//! The contract of offload: what software does with a state, a device does in either kind. Each
//! sequence of operations runs three times side by side, and what is on the wire, what key managers
//! hear, what is delivered, what is counted and what is dropped must be the same. What is not is in
//! one table ([`exceptions`]), which `docs/offload.md` has too.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

mod any_steps;
mod exceptions;
mod forms;
mod peer;
mod scenarios;
mod step;
mod subject;

use step::Step;
use subject::{Engine, Keeping, Subject};
use uxfrm_engine::LifetimeLimits;
use uxfrm_testkit::IpsecSetup;

/// Runs the same steps in every form of protection. As many packets pass in each, where no bytes
/// are counted.
fn compare(name: &str, wrapping: &IpsecSetup, steps: &[Step]) {
    let counts_bytes = wrapping.limits.bytes != LifetimeLimits::default().bytes;
    let mut passed = None;
    for (form, wrapping) in forms::table(wrapping) {
        let these = compare_in(&format!("{name}, {form}"), &wrapping, steps);
        let others = *passed.get_or_insert(these);
        assert!(
            counts_bytes || these == others,
            "{name}, {form}: {these:?} passed, {others:?} else"
        );
    }
}

/// Runs the same steps in software and on devices, and compares after each. How many packets passed
/// each way.
fn compare_in(name: &str, wrapping: &IpsecSetup, steps: &[Step]) -> (usize, usize) {
    let mut passed = (0, 0);
    for keeping in [Keeping::Nobody, Keeping::Owner] {
        let mut all = Engine::ALL.map(|engine| Subject::new(engine, wrapping, keeping));
        for (place, step) in steps.iter().enumerate() {
            let what = || format!("{name}, step {place}, {step:?}, numbers kept by {keeping:?}");
            let seen = all.each_mut().map(|subject| subject.take(step));
            passed = (passed.0 + seen[0].wire.len(), passed.1 + seen[0].delivered.len());
            let unread = seen[0].wire.iter().filter(|sealed| sealed.opened.is_none()).count();
            assert_eq!(unread, 0, "{}: the peer opens all", what());
            for (engine, other) in Engine::ALL.into_iter().zip(&seen).skip(1) {
                assert_eq!(*other, seen[0], "{}: {engine:?}, software", what());
            }
        }
    }
    passed
}
