//! What happened, for who reads a failure; and a number that is the same in every run of a seed.

use std::{
    cell::RefCell,
    collections::VecDeque,
    fmt::Write as _,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    rc::Rc,
};

/// Steps that are kept.
const KEPT: usize = 60;

#[derive(Debug, Default)]
struct TraceLines {
    last: VecDeque<String>,
    digest: DefaultHasher,
    steps: u64,
}

/// The steps of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Trace {
    told: Rc<RefCell<TraceLines>>,
    /// Whether all of it is printed as it happens.
    is_loud: bool,
}

impl Trace {
    /// Of nothing yet.
    pub(super) fn new(is_loud: bool) -> Self {
        Self { is_loud, ..Self::default() }
    }

    /// Something happens.
    pub(super) fn note(&self, text: impl FnOnce() -> String) {
        let mut told = self.told.borrow_mut();
        let text = text();
        text.hash(&mut told.digest);
        told.steps += 1;
        let line = format!("{:5} {text}", told.steps);
        if self.is_loud {
            eprintln!("{line}");
        }
        if told.last.len() == KEPT {
            told.last.pop_front();
        }
        told.last.push_back(line);
    }

    /// The last steps.
    pub(super) fn last(&self) -> String {
        let told = self.told.borrow();
        told.last.iter().fold(String::new(), |mut text, line| {
            let _ = writeln!(text, "{line}");
            text
        })
    }

    /// What tells runs apart.
    pub(super) fn digest(&self) -> u64 {
        self.told.borrow().digest.finish()
    }
}
