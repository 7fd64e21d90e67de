//! A thread that carries packets and can be paused while another process takes over (`uxfrm
//! upgrade`).

use uxfrm_runtime::{EventLoop, PausedWorker, WorkerThread};

/// A thread, or what it carried while it is paused.
#[derive(Debug)]
pub(crate) enum PausableThread {
    Runs(WorkerThread),
    Rests(PausedWorker),
    /// It could not be halted or started again.
    Gone,
}

impl PausableThread {
    /// Starts a loop on a thread of its own.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub(crate) fn start(lane: impl EventLoop, name: String) -> std::io::Result<Self> {
        Ok(Self::Runs(WorkerThread::start(lane, name, None)?))
    }

    /// One that is to be [resumed](Self::resume).
    pub(crate) fn resting(lane: impl EventLoop, name: String) -> Self {
        Self::Rests(PausedWorker::new(lane, name))
    }

    /// Lets it finish its batch.
    ///
    /// # Errors
    /// What ended it before.
    pub(crate) fn rest(&mut self) -> anyhow::Result<()> {
        match std::mem::replace(self, Self::Gone) {
            Self::Runs(running) => *self = running.pause()?.map_or(Self::Gone, Self::Rests),
            other @ (Self::Rests(_) | Self::Gone) => *self = other,
        }
        Ok(())
    }

    /// Has it go on.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub(crate) fn resume(&mut self) -> std::io::Result<()> {
        match std::mem::replace(self, Self::Gone) {
            Self::Rests(paused) => *self = Self::Runs(paused.resume()?),
            other @ (Self::Runs(_) | Self::Gone) => *self = other,
        }
        Ok(())
    }

    /// While it rests.
    pub(crate) const fn paused(&mut self) -> Option<&mut PausedWorker> {
        match self {
            Self::Rests(paused) => Some(paused),
            Self::Runs(_) | Self::Gone => None,
        }
    }

    /// Whether it ended by itself.
    pub(crate) fn has_ended(&self) -> bool {
        match self {
            Self::Runs(lane) => lane.has_ended(),
            Self::Rests(_) => false,
            Self::Gone => true,
        }
    }

    /// Ends it.
    ///
    /// # Errors
    /// What ended it before it was told to.
    pub(crate) fn stop(self) -> Result<(), uxfrm_runtime::Error> {
        match self {
            Self::Runs(lane) => lane.stop(),
            Self::Rests(_) | Self::Gone => Ok(()),
        }
    }
}
