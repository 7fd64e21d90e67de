//! Ctrl-C: everything that waits checks for it, so that a run unwinds and cleans up.
//!
//! SIGINT, SIGTERM and SIGHUP are blocked in the whole process and taken by one thread. A second
//! signal changes nothing: cleaning up takes bounded time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};
use thiserror::Error;

/// The error of a run that was interrupted.
#[derive(Clone, Copy, Debug, Error)]
#[error("interrupted")]
pub struct Interrupted;

/// Whether the run was interrupted; clones share the state.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    seen: Arc<AtomicBool>,
}

/// The longest time until a sleep notices an interrupt.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

impl Interrupt {
    /// Starts to listen. Call it before any other thread starts, so that all inherit the signal
    /// mask.
    ///
    /// # Errors
    /// The kernel's.
    pub fn listen() -> anyhow::Result<Self> {
        let signals: SigSet =
            [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
        signals.thread_block().context("cannot block SIGINT")?;
        let interrupt = Self::default();
        let seen = Arc::clone(&interrupt.seen);
        thread::Builder::new().name("signals".into()).spawn(move || {
            while signals.wait().is_ok() {
                seen.store(true, Ordering::Relaxed);
            }
        })?;
        Ok(interrupt)
    }

    /// An interrupt that has already happened.
    #[must_use]
    pub fn set() -> Self {
        Self { seen: Arc::new(AtomicBool::new(true)) }
    }

    /// Checks whether to go on.
    ///
    /// # Errors
    /// [`Interrupted`] once the run is to end.
    pub fn check(&self) -> Result<(), Interrupted> {
        if self.seen.load(Ordering::Relaxed) { Err(Interrupted) } else { Ok(()) }
    }

    /// Sleeps for `duration`.
    ///
    /// # Errors
    /// [`Interrupted`] once the run is to end.
    pub fn sleep(&self, duration: Duration) -> Result<(), Interrupted> {
        let end = Instant::now() + duration;
        loop {
            self.check()?;
            match end.checked_duration_since(Instant::now()) {
                None => return Ok(()),
                Some(left) => thread::sleep(left.min(CHECK_INTERVAL)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupt_ends_a_sleep() {
        let interrupt = Interrupt::default();
        assert!(interrupt.sleep(Duration::ZERO).is_ok());
        assert!(Interrupt::set().sleep(Duration::from_secs(3600)).is_err());
    }
}
