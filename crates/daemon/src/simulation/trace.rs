//! A log of a run for debugging, and its digest, which is the same in every run of a seed.

use std::{
    cell::RefCell,
    collections::VecDeque,
    fmt::Write as _,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    rc::Rc,
};

/// Number of last steps that are kept.
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
    lines: Rc<RefCell<TraceLines>>,
    /// Whether all of it is printed as it happens.
    is_loud: bool,
}

impl Trace {
    /// An empty trace.
    pub(super) fn new(is_loud: bool) -> Self {
        Self { is_loud, ..Self::default() }
    }

    /// Logs a step.
    pub(super) fn note(&self, text: impl FnOnce() -> String) {
        let mut lines = self.lines.borrow_mut();
        let text = text();
        text.hash(&mut lines.digest);
        lines.steps += 1;
        let line = format!("{:5} {text}", lines.steps);
        if self.is_loud {
            eprintln!("{line}");
        }
        if lines.last.len() == KEPT {
            lines.last.pop_front();
        }
        lines.last.push_back(line);
    }

    /// The last steps.
    pub(super) fn last(&self) -> String {
        let lines = self.lines.borrow();
        lines.last.iter().fold(String::new(), |mut text, line| {
            let _ = writeln!(text, "{line}");
            text
        })
    }

    /// Digest of all steps.
    pub(super) fn digest(&self) -> u64 {
        self.lines.borrow().digest.finish()
    }
}
