//! A lane on its thread.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering, fence},
    },
    thread::JoinHandle,
};

use uxfrm_engine::WaitingPacket;
use uxfrm_io::{affinity, confine, poll::Waker};

use crate::{Error, InlineLane, Lane, TunnelLane};

/// What a thread can run: one turn of its loop after the other.
pub trait Turns: Send + 'static {
    /// One turn.
    ///
    /// # Errors
    /// What ends the loop.
    fn turn(&mut self) -> Result<(), Error>;

    /// Ends the current turn's wait, or the next one's.
    fn waker(&self) -> Waker;

    /// Buffers that wait for states.
    fn waiting(&self) -> Arc<AtomicUsize>;

    /// It is halted: all that it did is to be counted.
    fn settle(&mut self) {}

    /// It rests: leaves to another process what that needs to go on in its place, and may be told to go on itself.
    fn lay_down(&mut self) {}

    /// Before the first turn: goes on where a lane of another process was laid down.
    ///
    /// # Errors
    /// Where it was not.
    fn take_up(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// One turn, halted, with what is in memory on its way to or from a device, and with nothing of ports. Whether there was anything.
    fn drain(&mut self) -> bool {
        false
    }

    /// Copies of the packets that wait for states.
    fn portray_waiting(&self) -> Vec<WaitingPacket> {
        Vec::new()
    }

    /// Before the first turn: packets that waited so with another lane wait with this one, or leave.
    fn wait_with(&mut self, packets: Vec<WaitingPacket>) {
        drop(packets);
    }
}

impl Turns for Lane {
    fn turn(&mut self) -> Result<(), Error> {
        Self::turn(self)
    }

    fn waker(&self) -> Waker {
        Self::waker(self)
    }

    fn waiting(&self) -> Arc<AtomicUsize> {
        Self::waiting(self)
    }

    fn lay_down(&mut self) {
        Self::lay_down(self);
    }

    fn take_up(&mut self) -> io::Result<()> {
        Self::take_up(self)
    }

    fn settle(&mut self) {
        Self::settle(self);
    }

    fn drain(&mut self) -> bool {
        Self::drain(self)
    }

    fn portray_waiting(&self) -> Vec<WaitingPacket> {
        self.worker().portray_waiting()
    }

    fn wait_with(&mut self, packets: Vec<WaitingPacket>) {
        Self::wait_with(self, packets);
    }
}

impl Turns for InlineLane {
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

    fn lay_down(&mut self) {
        Self::lay_down(self);
    }

    fn take_up(&mut self) -> io::Result<()> {
        Self::take_up(self)
    }
}

impl Turns for TunnelLane {
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

/// A lane that runs. Dropping it stops the lane and waits for it.
#[derive(Debug)]
pub struct Running {
    stop: Arc<AtomicBool>,
    waker: Waker,
    waiting: Arc<AtomicUsize>,
    name: String,
    cpu: Option<usize>,
    thread: Option<JoinHandle<Ended>>,
}

/// A lane whose thread has ended, and why if not because it was told to.
struct Ended {
    event_loop: Box<dyn Turns>,
    outcome: Result<(), Error>,
}

/// A lane that was halted or has yet to start, with all that it has. Dropping it ends the lane.
pub struct Halted {
    event_loop: Box<dyn Turns>,
    name: String,
    cpu: Option<usize>,
}

impl Halted {
    /// One that has yet to start.
    #[must_use]
    pub fn new(event_loop: impl Turns, name: String) -> Self {
        Self { event_loop: Box::new(event_loop), name, cpu: None }
    }

    /// One turn with what is on its way to or from a device, and with nothing of ports; on the calling thread. Whether there was
    /// anything.
    pub fn drain(&mut self) -> bool {
        self.event_loop.drain()
    }

    /// Leaves to another process what that needs to go on in its place: nothing of it is to be drained any more.
    pub fn lay_down(&mut self) {
        self.event_loop.lay_down();
    }

    /// Copies of the packets that wait there for states.
    #[must_use]
    pub fn portray_waiting(&self) -> Vec<WaitingPacket> {
        self.event_loop.portray_waiting()
    }

    /// Starts it again.
    ///
    /// # Errors
    /// When the thread can't be started.
    pub fn resume(self) -> io::Result<Running> {
        Running::start_boxed(self.event_loop, self.name, self.cpu)
    }
}

impl std::fmt::Debug for Halted {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Halted").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Running {
    /// Starts `event_loop` on a thread of its own, on `cpu` only if one is given. A CPU that can't be had is said and done without.
    ///
    /// # Errors
    /// When the thread can't be started.
    pub fn start(event_loop: impl Turns, name: String, cpu: Option<usize>) -> io::Result<Self> {
        Self::start_boxed(Box::new(event_loop), name, cpu)
    }

    /// The same, whatever kind of lane it is.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_boxed(
        event_loop: Box<dyn Turns>,
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
            let confined = confine::packets();
            if let Some(left) = confined.faults() {
                tracing::debug!("a worker keeps more than it needs: {left}");
            }
            run(event_loop, &stopped)
        })?;
        Ok(Self { stop, waker, waiting, name, cpu, thread: Some(thread) })
    }

    /// Whether the lane ended by itself.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// To be called after states, policies or acquires were published: wakes the lane if packets wait for that.
    pub fn nudge(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) != 0 {
            self.waker.wake();
        }
    }

    /// Lets the lane finish its batch and waits for its end.
    ///
    /// # Errors
    /// What ended the lane before it was told to.
    ///
    /// # Panics
    /// When the lane did.
    pub fn stop(mut self) -> Result<(), Error> {
        self.finish().map_or(Ok(()), |ended| ended.outcome)
    }

    /// Lets the lane finish its batch and waits until it rests, with all that it has.
    ///
    /// # Errors
    /// What ended the lane before it was told to.
    ///
    /// # Panics
    /// When the lane did.
    pub fn halt(mut self) -> Result<Option<Halted>, Error> {
        let Some(Ended { mut event_loop, outcome }) = self.finish() else { return Ok(None) };
        outcome?;
        event_loop.settle();
        Ok(Some(Halted { event_loop, name: std::mem::take(&mut self.name), cpu: self.cpu }))
    }

    fn finish(&mut self) -> Option<Ended> {
        let thread = self.thread.take()?;
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        Some(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ended = self.finish();
    }
}

fn run(mut event_loop: Box<dyn Turns>, stop: &AtomicBool) -> Ended {
    while !stop.load(Ordering::Relaxed) {
        if let Err(error) = event_loop.turn() {
            return Ended { event_loop, outcome: Err(error) };
        }
    }
    Ended { event_loop, outcome: Ok(()) }
}
