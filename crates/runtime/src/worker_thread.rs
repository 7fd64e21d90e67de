//! A loop on its thread.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering, fence},
    },
    thread::JoinHandle,
};

use uxfrm_engine::WaitingPacket;
use uxfrm_io::{affinity, poll::Waker, sandbox};

use crate::{Error, InlineLoop, TunnelLoop, WorkerLoop};

/// A loop that a thread can run.
pub trait EventLoop: Send + 'static {
    /// Runs the loop once.
    ///
    /// # Errors
    /// What ends the loop.
    fn turn(&mut self) -> Result<(), Error>;

    /// Ends the current turn's wait, or the next one's.
    fn waker(&self) -> Waker;

    /// Number of buffers that wait for SAs.
    fn waiting(&self) -> Arc<AtomicUsize>;

    /// Commits pending counts, after it was stopped.
    fn settle(&mut self) {}

    /// Saves the ring state that a successor process needs. The loop may also continue itself.
    fn save_state(&mut self) {}

    /// Restores the saved ring state of a predecessor, before the first turn.
    ///
    /// # Errors
    /// When none was saved.
    fn restore_state(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Runs once without ports, after it was stopped, for packets in memory to or from devices;
    /// whether there were any.
    fn drain(&mut self) -> bool {
        false
    }

    /// Copies the packets that wait for SAs.
    fn copy_waiting(&self) -> Vec<WaitingPacket> {
        Vec::new()
    }

    /// Continues with a predecessor's waiting packets, before the first turn.
    fn wait_with(&mut self, packets: Vec<WaitingPacket>) {
        drop(packets);
    }
}

impl EventLoop for WorkerLoop {
    fn turn(&mut self) -> Result<(), Error> {
        Self::turn(self)
    }

    fn waker(&self) -> Waker {
        Self::waker(self)
    }

    fn waiting(&self) -> Arc<AtomicUsize> {
        Self::waiting(self)
    }

    fn save_state(&mut self) {
        Self::save_state(self);
    }

    fn restore_state(&mut self) -> io::Result<()> {
        Self::restore_state(self)
    }

    fn settle(&mut self) {
        Self::settle(self);
    }

    fn drain(&mut self) -> bool {
        Self::drain(self)
    }

    fn copy_waiting(&self) -> Vec<WaitingPacket> {
        self.worker().copy_waiting()
    }

    fn wait_with(&mut self, packets: Vec<WaitingPacket>) {
        Self::wait_with(self, packets);
    }
}

impl EventLoop for InlineLoop {
    fn turn(&mut self) -> Result<(), Error> {
        Self::turn(self)
    }

    fn waker(&self) -> Waker {
        Self::waker(self)
    }

    fn waiting(&self) -> Arc<AtomicUsize> {
        self.held()
    }

    fn settle(&mut self) {
        Self::settle(self);
    }

    fn save_state(&mut self) {
        Self::save_state(self);
    }

    fn restore_state(&mut self) -> io::Result<()> {
        Self::restore_state(self)
    }
}

impl EventLoop for TunnelLoop {
    fn turn(&mut self) -> Result<(), Error> {
        Self::turn(self)
    }

    fn waker(&self) -> Waker {
        Self::waker(self)
    }

    fn waiting(&self) -> Arc<AtomicUsize> {
        Arc::default()
    }
}

/// A running loop. Dropping it stops and joins it.
#[derive(Debug)]
pub struct WorkerThread {
    stop: Arc<AtomicBool>,
    waker: Waker,
    waiting: Arc<AtomicUsize>,
    name: String,
    cpu: Option<usize>,
    thread: Option<JoinHandle<Ended>>,
}

/// A loop whose thread has ended, and the error that ended it, if any.
struct Ended {
    event_loop: Box<dyn EventLoop>,
    outcome: Result<(), Error>,
}

/// A loop that was stopped or has yet to start, with all its state. Dropping it ends the loop.
pub struct PausedWorker {
    event_loop: Box<dyn EventLoop>,
    name: String,
    cpu: Option<usize>,
}

impl PausedWorker {
    /// A loop that has yet to start.
    #[must_use]
    pub fn new(event_loop: impl EventLoop, name: String) -> Self {
        Self { event_loop: Box::new(event_loop), name, cpu: None }
    }

    /// Runs once without ports, on the calling thread, for packets in memory to or from a device;
    /// whether there were any.
    pub fn drain(&mut self) -> bool {
        self.event_loop.drain()
    }

    /// Saves the ring state for a successor process; nothing may be drained any more.
    pub fn save_state(&mut self) {
        self.event_loop.save_state();
    }

    /// Copies the packets that wait for SAs.
    #[must_use]
    pub fn copy_waiting(&self) -> Vec<WaitingPacket> {
        self.event_loop.copy_waiting()
    }

    /// Starts the loop again.
    ///
    /// # Errors
    /// When the thread can't be started.
    pub fn resume(self) -> io::Result<WorkerThread> {
        WorkerThread::start_boxed(self.event_loop, self.name, self.cpu)
    }
}

impl std::fmt::Debug for PausedWorker {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Halted").field("name", &self.name).finish_non_exhaustive()
    }
}

impl WorkerThread {
    /// Starts `event_loop` on a thread of its own, pinned to `cpu` if given. A failure to pin is
    /// only logged.
    ///
    /// # Errors
    /// When the thread can't be started.
    pub fn start(event_loop: impl EventLoop, name: String, cpu: Option<usize>) -> io::Result<Self> {
        Self::start_boxed(Box::new(event_loop), name, cpu)
    }

    /// Starts a boxed loop.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_boxed(
        event_loop: Box<dyn EventLoop>,
        name: String,
        cpu: Option<usize>,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let waker = event_loop.waker();
        let waiting = event_loop.waiting();
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name(name.clone()).spawn(move || {
            if let Some(Err(error)) = cpu.map(affinity::pin) {
                tracing::warn!(%error, cpu, "can't pin a worker");
            }
            let confined = sandbox::packets();
            if let Some(left) = confined.faults() {
                tracing::debug!("a worker keeps more than it needs: {left}");
            }
            run(event_loop, &stopped)
        })?;
        Ok(Self { stop, waker, waiting, name, cpu, thread: Some(thread) })
    }

    /// Whether the loop ended by itself.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Wakes the loop if packets wait for SAs; to be called after SAs, policies or acquires were
    /// published.
    pub fn wake_if_waiting(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) != 0 {
            self.waker.wake();
        }
    }

    /// Lets the loop finish its batch and joins its thread.
    ///
    /// # Errors
    /// What ended the loop earlier.
    ///
    /// # Panics
    /// When the loop did.
    pub fn stop(mut self) -> Result<(), Error> {
        self.finish().map_or(Ok(()), |ended| ended.outcome)
    }

    /// Lets the loop finish its batch and keeps it with all its state.
    ///
    /// # Errors
    /// What ended the loop earlier.
    ///
    /// # Panics
    /// When the loop did.
    pub fn pause(mut self) -> Result<Option<PausedWorker>, Error> {
        let Some(Ended { mut event_loop, outcome }) = self.finish() else { return Ok(None) };
        outcome?;
        event_loop.settle();
        Ok(Some(PausedWorker { event_loop, name: std::mem::take(&mut self.name), cpu: self.cpu }))
    }

    fn finish(&mut self) -> Option<Ended> {
        let thread = self.thread.take()?;
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        Some(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

impl Drop for WorkerThread {
    fn drop(&mut self) {
        let _ended = self.finish();
    }
}

fn run(mut event_loop: Box<dyn EventLoop>, stop: &AtomicBool) -> Ended {
    while !stop.load(Ordering::Relaxed) {
        if let Err(error) = event_loop.turn() {
            return Ended { event_loop, outcome: Err(error) };
        }
    }
    Ended { event_loop, outcome: Ok(()) }
}
